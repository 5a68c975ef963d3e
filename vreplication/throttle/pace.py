"""How hard to work beside an application that writes: steered by how long our own small commits take.

A probe is a commit of one row, four a second. The quickest tenth of them, over the last minute, says what a commit
takes without us (the base, as TCP Vegas takes it: Brakmo and Peterson, 1995): before the copy begins our own start is
what slows them down. While we work their mean may be `factor` times as long. Beyond that the pace falls, by the root
of how far it is beyond and by half at the most; below it rises again: a little each second (additive increase,
multiplicative decrease: Chiu and Jain, 1989). Well below the pace that was too much last time it rises by the room
that is left (as TCP below its threshold: Jacobson, 1988), so that a stumble of the server does not cost half a minute.
Where nobody else writes nobody waits, and we work as hard as we may.

What must stay true: pure, the clock is handed in; the pace is never 0, so that a workflow always gets on; latency that
stays although we hardly work is not ours, and becomes the base.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

from vreplication.settings import LEAST_EFFORT, Pace

LEAST_SECONDS = 0.003
"""Commits that are quicker than this hold nobody up, whatever they took before."""
OTHERS_PER_SECOND = 1.0
"""Transactions of others, from which on there is somebody to spare."""
BUSY_CHUNK_MILLIS = 60
"""A chunk is one commit, and everybody's commits queue behind it: beside writers it is this short, or shorter."""
LEAST_CHUNK_MILLIS = 20
_RISE, _STEEPEST = 0.05, 0.5
_WELL_BELOW = 0.75
"""Of the share that was too much last time: up to there it rises by the room that is left."""
# The second: a minute of four probes a second.
_WINDOW_SECONDS, _BASE_SAMPLES = 3.0, 240
_QUICKEST = 0.1
_REBASE_SECONDS = 15.0
_CLEARLY = 0.2


@dataclass(slots=True, kw_only=True)
class Pacer:
    """Tell it each probe with `took`, and ask `decide` once a second. factor 0: never held back.

    base: seconds that a probe takes without us; None until it is known.
    """

    factor: float
    base: float | None = None
    share: float = 0.5
    _probes: deque[tuple[float, float]] = field(default_factory=deque)
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=_BASE_SAMPLES))
    _slowest_since: float | None = None
    _tasks: int = 0
    _too_much: float = 1.0
    _is_falling: bool = False

    def took(self, now: float, seconds: float, *, is_working: bool) -> None:
        """A probe has taken so long; is_working: copying or verifying was under way."""
        self._seen.append(seconds)
        quickest = sorted(self._seen)[int(len(self._seen) * _QUICKEST)]
        # Never up while we work: that may be us.
        self.base = min(self.base or quickest, quickest) if is_working else quickest
        if not is_working:
            self._probes.clear()
            return
        self._probes.append((now, seconds))
        while now - self._probes[0][0] > _WINDOW_SECONDS:
            self._probes.popleft()

    @property
    def latency(self) -> float | None:
        """Mean of the last seconds' probes while working, but for the slowest quarter: pauses of a disk or of a log.

        MySQL 9.7 on two cores makes all commits wait for 0.1 s now and then while much redo is written, however gently
        (measured: not so with innodb_log_writer_threads=ON).
        """
        found = sorted(seconds for _, seconds in self._probes)
        return fmean(found[: -(-3 * len(found) // 4)]) if found else None

    @property
    def bound(self) -> float:
        """What the mean may be, seconds."""
        return max(self.factor * (self.base or 0.0), LEAST_SECONDS)

    def decide(self, now: float, others_per_second: float | None, *, tasks: int, chunk_millis: int) -> Pace:
        """The pace from now on; `tasks`, `chunk_millis`: the most that is allowed. others None: nobody knows yet."""
        # Not known yet counts as somebody: until catch-up has counted the writers we hold back.
        if not self.factor or (others_per_second is not None and others_per_second < OTHERS_PER_SECOND):
            self._slowest_since, self._tasks = None, tasks
            return Pace(effort=float(tasks), tasks=tasks, chunk_millis=chunk_millis)
        if self.latency is not None:
            self._steer(now, self.latency)
        longest = min(chunk_millis, BUSY_CHUNK_MILLIS)
        # Down to half of the full pace there are fewer tasks and longer rests; below it chunks become shorter, too.
        millis = max(min(longest, LEAST_CHUNK_MILLIS), round(longest * min(1.0, 2 * self.share)))
        effort = max(LEAST_EFFORT, self.share) * tasks
        return Pace(effort=effort, tasks=self._seats(effort, tasks), chunk_millis=millis)

    def _seats(self, effort: float, most: int) -> int:
        """One less as soon as fewer will do, one more when that is clearly short: a task costs a moment to start."""
        known = min(self._tasks or most, most)
        self._tasks = max(1, min(most, ceil(effort) if effort <= known - 1 or effort > known + _CLEARLY else known))
        return self._tasks

    def _steer(self, now: float, latency: float) -> None:
        if (load := latency / self.bound) <= 1.0:
            self._rise(load)
            return
        if not self._is_falling:
            # Of a fall in several steps the share at which it began: a server answers late, so the lower ones may have
            # been borne.
            self._too_much, self._is_falling = self.share, True
        self.share = max(LEAST_EFFORT, self.share * max(_STEEPEST, load**-0.5))
        # What was seen under the pace before says nothing of this one.
        self._probes.clear()
        if self.share > LEAST_EFFORT:
            self._slowest_since = None
        elif self._slowest_since is None:
            self._slowest_since = now
        elif now - self._slowest_since >= _REBASE_SECONDS:
            # Of the time before that nothing counts any more.
            self.base, self._slowest_since = latency, None
            self._seen = deque((latency,), maxlen=_BASE_SAMPLES)

    def _rise(self, load: float) -> None:
        """A server answers a step late, and the probes of three seconds later still: large steps stop in good time."""
        self._slowest_since, self._is_falling = None, False
        room = min(self.share * (1.0 - load), _WELL_BELOW * self._too_much - self.share)
        self.share = min(1.0, self.share + max(_RISE, room))


def spared(pace: Pace, nice_ratio: float, *, is_held: bool = False) -> Pace:
    """The same, with rests of nice_ratio times the work at the least."""
    effort = min(pace.effort, pace.tasks / (1.0 + nice_ratio))
    return Pace(effort=effort, tasks=pace.tasks, chunk_millis=pace.chunk_millis, is_held=is_held)
