"""Whether a dump may begin at file and offset, which spares the server to read the file from its beginning.

A place says of which server's file it is, and that nothing stands before it there that is not in its GTIDs. What is
sent from there, less those GTIDs, is then what a dump by GTID sends. Files are only ever added to, so this holds while
it is the same file; a name alone proves nothing, for servers share names, and a RESET begins them anew.

What must stay true: only the very file of the very server counts, asked for on the connection of the dump; the file
says itself when it was begun and what stands before it, and the first transaction from there on must be the next one
of its source. Where this cannot be told, the dump is asked for by GTID. A file that has been made anew, or that has
lost its end, ends the workflow: the same GTIDs may have been given out again, and a dump by GTID would pass them over.
"""

from __future__ import annotations

from vreplication.binlog.events import Origin, Position
from vreplication.binlog.gtids import Gtids, is_within, parse
from vreplication.binlog.position import Standing, standing
from vreplication.errors import SourceChanged, Transient
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, SqlError

_LISTS = ("Previous_gtids", "Gtid_list")
# The description, of an encrypted log what says so, then the list.
_FIRST_EVENTS = 4
_CURE = "The changes since then cannot be applied: cancel this workflow and start it again."


class LogReplaced(SourceChanged):
    """The server's log is not the one any more that was read."""


class Doubt(Transient):
    """What comes from file and offset is not what follows that place: the dump has to be asked for by GTID."""


def is_here(session: Session, place: Position) -> bool:
    """May a dump on this connection begin at the file and offset of `place`? Raises LogReplaced."""
    if place.gtids is None or place.origin is None or place.origin.server != identity_of(session):
        return False
    files = {str(row[0]): int(row[1]) for row in session.rows("SHOW BINARY LOGS")}
    # After a RESET files are counted from 1, and GTIDs are given out again: a dump by GTID would take what is new for
    # what was read, and pass writes over.
    if place.number > max((Position.of(file, 0).number for file in files), default=0):
        raise LogReplaced(f"The server has no binary log {place.file} any more, nor a later one.", cure=_CURE)
    size = files.get(place.file)
    if size is None:
        return False
    # A crash that cut the file's end, likewise: what stands behind the cut has the numbers of what was lost.
    if size < place.offset:
        raise LogReplaced(f"The server's binary log ends before {place}, up to which it was read.", cure=_CURE)
    # Never more lenient than a dump by GTID, which refuses what the server has not got, or not any more.
    return standing(session, place) is Standing.HERE and _is_behind(session, place.file, place.gtids)


def _is_behind(session: Session, file: str, gtids: Gtids) -> bool:
    """True when the file says that only transactions of this set stand before it."""
    try:
        first = session.rows(f"SHOW BINLOG EVENTS IN %s LIMIT {_FIRST_EVENTS}", (file,))
    # The user may lack the right, or the file be gone by now: then the dump is asked for by GTID.
    except SqlError:
        return False
    lists = [parse(str(row[5]).strip("[]")) for row in first if str(row[2]) in _LISTS]
    return bool(lists) and all(before is None or is_within(before, gtids) for before in lists)


def check(place: Position, found: Origin) -> None:
    """Raises LogReplaced when the file that the dump begins with is another one of the same name."""
    if place.origin is not None and place.origin != found:
        raise LogReplaced(f"The server has begun its binary log {place.file} anew: it was reset.", cure=_CURE)
