"""Who stands in the way of the switch, named: sessions with a metadata lock on the table, and old snapshots.

What must stay true: we name and never kill; KILL is the operator's choice. A transaction's beginning is compared by the
server's own clock and rounded down to whole seconds (information_schema has no more), so an old one is never taken for
a young one. InnoDB answers from a copy that it renews when nobody has read it for 100 ms: who reads more often than
that, reads the same for ever (measured on both servers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from vreplication.errors import VReplicationError
from vreplication.mysql.quoting import binary, text
from vreplication.mysql.server import Server, prepared_branches
from vreplication.mysql.session import Row, Session

METADATA_LOCK = "metadata lock"
OPEN_TRANSACTION = "open transaction"
OLD_SNAPSHOT = "old snapshot"
PREPARED_BRANCH = "prepared XA branch"

_WHY = {
    METADATA_LOCK: "holds a lock on {table}",
    OPEN_TRANSACTION: "has a transaction open that may have used {table}",
    OLD_SNAPSHOT: "has read a snapshot from before the copy was complete",
    PREPARED_BRANCH: "is prepared and holds a lock on {table}",
}
# READ COMMITTED and below take a new snapshot for each statement, so theirs is never old.
_OLD_SNAPSHOT_LEVELS = "('REPEATABLE READ','SERIALIZABLE')"
_PLUGIN = "metadata_lock_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A session, or a prepared branch without one (`connection_id` None; `statement` is then its XA COMMIT's text)."""

    kind: str
    connection_id: int | None
    user: str
    host: str
    age_seconds: float
    statement: str
    table: str
    is_certain: bool = True
    """False: the server cannot say which tables this transaction has used."""

    def __str__(self) -> str:
        """One line: who, since when, doing what, and what an operator may do."""
        why = _WHY[self.kind].format(table=self.table)
        if self.connection_id is None:
            return f"XA branch {self.statement or 'of an ended connection'} {why}; XA COMMIT or XA ROLLBACK it."
        doing = f"running {self.statement!r}" if self.statement else "idle"
        who = f"connection {self.connection_id} ({self.user}@{self.host})"
        return f"{who} {why}, for {self.age_seconds:.0f} s, {doing}; wait for it, or KILL {self.connection_id}."


def blockers(session: Session, server: Server, schema: str, table: str, *, own: frozenset[int]) -> list[Blocker]:
    """Who would make LOCK TABLES wait for `table`, oldest first.

    MySQL and MariaDB's plugin metadata_lock_info know it exactly. Elsewhere every open transaction is a possible one
    (`is_certain` False), and a session that holds LOCK TABLES without one cannot be seen.
    """
    holders = _holders(session, server, schema, table)
    if holders is None:
        return _transactions(session, own, _name(schema, table))
    found = _sessions(session, holders.connections - own, METADATA_LOCK, _name(schema, table))
    if holders.has_branch:
        found += _branches(session, server, _name(schema, table))
    return _oldest_first(found)


def old_snapshots(session: Session, since: datetime | str | None, own: frozenset[int]) -> list[Blocker]:
    """Transactions that began before `since` (UTC) and keep their first snapshot, oldest first. None: no copy, no risk.

    What they read from the table after the switch would be the half-filled copy, without any error. One opened WITH
    CONSISTENT SNAPSHOT is listed too, though it has read nothing yet (measured on both servers).
    """
    if since is None:
        return []
    moment = since if isinstance(since, str) else since.strftime("%Y-%m-%d %H:%M:%S.%f")
    condition = (
        f"trx.trx_isolation_level IN {_OLD_SNAPSHOT_LEVELS} "
        # trx_started is in the time zone of the server's operating system, whatever our session's is.
        f"AND CONVERT_TZ(trx.trx_started, 'SYSTEM', '+00:00') < CAST({text(moment)} AS DATETIME(6))"
    )
    return _oldest_first(_listed(session, condition, own, OLD_SNAPSHOT, ""))


def last_matched(session: Session, sidecar: str, workflow: str) -> datetime | None:
    """When the last chunk was matched (UTC); None when none was."""
    found = session.value(f"SELECT MAX(matched_at) FROM {sidecar}.chunk WHERE workflow=%s", (workflow,))
    return found if isinstance(found, datetime) else None


