"""Chunks that were compared while the table was still being copied.

What must stay true: a chunk counts as compared under one collection of keys (state/since.py): what was written to it
since that collection began, whoever compared it when, is among those keys. It counts in the run of the server in which
it was compared: one that was started since may have lost the end of its log, and keys with it.
"""

from __future__ import annotations

import random

from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import ledger, rows, sidecar
from vreplication.state.ledger import MATCHED, REPAIR_SPLIT, Chunk, KeyRange
from vreplication.state.sidecar import now

_CHOICE = 8
_START_SECONDS = 2
"""The moment of a server's start is known in whole seconds, and read in two statements."""


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
    rows.put(session, sidecar.compared, key, collection=collection, rows_seen=rows_seen, noted_at=now())


def rows_seen(session: Session, workflow: str) -> int:
    """Rows of the chunks compared so far, for progress."""
    sql = f"SELECT COALESCE(SUM(rows_seen),0) FROM {SIDECAR}.compared WHERE workflow=%s AND collection>0"
    return int(session.value(sql, (workflow,)) or 0)


def ranges(session: Session, workflow: str, collection: int) -> dict[KeyRange, int]:
    """Ranges of the chunks that count under this collection, with the number of rows that were there."""
    sql = (
        f"SELECT split, ordinal, rows_seen FROM {SIDECAR}.compared "
        "WHERE workflow=%s AND collection=%s AND noted_at > FROM_UNIXTIME(%s)"
    )
    # Tasks and driver may go on with new connections, and nobody notices the restart; the log's lost end is seen by
    # none of those who compared before it.
    found_rows = session.rows(sql, (workflow, collection, started_at(session) + _START_SECONDS))
    done = {(int(split), int(ordinal)): int(seen) for split, ordinal, seen in found_rows}
    found = ledger.chunks(session, workflow, states=(MATCHED,)) if done else []
    return {c.range: done[c.split, c.ordinal] for c in found if (c.split, c.ordinal) in done}
