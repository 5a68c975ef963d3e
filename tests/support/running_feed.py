"""Feeds that run in threads of their own, histories for them, and what stands in their topics.

What must stay true: a feed ends with its test; what is compared is the log, read once more, and the committed messages.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from vreplication.binlog.events import Position
from vreplication.errors import Interrupted, Transient, VReplicationError
from vreplication.feed import running
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.feed.catalog import Filter
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import Open, read_row
from vreplication.feed.lanes import lanes_of
from vreplication.feed.messages import Kind, Tags, read_tags
from vreplication.feed.progress import Progress
from vreplication.feed.running import Service
from vreplication.feed.terms import Feed, Hooks, Origin, Status

TABLE = Rule(way="table")
SEEDS = "VREPLICATION_FEED_SEEDS"


def seeds(count: int) -> range:
    """Histories and kills to be drawn: so many, or as many as a soak wants (`make soak`)."""
    return range(int(os.environ.get(SEEDS, count)))


class Running:
    """A feed in a thread of its own."""

    def __init__(self, feed: Feed, wanted: int | None = None, *, is_alone: bool = True) -> None:
        self.feed = feed
        self.stopping = threading.Event()
        self.status: Status | None = None
        self.error: VReplicationError | None = None
        self.wanted = wanted
        self._asked_at = 0.0
        self.said: list[str] = []
        self.warned: list[str] = []
        self.is_alone = is_alone
        """No other process works on it: a broker that says so means an answer of its own that came late."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        hooks = Hooks(
            check=self._check,
            wanted=lambda: self.wanted,
            told=self._told,
            warn=self.warned.append,
            is_ours=lambda: self.is_alone,
        )
        try:
            Service(feed=self.feed, hooks=hooks, notify=self.said.append, stop=self.stopping).run()
        except VReplicationError as error:
            self.error = error

    def _check(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("Interrupted.")

    def _told(self, status: Status) -> None:
        self.status = status

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(60)

    def wait_begun(self) -> None:
        wait_until(lambda: self.error is not None or self._is_begun(), "the feed does not begin")
        assert self.error is None, self.error

    def _is_begun(self) -> bool:
        with contextlib.suppress(Transient):
            return running.read_progress(self.feed.address, self.feed.id) is not None
        return False

    def wait_sent(self, database: Database, seconds: float = 180, number: int = 0) -> None:
        """Until everything that is in the log by now has been committed. number: of the source."""
        end = feeds.here(database)
        wait_until(lambda: self.error is not None or self._has_come(end, number), "the feed does not come on", seconds)
        assert self.error is None, self.error

    def _has_come(self, end: Any, number: int) -> bool:
        def is_there(found: Progress | None) -> bool:
            return found is not None and Position.parse(found.sources[number].position) >= end

        if is_there(self.status and self.status.progress):
            return True
        # Of a commit right behind which it was killed nothing is told, and with nothing new there is no other one.
        if (now := time.monotonic()) < self._asked_at + 1:
            return False
        self._asked_at = now
        with contextlib.suppress(Transient):
            return is_there(running.read_progress(self.feed.address, self.feed.id))
        return False


def origin(database: Database, format: Any = None) -> Origin:
    """A database as one of a feed's sources."""
    return Origin(
        url=database.server.plain(database.server.url(database.name)),
        filter=Filter(tables=(f"{database.name}.*",)),
        format=format or Open(),
    )


def start_feed(kafka: Cluster, database: Database, folder: Path, **always: Any) -> Iterator[Callable[..., Running]]:
    """What starts feeds of one id into one topic, which all end with the test. always: as given to each."""
    feeds.describe_fully(database)
    started: list[Running] = []
    topic = f"t{secrets.token_hex(4)}"

    def start(
        rule: Rule = TABLE, partitions: int = 1, wanted: int | None = None, *, is_alone: bool = True, **more: Any
    ) -> Running:
        feed = Feed(
            rule=rule,
            **{
                "home": folder / "spool",
                "sources": (origin(database, more.pop("format", None)),),
                "id": f"feed-{topic}",
                "address": parse(f"kafka://{kafka.bootstrap}/{topic}"),
                "partitions": partitions,
                "commit_seconds": 0.05,
                **always,
                **more,
            },
        )
        started.append(Running(feed, wanted, is_alone=is_alone))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def topics(feed: Feed) -> list[str]:
    """That of its address, and those of its tables."""
    progress = running.read_progress(feed.address, feed.id)
    assert progress is not None
    return [lane.name for lane in lanes_of(progress, is_each=feed.is_each)]


def content(feed: Feed, name: str = "") -> dict[int, list[tuple[Tags, bytes | None, bytes | None]]]:
    """Committed messages by partition. name: of a topic of a table."""
    broker = Broker(feed.address)
    topic = broker.find(name or feed.address.topic)
    assert topic is not None
    found: dict[int, list[tuple[Tags, bytes | None, bytes | None]]] = {n: [] for n in range(topic.partitions)}
    for message in broker.behind(topic.name, {n: broker.bounds(topic.name, n)[0] for n in found}):
        found[message.partition() or 0].append((read_tags(message.headers()), message.key(), message.value()))
    return found


def rows(feed: Feed) -> dict[int, list[tuple[str, Any, Any]]]:
    return {
        number: [_row(key, value) for tags, key, value in messages if tags.kind is Kind.ROW]
        for number, messages in content(feed).items()
    }


def _row(key: bytes | None, value: bytes | None) -> tuple[str, Any, Any]:
    change = read_row(key, value)
    return change.table, *(_plain(image) for image in (change.before, change.after))


def _plain(image: Any) -> Any:
    return None if image is None else {name: cell.value for name, cell in image.items()}


def check_numbers(feed: Feed) -> None:
    """Without gaps in each partition; places rise; nothing up to a Resolved comes behind it."""
    for messages in (each for name in topics(feed) for each in content(feed, name).values()):
        counted = [tags for tags, _, _ in messages if tags.kind in (Kind.ROW, Kind.DDL, Kind.ADMIN)]
        assert [tags.n for tags in counted] == list(range(1, len(counted) + 1))
        places = [(tags.t, tags.seq) for tags, _, _ in messages if tags.kind is Kind.ROW]
        assert places == sorted(places)
        resolved = 0
        for tags, _, _ in messages:
            if tags.kind is Kind.RESOLVED:
                resolved = tags.t
            elif tags.kind not in (Kind.ADMIN, Kind.ALIGN):
                assert tags.t > resolved


def write_history(database: Database, draw: random.Random, transactions: int, tables: tuple[str, ...]) -> None:
    """Transactions of one to six rows over several tables, some of which are rolled back or go to a savepoint."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET autocommit=0")
        for _ in range(transactions):
            for _ in range(draw.randint(1, 6)):
                session.execute_raw(_statement(draw, draw.choice(tables)))
            session.execute_raw("ROLLBACK" if draw.random() < 0.1 else "COMMIT")


def _statement(draw: random.Random, table: str) -> str:
    key = draw.randint(1, 30)
    kind = draw.random()
    if kind < 0.5:
        return f"REPLACE INTO {table} VALUES ({key},'{secrets.token_hex(3)}',{draw.randint(0, 9)})"
    if kind < 0.7:
        return f"DELETE FROM {table} WHERE id={key}"
    if kind < 0.8:
        return f"UPDATE IGNORE {table} SET id=id+{draw.randint(1, 5)} WHERE id={key}"
    return f"UPDATE {table} SET n=n+1 WHERE id BETWEEN {key} AND {key + 4}"


def make_tables(database: Database, *names: str) -> None:
    for name in names:
        database.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY, a VARCHAR(9), n INT NOT NULL)")


def logged(database: Database, start: Any) -> list[tuple[str, Any, Any]]:
    """What the log says, rows only. The reader hands out rolled-back rows of none."""
    found = feeds.read(database, feeds.catalog(database), start)
    return [each for each in found if each[0] != "DDL"]


def sent(feed: Feed, source: str = "") -> list[tuple[str, Any, Any]]:
    """All rows by place, or of one source; a DELETE and an INSERT of one are the UPDATE that left its partition."""
    found: dict[tuple[int, int], tuple[str, Any, Any]] = {}
    for messages in (each for name in topics(feed) for each in content(feed, name).values()):
        for tags, key, value in messages:
            if tags.kind is Kind.ROW and source in ("", tags.source):
                table, before, after = _row(key, value)
                _, old, new = found.get((tags.t, tags.seq), (table, None, None))
                assert old is None or before is None, "sent twice"
                assert new is None or after is None, "sent twice"
                found[tags.t, tags.seq] = (table, before or old, after or new)
    return [found[place] for place in sorted(found)]