def branch_names(session: Session, server: Server) -> list[str]:
    """Every prepared branch of the server, as XA COMMIT takes it. Empty where XA RECOVER is not allowed."""
    try:
        if server.is_mariadb:
            return [str(row[3]) for row in session.rows("XA RECOVER FORMAT='SQL'")]
        found = prepared_branches(session, is_mariadb=False)
    except VReplicationError:
        return []
    return [f"{binary(gtrid)},{binary(bqual)},{form}" for form, gtrid, bqual in found]


@dataclass(frozen=True, slots=True)
class _Holders:
    """Connections with a granted metadata lock, and whether one belongs to no connection (a detached XA branch)."""

    connections: frozenset[int]
    has_branch: bool


def _holders(session: Session, server: Server, schema: str, table: str) -> _Holders | None:
    """None: this server cannot say."""
    try:
        rows = session.rows(_holders_query(server, schema, table))
    except VReplicationError:
        # The plugin is not installed, or performance_schema is off or not ours to read.
        return None
    connections = frozenset(int(row[0]) for row in rows if row[0])
    return _Holders(connections, any(not row[0] for row in rows))


def _holders_query(server: Server, schema: str, table: str) -> str:
    if server.is_mariadb:
        return (
            f"SELECT thread_id FROM information_schema.{_PLUGIN} "
            f"WHERE table_schema={text(schema)} AND table_name={text(table)} AND lock_type='Table metadata lock'"
        )
    return (
        "SELECT t.processlist_id FROM performance_schema.metadata_locks m "
        "LEFT JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id "
        f"WHERE m.object_type='TABLE' AND m.object_schema={text(schema)} AND m.object_name={text(table)} "
        "AND m.lock_status='GRANTED'"
    )


def _sessions(session: Session, ids: Iterable[int], kind: str, table: str) -> list[Blocker]:
    numbers = ",".join(map(str, sorted(ids)))
    if not numbers:
        return []
    rows = session.rows(f"{_SESSION_COLUMNS} WHERE p.id IN ({numbers})")
    return [_blocker(row, kind, table) for row in rows]


_SESSION_COLUMNS = (
    "SELECT p.id, p.user, p.host, p.time, p.info, "
    "TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx.trx_started, 'SYSTEM', '+00:00'), NOW()) "
    "FROM information_schema.processlist p "
    "LEFT JOIN information_schema.innodb_trx trx ON trx.trx_mysql_thread_id = p.id"
)


def _transactions(session: Session, own: frozenset[int], table: str) -> list[Blocker]:
    return _oldest_first(_listed(session, "TRUE", own, OPEN_TRANSACTION, table, is_certain=False))


def _listed(
    session: Session, condition: str, own: frozenset[int], kind: str, table: str, *, is_certain: bool = True
) -> list[Blocker]:
    """Sessions whose InnoDB transaction fulfills a condition. Without a session it is a prepared branch: no reader."""
    rows = session.rows(f"{_SESSION_COLUMNS} WHERE trx.trx_mysql_thread_id > 0 AND {condition}")
    ours = own | {session.id}
    return [_blocker(row, kind, table, is_certain) for row in rows if int(row[0]) not in ours]


def _branches(session: Session, server: Server, table: str) -> list[Blocker]:
    """The lock's owner is a branch without a connection; which one, the server does not say, so all are named."""
    names = branch_names(session, server)
    return [
        Blocker(
            kind=PREPARED_BRANCH,
            connection_id=None,
            user="",
            host="",
            age_seconds=0.0,
            statement=name,
            table=table,
        )
        for name in names or [""]
    ]


def _blocker(row: Row, kind: str, table: str, is_certain: bool = True) -> Blocker:
    connection_id, user, host, seconds, statement, trx_seconds = row
    age = max(float(seconds or 0), float(trx_seconds or 0))
    return Blocker(
        kind=kind,
        connection_id=int(connection_id),
        user=str(user),
        host=str(host),
        age_seconds=age,
        statement=_one_line(statement),
        table=table,
        is_certain=is_certain,
    )


def _one_line(statement: object, most: int = 200) -> str:
    raw = statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement or "")
    line = " ".join(raw.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _name(schema: str, table: str) -> str:
    return f"{schema}.{table}"


def _oldest_first(found: list[Blocker]) -> list[Blocker]:
    return sorted(found, key=lambda b: -b.age_seconds)
