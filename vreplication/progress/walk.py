"""Rows that are gone through, copied or compared: how many, how fast, and since when none came.

What must stay true: pure (the clock is handed in); what comes in lumps is not taken for standstill, and a stall that
something else is the reason of does not slow the pace.
"""

from __future__ import annotations

import math
from collections import deque

from vreplication.progress.paces import Guess

WINDOWS_SECONDS = (15.0, 60.0, 300.0, 600.0)
"""The pace over each of these is taken to go on to the end of its part: the best and the worst are its range."""
SHORT_STALL_SECONDS = 5.0
"""The copy yields to catch-up for a moment again and again, which is part of its pace; what is longer is not."""
_POINT_SECONDS = 5.0


class Walk:
    """is_cold: it has to get going, so the clock starts with the first rows."""

    def __init__(self, *, is_cold: bool) -> None:
        self._is_cold = is_cold
        self._amount = self._weight = 0.0
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._lumps = 0
        self.has_begun = False
        self._stood = 0.0
        self._points: deque[tuple[float, float]] = deque()
        self.seconds = 0.0
        """In which rows came, stalls aside."""

    @property
    def rows(self) -> float:
        """Done while we looked."""
        return 0.0 if self._first is None else self._last[1] - self._first[1]

    @property
    def done(self) -> float:
        return self._last[1]

    def observe(self, now: float, done: float, *, half_life: float, throttled: float) -> None:
        """throttled: of the time since the last look, the seconds in which nothing was allowed to come."""
        if self._first is None:
            self._first = self._last = (now, done)
            return
        self._stood += throttled
        if done > self._last[1]:
            if self._is_cold and not self.has_begun:
                self._set_out(now, done)
            else:
                self._gain(now, done, half_life)
            self.has_begun, self._stood = True, 0.0
        if not self._points or now - self._points[-1][0] >= _POINT_SECONDS:
            self._points.append((now, done))
        while now - self._points[0][0] > WINDOWS_SECONDS[-1] + _POINT_SECONDS:
            self._points.popleft()

    def _set_out(self, now: float, done: float) -> None:
        self._first = self._last = (now, done)
        self._points.clear()

    def skip(self, seconds: float) -> None:
        """Time in which nobody was to work."""
        self._last = (self._last[0] + seconds, self._last[1])
        # Moved, not dropped: the windows reach back over the pause to the work before it.
        self._points = deque((at + seconds, done) for at, done in self._points)

    def _gain(self, now: float, done: float, half_life: float) -> None:
        seconds = max(0.0, now - self._last[0] - max(0.0, self._stood - SHORT_STALL_SECONDS))
        keep = math.exp2(-seconds / half_life)
        self._amount = self._amount * keep + done - self._last[1]
        self._weight = self._weight * keep + seconds
        self.seconds += seconds
        self._last, self._lumps = (now, done), self._lumps + 1

    def waited(self, now: float) -> float:
        """Since rows came last."""
        return 0.0 if self._first is None else max(0.0, now - self._last[0])

    def cost(self, guess: Guess, half_life: float, whole_seconds: float) -> float:
        """Seconds a row, leaning on the guess until there is enough of our own."""
        lean = min(0.4 / guess.spread**2, 8.0) * math.sqrt(max(1.0, whole_seconds / 60.0))
        lean *= math.exp2(-self.seconds / half_life)
        return (self._weight + lean) / (self._amount + lean / guess.seconds)

    def lump(self) -> float | None:
        """Seconds between two gains; None before the first."""
        return self.seconds / self._lumps if self._lumps else None

    def trust(self, guess: Guess) -> float:
        """How much of the guess's spread is left."""
        return guess.spread / math.sqrt(1.0 + self.seconds / 5.0)

    def costs(self, now: float) -> list[float]:
        """Seconds a row over the windows for which there are points."""
        found = [next((p for p in self._points if now - p[0] <= size), None) for size in WINDOWS_SECONDS]
        return [
            (now - p[0]) / (self.done - p[1])
            for p, size in zip(found, WINDOWS_SECONDS, strict=True)
            # A window that is longer than what was seen so far would repeat what a shorter one says.
            if p is not None and self.done > p[1] and now - p[0] > size - 2 * _POINT_SECONDS
        ]
