"""Conflict dispatch of the changefeed in row mode: a second unique key, rows in their primary key's partition, Align.

A table with a primary key and one more unique column whose collation takes "a" and "A" for the same. Every history of a
few transactions is a state to begin with, with what the producer writes for it; then listeners apply in any order. No
row may come while another one holds its unique value (REPLACE would delete that one), and at the end the table is the
source's. Actions: `apply` (a listener writes its next row), `pass_align` (a listener goes on behind an Align).

The producer keeps where it has sent each unique value, before and after images; a row whose value is with another
partition comes behind an Align to all, and what was kept is forgotten. A producer that starts sends one before its
first row as well. An Align has the number of the change that it stands before.

A producer may die at any time. Then its progress is at some change, and of what it has sent for the changes behind that
each partition holds a beginning, one more than another: so it is when a request to end the transaction comes late. The
next one begins at the progress, and does not send again what is there.

What must stay true: a listener applies one row at a time, which is finer than by Resolved; rows in a partition keep
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
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
    by_place: bool = True
    """... by the place of the change that follows, not by how many each producer has sent (C)."""
    tail_superseded: bool = True
    """An Align that a producer has left in some partitions is followed by one in all that is not below it (C)."""
    tail_counts: bool = True
    """Unique values of what is there and is not sent again count (C)."""
    before_images: bool = True
    """Unique values of before images count (C)."""
    after_images: bool = True
    """... and those of after images (C)."""
    collation: bool = True
    """Values are compared as the collation does (C)."""
    align_at_start: bool = True
    """A producer that starts sends an Align (C)."""


class Message(NamedTuple):
    """A change, which is the one at `place`, or an Align where `align` is a number."""

    change: Change | None = None
    align: Number | None = None
    place: int = 0


Logs = tuple[tuple[Message, ...], ...]


class State(NamedTuple):
    """at: each listener's place in its log; reached: the highest Align that it has come to."""

    logs: Logs
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
    """length: transactions. has_crash: a producer dies, and the next one goes on."""

    length: int = 3
    has_crash: bool = False
    begin: Table = ((1, "a"),)
    values: tuple[str | None, ...] = VALUES


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


def transactions(table: dict[int, str | None], values: Sequence[str | None]) -> Iterator[tuple[Change, ...]]:
    for key in (1, 2):
        if key not in table:
            yield from (((key, None, False, v, True),) for v in values if not clash(table, key, v))
            continue
        old, other = table[key], 3 - key
        yield ((key, old, True, None, False),)
        yield from (((key, old, True, v, True),) for v in values if v != old and not clash(table, key, v))
        if other not in table:
            yield ((key, old, True, None, False), (other, None, False, old, True))


def histories(table: Table, length: int, values: Sequence[str | None]) -> Iterator[tuple[tuple[Change, ...], Table]]:
    if not length:
        yield (), table
        return
    for transaction in transactions(dict(table), values):
        for rest, end in histories(changed(table, transaction), length - 1, values):
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
    """A run of a producer. logs: what is there; behind `known` of each the progress does not know of it."""

    def __init__(self, rules: Rules, epoch: int, logs: Logs = ((), ()), known: tuple[int, ...] = (0, 0)) -> None:
        self._rules, self._epoch = rules, epoch
        self.logs = [list(log) for log in logs]
        tail = [m for log, at in zip(logs, known, strict=True) for m in log[at:]]
        self._there = {m.place for m in tail if m.change}
        self._found = max((m.align for m in tail if m.align), default=(0, 0))
        self._where: dict[str, int] = {}
        self._is_new = rules.align_at_start
        self._count = 0

    def write(self, changes: Iterable[Change], place: int) -> None:
        """place: of the first one."""
        for at, change in enumerate(changes, place):
            self._write(change, at)

    def _write(self, change: Change, place: int) -> None:
        values, partition = self._values(change), change[0] - 1
        is_met = any(self._where.get(v, partition) != partition for v in values)
        is_left = self._rules.tail_superseded and (0, 0) < self._found <= (place, 0)
        if is_met or is_left or (values and self._is_new):
            self._align(place, partition)
        if place not in self._there:
            self.logs[partition].append(Message(change, place=place))
        if place not in self._there or self._rules.tail_counts:
            self._where.update(dict.fromkeys(values, partition))

    def _values(self, change: Change) -> list[str]:
        _, old, _, new, _ = change
        found = [old] if self._rules.before_images else []
        found += [new] if self._rules.after_images else []
        return [(folded(v) or v) if self._rules.collation else v for v in found if v]

    def _align(self, place: int, partition: int) -> None:
        self._count += 1
        number = (place, 0) if self._rules.by_place else (self._epoch, self._count)
        if self._rules.align_sent:
            for to in (0, 1) if self._rules.align_to_all else (1 - partition,):
                self.logs[to].append(Message(align=number))
        if self._rules.by_place and number >= self._found:
            self._found = (0, 0)
        self._where.clear()
        self._is_new = False


def written(b: Bounds, rules: Rules, changes: tuple[Change, ...]) -> Iterator[Logs]:
    """Without a crash, or with one, whatever was known of by then and whatever was there."""
    one = Writer(rules, 1)
    one.write(changes, 1)
    yield frozen(one)
    for known in range(len(changes)) if b.has_crash else ():
        first = Writer(rules, 1)
        first.write(changes[:known], 1)
        ends = tuple(map(len, first.logs))
        first.write(changes[known:], known + 1)
        for there in product(*(range(end, len(log) + 1) for end, log in zip(ends, first.logs, strict=True))):
            cut = tuple(tuple(log[:to]) for log, to in zip(first.logs, there, strict=True))
            second = Writer(rules, 2, cut, ends)
            second.write(changes[known:], known + 1)
            yield frozen(second)


def frozen(writer: Writer) -> Logs:
    return tuple(map(tuple, writer.logs))


# -- the consumer -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlignModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", (self.apply, self.pass_align))

    def initial(self) -> Iterator[State]:
        for changes, end in histories(self.bounds.begin, self.bounds.length, self.bounds.values):
            for logs in written(self.bounds, self.rules, changes):
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
