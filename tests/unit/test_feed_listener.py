"""A listener that stands at an Align keeps what comes, as long as there is room, and reads it when it goes on."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.feed_messages import Partition
from vreplication.feed.consume import definitions, waiting
from vreplication.feed.consume import listener as module
from vreplication.feed.consume.by_row import ByRow
from vreplication.feed.consume.listener import Ddl, Listener, Stop
from vreplication.feed.consume.reading import _Running
from vreplication.feed.consume.waiting import Memory, Waiting
from vreplication.feed.messages import Kind
from vreplication.state.feed_offsets import Key, Offset, Stand

ROWS = 6


@pytest.fixture
def partition() -> Partition:
    """Rows of the times 1 to 6, an Align before each. The first message is an Admin."""
    made = Partition()
    for t in range(1, ROWS + 1):
        made.add(Kind.ALIGN, t, 1, b'{"align":[%d,1]}' % t)
        made.add(Kind.ROW, t, 0, b'{"update":{}}')
    return made.add(Kind.RESOLVED, ROWS)


def begun(**more: Any) -> Listener:
    said = {"stored": Offset(number=0, next=1, n=1, generation=1), "aligns": True, **more}
    return Listener("topic", generation=1, ddl_done=0, memory=Memory(), **said)


def times(listener: Listener) -> list[int]:
    return [row.t for row in listener.queue.until(99)]


def read_on(listener: Listener, partition: Partition) -> None:
    """As a client does that was told to go on."""
    at = listener.following
    for message in partition.messages[at:]:
        listener.take(message)  # type: ignore[arg-type]


def test_nothing_is_read_twice(partition: Partition) -> None:
    listener = begun()
    read_on(listener, partition)
    for t in range(1, ROWS + 1):
        assert listener.stop is not None
        assert (listener.stop.stand, listener.stop.align) == (Stand.ALIGN, (t, 1))
        assert not listener.is_full
        assert times(listener) == list(range(t - 1, t))[: t > 1]
        assert listener.following == len(partition.messages)
        listener.go_on()
    assert (times(listener), listener.reached) == ([ROWS], ROWS)


def test_what_it_has_no_room_for_is_read_again(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_AHEAD_BYTES", 1100)
    listener, found = begun(), list[int]()
    read_on(listener, partition)
    assert (listener.is_full, listener.following) == (True, 5)
    while listener.stop is not None:
        found += times(listener)
        assert listener.offset(listener.reached).next == listener.stop.offset
        listener.go_on()
        read_on(listener, partition)
    assert found + times(listener) == list(range(1, ROWS + 1))


def test_who_does_not_align_passes_over_it(partition: Partition) -> None:
    listener = begun(aligns=False)
    read_on(listener, partition)
    assert (listener.stop, times(listener)) == (None, list(range(1, ROWS + 1)))


class _KilledError(Exception):
    pass


def consumed(stored: Offset, partition: Partition, commits: int) -> tuple[list[int], Offset]:
    """Offsets of the rows that were applied by as many commits, and what is stored then."""
    listener, reading, applied = begun(stored=stored), object.__new__(ByRow), list[int]()

    def commit(listener: Listener, rows: list[Waiting], to: Offset) -> None:
        nonlocal commits
        commits -= 1
        if commits < 0:
            raise _KilledError
        applied.extend(row.offset for row in rows)
        listener.stored = to

    reading._commit, reading._saved_at = commit, {}  # type: ignore[method-assign]
    reading.check = lambda: None
    with contextlib.suppress(_KilledError):
        while True:
            read_on(listener, partition)
            reading._apply(listener)
            if listener.stop is None:
                break
            listener.go_on()
    return applied, listener.stored


@pytest.mark.parametrize("kind", [Kind.ALIGN, Kind.DDL])
def test_each_row_is_applied_once_wherever_it_is_killed(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also rows behind a Resolved that came with it, of which not all fit into one transaction."""
    monkeypatch.setattr(waiting, "MOST_ROWS", 2)
    partition = Partition()
    partition.add(Kind.ROW, 1, 0, b'{"update":{}}').add(Kind.RESOLVED, 1)
    for seq in range(5):
        partition.add(Kind.ROW, 2, seq, b'{"update":{}}')
    said = b'{"align":[3,1]}' if kind is Kind.ALIGN else b'{"schema":"s","query":"DROP TABLE x"}'
    partition.add(kind, 3, 0, said).add(Kind.ROW, 4, 0, b'{"update":{}}').add(Kind.RESOLVED, 4)
    rows = [1, *range(3, 8), 9]
    for commits in range(8):
        before, stored = consumed(begun().stored, partition, commits)
        behind, _ = consumed(stored, partition, 99)
        assert before + behind == rows, commits


def test_the_highest_resolved_is_read_again_until_its_time_is_reached() -> None:
    """Behind a crash of the feed a lower one follows, and rows that wait would have to wait for a third."""
    partition = Partition().add(Kind.ROW, 99, 0, b'{"update":{}}').add(Kind.RESOLVED, 100).add(Kind.RESOLVED, 90)
    listener = begun(aligns=False)
    read_on(listener, partition)
    assert times(listener) == [99]
    # Other partitions have come to 95 and to 100.
    assert (listener.offset(95).next, listener.offset(100).next) == (2, len(partition.messages))


def test_what_is_known_of_the_targets_tables_is_forgotten_at_a_ddl_alone() -> None:
    """Rows of two tables that are one on the target may have an Align between them (rows.py)."""
    told: list[bool] = []
    for ddl in (None, Ddl(1, "s", "DROP TABLE t")):
        reading: Any = object.__new__(ByRow)
        reading.target = SimpleNamespace(forget=lambda: told.append(True))
        stop = Stop(stand=Stand.DDL if ddl else Stand.ALIGN, t=1, offset=0, end=1, n_before=0, n=0, ddl=ddl)
        reading._pass(SimpleNamespace(stop=stop, go_on=lambda: None))
        assert bool(told) is (ddl is not None)


def test_what_goes_wrong_with_a_ddl_is_told_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(definitions, "run", fails)
    target: Any = None
    running = _Running(target, Key("g", "topic"), Ddl(1, "s", "DROP TABLE t"))
    running.thread.join(60)
    assert isinstance(running.error, ValueError)
