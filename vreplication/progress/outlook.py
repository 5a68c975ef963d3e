"""What an ETA is worth: its range, and what was said before.

What must stay true: pure, by the history's points alone; the range always holds the ETA itself; where the last minutes
say nothing there is no range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot
from vreplication.state.history import MINUTE, SLOT_SECONDS, TEN_MINUTES, Point

WINDOWS = (MINUTE, 2 * MINUTE, 5 * MINUTE, TEN_MINUTES)
"""The rate over each of these is taken to go on to the end: the best and the worst of them are the range."""
RECENT = TEN_MINUTES + 2 * MINUTE
_LEAST_AGE = MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An earlier promise. at: UTC."""

    at: datetime
    seconds_ago: int


def eta_range(seen: Snapshot, points: Sequence[Point]) -> tuple[float, float] | None:
    """Seconds from now: at the earliest, at the latest."""
    eta, total = seen.eta_seconds, seen.rows_total
    rates = [rate for rate in _rates(points) if rate > 0]
    if eta is None or total is None or not rates or seen.phase is not Phase.COPYING:
        return None
    least = seen.apply_eta_seconds or 0.0
    found = [max((total - seen.rows_copied) / rate, least) for rate in rates]
    return min(*found, eta), max(*found, eta)


def _rates(points: Sequence[Point]) -> list[float]:
    """Rows a second over the windows for which there are points."""
    if not points:
        return []
    last = points[-1]
    firsts = [_at(points, last.slot - window) for window in WINDOWS]
    known = [first for first in firsts if first is not None]
    return [(last.rows_copied - p.rows_copied) / ((last.slot - p.slot) * SLOT_SECONDS) for p in known]


def _at(points: Sequence[Point], slot: int) -> Point | None:
    """The point at a slot, or the one before, if that is near."""
    found = [point for point in points if slot - MINUTE // 2 <= point.slot <= slot]
    return found[-1] if found else None


def said_before(points: Sequence[Point]) -> Said | None:
    """About ten minutes ago; of a younger run what it said first, a minute ago or more."""
    if not points:
        return None
    last = points[-1].slot
    found = [p for p in points if p.eta_at is not None and _LEAST_AGE <= last - p.slot <= RECENT]
    if not found:
        return None
    best = min(found, key=lambda p: abs(last - p.slot - TEN_MINUTES))
    assert best.eta_at is not None
    return Said(at=best.eta_at, seconds_ago=(last - best.slot) * SLOT_SECONDS)
