"""What became of every chunk, read from the binary log: the ledger's own rows pass through it, and stay there.

What must stay true: nothing of ours is asked; the log is the server's own record, and the ledger's rows are deleted
when a workflow completes.
"""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.databases import Database
from tests.support import tailing
from vreplication.binlog.events import Position, RowChange
from vreplication.changes import stream
from vreplication.state import ledger

Place = tuple[int, int]
"""Split and number of a chunk."""


def chunk_rows(database: Database, start: Position, quiet: str) -> list[RowChange]:
    """Every change of the ledger since `start`. quiet: a table of the schema that nobody alters."""
    found = tailing.groups(database, start, tailing.watch(database, quiet), tailing.ours(database))
    return [row for row in tailing.rows(found) if row.table == stream.CHUNK]


def landed_once(rows: Iterable[RowChange]) -> int:
    """Number of chunks. Fails when one has landed twice, or was touched when it was matched already."""
    landed: set[Place] = set()
    matched: set[Place] = set()
    for row in rows:
        if row.after is None:
            continue
        place = (int(row.after["split"]), int(row.after["ordinal"]))
        assert place not in matched, f"chunk {place} was matched, and is touched again: {row}"
        if row.after["state"] == ledger.LANDED:
            assert place not in landed, f"chunk {place} was copied twice: {row}"
            landed.add(place)
        if row.after["state"] == ledger.MATCHED:
            matched.add(place)
    assert landed == matched
    return len(matched)
