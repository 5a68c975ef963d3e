"""What an ETA is worth: what was said before.

What must stay true: pure, by the history's points alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from vreplication.state.history import MINUTE, SLOT_SECONDS, TEN_MINUTES, Point

RECENT = TEN_MINUTES + 2 * MINUTE
_LEAST_AGE = MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An earlier promise. at: UTC."""

    at: datetime
    seconds_ago: int


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
