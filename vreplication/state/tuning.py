"""What an operator asks of a copy while it runs: how many tasks at a time, and how long a chunk may take.

What must stay true: asking changes a row and nothing else; whoever copies reads it before its next chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.session import Session
from vreplication.settings import Tuning
from vreplication.state import rows, sidecar

_t = sidecar.tuning


def read(session: Session, workflow: str) -> Tuning:
    row = rows.find(session, _t, workflow=workflow) or {}
    return Tuning(copy_parallelism=row.get("copy_parallelism"), chunk_millis=row.get("chunk_millis"))


def ask(session: Session, workflow: str, tuning: Tuning) -> None:
    """Note what is not None; the other stays as it was."""
    given = {"copy_parallelism": tuning.copy_parallelism, "chunk_millis": tuning.chunk_millis}
    _write(session, workflow, {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What can be had. slots: of Spark, None: not known, or a cluster's affair; holds_counter: chunks lock it."""

    slots: int | None = None
    holds_counter: bool = False


def room(session: Session, workflow: str) -> Room:
    row = rows.find(session, _t, workflow=workflow)
    return Room(slots=row["slots"], holds_counter=bool(row["holds_counter"])) if row else Room()


def note_room(session: Session, workflow: str, found: Room) -> None:
    _write(session, workflow, {"slots": found.slots, "holds_counter": int(found.holds_counter)})


def _write(session: Session, workflow: str, columns: dict[str, int | None]) -> None:
    rows.put(session, _t, {"workflow": workflow}, **columns)
