"""When a feed commits what it has sent: often enough for who waits, seldom enough for the log to be read meanwhile.

What must stay true: a commit that takes long is followed by time for the log; one that was slow for once holds up the
next early one no longer than others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

_IDLE_SECONDS = 1.0
# So early ones take a quarter of the time at the most: 1 of 1 + 3.
_LEAST_BETWEEN, _EARLY_BETWEEN = 0.5, 3.0
"""Between two commits, of the time that the first one took: when the second is due, and when it is an early one."""
# An interval of 50 ms says that latency matters more than CPU time: early ones take half of the time then.
_SHORT_SECONDS, _SHORT_BETWEEN = 0.1, 1.0
"""Of an interval so short: what is between two commits, of the time that the first one took."""
_REMEMBERED = 8


@dataclass(slots=True, kw_only=True)
class Due:
    """Of the next commit. rows_at: when rows that were sent are to be committed at the latest.

    early_at: where nothing more is there to be sent; idle_at: without any rows, to say how far all is sent.
    commit_seconds, gap_seconds: as of Settings.
    """

    commit_seconds: float
    gap_seconds: float
    rows_at: float = 0.0
    early_at: float = 0.0
    idle_at: float = 0.0
    _taken: float = 0.0
    """What a commit takes, about."""

    def plan(self, began: float) -> None:
        """The next commit is an interval behind the begin of the last one; slow ones leave time for the log.

        Where all that there is has been sent, nobody has to wait for that: commits take a quarter of the time then, or
        half of it where the interval is short.
        """
        now = time.monotonic()
        # Not above the interval: one commit of a minute, by a broker that was frozen, must not put the next off by half
        # of that.
        least = min(self.commit_seconds, (now - began) * _LEAST_BETWEEN)
        self.rows_at = max(began + self.commit_seconds, now + least)
        self._taken += (now - began - self._taken) / _REMEMBERED
        between = _SHORT_BETWEEN if self.commit_seconds <= _SHORT_SECONDS else _EARLY_BETWEEN
        gap = max(self.gap_seconds, self._taken * between)
        self.early_at = min(now + gap, self.rows_at)
        self.idle_at = now + _IDLE_SECONDS
