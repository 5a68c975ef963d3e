"""Numbers as people read them, on a terminal and on the page: grouped thousands, units always.

What must stay true: a percentage is cut, not rounded, so that 100 means done; who has no number says so instead.
"""

from __future__ import annotations

from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot

STEPS = {
    Phase.PLANNING: "plan",
    Phase.PREPARING: "prepare",
    Phase.COPYING: "copy",
    Phase.CATCHING_UP: "catch-up",
    Phase.VERIFYING: "verify",
    Phase.WAITING: "gate",
    Phase.CUTTING_OVER: "cut-over",
}
"""The line of phases, in words."""
OF_A_MOVE = {Phase.SWITCHED: "way back"}
"""What follows where tables have moved to another server."""
_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def steps(phase: Phase, *, is_move: bool = False) -> dict[Phase, str]:
    """The line of phases for a workflow that is in this one."""
    return STEPS | OF_A_MOVE if is_move or phase in OF_A_MOVE else STEPS


def count(number: int) -> str:
    return f"{number:,}"


def short(number: float) -> str:
    """48,213 as 48.2k; below 10,000 in full."""
    for least, size, unit in _UNITS:
        if number >= least:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}"


def fine(number: float) -> str:
    """As `short`, but 0.4 is not 0."""
    return short(number) if number >= 10 or number == int(number) else f"{number:.1f}"


def percent(value: float) -> str:
    """99.96 is not 100."""
    return f"{int(value * 10) / 10:.1f} %"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def size(nbytes: int) -> str:
    """1.2 GB, of a thousand to the next unit, as disks are sold."""
    value, units = float(nbytes), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    while value >= 1000 and unit != "GB":
        value, unit = value / 1000, next(units)
    return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:,.1f} {unit}"


def between(low: float, high: float) -> str:
    """12–15 min; what may be over at any moment is up to so much."""
    first, last = duration(low), duration(high)
    if low < 1 < high:
        return f"up to {last}"
    number, _, unit = first.partition(" ")
    if first == last:
        return first
    return f"{number}–{last}" if last.split(" ")[1:] == [unit] else f"{first} to {last}"


def eta_range(seen: Snapshot) -> tuple[float, float] | None:
    """At the earliest and at the latest; None where there is no ETA."""
    low, high = seen.eta_low_seconds, seen.eta_high_seconds
    return None if seen.eta_seconds is None or low is None or high is None else (low, high)


def eta_of(seen: Snapshot) -> str:
    """What an ETA is of, where that is not the end."""
    return "to the gate" if seen.eta_of is Phase.WAITING else ""


def millis(value: float) -> str:
    return f"{value:,.0f} ms" if value < 10_000 else duration(value / 1000)


def silence(seen: Snapshot) -> str:
    """'' while somebody writes."""
    if not seen.is_silent or seen.updated_seconds_ago is None:
        return ""
    return f"no sign of life for {duration(seen.updated_seconds_ago)}"
