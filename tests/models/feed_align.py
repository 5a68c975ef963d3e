"""Conflict dispatch of the changefeed in row mode: a second unique key, rows in their primary key's partition, Align.

A table with a primary key and one more unique column whose collation takes "a" and "A" for the same. Every history of a
few transactions is a state to begin with, with what the producer writes for it; then listeners apply in any order. No
row may come while another one holds its unique value (REPLACE would delete that one), and at the end the table is the
source's. Actions: `apply` (a listener writes its next row), `pass_align` (a listener goes on behind an Align).

The producer keeps where it has sent each unique value, before and after images; a row whose value is with another
partition comes behind an Align to all, and what was kept is forgotten. A producer that starts sends one as well. Aligns
are numbered (epoch, count), so that one which a dying producer has sent to some partitions only is superseded.

What must stay true: a listener applies one row at a time, which is finer than by Resolved; rows in a partition keep
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from tests.models.explorer import Step

VALUES = (None, "a", "A")
Table = tuple[tuple[int, str | None], ...]
"""(primary key, unique value), in order."""
Change = tuple[int, str | None, bool, str | None, bool]
"""primary key, before image, is there one, after image, is there one."""
Number = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    align_sent: bool = True
    """A row whose unique value is with another partition comes behind an Align (C)."""
    align_to_all: bool = True
    """... in all partitions (C)."""
    align_awaited: bool = True
    """... which a listener passes when every one has reached it (C)."""
    later_counts: bool = True
    """... or a later one (C)."""
    before_images: bool = True
    """Unique values of before images count (C)."""
    after_images: bool = True
    """... and those of after images (C)."""
    collation: bool = True
    """Values are compared as the collation does (C)."""
    align_at_start: bool = True
    """A producer that starts sends an Align (C)."""


class Message(NamedTuple):
    """A change, or an Align where `align` is a number."""

    change: Change | None = None
    align: Number | None = None


class State(NamedTuple):
    """at: each listener's place in its log; reached: the highest Align that it has come to."""

    logs: tuple[tuple[Message, ...], ...]
    wanted: Table
    at: tuple[int, ...]
    reached: tuple[Number, ...]
    table: Table
    wrong: str = ""

    def __str__(self) -> str:
        logs = "; ".join(", ".join(map(said, log)) for log in self.logs)
        return f"{logs} | listeners at {self.at}, the table is {self.table}, the source {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """length: transactions. has_crash: a producer dies while it writes an Align, and the next one goes on."""

    length: int = 3
    has_crash: bool = False
    begin: Table = ((1, "a"),)


def said(m: Message) -> str:
    if m.align or not m.change:
        return f"Align{m.align}"
    key, old, was, new, is_now = m.change
    return f"{key}:{old if was else '-'}→{new if is_now else '-'}"


def folded(value: str | None) -> str | None:
    return value.lower() if value else None


def clash(table: dict[int, str | None], key: int, value: str | None) -> bool:
    """Another row holds the value."""
    return value is not None and any(folded(v) == folded(value) for k, v in table.items() if k != key)


# -- the source -------------------------------------------------------------------------------------------------------


def transactions(table: dict[int, str | None]) -> Iterator[tuple[Change, ...]]:
    for key in (1, 2):
        if key not in table:
            yield from (((key, None, False, v, True),) for v in VALUES if not clash(table, key, v))
            continue
        old, other = table[key], 3 - key
        yield ((key, old, True, None, False),)
        yield from (((key, old, True, v, True),) for v in VALUES if v != old and not clash(table, key, v))
        if other not in table:
            yield ((key, old, True, None, False), (other, None, False, old, True))


def histories(table: Table, length: int) -> Iterator[tuple[tuple[Change, ...], Table]]:
    if not length:
        yield (), table
        return
    for transaction in transactions(dict(table)):
        for rest, end in histories(changed(table, transaction), length - 1):
            yield (*transaction, *rest), end


def changed(table: Table, changes: Iterable[Change]) -> Table:
    rows = dict(table)
    for key, _, _, new, is_now in changes:
        rows.pop(key, None)
        if is_now:
            rows[key] = new
    return tuple(sorted(rows.items()))


# -- the producer -----------------------------------------------------------------------------------------------------


class Writer:
    """What producers write for a history; `dies`: at which Align, and which partition gets that."""

    def __init__(self, rules: Rules, dies: tuple[int, int] | None = None) -> None:
        self._rules, self._dies = rules, dies
        self.logs: tuple[list[Message], list[Message]] = ([], [])
        self._where: dict[str, int] = {}
        self.epoch = 1
        self._count = self._met = 0

    def write(self, changes: Iterable[Change]) -> None:
        for change in changes:
            values, partition = self._values(change), change[0] - 1
            if any(self._where.get(v, partition) != partition for v in values):
                self._align(partition)
            self._where.update(dict.fromkeys(values, partition))
            self.logs[partition].append(Message(change))

    def _values(self, change: Change) -> list[str]:
        _, old, _, new, _ = change
        found = [old] if self._rules.before_images else []
        found += [new] if self._rules.after_images else []
        return [(folded(v) or v) if self._rules.collation else v for v in found if v]

    def _align(self, partition: int) -> None:
        self._met += 1
        if self._dies and self._met == self._dies[0]:
            self._put((self._dies[1],))
            self.epoch, self._count = 2, 0
            if self._rules.align_at_start:
                self._put((0, 1))
        elif self._rules.align_sent:
            self._put((0, 1) if self._rules.align_to_all else (1 - partition,))
        self._where.clear()

    def _put(self, partitions: Iterable[int]) -> None:
        self._count += 1
        for partition in partitions:
            self.logs[partition].append(Message(align=(self.epoch, self._count)))


def written(b: Bounds, rules: Rules, changes: tuple[Change, ...]) -> Iterator[Writer]:
    """Without a crash, or with one at each Align that there is."""
    for dies in chain((None,), ((n, p) for n in range(1, b.length + 1) for p in (0, 1)) if b.has_crash else ()):
        writer = Writer(rules, dies)
        writer.write(changes)
        if dies is None or writer.epoch == 2:
            yield writer


# -- the consumer -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlignModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", (self.apply, self.pass_align))

    def initial(self) -> Iterator[State]:
        for changes, end in histories(self.bounds.begin, self.bounds.length):
            for writer in written(self.bounds, self.rules, changes):
                logs = tuple(map(tuple, writer.logs))
                none: Number = (0, 0)
                yield come(State(logs, end, (0, 0), (none, none), self.bounds.begin))

    def wrong(self, s: State) -> str | None:
        return f"{s.wrong} ({s})" if s.wrong else None

    def is_end(self, s: State) -> bool:
        return s.table == s.wanted and all(at == len(log) for at, log in zip(s.at, s.logs, strict=True))

    def apply(self, s: State) -> Iterator[Step[State]]:
        for listener, m in following(s):
            if m.change:
                yield f"listener {listener} applies {said(m)}", applied(gone_on(s, listener), m.change)

    def pass_align(self, s: State) -> Iterator[Step[State]]:
        for listener, m in following(s):
            if m.align and self._may_pass(s, m.align):
                yield f"listener {listener} passes {said(m)}", gone_on(s, listener)

    def _may_pass(self, s: State, number: Number) -> bool:
        if not self.rules.align_awaited:
            return True
        if self.rules.later_counts:
            return all(reached >= number for reached in s.reached)
        return all(has_come(s, listener, number) for listener in (0, 1))


def following(s: State) -> Iterator[tuple[int, Message]]:
    for listener, (at, log) in enumerate(zip(s.at, s.logs, strict=True)):
        if at < len(log):
            yield listener, log[at]


def has_come(s: State, listener: int, number: Number) -> bool:
    """It stands at just that Align, or has passed it."""
    return any(m.align == number for m in s.logs[listener][: s.at[listener] + 1])


def gone_on(s: State, listener: int) -> State:
    return come(s._replace(at=tuple(at + (place == listener) for place, at in enumerate(s.at))))


def come(s: State) -> State:
    """What each listener stands at is reached."""
    reached = list(s.reached)
    for listener, m in following(s):
        if m.align:
            reached[listener] = max(reached[listener], m.align)
    return s._replace(reached=tuple(reached))


def applied(s: State, change: Change) -> State:
    key, _, _, new, is_now = change
    wrong = f"row {key}:{new} comes while another holds that" if is_now and clash(dict(s.table), key, new) else ""
    return s._replace(table=changed(s.table, (change,)), wrong=wrong)
