"""Which run writes which interval of a table: named locks of the target's server, all held by one session of the run.

A server tells of a named lock whether it is held and by whom, and no more. So a run takes one of the table's numbered
places, and says in locks of that place, two names for each bit, which interval it writes.

What must stay true: of two runs whose intervals of one table overlap at most one has its place; a slice is committed
only while its run has the place, and the run's step that began the slice is not over; all of it goes with the session,
so that a run that was killed holds up the next one for no longer than IDLE_SECONDS.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from vreplication.backfill.interval import Walls
from vreplication.backfill.tables import Tables
from vreplication.errors import LeaseHeld, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl

PATIENCE_SECONDS = 900.0
"""How long a run waits for one whose interval overlaps."""
IDLE_SECONDS = 120
"""The server ends a session that has given no sign of life for so long, and with it the run's locks."""
_BEAT_SECONDS = 5.0
_PAUSE_SECONDS = 1
_PLACES = 64
"""Runs that write one table side by side."""
# 59 bits hold the microseconds from the year 1 to 9999 (3.2e17). With 16 two time columns of one table could be taken
# for the same, and be compared by their bounds: one in 65,536.
_BOUND_BITS, _COLUMN_BITS = 59, 16
_BITS = 2 * _BOUND_BITS + _COLUMN_BITS
_MICROSECOND = timedelta(microseconds=1)


