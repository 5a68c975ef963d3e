"""A target's table with columns that the feed does not have: rows that are written again keep their values of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consume_setup import MODES, holds, session

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session

__all__ = ["session"]

pytestmark = pytest.mark.either

OWN = "b VARCHAR(20) CHARACTER SET latin1 DEFAULT 'new', doc BLOB, at TIMESTAMP(6) NULL, n INT UNSIGNED DEFAULT 7"
KEPT = ("50% é", b"\x00'\\", "2024-03-31 02:30:00.123456", 4294967295)


@pytest.fixture
def sent(session: Session, database: Database) -> Layout:
    """Of a table that has fewer columns than the target's."""
    session.execute_raw("CREATE TABLE sent (id INT PRIMARY KEY, a INT, UNIQUE (a))")
    session.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {OWN}, A INT, UNIQUE (A))")
    for number in (1, 2, 3, 4):
        session.execute("INSERT INTO t (id, a, b, doc, at, n) VALUES (%s,%s,%s,%s,%s,%s)", (number, number, *KEPT))
    return replace(layout_of(session, database.name, "sent"), table="t")


@pytest.mark.parametrize("mode", MODES)
def test_a_row_keeps_what_the_feed_does_not_have(
    kafka: Cluster, database: Database, session: Session, sent: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, sent, 1, (1, 1), (1, 10))
        # Two rows exchange a unique value, by way of a third one.
        for seq, (old, new) in enumerate((((2, 2), (2, 99)), ((3, 3), (3, 2)), ((2, 99), (2, 3)))):
            feed.row(0, sent, 2, old, new, seq=seq)
        feed.row(0, sent, 3, (4, 4), (40, 4))
        feed.row(0, sent, 4, None, (5, 5))
        feed.row(0, sent, 5, (3, 2), None)
        feed.row(0, sent, 6, None, (3, 2))
        feed.resolved(6)
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, 10), (2, 3), (3, 2), (5, 5), (40, 4)], "(SELECT id, a FROM t) s", by=one)
    kept, new = (*KEPT[:2], KEPT[3]), ("new", None, 7)
    found = {row[0]: row[1:] for row in session.rows("SELECT id, b, doc, n FROM t")}
    assert found == {1: kept, 2: kept, 3: new, 5: new, 40: kept}
    assert session.rows("SELECT DISTINCT CAST(at AS CHAR) FROM t WHERE at IS NOT NULL") == [(KEPT[2],)]


def test_what_says_when_a_row_was_written_goes_on_doing_so(
    kafka: Cluster, database: Database, session: Session
) -> None:
    session.execute_raw("CREATE TABLE sent (id INT PRIMARY KEY, a INT)")
    clock = "CURRENT_TIMESTAMP(6)"
    session.execute_raw(
        f"CREATE TABLE t (id INT PRIMARY KEY, a INT, made DATETIME(6) DEFAULT {clock},"
        f" changed DATETIME(6) NULL DEFAULT NULL ON UPDATE {clock}, own INT)"
    )
    session.execute_raw("INSERT INTO t VALUES (1,1,'2001-01-01','2001-01-01',5)")
    layout, feed = replace(layout_of(session, database.name, "sent"), table="t"), FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, layout, 1, (1, 1), (1, 2))
        feed.resolved(1)
    with Consuming(feed.address(), database.url, "row") as one:
        holds(session, [(1, 2, 5)], "(SELECT id, a, own FROM t) s", by=one)
    ((made, changed),) = session.rows("SELECT made > '2020-01-01', changed FROM t")
    assert (made, changed) == (1, None)


def test_text_that_reads_like_the_clock_is_kept(kafka: Cluster, database: Database, session: Session) -> None:
    """MySQL tells the default 'now' without its quotes."""
    session.execute_raw("CREATE TABLE sent (id INT PRIMARY KEY, a INT)")
    session.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, due ENUM('now','later') DEFAULT 'now',"
        " said VARCHAR(40) DEFAULT 'current_timestamp', note INT DEFAULT 1 COMMENT 'it''s set ON UPDATE of a')"
    )
    session.execute_raw("INSERT INTO t VALUES (1,1,'later','a',5)")
    layout, feed = replace(layout_of(session, database.name, "sent"), table="t"), FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, layout, 1, (1, 1), (1, 2))
        feed.resolved(1)
    with Consuming(feed.address(), database.url, "row") as one:
        holds(session, [(1, 2, "later", "a", 5)], by=one)
