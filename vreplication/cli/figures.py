"""Figures as a terminal says them: with a reason where one is not known. The numbers are those of the page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from vreplication.masking import mask
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot

_WAITING = "Waiting for "
_ENTRIES = 20
"""Of a journal, the newest: a screen has to hold them."""
_WITHOUT_ETA = frozenset({Phase.PLANNING, Phase.SWITCHED})


def phase(snapshot: Snapshot) -> str:
    """The phase in words, with its attributes."""
    words = str(snapshot.phase).replace("_", " ")
    return f"{words}, paused" if snapshot.is_paused and not snapshot.has_ended else words


def percent(value: float | None) -> str:
    return "–" if value is None else numbers.percent(value)


def rows(snapshot: Snapshot) -> str:
    """29.3M of about 48.1M rows."""
    done = numbers.short(snapshot.rows_copied)
    if snapshot.rows_total is None:
        return f"{done} rows"
    about = "" if snapshot.is_rows_total_exact else "~"
    # The total may be the server's estimate, which a copy can pass.
    return f"{done} of {about}{numbers.short(max(snapshot.rows_total, snapshot.rows_copied))} rows"


def per_second(value: float | None, unit: str) -> str:
    return "" if value is None else f"{numbers.short(value)} {unit}/s"


def eta(snapshot: Snapshot, now: float | None = None) -> str:
    """When it has ended, or is at the gate where it waits, by this machine's clock; else why that is not known."""
    seconds = snapshot.eta_seconds
    if snapshot.has_ended or snapshot.has_come_to_the_gate or snapshot.phase in _WITHOUT_ETA:
        return ""
    if seconds is None:
        return f"ETA {_why_unknown(snapshot)}"
    low, high = numbers.eta_range(snapshot) or (seconds, seconds)
    return " ".join(p for p in (_eta(seconds, numbers.between(low, high), now), numbers.eta_of(snapshot)) if p)


def _eta(seconds: float, between: str, now: float | None) -> str:
    if seconds < 120:
        about = f"{seconds:.0f} s"
        return f"ETA {about}" if between in (about, numbers.duration(seconds)) else f"ETA {about} ({between})"
    at = time.localtime((time.time() if now is None else now) + seconds)
    day = "%a %H:%M" if seconds > 43_200 else "%H:%M"
    return f"ETA {time.strftime(day + ' %Z', at)} (in {between})"


def _why_unknown(snapshot: Snapshot) -> str:
    if snapshot.is_paused:
        return "when it is resumed"
    if snapshot.eta_reason and snapshot.waiting_for and snapshot.eta_reason.endswith(snapshot.waiting_for):
        # `notes` says what for.
        return "none"
    return f"none: {snapshot.eta_reason}" if snapshot.eta_reason else "not known yet"


def catch_up(snapshot: Snapshot) -> str:
    """1,204 changes/s · lag 0.4 s · backlog 310."""
    parts = [per_second(snapshot.applied_per_second, "changes")]
    if snapshot.lag_seconds is not None:
        parts.append(f"lag {numbers.duration(snapshot.lag_seconds)}")
    if snapshot.backlog is not None:
        parts.append(f"backlog {numbers.short(snapshot.backlog)}")
    return " · ".join(p for p in parts if p)


def verified(snapshot: Snapshot) -> str:
    """How much, and how long ago while that matters: it is repeated as long as the workflow is held at the gate."""
    ago = snapshot.verified_seconds_ago if snapshot.phase is Phase.WAITING else None
    rows = f"{numbers.short(snapshot.verify_rows)} rows compared" if snapshot.verify_rows else ""
    return " · ".join(p for p in (rows, "" if ago is None else f"{numbers.duration(ago)} ago", _since(snapshot)) if p)


def _since(snapshot: Snapshot) -> str:
    """Keys written since, which are compared until the cut-over."""
    if snapshot.keys_since is None or snapshot.phase is not Phase.WAITING:
        return ""
    return f"{numbers.short(snapshot.keys_since)} keys since"


def notes(snapshot: Snapshot) -> list[str]:
    """What holds it up, most pressing first."""
    return [
        text for text in (numbers.silence(snapshot), _held(snapshot), _behind(snapshot), _waiting(snapshot)) if text
    ]


def _held(snapshot: Snapshot) -> str:
    if snapshot.is_cancel_requested and not snapshot.has_ended:
        return "being cancelled"
    if snapshot.is_paused and not snapshot.has_ended:
        return f"paused (resume with: vreplication resume {snapshot.workflow})"
    return f"throttled: {snapshot.throttled}" if snapshot.throttled else ""


def _behind(snapshot: Snapshot) -> str:
    return f"catch-up: {snapshot.behind}" if snapshot.behind else ""


def _waiting(snapshot: Snapshot) -> str:
    text = snapshot.waiting_for
    if not text or snapshot.has_ended:
        return ""
    return f"waiting for {text.removeprefix(_WAITING)}" if text.startswith(_WAITING) else f"waiting for: {text}"


def entry(told: Mapping[str, Any]) -> dict[str, str | None]:
    """A journal's, as JSON has it."""
    at = f"{told['at']:%Y-%m-%dT%H:%M:%SZ}"
    return {"at": at, "event": told["event"], "actor": told["actor"], "details": told["details"] or None}


def journal(told: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The newest entries; nothing where there are none."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for each in told[-_ENTRIES:]:
        words = ": ".join(filter(None, [each["event"], each["details"]]))
        grid.add_row(Text(f"{each['at']:%Y-%m-%d %H:%M:%S} UTC"), Text(mask(words)), Text(f"by {mask(each['actor'])}"))
    earlier = max(0, len(told) - _ENTRIES)
    grid.title = f"Journal, without {earlier} earlier entries" if earlier else "Journal"
    grid.title_justify = "left"
    return [grid] if told else []
