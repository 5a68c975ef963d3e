"""The consumer against a real Kafka: rows and values come to the target, and what breaks a rule ends it."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from consume_setup import MODES, holds, session, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from vreplication.errors import Refused
from vreplication.feed.consume import waiting
from vreplication.feed.consume.rows import Target
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Encoded
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


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


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
def test_one_that_is_told_to_end_does_not_apply_all_that_has_come(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one large transaction a row is left in row mode; in the other one it is rolled back."""
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        for id in range(1, 5):
            feed.row(0, t, 1, None, (id, 1), seq=id)
        feed.resolved(1)
    monkeypatch.setattr(waiting, "MOST_ROWS", 1)
    write = Target.write

    def told_behind_it(target: Target, rows: Any) -> None:
        write(target, rows)
        # In row mode a place to which no row has led is saved so, too.
        if rows:
            one.stop.set()

    with monkeypatch.context() as patched:
        patched.setattr(Target, "write", told_behind_it)
        one = Consuming(feed.address(), database.url, mode)
        wait_until(lambda: not one.is_going, "it does not end")
    one.raise_error()
    assert session.rows("SELECT * FROM t") == ([(1, 1)] if mode == "row" else [])
    with Consuming(feed.address(), database.url, mode) as other:
        holds(session, [(id, 1) for id in range(1, 5)], by=other)


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


def test_a_row_is_found_by_a_key_of_approximate_numbers(kafka: Cluster, database: Database, session: Session) -> None:
    """No FLOAT is its text; one that was made a DOUBLE on the target is."""
    feed, kinds = FeedWriter(kafka, 1), ("FLOAT", "DOUBLE", "FLOAT(9,3)")
    session.execute_raw("CREATE TABLE s (k FLOAT PRIMARY KEY, a INT)")
    s = layout_of(session, database.name, "s")
    tables = [replace(s, table=f"t{number}") for number in range(len(kinds))]
    for each, kind in zip(tables, kinds, strict=True):
        session.execute_raw(f"CREATE TABLE {each.table} (k {kind} PRIMARY KEY, a INT)")
    with feed.transaction():
        for at, each in enumerate(tables):
            for seq, key in enumerate((0.1, 0.2, 0.7)):
                feed.row(0, each, 1 + at, None, (key, seq), seq=seq)
        feed.resolved(len(tables))
    with Consuming(feed.address(), database.url, "row") as one:
        holds(session, [(0.1, 0), (0.2, 1), (0.7, 2)], tables[-1].table, by=one)
        with feed.transaction():
            for at, each in enumerate(tables, len(tables) + 1):
                feed.row(0, each, at, (0.2, 1), None)
                feed.row(0, each, at, (0.7, 2), (1.3, 2), seq=1)
            feed.resolved(2 * len(tables))
        for each in tables:
            holds(session, [(0.1, 0), (1.3, 2)], each.table, by=one)


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
