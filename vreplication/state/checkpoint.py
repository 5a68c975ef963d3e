"""The checkpoint: where a restart goes on reading, saved in the transaction of the rows that it describes.

What must stay true: it never passes an event that is not flushed. XA branches whose outcome is open there are listed
with it, each with the place of its PREPARE, so that a restart can read from there what it does not have any more.
Tombstones are durable and chunks are matched in the same transactions, so open chunks need not hold it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar


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
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Checkpoint | None:
        """None: an earlier version wrote the position alone."""
        if not text.startswith("{"):
            return None
        fields = json.loads(text)
        return cls(**fields | {"held": tuple(fields["held"])})


def has_lost(home: Checkpoint | None, written: Checkpoint | None) -> bool:
    """Of rows on another server: it has come back without some of them. written: the one that stands beside them."""
    return home is not None and written is not None and written.batch < home.batch


# As text: they are written with each batch, and building them anew costs more than sending them.
_SAVE = (
    f"INSERT INTO {SIDECAR}.checkpoint (workflow, position, batch, events_applied, saved_at) "
    "VALUES (%s, %s, %s, %s, NOW(6)) "
    "ON DUPLICATE KEY UPDATE position=%s, batch=%s, events_applied=%s, saved_at=NOW(6)"
)
_SAVE_STREAM = (
    f"INSERT INTO {SIDECAR}.stream (workflow, assigned_micros, held) VALUES (%s, %s, %s) "
    "ON DUPLICATE KEY UPDATE assigned_micros=%s, held=%s"
)


def save(session: Session, workflow: str, checkpoint: Checkpoint) -> None:
    place = (checkpoint.position, checkpoint.batch, checkpoint.events_applied)
    session.execute(_SAVE, (workflow, *place, *place))
    # R13: the open branches go with the place. A restart reads from their PREPARE what it does not have any more;
    # without the list it would meet the XA COMMIT of a branch whose rows are behind it.
    beside = (checkpoint.assigned_micros, json.dumps(checkpoint.held))
    session.execute(_SAVE_STREAM, (workflow, *beside, *beside))


def load(session: Session, workflow: str) -> Checkpoint | None:
    t, more = sidecar.checkpoint, sidecar.stream
    row = rows.find(session, t, workflow=workflow)
    if row is None:
        return None
    # None beside a checkpoint that a release without this table has saved.
    beside = rows.find(session, more, workflow=workflow)
    return Checkpoint(
        position=row["position"],
        batch=int(row["batch"]),
        events_applied=int(row["events_applied"]),
        assigned_micros=int(beside["assigned_micros"]) if beside else 0,
        held=tuple(json.loads(beside["held"])) if beside else (),
    )
