"""The watermark: the one place that knows how far we are.

Two numbers, times of the source server's clock in microseconds. `received`: everything that the source committed up to
here has been read. `resolved`: everything up to here has been applied.

The structure is that of TiKV's design "Large transactions don't block watermark". A transaction that is being worked on
holds `resolved` below its commit time. One that may commit at any time later is tracked apart, as one small entry
however many rows it has; its min-commit time is "after everything that this source has shown", which every event and
heartbeat renews for all of them together, so it holds nothing. On a binary log only a prepared XA branch is of the
second kind: every other transaction appears whole, at its commit. What has no meaning here: locks by key and their
start times; a primary key to be asked (the log itself answers); regions (docs/concepts.md).

Times are assigned: strictly increasing in the order of the log, whatever clocks do (they step, MariaDB tells whole
seconds, `SET timestamp` forges them), never later than the server's present time, and stored with the checkpoint. The
gate row that the replicating process rewrites every 250 ms and reads back from the log carries the server's exact time,
so an idle source moves on as well. Where the server's clock is set back, times stand still until it has come up again;
then the lag is what our own beats have been under way (`Beats`). Set forward, it counts as lag until the next beat.

What must stay true: no number goes backwards; `resolved` never passes `received`, is below the time of everything that
has not been applied, and strictly below the min-commit time of every tracked branch; tracking twice or settling what is
not tracked changes nothing; memory is a few numbers for each table that is behind and each branch. Gate, lag, ETA,
checkpoint and verification read it from here only. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from vreplication.binlog.events import Extent
from vreplication.changes.beats import Beats
from vreplication.changes.stream import FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A transaction that is being applied: of how many changes so many are done."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """lag_seconds: None before the first beat has been applied. backlog: changes read and not yet applied.

    inside: of the transaction that is being applied; unread: of one whose end has not been read.
    """

    received_micros: int | None
    resolved_micros: int | None
    backlog: int
    lag_seconds: float | None
    inside: Inside | None = None
    unread: Extent | None = None


class WatermarkAdvancer:
    """Times of one source. Not thread-safe by itself. assigned: the last time given out before a restart."""

    def __init__(self, assigned: int = 0) -> None:
        self.assigned = assigned
        self._now: int | None = None
        self._received: int | None = None
        self._taken: int | None = None
        self._behind: dict[Hashable, tuple[int, int]] = {}
        """Table → first and last time of what has been taken and is not applied."""
        self._branches: set[Hashable] = set()
        self._resolved: dict[Hashable, int] = {}

    def rewind(self) -> None:
        """The log is read again from the checkpoint: what has been taken and not applied comes once more.

        It gets its times once more, too: later ones would say, when the first of it is applied, that all of it is.
        """
        # Asked for first, because the answer is remembered: no later one may be lower.
        self.resolved()
        self.assigned = 0
        self._taken = None
        self._behind.clear()

    def server_time(self, micros: int) -> None:
        """The server's clock, read on a connection: nothing can have been committed later."""
        self._now = max(micros, self._now or micros)

    def assign(self, micros: int) -> int:
        """A time for the next transaction of the log, which says `micros` of itself."""
        # From a time in the future (SET timestamp) all later ones would be counted up, and none of them would say how
        # far behind we are until the clock has passed it.
        self.assigned = max(self.assigned + 1, micros if self._now is None else min(micros, self._now))
        return self.assigned

    def shown(self, micros: int) -> None:
        """The source has shown everything up to here: by a transaction or by a heartbeat."""
        at = micros if self._now is None else min(micros, self._now)
        self._received = max(at, self._received or at)

    def track(self, branch: Hashable) -> None:
        """A branch that may commit at any time after what has been shown."""
        self._branches.add(branch)

    def settle(self, branch: Hashable) -> None:
        """Its outcome is known."""
        self._branches.discard(branch)

    @property
    def min_commit(self) -> int | None:
        """No tracked branch commits before this; one number for all of them."""
        return None if not self._branches or self._received is None else self._received + 1

    def begin(self, time: int, tables: Iterable[Hashable]) -> None:
        """A transaction that changes these tables is about to be applied."""
        for table in tables:
            first, _ = self._behind.get(table, (time, time))
            self._behind[table] = (first, time)

    def took(self, time: int) -> None:
        """Everything up to here, of all tables, has been begun or needs nothing."""
        self._taken = max(time, self._taken or time)
        self.shown(time)

    def applied(self, table: Hashable, up_to: int) -> None:
        """Everything of this table up to here has been applied."""
        first, last = self._behind.get(table, (0, -1))
        if up_to >= last:
            self._behind.pop(table, None)
        elif up_to >= first:
            # The times in between are not remembered, for memory is two numbers a table: the next one is at least this.
            self._behind[table] = (up_to + 1, last)

    def received(self) -> int | None:
        return self._received

    def resolved(self, table: Hashable | None = None) -> int | None:
        """Of one table; None: of the source, which is the least of its tables."""
        if self._taken is None:
            # Behind `rewind`: what was said to be applied before stays said until something is taken again.
            return self._resolved.get(table)
        firsts = [first for of, (first, _) in self._behind.items() if table is None or of == table]
        bounds = [self._taken, *(first - 1 for first in firsts)]
        if self._received is not None:
            # And so strictly below `min_commit`, which is the next moment after what has been shown.
            bounds.append(self._received)
        self._resolved[table] = max(min(bounds), self._resolved.get(table, 0))
        return self._resolved[table]


