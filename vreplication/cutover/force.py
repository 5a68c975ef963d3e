"""--force-cutover-after: end the sessions that hold the cut-over up, because a person asked for it beforehand.

What must stay true: nobody is ended but who certainly holds a lock on the table, when nothing else holds the cut-over
up, after the time that was asked for; never a statement of a moment, who works for replication or the server, who is
logged in as we are, whose transaction is older or larger than was allowed, or of whom that is not known; nobody while
any XA branch is prepared, for it may be theirs; each is in the journal before it is ended. And nobody who is not what
was chosen any more: directly before KILL it is looked at again, its transaction first and its lock last, so that what
is ended has held the lock in that instant, and what is rolled back is what was chosen or has only just begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vreplication.clock import SYSTEM, Clock
from vreplication.cutover.blockers import METADATA_LOCK, Blocker, blockers, branch_names
from vreplication.cutover.reasons import BLOCKER_SECONDS
from vreplication.cutover.transactions import Transaction, fresh_transactions
from vreplication.mysql.processes import Process, processes
from vreplication.mysql.server import Server
from vreplication.mysql.session import Session, SqlError
from vreplication.pausepoints import reach
from vreplication.state import journal, lease
from vreplication.state.workflows import WorkflowRow

BLOCKED = "blocked"
_PASSING = frozenset({BLOCKED, "lag", "prepared", "not_running", "old_snapshot"})
"""Reasons that come and go by themselves: the time runs on meanwhile."""
_SYSTEM_USERS = frozenset({"system user", "event_scheduler", "unauthenticated user", "mysql.session"})
_SYSTEM_COMMANDS = ("binlog dump", "slave", "replica", "connect", "daemon", "group_replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What may be rolled back at the most."""

    after_seconds: float
    max_age_seconds: float
    max_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """trx: what it had open when it was chosen."""

    blocker: Blocker
    trx: Transaction | None


