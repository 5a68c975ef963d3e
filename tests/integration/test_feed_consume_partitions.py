"""What several partitions say together: generations, Resolved, Align, and transactions that no reader sees in half."""

from __future__ import annotations

import threading

import pytest
from consume_setup import MODES, generation, holds, session, standing, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from vreplication.feed.consume import waiting
from vreplication.feed.consume.by_row import ByRow
from vreplication.feed.consume.by_transaction import ByTransaction
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


@pytest.mark.parametrize("mode", MODES)
def test_the_number_of_partitions_changes(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    """2 → 3 → 2: rows move, rows behind the old generation's time come again, Admin comes to one partition later."""
    feed = FeedWriter(kafka, 2)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            feed.row(0, t, 1, None, (0, 1))
            feed.row(1, t, 2, None, (1, 2))
            feed.resolved(2)
            feed.row(0, t, 3, (0, 1), (0, 3))
            feed.row(1, t, 3, (1, 2), (1, 3), seq=1)
        feed.grow(3)
        with feed.transaction():
            feed.admin(2, 3, to=(0, 2))
            feed.row(2, t, 3, (1, 2), (1, 3), seq=1)
            feed.resolved(3, to=(0, 2))
        holds(session, [(0, 1), (1, 2)], by=one)
        with feed.transaction():
            feed.admin_again(2, 3, to=(1,))
            feed.row(1, t, 3, (0, 1), (0, 3))
            feed.row(0, t, 4, None, (2, 4))
            feed.row(2, t, 5, (1, 3), (1, 5))
            feed.resolved(5)
        holds(session, [(0, 3), (1, 5), (2, 4)], by=one)
        with feed.transaction():
            feed.admin(5, 2)
            feed.row(0, t, 6, (1, 5), (1, 6))
            feed.row(1, t, 7, None, (3, 7))
            feed.resolved(7)
        holds(session, [(0, 3), (1, 6), (2, 4), (3, 7)], by=one)
        with feed.transaction():
            feed.admin(7, 3)
            feed.row(2, t, 8, (3, 7), None)
            feed.resolved(8)
        holds(session, [(0, 3), (1, 6), (2, 4)], by=one)
    with Consuming(feed.address(), database.url, mode, group="from_earliest") as one:
        wait_until(lambda: one.error or generation(session, "from_earliest") == 4, "it does not come to the end")
        holds(session, [(0, 3), (1, 6), (2, 4)], by=one)


def test_a_generation_waits_for_all_listeners(kafka: Cluster, database: Database, session: Session, t: Layout) -> None:
    """Partition 1 still has a row of the old one when the others stand at Admin."""
    feed = FeedWriter(kafka, 2)
    feed.grow(3)
    with Consuming(feed.address(), database.url, "row") as one:
        with feed.transaction():
            feed.row(0, t, 1, None, (0, 1))
            feed.resolved(2, to=(0,))
            feed.admin(2, 3, to=(0, 2))
            feed.row(2, t, 3, None, (5, 3))
            feed.resolved(3, to=(0, 2))
        # It has stood at the first one, too.
        first = lambda: generation(session, "g") == 1 and standing(session, feed, "admin") == [0]  # noqa: E731
        wait_until(lambda: one.error or first(), "it does not stand there")
        assert (generation(session, "g"), session.rows("SELECT * FROM t")) == (1, [(0, 1)])
        feed.generation -= 1
        with feed.transaction():
            feed.row(1, t, 2, None, (1, 2))
            feed.resolved(2, to=(1,))
            feed.generation += 1
            feed.admin_again(2, 3, to=(1,))
            feed.resolved(3, to=(1,))
        holds(session, [(0, 1), (1, 2), (5, 3)], by=one)


@pytest.mark.parametrize("mode", MODES)
def test_what_admin_takes_back_comes_again(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    """Partition 0 had said that all up to 3 was there when the next generation begins behind 2."""
    feed = FeedWriter(kafka, 2)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            feed.row(0, t, 1, None, (0, 1))
            feed.resolved(2)
            feed.row(0, t, 3, (0, 1), (0, 3))
            feed.row(1, t, 3, None, (1, 3), seq=1)
            feed.resolved(3, to=(0,))
            feed.admin(2, 2)
            feed.row(1, t, 3, (0, 1), (0, 3))
            feed.row(0, t, 3, None, (1, 3), seq=1)
            feed.resolved(3)
        holds(session, [(0, 3), (1, 3)], by=one)


def test_a_resolved_that_is_ahead_is_read_again(
    kafka: Cluster, database: Database, session: Session, t: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode transaction: partition 0 says nothing more, and the consumer begins again behind a lower watermark."""
    steps = watched_steps(monkeypatch)
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(1, t, 2, None, (1, 2))
        feed.resolved(3)
        feed.resolved(5, to=(0,))
    with Consuming(feed.address(), database.url, "transaction") as one:
        wait_until(lambda: one.error or {0: 5, 1: 3} in steps, "it does not read it")
        holds(session, [(1, 2)], by=one)
        sql = f"SELECT resolved FROM {SIDECAR}.feed_offset ORDER BY number"
        wait_until(lambda: one.error or session.rows(sql) == [(3,), (3,)], "it is not saved")
    with Consuming(feed.address(), database.url, "transaction") as one:
        with feed.transaction():
            feed.row(1, t, 4, (1, 2), (1, 4))
            feed.resolved(5, to=(1,))
        holds(session, [(1, 4)], by=one)


def test_a_rows_changes_may_be_in_any_partition(
    kafka: Cluster, database: Database, session: Session, t: Layout
) -> None:
    """Mode transaction: the order of the log decides; of one change that was split, the old image goes first."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(1, t, 1, None, (1, 1))
        feed.row(0, t, 1, (1, 1), (1, 2), seq=1)
        feed.row(0, t, 1, None, (2, 1), seq=2)
        feed.row(1, t, 2, None, (2, 2))
        feed.row(0, t, 2, (2, 1), None)
        feed.resolved(2)
    with Consuming(feed.address(), database.url, "transaction") as one:
        holds(session, [(1, 2), (2, 2)], by=one)


def test_an_align_holds_rows_back_until_all_are_there(
    kafka: Cluster, database: Database, session: Session, t: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value 5 of a unique key goes from a row of partition 0 to one of partition 1, which is read first."""
    looks: list[int] = []
    look = ByRow._look

    def looked(self: ByRow) -> None:
        look(self)
        looks.append(1)

    monkeypatch.setattr(ByRow, "_look", looked)
    session.execute_raw("ALTER TABLE t ADD UNIQUE (a)")
    feed = FeedWriter(kafka, 2)
    with Consuming(feed.address(), database.url, "row") as one:
        with feed.transaction():
            feed.row(1, t, 1, None, (2, 9))
            feed.align(1, 1, 4, to=(1,))
            feed.row(1, t, 4, (2, 9), (2, 5))
            feed.resolved(4, to=(1,))
        holds(session, [(2, 9)], by=one)
        wait_until(lambda: len(looks) > 20, "it does not look")
        assert standing(session, feed, "align") == [1]
        with feed.transaction():
            feed.row(0, t, 2, None, (1, 5))
            feed.resolved(2, to=(0,))
        # Behind (2, 5), REPLACE would take that out.
        holds(session, [(1, 5), (2, 9)], by=one)
        with feed.transaction():
            feed.row(0, t, 3, (1, 5), (1, 6))
            feed.align(1, 1, 4, to=(0,))
            feed.resolved(4, to=(0,))
        holds(session, [(1, 6), (2, 5)], by=one)


def watched_steps(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """What each listener has reached, by step of a consumer in this process."""
    steps: list[dict[int, int]] = []
    apply = ByTransaction.apply

    def applied(self: ByTransaction) -> None:
        apply(self)
        steps.append({number: listener.reached for number, listener in self.listeners.items()})

    monkeypatch.setattr(ByTransaction, "apply", applied)
    return steps


def test_the_least_resolved_decides(
    kafka: Cluster, database: Database, session: Session, t: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a transaction is here, and it is said that no more of it comes in this partition."""
    steps = watched_steps(monkeypatch)
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, t, 5, None, (1, 1))
        feed.resolved(5, to=(0,))
    with Consuming(feed.address(), database.url, "transaction") as one:
        wait_until(lambda: one.error or {0: 5, 1: 0} in steps, "it does not read it")
        assert session.rows("SELECT * FROM t") == []
        with feed.transaction():
            feed.row(1, t, 5, None, (2, 2), seq=1)
            feed.resolved(5, to=(1,))
        holds(session, [(1, 1), (2, 2)], by=one)


def test_transactions_are_whole(kafka: Cluster, database: Database, session: Session, t: Layout) -> None:
    """Each transaction writes all rows, in three partitions; a reader must never see two numbers."""
    feed = FeedWriter(kafka, 3)
    ids = range(30)
    stop, seen = threading.Event(), set()

    def read() -> None:
        with connect(database.app_url) as reader:
            while not stop.is_set():
                seen.add(tuple(n for (n,) in reader.rows("SELECT DISTINCT a FROM t")))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with Consuming(feed.address(), database.url, "transaction") as one:
            for at in range(1, 60):
                # Kafka's transactions cut the source's.
                for part in (ids[:11], ids[11:]):
                    with feed.transaction():
                        for id in part:
                            feed.row(id % 3, t, at, (id, at - 1) if at > 1 else None, (id, at), seq=id)
                        if at % 3 == 0:
                            feed.resolved(at - 1)
            with feed.transaction():
                feed.resolved(59)
            holds(session, [(id, 59) for id in ids], by=one)
    finally:
        stop.set()
        thread.join()
    assert all(len(numbers) <= 1 for numbers in seen)
    assert len(seen) > 2


def test_a_transaction_larger_than_memory_is_one_transaction(
    kafka: Cluster, database: Database, session: Session, t: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(waiting.Memory.__init__, "__defaults__", (1 << 18,))
    feed = FeedWriter(kafka, 2)
    stop, seen = threading.Event(), set()

    def read() -> None:
        with connect(database.app_url) as reader:
            while not stop.is_set():
                seen.add(reader.value("SELECT COUNT(*) FROM t"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with Consuming(feed.address(), database.url, "transaction") as one:
            for first in range(0, 30_000, 5_000):
                with feed.transaction():
                    for id in range(first, first + 5_000):
                        feed.row(id % 2, t, 1, None, (id, id), seq=id)
            with feed.transaction():
                feed.resolved(1)
            wait_until(lambda: one.error or session.value("SELECT COUNT(*) FROM t") == 30_000, "rows are missing")
    finally:
        stop.set()
        thread.join()
    assert seen <= {0, 30_000}
