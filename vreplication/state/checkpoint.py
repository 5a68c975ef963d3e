"""The checkpoint: where a restart goes on reading, saved in the transaction of the rows that it describes.

What must stay true: it never passes an event that is not flushed, nor the XA PREPARE of a branch whose outcome is not
known. Tombstones are durable and chunks are matched in the same transactions, so open chunks need not hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.mysql import insert as upsert

from vreplication.mysql.session import Session
from vreplication.state import sidecar
from vreplication.state.sidecar import execute, fetch_one, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """position: file:offset of a group's end; batch: number of the last flushed batch."""

    position: str
    batch: int
    events_applied: int


def save(session: Session, workflow: str, checkpoint: Checkpoint) -> None:
    fields = {
        "position": checkpoint.position,
        "batch": checkpoint.batch,
        "events_applied": checkpoint.events_applied,
        "saved_at": now(),
    }
    execute(
        session,
        upsert(sidecar.checkpoint).values(workflow=workflow, **fields).on_duplicate_key_update(**fields),
    )


def load(session: Session, workflow: str) -> Checkpoint | None:
    t = sidecar.checkpoint
    row = fetch_one(session, select(t).where(t.c.workflow == workflow))
    if row is None:
        return None
    return Checkpoint(position=row["position"], batch=int(row["batch"]), events_applied=int(row["events_applied"]))
