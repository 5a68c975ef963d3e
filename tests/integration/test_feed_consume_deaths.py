"""Consumers that die, sleep past a takeover or share, a Kafka or target that goes away: nothing is lost or twice."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from consume_setup import MODES, QUICK, holds, session, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming, ConsumingProcess
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from tests.support.small_disk import make_room, small_disk_at
from vreplication.feed.consume import waiting
from vreplication.feed.layout import Layout
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["consume.before_ddl", "consume.after_ddl"])
@pytest.mark.in_turn
def test_a_consumer_that_is_killed_at_a_ddl(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str, point: str, tmp_path: Path
) -> None:
    """It swaps two tables: done twice it would be as if it had not been done."""
    session.execute_raw("CREATE TABLE u LIKE t")
    session.execute_raw("INSERT INTO u VALUES (9,9)")
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.ddl(5, database.name, "RENAME TABLE t TO x, u TO t, x TO u")
        feed.row(1, t, 6, None, (2, 2))
        feed.resolved(6)
    (tmp_path / point).touch()
    with ConsumingProcess(feed.address(**QUICK), database.url, mode, tmp_path) as first:
        wait_until(lambda: (tmp_path / f"{point}.reached").exists(), "the point is not reached")
        first.kill()
    with Consuming(feed.address(**QUICK), database.url, mode) as one:
        holds(session, [(2, 2), (9, 9)], by=one)
        holds(session, [(1, 1)], "u", by=one)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["consume.before_apply", "consume.before_commit", "consume.after_commit"])
@pytest.mark.in_turn
def test_a_consumer_that_is_killed_is_replaced(
    kafka: Cluster, database: Database, session: Session, mode: str, point: str, tmp_path: Path
) -> None:
    """A table without a key: a row that came twice would be seen."""
    session.execute_raw("CREATE TABLE bare (a INT)")
    bare = layout_of(session, database.name, "bare")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, bare, 1, None, (1,))
        feed.row(0, bare, 1, None, (1,), seq=1)
        feed.row(0, bare, 2, None, (2,))
        feed.resolved(1)
    (tmp_path / point).touch()
    with ConsumingProcess(feed.address(**QUICK), database.url, mode, tmp_path) as first:
        wait_until(lambda: (tmp_path / f"{point}.reached").exists(), "the point is not reached")
        with Consuming(feed.address(**QUICK), database.url, mode) as one:
            first.kill()
            with feed.transaction():
                feed.row(0, bare, 3, (2,), (3,))
                feed.resolved(3)
            holds(session, [(1,), (1,), (3,)], "bare", by=one)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "point",
    [pytest.param("consume.before_apply", marks=pytest.mark.seldom), "consume.before_commit", "consume.after_commit"],
)
def test_one_that_hangs_wakes_up_late(
    kafka: Cluster, database: Database, session: Session, point: str, tmp_path: Path
) -> None:
    """Row mode: Kafka gives its partition to another one, which goes on; it must not write any more."""
    session.execute_raw("CREATE TABLE bare (a INT)")
    bare = layout_of(session, database.name, "bare")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, bare, 1, None, (1,))
        feed.resolved(1)
    (tmp_path / point).touch()
    with ConsumingProcess(feed.address(**QUICK), database.url, "row", tmp_path, idle_seconds=8) as first:
        wait_until(lambda: (tmp_path / f"{point}.reached").exists(), "the point is not reached")
        first.send(signal.SIGSTOP)
        with feed.transaction():
            feed.row(0, bare, 2, (1,), (2,))
            feed.resolved(2)
        with Consuming(feed.address(**QUICK), database.url, "row") as one:
            # It keeps its locks until the server takes its connection for dead.
            holds(session, [(2,)], "bare", by=one, seconds=90)
            (tmp_path / point).unlink()
            first.send(signal.SIGCONT)
            with feed.transaction():
                feed.row(0, bare, 3, None, (3,))
                feed.resolved(3)
            holds(session, [(2,), (3,)], "bare", by=one)
        assert first.is_going
        with feed.transaction():
            feed.row(0, bare, 4, (3,), (4,))
            feed.resolved(4)
        holds(session, [(2,), (4,)], "bare")


@pytest.mark.seldom
def test_the_one_that_reads_hangs_and_wakes_up_late(
    kafka: Cluster, database: Database, session: Session, tmp_path: Path
) -> None:
    """Mode transaction: the server ends its connection, and with it its lock; another one has stood by."""
    session.execute_raw("CREATE TABLE bare (a INT)")
    bare = layout_of(session, database.name, "bare")
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, bare, 1, None, (1,))
        feed.resolved(1)
    point = tmp_path / "consume.before_commit"
    point.touch()
    with ConsumingProcess(feed.address(), database.url, "transaction", tmp_path) as first:
        wait_until(lambda: (tmp_path / f"{point.name}.reached").exists(), "it is not reached")
        first.send(signal.SIGSTOP)
        with Consuming(feed.address(), database.url, "transaction") as one:
            with feed.transaction():
                feed.row(1, bare, 2, None, (2,))
                feed.resolved(2)
            assert session.rows("SELECT * FROM bare") == []
            holds(session, [(1,), (2,)], "bare", by=one, seconds=60)
            point.unlink()
            first.send(signal.SIGCONT)
            with feed.transaction():
                feed.row(1, bare, 3, (2,), (3,))
                feed.resolved(3)
            holds(session, [(1,), (3,)], "bare", by=one)
        assert first.is_going
        with feed.transaction():
            feed.row(0, bare, 4, (1,), (4,))
            feed.resolved(4)
        holds(session, [(3,), (4,)], "bare")


@pytest.mark.only_on("mysql")
@pytest.mark.seldom
def test_kafka_goes_away(kafka_cluster: Cluster, database: Database, session: Session, t: Layout) -> None:
    feed = FeedWriter(kafka_cluster, 2)
    with Consuming(feed.address(), database.url, "transaction") as one:
        with feed.transaction():
            feed.row(0, t, 1, None, (1, 1))
            feed.resolved(1)
        holds(session, [(1, 1)], by=one)
        for number in range(3):
            kafka_cluster.kill(number)
        wait_until(lambda: one.said, "it does not say that Kafka is away")
        kafka_cluster.restore()
        with feed.transaction():
            feed.row(1, t, 2, None, (2, 2))
            feed.resolved(2)
        holds(session, [(1, 1), (2, 2)], by=one, seconds=60)
        assert len(one.said) == len(set(one.said)), one.said


def test_two_processes_share_the_partitions(
    kafka: Cluster, database: Database, session: Session, t: Layout, tmp_path: Path
) -> None:
    feed = FeedWriter(kafka, 4)
    wanted: dict[int, int] = {}

    def send(first: int, count: int) -> None:
        for at in range(first, first + count):
            with feed.transaction():
                for partition in range(4):
                    id = 4 * (at % 5) + partition
                    before = (id, wanted[id]) if id in wanted else None
                    feed.row(partition, t, at, before, (id, at), seq=partition)
                    wanted[id] = at
                feed.resolved(at)

    send(1, 20)
    with Consuming(feed.address(**QUICK), database.url, "row") as one:
        holds(session, sorted(wanted.items()), by=one)
        with ConsumingProcess(feed.address(**QUICK), database.url, "row", tmp_path) as second:
            send(21, 60)
            holds(session, sorted(wanted.items()), by=one)
            second.send(signal.SIGTERM)
            send(81, 20)
            holds(session, sorted(wanted.items()), by=one)


@pytest.mark.parametrize("mode", MODES)
def test_the_target_goes_away(kafka: Cluster, database: Database, session: Session, t: Layout, mode: str) -> None:
    """It cuts all connections."""
    feed = FeedWriter(kafka, 1)
    with Consuming(feed.address(), database.url, mode) as one:
        for at in range(1, 6):
            with feed.transaction():
                feed.row(0, t, at, None, (at, at))
                feed.resolved(at)
            holds(session, [(i, i) for i in range(1, at + 1)], by=one)
            for process in processes(database.admin).values():
                if process.user == database.user:
                    database.admin.kill(process.id)
        assert all("Waiting for it" in said for said in one.said)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.in_turn
def test_a_full_disk_where_rows_wait_stops_it_and_nothing_is_lost(
    kafka: Cluster, database: Database, session: Session, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one table without a key, of a transaction that is larger than the memory for them."""
    session.execute_raw("CREATE TABLE bare (a INT, b LONGTEXT)")
    bare = layout_of(session, database.name, "bare")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        for number in range(600):
            feed.row(0, bare, 1, None, (number, "x" * 9_000), seq=number)
        feed.resolved(1)
    monkeypatch.setattr(waiting.Memory.__init__, "__defaults__", (256 << 10,))
    with small_disk_at(tmp_path / "small", 3) as place:
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        one = Consuming(feed.address(**QUICK), database.url, mode)
        if mode == "transaction":
            assert "cannot be put aside" in str(one.failed(180))
            assert session.rows("SELECT COUNT(*) FROM bare") == [(0,)]
        one.end()
        make_room(place, 30)
        with Consuming(feed.address(**QUICK), database.url, mode) as again:
            wait_until(
                lambda: again.raise_error() or session.rows("SELECT COUNT(*) FROM bare") >= [(600,)], "it stands"
            )
    assert session.rows("SELECT COUNT(*),COUNT(DISTINCT a),SUM(LENGTH(b)) FROM bare") == [(600, 600, 600 * 9_000)]
