"""How hard copying and verifying may work at the moment, and what others write meanwhile.

What must stay true: a pace that nobody has renewed for PACE_STALE_SECONDS holds nobody back; it is a courtesy, and
fences nothing.
"""

from __future__ import annotations

from typing import Any

from vreplication.mysql.session import Session
from vreplication.settings import PACE_STALE_SECONDS, SIDECAR, Pace
from vreplication.state import rows, sidecar
from vreplication.state.sidecar import now

FRESH = f"TIMESTAMPDIFF(MICROSECOND, p.written_at, NOW(6)) < {round(PACE_STALE_SECONDS * 1e6)}"
"""Is the row `p` of the table worth heeding?"""


def begin(session: Session, workflow: str, pace: Pace) -> None:
    """Make the row of a driver's run; what an earlier run knew of the base is kept."""
    write(session, workflow, pace, base=base(session, workflow), latency=None, is_first=True)


def write(
    session: Session,
    workflow: str,
    pace: Pace,
    *,
    base: float | None,
    latency: float | None,
    is_first: bool = False,
) -> None:
    """base, latency: seconds that a probe took before we worked, and takes now.

    Unless it is the first, the row has to be there: that of a workflow that is being forgotten does not come back.
    """
    figures = {"base_micros": _micros(base), "latency_micros": _micros(latency), "written_at": now()}
    how = {"effort": pace.effort, "tasks": pace.tasks, "chunk_millis": pace.chunk_millis}
    put = rows.put if is_first else rows.change
    put(session, sidecar.throttle, {"workflow": workflow}, **how, **figures)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def base(session: Session, workflow: str) -> float | None:
    """What a probe took before an earlier run of the workflow worked, seconds."""
    row = rows.find(session, sidecar.throttle, workflow=workflow)
    return row["base_micros"] / 1e6 if row and row["base_micros"] is not None else None


def of_row(effort: Any, tasks: Any, chunk_millis: Any) -> Pace | None:
    """From the columns of a fresh row; None: there is none."""
    return None if effort is None else Pace(effort=float(effort), tasks=int(tasks), chunk_millis=int(chunk_millis))


def write_traffic(session: Session, workflow: str, others_per_second: float) -> None:
    fields = {"others_per_second": others_per_second, "written_at": now()}
    rows.put(session, sidecar.traffic, {"workflow": workflow}, **fields)


def others_per_second(session: Session, workflow: str) -> float | None:
    """Transactions of others; None where catch-up does not run, or has not looked yet."""
    row = session.row(f"SELECT others_per_second FROM {SIDECAR}.traffic p WHERE workflow=%s AND {FRESH}", (workflow,))
    return None if row is None else float(row[0])
