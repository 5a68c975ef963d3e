"""Numbers as people read them: grouped thousands, units always, and a reason where a figure is not known."""

from __future__ import annotations

import time

from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot

_UNITS = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def count(number: int) -> str:
    return f"{number:,}"


def short(number: float) -> str:
    """48,213 as 48.2k; below 10,000 in full."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:,.0f}"


def phase(snapshot: Snapshot) -> str:
    """The phase in words, with its attributes."""
    words = str(snapshot.phase).replace("_", " ")
    return f"{words}, paused" if snapshot.is_paused and not snapshot.has_ended else words


def percent(value: float | None) -> str:
    """Cut, not rounded: 99.96 is not 100."""
    return "–" if value is None else f"{int(value * 10) / 10:.1f} %"


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


def millis(value: float) -> str:
    return f"{value:,.0f} ms" if value < 10_000 else duration(value / 1000)


def rows(snapshot: Snapshot) -> str:
    """29.3M of about 48.1M rows."""
    done = short(snapshot.rows_copied)
    if snapshot.rows_total is None:
        return f"{done} rows"
    about = "" if snapshot.is_rows_total_exact else "~"
    return f"{done} of {about}{short(max(snapshot.rows_total, snapshot.rows_copied))} rows"


def per_second(value: float | None, unit: str) -> str:
    return "" if value is None else f"{short(value)} {unit}/s"


def eta(snapshot: Snapshot, now: float | None = None) -> str:
    """When rows are copied and catch-up is level, by this machine's clock; else why that is not known."""
    seconds = snapshot.eta_seconds
    if snapshot.has_ended or snapshot.phase not in (Phase.COPYING, Phase.CATCHING_UP):
        return ""
    if seconds is None:
        return f"ETA {_why_unknown(snapshot)}"
    if seconds < 120:
        return f"ETA {seconds:.0f} s, then verification"
    at = time.localtime((time.time() if now is None else now) + seconds)
    day = "%a %H:%M" if seconds > 43_200 else "%H:%M"
    return f"ETA {time.strftime(day + ' %Z', at)} (in {duration(seconds)}), then verification"


def _why_unknown(snapshot: Snapshot) -> str:
    if snapshot.is_paused:
        return "when it is resumed"
    if snapshot.converging is False:
        return "none: writes come faster than they are applied"
    return "not known yet"


def catch_up(snapshot: Snapshot) -> str:
    """1,204 changes/s · lag 0.4 s · backlog 310."""
    parts = [per_second(snapshot.applied_per_second, "changes")]
    if snapshot.lag_seconds is not None:
        parts.append(f"lag {duration(snapshot.lag_seconds)}")
    if snapshot.backlog is not None:
        parts.append(f"backlog {short(snapshot.backlog)}")
    return " · ".join(p for p in parts if p)


def verified(snapshot: Snapshot) -> str:
    """How much, and how long ago while that matters: it is repeated as long as the workflow is held at the gate."""
    ago = snapshot.verified_seconds_ago if snapshot.phase is Phase.WAITING else None
    rows = f"{short(snapshot.verify_rows)} rows compared" if snapshot.verify_rows else ""
    return " · ".join(p for p in (rows, "" if ago is None else f"{duration(ago)} ago") if p)


def notes(snapshot: Snapshot) -> list[str]:
    """What holds it up, most pressing first."""
    return [text for text in (_silence(snapshot), _held(snapshot), _waiting(snapshot)) if text]


def _silence(snapshot: Snapshot) -> str:
    if not snapshot.is_silent or snapshot.updated_seconds_ago is None:
        return ""
    return f"no sign of life for {duration(snapshot.updated_seconds_ago)}"


def _held(snapshot: Snapshot) -> str:
    if snapshot.is_cancel_requested and not snapshot.has_ended:
        return "being cancelled"
    if snapshot.is_paused and not snapshot.has_ended:
        return f"paused (go on with: vreplication resume {snapshot.workflow})"
    return f"throttled: {snapshot.throttled}" if snapshot.throttled else ""


def _waiting(snapshot: Snapshot) -> str:
    return f"waiting for: {snapshot.waiting_for}" if snapshot.waiting_for and not snapshot.has_ended else ""