@dataclass(slots=True, kw_only=True)
class Force:
    """Of one workflow and one driver. own: our connections; notify: told of each that is ended, and why one is not."""

    caps: Caps
    server: Server
    row: WorkflowRow
    session: Callable[[], Session]
    own: Callable[[], frozenset[int]]
    notify: Callable[[str], None]
    clock: Clock = SYSTEM
    since: float | None = None
    said: set[str] = field(default_factory=set)

    def note(self, codes: list[str]) -> None:
        """The gate's reasons, read once more; who is in the way for too long is ended."""
        found = set(codes)
        # The time counts while sessions are what is in the way: beside them only what passes by itself may have closed
        # the gate.
        if found - _PASSING or not found:
            self.since = None
        elif BLOCKED in found:
            self.since = self.clock.monotonic() if self.since is None else self.since
            # Only when nothing else is in the way at this moment: to end a session has to open the gate.
            if found == {BLOCKED} and self.clock.monotonic() - self.since >= self.caps.after_seconds:
                self._end_all()

    def _end_all(self) -> None:
        session = self.session()
        for chosen in list(self._chosen(session)):
            self._end(session, chosen)

    def _blockers(self, session: Session) -> list[Blocker]:
        schema, tables = self.row.source_schema, (self.row.source_table, self.row.shadow_table)
        own = self.own() | {session.id}
        return [b for table in tables for b in blockers(session, self.server, schema, table, own=own)]

    def _chosen(self, session: Session) -> Iterator[_Chosen]:
        """Who may be ended.

        Transactions are read before locks: read the other way round, one that commits in between would be a holder
        of a lock who has changed nothing, and no cap would save it.
        """
        prepared, open_ones = branch_names(session, self.server) or [], fresh_transactions(session.url)
        reach("force.transactions_read")
        found = [b for b in self._blockers(session) if b.age_seconds >= BLOCKER_SECONDS]
        known = processes(session, is_full=True)
        by_id = None if open_ones is None else {t.connection_id: t for t in open_ones}
        for blocker in {b.connection_id: b for b in found}.values():
            process = known.get(blocker.connection_id or 0)
            why = _why_not(blocker, process, by_id, prepared, self.caps, session.url.user)
            if why:
                self._say(f"connection {blocker.connection_id} is not ended by --force-cutover-after: {why}")
            else:
                yield _Chosen(blocker=blocker, trx=(by_id or {}).get(blocker.connection_id or 0))

    def _end(self, session: Session, chosen: _Chosen) -> None:
        blocker, number = chosen.blocker, chosen.blocker.connection_id or 0
        rows = chosen.trx.rows_modified if chosen.trx else 0
        words = (
            f"connection {number} ({blocker.user}@{blocker.host}), {blocker.age_seconds:.0f} s old, {rows} rows changed"
            f", {f'running {blocker.statement!r}' if blocker.statement else 'idle'}: it held a lock on {blocker.table}"
        )
        # Before KILL: what cannot be undone is on record even if we die behind it. Where it then does not happen, the
        # journal says so in the next entry.
        journal.write(session, self.row.id, "killed", words, actor=lease.me())
        reach("force.chosen")
        why = self._changed(session, chosen) or _kill(session, number)
        if why:
            journal.write(session, self.row.id, "not killed", f"connection {number}: {why}", actor=lease.me())
            self._say(f"connection {number} was not ended: {why}")
        else:
            self.notify(f"ended {words}")

    def _changed(self, session: Session, chosen: _Chosen) -> str:
        """Why it may not be ended any more, a moment later; '' where it may."""
        number, known = chosen.blocker.connection_id, fresh_transactions(session.url)
        if known is None:
            return "the server does not tell any more how much it has changed."
        trx = next((t for t in known if t.connection_id == number), None)
        if not (trx.is_same(chosen.trx) if trx else chosen.trx is None):
            return "its transaction has ended, or written for the first time, since it was chosen."
        if trx is not None and (why := _too_much(chosen.blocker, trx, self.caps)):
            return why
        # KILL does not roll a prepared branch back, but leaves it without a connection: on MariaDB it then has lost
        # its metadata lock.
        if branch_names(session, self.server):
            return "an XA branch is prepared now, which may be its own."
        # The lock last of all: what is ended has held it in this instant.
        if not any(b.connection_id == number and b.is_certain for b in self._blockers(session)):
            return "it has ended, or given its lock back, since it was chosen."
        return ""

    def _say(self, words: str) -> None:
        """Once."""
        if words not in self.said:
            self.said.add(words)
            self.notify(words)


def _kill(session: Session, number: int) -> str:
    """Why it could not be ended; '' where it is."""
    try:
        session.kill(number)
    except SqlError as error:
        return error.message
    return ""


def _why_not(
    blocker: Blocker,
    process: Process | None,
    by_id: dict[int, Transaction] | None,
    prepared: list[str],
    caps: Caps,
    user: str,
) -> str:
    """'' where it may be ended."""
    if blocker.kind != METADATA_LOCK or not blocker.is_certain or process is None:
        return "it is not certain that it holds a lock on the table."
    if process.user in _SYSTEM_USERS or process.command.lower().startswith(_SYSTEM_COMMANDS):
        return f"it works for the server ({process.user}, {process.command})."
    if process.user == user:
        return f"it is logged in as {user}, as vreplication is."
    if prepared:
        return "an XA branch is prepared, which may be its own."
    if by_id is None:
        return "the server does not tell how much it has changed."
    return _too_much(blocker, by_id.get(process.id), caps)


def _too_much(blocker: Blocker, trx: Transaction | None, caps: Caps) -> str:
    if blocker.age_seconds > caps.max_age_seconds:
        return f"it is {blocker.age_seconds:.0f} s old, and --force-cutover-max-age is {caps.max_age_seconds:.0f}."
    if trx is not None and trx.rows_modified > caps.max_rows:
        return f"it has changed {trx.rows_modified:,} rows, and --force-cutover-max-rows is {caps.max_rows:,}."
    return ""
