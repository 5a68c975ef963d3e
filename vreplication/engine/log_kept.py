"""Which part of the binary log a restart would read, whether the server has it, and for how long it keeps it.

What must stay true: reads only, and ends nothing: who reads on loses nothing by a file that was purged behind him, only
he must not be stopped any more.
"""

from __future__ import annotations

from vreplication import names
from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.changes.matcher import Held
from vreplication.engine import spool
from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session
from vreplication.state import checkpoint, moves
from vreplication.state.workflows import WorkflowRow

_HOUR, _DAY = 3_600, 86_400


def gone(home: Session, row: WorkflowRow, *, source: Session | None = None, stream: str = "") -> str:
    """Where a restart would read on, if the source has no log from there; '' while it has.

    source, stream: where the state is not on the source, or not under the workflow's own id.
    """
    log = source or home
    place = begin(home, row, stream)
    if place is None:
        return ""
    if not position.exists(log, place):
        return place.saved
    held = unread(home, row, stream)
    # One whose rows are on disk is not read again, so its log may be gone.
    lost = (b.start for b in held if not position.exists(log, b.start) and not spool.holds(row, b, stream))
    return next((start.saved for start in lost), "")


def begin(session: Session, row: WorkflowRow, stream: str = "") -> Position | None:
    """Where a restart goes on; None before the stream has begun."""
    saved = checkpoint.load(session, stream or row.id)
    place = saved.position if saved else _start(session, row, stream)
    return Position.parse(place) if place else None


def _start(session: Session, row: WorkflowRow, stream: str) -> str | None:
    """Where the stream begins; of a later one of tables that move, where the switch before it was decided."""
    if stream in ("", row.id):
        return row.start_position
    if (move := moves.find(session, row.id)) is None:
        return None
    is_forward = names.split_stream(stream)[1] % 2 == 1
    return move.forward_start if is_forward else move.back_start


def unread(session: Session, row: WorkflowRow, stream: str = "") -> list[Held]:
    """Branches whose rows a restart reads from their beginning on, where they have not been put aside whole."""
    saved = checkpoint.load(session, stream or row.id)
    return [held for held in map(Held.of, saved.held if saved else ()) if held.rows]


def limit(session: Session) -> str:
    """A sentence on how long a workflow may stand still; '' where that is not known, or not limited."""
    try:
        found = position.retention(session)
    except VReplicationError:
        return ""
    kept = [
        _time(found.keep_seconds) if found.keep_seconds else "",
        f"{found.keep_bytes:,} bytes" if found.keep_bytes else "",
    ]
    words = " and ".join(filter(None, kept))
    return f"The server keeps {words} of its binary log: a workflow that stands still for longer ends." if words else ""


def _time(seconds: int) -> str:
    count, unit = (seconds / _DAY, "days") if seconds >= 2 * _DAY else (seconds / _HOUR, "hours")
    return f"{count:.3g} {unit}"
