"""A giant transaction on its way, and what goes on beside it in partitions that it has nothing for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from tests.support.running_feed import (
    Running,
    check_numbers,
    content,
    logged,
    make_tables,
    seeds,
    sent,
    start_feed,
    topics,
    write_history,
)
from vreplication.binlog.tailer import Tailer
from vreplication.errors import Transient
from vreplication.feed import feed as feed_module
from vreplication.feed import producer as producer_module
from vreplication.feed import running
from vreplication.feed.ahead import Ahead
from vreplication.feed.dispatch import Dispatcher, Rule
from vreplication.feed.feed import Run
from vreplication.feed.messages import Kind

pytestmark = pytest.mark.either

_ROWS = 3_000
_SEVERAL = 1_000
"""Rows that make a transaction giant here."""


@pytest.fixture
def begin(
    kafka: Cluster, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    monkeypatch.setattr(running, "Tailer", partial(Tailer, part_bytes=64 << 10))
    monkeypatch.setattr(feed_module, "GIANT_ROWS", _SEVERAL)
    monkeypatch.setattr(feed_module, "_MOST_ROWS", 500)
    monkeypatch.setattr(running, "_PAUSES", (0.01,))
    yield from start_feed(kafka, database, tmp_path)


class Held:
    """The giant transaction comes no further as long as it is held; what is sent ahead of it does."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.has_begun = threading.Event()

    def __call__(self, run: Run, ahead: Ahead) -> None:
        _GO_AHEAD(run, ahead)
        while not self.free.is_set() and run._ahead is not None:
            self.has_begun.set()
            _GO_AHEAD(run, ahead)
            run.hooks.check()
            if run._is_due(time.monotonic()):
                run._commit()
            time.sleep(0.01)


_GO_AHEAD = Run._go_ahead


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held()
    monkeypatch.setattr(Run, "_go_ahead", lambda run, ahead: found(run, ahead))
    yield found
    found.free.set()


def tables_of(database: Database, partitions: int) -> tuple[str, str]:
    """One for the giant transaction, and another whose rows go into another partition."""
    by_table = Dispatcher(Rule(way="table"), partitions, None).of_table  # type: ignore[arg-type]
    one, *others = (f"t{number}" for number in range(30))
    return one, next(each for each in others if by_table(database.name, each) != by_table(database.name, one))


def write_giant(database: Database, table: str, rows: int = _ROWS) -> None:
    database.admin.execute_raw(
        f"REPLACE INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<100) "
        f"SELECT a.i*100+b.i, 'x', 0 FROM n a JOIN n b WHERE a.i<={rows // 100}"
    )


def seen(feed: Running, table: str) -> tuple[int, bool]:
    """Rows of a table, and whether all partitions that have some have a Resolved behind them."""
    count, are_resolved = 0, True
    for messages in (each for name in topics(feed.feed) for each in content(feed.feed, name).values()):
        its = [tags.t for tags, key, _ in messages if tags.kind is Kind.ROW and f'"{table}"'.encode() in (key or b"")]
        resolved = max((tags.t for tags, _, _ in messages if tags.kind is Kind.RESOLVED), default=0)
        count += len(its)
        are_resolved = are_resolved and (not its or resolved >= its[-1])
    return count, are_resolved


@pytest.mark.parametrize("is_each", [False, True], ids=["partitions", "topics"])
@pytest.mark.in_turn
def test_other_tables_watermarks_move_on(
    begin: Callable[..., Running], held: Held, database: Database, is_each: bool
) -> None:
    t, u = tables_of(database, 7)
    make_tables(database, t, u)
    start = feeds.here(database)
    feed = begin(partitions=1 if is_each else 7, is_each=is_each)
    feed.wait_begun()
    write_giant(database, t)
    with database.server.admin(database.name) as session:
        session.execute_raw("SET autocommit=0")
        for id in range(20):
            session.execute_raw(f"INSERT INTO {t} VALUES ({id},'y',1)")
            session.execute_raw(f"INSERT INTO {u} VALUES ({id},'y',1)")
            session.execute_raw("COMMIT")
    wait_until(lambda: feed.error or seen(feed, u) == (20, True), "one table waits for another's rows")
    assert feed.error is None
    assert seen(feed, t)[0] < _ROWS
    held.free.set()
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert seen(feed, u) == (20, True)


class _Killed(Transient):
    """The run ends here, and the next one begins at the progress."""


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.in_turn
def test_each_change_is_sent_once_wherever_it_is_killed(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """What was sent ahead is found by the next run; DDL, XA and a second giant end it; scaling waits."""
    draw = random.Random(seed)
    killed: list[str] = []
    gone: list[int] = []

    def kill(point: str) -> None:
        if len(killed) < 12 and gone and point.startswith("feed.") and draw.random() < 0.15:
            killed.append(point)
            raise _Killed(f"killed at {point}")

    def go_ahead(run: Run, ahead: Ahead) -> None:
        before = ahead.resolved
        _GO_AHEAD(run, ahead)
        gone.extend([ahead.resolved] if ahead.resolved > before > 0 else [])

    t, u = tables_of(database, 7)
    make_tables(database, t, u)
    start = feeds.here(database)
    feed = begin(rule=Rule(way=("table", "ts")[seed % 2]), partitions=7)
    feed.wait_begun()
    for module in (feed_module, producer_module):
        monkeypatch.setattr(module, "reach", kill)
    monkeypatch.setattr(Run, "_go_ahead", go_ahead)
    for number in range(4):
        write_giant(database, t)
        feed.wanted = (5, 7, 6, 3)[number]
        write_history(database, draw, 15, (u, t))
        database.admin.execute_raw((f"ALTER TABLE {u} ADD COLUMN c{number} INT", "XA START 'a'")[number % 2])
        if number % 2:
            database.admin.execute_raw(f"INSERT INTO {u} VALUES ({1000 + number},'xa',1)")
            database.admin.execute_raw("XA END 'a'")
            database.admin.execute_raw("XA PREPARE 'a'")
            database.admin.execute_raw("XA COMMIT 'a'")
        else:
            database.admin.execute_raw(f"ALTER TABLE {u} DROP COLUMN c{number}")
    # Of a commit right behind which it was killed nothing is told: something new comes when no more kills do.
    for module in (feed_module, producer_module):
        monkeypatch.setattr(module, "reach", lambda _: None)
    write_history(database, draw, 1, (u, t))
    feed.wait_sent(database)
    wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == 3), "not scaled")
    assert gone, "nothing was sent ahead"
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
