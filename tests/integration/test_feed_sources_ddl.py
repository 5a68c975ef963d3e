"""DDL of two sources that have tables of one name: what the second says of it is looked at, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox.databases import Database, create_database
from tests.integration.test_feed_sources import begin, both, pulse
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import Running
from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.feed import spoken
from vreplication.mysql.session import connect
from vreplication.workflows.changefeed.pulse import Pulse

__all__ = ["begin", "both", "pulse"]

MADE = "CREATE TABLE IF NOT EXISTS t (k VARCHAR(9) PRIMARY KEY, a INT)"


@pytest.mark.in_turn
@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_a_table_of_the_second_source_with_other_keys_ends_the_consumer(
    begin: Callable[..., Running],
    both: tuple[Database, Database],
    pulse: Pulse,
    flavor: str,
) -> None:
    target = create_database(server_of(flavor, "target"), both[0].name)
    first, second = both
    first.admin.execute_raw(f"ALTER DATABASE {first.name} COLLATE utf8mb4_general_ci")
    second.admin.execute_raw(f"ALTER DATABASE {first.name} COLLATE utf8mb4_bin")
    try:
        feed = begin()
        feed.wait_begun()
        for number, each in enumerate(both):
            each.admin.execute_raw(f"USE {each.name}")
            each.admin.execute_raw(MADE)
            feed.wait_sent(each, number=number)
        second.admin.execute_raw("INSERT INTO t VALUES ('a',1),('A',2)")
        failure = Consuming(feed.feed.address, target.url, "transaction").failed()
        assert "Column k of" in str(failure)
        assert "is utf8mb4_general_ci on the target and utf8mb4_bin on a source" in str(failure)
        target.admin.execute_raw(f"ALTER TABLE {target.name}.t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        with Consuming(feed.feed.address, target.url, "transaction") as one:
            sql = f"SELECT a FROM {target.name}.t ORDER BY a"
            wait_until(lambda: one.error or target.admin.rows(sql) == [(1,), (2,)], "rows do not come", 30)
    finally:
        target.drop()


def test_a_statement_that_has_made_nothing_says_nothing_of_the_table(database: Database) -> None:
    """An application may send it whenever it starts."""
    database.admin.execute_raw("CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, a TEXT)")
    now = int(database.admin.value("SELECT UNIX_TIMESTAMP()"))
    for at, keys in ((now - 3600, {"k": "utf8mb4_bin"}), (now + 3600, {})):
        said = definition(
            Query(schema=database.name, text=MADE.encode(), collation=45, sql_mode=0, at=at * 10**6), None
        )
        assert said is not None
        with connect(database.url) as session:
            assert spoken._of_keys(session, said.fields()) == keys
