"""Somebody kills statements of a consumer (KILL QUERY), as a tool does that ends what is slow: they are sent again."""

from __future__ import annotations

import pytest
from consume_setup import MODES, QUICK, holds, session, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session, connect

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


def kill(session: Session, words: str, by: Consuming) -> None:
    """The statement of the consumer that waits for a lock."""
    sql = f"SELECT id FROM information_schema.processlist WHERE id <> {session.id} AND info LIKE '{words}'"
    wait_until(lambda: by.error or session.value(sql) is not None, f"no session waits in {words}")
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
    with connect(database.app_url) as other:
        other.execute_raw("BEGIN")
        other.execute_raw("INSERT INTO t VALUES (1,0)")
        with Consuming(feed.address(**QUICK), database.url, mode) as one:
            kill(session, "%INTO%`t`%", one)
            other.execute_raw("ROLLBACK")
            other.execute_raw("BEGIN")
            holds(session, [(1, 1)], by=one)
            other.rows("SELECT * FROM t")
            kill(session, "ALTER%", one)
            other.execute_raw("ROLLBACK")
            holds(session, [(1, 1, 5)], by=one)
