"""Whatever a source has done, and however its feed came into the topic: in the end the target is what the source is.

In mode transaction it is at any time what the source has been. Consumers come and go meanwhile, and lose connections.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import every_case
from tests.support.feed_consumers import Consuming
from tests.support.feed_histories import History, Shown
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from vreplication.errors import VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR

pytestmark = pytest.mark.either

LENGTH = 25


class Consumers:
    """Some that come and go. One is always there."""

    def __init__(self, draw: random.Random, start: Callable[[], Consuming], database: Database) -> None:
        self._draw, self._start, self._database = draw, start, database
        self.all = [start()]

    def disturb(self) -> None:
        what = self._draw.randint(0, 14)
        if what == 0:
            self.all.append(self._start())
        elif what == 1 and len(self.all) > 1:
            self.all.pop(0).end()
        elif what == 2:
            for process in processes(self._database.admin).values():
                if process.user == self._database.user:
                    self._database.admin.kill(process.id)

    @property
    def error(self) -> BaseException | None:
        return next((each.error for each in self.all if each.error), None)

    def end(self) -> None:
        for each in self.all:
            each.end()


@contextlib.contextmanager
def watching(database: Database, seen: set[Shown]) -> Iterator[None]:
    stop = threading.Event()

    def watch() -> None:
        with connect(database.app_url) as session:
            session.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            while not stop.is_set():
                # MySQL tells who has looked before a DDL that it cannot look again.
                with contextlib.suppress(VReplicationError):
                    seen.add(shown(session))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def shown(session: Session) -> Shown:
    session.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        t, bare = (tuple(session.rows(f"SELECT {names} ORDER BY 1")) for names in ("id, a, u FROM t", "a FROM bare"))
    finally:
        session.execute_raw("ROLLBACK")
    return t, bare


def make_tables(session: Session, *, is_unique: bool) -> None:
    session.execute_raw("DROP TABLE IF EXISTS t, bare")
    key = ", UNIQUE (u)" if is_unique else ""
    session.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, a INT, u INT{key})")
    session.execute_raw("CREATE TABLE bare (a INT)")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["row", "transaction"])
# Nothing to be shrunk in a seed; the same one does not give the same race again, but the same history.
@settings(
    max_examples=every_case.examples(2, 4),
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_target_becomes_what_the_source_is(kafka: Cluster, database: Database, mode: str, seed: int) -> None:
    draw, group, is_unique = random.Random(seed), secrets.token_hex(4), mode == "transaction"
    feed = FeedWriter(kafka, draw.randint(1, 3))
    options = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    seen: set[Shown] = set()
    with connect(database.app_url) as session:
        make_tables(session, is_unique=is_unique)
        t, bare = (layout_of(session, database.name, name) for name in ("t", "bare"))
        consumers = Consumers(draw, lambda: Consuming(feed.address(**options), database.url, mode, group), database)
        try:
            with watching(database, seen):
                history = History(draw, feed, database.name, t, bare, is_unique=is_unique)
                written = history.write(LENGTH, consumers.disturb)
                wait_until(lambda: consumers.error or is_done(database, group, written.last), "it does not end")
        except AssertionError as error:
            raise AssertionError(f"{error}: {where(database, group)}") from None
        finally:
            consumers.end()
        if consumers.error:
            raise consumers.error
        assert shown(session) == written.shown[-1]
    if mode == "transaction":
        assert seen <= set(written.shown)


def is_done(database: Database, group: str, last: int) -> bool:
    sql = (
        f"SELECT MIN(o.resolved) FROM {SIDECAR}.feed_consumer c JOIN {SIDECAR}.feed_offset o"
        " USING (consumer_group, topic) WHERE c.consumer_group=%s AND o.number<c.partitions"
    )
    return (database.admin.value(sql, (group,)) or 0) >= last


def where(database: Database, group: str) -> object:
    """The group's state, for who reads of a failure."""
    names = ("feed_consumer", "feed_offset")
    return [
        database.admin.named_rows(f"SELECT * FROM {SIDECAR}.{name} WHERE consumer_group=%s", (group,)) for name in names
    ]
