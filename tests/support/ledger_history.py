"""What became of every chunk, read from the binary log: the ledger's own rows pass through it, and stay there.

What must stay true: nothing of ours is asked; the log is the server's own record, and the ledger's rows are deleted
when a workflow completes.
"""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.databases import Database
from tests.support import tailing
from vreplication.binlog.events import Position, SidecarWatch, TableRow
from vreplication.schema.introspect import introspect
from vreplication.settings import SIDECAR
from vreplication.state import ledger

Place = tuple[int, int]
"""Split and number of a chunk."""


def chunk_rows(database: Database, start: Position, quiet: str) -> list[TableRow]:
    """Every change of the ledger since `start`. quiet: a table of the schema that nobody alters."""
    columns = introspect(database.admin, SIDECAR, "chunk").columns
    watch = SidecarWatch(schema=SIDECAR, table="chunk", columns=columns)
    return tailing.rows(tailing.groups(database, start, tailing.watch(database, quiet), [watch]))


def landed_once(rows: Iterable[TableRow]) -> int:
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
