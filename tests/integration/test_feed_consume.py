"""The consumer against a real Kafka: what a topic says is what both servers hold, whoever dies or sleeps meanwhile."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming, ConsumingProcess
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from vreplication.errors import Refused
from vreplication.feed.consume import waiting
from vreplication.feed.consume.by_row import ByRow
from vreplication.feed.consume.by_transaction import ByTransaction
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Encoded
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import layout

pytestmark = pytest.mark.either

MODES = ("row", "transaction")
QUICK = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
"""A process that is gone is noticed as soon as the broker allows."""


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """An administrator's: it looks at our own tables, too."""
    with connect(database.server.plain(database.server.url(database.name))) as opened:
        layout.complete(opened)
        yield opened


@pytest.fixture
def t(session: Session, database: Database) -> Layout:
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    return layout_of(session, database.name, "t")


def holds(
    session: Session,
    rows: list[tuple[object, ...]],
    table: str = "t",
    *,
    by: Consuming | None = None,
    seconds: float = 15,
) -> None:
    sql = f"SELECT * FROM {table} ORDER BY 1"
    with contextlib.suppress(AssertionError):
        wait_until(lambda: (by and by.error) or session.rows(sql) == rows, "other rows", timeout_seconds=seconds)
    if by and by.error:
        raise by.error
    assert session.rows(sql) == rows, by and by.said


@pytest.mark.parametrize("mode", MODES)
def test_rows_come_and_go(kafka: Cluster, database: Database, session: Session, t: Layout, mode: str) -> None:
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 10))
        feed.row(1, t, 1, None, (2, 20), seq=1)
        feed.row(0, t, 2, (1, 10), (1, 11))
        feed.row(1, t, 3, (2, 20), None)
        feed.row(1, t, 4, None, (3, 30))
        feed.row(1, t, 5, (3, 30), (4, None))
        feed.resolved(5)
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, 11), (4, None)], by=one)
        with feed.transaction():
            feed.row(0, t, 6, (1, 11), None)
            feed.row(0, t, 7, None, (5, 50))
            feed.resolved(6)
        holds(session, [(4, None)], by=one)
        with feed.transaction():
            feed.resolved(7)
        holds(session, [(4, None), (5, 50)], by=one)


def test_rows_that_are_spread_by_time_are_refused_in_row_mode(
    kafka: Cluster, database: Database, session: Session, t: Layout
) -> None:
    """Before anything is written, also of a feed that begins later; the group may take the other mode."""
    late, early = FeedWriter(kafka, 2, dispatch="ts", begins=False), FeedWriter(kafka, 2, dispatch="ts")
    begun = Consuming(late.address(), database.url, "row", "late")
    wait_until(lambda: session.rows(f"SELECT 1 FROM {SIDECAR}.feed_consumer"), "it does not begin")
    for feed in (late, early):
        with feed.transaction():
            if feed is late:
                feed.admin(0, 2)
            feed.row(0, t, 2, None, (1, 10))
            feed.row(1, t, 3, (1, 10), (1, 11))
            feed.resolved(3)
    refused = begun.failed(), Consuming(early.address(), database.url, "row").failed()
    assert all(isinstance(each, Refused) and "`ts` in row mode" in str(each) for each in refused)
    assert session.rows("SELECT * FROM t") == []
    with Consuming(early.address(), database.url, "transaction") as one:
        holds(session, [(1, 11)], by=one)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_aborted_is_never_seen(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction(is_aborted=True):
        feed.row(0, t, 1, None, (1, 66))
        feed.resolved(1)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.resolved(1)
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, 1)], by=one)


@pytest.mark.parametrize("mode", MODES)
def test_a_duplicate_is_dropped_and_a_gap_ends_it(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 1)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            feed.row(0, t, 1, None, (1, 1))
            feed.row(0, t, 2, (1, 1), (1, 2))
            feed.n[0] -= 2
            feed.row(0, t, 1, None, (1, 1))
            feed.row(0, t, 2, (1, 1), (1, 2))
            feed.resolved(2)
        holds(session, [(1, 2)], by=one)
        with feed.transaction():
            # Of the one that is told apart by its number alone.
            feed.n[0] -= 1
            feed.row(0, t, 2, None, (7, 7))
            feed.row(0, t, 3, None, (3, 3))
            feed.resolved(3)
        holds(session, [(1, 2), (3, 3)], by=one)
    one = Consuming(feed.address(), database.url, mode)
    with feed.transaction():
        feed.n[0] += 1
        feed.row(0, t, 4, None, (4, 4))
        feed.resolved(4)
    assert re.search(
        rf"Partition 0 of topic {feed.topic} at offset \d+ has message 6 where 5 was to", str(one.failed())
    )
    assert session.rows("SELECT * FROM t ORDER BY 1") == [(1, 2), (3, 3)]


