"""Where the log stands, what of it is still there, and a server id to read it with.

What must stay true: nothing here changes the server; a place with GTIDs is a place in a history, which any server of
that history can send from, and no other; a server id that another replica uses is never drawn, for a second dump with
the same id disconnects the first.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from vreplication.binlog.events import Position
from vreplication.binlog.gtids import Gtids, MariadbGtids, MariadbName, MysqlGtids, names, parse
from vreplication.errors import Refused
from vreplication.mysql.session import Row, Session, SqlError

_LOWEST_ID = 1 << 31
_HIGHEST_ID = (1 << 32) - 1
_KEPT_BY = ("binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size")
_DRAWS = 100
_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much of the log the server holds, and for how long. `keep_seconds` None: it never purges by age."""

    oldest: Position
    total_bytes: int
    keep_seconds: int | None
    keep_bytes: int | None


def current(session: Session, is_mariadb: bool) -> Position:
    """The end of the log. Raises Refused where there is none."""
    found = _first_of(session, *_status_statements(is_mariadb))
    if not found:
        raise Refused("The server writes no binary log.", cure="Start it with log_bin set.")
    return Position.of(str(found[0][0]), int(found[0][1]))


def begin(session: Session, is_mariadb: bool, commit: Callable[[], object] = lambda: None) -> Position:
    """Where to begin reading: by GTIDs where the server gives them out, else by file and offset alone.

    Nothing stands before the file and offset that is not among the GTIDs. MySQL writes a transaction into its log
    before it counts it, both in one order: so it is asked for the place, then has to `commit` a transaction of ours
    behind it, and is asked for the GTIDs then; on MariaDB both are of one moment.
    """
    if is_mariadb:
        return _mariadb_begin(session)
    place = current(session, is_mariadb)
    commit()
    return replace(place, gtids=executed(session, is_mariadb))


def _mariadb_begin(session: Session) -> Position:
    """It counts what it has written; where nothing came meanwhile, that is just what stands before the place.

    Under writes too heavy for that, what follows the place is among the GTIDs: a dump from there is asked for by GTID.
    """
    for _ in range(_TRIES):
        before, place, gtids = executed(session, True), current(session, True), executed(session, True)
        if before == gtids:
            break
    return replace(place, gtids=gtids)


def executed(session: Session, is_mariadb: bool) -> Gtids | None:
    """What stands in the log; None: it does not name all of its transactions, or is empty."""
    if is_mariadb:
        return parse(str(session.value("SELECT @@global.gtid_binlog_pos")))
    mode, found = session.rows("SELECT @@global.gtid_mode, @@global.gtid_executed")[0]
    # In the permissive modes transactions without a name stand among the others, and no set tells of those.
    return parse(str(found)) if str(mode) == "ON" else None


class Standing(Enum):
    """How a place stands with a server."""

    HERE = "here"
    PURGED = "purged"
    """The log from there on is not held any more."""
    UNKNOWN = "unknown"
    """The server has not got all the transactions that were read before it: it is of another history."""


def exists(session: Session, position: Position) -> bool:
    """True while the server can send the log from `position` on."""
    return standing(session, position) is Standing.HERE


def standing(session: Session, position: Position) -> Standing:
    """Can the server send the log from there?"""
    if isinstance(position.gtids, MysqlGtids):
        return _mysql_standing(session, str(position.gtids))
    files = [Position.of(str(row[0]), int(row[1])) for row in session.rows("SHOW BINARY LOGS")]
    if isinstance(position.gtids, MariadbGtids):
        return _mariadb_standing(session, position.gtids, min(files))
    # A file that is shorter than our place has lost its end in a crash: what comes to stand there is something else.
    is_here = any(p.file == position.file and p.offset >= position.offset for p in files)
    return Standing.HERE if is_here else Standing.PURGED


def _mysql_standing(session: Session, gtids: str) -> Standing:
    sql = "SELECT GTID_SUBSET(%s, @@global.gtid_executed), GTID_SUBSET(@@global.gtid_purged, %s)"
    is_known, is_kept = session.rows(sql, (gtids, gtids))[0]
    if not int(is_known):
        return Standing.UNKNOWN
    return Standing.HERE if int(is_kept) else Standing.PURGED


