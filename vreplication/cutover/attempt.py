"""The cut-over: two sessions and a sentry table, so that readers never miss the table and no write is lost.

What must stay true (docs/cut-over.md has the why of each):
- A locks the table and the sentry; only then the marker is written; B's RENAME is sent only when catch-up has applied
  the marker and holds; only A drops the sentry, when B is seen waiting.
- RENAME waits on the table itself, because the names that it makes sort after the table's own.
- A's LOCK takes InnoDB's table lock too (autocommit off), so no prepared XA branch can hold changes of this table: a
  detached one on MariaDB has lost its metadata lock, but not that one.
- Writers wait at most one deadline: at its end B and A are killed. Whatever happened, the result is told by identity.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from vreplication.cutover import sentry
from vreplication.cutover.ahead import ahead
from vreplication.cutover.blockers import Blocker, blockers, branch_names
from vreplication.cutover.decide import SWITCHED, decide
from vreplication.cutover.finish import carry_auto_increment
from vreplication.cutover.identity import table_identities
from vreplication.cutover.rename import Rename
from vreplication.cutover.watchdog import Watchdog
from vreplication.errors import Ambiguous, SourceChanged, Terminal, Transient, VReplicationError
from vreplication.masking import mask
from vreplication.mysql.processes import still_there
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import Server, check_commit_order, out_of_turn
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state.lease import Lease, fence
from vreplication.state.workflows import WorkflowRow

LOCK_SECONDS = 1
"""How long LOCK TABLES may wait: the servers count whole seconds, and the deadline has more to hold than that."""
BEHIND_BARRIER_SECONDS = 1.0
"""Of the deadline, what the barrier has to leave for comparing the last keys and for RENAME."""
MARGIN_SECONDS = 7.0
"""How much longer than the deadline an answer is waited for: it has been decided by then, only we do not know it."""
LOOKUP_SECONDS = 30.0
"""How long an ambiguous result is looked up on a server that cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an attempt came to. `lock_millis`: LOCK sent to UNLOCK returned; `total_millis`: until RENAME returned."""

    is_switched: bool
    reason: str
    blockers: tuple[Blocker, ...] = ()
    lock_millis: float = 0.0
    total_millis: float = 0.0


class CutOver:
    """Attempts at the cut-over of one workflow. Every attempt opens its own connections and closes them.

    `announce` is told the ids of an attempt's connections before anything is locked, and () when they are closed: they
    belong into the lease's heartbeat, so that who takes over can end them.
    """

    def __init__(
        self,
        url: SourceUrl,
        lease: Lease,
        server: Server,
        row: WorkflowRow,
        *,
        deadline_seconds: float = CUTOVER_DEADLINE_SECONDS,
        announce: Callable[[tuple[int, ...]], None] = lambda ids: None,
    ) -> None:
        _check_names(row)
        self._url = url
        self._lease = lease
        self._server = server
        self._row = row
        self._deadline = deadline_seconds
        self._announce = announce

    def attempt(self, *, barrier: Callable[[float], None], check_locked: Callable[[Session], None]) -> Outcome:
        """Try once. `barrier(seconds)` returns when the marker that it wrote is applied and catch-up holds.

        `check_locked` gets the session that holds the lock; it can read the table, and no other (1100). Both may raise:
        Transient means "not now" and ends in an Outcome, anything else is raised on, with the table untouched.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._announce, ())
            sessions = _Sessions(self._url, self._deadline, stack)
            self._announce(sessions.ids)
            return _Attempt(self, sessions, barrier, check_locked).run()


def _check_names(row: WorkflowRow) -> None:
    """RENAME takes its locks in the order of the names' bytes."""
    table = row.source_table.encode()
    if not (table < row.shadow_table.encode() and table < row.retired_table.encode()):
        raise Terminal(
            f"The names {row.shadow_table} and {row.retired_table} do not sort after {row.source_table}, so a write "
            "could be lost at the cut-over."
        )


class _Sessions:
    """The four connections of an attempt: locker (A), renamer (B), observer (C), spare (the watchdog's)."""

    def __init__(self, url: SourceUrl, deadline: float, stack: contextlib.ExitStack) -> None:
        self.locker, self.renamer, self.observer, self.spare = (self._open(url, deadline, stack) for _ in range(4))

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.locker.id, self.renamer.id, self.observer.id, self.spare.id)

    def keep_awake(self) -> None:
        """Placing the sentry may have taken nearly as long as the server lets a session be idle."""
        for session in (self.renamer, self.observer, self.spare):
            session.execute_raw("DO 0")

    @staticmethod
    def _open(url: SourceUrl, deadline: float, stack: contextlib.ExitStack) -> Session:
        session = connect(url, lock_wait_seconds=LOCK_SECONDS, read_timeout=deadline + MARGIN_SECONDS)
        stack.callback(session.close)
        # A process that is stopped (SIGSTOP, a frozen host) cannot let go: the server does it for us.
        idle = math.ceil(deadline) + 1
        session.execute_raw(f"SET SESSION lock_wait_timeout={LOCK_SECONDS}, wait_timeout={idle}")
        return session