@pytest.mark.parametrize("mode", MODES)
def test_a_resolved_tells_of_a_lost_row(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.n[0] += 1
        feed.resolved(2)
    assert "has message 3 where 2 was to come" in str(Consuming(feed.address(), database.url, mode).failed())
    assert session.rows("SELECT * FROM t") == []


def test_messages_that_no_feed_sends_end_it(kafka: Cluster, database: Database, session: Session, t: Layout) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.send_raw(0, Encoded(key=b"k", value=b"v"), [])
    failure = Consuming(feed.address(), database.url, "row").failed()
    assert "a message without the headers of a feed" in str(failure)
    assert "Partition 0" in str(failure)
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, t, 5, None, (1, 1))
        feed.resolved(5)
        feed.row(0, t, 4, None, (2, 2))
    assert "behind what says that all up to 5 came" in str(Consuming(feed.address(), database.url, "row").failed())


def test_a_topic_whose_head_is_gone_is_refused(kafka: Cluster, database: Database, session: Session, t: Layout) -> None:
    feed = FeedWriter(kafka, 1, begins=False)
    feed.generation, feed.partitions = 1, 1
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.resolved(1)
    assert "its head is gone" in str(Consuming(feed.address(), database.url, "row").failed())


def test_the_target_must_have_the_feeds_columns_and_tables(
    kafka: Cluster, database: Database, session: Session, t: Layout
) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.resolved(1)
    session.execute_raw("ALTER TABLE t DROP COLUMN a")
    assert f"{database.name}.t has no column a" in str(Consuming(feed.address(), database.url, "row").failed())
    session.execute_raw("DROP TABLE t")
    assert f"has no table {database.name}.t" in str(Consuming(feed.address(), database.url, "row").failed())


def test_a_group_keeps_its_mode_and_its_topic(kafka: Cluster, database: Database, session: Session, t: Layout) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.resolved(1)
    with Consuming(feed.address(), database.url, "row") as one:
        holds(session, [(1, 1)], by=one)
    assert "in mode row" in str(Consuming(feed.address(), database.url, "transaction").failed())
    admin = kafka.admin()
    admin.delete_topics([feed.topic])[feed.topic].result(30)
    wait_until(lambda: feed.topic not in admin.list_topics(timeout=10).topics, "the topic stays")
    kafka.create_topic(feed.topic, 1)
    assert "deleted and made again" in str(Consuming(feed.address(), database.url, "row").failed())


@pytest.mark.parametrize("mode", MODES)
def test_a_value_in_parts(kafka: Cluster, database: Database, session: Session, mode: str) -> None:
    """Also where it is cut off between two of Kafka's transactions, with a Resolved of earlier rows between."""
    session.execute_raw("CREATE TABLE big (id INT PRIMARY KEY, a LONGTEXT)")
    big = layout_of(session, database.name, "big")
    feed = FeedWriter(kafka, 1)
    long = "ä" * 300_000
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            feed.row(0, big, 1, None, (1, "x"))
            feed.row(0, big, 2, None, (2, long), parts=7, until=3)
            feed.resolved(1)
        holds(session, [(1, "x")], "big", by=one)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            feed.row(0, big, 2, None, (2, long), parts=7, since=3)
            feed.row(0, big, 3, None, (3, "y"))
            feed.resolved(3)
        holds(session, [(1, "x"), (2, long), (3, "y")], "big", by=one)
    one = Consuming(feed.address(), database.url, mode)
    with feed.transaction():
        feed.row(0, big, 4, None, (4, long), parts=7, until=3)
        feed.resolved(4)
    assert "resolves 4 before the last part" in str(one.failed())


