"""Somebody kills statements of feeds and consumers (KILL QUERY), as a tool does that ends what is slow."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from consume_setup import MODES, QUICK, holds, session, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from tests.support.rows import workflow_row
from vreplication.feed.layout import Layout
from vreplication.feed.running import Service
from vreplication.feed.terms import Feed, Hooks
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import feeds, workflows
from vreplication.workflows.changefeed.driver import FeedDriver

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


def kill(session: Session, words: str, by: Consuming | None = None) -> None:
    """The statement of ours that waits for a lock."""
    sql = f"SELECT id FROM information_schema.processlist WHERE id <> {session.id} AND info LIKE '{words}'"
    wait_until(lambda: (by and by.error) or session.value(sql) is not None, f"no session waits in {words}")
    if by is not None:
        by.raise_error()
    victim = session.value(sql)
    session.execute_raw(f"KILL QUERY {victim}")
    wait_until(lambda: session.value(f"{sql} AND id={victim}") is None, "it is not ended")


@pytest.mark.parametrize("mode", MODES)
def test_rows_and_a_ddl_are_done_all_the_same(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.ddl(2, database.name, "ALTER TABLE t ADD COLUMN z INT DEFAULT 5")
        feed.resolved(2)
    with connect(database.app_url) as other, connect(database.app_url) as reader:
        other.execute_raw("BEGIN")
        other.execute_raw("INSERT INTO t VALUES (1,0)")
        # The ALTER waits for it, whenever it comes.
        reader.execute_raw("BEGIN")
        reader.rows("SELECT * FROM t")
        with Consuming(feed.address(**QUICK), database.url, mode) as one:
            kill(session, "%INTO%`t`%", one)
            other.execute_raw("ROLLBACK")
            kill(session, "ALTER%", one)
            reader.execute_raw("ROLLBACK")
            holds(session, [(1, 1, 5)], by=one)


def test_a_feeds_heartbeat_goes_on(database: Database, session: Session) -> None:
    workflows.create(session, workflow_row("calm", kind="changefeed", phase=Phase.STREAMING))
    feeds.begin(session, "calm")
    driver = FeedDriver(database.url, "calm", threading.Event())
    driver.start()
    beat = f"SELECT at FROM {SIDECAR}.heartbeat WHERE workflow='calm'"
    try:
        wait_until(lambda: session.value(beat) is not None, "it does not begin")
        with session.transaction():
            before = session.value(f"{beat} FOR UPDATE")
            kill(session, "INSERT INTO%heartbeat%")
        wait_until(lambda: driver.check() or session.value(beat) != before, "it does not go on")
    finally:
        driver.close()


def test_a_feed_begins_again_at_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the server refuses otherwise."""
    errors = [
        SqlError("Query execution was interrupted (1317)", code=1317),
        SqlError("No such table (1146)", code=1146),
    ]
    service = Service(feed=cast(Feed, None), hooks=Hooks(check=lambda: None), notify=print, stop=threading.Event())

    def fail(self: Service) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(Service, "_run_once", fail)
    with pytest.raises(SqlError, match="No such table"):
        service.run()
    assert errors == []
