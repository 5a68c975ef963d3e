"""Every byte that a column of any character set can hold: what a plain ALTER keeps is kept, what it refuses is refused.

Single-byte sets have bytes that stand for no character (0x81 in cp1250); a column stores them all the same.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.flow import altered_copy, begin, contents, paused_at, wait_reached
from vreplication.errors import BadValue
from vreplication.mysql import values
from vreplication.mysql.bulk import connect_bulk
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import idents
from vreplication.mysql.session import SQL_MODE, Row, Session, SqlError, connect
from vreplication.rowcopy.job import CopyJob
from vreplication.rowcopy.paths import CopyPath, RowsPath, ServerPath, make_path
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import row_literal_sql
from vreplication.schema.mapping import map_tables
from vreplication.settings import Limits
from vreplication.state.ledger import KeyRange

pytestmark = pytest.mark.either

WIDEST = 4
TRAILS = bytes([0x20, 0x30, 0x40, 0x5C, 0x7E, 0x7F, 0x80, 0xA1, 0xD8, 0xFE, 0xFF])
LEADS = bytes(range(0x80, 0x100, 7)) + bytes([0x80, 0x8E, 0x8F, 0xA1, 0xFE, 0xFF, 0x00, 0x41, 0xD8])
LONGER_VALUES = 60
REFUSED_VALUES = 6
UNASSIGNED = {"cp1250": ["81", "4181", "90"], "cp1257": ["A1", "41A5"], "hebrew": ["C0", "FF"]}
PATHS = ["server", "rows", "text"]
"""text: the rows path as it is where MariaDB's bulk statements cannot be used."""


def candidates() -> list[bytes]:
    """All single bytes, pairs around every border, and drawn sequences of three and four."""
    drawn = random.Random(7)
    singles = [bytes([b]) for b in range(256)]
    pairs = [bytes(pair) for pair in itertools.product(sorted(set(LEADS)), TRAILS)]
    longer = [bytes(drawn.choice(TRAILS + LEADS) for _ in range(n)) for n in (3, 4) for _ in range(150)]
    known = "e282ac f09f9880 efbfbd eda080 8fa2b7 00000041 81308130 0001f600 00004e2d d83dde00 004100e9 4100e900"
    return list(dict.fromkeys([*singles, *pairs, *longer, *map(bytes.fromhex, known.split())]))


def charsets(session: Session) -> list[str]:
    return sorted(str(row[0]) for row in session.rows("SHOW CHARACTER SET") if row[0] != "binary")


class Lab:
    """What each character set's column holds, found once a server."""

    def __init__(self, session: Session) -> None:
        self.sets = {charset: _storable(session, charset) for charset in charsets(session)}


