"""The progress row: what CLI, JSON and every page show, and nothing else.

What must stay true: written each second by those who do the work, each its own columns; a figure that is not known is
None, never 0; `percent` is of the copy and stays below 100 until the last chunk is matched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import TableClause, select, text
from sqlalchemy.sql.functions import func

from vreplication.masking import masked
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.phases import OVER
from vreplication.settings import SIDECAR
from vreplication.state import journal, rows, sidecar
from vreplication.state.sidecar import fetch, now

_t = sidecar.progress
_MOST_LETTERS = 255
_AGES = ("driver_age", "replicate_age", "verified_age")


def write_driver(session: Session, workflow: str, **columns: Any) -> None:
    """Columns of the driver: copy, verification, cut-over."""
    _write(session, workflow, {**columns, "driver_at": now()})


def write_replicate(session: Session, workflow: str, **columns: Any) -> None:
    """Columns of the replicating process: lag, backlog, rates, and in words what holds the copy back."""
    # A server's own words on why it cannot be asked may be longer: refused as too long, they would end catch-up.
    # Masked before: half a secret is not known for one.
    told = masked(columns)
    fitting = {name: value[:_MOST_LETTERS] if isinstance(value, str) else value for name, value in told.items()}
    _write(session, workflow, {**fitting, "replicate_at": now()})


def _write(session: Session, workflow: str, columns: dict[str, Any]) -> None:
    rows.put(session, _t, {"workflow": workflow}, **masked(columns))


def read(session: Session, workflow: str) -> dict[str, Any]:
    """The row by column name; {} when nothing has been written yet."""
    return rows.find(session, _t, workflow=workflow) or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """What catch-up said last, so long ago. lag_seconds, backlog (changes): None while it does not know."""

    age_seconds: float
    lag_seconds: float | None
    backlog: int | None
    held_branches: int


def catch_up(session: Session, workflow: str) -> CatchUp | None:
    """None: it has said nothing yet."""
    age = "TIMESTAMPDIFF(MICROSECOND, replicate_at, NOW(6)) / 1e6"
    sql = f"SELECT {age}, lag_seconds, backlog, held_branches FROM {SIDECAR}.progress WHERE workflow=%s"
    row = session.row(sql, (workflow,))
    if row is None or row[0] is None:
        return None
    return CatchUp(age_seconds=float(row[0]), lag_seconds=row[1], backlog=row[2], held_branches=int(row[3]))


def _keys_since(session: Session) -> dict[str, int]:
    """Of each workflow that was verified, how many keys are still to be compared; a sidecar may lack the table yet."""
    try:
        found = session.rows(f"SELECT workflow, keys_waiting FROM {SIDECAR}.since WHERE is_verified AND NOT is_void")
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return {}
    return {str(workflow): int(keys) for workflow, keys in found}


def overview(
    session: Session, workflow: str | None = None, *, over_seconds: float | None = None
) -> list[dict[str, Any]]:
    """Workflows, newest first, each with progress and last verdict, in one statement; ages by the server's clock.

    over_seconds: of those that are over, only what ended within them.
    """
    w, of, v = sidecar.workflow, sidecar.workflow_table, sidecar.verification
    joined = (
        w.join(of, (of.c.workflow == w.c.id) & (of.c.number == 0))
        .outerjoin(_t, _t.c.workflow == w.c.id)
        .outerjoin(v, v.c.workflow == w.c.id)
    )
    figures = [c for c in _t.c if c.name not in ("workflow", "driver_at", "replicate_at")]
    about = [c for c in (*w.c, *of.c) if c.name not in ("spec", "rows_total", "workflow", "number")]
    ages = [
        _age(_t.c.driver_at, "driver_age"),
        _age(_t.c.replicate_at, "replicate_age"),
        _age(v.c.finished_at, "verified_age"),
    ]
    more = (
        of.c.rows_total.label("planned_rows"),
        v.c.verdict,
        _strategy(w).label("strategy_details"),
        _aside(w).label("aside"),
    )
    query = select(*about, *figures, *ages, *more).select_from(joined)
    if workflow is not None:
        query = query.where(w.c.id == workflow)
    if over_seconds is not None:
        is_late = func.timestampdiff(text("SECOND"), w.c.ended_at, now()) <= over_seconds
        query = query.where(w.c.phase.not_in([str(phase) for phase in OVER]) | is_late)
    found = fetch(session, query.order_by(w.c.created_at.desc(), w.c.id))
    # Apart from the one statement, which would fail as a whole where the sidecar lacks that table.
    waiting = _keys_since(session)
    for row in found:
        row["keys_since"] = waiting.get(str(row["id"]))
        row |= {name: float(row[name]) for name in _AGES if row[name] is not None}
    return found


def _strategy(w: TableClause) -> Any:
    return _last(w, journal.STRATEGY, journal.FALLBACK)


def _aside(w: TableClause) -> Any:
    return _last(w, journal.SET_ASIDE, journal.SIDE_DROPPED)


def _last(w: TableClause, *events: str) -> Any:
    """What the journal has of it."""
    j = sidecar.journal
    one = select(j.c.details).where(j.c.workflow == w.c.id, j.c.event.in_(events))
    return one.order_by(j.c.id.desc()).limit(1).scalar_subquery()


def _age(column: Any, label: str) -> Any:
    return (func.timestampdiff(text("MICROSECOND"), column, now()) / 1e6).label(label)
