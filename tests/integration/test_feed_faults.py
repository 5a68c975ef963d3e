"""A feed beside brokers that die, freeze and come back: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from tests.support.rows import make_feed
from tests.support.running_feed import (
    Running,
    check_numbers,
    logged,
    make_tables,
    sent,
    start_feed,
    write_history,
)
from tests.support.small_disk import make_room, small_disk_at
from vreplication.errors import Transient
from vreplication.feed import producer, running
from vreplication.feed.broker import Broker
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.state import feeds as state_feeds
from vreplication.state import layout
from vreplication.workflows.changefeed.driver import FeedDriver

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka_cluster: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka_cluster, database, tmp_path)


def _write_until(database: Database, draw: random.Random, is_so: Callable[[], Any]) -> None:
    def is_so_now() -> Any:
        write_history(database, draw, 3, ("t", "u"))
        return is_so()

    wait_until(is_so_now, "it did not come to that", 120, 0.1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TRANSACTION_SECONDS", 12), ("_MESSAGE_SECONDS", 8), ("_SOCKET_SECONDS", 6)):
        monkeypatch.setattr(producer, name, seconds)


def _commits(feed: Running, more: int) -> Callable[[], bool]:
    """So many further commits from here on."""
    seen: list[object] = [feed.status]

    def are_there() -> bool:
        if feed.status is not seen[-1]:
            seen.append(feed.status)
        return feed.error is not None or len(seen) > more

    return are_there


@pytest.mark.only_on("mysql")
def test_leaders_and_coordinators_are_killed_and_frozen_in_turn(
    begin: Callable[..., Running], kafka_cluster: Cluster, database: Database
) -> None:
    draw = random.Random(7)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin(partitions=3)
    feed.wait_begun()
    for number in (kafka_cluster.leader(feed.feed.address.topic), kafka_cluster.leader("__transaction_state")):
        kafka_cluster.kill(number)
        _write_until(database, draw, _commits(feed, 2))
        kafka_cluster.start(number)
    kafka_cluster.freeze(kafka_cluster.leader(feed.feed.address.topic))
    _write_until(database, draw, _commits(feed, 2))
    kafka_cluster.restore()
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert check(feed.feed.address).partitions == 3


@pytest.mark.only_on("mariadb")
def test_all_brokers_away_are_waited_for(
    begin: Callable[..., Running], kafka_cluster: Cluster, database: Database
) -> None:
    draw = random.Random(8)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin()
    feed.wait_begun()
    write_history(database, draw, 5, ("t", "u"))
    for number in range(3):
        kafka_cluster.kill(number)
    write_history(database, draw, 20, ("t", "u"))
    wait_until(lambda: feed.said or feed.error, "nothing is said of it")
    kafka_cluster.start(0, 1, 2)
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_the_source_is_killed_and_comes_back(
    begin: Callable[..., Running], kafka_cluster: Cluster, database: Database
) -> None:
    """Its connections are cut; a server of its own is killed in tests of catch-up, which reads by the same reader."""
    draw = random.Random(9)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin()
    feed.wait_begun()
    for _ in range(3):
        write_history(database, draw, 5, ("t", "u"))
        for row in database.admin.named_rows("SHOW PROCESSLIST"):
            if "Dump" in str(row["command"]):
                database.admin.kill(int(row["id"]))
        _write_until(database, draw, _commits(feed, 1))
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_a_topic_that_was_made_anew_or_a_progress_that_is_gone_stop_the_feed(
    begin: Callable[..., Running], kafka_cluster: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun anew, it would send what a consumer takes for the rest of the log."""
    monkeypatch.setattr(running, "LOST_SECONDS", 1.0)
    make_tables(database, "t", "u")
    feed = begin()
    feed.wait_begun()
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    feed.wait_sent(database)
    feed.stop()
    topic, address = feed.feed.address.topic, feed.feed.address
    broker = Broker(address)
    _delete(broker, topic)
    broker.create(topic, 1)
    again = begin()
    wait_until(lambda: again.error, "it goes on")
    assert "was deleted and made again" in str(again.error)
    _delete(broker, feed.feed.progress_topic)
    last = begin(was_begun=True)
    wait_until(lambda: last.error, "it goes on")
    assert "holds no progress of the feed any more" in str(last.error)


def test_a_process_that_met_no_broker_leaves_what_is_known_of_the_feed(database: Database) -> None:
    """The next one would take it for one that has not begun, and begin it at the present, if its topics were gone."""
    known = {"topic": "shop", "sources": [{"server": "one"}, {"server": "two"}]}
    with database.server.admin() as session:
        layout.install(session)
        make_feed(session, "f1", database.name, **known)
    driver = FeedDriver(database.server.plain(database.server.url(database.name)), "f1", threading.Event())
    driver.waits("a broker")
    driver.start()

    def figures() -> dict[str, Any]:
        _, found = state_feeds.find(database.admin, "f1") or (None, {})
        return found

    wait_until(lambda: figures()["waiting_for"], "it tells nothing")
    driver.close()
    assert known.items() <= figures().items()
    assert "rows_sent" not in figures()


def _delete(broker: Broker, topic: str) -> None:
    for done in broker.admin.delete_topics([topic]).values():
        done.result(30)
    wait_until(lambda: _is_gone(broker, topic), "the topic is still there")


def _is_gone(broker: Broker, topic: str) -> bool:
    try:
        return broker.find(topic) is None
    except Transient:
        return False


@pytest.mark.only_on("mysql")
def test_a_full_disk_stops_it_and_nothing_is_lost(
    begin: Callable[..., Running], database: Database, tmp_path: Path
) -> None:
    """Where a large transaction waits for its end."""
    make_tables(database, "t")
    database.admin.execute_raw("ALTER TABLE t MODIFY a VARCHAR(9000)")
    start = feeds.here(database)
    with small_disk_at(tmp_path / "small", 3) as place:
        feed = begin(home=place, budget_bytes=1 << 20)
        feed.wait_begun()
        database.admin.execute_raw("SET autocommit=0")
        for number in range(4):
            database.admin.execute_raw(
                "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) "
                f"SELECT i+{1000 * number}, REPEAT('x', 9000), 0 FROM n"
            )
        database.admin.execute_raw("COMMIT")
        database.admin.execute_raw("SET autocommit=1")
        wait_until(lambda: feed.error, "it goes on")
        assert "cannot be put aside" in str(feed.error)
        assert not sent(feed.feed)
        make_room(place, 300)
        again = begin(home=place, budget_bytes=1 << 20)
        again.wait_sent(database)
        assert sent(feed.feed) == logged(database, start)
        check_numbers(feed.feed)
        again.stop()


@pytest.mark.only_on("mysql")
@pytest.mark.seldom
def test_brokers_that_stand_still_for_longer_than_a_transaction_may_last(
    begin: Callable[..., Running], kafka_cluster: Cluster, database: Database
) -> None:
    """All of them; their connections stay open. Half as long again as transaction, message and request may take."""
    draw = random.Random(10)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.is_alone = True
    feed.wait_begun()
    write_history(database, draw, 5, ("t", "u"))
    for number in range(3):
        kafka_cluster.freeze(number)
    until = time.monotonic() + 1.5 * producer.TRANSACTION_SECONDS
    _write_until(database, draw, lambda: time.monotonic() > until and (feed.said or time.monotonic() > until + 60))
    assert feed.error is None
    assert any("Waiting for it." in words for words in feed.said), feed.said
    kafka_cluster.restore()
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert check(feed.feed.address).partitions == 2
