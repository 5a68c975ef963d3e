"""How much longer workflows will take, as their drivers foretell it, and how long the parts of earlier ones took.

What must stay true: paces outlive the workflows that they are of, and are bounded in number; whoever reads gets nothing
where a sidecar of an earlier release has no such table, or the user may not read it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vreplication.mysql.session import Session, SqlError
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.sidecar import now

_MOST_LETTERS = 255
KEPT = 400
"""Paces in all, newest first: some fifty workflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One part of an earlier workflow. units: rows, weighted by their width; write_rate: None: not known."""

    part: str
    source_name: str
    units: float
    seconds: float
    write_rate: float | None = None


def write(session: Session, workflow: str, *, eta_reason: str | None = None, **columns: Any) -> None:
    """Columns of the forecast row. That of a workflow that has been forgotten meanwhile does not come back."""
    columns["eta_reason"] = eta_reason and eta_reason[:_MOST_LETTERS]
    with session.transaction():
        # Whoever forgets it waits for us here, and removes this row after the workflow's own.
        sql = f"SELECT 1 FROM {SIDECAR}.workflow WHERE id=%s LOCK IN SHARE MODE"
        if session.row(sql, (workflow,)) is not None:
            rows.put(session, sidecar.forecast, {"workflow": workflow}, **columns, written_at=now())


def read(session: Session, workflow: str | None = None) -> dict[str, dict[str, Any]]:
    """The forecast rows by workflow, each with its age by the server's clock."""
    where, args = (" WHERE f.workflow=%s", (workflow,)) if workflow is not None else ("", ())
    sql = (
        "SELECT f.*, TIMESTAMPDIFF(MICROSECOND, f.written_at, NOW(6)) / 1e6 AS age, "
        "r.workflow IS NOT NULL AS is_released "
        f"FROM {SIDECAR}.forecast f LEFT JOIN {SIDECAR}.gate_release r ON r.workflow = f.workflow{where}"
    )
    try:
        found = session.named_rows(sql, args)
    except SqlError:
        return {}
    return {str(row["workflow"]): row | {"age": float(row["age"])} for row in found}


def note_pace(session: Session, workflow: str, pace: Pace) -> None:
    """And forget those beyond the newest."""
    rows.add(session, sidecar.pace, workflow=workflow, **asdict(pace), noted_at=now())
    newest = session.value(f"SELECT MAX(id) FROM {SIDECAR}.pace")
    session.execute(f"DELETE FROM {SIDECAR}.pace WHERE id <= %s", (int(newest) - KEPT,))


def paces(session: Session) -> list[Pace]:
    """Newest first."""
    sql = f"SELECT part, source_name, units, seconds, write_rate FROM {SIDECAR}.pace ORDER BY id DESC LIMIT {KEPT}"
    try:
        return [Pace(**row) for row in session.named_rows(sql)]
    except SqlError:
        return []
