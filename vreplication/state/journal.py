"""The journal: append-only, what cannot be undone, who asked for it and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from vreplication.masking import mask
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.lease import Lease, fence, me
from vreplication.state.sidecar import fetch, fetch_one, now

STRATEGY, FALLBACK = "strategy", "fallback"
"""What was chosen and why; that the table refused it, and what was chosen then."""
FOREIGN_KEYS, ORPHANS = "foreign keys verified", "orphans"
"""Behind the switch, of the keys that went over: that each row has its parent, or which have none."""
SET_ASIDE, SIDE_DROPPED = "set aside", "side table dropped"
"""Rows gave way to others under a new unique key; the table that they are in is dropped."""
STAND_IN, STOOD_IN = "stand-in", "no stand-in any more"
"""Rows may go to a table in the new one's place (schema/stand_in.py): tables of its names are ours; none has rows."""
MOVED = "moved"
"""It goes on on another server, from then on."""
_EACH, _ONE_IN = 10, 60
_ASKED = ("submitted", "triggered", "started")


def write(session: Session, workflow: str, event: str, details: str = "", *, actor: str) -> None:
    values = {
        "workflow": workflow,
        "at": now(),
        "actor": actor[:255],
        "event": event,
        # A TEXT has room for 65,535 bytes, and a letter may take four.
        "details": mask(details)[:16000],
    }
    rows.add(session, sidecar.journal, **values)


def once(session: Session, ours: Lease, event: str, details: str = "", *, since: Sequence[str] = ()) -> None:
    """Under the lease, and once, however often a step is begun again. since: events after which it is news again."""
    with session.transaction():
        fence(session, ours)
        if not is_told(session, ours.workflow, event, since):
            write(session, ours.workflow, event, details, actor=me())


def is_told(session: Session, workflow: str, event: str, since: Sequence[str] = ()) -> bool:
    """It is there, and none of `since` behind it."""
    t = sidecar.journal
    query = select(t.c.event).where(t.c.workflow == workflow, t.c.event.in_((event, *since)))
    found = fetch_one(session, query.order_by(t.c.id.desc()).limit(1))
    return found is not None and found["event"] == event


def attempted(session: Session, workflow: str, number: int, *, actor: str) -> None:
    """A cut-over's attempt: each of the first, then about one an hour, for a blocker may stay for days."""
    # From the fifth on attempts are up to a minute apart (settings.CUTOVER_RETRY_SECONDS).
    if number <= _EACH or number % _ONE_IN == 0:
        write(session, workflow, "cut-over attempt", f"number {number}", actor=actor)


def read(session: Session, workflow: str) -> list[dict[str, Any]]:
    """Entries of a workflow, oldest first: at, actor, event, details."""
    t = sidecar.journal
    return fetch(session, select(t).where(t.c.workflow == workflow).order_by(t.c.id))


def owners(session: Session) -> dict[str, str]:
    """Who has asked for each workflow: who submitted it, else who triggered it."""
    t = sidecar.journal
    # The newest first: of several entries of a workflow the oldest is what stays.
    query = select(t.c.workflow, t.c.actor).where(t.c.event.in_(_ASKED)).order_by(t.c.id.desc())
    return {str(each["workflow"]): str(each["actor"]) for each in fetch(session, query)}


def strategy_reason(session: Session, workflow: str) -> str | None:
    """Why an online DDL is done as it is."""
    found = latest(session, workflow, STRATEGY, FALLBACK)
    return None if found is None else reason_in(str(found["details"]))


def reason_in(details: str) -> str:
    """Behind the strategy's name."""
    return details.partition(": ")[2]


def put_aside(details: str) -> tuple[str, int] | None:
    """Of SET_ASIDE: the side table and how many rows it got; None: it got none, or is gone (SIDE_DROPPED)."""
    count, _, rest = details.partition(" rows in ")
    return (rest, int(count)) if rest and int(count) else None


def age_seconds(session: Session, workflow: str, event: str) -> float | None:
    """How long ago the newest entry of the kind was made, by the server's clock; else the oldest of all; else None."""
    at = "COALESCE(MAX(IF(event=%s, at, NULL)), MIN(at))"
    sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, {at}, NOW(6)) / 1e6 FROM {SIDECAR}.journal WHERE workflow=%s"
    found = session.value(sql, (event, workflow))
    return None if found is None else float(found)


def latest(session: Session, workflow: str, *events: str) -> dict[str, Any] | None:
    """The newest entry of these kinds, or None."""
    t = sidecar.journal
    query = select(t).where(t.c.workflow == workflow, t.c.event.in_(events)).order_by(t.c.id.desc()).limit(1)
    return fetch_one(session, query)
