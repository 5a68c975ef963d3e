"""Chunks that were compared while the table was still being copied.

What must stay true: a chunk counts as compared under one collection of keys (state/since.py): what was written to it
since that collection began, whoever compared it when, is among those keys. It counts in the run of the server in which
it was compared: one that was started since may have lost the end of its log, and keys with it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import ledger, rows, sidecar
from vreplication.state.ledger import MATCHED, REPAIR_SPLIT, Chunk, KeyRange
from vreplication.state.sidecar import now

_CHOICE, _MOST_CHUNKS = 8, 256
_NOT_COMPARED = (
    f"FROM {SIDECAR}.chunk c LEFT JOIN {SIDECAR}.compared d "
    "ON d.workflow=c.workflow AND d.split=c.split AND d.ordinal=c.ordinal "
    f"WHERE c.workflow=%s AND c.state='{MATCHED}' AND d.workflow IS NULL"
)
_START_SECONDS = 2
"""The moment of a server's start is known in whole seconds, and read in two statements."""


def forget(session: Session, workflow: str) -> None:
    rows.remove(session, sidecar.compared, workflow=workflow)


def choose(session: Session, workflow: str, split: int, most_rows: int) -> list[Chunk]:
    """Neighboring chunks, matched, that have not been compared: of this split, or where it has none, of any.

    They have `most_rows` rows at the most, or it is one.
    """
    found = _run(session, workflow, split, 0, most_rows)
    if found or (place := _waiting_longest(session, workflow)) is None:
        return found
    return _run(session, workflow, *place, most_rows)


def _run(session: Session, workflow: str, split: int, ordinal: int, most_rows: int) -> list[Chunk]:
    """The first of the split's from this ordinal on, and those directly behind it."""
    sql = (
        f"SELECT c.ordinal, c.rows_copied {_NOT_COMPARED} AND c.split=%s AND c.ordinal >= %s "
        f"ORDER BY c.ordinal LIMIT {_MOST_CHUNKS}"
    )
    last, rows_so_far = None, 0
    for each, copied in session.rows(sql, (workflow, split, ordinal)):
        rows_so_far += int(copied)
        # They are read as one span. A gap ends them, for the chunk in it may not be matched yet (R25): of its rows some
        # that were deleted may be back for a moment.
        if last is not None and (each != last + 1 or rows_so_far > most_rows):
            break
        ordinal, last = (int(each) if last is None else ordinal), int(each)
    return [] if last is None else ledger.neighbors(session, workflow, split, ordinal, last)


def _waiting_longest(session: Session, workflow: str) -> tuple[int, int] | None:
    """Split and ordinal; by chance one of a few, for there are several who ask."""
    # All chunks of the table are looked at, so it is asked only by who has none of his own.
    sql = (
        f"SELECT c.split, c.ordinal {_NOT_COMPARED} AND c.split < {REPAIR_SPLIT} ORDER BY c.matched_at LIMIT {_CHOICE}"
    )
    found = session.rows(sql, (workflow,))
    if not found:
        return None
    split, ordinal = map(int, random.choice(found))
    return split, ordinal


def note(session: Session, workflow: str, chunks: Sequence[Chunk], collection: int, rows_seen: int) -> None:
    """rows_seen: of all of them. collection 0: they are left to the end."""
    for chunk in chunks:
        key = {"workflow": workflow, "split": chunk.split, "ordinal": chunk.ordinal}
        rows.put(session, sidecar.compared, key, collection=collection, rows_seen=rows_seen, noted_at=now())
        # Only the sum is ever asked for, so all of it stands with the first.
        rows_seen = 0


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
