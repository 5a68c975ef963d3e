"""What a change feed and its operator tell each other: how many partitions there shall be, and how it goes.

What must stay true: nothing here says where the feed goes on; that is in Kafka, beside its messages.
"""

from __future__ import annotations

import json
from typing import Any

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import layout, rows, sidecar
from vreplication.state.lease import Lease, fence
from vreplication.state.sidecar import now

_t = sidecar.feed


def begin(session: Session, workflow: str) -> None:
    rows.put(session, _t, {"workflow": workflow}, written_at=now())


def pulse(session: Session, workflow: str) -> None:
    """A change in the log of this server, so that its time goes on. The row is made where it is not there."""
    if not rows.change(session, _t, {"workflow": workflow}, written_at=now()):
        begin(session, workflow)


def want(session: Session, workflow: str, partitions: int) -> None:
    """From the operator."""
    with session.transaction():
        rows.change(session, _t, {"workflow": workflow}, wanted_partitions=partitions)


def tell(session: Session, our_lease: Lease, figures: dict[str, Any]) -> None:
    """From who works on it. Raises Superseded."""
    with session.transaction():
        fence(session, our_lease)
        rows.change(session, _t, {"workflow": our_lease.workflow}, figures=json.dumps(figures), written_at=now())


def read(session: Session, workflow: str | None = None) -> list[tuple[str, int | None, dict[str, Any], float]]:
    """As `find`, of every feed, or of one, each with its id and the age of its figures in seconds."""
    age = "TIMESTAMPDIFF(MICROSECOND, written_at, NOW(6)) / 1e6"
    one, args = (" WHERE workflow=%s", (workflow,)) if workflow else ("", None)
    sql = f"SELECT workflow, wanted_partitions, figures, {age} FROM {SIDECAR}.feed{one}"
    found = layout.look(session, lambda: session.rows(sql, args)) or ()
    return [(str(name), wanted, json.loads(figures or "{}"), float(old)) for name, wanted, figures, old in found]


def find(session: Session, workflow: str) -> tuple[int | None, dict[str, Any]] | None:
    """Partitions that are asked for, and the figures that were told last; None: it is no feed."""
    found = layout.look(session, lambda: rows.find(session, _t, workflow=workflow))
    if found is None:
        return None
    return found["wanted_partitions"], json.loads(found["figures"] or "{}")
