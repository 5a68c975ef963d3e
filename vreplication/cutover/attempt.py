"""The cut-over: two sessions and a sentry table, so that readers never miss the table and no write is lost.

Several tables are switched in one RENAME. It takes its locks one after the other, in the order of the names; so each
table has a locker (A) and a sentry of its own, and is left to RENAME when that has come to it.

What must stay true (docs/cut-over.md has the why of each):
- A locks the table and the sentry; only then the marker is written; B's RENAME is sent only when catch-up has applied
  the marker and holds; only A drops the sentry, when B is seen waiting for that very table.
- RENAME waits on the table itself, because the names that it makes sort after the table's own.
- While one sentry stands RENAME cannot succeed, so of several tables all are switched or none.
- No session of ours holds a table's lock while it waits for another one's: the application never meets a deadlock.
- A's LOCK takes InnoDB's table lock too (autocommit off), so no prepared XA branch can hold changes of this table: a
  detached one on MariaDB has lost its metadata lock, but not that one.
- Writers wait at most one deadline: at its end B and A are killed. Whatever happened, the result is told by identity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from vreplication.cutover import carried, sentry
from vreplication.cutover.ahead import ahead
from vreplication.cutover.attached import Attached, is_asked
from vreplication.cutover.blockers import Blocker, in_the_way
from vreplication.cutover.finish import carry_auto_increment
from vreplication.cutover.identity import check_recorded, identities_of
from vreplication.cutover.outcome import Lookup, Outcome
from vreplication.cutover.parts import Held, Part, check_names, in_renames_order
from vreplication.cutover.probe import Probe
from vreplication.cutover.rename import Rename
from vreplication.cutover.sessions import LOCK_SECONDS, Sessions
from vreplication.cutover.watchdog import Watchdog
from vreplication.errors import Transient, VReplicationError
from vreplication.masking import mask
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import Server, check_commit_order, out_of_turn
from vreplication.mysql.session import LockWait, Session
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state.lease import fence
from vreplication.state.workflows import WorkflowRow

BEHIND_BARRIER_SECONDS = 1.0
"""Of the deadline, what the barrier has to leave for comparing the last keys and for RENAME."""


class CutOver:
    """Attempts at the cut-over of one workflow, or of several together. Each opens its own connections and closes them.

    parts: locked in this order. `announce` is told the ids of an attempt's connections before anything is locked, and
    () when they are closed: they belong into the heartbeats of all these leases, so that who takes over one of them can
    end them.
    """

    def __init__(
        self,
        url: SourceUrl,
        server: Server,
        parts: Sequence[Part],
        *,
        deadline_seconds: float = CUTOVER_DEADLINE_SECONDS,
        announce: Callable[[tuple[int, ...]], None] = lambda ids: None,
    ) -> None:
        for part in parts:
            check_names(part.row)
        self._url = url
        self._server = server
        self._parts = tuple(parts)
        self._deadline = deadline_seconds
        self._announce = announce
        self.at_fault: str | None = None
        """Workflow of the table by which an attempt has raised; None: it is nobody's alone."""

    def attempt(self, *, barrier: Callable[[float], None], check_locked: Callable[[Part, Session], None]) -> Outcome:
        """Try once. `barrier(seconds)` returns when the markers that it wrote are applied and catch-up holds.

        `check_locked` is called for each part, with the session that holds its lock; that can read this table, and no
        other (1100). Both may raise: Transient means "not now" and ends in an Outcome, anything else is raised on, with
        the tables untouched.
        """
        with contextlib.ExitStack() as stack:
            # Registered first, so it runs last: () is told when every connection has been closed.
            stack.callback(self._announce, ())
            makes = any(is_asked(part.row) for part in self._parts)
            sessions = Sessions(self._url, self._deadline, len(self._parts), stack, makes=makes)
            self._announce(sessions.ids)
            return _Attempt(self, sessions, barrier, check_locked).run()

    @contextlib.contextmanager
    def about(self, workflow: str) -> Iterator[None]:
        """What is raised inside is this table's affair."""
        try:
            yield
        except Exception:
            self.at_fault = workflow
            raise


