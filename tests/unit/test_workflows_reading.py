"""Changing over from a dump of one's own to the shared one, where the log's places and its transactions disagree."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.flow import wait_until
from vreplication.binlog.events import Group, GroupKind, Heartbeat, Position, RowChange, Stopped
from vreplication.binlog.gtids import parse
from vreplication.binlog.watch import Following
from vreplication.engine.reading import Intake, SharedReader
from vreplication.errors import SourceChanged

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(offset: int, numbers: str) -> Position:
    return Position.of("binlog.000001", offset, parse(f"{UUID}:{numbers}"))


def group(offset: int, before: str, after: str, *items: RowChange) -> Group:
    return Group(
        kind=GroupKind.COMMIT,
        start=at(offset, before),
        end=at(offset + 10, after),
        time_micros=1,
        items=items,
        nbytes=1,
    )


def row(number: int, key: str) -> RowChange:
    return RowChange(number, None, (key, key))


class Dump:
    """In the place of a tailer: gives what it is told to, and heartbeats while there is nothing."""

    def __init__(self, start: Position) -> None:
        self.read_position, self.server, self.is_between = start, "one server", True
        self._joined: dict[str, Following] = {}
        self._items: queue.Queue[Any] = queue.Queue()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._joined)

    def join(self, following: Following) -> None:
        self._joined[following.name] = following

    def leave(self, name: str) -> None:
        self._joined.pop(name, None)

    def give(self, *items: Group | Heartbeat | Stopped) -> None:
        for item in items:
            self._items.put(item)

    def close(self) -> None:
        self._items.put(None)

    def __iter__(self) -> Iterator[Any]:
        while (item := self._next()) is not None:
            # What stops one is found inside of a transaction.
            self.is_between = not isinstance(item, Stopped)
            if not isinstance(item, Stopped):
                self.read_position = item.end if isinstance(item, Group) else item.position
            yield item

    def _next(self) -> Any:
        try:
            return self._items.get(timeout=0.005)
        except queue.Empty:
            return Heartbeat(position=self.read_position) if self.is_between else self._items.get()


@dataclass(slots=True)
class Sink:
    keys: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def put(self, group: Group) -> None:
        self.keys += [item.after[0] for item in group.items]

    def has_room(self, nbytes: int) -> bool:
        return True

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)


class Room:
    """A shared reader with followers; each has the dump that was opened for it last."""

    def __init__(self) -> None:
        self.reader, self.dumps, self.intakes = SharedReader(), [], []  # type: ignore[var-annotated]

    def follow(self, name: str, start: Position) -> tuple[Sink, Dump]:
        sink, number = Sink(), self.reader.number(name)
        watch: Any = _Numbered(number)
        following = Following(name=name, watches=(watch,))
        intake = Intake(self.reader, following, sink, self._open)  # type: ignore[arg-type]
        self.intakes.append(intake)
        intake.begin(start)
        return sink, self.dumps[-1]

    def _open(self, start: Position) -> Any:
        self.dumps.append(Dump(start))
        return self.dumps[-1]


@dataclass(frozen=True)
class _Numbered:
    number: int


@pytest.fixture
def room() -> Iterator[Room]:
    found = Room()
    yield found
    for intake in found.intakes:
        intake.close()


def test_what_the_shared_dump_left_out_comes_by_the_own_one(room: Room) -> None:
    """After a failover both dumps are asked for by GTID: the shared one passes over 6 to 8 that the late one needs, and
    both tell only where in the file they are."""
    _, shared = room.follow("a", at(4, "1-8"))
    shared.give(Heartbeat(position=at(100, "1-8")))
    late, own = room.follow("b", at(4, "1-5"))
    own.give(Heartbeat(position=at(90, "1-5")))
    wait_until(lambda: "b" in shared.names, "it is not taken in")
    own.give(Heartbeat(position=at(120, "1-5")))
    own.give(group(200, "1-5", "1-6", row(1, "six")), group(210, "1-6", "1-7", row(1, "seven")))
    own.give(group(230, "1-7", "1-8", row(1, "eight")))
    both_go_on(shared, own, late)
    assert (late.keys, late.errors) == (["six", "seven", "eight", "nine", "ten"], [])


def test_what_the_own_dump_left_out_does_not_come_again(room: Room) -> None:
    _, shared = room.follow("a", at(4, "1-5"))
    late, own = room.follow("b", at(4, "1-8"))
    shared.give(Heartbeat(position=at(100, "1-5")))
    own.give(Heartbeat(position=at(90, "1-8")))
    for number in (6, 7, 8):
        shared.give(group(100 + 10 * number, f"1-{number - 1}", f"1-{number}", row(1, "applied before")))
    own.give(Heartbeat(position=at(190, "1-8")))
    both_go_on(shared, own, late)
    assert (late.keys, late.errors) == (["nine", "ten"], [])


def both_go_on(shared: Dump, own: Dump, late: Sink) -> None:
    """The same log, from where all is level; ends with the shared dump alone."""
    for dump in (shared, own):
        dump.give(group(250, "1-8", "1-9", row(1, "nine")))
    wait_until(lambda: "b" in shared.names and "nine" in late.keys, "it is not taken over")
    shared.give(group(270, "1-9", "1-10", row(1, "ten")))
    wait_until(lambda: "ten" in late.keys, "it is not followed any more")


def test_who_stops_inside_a_transaction_leaves_no_rows_to_another(room: Room) -> None:
    first, shared = room.follow("a", at(4, "1-8"))
    other, _ = room.follow("b", at(4, "1-8"))
    wait_until(lambda: "b" in shared.names, "it is not taken in")
    shared.give(Stopped(name="a", error=SourceChanged("a has changed")))
    shared.give(group(200, "1-8", "1-9", row(0, "of a"), row(1, "of b")))
    wait_until(lambda: other.keys, "it is stopped, too")
    assert (other.keys, other.errors) == (["of b"], [])
    assert (first.keys, [str(error) for error in first.errors]) == ([], ["a has changed"])
