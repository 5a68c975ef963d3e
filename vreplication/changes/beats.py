"""Our own beats that are under way through the log: how long the oldest of them has been is how far behind we are.

What must stay true: measured by a clock that is never set, so that it holds where the server's is (a clock that was set
back ten minutes would call us level for ten minutes); a beat of another process counts for nothing; memory is bounded,
at the price of one part in a thousand.
"""

from __future__ import annotations

import secrets
from collections import deque
from datetime import UTC, datetime
from typing import Any

_MOST = 2_000
_RUN_BITS = 32
"""Of a number the lower ones count; those above are drawn, and tell whose it is."""


def beat_micros(row: dict[str, Any]) -> int:
    """When a gate row was written ('2026-01-02 03:04:05.123456', UTC): microseconds since the epoch."""
    moment = datetime.fromisoformat(str(row["written_at"])).replace(tzinfo=UTC)
    # Not of the whole as a float: it has 53 bits, and a product may be a microsecond off.
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


class Beats:
    """Not thread-safe."""

    def __init__(self) -> None:
        # 30 bits, so that the whole number fits into the gate's BIGINT, which has a sign.
        self._last = secrets.randbits(30) << _RUN_BITS
        self._under_way: deque[tuple[int, float]] = deque()

    def write(self, now: float) -> int:
        """The number of a beat that is about to be written. now: seconds of a clock that only goes forward."""
        self._last += 1
        if len(self._under_way) >= _MOST:
            # The oldest stays, by which the age is told.
            self._under_way = deque(list(self._under_way)[::2])
        self._under_way.append((self._last, now))
        return self._last

    def applied(self, number: int) -> None:
        """It has come back, and everything before it has been applied."""
        while number >> _RUN_BITS == self._last >> _RUN_BITS and self._under_way and self._under_way[0][0] <= number:
            self._under_way.popleft()

    def forget(self) -> None:
        """Reading starts again: what has been written will come, but nobody can say what of it has come already."""
        self._under_way.clear()

    def age_seconds(self, now: float) -> float:
        """Of the oldest that is under way; 0.0: none is."""
        return now - self._under_way[0][1] if self._under_way else 0.0
