"""The checkpoint: where a restart goes on reading, saved in the transaction of the rows that it describes.

What must stay true: it never passes an event that is not flushed. XA branches whose outcome is open there are listed
with it, each with the place of its PREPARE, so that a restart can read from there what it does not have any more.
Tombstones are durable and chunks are matched in the same transactions, so open chunks need not hold it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.mysql import insert as upsert

from vreplication.mysql.session import Session
from vreplication.state import sidecar
from vreplication.state.sidecar import execute, fetch_one, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """position: a group's end, as `Position.saved` writes it; batch: number of the last flushed batch.

    assigned_micros: the last time given to a transaction; held: open branches, each with at least `start` and `rows`.
    """

    position: str
    batch: int
    events_applied: int
    assigned_micros: int = 0
    held: tuple[dict[str, Any], ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Every place of the log that may be read again."""
        return (self.position, *(str(branch["start"]) for branch in self.held if branch["rows"]))


def save(session: Session, workflow: str, checkpoint: Checkpoint) -> None:
    fields = {
        "position": checkpoint.position,
        "batch": checkpoint.batch,
        "events_applied": checkpoint.events_applied,
        "saved_at": now(),
    }
    _put(session, sidecar.checkpoint, workflow, fields)
    _put(
        session,
        sidecar.stream,
        workflow,
        {"assigned_micros": checkpoint.assigned_micros, "held": json.dumps(checkpoint.held)},
    )


def _put(session: Session, table: Any, workflow: str, fields: dict[str, Any]) -> None:
    execute(session, upsert(table).values(workflow=workflow, **fields).on_duplicate_key_update(**fields))


def load(session: Session, workflow: str) -> Checkpoint | None:
    t, more = sidecar.checkpoint, sidecar.stream
    row = fetch_one(session, select(t).where(t.c.workflow == workflow))
    if row is None:
        return None
    beside = fetch_one(session, select(more).where(more.c.workflow == workflow))
    return Checkpoint(
        position=row["position"],
        batch=int(row["batch"]),
        events_applied=int(row["events_applied"]),
        assigned_micros=int(beside["assigned_micros"]) if beside else 0,
        held=tuple(json.loads(beside["held"])) if beside else (),
    )
