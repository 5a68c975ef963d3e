"""Chunks that were compared while the table was still being copied.

What must stay true: a chunk counts as compared under one collection of keys (state/since.py): what was written to it
since that collection began, whoever compared it when, is among those keys. A server that was lost ends all of it.
"""

from __future__ import annotations

import random

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import ledger, rows, sidecar
from vreplication.state.ledger import MATCHED, REPAIR_SPLIT, Chunk, KeyRange

_CHOICE = 8


def forget(session: Session, workflow: str) -> None:
    rows.remove(session, sidecar.compared, workflow=workflow)


def choose(session: Session, workflow: str) -> Chunk | None:
    """One of the matched chunks that nobody has compared; by chance, for there are several who ask."""
    sql = (
        f"SELECT c.split, c.ordinal FROM {SIDECAR}.chunk c LEFT JOIN {SIDECAR}.compared d "
        "ON d.workflow=c.workflow AND d.split=c.split AND d.ordinal=c.ordinal "
        f"WHERE c.workflow=%s AND c.state='{MATCHED}' AND c.split < {REPAIR_SPLIT} AND d.workflow IS NULL "
        f"ORDER BY c.matched_at LIMIT {_CHOICE}"
    )
    found = session.rows(sql, (workflow,))
    if not found:
        return None
    split, ordinal = map(int, random.choice(found))
    return ledger.find_chunk(session, workflow, split, ordinal)


def note(session: Session, workflow: str, chunk: Chunk, collection: int, rows_seen: int) -> None:
    """collection 0: it is left to the end."""
    key = {"workflow": workflow, "split": chunk.split, "ordinal": chunk.ordinal}
    rows.put(session, sidecar.compared, key, collection=collection, rows_seen=rows_seen)


def ranges(session: Session, workflow: str, collection: int) -> dict[KeyRange, int]:
    """Ranges of the chunks that were compared under this collection, with the number of rows that were there."""
    sql = f"SELECT split, ordinal, rows_seen FROM {SIDECAR}.compared WHERE workflow=%s AND collection=%s"
    done = {(int(split), int(ordinal)): int(seen) for split, ordinal, seen in session.rows(sql, (workflow, collection))}
    found = ledger.chunks(session, workflow, states=(MATCHED,)) if done else []
    return {c.range: done[c.split, c.ordinal] for c in found if (c.split, c.ordinal) in done}
