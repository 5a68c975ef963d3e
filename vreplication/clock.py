"""Time as a value that is handed in, so that a test can own it.

What must stay true: durations are measured on the monotonic clock; times that two machines compare come from the
database server, never from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes backwards."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = SystemClock()
_STEP_SECONDS = 0.05


def check_for(check: Callable[[], None], seconds: float, clock: Clock = SYSTEM) -> None:
    """Call `check`, which may raise, again and again for so long."""
    until = clock.monotonic() + seconds
    check()
    while clock.monotonic() < until:
        clock.sleep(_STEP_SECONDS)
        check()
