"""What tests of the consumer share: a target with a table, what it holds after a while, and where a consumer stands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import layout

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
    held = session.rows(sql)
    assert held == rows, (held, by and by.said)


def standing(session: Session, feed: FeedWriter, at: str) -> list[int]:
    """Partitions whose listener waits there. Groups of other topics may have ended while they waited."""
    sql = f"SELECT number FROM {SIDECAR}.feed_offset WHERE topic=%s AND stand=%s"
    return [int(number) for (number,) in session.rows(sql, (feed.topic, at))]


def generation(session: Session, group: str) -> int:
    sql = f"SELECT generation FROM {SIDECAR}.feed_consumer WHERE consumer_group=%s"
    return int(session.value(sql, (group,)) or 0)
