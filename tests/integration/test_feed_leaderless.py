"""A feed whose transaction ends while one of its partitions has no leader: the broker leaves its mark out there.

Kafka takes such a partition for one that was deleted. What was sent there stays open, and is ended by whatever the same
producer ends next: committed though it was aborted, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, logged, make_tables, sent, start_feed
from vreplication.errors import Terminal, Transient
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.feed.producer import FeedProducer, let_go

pytestmark = pytest.mark.either

LONELY = 2
"""The broker that alone has partition 1."""


@pytest.fixture
def begin(kafka_cluster: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka_cluster, database, tmp_path)


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("end", ["aborted", "committed"])
def test_a_transaction_that_ends_beside_a_partition_without_a_leader(
    begin: Callable[..., Running],
    kafka_cluster: Cluster,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """The feed is killed with it; rows of it are in both partitions."""
    options = {"rule": Rule(way="index-value"), "partitions": 2, "address": _topic(kafka_cluster, f"lonely-{end}")}
    make_tables(database, "t")
    start = feeds.here(database)
    feed = begin(**options)
    feed.wait_begun()
    commit, close = FeedProducer.commit, FeedProducer.close
    zombies: list[Any] = []

    def cut(producer: FeedProducer, topic: str, progress: Any) -> None:
        if producer.rows and end == "committed":
            _take_leader(kafka_cluster, feed)
        if not producer.rows or end == "committed":
            commit(producer, topic, progress)
        if progress.ends[0].n > 1:
            zombies.append(producer._producer)
            producer._producer = None
            raise Terminal("It is killed.")

    monkeypatch.setattr(FeedProducer, "commit", cut)
    database.admin.execute_raw(f"INSERT INTO t VALUES {','.join(f'({id},0,0)' for id in range(40))}")
    wait_until(lambda: feed.error, "it is not killed")
    monkeypatch.setattr(FeedProducer, "commit", commit)
    monkeypatch.setattr(FeedProducer, "close", close)
    if end == "aborted":
        _take_leader(kafka_cluster, feed)
        with pytest.raises(Transient):
            Broker(feed.feed.address).bounds_of([(feed.feed.address.topic, 1)])
    again = begin(**options)
    wait_until(lambda: again.error or _is_ended(feed), "the transaction does not end")
    kafka_cluster.start(LONELY)
    database.admin.execute_raw("UPDATE t SET n=1 WHERE id<9")
    again.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert check(feed.feed.address).rows == 49
    for each in zombies:
        let_go(each, abort=False)


def _topic(kafka: Cluster, name: str) -> Any:
    made = NewTopic(name, num_partitions=2, replica_assignment=[[0], [LONELY]], config={"min.insync.replicas": "1"})
    admin = kafka.admin()
    admin.create_topics([made])[name].result(30)
    address = parse(f"kafka://{kafka.bootstrap}/{name}")
    wait_until(lambda: kafka._leads_all(admin, name), "no leader")
    return address


def _take_leader(kafka: Cluster, feed: Running) -> None:
    kafka.kill(LONELY)
    topic = feed.feed.address.topic
    wait_until(lambda: kafka.leader(topic, 1) == -1, "it has a leader yet")
    for name in ("__transaction_state", feed.feed.progress_topic):
        wait_until(lambda: kafka.leader(name) >= 0, "no leader")  # noqa: B023


def _is_ended(feed: Running) -> bool:
    """In the partition that has a leader."""
    broker, topic = Broker(feed.feed.address), feed.feed.address.topic
    try:
        return broker.bounds(topic, 0) == broker.bounds(topic, 0, is_committed=False)
    except Transient:
        return False