def _storable(session: Session, charset: str) -> list[str]:
    """The candidates that are stored as they come, in hexadecimal: all single bytes, and some of the others."""
    session.execute_raw("DROP TABLE IF EXISTS tried")
    session.execute_raw(f"CREATE TABLE tried (b VARBINARY({WIDEST}), c VARCHAR({WIDEST}) CHARACTER SET {charset})")
    rows = ",".join(f"(X'{b.hex()}',X'{b.hex()}')" for b in candidates())
    session.execute_raw(f"INSERT IGNORE INTO tried VALUES {rows}")
    found = session.rows("SELECT HEX(b) FROM tried WHERE CAST(c AS BINARY)=b ORDER BY LENGTH(b), b")
    stored = [str(row[0]) for row in found]
    longer = [value for value in stored if len(value) > 2]
    return [value for value in stored if len(value) <= 2] + longer[:: max(1, len(longer) // LONGER_VALUES)]


@pytest.fixture(scope="module")
def lab(server: RunningServer) -> Iterator[Lab]:
    database = create_database(server)
    try:
        yield Lab(database.admin)
    finally:
        database.drop()


def make_table(app: Session, lab: Lab) -> list[str]:
    """A column for each character set; returns their names."""
    columns = [f"c_{charset}" for charset in lab.sets]
    kinds = (f"c_{charset} VARCHAR({WIDEST}) CHARACTER SET {charset}" for charset in lab.sets)
    app.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 7, {','.join(kinds)})")
    rows = itertools.zip_longest(*lab.sets.values())
    texts = (f"({i},{','.join(f'X{v!r}' if v else 'NULL' for v in row)})" for i, row in enumerate(rows))
    app.execute_raw(f"INSERT INTO t (id,{idents(columns)}) VALUES {','.join(texts)}")
    return columns


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("path", PATHS)
def test_bytes_are_kept_by_the_copy_and_by_catch_up(database: Database, pauses: Path, lab: Lab, path: str) -> None:
    # A number that becomes text has no bulk form, so the whole table goes as text.
    alter = "ADD COLUMN z INT NOT NULL DEFAULT 5" + (", MODIFY n VARCHAR(9)" if path == "text" else "")
    with connect(database.app_url) as app:
        columns = idents(make_table(app, lab))
        with paused_at(pauses, "workflow.copied"):
            run = begin(database, "t", alter, copy_path="server" if path == "server" else "rows", chunk_rows=70)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw(f"INSERT INTO t (id,{columns}) SELECT id+1000,{columns} FROM t")
            app.execute_raw("UPDATE t SET id=id+5000 WHERE id%7=0")
            altered_copy(app, database, "t", alter, "plain")
        result = run.result()
        assert result.event == "complete", (result.reason, run.said)
        assert contents(app, "t") == contents(app, "plain")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("charset", UNASSIGNED)
def test_keys_with_bytes_that_stand_for_nothing(database: Database, pauses: Path, charset: str, path: str) -> None:
    """Bounds of chunks, tombstones and deletes name such keys by literals."""
    kept = UNASSIGNED[charset]
    with connect(database.app_url) as app:
        app.execute_raw(f"CREATE TABLE t (k VARCHAR(9) CHARACTER SET {charset}, v INT, PRIMARY KEY (k))")
        keys = [*kept, "", "61", "62", "7A7A"]
        app.execute_raw(f"INSERT INTO t VALUES {','.join(f'(X{key!r},{i})' for i, key in enumerate(keys))}")
        with paused_at(pauses, "workflow.copied"):
            run = begin(database, "t", "ADD COLUMN z INT", copy_path=path, chunk_rows=1)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw(f"DELETE FROM t WHERE CAST(k AS BINARY)=X'{kept[0]}'")
            app.execute_raw("UPDATE t SET v=v+10")
            app.execute_raw("UPDATE t SET k=CONCAT(k,'x') WHERE v<13")
            altered_copy(app, database, "t", "ADD COLUMN z INT", "plain")
        result = run.result()
        assert result.event == "complete", (result.reason, run.said)
        assert contents(app, "t") == contents(app, "plain")


WHOLE = KeyRange(lower=["0"], upper=["100000"], has_lower=True)
AFTERS = ["VARCHAR(9) CHARACTER SET utf8mb4", "VARCHAR(9) CHARACTER SET latin2", "VARBINARY(9)"]


@pytest.mark.parametrize("after", AFTERS)
def test_another_type_takes_what_an_alter_takes_and_refuses_the_rest(database: Database, lab: Lab, after: str) -> None:
    with connect_bulk(database.url) as session:
        for charset, stored in lab.sets.items():
            change = Change(database, session, f"VARCHAR({WIDEST}) CHARACTER SET {charset}", after)
            kept, refused = change.sorted_out(stored)
            plain = change.altered(kept)
            assert {way: change.written(way, kept) for way in change.ways} == dict.fromkeys(change.ways, plain), charset
            for value in refused[:: max(1, len(refused) // REFUSED_VALUES)]:
                assert [way for way in change.ways if not change.is_refused(way, value)] == [], (charset, value)


class Change:
    """t: values of one type; u: the type that they are to become, by each of our ways."""

    def __init__(self, database: Database, session: Session, before: str, after: str) -> None:
        self.admin, self.session, self.after = database.admin, session, after
        self.admin.execute_raw("DROP TABLE IF EXISTS t, u")
        self.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, c {before})")
        self.admin.execute_raw(f"CREATE TABLE u (id INT PRIMARY KEY, c {after})")
        source, target = (introspect(session, database.name, name) for name in "tu")
        is_mariadb = database.server.is_mariadb
        self.mapping = map_tables(source, target, parse_alter(f"MODIFY c {after}"), is_mariadb=is_mariadb)
        job = CopyJob(workflow="w", copy_path="rows", limits=Limits())
        self.ways: dict[str, CopyPath | None] = {
            "catch-up": None,
            "server": ServerPath(session, self.mapping),
            "rows": RowsPath(Ends.on(session), self.mapping, job.packet),
        }
        if is_mariadb:
            self.ways["bulk"] = make_path(Ends.on(session), self.mapping, job)

    def sorted_out(self, stored: list[str]) -> tuple[list[str], list[str]]:
        """What an ALTER takes, and what it complains of when it may go on; in strict mode it refuses such a value."""
        self.altered(stored, sql_mode="")
        found = {int(row) - 1 for _, _, words in self.complaints for row in re.findall(r"at row (\d+)", words)}
        refused = [stored[number] for number in sorted(found)]
        if refused:
            with pytest.raises(SqlError, match="Incorrect string value"):
                self.altered(refused[:1])
        return [value for value in stored if value not in refused], refused

    def altered(self, stored: list[str], sql_mode: str = SQL_MODE) -> list[Row]:
        """What a plain ALTER makes of them."""
        self._fill(stored)
        self.admin.execute_raw("DROP TEMPORARY TABLE IF EXISTS plain")
        self.admin.execute_raw("CREATE TEMPORARY TABLE plain LIKE t")
        self.admin.execute_raw("INSERT INTO plain SELECT * FROM t")
        self.admin.execute_raw(f"SET SESSION sql_mode='{sql_mode}'")
        try:
            self.admin.execute_raw(f"ALTER TABLE plain MODIFY c {self.after}")
            self.complaints = self.admin.warnings()
        finally:
            self.admin.execute_raw(f"SET SESSION sql_mode='{SQL_MODE}'")
        return self.admin.rows("SELECT id, HEX(c) FROM plain ORDER BY id")

    def written(self, way: str, stored: list[str]) -> list[Row]:
        """What one of our ways makes of them. Raises what it refuses them with."""
        self._fill(stored)
        self.admin.execute_raw("DELETE FROM u")
        if (path := self.ways[way]) is None:
            found = [text for (text,) in self.session.rows(f"SELECT {row_literal_sql(self.mapping)} FROM t")]
            rows = (text.decode() if isinstance(text, bytes) else text for text in found)
            values.write(self.session, "REPLACE INTO u (id, c)", rows, packet=16 << 20)
        else:
            path.read(WHOLE)
            path.write(WHOLE)
        return self.admin.rows("SELECT id, HEX(c) FROM u ORDER BY id")

    def is_refused(self, way: str, value: str) -> bool:
        try:
            self.written(way, [value])
        except (BadValue, SqlError):
            return True
        return False

    def _fill(self, stored: list[str]) -> None:
        self.admin.execute_raw("DELETE FROM t")
        rows = ",".join(f"({i},X{v!r})" for i, v in enumerate(stored))
        self.admin.execute_raw(f"INSERT INTO t VALUES {rows}" if rows else "DO 0")