class Watermark:
    """How far catch-up of one workflow is: its source's times, and counts of changes."""

    def __init__(self, assigned: int = 0) -> None:
        self._lock = threading.Lock()
        self._source = WatermarkAdvancer(assigned)
        self._beats = Beats()
        self._whole = assigned
        self._queued = 0
        self._inside: Inside | None = None
        self._unread: Extent | None = None
        self.applied = 0

    @property
    def assigned(self) -> int:
        """To be stored with the checkpoint: of the last transaction that was taken whole.

        One that is being taken in parts is read again after a restart, and gets its time again.
        """
        return self._whole

    @property
    def resolved(self) -> int | None:
        """Everything up to here has been applied."""
        with self._lock:
            return self._source.resolved()

    def received_changes(self, count: int) -> None:
        """`count` changes have been read and wait to be applied."""
        with self._lock:
            self._queued += count

    def applied_changes(self, count: int) -> None:
        with self._lock:
            self._queued -= count
            self.applied += count

    def forget_queued(self) -> None:
        """The reader starts again from the checkpoint, with whose time `go_on_from` is called: all behind it is read
        once more."""
        with self._lock:
            self._source.rewind()
            self._queued = 0
            self._inside = self._unread = None
            self._beats.forget()

    def go_on_from(self, assigned: int) -> None:
        """The last time that was stored with the checkpoint."""
        with self._lock:
            self._source.assigned = max(assigned, self._source.assigned)
            self._whole = self._source.assigned

    def server_time(self, micros: int) -> None:
        """The source's clock at this moment: nothing that it has shown is newer."""
        with self._lock:
            self._source.server_time(micros)

    def shown(self, micros: int) -> None:
        """The reader has come to this time: that of a transaction, or of a beat in it."""
        with self._lock:
            self._source.shown(micros)

    def track(self, branch: Hashable) -> None:
        with self._lock:
            self._source.track(branch)

    def settle(self, branch: Hashable) -> None:
        with self._lock:
            self._source.settle(branch)

    def begin(self, micros: int) -> int:
        """A transaction that says `micros` of itself is about to be applied; returns the time that it gets."""
        with self._lock:
            time = self._source.assign(micros)
            # As one table, however many a stream has: one applier writes all of them, under one checkpoint.
            self._source.begin(time, (FIRST,))
            return time

    def took(self, time: int, beat_micros: int | None = None) -> int:
        """The transaction of this time has been taken whole; returns the time up to which all has."""
        with self._lock:
            # MariaDB tells its commits in whole seconds: by them alone the lag of a stream that is level would be up to
            # a second.
            if beat_micros is not None and beat_micros > self._source.assigned:
                time = self._source.assign(beat_micros)
            self._source.took(time)
            self._whole = self._source.assigned
            return time

    def resolve(self, time: int) -> None:
        """Everything up to here is written and committed at the target."""
        with self._lock:
            self._source.applied(FIRST, time)

    def write_beat(self, now: float) -> int:
        """The number of the beat that is about to be written; now: of the clock that `reading` is told."""
        with self._lock:
            return self._beats.write(now)

    def beat_applied(self, number: int) -> None:
        """Everything up to this beat is written and committed at the target."""
        with self._lock:
            self._beats.applied(number)

    def inside(self, inside: Inside | None) -> None:
        """Progress in a transaction of more than one part."""
        with self._lock:
            self._inside = inside

    def unread(self, extent: Extent | None) -> None:
        """How much of a transaction has been read; None: all of it."""
        with self._lock:
            self._unread = extent

    def reading(self, server_micros: int, now: float | None = None) -> Reading:
        """Where we are at `server_micros` (source's clock); now: seconds of a clock that only goes forward."""
        with self._lock:
            self._source.server_time(server_micros)
            resolved = self._source.resolved()
            age = 0.0 if now is None else self._beats.age_seconds(now)
            lag = None if resolved is None else max(0.0, (server_micros - resolved) / 1e6, age)
            return Reading(
                received_micros=self._source.received(),
                resolved_micros=resolved,
                backlog=max(0, self._queued),
                lag_seconds=lag,
                inside=self._inside,
                unread=self._unread,
            )