@pytest.mark.parametrize("mode", MODES)
def test_ddl_stands_between_its_rows(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    """Partition 2 gets it last: until then no row behind it is applied, and it is not run."""
    feed = FeedWriter(kafka, 3)
    alter = f"ALTER TABLE {database.name}.t ADD COLUMN b INT DEFAULT 7"
    session.execute_raw("CREATE TABLE later LIKE t")
    session.execute_raw("ALTER TABLE later ADD COLUMN b INT")
    wide = replace(t, columns=layout_of(session, database.name, "later").columns)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            for partition in range(3):
                feed.row(partition, t, 1, None, (partition, 1), seq=partition)
            feed.ddl(5, database.name, alter, to=(0, 1))
            for partition in (0, 1):
                feed.row(partition, wide, 6, None, (10 + partition, 1, 8), seq=partition)
            feed.resolved(6, to=(0, 1))
            feed.row(2, t, 2, None, (20, 2))
        if mode == "row":
            holds(session, [(0, 1), (1, 1)], by=one)
        # Mode transaction has nothing to say of 1 before partition 2 has resolved it.
        wait_until(lambda: mode == "transaction" or standing(session, feed, "ddl") == [0, 1], "they do not stand there")
        assert len(session.rows("SHOW COLUMNS FROM t")) == 2
        with feed.transaction():
            feed.ddl(5, database.name, alter, to=(2,))
            feed.row(2, wide, 7, None, (22, 2, 9))
            feed.resolved(7)
        rows = [(0, 1, 7), (1, 1, 7), (2, 1, 7), (10, 1, 8), (11, 1, 8), (20, 2, 7), (22, 2, 9)]
        holds(session, rows, by=one)


def standing(session: Session, feed: FeedWriter, at: str) -> list[int]:
    """Partitions whose listener waits there. Groups of other topics may have ended while they waited."""
    sql = f"SELECT number FROM {SIDECAR}.feed_offset WHERE topic=%s AND stand=%s"
    return [int(number) for (number,) in session.rows(sql, (feed.topic, at))]


@pytest.mark.parametrize("mode", MODES)
def test_a_ddl_that_fails_ends_it_with_the_servers_words(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.ddl(5, database.name, "ALTER TABLE t ADD COLUMN a SMALLINT")
        feed.row(0, t, 6, None, (1, 1))
        feed.resolved(6)
    for _ in range(2):
        failure = Consuming(feed.address(), database.url, mode).failed()
        assert "Duplicate column name 'a'" in str(failure)
    # Done by hand, in some other way.
    session.execute_raw("ALTER TABLE t MODIFY COLUMN a BIGINT")
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, 1)], by=one)


@pytest.mark.parametrize("mode", MODES)
def test_all_kinds_of_ddl(kafka: Cluster, database: Database, session: Session, t: Layout, mode: str) -> None:
    feed = FeedWriter(kafka, 2)
    name = database.name
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.ddl(2, name, "CREATE TABLE u (id INT PRIMARY KEY, a INT)")
        feed.row(1, replace(t, table="u"), 3, None, (2, 2))
        feed.ddl(4, name, "RENAME TABLE t TO x, u TO t, x TO u")
        feed.row(0, t, 5, None, (3, 3))
        feed.ddl(6, "", f"TRUNCATE TABLE {name}.u")
        feed.row(1, replace(t, table="u"), 7, None, (4, 4))
        feed.ddl(8, name, "CREATE TABLE gone (a INT)")
        feed.ddl(9, name, "DROP TABLE gone")
        feed.ddl(10, "no_such_schema", f"CREATE TABLE {name}.v LIKE {name}.u")
        feed.resolved(10)
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(2, 2), (3, 3)], by=one)
        wait_until(lambda: len(session.rows("SHOW TABLES")) == 3, "tables", timeout_seconds=180)
        assert session.rows("SELECT * FROM u") == [(4, 4)]


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
    with ConsumingProcess(feed.address(**QUICK), database.url, "row", tmp_path) as first:
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


def generation(session: Session, group: str) -> int:
    sql = f"SELECT generation FROM {SIDECAR}.feed_consumer WHERE consumer_group=%s"
    return int(session.value(sql, (group,)) or 0)


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


def test_a_new_columns_time_is_the_one_of_the_source(
    kafka: Cluster, database: Database, session: Session, t: Layout
) -> None:
    """Not when a consumer came to it."""
    feed, at = FeedWriter(kafka, 1), 1_600_000_000
    session.execute_raw("INSERT INTO t VALUES (1,1)")
    with feed.transaction():
        feed.ddl(at * 10**6 + 7, database.name, "ALTER TABLE t ADD COLUMN made TIMESTAMP DEFAULT CURRENT_TIMESTAMP")
        feed.resolved(at * 10**6 + 7)
    with Consuming(feed.address(), database.url, "row") as one:
        sql = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=DATABASE() AND COLUMN_NAME='made'"
        wait_until(lambda: one.error or session.value(sql), "it is not run")
    assert session.value("SELECT UNIX_TIMESTAMP(made) FROM t") == at


