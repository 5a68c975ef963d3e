"""What differs between versions of a server, and is decided by the version: here it is asked of the server itself.

Also run on other versions than the ones that all tests run on (`make versions`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.databases import Database
from tests.support.flow import call
from tests.support.tailing import changes, groups, here, watch
from vreplication.changes.codecs import SqlText
from vreplication.errors import SourceChanged
from vreplication.mysql.server import inspect
from vreplication.mysql.session import SqlError
from vreplication.planning import unlogged

TABLE = "(id INT PRIMARY KEY, a INT, v INT AS (a+1) VIRTUAL, s INT AS (a+2) STORED, b BLOB, UNIQUE (b(9)))"
WRITES = (
    "INSERT INTO t (id,a,b) VALUES (1,1,'x'),(2,2,NULL)",
    "UPDATE t SET a=NULL, b='y' WHERE id=1",
    "UPDATE t SET id=3 WHERE id=2",
    "DELETE FROM t WHERE id=1",
)


def test_the_log_has_generated_columns_where_we_believe_it(database: Database) -> None:
    """Where it leaves them out, all the others are read, and a consumer that asks for one is told."""
    database.admin.execute_raw(f"CREATE TABLE t {TABLE}")
    start, plain = here(database), watch(database, "t")
    for sql in WRITES:
        database.admin.execute_raw(sql)
    found = [(key, values is None) for key, values in changes(groups(database, start, plain))]
    assert found == [("1", False), ("2", False), ("1", False), ("2", True), ("3", False), ("1", True)]
    every = tuple((column.ordinal, "{}") for column in plain.columns)
    greedy = replace(plain, codec=SqlText(key=every[:1], values=every))
    if unlogged.leaves_out(inspect(database.admin)):
        with pytest.raises(SourceChanged, match="leaves the generated column v of"):
            groups(database, start, greedy)
    else:
        assert len(changes(groups(database, start, greedy))) == 6


def test_a_generated_column_that_becomes_ordinary(database: Database) -> None:
    """It takes its values from the log: refused where the log has none."""
    database.admin.execute_raw(f"CREATE TABLE t {TABLE}")
    database.admin.execute_raw(WRITES[0])
    words = ("--table", "t", "--alter", "MODIFY s INT", "--strategy", "online")
    ended = call(database, "plan", "online-ddl", *words)
    if unlogged.leaves_out(inspect(database.admin)):
        assert (ended.code, "s is generated and is to be an ordinary column" in ended.out) == (2, True), ended.out
    else:
        assert ended.code == 0, ended.out


def test_the_last_moment_that_a_timestamp_has(database: Database) -> None:
    """MariaDB has a bit more for it since 11.5."""
    found = inspect(database.admin)
    last = "2106-02-07 06:28:15" if found.is_mariadb and found.version >= (11, 5) else "2038-01-19 03:14:07"
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL)")
    start = here(database)
    database.admin.execute_raw(f"INSERT INTO t VALUES (1,'{last}')")
    assert changes(groups(database, start, watch(database, "t")))[-1].values == f"1,'{last}'"
    with pytest.raises(SqlError, match="Incorrect datetime value"):
        database.admin.execute_raw(f"INSERT INTO t VALUES (2,'{last}' + INTERVAL 1 SECOND)")
