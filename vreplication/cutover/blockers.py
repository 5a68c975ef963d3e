"""Who stands in the way of the cut-over, named: sessions with a metadata lock on the table, and old snapshots.

What must stay true: a statement leaves here without the secrets in it; we name and never kill, KILL is the operator's
choice. A transaction's beginning is compared by the server's own clock and rounded down to whole seconds
(information_schema has no more), so an old one is never taken for a young one. InnoDB answers from a copy that it
renews when nobody has read it for 100 ms: who reads more often than that, reads the same for ever (measured on both
servers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from vreplication.cutover.transactions import Transaction, open_transactions
from vreplication.errors import VReplicationError
from vreplication.masking import mask
from vreplication.mysql.processes import Process, processes
from vreplication.mysql.quoting import text
from vreplication.mysql.server import Server, prepared_branches
from vreplication.mysql.session import Session

METADATA_LOCK = "metadata lock"
OPEN_TRANSACTION = "open transaction"
OLD_SNAPSHOT = "old snapshot"
PREPARED_BRANCH = "prepared XA branch"
HIDES_OTHERS = "hides others"

_WHY = {
    METADATA_LOCK: "holds a lock on {table}",
    OPEN_TRANSACTION: "has a transaction open that may have used {table}",
    OLD_SNAPSHOT: "has read a snapshot from before the copy was complete",
    PREPARED_BRANCH: "is prepared and holds a lock on {table}",
    HIDES_OTHERS: "has characters of four bytes in its statement, so MySQL cannot list the open transactions",
}
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

    What they read from the table after the cut-over would be the half-filled copy, without any error. One opened WITH
    CONSISTENT SNAPSHOT is listed too, though it has read nothing yet (measured on both servers).
    """
    if since is None:
        return []
    moment = datetime.fromisoformat(since) if isinstance(since, str) else since
    found = open_transactions(session)
    if found is None:
        return _hiding(session, own)
    old = [t for t in found if t.keeps_snapshot and t.began < moment]
    return _oldest_first(_named(session, old, own, OLD_SNAPSHOT, ""))


def branch_names(session: Session, server: Server) -> list[str] | None:
    """Every prepared branch of the server, as XA COMMIT takes it. None where XA RECOVER is not allowed."""
    try:
        if server.is_mariadb:
            return [str(row[3]) for row in session.rows("XA RECOVER FORMAT='SQL'")]
        return list(map(str, prepared_branches(session, is_mariadb=False)))
    except VReplicationError:
        return None


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
        # LEFT: the lock of a prepared branch whose connection has ended belongs to no connection, and must be seen.
        "LEFT JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id "
        f"WHERE m.object_type='TABLE' AND m.object_schema={text(schema)} AND m.object_name={text(table)} "
        "AND m.lock_status='GRANTED'"
    )


def _sessions(session: Session, ids: Iterable[int], kind: str, table: str) -> list[Blocker]:
    """Connections with what they do now, and the age of their transaction if they have one open."""
    wanted = set(ids)
    if not wanted:
        return []
    # For the age alone: the locks are certain, so holders are named also where transactions cannot be listed (3854).
    ages = {t.connection_id: t.age_seconds for t in open_transactions(session) or ()}
    found = processes(session, is_full=True)
    return [_blocker(found[n], ages.get(n, 0.0), kind, table) for n in sorted(wanted) if n in found]


def _transactions(session: Session, own: frozenset[int], table: str) -> list[Blocker]:
    found = open_transactions(session)
    if found is None:
        return _hiding(session, own)
    return _oldest_first(_named(session, found, own, OPEN_TRANSACTION, table, is_certain=False))


def _hiding(session: Session, own: frozenset[int]) -> list[Blocker]:
    """Who keeps MySQL from listing transactions now: somebody whose statement holds a character of four bytes.

    Somebody is named in any case, for what is not known is no open gate.
    """
    others = [p for p in processes(session, is_full=True).values() if p.id not in own | {session.id} and p.statement]
    culprits = [p for p in others if max(p.statement) > "\uffff"]
    return _oldest_first([_blocker(p, 0.0, HIDES_OTHERS, "") for p in culprits or others])


def _named(
    session: Session,
    found: Iterable[Transaction],
    own: frozenset[int],
    kind: str,
    table: str,
    *,
    is_certain: bool = True,
) -> list[Blocker]:
    """Whose transactions these are, our own left out."""
    others = [t for t in found if t.connection_id not in own | {session.id}]
    known = processes(session, is_full=True) if others else {}
    return [
        _blocker(known[t.connection_id], t.age_seconds, kind, table, is_certain)
        for t in others
        if t.connection_id in known
    ]


def _branches(session: Session, server: Server, table: str) -> list[Blocker]:
    """The lock's owner is a branch without a connection; which one, the server does not say, so all are named.

    None where none is prepared: then it was a connection's, which came or went while the server was asked.
    """
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
        for name in ([""] if names is None else names)
    ]


def _blocker(process: Process, trx_seconds: float, kind: str, table: str, is_certain: bool = True) -> Blocker:
    return Blocker(
        kind=kind,
        connection_id=process.id,
        user=process.user,
        host=process.host,
        # Who holds LOCK TABLES may have no transaction; who has one may have begun its present statement only now.
        age_seconds=max(process.seconds, trx_seconds),
        statement=_one_line(mask(process.statement)),
        table=table,
        is_certain=is_certain,
    )


def _one_line(statement: str, most: int = 200) -> str:
    line = " ".join(statement.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _name(schema: str, table: str) -> str:
    return f"{schema}.{table}"


def _oldest_first(found: list[Blocker]) -> list[Blocker]:
    return sorted(found, key=lambda b: -b.age_seconds)


def in_the_way(
    session: Session, server: Server, tables: Sequence[tuple[str, str]], own: frozenset[int]
) -> tuple[str, tuple[Blocker, ...]]:
    """Who kept LOCK TABLES from these tables (schema, name): in words, and those of the first table that has any."""
    each = (tuple(blockers(session, server, *table, own=own)) for table in tables)
    found = next(filter(None, each), ())
    branches = branch_names(session, server)
    who = [str(b) for b in found]
    if branches and not any(b.connection_id is None for b in found):
        who.append(f"Prepared XA branches on this server: {', '.join(branches)}; XA COMMIT or XA ROLLBACK them.")
    return " ".join(who) or "No blocker could be found: it may be a session that holds LOCK TABLES.", found
