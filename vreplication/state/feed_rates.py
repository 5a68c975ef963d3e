"""What a feed has sent into each of its partitions over time, for charts.

What must stay true: each has a point of the history (history.py) with its slot, and both are thinned alike, so that
they are drawn over the same times; of a topic with very many partitions the first are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from sqlalchemy import delete, select
from sqlalchemy.dialects.mysql import insert as upsert

from vreplication.mysql.session import Session
from vreplication.state import history, sidecar
from vreplication.state.sidecar import execute, fetch

MOST = 64
"""Partitions."""
_t = sidecar.feed_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """rates: rows a second, by partition."""

    slot: int
    rates: tuple[float, ...]


def add(session: Session, workflow: str, slot: int, rates: Sequence[float]) -> None:
    _put(session, workflow, Rates(slot=slot, rates=tuple(rates[:MOST])))


def _put(session: Session, workflow: str, point: Rates) -> None:
    text = json.dumps(point.rates, separators=(",", ":"))
    values = {"workflow": workflow, "slot": point.slot}
    execute(session, upsert(_t).values(**values, rates=text).on_duplicate_key_update(rates=text))


def read(session: Session, workflow: str, *, after: int = 0) -> list[Rates]:
    """Behind a slot, oldest first."""
    query = select(_t).where(_t.c.workflow == workflow, _t.c.slot > after).order_by(_t.c.slot)
    return [Rates(slot=int(row["slot"]), rates=tuple(json.loads(row["rates"]))) for row in fetch(session, query)]


def thin(session: Session, workflow: str, now: int) -> None:
    """Put older ones together. now: the slot that the history was thinned at."""
    old = [point for point in read(session, workflow) if point.slot < now - history.HOUR]
    kept = {point.slot: point for point in history.thinned_by(_together, old, now)}
    # One transaction, as in history.thin: an end between the two would lose what the new points are made of.
    with session.transaction():
        if gone := [point.slot for point in old if point.slot not in kept]:
            execute(session, delete(_t).where(_t.c.workflow == workflow, _t.c.slot.in_(gone)))
        for point in set(kept.values()) - set(old):
            _put(session, workflow, point)


def _together(points: list[Rates], slot: int) -> Rates:
    """A partition that is not in use for a while counts for the time that it is."""
    if len(points) == 1 and points[0].slot == slot:
        return points[0]
    by_partition = zip_longest(*(point.rates for point in points))
    means = (fmean(rate for rate in rates if rate is not None) for rates in by_partition)
    return Rates(slot=slot, rates=tuple(round(mean, 2) for mean in means))
