"""What of ours stands on the source of tables that move: rows that come back through its binary log.

The state of such a workflow is on the target (its home), which the source's log knows nothing of. So what the stream
has to see in order with the application's changes is written here as well: that a chunk is about to be read, markers,
and a heartbeat with the source's own time.

What must stay true: a row is committed on the source when the call returns; what is home is written before it (a
chunk's "open", a marker's row), so that whoever meets the row in the log finds that at home, or that it was taken back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vreplication.errors import Superseded
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import layout, lease, markers, rows, sidecar
from vreplication.state.lease import Lease
from vreplication.state.ledger import Chunk
from vreplication.state.markers import PLAIN, Applied, Markers, OnServer
from vreplication.state.sidecar import now

TABLE = "stream_marker"
BEAT, OPEN, FENCE, CONNECTIONS, MARK = "beat", "open", "fence", "connections", "mark"
NO_MARKERS = frozenset({FENCE, CONNECTIONS, MARK})
"""Kinds of rows that tell the stream nothing."""
_t = sidecar.stream_marker


def install(session: Session) -> None:
    """Make our schema and its one table on the source."""
    session.execute_raw(f"CREATE DATABASE IF NOT EXISTS {ident(SIDECAR)}")
    session.execute_raw(layout.definition_of("source", TABLE))


def exists(session: Session) -> bool:
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name=%s"
    return session.row(sql, (SIDECAR, TABLE)) is not None


def beat(session: Session, stream: str, number: int) -> None:
    """The heartbeat; its row's time is the source's."""
    _put(session, stream, BEAT, BEAT, number=number)


def open_chunk(session: Session, stream: str, table: str, chunk: Chunk) -> None:
    """Behind "open" at home and before any row is read: when it returns, the chunk's low watermark is set.

    table: id under which home keeps the table's ledger.
    """
    # One row a split, written over: of a split one chunk at a time is about to be read.
    _put(session, stream, f"{OPEN}/{table}/{chunk.split}", OPEN, detail=_opened(table, chunk))


def _opened(table: str, chunk: Chunk) -> str:
    return json.dumps({"table": table, "split": chunk.split, "ordinal": chunk.ordinal, "attempt": chunk.attempt})


def is_open(session: Session, stream: str, table: str, chunk: Chunk) -> bool:
    """Is what `open_chunk` wrote last of this split there? `session` may be of a replica."""
    found = rows.find(session, _t, stream=stream, id=f"{OPEN}/{table}/{chunk.split}")
    # With its attempt: an older one that was stopped may write its own row over this one, which is then written again.
    return found is not None and str(found["detail"]) == _opened(table, chunk)


def _put(session: Session, stream: str, id: str, kind: str, **values: Any) -> None:
    with session.transaction():
        rows.put(session, _t, {"stream": stream, "id": id}, kind=kind, written_at=now(), **values)


def mark(session: Session, stream: str) -> None:
    """A transaction of ours in this log: behind it, what was committed before can be read."""
    _put(session, stream, MARK, MARK)


@dataclass(frozen=True, slots=True)
class AcrossServers:
    """Markers of a stream whose state is not on its source (`markers.Markers`)."""

    home: Session
    source: Session
    stream: str

    def write(self, kind: str = PLAIN, *, our_lease: Lease | None = None) -> str:
        # At home first: whoever meets the row in the source's log looks at home whether it still counts. In the other
        # order a marker of the cut-over, met before it is there, would hold nobody.
        marker = markers.write(self.home, self.stream, kind, our_lease=our_lease)
        _put(self.source, self.stream, marker, kind)
        return marker

    def find_applied(self, marker: str) -> Applied | None:
        return markers.find_applied(self.home, self.stream, marker)

    def remove(self, marker: str) -> None:
        """At home first: who holds at it looks there."""
        markers.remove(self.home, self.stream, marker)
        rows.remove(self.source, _t, stream=self.stream, id=marker)


def markers_of(ends: Ends, stream: str) -> Markers:
    """How markers of a stream are written and found."""
    return AcrossServers(ends.home, ends.source, stream) if ends.is_across else OnServer(ends.home, stream)


def claim(session: Session, stream: str, role: str, token: int, ids: tuple[int, ...]) -> None:
    """Note which connections we have here under this lease, before they do anything, and end those that were noted.

    Who held the lease before ours can note none any more, so what it sends comes before this returns, or never. Raises
    Superseded when a later holder has been here, Transient when its connections stay.
    """
    key = {"stream": stream, "id": f"{CONNECTIONS}/{role}"}
    detail = json.dumps({"run": lease.server_run(session), "ids": lease.noted(session, ids)})
    with session.transaction():
        sql = f"SELECT number, detail FROM {SIDECAR}.{TABLE} WHERE stream=%s AND id=%s FOR UPDATE"
        found = session.row(sql, tuple(key.values()))
        if found is not None and int(found[0]) > token:
            raise Superseded(f"Workflow {stream} has been taken over by another process.")
        rows.put(session, _t, key, kind=CONNECTIONS, number=token, detail=detail, written_at=now())
    if found is not None:
        noted = json.loads(found[1])
        lease.end_noted(session, tuple(set(noted["ids"]) - set(ids)), int(noted["run"]))


def take_fence(session: Session, stream: str, token: int) -> str:
    """Become the one that may write rows here; returns what stands beside the last of them, '' where none is there."""
    key = {"stream": stream, "id": FENCE}
    with session.transaction():
        sql = f"SELECT number, detail FROM {SIDECAR}.{TABLE} WHERE stream=%s AND id=%s FOR UPDATE"
        found = session.row(sql, (stream, FENCE))
        if found is not None and int(found[0]) > token:
            raise Superseded(f"Stream {stream} has been taken over by another process.")
        # The lock above has waited for the former holder's transaction in flight (pass_fence): this is all that it has
        # written.
        noted = str(found[1]) if found is not None else ""
        rows.put(session, _t, key, kind=FENCE, number=token, detail=noted, written_at=now())
    return noted


def pass_fence(session: Session, stream: str, token: int, checkpoint: str) -> None:
    """First statement of each transaction that writes rows here: fence, mark of our own rows, and checkpoint in one.

    Raises Superseded.
    """
    sql = f"UPDATE {SIDECAR}.{TABLE} SET detail=%s, written_at=NOW(6) WHERE stream=%s AND id=%s AND number=%s"
    # One UPDATE for three things, for whatever stands alone can be lost alone: who may write here, by which group our
    # rows are known (W9), and how far they go. Its time makes it a change of the row even where the place is the same.
    if session.execute(sql, (checkpoint, stream, FENCE, token)) == 0:
        raise Superseded(f"Stream {stream} has been taken over by another process.")


def forget(session: Session, stream: str) -> None:
    """All rows of a stream."""
    rows.remove(session, _t, stream=stream)


def streams(session: Session) -> list[str]:
    """Those that have rows here: workflows that leave this server, or have left it."""
    if not exists(session):
        return []
    return [str(name) for (name,) in session.rows(f"SELECT DISTINCT stream FROM {SIDECAR}.{TABLE} ORDER BY stream")]