class _NotNow(Exception):
    """Why this attempt ends without a cut-over."""

    def __init__(self, reason: str, found: tuple[Blocker, ...] = (), not_locked: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blockers = found
        self.not_locked = not_locked


class _Attempt:
    """One attempt, from the sentries to the answer."""

    def __init__(
        self,
        cut_over: CutOver,
        sessions: Sessions,
        barrier: Callable[[float], None],
        check_locked: Callable[[Part, Session], None],
    ) -> None:
        self._cut_over = cut_over
        self._server = cut_over._server
        self._sessions = sessions
        self._barrier = barrier
        self._check_locked = check_locked
        self._watchdog = Watchdog(sessions.spare, cut_over._deadline)
        self._in_turn = tuple(Held(p, s) for p, s in zip(cut_over._parts, sessions.lockers, strict=True))
        self._held = in_renames_order(self._in_turn)
        self._rename = Rename(sessions.renamer, sessions.observer, self._rows)
        self._attached = Attached(sessions, cut_over.about)
        self._sentries: list[Part] = []
        self._lookup = Lookup(
            url=cut_over._url,
            server=cut_over._server,
            rows=self._rows,
            sessions=sessions,
            rename=self._rename,
            sentries=self._sentries,
        )
        self._lock_millis = 0.0
        self._is_locked = False

    @property
    def _rows(self) -> tuple[WorkflowRow, ...]:
        return tuple(each.part.row for each in self._held)

    def run(self) -> Outcome:
        try:
            self._place_sentries()
        except (_NotNow, LockWait) as error:
            # Nothing is locked and nothing has been sent; while a backup forbids it no table can be made.
            self._lookup.remove_placed()
            return self._outcome(False, f"The cut-over cannot be prepared: {error}")
        except VReplicationError:
            self._lookup.remove_placed()
            raise
        reach("cutover.before_lock")
        try:
            # B first: a RENAME that is killed while it waits cannot find the way free when A's lock goes.
            with self._watchdog.started(self._sessions.renamer, *self._sessions.makers, *self._sessions.lockers):
                self._switch()
        except _NotNow as refusal:
            return self._give_up(refusal.reason, refusal.blockers, refusal.not_locked)
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

    def _place_sentries(self) -> None:
        observer = self._sessions.observer
        # The plan has looked, but the setting is dynamic. A low one lets a queued writer go before RENAME.
        if unusual := out_of_turn(int(observer.value("SELECT @@GLOBAL.max_write_lock_count"))):
            raise _NotNow(unusual)
        with observer.transaction():
            self._fence(observer)
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                # Of an attempt that could not remove its own.
                sentry.remove_sentry(observer, *each.part.sentry, each.part.row.id)
                sentry.create_sentry(each.locker, *each.part.sentry, each.part.row.id)
            self._sentries.append(each.part)
        self._attached.find_keys(self._held[0], self._cut_over._announce)
        self._sessions.keep_awake()

    def _fence(self, session: Session) -> None:
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                fence(session, each.part.lease)

    def _switch(self) -> None:
        # As the caller gives them, who learns from attempts that failed in which order the application takes them.
        for each in self._in_turn:
            self._lock(each)
        reach("cutover.locked")
        # Somebody may have put another table under one of the names since it was last looked at.
        self._check_tables()
        # lock_before_marker: a write between a marker and the lock would be behind all that catch-up has applied.
        self._barrier(max(0.0, self._watchdog.remaining_seconds - BEHIND_BARRIER_SECONDS))
        reach("cutover.after_barrier")
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                # Behind the barrier: before it a row that catch-up has still to apply would be taken for a
                # difference.
                self._check_locked(each.part, each.locker)
                # Under the lock, so no id is given out behind it; by another session, for the locker may use no other
                # table (1100).
                self._carry_counter(each.part.row)
                self._attached.find_triggers(each)
        self._attached.fence_catch_up()
        with self._sessions.observer.transaction():
            # The lease rows stay locked until RENAME has returned: nobody takes over in between.
            self._fence(self._sessions.observer)
            self._attached.make()
            self._rename_and_unlock()
            self._attached.drop_old_keys()

    def _lock(self, each: Held) -> None:
        # With autocommit off LOCK TABLES waits for InnoDB's own table lock as well: see the module's promise.
        each.locker.execute_raw("SET SESSION autocommit=0, innodb_table_locks=1")
        names = ", ".join(f"{qualified(*name)} WRITE" for name in (each.part.table, each.part.sentry))
        try:
            keys = self._attached.keys
            each.locker.execute_raw(keys.lock_sql() if keys else f"LOCK TABLES {names}")
        except LockWait:
            raise self._blocked(each.part) from None
        self._is_locked = True

    def _blocked(self, part: Part) -> _NotNow:
        """Name who made LOCK wait; the queue behind it is free again already."""
        own = frozenset(self._sessions.ids)
        tables = (part.table, *carried.used(self._sessions.observer, part.row), *self._attached.relatives)
        words, found = in_the_way(self._sessions.observer, self._server, tables, own)
        table = "The table" if len(self._held) == 1 else f"Table {'.'.join(part.table)}"
        return _NotNow(f"{table} could not be locked within {LOCK_SECONDS} s. {words}", found, part.row.id)

    def _check_tables(self) -> None:
        """Under the lock: the tables are still the sources, the shadows still ours, what was copied can be trusted."""
        check_commit_order(self._sessions.observer)
        found = identities_of(self._sessions.observer, self._rows, self._server.is_mariadb)
        for row in self._rows:
            with self._cut_over.about(row.id):
                check_recorded(row, found)

    def _carry_counter(self, row: WorkflowRow) -> None:
        carry_auto_increment(
            self._sessions.observer,
            row.source_schema,
            row.source_table,
            row.shadow_table,
            is_mariadb=self._server.is_mariadb,
        )

    def _uninterrupted(self) -> None:
        """Keys that have been moved are not to be cut off from RENAME: what is left takes no lock that is not held."""
        if not self._watchdog.disarm():
            raise Transient("There is no time left to move the foreign keys.")

    def _move_keys(self, locker: Session) -> None:
        """The last thing before the locks go: what dies behind it leaves the children with the new table."""
        if self._attached.keys is None:
            return
        self._attached.keys.guard(self._sessions.observer)
        self._uninterrupted()
        self._attached.keys.move(locker)
        self._attached.keys.check_guarded(self._sessions.observer)
        self._rename.check_pending([locker.id])

    def _rename_and_unlock(self) -> None:
        """One table after the other is left to RENAME, which has queued for it; with the last one the way is free."""
        last = self._held[-1]
        patience = self._sessions.patience_seconds if self._attached.keys else self._watchdog.remaining_seconds
        self._rename.send(patience)
        for number, each in enumerate(self._held):
            self._wait_until_queued(number)
            self._look_ahead()
            reach("cutover.rename_pending")
            self._move_keys(each.locker)
            # Before the sentry goes: the answer to DROP may be lost.
            self._lookup.is_way_free = each is last
            # dropped_by_holder: when the locker's session has ended, and with it the lock, this statement fails.
            each.locker.execute_raw(f"DROP TABLE {qualified(*each.part.sentry)}")
            reach("cutover.sentry_dropped")
            self._attached.let_go()
            each.locker.execute_raw("UNLOCK TABLES")
            if each is not last:
                reach("cutover.handed_over")
        self._note_unlock()
        reach("cutover.after_unlock")
        # At the deadline the watchdog ends it, and that has to be heard of, too.
        self._rename.finish(self._watchdog.remaining_seconds + 5)
        reach("cutover.after_rename")

    def _wait_until_queued(self, number: int) -> None:
        """RENAME waits for the table of this number, and nobody has ended a session that still holds one."""
        lockers, seconds = [each.locker.id for each in self._held[number:]], self._watchdog.remaining_seconds
        # Its first lock is the first table's, for all other names sort behind: waiting can only mean that one.
        if number == 0 or self._sessions.prober is None:
            self._rename.wait_until_pending(lockers, seconds)
            return
        probe = Probe(self._sessions.prober, self._sessions.observer)
        self._rename.wait_until_queued(probe, self._held[number].part.table, lockers, seconds)

    def _look_ahead(self) -> None:
        """RENAME waits: whoever would be served before it has queued already."""
        tables = [each.part.table for each in self._held]
        if found := ahead(self._sessions.observer, tables, self._sessions.ids):
            who = "; ".join(
                f"connection {p.id} ({p.user}@{p.host}), running {mask(p.statement)[:200]!r}" for p in found
            )
            # When the lock goes it is served by the table that it meant, and ends the workflow as any DDL statement
            # does.
            raise _NotNow(f"A DDL statement would be served before the cut-over, by the old table: {who}.")
        if waiting := self._attached.dropped_ahead():
            raise _NotNow(f"A trigger would be dropped of the old table alone: {mask('; '.join(waiting))}.")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _note_unlock(self) -> None:
        if self._is_locked:
            self._lock_millis = self._watchdog.elapsed_seconds * 1000
        self._is_locked = False

    def _give_up(self, reason: str, found: tuple[Blocker, ...] = (), not_locked: str | None = None) -> Outcome:
        """Let go of everything, then look whether the cut-over has happened after all."""
        # First, as for the watchdog: while a lock of ours stands it can only wait.
        self._rename.end(self._sessions.spare)
        self._attached.put_back()
        for each in self._held:
            self._unlock(each.locker)
        self._note_unlock()
        if self._lookup.decided():
            return self._outcome(True, f"Told by table identity, after: {reason}")
        if self._rename.is_sent:
            # The tables were locked, so what kept RENAME waiting may be a reader of a shadow, which nobody has
            # locked.
            found = self._lookup.users_of_shadows()
            reason = " ".join([reason, *map(str, found)])
        return self._outcome(False, reason, found, not_locked)

    def _unlock(self, locker: Session) -> None:
        """UNLOCK if the session can still speak; otherwise its end frees the lock."""
        try:
            locker.execute_raw("UNLOCK TABLES")
        except Exception:
            locker.abort()
            # Not on the session of the watchdog's thread alone: that has ended before we come here.
            with contextlib.suppress(VReplicationError):
                self._sessions.spare.kill(locker.id)

    def _sentence(self, error: VReplicationError) -> str:
        if self._watchdog.has_fired:
            return f"The deadline of {self._cut_over._deadline:g} s passed. {error}"
        return str(error)

    def _outcome(
        self, is_switched: bool, reason: str, found: tuple[Blocker, ...] = (), not_locked: str | None = None
    ) -> Outcome:
        return Outcome(
            is_switched=is_switched,
            reason=reason,
            not_locked=not_locked,
            blockers=found,
            lock_millis=self._lock_millis,
            total_millis=self._watchdog.elapsed_seconds * 1000,
        )
