"""Reads a topic and checks what a feed promises of it: numbering, order, Resolved, DDL, generations, partitions.

Rules are named as in docs/feed.md: 1.1 a row's changes are in one partition of a generation, between two DDL; 1.2 each
is there once; 1.3 in the order of the log; 2.2 nothing up to a Resolved comes behind it; 2.3 nothing before a DDL comes
behind it; 2.4 Resolved and DDL are in all partitions of their generation; 2.5 nothing that is before an Align comes
behind it, and in each other partition of the generation is one that is not below it.

What must stay true: it only reads; partitions are read one after the other, and memory is bounded: of keys eight bytes
each are kept, up to so many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vreplication.errors import Refused, Terminal, Transient
from vreplication.feed.address import Address
from vreplication.feed.broker import Broker
from vreplication.feed.claims import Fetcher
from vreplication.feed.formats.open import read_admin, read_row
from vreplication.feed.messages import COUNTED, Kind, NotOurs, Tags, read_tags

_MOST_KEYS = 4_000_000


class Broken(Exception):
    """A message that breaks a rule."""

    def __init__(self, partition: int, offset: int, words: str) -> None:
        super().__init__(f"Partition {partition}, offset {offset}: {words}")
        self.partition, self.offset, self.words = partition, offset, words


@dataclass(slots=True)
class Report:
    """What was read. keys None: whether a row stays in its partition was not looked at, or not of all.

    begins: of partitions whose head is not there any more, the first message: (partition, offset, n).
    """

    partitions: int = 0
    messages: int = 0
    rows: int = 0
    ddl: int = 0
    aligns: int = 0
    generations: int = 0
    resolved: int | None = None
    are_keys_checked: bool = True
    begins: list[tuple[int, int, int]] = field(default_factory=list)
    claims: int = 0
    """Values in files, which were read."""


@dataclass(slots=True)
class _Partition:
    """Where the reading of one stands."""

    number: int
    n: int | None = None
    place: tuple[int, int] = (0, -1)
    resolved: int = 0
    ddl: int = 0
    generation: int = 0
    part: tuple[int, int] | None = None
    aligned: tuple[int, int] = (0, 0)
    is_cut: bool = False
    since: int = -1
    """Where its head is gone: the time of the first message. What was before it may be gone as well."""


class Checker:
    """Feed it the messages of each partition, in order. has_keys: rows are of `open`, not spread by time."""

    def __init__(self, *, has_keys: bool = True, fetcher: Fetcher | None = None) -> None:
        """fetcher: of values that are in files."""
        self._fetcher = fetcher or Fetcher()
        self.report = Report(are_keys_checked=has_keys)
        self._keys: dict[bytes, int] = {}
        self._counts: dict[int, int] = {}
        self._ddls: dict[int, dict[int, set[int]]] = {}
        self._aligned: dict[int, dict[int, tuple[int, int]]] = {}
        self._ends: list[_Partition] = []

    def partition(self, number: int, messages: Iterable[Any]) -> None:
        """Raises Broken."""
        at = _Partition(number)
        self.report.partitions += 1
        for message in messages:
            offset = message.offset()
            try:
                self._take(at, read_tags(message.headers()), message)
            except NotOurs as error:
                raise Broken(number, offset, f"it is no message of a feed ({error})") from None
            except _Wrong as error:
                raise Broken(number, offset, str(error)) from None
        self._ends.append(at)

    def _take(self, at: _Partition, tags: Tags, message: Any) -> None:
        self.report.messages += 1
        self._check_number(at, tags, message.offset())
        self._check_claim(tags)
        # That of a snapshot's end begins no generation, and may come again after a crash.
        if tags.kind is Kind.ADMIN and not (tags.snapshot and tags.generation == at.generation):
            self._admin(at, tags, message)
        elif tags.generation < at.generation:
            raise _Wrong(f"it is of generation {tags.generation}, behind {at.generation}")
        elif tags.kind is Kind.RESOLVED:
            at.resolved = max(at.resolved, tags.t)
        elif tags.kind is Kind.DDL:
            self._ddl(at, tags)
        elif tags.kind is Kind.ALIGN:
            self._align(at, tags)
        elif tags.kind is Kind.ROW:
            self._row(at, tags, message)

    def _check_number(self, at: _Partition, tags: Tags, offset: int) -> None:
        if at.n is None:
            # The head may have been cut by the topic's retention.
            at.n = tags.n - (tags.kind in COUNTED)
            at.is_cut = at.n > 0
            if at.is_cut:
                at.since = tags.t
                self.report.begins.append((at.number, offset, tags.n))
        wanted = at.n + (tags.kind in COUNTED)
        if tags.n < wanted:
            raise _Wrong(f"rule 1.2: n is {tags.n} again, {wanted} follows")
        if tags.n > wanted:
            raise _Wrong(f"a message is missing: n is {tags.n}, {wanted} follows")
        at.n = tags.n

    def _check_claim(self, tags: Tags) -> None:
        if tags.claim:
            self.report.claims += 1
            try:
                self._fetcher.get(tags.claim)
            except (Terminal, Transient) as error:
                raise _Wrong(f"its value cannot be had: {error.message}") from None

    def _admin(self, at: _Partition, tags: Tags, message: Any) -> None:
        try:
            generation, partitions, _ = read_admin(message.value())
        except Terminal:
            # Of another format: the header says the generation, and the count is not known.
            generation, partitions = tags.generation, 0
        if generation <= at.generation:
            raise _Wrong(f"Admin of generation {generation}, behind {at.generation}")
        known = self._counts.setdefault(generation, partitions)
        if known != partitions:
            raise _Wrong(f"generation {generation} has {partitions} partitions here, {known} elsewhere")
        at.generation = generation
        self.report.generations = max(self.report.generations, generation)

    def _check_time(self, at: _Partition, tags: Tags) -> None:
        if not at.generation and not at.is_cut:
            raise _Wrong("no Admin stands before it")
        if tags.t <= at.resolved:
            raise _Wrong(f"rule 2.2: its time is {tags.t}, and Resolved({at.resolved}) was before it")
        # The same place again is none: one change may be several messages (parts, a tombstone, a key change).
        if (tags.t, tags.seq) < at.place:
            raise _Wrong(f"rule 1.3: its place is {tags.t}/{tags.seq}, behind {at.place[0]}/{at.place[1]}")
        at.place = (tags.t, tags.seq)

    def _ddl(self, at: _Partition, tags: Tags) -> None:
        self._check_time(at, tags)
        at.ddl = tags.t
        self._check_part(at, tags)
        self.report.ddl += tags.part is None or tags.part[0] == 0
        self._ddls.setdefault(tags.generation, {}).setdefault(tags.t, set()).add(at.number)

    def _align(self, at: _Partition, tags: Tags) -> None:
        """Behind the tail of a run that died there may be one below the last one."""
        self.report.aligns += 1
        at.aligned = max(at.aligned, (tags.t, tags.seq))
        of_generation = self._aligned.setdefault(tags.generation, {})
        of_generation[at.number] = max(of_generation.get(at.number, (0, 0)), (tags.t, tags.seq))

    def _row(self, at: _Partition, tags: Tags, message: Any) -> None:
        self._check_time(at, tags)
        if tags.t < at.ddl:
            raise _Wrong(f"rule 2.3: its time is {tags.t}, and DDL({at.ddl}) was before it")
        # An Align has twice the number of the row that it stands before, or one more (conflicts.py).
        if (tags.t, 2 * tags.seq + 1) < at.aligned:
            raise _Wrong(f"rule 2.5: its place is {tags.t}/{tags.seq}, and Align{at.aligned} was before it")
        count = self._counts.get(tags.generation)
        if count and at.number >= count:
            raise _Wrong(f"rule 1.1: generation {tags.generation} has {count} partitions")
        self._check_part(at, tags)
        self.report.rows += tags.part is None or tags.part[0] == 0
        if tags.part is None and self.report.are_keys_checked:
            self._check_key(at, tags, message)

    def _check_part(self, at: _Partition, tags: Tags) -> None:
        wanted = None if at.part is None or at.part[0] + 1 == at.part[1] else (at.part[0] + 1, at.part[1])
        if wanted is not None and tags.part != wanted:
            raise _Wrong(f"part {wanted[0]} of {wanted[1]} is missing")
        at.part = tags.part

    def _check_key(self, at: _Partition, tags: Tags, message: Any) -> None:
        change = read_row(message.key(), message.value())
        image = change.after or change.before or {}
        key = [f"{name}={cell.value!r}" for name, cell in image.items() if cell.is_unique]
        if not key:
            return
        # Behind a DDL its key may be another one, or compared otherwise.
        words = f"{tags.generation}|{at.ddl}|{change.schema}|{change.table}|{'|'.join(key)}"
        # Among 4,000,000 keys two get one digest of eight bytes in one topic of two million.
        digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        where = self._keys.setdefault(digest, at.number)
        if where != at.number:
            raise _Wrong(f"rule 1.1: row {', '.join(key)} of {change.schema}.{change.table} is in {where}, too")
        if len(self._keys) > _MOST_KEYS:
            self._keys.clear()
            self.report.are_keys_checked = False

    def end(self) -> Report:
        """When all partitions were read. Raises Broken."""
        self._check_ddls()
        self._check_aligns()
        # Those that were left idle by a scaling get no Resolved any more.
        current = [at.resolved for at in self._ends if at.number < self._counts.get(self.report.generations, 0)]
        self.report.resolved = min(current, default=None)
        return self.report

    def _owed(self, generation: int, t: int) -> Iterator[_Partition]:
        """In which has to be what stands at t in all partitions of a generation. Each is judged by itself.

        One that was read before it came need not have it; one that was left idle by a scaling gets no Resolved more.
        """
        for at in self._ends:
            is_past = at.generation > generation or at.resolved >= t
            if is_past and at.since < t and at.number < self._counts.get(generation, 0):
                yield at

    def _check_ddls(self) -> None:
        """2.4."""
        for generation, found in self._ddls.items():
            for t, partitions in found.items():
                for at in self._owed(generation, t):
                    if at.number not in partitions:
                        raise Broken(at.number, -1, f"rule 2.4: DDL({t}) of generation {generation} is missing there")

    def _check_aligns(self) -> None:
        """2.5."""
        for generation, found in self._aligned.items():
            highest = max(found.values())
            for at in self._owed(generation, highest[0]):
                if found.get(at.number, (0, 0)) < highest:
                    raise Broken(at.number, -1, f"rule 2.5: Align{highest} of generation {generation} is missing there")


class _Wrong(Exception):
    """In words."""


def check(
    address: Address,
    *,
    has_keys: bool = True,
    claims: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Report:
    """Raises Broken, Refused where there is no such topic, and what reading raises."""
    broker = Broker(address)
    topic = broker.find(address.topic)
    if topic is None:
        raise Refused(f"There is no topic {address.topic}.", cure="Check the address.")
    checker = Checker(has_keys=has_keys, fetcher=Fetcher(claims))
    for number in range(topic.partitions):
        low, _ = broker.bounds(topic.name, number)
        checker.partition(number, broker.behind(topic.name, {number: low}))
        note(f"Partition {number}: {checker.report.messages} messages so far.")
    return checker.end()
