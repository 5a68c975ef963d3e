"""A feed beside a broker of its own that answers late, has no room left, or has forgotten what was sent."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from tests.support.kafka_proxy import KafkaProxy, Late, Manner
from tests.support.private_kafka import private_kafka
from tests.support.running_feed import (
    Running,
    check_numbers,
    content,
    logged,
    make_tables,
    sent,
    start_feed,
    write_history,
)
from tests.support.small_disk import make_room, small_disk_at
from vreplication.errors import Ambiguous, Terminal
from vreplication.feed import producer, running, topics
from vreplication.feed.broker import Broker
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.feed.messages import Kind, read_tags
from vreplication.feed.producer import FeedProducer

pytestmark = pytest.mark.either

Begin = Callable[..., Running]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TRANSACTION_SECONDS", 12), ("_MESSAGE_SECONDS", 8), ("_SOCKET_SECONDS", 6)):
        monkeypatch.setattr(producer, name, seconds)


@pytest.fixture
def beside(database: Database, tmp_path: Path) -> Iterator[Callable[[Cluster], Begin]]:
    """What starts feeds at a broker, which end before that one does."""
    with ExitStack() as stack:
        yield lambda kafka: _ended_with(stack, start_feed(kafka, database, tmp_path))


def _ended_with(stack: ExitStack, starts: Iterator[Begin]) -> Begin:
    stack.callback(next, starts, None)
    return next(starts)


@pytest.mark.only_on("mysql")
def test_an_end_that_comes_during_the_next_transaction(beside: Callable[[Cluster], Begin], database: Database) -> None:
    """librdkafka asks twice to end a transaction; the broker cannot tell of which one the first request was."""
    draw = random.Random(3)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    with KafkaProxy() as proxy, private_kafka(options={"advertised.listeners": proxy.advertised}) as kafka:
        proxy.port = kafka.brokers[0].port
        feed = beside(kafka)(rule=Rule(way="index-value"), partitions=3)
        feed.wait_begun()
        ways: tuple[tuple[Manner, int], ...] = (("reset", 1), ("reset", 3), ("stall", 1))
        lates = [_come_late(proxy, feed, database, draw, *way) for way in ways]
        # On a busy machine the next transaction may be over, too, by then.
        while all(late.error for late in lates) and len(lates) < 9:
            lates.append(_come_late(proxy, feed, database, draw, "reset", 1))
        feed.wait_sent(database)
        assert any(late.error == 0 for late in lates), "it has ended nothing"
        assert sent(feed.feed) == logged(database, start)
        check_numbers(feed.feed)
        assert check(feed.feed.address).partitions == 3


def _come_late(
    proxy: KafkaProxy, feed: Running, database: Database, draw: random.Random, manner: Manner, produced: int
) -> Late:
    late = proxy.hold_end(manner, produced)

    def has_come() -> Any:
        write_history(database, draw, 3, ("t", "u"))
        return feed.error or late.came.is_set()

    wait_until(has_come, "no request came late", 60, 0.05)
    return late


@pytest.mark.only_on("mariadb")
def test_a_broker_whose_disk_is_full_is_waited_for(
    beside: Callable[[Cluster], Begin], database: Database, tmp_path: Path
) -> None:
    """It ends, or takes its logs offline; when there is room and it was started again, the feed goes on by itself."""
    make_tables(database, "t")
    database.admin.execute_raw("ALTER TABLE t MODIFY a VARCHAR(9000)")
    start = feeds.here(database)
    with small_disk_at(tmp_path / "small", 24) as place, private_kafka(place=place) as kafka:
        feed = beside(kafka)(rule=Rule(way="index-value"), partitions=2)
        feed.wait_begun()
        numbers = itertools.count()

        def has_stopped() -> Any:
            rows = ((next(numbers), secrets.token_hex(4000), 0) for _ in range(400))
            database.admin.execute_raw(f"INSERT INTO t VALUES {','.join(map(str, rows))}")
            return feed.said or feed.error

        wait_until(has_stopped, "there is room without end", 60, 0.2)
        assert feed.error is None
        kafka.kill(0)
        make_room(place, 600)
        kafka.start(0)
        feed.wait_sent(database)
        assert sent(feed.feed) == logged(database, start)
        check_numbers(feed.feed)
        assert check(feed.feed.address).partitions == 2


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Begin]:
    yield from start_feed(kafka, database, tmp_path)


def _forget(feed: Running, to: Callable[[int, int], int] = lambda low, high: high) -> None:
    """Remove what is before this offset, as retention does. to: of each partition's first offset and the end."""
    broker, topic = Broker(feed.feed.address), feed.feed.address.topic
    found = broker.find(topic)
    assert found is not None
    asked = [TopicPartition(topic, n, to(*broker.bounds(topic, n))) for n in range(found.partitions)]
    for done in broker.admin.delete_records(asked).values():
        done.result(30)