class _NotNow(Exception):
    """Why this attempt ends without a cut-over."""

    def __init__(self, reason: str, found: tuple[Blocker, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blockers = found


class _Attempt:
    """One attempt, from the sentry to the answer."""

    def __init__(
        self,
        cut_over: CutOver,
        sessions: _Sessions,
        barrier: Callable[[float], None],
        check_locked: Callable[[Session], None],
    ) -> None:
        self._cut_over = cut_over
        self._row = cut_over._row
        self._server = cut_over._server
        self._sessions = sessions
        self._barrier = barrier
        self._check_locked = check_locked
        self._watchdog = Watchdog(sessions.spare, cut_over._deadline)
        self._rename = Rename(sessions.renamer, sessions.observer, self._row)
        self._lock_millis = 0.0
        self._is_locked = False
        self._is_way_free = False

    def run(self) -> Outcome:
        try:
            self._place_sentry()
        except (_NotNow, LockWait) as error:
            # Nothing is locked and nothing has been sent; while a backup forbids it no table can be made.
            return self._outcome(False, f"The cut-over cannot be prepared: {error}")
        reach("cutover.before_lock")
        try:
            # B first: a RENAME that is killed while it waits cannot find the way free when A's lock goes.
            with self._watchdog.started(self._sessions.renamer, self._sessions.locker):
                self._switch()
        except _NotNow as refusal:
            return self._give_up(refusal.reason, refusal.blockers)
        except Transient as error:
            return self._give_up(self._sentence(error))
        except BaseException as error:
            # An operator's cancel, a value that differs, a bug: the lock goes first, then it is raised on.
            outcome = self._give_up(str(error))
            if outcome.is_switched and isinstance(error, VReplicationError):
                return outcome
            raise
        return self._outcome(True, "")

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _place_sentry(self) -> None:
        row, observer = self._row, self._sessions.observer
        if unusual := out_of_turn(int(observer.value("SELECT @@GLOBAL.max_write_lock_count"))):
            raise _NotNow(unusual)
        with observer.transaction():
            fence(observer, self._cut_over._lease)
        sentry.remove_sentry(observer, row.source_schema, row.retired_table, row.id)
        sentry.create_sentry(self._sessions.locker, row.source_schema, row.retired_table, row.id)
        self._sessions.keep_awake()

    def _switch(self) -> None:
        self._lock()
        reach("cutover.locked")
        self._check_tables()
        self._barrier(max(0.0, self._watchdog.remaining_seconds - BEHIND_BARRIER_SECONDS))
        reach("cutover.after_barrier")
        self._check_locked(self._sessions.locker)
        self._carry_counter()
        with self._sessions.observer.transaction():
            # The lease row stays locked until RENAME has returned: nobody takes over in between.
            fence(self._sessions.observer, self._cut_over._lease)
            self._rename_and_unlock()

    def _lock(self) -> None:
        row, locker = self._row, self._sessions.locker
        # With autocommit off LOCK TABLES waits for InnoDB's own table lock as well: see the module's promise.
        locker.execute_raw("SET SESSION autocommit=0, innodb_table_locks=1")
        names = ", ".join(f"{qualified(row.source_schema, n)} WRITE" for n in (row.source_table, row.retired_table))
        try:
            locker.execute_raw(f"LOCK TABLES {names}")
        except LockWait:
            raise self._blocked() from None
        self._is_locked = True

    def _blocked(self) -> _NotNow:
        """Name who made LOCK wait; the queue behind it is free again already."""
        row, own = self._row, frozenset(self._sessions.ids)
        found = tuple(blockers(self._sessions.observer, self._server, row.source_schema, row.source_table, own=own))
        branches = branch_names(self._sessions.observer, self._server)
        who = [str(b) for b in found]
        if branches and not any(b.connection_id is None for b in found):
            who.append(f"Prepared XA branches on this server: {', '.join(branches)}; XA COMMIT or XA ROLLBACK them.")
        words = " ".join(who) or "Nobody could be named: it may be a session that holds LOCK TABLES."
        return _NotNow(f"The table could not be locked within {LOCK_SECONDS} s. {words}", found)

    def _check_tables(self) -> None:
        """Under the lock: the table is still the source, the shadow still ours, and what was copied can be trusted."""
        row = self._row
        check_commit_order(self._sessions.observer)
        pair = (row.source_table, row.shadow_table)
        found = table_identities(self._sessions.observer, row.source_schema, pair, self._server.is_mariadb)
        for name, recorded in ((row.source_table, row.source_identity), (row.shadow_table, row.shadow_identity)):
            if found[name] is None or found[name] != recorded:
                raise SourceChanged(
                    f"Table {row.source_schema}.{name} is not the one that workflow {row.id} knows "
                    f"(found {found[name] or 'none'}, recorded {recorded}).",
                    cure="Somebody has rebuilt or replaced it; cancel the workflow and begin again.",
                )

    def _carry_counter(self) -> None:
        row = self._row
        carry_auto_increment(
            self._sessions.observer,
            row.source_schema,
            row.source_table,
            row.shadow_table,
            is_mariadb=self._server.is_mariadb,
        )

    def _rename_and_unlock(self) -> None:
        locker, row = self._sessions.locker, self._row
        self._rename.send(self._watchdog.remaining_seconds)
        self._rename.wait_until_pending(locker.id, self._watchdog.remaining_seconds)
        self._look_ahead()
        reach("cutover.rename_pending")
        self._is_way_free = True
        locker.execute_raw(f"DROP TABLE {qualified(row.source_schema, row.retired_table)}")
        reach("cutover.sentry_dropped")
        locker.execute_raw("UNLOCK TABLES")
        self._note_unlock()
        reach("cutover.after_unlock")
        self._rename.finish(self._watchdog.remaining_seconds + 5)
        reach("cutover.after_rename")

    def _look_ahead(self) -> None:
        """RENAME waits: whoever would be served before it has queued already."""
        row = self._row
        if found := ahead(self._sessions.observer, row.source_schema, row.source_table, self._sessions.ids):
            who = "; ".join(
                f"connection {p.id} ({p.user}@{p.host}), running {mask(p.statement)[:200]!r}" for p in found
            )
            raise _NotNow(f"A DDL statement would be served before the cut-over, by the old table: {who}.")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _note_unlock(self) -> None:
        if self._is_locked:
            self._lock_millis = self._watchdog.elapsed_seconds * 1000
        self._is_locked = False

    def _give_up(self, reason: str, found: tuple[Blocker, ...] = ()) -> Outcome:
        """Let go of everything, then look whether the cut-over has happened after all."""
        self._rename.end(self._sessions.spare)
        self._unlock()
        if self._decided():
            return self._outcome(True, f"Told by table identity, after: {reason}")
        if self._rename.is_sent:
            found = self._users_of_shadow()
            reason = " ".join([reason, *map(str, found)])
        return self._outcome(False, reason, found)

    def _users_of_shadow(self) -> tuple[Blocker, ...]:
        """RENAME needs the shadow as well: who has it open, as far as the server says."""
        row = self._row
        with contextlib.suppress(VReplicationError), connect(self._cut_over._url) as session:
            own = frozenset((*self._sessions.ids, session.id))
            found = blockers(session, self._server, row.source_schema, row.shadow_table, own=own)
            return tuple(b for b in found if b.age_seconds >= 1)
        return ()

    def _unlock(self) -> None:
        """UNLOCK if the session can still speak; otherwise its end frees the lock."""
        locker = self._sessions.locker
        try:
            locker.execute_raw("UNLOCK TABLES")
        except Exception:
            locker.abort()
            self._kill_locker()
        self._note_unlock()

    def _kill_locker(self) -> None:
        """Not on the session of the watchdog's thread alone: that has ended before we come here."""
        with contextlib.suppress(VReplicationError):
            self._sessions.spare.kill(self._sessions.locker.id)

    def _decided(self) -> bool:
        """Look up the result on a fresh connection, and clear the sentry away if there was none."""
        until = time.monotonic() + LOOKUP_SECONDS
        while True:
            try:
                return self._look()
            except Transient as error:
                if time.monotonic() > until:
                    raise Ambiguous(
                        f"The cut-over of {self._row.source_table} may or may not have happened: {error}",
                        cure=f"`vreplication resume {self._row.id}` looks it up when the server answers again.",
                    ) from None
                time.sleep(0.2)

    def _look(self) -> bool:
        with connect(self._cut_over._url) as session:
            self._wait_until_gone(session)
            if self._has_switched(session):
                return True
            with contextlib.suppress(LockWait):
                # The next attempt removes it, or a cancel.
                self._remove_sentry(session)
            return False

    def _has_switched(self, session: Session) -> bool:
        """Raises SourceChanged when nobody can tell. While the sentry stood no RENAME has passed, whatever else has."""
        try:
            return decide(session, self._row) == SWITCHED
        except SourceChanged:
            if self._is_way_free:
                raise
            return False

    def _remove_sentry(self, session: Session) -> None:
        """Of a driver that took over the sentry has the same name: so nobody takes over before ours has gone."""
        row = self._row
        with connect(self._cut_over._url) as other, other.transaction():
            fence(other, self._cut_over._lease)
            sentry.remove_sentry(session, row.source_schema, row.retired_table, row.id)

    def _wait_until_gone(self, session: Session) -> None:
        """A RENAME without an answer may be at work yet, or lie in the server's socket: its session must end first."""
        until = time.monotonic() + 5
        renamer = self._sessions.renamer.id
        while self._rename.is_unanswered and still_there(session, [renamer]):
            if time.monotonic() > until:
                raise Transient("The session that renames the tables does not end.")
            session.kill(renamer)
            time.sleep(0.02)

    def _sentence(self, error: VReplicationError) -> str:
        if self._watchdog.has_fired:
            return f"The deadline of {self._cut_over._deadline:g} s passed. {error}"
        return str(error)

    def _outcome(self, is_switched: bool, reason: str, found: tuple[Blocker, ...] = ()) -> Outcome:
        return Outcome(
            is_switched=is_switched,
            reason=reason,
            blockers=found,
            lock_millis=self._lock_millis,
            total_millis=self._watchdog.elapsed_seconds * 1000,
        )
