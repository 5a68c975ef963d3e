"""The gate row (may a copy chunk start?) and the operator's release (may cut-over start?).

What must stay true: only the replicating process writes the gate row; a row older than GATE_STALE_SECONDS by the
server's clock counts as closed; a release is remembered whenever it comes, and only who gave it takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.dialects.mysql import insert as upsert

from vreplication.mysql.session import Session
from vreplication.settings import GATE_STALE_SECONDS, PAUSED, SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.lease import DRIVER, Lease, fence
from vreplication.state.sidecar import execute, now


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    is_open: bool
    reason: str


def write(session: Session, lease: Lease, *, is_open: bool, reason: str, beat: int) -> None:
    """Rewrite the gate row under the lease."""
    fields = {"is_open": int(is_open), "reason": reason[:255], "beat": beat, "written_at": now()}
    # Under the lease: a catch-up that wakes up behind a takeover could call the gate open while its successor is
    # behind.
    with session.transaction():
        fence(session, lease)
        rows.put(session, sidecar.gate, {"workflow": lease.workflow}, **fields)


def read(session: Session, workflow: str) -> GateState:
    """What the gate says now, staleness and the operator's pause included."""
    sql = (
        "SELECT g.is_open, g.reason, TIMESTAMPDIFF(MICROSECOND, g.written_at, NOW(6)) / 1e6, w.paused "
        f"FROM {SIDECAR}.workflow w LEFT JOIN {SIDECAR}.gate g ON g.workflow = w.id WHERE w.id=%s"
    )
    row = session.row(sql, (workflow,))
    if row is not None and row[3]:
        return GateState(is_open=False, reason=PAUSED)
    # F9b: nobody closes the gate of a catch-up that was killed; silence does. Else the copy would go on for hours with
    # nobody to apply what it makes necessary.
    if row is None or row[0] is None or float(row[2]) > GATE_STALE_SECONDS:
        return GateState(is_open=False, reason="catch-up is not running")
    return GateState(is_open=bool(row[0]), reason=str(row[1]))


def release(session: Session, workflow: str, by: str) -> None:
    fields = {"released_by": by[:255], "released_at": now()}
    rows.put(session, sidecar.gate_release, {"workflow": workflow}, **fields)


def release_first(session: Session, workflow: str, by: str) -> bool:
    """As `release`, unless somebody has. False: somebody has."""
    # IGNORE, so that a person who has released meanwhile stays the one who did.
    row = upsert(sidecar.gate_release).values(workflow=workflow, released_by=by[:255], released_at=now())
    return execute(session, row.prefix_with("IGNORE")) > 0


def withdraw(session: Session, workflow: str, by: str) -> bool:
    """Take back what `by` has released. False: it is somebody else's by now."""
    return rows.remove(session, sidecar.gate_release, workflow=workflow, released_by=by) > 0


def forget_release(session: Session, workflow: str) -> None:
    """What was released has been done."""
    rows.remove(session, sidecar.gate_release, workflow=workflow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """which: tells it from every other release of the workflow."""

    by: str
    which: str


def release_of(session: Session, workflow: str) -> Release | None:
    """The release that stands, or None."""
    row = rows.find(session, sidecar.gate_release, workflow=workflow)
    return Release(by=str(row["released_by"]), which=str(row["released_at"])) if row else None


def released_by(session: Session, workflow: str) -> str | None:
    """Who released the cut-over, or None."""
    found = release_of(session, workflow)
    return found.by if found else None


def unheeded_seconds(session: Session, workflow: str) -> float | None:
    """How long ago it was released, or the driver's lease was taken after that; None: it is not released."""
    sql = (
        "SELECT TIMESTAMPDIFF(MICROSECOND, GREATEST(r.released_at, COALESCE(l.taken_at, r.released_at)), NOW(6)) / 1e6 "
        f"FROM {SIDECAR}.gate_release r LEFT JOIN {SIDECAR}.lease l ON l.workflow = r.workflow AND l.role=%s "
        "WHERE r.workflow=%s"
    )
    row = session.row(sql, (DRIVER, workflow))
    return float(row[0]) if row else None