@pytest.mark.only_on("mysql")
def test_what_retention_has_removed_is_not_missed(begin: Begin, database: Database) -> None:
    """All that was sent, while the feed runs and while it is stopped: its progress is newer than what is left."""
    draw = random.Random(5)
    make_tables(database, "t", "u")
    feed = begin(rule=Rule(way="index-value"), partitions=3)
    feed.wait_begun()
    for is_running in (True, False):
        write_history(database, draw, 10, ("t", "u"))
        feed.wait_sent(database)
        if not is_running:
            feed.stop()
        _forget(feed)
        start = feeds.here(database)
        if not is_running:
            feed = begin(rule=Rule(way="index-value"), partitions=3)
        assert feed.status is None or feed.status.progress.ends[0].n > 1
        ends = running.read_progress(feed.feed.address, feed.feed.id).ends  # type: ignore[union-attr]
        write_history(database, draw, 10, ("t", "u"))
        feed.wait_sent(database)
        assert sent(feed.feed) == logged(database, start)
        for number, messages in content(feed.feed).items():
            counted = [tags.n for tags, _, _ in messages if tags.kind is Kind.ROW]
            assert counted == list(range(ends[number].n + 1, ends[number].n + 1 + len(counted)))
        # Or with a Resolved, which has the number of the last one before it.
        assert {(number, n - ends[number].n in (0, 1)) for number, _, n in check(feed.feed.address).begins} == {
            (number, True) for number in range(3)
        }


@pytest.mark.only_on("mysql")
def test_half_of_what_stands_behind_the_progress_is_removed(
    begin: Begin, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows were committed without progress; the feed is away until retention has taken the first ones."""
    make_tables(database, "t")
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.wait_begun()
    commit = FeedProducer.commit

    def early(producer: FeedProducer, topic: str, progress: Any) -> None:
        if not producer.rows:
            commit(producer, topic, progress)
            return
        producer._own.commit_transaction(30)
        producer._is_open = False
        raise Terminal("It is away.")

    monkeypatch.setattr(FeedProducer, "commit", early)
    start = feeds.here(database)
    database.admin.execute_raw(f"INSERT INTO t VALUES {','.join(f'({id},0,0)' for id in range(40))}")
    wait_until(lambda: feed.error, "it goes on")
    _forget(feed, lambda low, high: (low + high) // 2)
    left = sent(feed.feed)
    assert 0 < len(left) < 40
    monkeypatch.setattr(FeedProducer, "commit", commit)
    again = begin(rule=Rule(way="index-value"), partitions=2)
    database.admin.execute_raw("UPDATE t SET n=1 WHERE id<4")
    again.wait_sent(database)
    assert sent(again.feed) == [*left, *logged(database, start)[40:]]
    assert check(again.feed.address).rows == len(left) + 4


@pytest.mark.only_on("mariadb")
def test_a_beginning_that_failed_is_made_again(
    begin: Begin, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was committed, so nothing is lost: no progress of the feed has gone."""
    monkeypatch.setattr(running, "LOST_SECONDS", 0.1)
    commit, failed = FeedProducer.commit, []

    def fails_twice(producer: FeedProducer, topic: str, progress: Any) -> None:
        if len(failed) < 2:
            failed.append(topic)
            raise Ambiguous("The coordinator has moved.")
        commit(producer, topic, progress)

    monkeypatch.setattr(FeedProducer, "commit", fails_twice)
    make_tables(database, "t")
    feed = begin()
    feed.wait_begun()
    start = feeds.here(database)
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    feed.wait_sent(database)
    assert len(failed) == 2
    assert sent(feed.feed) == logged(database, start)


@pytest.mark.only_on("mysql")
def test_a_log_that_lost_its_end_stops_the_feed(
    beside: Callable[[Cluster], Begin], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine has crashed, and its only broker comes back without the end of a transaction: the last row is gone.

    What is left of that stands open, and ended it would be as long as before.
    """
    monkeypatch.setattr(topics, "_VISIBLE_SECONDS", 1.0)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)")
    with private_kafka() as kafka:
        begin = beside(kafka)
        feed = begin(most_bytes=5_000)
        feed.wait_begun()
        database.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},REPEAT('x',2500))" for n in range(9)))
        feed.wait_sent(database)
        feed.stop()
        messages = Broker(feed.feed.address).behind(feed.feed.address.topic, {0: 0})
        last = [each.offset() or 0 for each in messages if read_tags(each.headers()).kind is Kind.ROW]
        kafka.kill(0)
        (segment,) = (kafka.brokers[0].folder / "data").glob(f"{feed.feed.address.topic}-0/*.log")
        _cut_off(segment, max(last))
        kafka.start(0)
        again = begin(most_bytes=5_000)
        wait_until(lambda: again.error, "it goes on")
        assert isinstance(again.error, Terminal)
        assert "before what the feed has written" in str(again.error)


def _cut_off(segment: Path, offset: int) -> None:
    """Of the log of a partition the batch that begins with this message, and all behind it."""
    data, at = segment.read_bytes(), 0
    while int.from_bytes(data[at : at + 8], "big") < offset:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert int.from_bytes(data[at : at + 8], "big") == offset
    with segment.open("r+b") as file:
        file.truncate(at)