class PlaceLost(Transient):
    """The run's session is gone, or its step is over: another run may be at work already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What a slice has to find before it commits. `holder`: the connection that has the lock `name`."""

    name: str
    holder: int

    def check(self, session: Session) -> None:
        """Raises PlaceLost. The rows that the slice wrote are locked: a run that begins behind this waits for them."""
        if session.value("SELECT IS_USED_LOCK(%s)", (self.name,)) != self.holder:
            raise PlaceLost("The run has lost its lock on the interval, and what this slice wrote is rolled back.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An interval of a table, by the values of a time column."""

    span: Walls
    column: int

    @classmethod
    def of(cls, tables: Tables, span: Walls) -> Claim:
        name = tables.time.target.name.lower()
        return cls(span=span, column=int(_digest(name)[: _COLUMN_BITS // 4], 16))

    def overlaps(self, other: Claim) -> bool:
        """By two columns a row may be in both intervals, whatever they are."""
        is_apart = self.span.high <= other.span.low or other.span.high <= self.span.low
        return self.column != other.column or not is_apart

    def bits(self) -> str:
        return (
            f"{_micros(self.span.low):0{_BOUND_BITS}b}{_micros(self.span.high):0{_BOUND_BITS}b}"
            f"{self.column:0{_COLUMN_BITS}b}"
        )

    @classmethod
    def read(cls, bits: str) -> Claim:
        low, high, column = bits[:_BOUND_BITS], bits[_BOUND_BITS : 2 * _BOUND_BITS], bits[2 * _BOUND_BITS :]
        return cls(span=Walls(low=_moment(low), high=_moment(high)), column=int(column, 2))


def _micros(moment: datetime) -> int:
    return (moment - datetime.min) // _MICROSECOND


def _moment(bits: str) -> datetime:
    return datetime.min + int(bits, 2) * _MICROSECOND


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The places of one table. Lock names have 64 characters at most and are known to the whole server."""

    session: Session
    name: str

    @property
    def _base(self) -> str:
        # A server may take two spellings of a table's name for the same.
        return f"vreplication.backfill.{_digest(self.name.lower())[:24]}"

    def claim(self, claim: Claim) -> str:
        """'' when a place was taken; else who is in the way."""
        if not self._take([self._list], _PAUSE_SECONDS):
            return "a run that begins just now"
        try:
            return self._claim(claim)
        finally:
            self._release([self._list])

    @property
    def _list(self) -> str:
        """Held by who looks for a place, for that long."""
        return f"{self._base}.list"

    def _claim(self, claim: Claim) -> str:
        holders = self._holders([self._place(number) for number in range(_PLACES)])
        for number, holder in enumerate(holders):
            words = self._in_the_way(claim, number, holder) if holder else ""
            if words:
                return words
        for number in (number for number, holder in enumerate(holders) if not holder):
            wanted = [self._place(number), *self._said(number, claim.bits())]
            if self._take(wanted, 0):
                return ""
            # The server keeps locks until the session ends: what was taken of a claim that failed would stand in
            # others' way.
            self._release(wanted)
        return f"{_PLACES} other runs"

    def _in_the_way(self, claim: Claim, number: int, holder: int) -> str:
        zeros = self._holders(self._said(number, "0" * _BITS))
        ones = self._holders(self._said(number, "1" * _BITS))
        found = list(zip(zeros, ones, strict=True))
        who = f"the backfill of connection {holder}"
        # A session that ends lets its locks go one by one.
        if not all({zero, one} == {holder, None} for zero, one in found):
            return f"{who}, which is just ending"
        other = Claim.read("".join("1" if one else "0" for _, one in found))
        if not claim.overlaps(other):
            return ""
        return f"{who}, which writes {other.span.low.isoformat()} to {other.span.high.isoformat()}"

    def _place(self, number: int) -> str:
        return f"{self._base}.{number}"

    def _said(self, number: int, bits: str) -> list[str]:
        # Two names a bit, for 0 and for 1: with one alone, a lock that a session which ends has let go already would
        # read as 0, and the claim as another interval.
        return [f"{self._place(number)}.{i}.{bit}" for i, bit in enumerate(bits)]

    def _holders(self, names: list[str]) -> list[int | None]:
        found = self.session.row(f"SELECT {','.join('IS_USED_LOCK(%s)' for _ in names)}", names)
        return [None if each is None else int(each) for each in found or ()]

    def _take(self, names: list[str], seconds: int) -> bool:
        # All in one statement, for a claim is 135 locks; GET_LOCK says 0 when the time is over and NULL when it failed.
        found = self.session.row(f"SELECT {','.join(f'GET_LOCK(%s,{seconds})' for _ in names)}", names)
        return set(found or ()) == {1}

    def _release(self, names: list[str]) -> None:
        self.session.row(f"SELECT {','.join('RELEASE_LOCK(%s)' for _ in names)}", names)


@dataclass(slots=True, kw_only=True)
class Place:
    """What a run has while it writes. A thread keeps its session alive: the run may wait for Spark for minutes."""

    session: Session
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    steps: int = 0
    lost: VReplicationError | None = None
    _holder: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def next_step(self) -> Fence:
        """From here on no slice of the step before is committed, as one that an executor has kept might be."""
        with self._turn:
            self._holder = self._holder or int(self.session.value("SELECT CONNECTION_ID()"))
            # The beat asks through this session from its own thread, and a connection bears one statement at a time
            # (`_turn`).
            before, self.steps = self._name, self.steps + 1
            # The name has a random token, so it is free and its lock never waited for.
            self.session.row("SELECT RELEASE_LOCK(%s),GET_LOCK(%s,0)", (before, self._name))
        return Fence(name=self._name, holder=self._holder)

    @property
    def _name(self) -> str:
        return f"vreplication.backfill.run.{self.token}.{self.steps}"

    def check(self) -> None:
        """Raises PlaceLost."""
        if self.lost is not None:
            raise PlaceLost(
                f"The session that held the lock on the interval is gone: {self.lost.message}", cure="Run it again."
            )

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        thread = threading.Thread(target=self._beat, name="backfill-place", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            # The beat may hang in a read of a server that does not answer; it is a daemon, and only asks.
            thread.join(1.0)

    def _beat(self) -> None:
        while not self._is_over.wait(_BEAT_SECONDS):
            try:
                with self._turn:
                    self.session.value("SELECT 1")
            except VReplicationError as error:
                # A new connection does not help: the locks went with the old one, and another run may have the interval
                # by now.
                self.lost = error
                return


@contextlib.contextmanager
def placed(
    target: SourceUrl, tables: Tables, span: Walls, pause: Callable[[float], None], notify: Callable[[str], None]
) -> Iterator[Place]:
    """The run's place, for the length of a block. Raises LeaseHeld when another run keeps it out too long."""
    # Where a host is cut off its connection stays open on the server, for hours by default, and with it the run's
    # locks.
    with connect(target, idle_seconds=IDLE_SECONDS) as session:
        table = f"{tables.mapping.target.schema}.{tables.mapping.target.name}"
        _wait(_Table(session=session, name=table), Claim.of(tables, span), pause, notify)
        place = Place(session=session)
        with place.alive():
            yield place


def _wait(table: _Table, claim: Claim, pause: Callable[[float], None], notify: Callable[[str], None]) -> None:
    until, told = time.monotonic() + PATIENCE_SECONDS, ""
    while words := table.claim(claim):
        if time.monotonic() >= until:
            raise LeaseHeld(
                f"Nothing was written: the interval is in use on {table.name}, by {words}.",
                cure="Wait until that has ended, or end it, then run this interval again.",
            )
        if words != told:
            notify(f"waiting for {words}")
        told = words
        pause(_PAUSE_SECONDS)
