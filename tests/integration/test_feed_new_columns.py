"""What a new column holds in the rows that are there: on a target what it holds on the source, or consume says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import flow
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import twin
from tests.support.running_feed import Running, start_feed
from vreplication.state import layout

pytestmark = pytest.mark.either

MOMENTS = (
    ("timestamp=DEFAULT", "a DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"),
    ("timestamp=2000000000", "b DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, ALGORITHM=COPY"),
    ("timestamp=900000000.25", "c DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"),
    ("timestamp=DEFAULT", "d DATETIME(3) NOT NULL DEFAULT (NOW(3) + INTERVAL 1 DAY)"),
)
"""Behind a time that is far ahead the messages of the feed are counted up from it."""


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with database.server.admin() as session:
        layout.install(session)
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    yield from twin(database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1),(2)")


def rows(database: Database) -> list[tuple[object, ...]]:
    return database.admin.rows("SELECT * FROM t ORDER BY id")


def come(one: Consuming, target: Database) -> None:
    sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME='done'"
    wait_until(lambda: one.error or target.admin.value(sql, (target.name,)), "the last DDL is not run", 60)


def test_a_time_is_what_it_was_to_the_statement(
    begin: Callable[..., Running], database: Database, target: Database
) -> None:
    feed = begin()
    feed.wait_begun()
    with database.server.admin(database.name) as session:
        for setting, column in MOMENTS:
            session.execute_raw(f"SET {setting}")
            session.execute_raw(f"ALTER TABLE t ADD COLUMN {column}")
        session.execute_raw("CREATE TABLE done (id INT)")
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        come(one, target)
    assert rows(target) == rows(database)


def test_a_time_of_an_online_ddl_is_that_of_its_beginning(
    begin: Callable[..., Running], database: Database, target: Database, quick: None
) -> None:
    feed = begin()
    feed.wait_begun()
    column = "made DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"
    assert flow.begin(database, "t", f"ADD COLUMN {column}").result().event == "complete"
    database.admin.execute_raw("CREATE TABLE done (id INT)")
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        come(one, target)
    assert rows(target) == rows(database)


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        ("ADD COLUMN n INT NOT NULL AUTO_INCREMENT, ADD UNIQUE KEY (n)", "n (AUTO_INCREMENT"),
        ("ADD COLUMN n DATETIME NOT NULL DEFAULT (NOW() + INTERVAL 1 DAY)", "n (DEFAULT NOW)"),
    ],
)
def test_what_an_online_ddl_has_found_row_by_row_ends_the_consumer(
    begin: Callable[..., Running], database: Database, target: Database, quick: None, alter: str, why: str
) -> None:
    feed = begin()
    feed.wait_begun()
    assert flow.begin(database, "t", alter).result().event == "complete"
    database.admin.execute_raw("CREATE TABLE done (id INT)")
    feed.wait_sent(database)
    assert why in str(Consuming(feed.feed.address, target.url, "transaction").failed())
    assert rows(target) == [(1,), (2,)]
    # By hand, with the source's values.
    target.admin.execute_raw(f"ALTER TABLE t {alter}")
    target.admin.execute_raw("DELETE FROM t")
    for row in rows(database):
        target.admin.execute("INSERT INTO t VALUES (%s,%s)", row)
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        come(one, target)
    assert rows(target) == rows(database)