def test_a_row_is_found_by_a_key_of_approximate_numbers(kafka: Cluster, database: Database, session: Session) -> None:
    """No FLOAT is its text; one that was made a DOUBLE on the target is."""
    feed, kinds = FeedWriter(kafka, 1), ("FLOAT", "DOUBLE", "FLOAT(9,3)")
    session.execute_raw("CREATE TABLE s (k FLOAT PRIMARY KEY, a INT)")
    s = layout_of(session, database.name, "s")
    tables = [replace(s, table=f"t{number}") for number in range(len(kinds))]
    for t, kind in zip(tables, kinds, strict=True):
        session.execute_raw(f"CREATE TABLE {t.table} (k {kind} PRIMARY KEY, a INT)")
    with feed.transaction():
        for at, t in enumerate(tables):
            for seq, key in enumerate((0.1, 0.2, 0.7)):
                feed.row(0, t, 1 + at, None, (key, seq), seq=seq)
        feed.resolved(len(tables))
    with Consuming(feed.address(), database.url, "row") as one:
        holds(session, [(0.1, 0), (0.2, 1), (0.7, 2)], tables[-1].table, by=one)
        with feed.transaction():
            for at, t in enumerate(tables, len(tables) + 1):
                feed.row(0, t, at, (0.2, 1), None)
                feed.row(0, t, at, (0.7, 2), (1.3, 2), seq=1)
            feed.resolved(2 * len(tables))
        for t in tables:
            holds(session, [(0.1, 0), (1.3, 2)], t.table, by=one)


@pytest.mark.parametrize("mode", MODES)
def test_values_of_all_types(kafka: Cluster, database: Database, session: Session, mode: str) -> None:
    """With a key, and without: then a row goes by all of its values."""
    columns = (
        "i BIGINT UNSIGNED, d DECIMAL(20,5), f FLOAT, g DOUBLE, b BIT(10), y YEAR, s VARCHAR(40) CHARACTER SET utf8mb4,"
        " l VARCHAR(40) CHARACTER SET latin1, x VARBINARY(20),"
        " e ENUM('a','b''c'), z SET('p','q'), da DATE, dt DATETIME(6),"
        " ts TIMESTAMP(6) NULL, ti TIME(2), j JSON, n INT"
    )
    session.execute_raw(f"CREATE TABLE k (id INT PRIMARY KEY, {columns}, made INT AS (id+1) STORED)")
    session.execute_raw(f"CREATE TABLE bare ({columns})")
    k, bare = (layout_of(session, database.name, name) for name in ("k", "bare"))
    row = (
        *(2**64 - 1, "-123456789012345.12345", 0.1, 1e-300, 513, 2024, "ü'\\ \U0001f600", "é", b"\x00'\xff", "b'c"),
        *("p,q", "0000-00-00", "2024-02-29 23:59:59.000001", "2024-03-31 01:30:00.500000", "-01:02:03.25"),
        *('{"a": [1, 2.5, "ü"]}', None),
    )
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, k, 1, None, (1, *row, 2))
        feed.row(0, bare, 1, None, row, seq=1)
        feed.row(0, bare, 1, None, row, seq=2)
        feed.resolved(1)
    shown = (
        "i, d, CONCAT(f), g, b+0, y, s, l, HEX(x), e, z, CONCAT(da), CONCAT(dt), CONCAT(ts), CONCAT(ti), CONCAT(j), n"
    )
    expected = (2**64 - 1, Decimal(row[1]), "0.1", 1e-300, 513, 2024, row[6], "é", "0027FF", *row[9:])
    with Consuming(feed.address(), database.url, mode) as one:
        wait_until(lambda: one.error or session.value("SELECT COUNT(*) FROM bare") == 2, "rows are missing")
        one.raise_error()
        with connect(database.app_url) as ours:
            assert ours.rows(f"SELECT id, {shown}, made FROM k") == [(1, *expected, 2)]
            assert ours.rows(f"SELECT {shown} FROM bare") == [expected] * 2
        changed = (*row[:6], "A", *row[7:])
        with feed.transaction():
            feed.row(0, bare, 2, row, changed)
            feed.row(0, bare, 3, changed, (*changed[:6], "a", *changed[7:]))
            feed.row(0, bare, 4, row, None)
            feed.resolved(4)
        wait_until(lambda: one.error or session.rows("SELECT s FROM bare") == [("a",)], "rows")
        one.raise_error()
