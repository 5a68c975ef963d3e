"""Rows that are asked of the source when it has converted them, by an ALTER that is still to come in the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import twin
from tests.support.running_feed import Running, start_feed
from vreplication.feed import large

pytestmark = pytest.mark.either

LIMIT = 20_000


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    yield from twin(database, "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL, n INT, doc LONGTEXT)")


def change(database: Database, alter: str) -> None:
    """One row is sent whole, of the other the key."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET time_zone='+05:00'")
        for number, doc in ((1, "small"), (2, "x" * LIMIT * 2)):
            session.execute("INSERT INTO t VALUES (%s,'2024-01-01 12:00:00',7,%s)", (number, doc))
        session.execute_raw(f"ALTER TABLE t {alter}")
        session.execute_raw("CREATE TABLE done (id INT)")


def rows(database: Database) -> list[tuple[object, ...]]:
    return database.admin.rows("SELECT * FROM t ORDER BY id")


def consuming(feed: Running, target: Database, database: Database) -> Consuming:
    source = database.server.plain(database.server.url(database.name))
    return Consuming(feed.feed.address, target.url, "row", more={"sources": [source]})


@pytest.mark.parametrize("alter", ["MODIFY at DATETIME NULL", "CHANGE COLUMN at at VARCHAR(30)"])
def test_values_that_were_converted_before_they_were_asked_are_not_converted_again(
    begin: Callable[..., Running], database: Database, target: Database, alter: str
) -> None:
    feed = begin(large=large.parse("key-only"), most_bytes=LIMIT)
    feed.wait_begun()
    change(database, alter)
    feed.wait_sent(database)
    for _ in range(2):
        assert "would be converted again" in str(consuming(feed, target, database).failed())
    assert target.admin.rows("SHOW COLUMNS FROM t")[1][1] == "timestamp"
    # By hand, and with the source's rows.
    target.admin.execute_raw(f"ALTER TABLE t {alter}")
    for row in rows(database):
        target.admin.execute("REPLACE INTO t VALUES (%s,%s,%s,%s)", row)
    with consuming(feed, target, database) as one:
        wait_until(lambda: one.error or target.admin.rows("SHOW TABLES LIKE 'done'"), "it does not go on", 30)
    assert rows(target) == rows(database)


def test_what_stays_as_it_is_when_it_is_converted_again_goes_on(
    begin: Callable[..., Running], database: Database, target: Database
) -> None:
    feed = begin(large=large.parse("key-only"), most_bytes=LIMIT)
    feed.wait_begun()
    change(database, "MODIFY n BIGINT NOT NULL, MODIFY at TIMESTAMP(3) NULL, CONVERT TO CHARACTER SET utf8mb4")
    feed.wait_sent(database)
    with consuming(feed, target, database) as one:
        wait_until(lambda: one.error or target.admin.rows("SHOW TABLES LIKE 'done'"), "it does not go on", 30)
    assert rows(target) == rows(database)
