"""What an operator has set of a workflow's throttling since it began: beside what was asked for, and before it.

What must stay true: setting changes a row and nothing else; whoever throttles reads it again within a second.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar

_SEEN = "seen replicas"


def read(session: Session, workflow: str) -> dict[str, Any]:
    """Name of an option → its value."""
    return {name: value for name, value in _all(session, workflow).items() if name != _SEEN}


def seen(session: Session, workflow: str) -> set[tuple[str, int]]:
    """Replicas that the server has listed since the workflow began: one that reads no more is listed no more."""
    return {(str(host), int(port)) for host, port in _all(session, workflow).get(_SEEN, ())}


def note_seen(session: Session, workflow: str, places: Collection[tuple[str, int]]) -> None:
    change(session, workflow, {_SEEN: sorted(places)})


def _all(session: Session, workflow: str) -> dict[str, Any]:
    row = rows.find(session, sidecar.throttling, workflow=workflow)
    return dict(json.loads(row["settings"])) if row else {}


def change(session: Session, workflow: str, settings: Mapping[str, Any]) -> None:
    """What is not named stays as it is."""
    with session.transaction():
        # The settings are one document that is read and written back: two who change it at a time would lose one's
        # change. The workflow's row is locked, for this one may not be there yet.
        session.rows(f"SELECT 1 FROM {SIDECAR}.workflow WHERE id=%s FOR UPDATE", (workflow,))
        found = {**_all(session, workflow), **settings}
        rows.put(session, sidecar.throttling, {"workflow": workflow}, settings=json.dumps(found))


def lag_micros(replica: Session, workflow: str, now: str) -> int | None:
    """How far a replica is behind, by the gate row that catch-up rewrites each 250 ms. now: the source's NOW(6).

    None: the row has not come there.
    """
    sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, written_at, %s) FROM {SIDECAR}.gate WHERE workflow=%s"
    row = replica.row(sql, (now, workflow))
    return None if row is None or row[0] is None else int(row[0])
