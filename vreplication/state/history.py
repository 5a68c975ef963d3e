"""The progress row over time, for charts and for how an ETA has moved.

What must stay true: a point stands for five seconds of the server's clock, so that who writes twice replaces; it is
bounded: beyond an hour a point a minute is kept, beyond a day one in ten minutes, some 6,000 for a month; when points
are put together counters stay exact and of lag, backlog and throttling the worst stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from statistics import fmean
from typing import Any, Protocol, TypeVar

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.mysql import insert as upsert

from vreplication.mysql.session import Session
from vreplication.state import sidecar
from vreplication.state.sidecar import execute, fetch

SLOT_SECONDS = 5
HOUR, DAY = 3_600 // SLOT_SECONDS, 86_400 // SLOT_SECONDS
MINUTE, TEN_MINUTES = 60 // SLOT_SECONDS, 600 // SLOT_SECONDS
_STEPS = ((HOUR, MINUTE), (DAY, TEN_MINUTES))
"""Older than this many slots: one point for so many."""
_t = sidecar.history


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """slot: five-second steps since 1970, by the server's clock. eta_at: UTC; what was promised then."""

    slot: int
    phase: str
    rows_copied: int
    rows_per_second: float | None = None
    applied_per_second: float | None = None
    lag_seconds: float | None = None
    backlog: int | None = None
    chunk_rows: int | None = None
    chunk_millis: float | None = None
    throttled: str | None = None
    cutover_attempts: int = 0
    eta_at: datetime | None = None


def add(session: Session, workflow: str, *, eta_seconds: float | None, slot: int | None = None, **columns: Any) -> None:
    """A point for now, or for a slot. `columns`: those of Point but slot and eta_at."""
    fields = {**columns, "eta_at": None if eta_seconds is None else _in(eta_seconds)}
    values = {"workflow": workflow, "slot": _slot_now() if slot is None else slot, **fields}
    execute(session, upsert(_t).values(values).on_duplicate_key_update(**fields))


def _in(seconds: float) -> Any:
    return func.timestampadd(text("SECOND"), round(seconds), sidecar.now())


def _slot_now() -> Any:
    return func.floor(func.unix_timestamp(sidecar.now()) / SLOT_SECONDS)


def slot_now(session: Session) -> int:
    return int(session.value(f"SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) / {SLOT_SECONDS})"))


def read(session: Session, workflow: str, *, after: int = 0) -> list[Point]:
    """Points behind a slot, oldest first."""
    query = select(_t).where(_t.c.workflow == workflow, _t.c.slot > after)
    return [_point(row) for row in fetch(session, query.order_by(_t.c.slot))]


def last_hour(session: Session, workflow: str) -> list[Point]:
    """Up to its last point: of one that has ended, the hour before its end."""
    newest = session.value(f"SELECT MAX(slot) FROM {_t.schema}.history WHERE workflow=%s", (workflow,))
    return read(session, workflow, after=int(newest) - HOUR) if newest is not None else []


def recent(session: Session, workflows: Sequence[str], slots: int) -> dict[str, list[Point]]:
    """Points of the last so many slots, by workflow."""
    query = select(_t).where(_t.c.workflow.in_(workflows), _t.c.slot > slot_now(session) - slots)
    rows = fetch(session, query.order_by(_t.c.workflow, _t.c.slot)) if workflows else []
    return {name: [_point(row) for row in found] for name, found in groupby(rows, lambda row: str(row["workflow"]))}


def since(session: Session, workflow: str, phases: Iterable[str]) -> datetime | None:
    """Since when it has stood in these phases, UTC; None where no point tells."""
    before = select(func.coalesce(func.max(_t.c.slot), 0))
    before = before.where(_t.c.workflow == workflow, _t.c.phase.not_in([str(phase) for phase in phases]))
    first = select(func.min(_t.c.slot).label("slot"))
    first = first.where(_t.c.workflow == workflow, _t.c.slot > before.scalar_subquery())
    slot = fetch(session, first)[0]["slot"]
    return None if slot is None else datetime.fromtimestamp(int(slot) * SLOT_SECONDS, UTC)


def _point(row: dict[str, Any]) -> Point:
    return Point(**{name: value for name, value in row.items() if name != "workflow"})


def thin(session: Session, workflow: str) -> int:
    """Put older points together. To be called now and then. Returns the slot of now."""
    now = slot_now(session)
    old = [point for point in read(session, workflow) if point.slot < now - HOUR]
    kept = {point.slot: point for point in thinned(old, now)}
    with session.transaction():
        # One transaction: an end between the two would lose what the new points are made of.
        if gone := [point.slot for point in old if point.slot not in kept]:
            execute(session, delete(_t).where(_t.c.workflow == workflow, _t.c.slot.in_(gone)))
        for point in set(kept.values()) - set(old):
            fields = asdict(point)
            execute(session, upsert(_t).values(workflow=workflow, **fields).on_duplicate_key_update(**fields))
    return now


class Slotted(Protocol):
    """Of a time."""

    @property
    def slot(self) -> int: ...


P = TypeVar("P", bound=Slotted)


def thinned(points: Iterable[Point], now: int) -> list[Point]:
    """In the order of time; repeated, it changes nothing more."""
    return thinned_by(_together, points, now)


def thinned_by(together: Callable[[list[P], int], P], points: Iterable[P], now: int) -> list[P]:
    """together: makes one of several, for a slot."""
    found = sorted(points, key=lambda point: point.slot)
    # Each size is a multiple of the one before, so a point that stands for a minute falls whole into one for ten.
    for age, size in _STEPS:
        # A group goes as a whole, or the same minute would be put together twice.
        before = (now - age) // size * size
        old = [point for point in found if point.slot < before]
        groups = groupby(old, lambda point, size=size: point.slot // size)  # type: ignore[misc]
        found = [*(together(list(group), number * size) for number, group in groups), *found[len(old) :]]
    return found


def _together(points: list[Point], slot: int) -> Point:
    last = points[-1]
    if len(points) == 1 and last.slot == slot:
        return last
    return Point(
        slot=slot,
        phase=last.phase,
        rows_copied=last.rows_copied,
        rows_per_second=_mean(p.rows_per_second for p in points),
        applied_per_second=_mean(p.applied_per_second for p in points),
        lag_seconds=_most(p.lag_seconds for p in points),
        backlog=_most(p.backlog for p in points),
        chunk_rows=_rounded(_mean(p.chunk_rows for p in points)),
        chunk_millis=_mean(p.chunk_millis for p in points),
        throttled=_most(p.throttled for p in points),
        cutover_attempts=last.cutover_attempts,
        eta_at=last.eta_at,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