def _mariadb_standing(session: Session, gtids: MariadbGtids, oldest: Position) -> Standing:
    """The state is the last number of each server in each domain; numbers of two servers are not to be compared."""
    # The state and not gtid_binlog_pos: that names one server a domain, and of another one's last number it says
    # nothing.
    state = str(session.value("SELECT @@global.gtid_binlog_state"))
    reached = {(d, s): n for d, s, n in names(state)}
    if any(reached.get((d, s), -1) < n for d, (s, n) in gtids.last.items()):
        return Standing.UNKNOWN
    # The list stands behind the description and, in an encrypted log, what says so.
    events = session.rows("SHOW BINLOG EVENTS IN %s LIMIT 4", (oldest.file,))
    lists = [str(row[5]).strip("[]") for row in events if str(row[2]) == "Gtid_list"]
    return Standing.HERE if all(_is_kept(gtids, names(of)) for of in lists) else Standing.PURGED


def _is_kept(gtids: MariadbGtids, before: list[MariadbName]) -> bool:
    """`before`: what purged files held: the last of each server in each domain, the very last behind the others."""
    last = {domain: (server, number) for domain, server, number in before}
    return all(
        domain in gtids.last
        # With the very number that was purged last of this server, the place is held only if nothing of another server
        # stood behind it there.
        and (gtids.last[domain] == last[domain] or gtids.last[domain][0] != server or gtids.last[domain][1] > number)
        for domain, server, number in before
    )


def retention(session: Session) -> Retention:
    """What the server keeps, read from its files and settings."""
    files = [Position.of(str(row[0]), int(row[1])) for row in session.rows("SHOW BINARY LOGS")]
    if not files:
        raise Refused("The server writes no binary log.", cure="Start it with log_bin set.")
    names = ",".join(f"'{name}'" for name in _KEPT_BY)
    found = session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    settings = {str(k).lower(): str(v) for k, v in found}
    return Retention(
        oldest=Position.of(min(files).file, 4),
        total_bytes=sum(p.offset for p in files),
        keep_seconds=_keep_seconds(settings),
        keep_bytes=int(settings.get("max_binlog_total_size", "0")) or None,
    )


def draw_server_id(session: Session) -> int:
    """A server id in the upper half of the range that neither the server nor a replica of it uses."""
    # F16: two readers of one id: the server ends the dump of the first, and that may be a production replica.
    taken = {int(session.value("SELECT @@global.server_id")), *_replica_ids(session)}
    for _ in range(_DRAWS):
        drawn = _LOWEST_ID + secrets.randbelow(_HIGHEST_ID - _LOWEST_ID + 1)
        if drawn not in taken:
            return drawn
    raise Refused("No free server id was found.", cure="Look at SHOW REPLICAS: nearly all ids seem taken.")


def _replica_ids(session: Session) -> set[int]:
    return {int(row[0]) for row in _first_of(session, "SHOW REPLICAS", "SHOW SLAVE HOSTS")}


def _status_statements(is_mariadb: bool) -> tuple[str, str]:
    # MySQL has the second name since 8.2, and 8.0 knows the first one alone.
    names = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    return names if is_mariadb else (names[1], names[0])


def _first_of(session: Session, *statements: str) -> list[Row]:
    """Rows of the first statement whose syntax this server knows."""
    for statement in statements[:-1]:
        with contextlib.suppress(_UnknownSyntax):
            return _try(session, statement)
    return session.rows(statements[-1])


class _UnknownSyntax(Exception):
    """The server does not know the statement."""


def _try(session: Session, statement: str) -> list[Row]:
    try:
        return session.rows(statement)
    except SqlError as error:
        if error.code == 1064:
            raise _UnknownSyntax from None
        raise


def _keep_seconds(settings: dict[str, str]) -> int | None:
    if settings.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        return None
    seconds = int(settings.get("binlog_expire_logs_seconds", "0"))
    days = float(settings.get("expire_logs_days", "0"))
    return seconds or int(days * 86400) or None
