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
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vreplication.cutover import carried, foreign, sentry
from vreplication.cutover.ahead import ahead
from vreplication.cutover.blockers import Blocker, blockers, branch_names
from vreplication.cutover.carried import Carried
from vreplication.cutover.decide import SWITCHED, decide_together
from vreplication.cutover.finish import carry_auto_increment
from vreplication.cutover.foreign import KeyMove
from vreplication.cutover.identity import table_identities
from vreplication.cutover.probe import Probe
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
from vreplication.planning.foreign import family
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state.lease import Lease, end_connections, fence
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
class Part:
    """A table to be switched, by its workflow's row, and the lease of who drives that."""

    row: WorkflowRow
    lease: Lease

    @property
    def table(self) -> tuple[str, str]:
        """(schema, name)"""
        return self.row.source_schema, self.row.source_table

    @property
    def sentry(self) -> tuple[str, str]:
        return self.row.source_schema, self.row.retired_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an attempt came to. `lock_millis`: LOCK sent to UNLOCK returned; `total_millis`: until RENAME returned."""

    is_switched: bool
    reason: str
    not_locked: str | None = None
    """Workflow of the table whose lock could not be had in time."""
    blockers: tuple[Blocker, ...] = ()
    lock_millis: float = 0.0
    total_millis: float = 0.0


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
            _check_names(part.row)
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
            stack.callback(self._announce, ())
            makes = any(carried.is_asked(part.row) or foreign.is_asked(part.row) for part in self._parts)
            sessions = _Sessions(self._url, self._deadline, len(self._parts), stack, makes=makes)
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


def _check_names(row: WorkflowRow) -> None:
    """RENAME takes its locks in the order of the names' bytes."""
    table = row.source_table.encode()
    if not (table < row.shadow_table.encode() and table < row.retired_table.encode()):
        raise Terminal(
            f"The names {row.shadow_table} and {row.retired_table} do not sort after {row.source_table}, so a write "
            "could be lost at the cut-over."
        )


def _in_renames_order(part: Part) -> tuple[bytes, bytes]:
    schema, table = part.table
    return schema.encode(), table.encode()


class _Sessions:
    """The connections of an attempt: lockers (A, one a table), renamer (B), observer (C), spare (the watchdog's).

    prober: of several tables, for where RENAME waits. maker: of triggers and foreign keys that are to be carried over.
    """

    def __init__(
        self, url: SourceUrl, deadline: float, tables: int, stack: contextlib.ExitStack, *, makes: bool = False
    ) -> None:
        self._place = (url, deadline, stack)
        first, self.renamer, self.observer, self.spare = (self._open(*self._place) for _ in range(4))
        self.lockers = (first, *(self._open(*self._place) for _ in range(tables - 1)))
        self.prober = self._open(*self._place) if tables > 1 else None
        self.maker = self._open(*self._place) if makes else None
        self._guards: tuple[Session, ...] = ()
        """They hold off writers of tables that foreign keys tie to it."""

    @property
    def ids(self) -> tuple[int, ...]:
        first, *others = self.lockers
        return tuple(s.id for s in (first, self.renamer, self.observer, self.spare, *others, *self._seldom))

    def open_guards(self, number: int) -> tuple[Session, ...]:
        self._guards = tuple(self._open(*self._place) for _ in range(number))
        return self._guards

    @property
    def makers(self) -> tuple[Session, ...]:
        return self._guards if self.maker is None else (self.maker, *self._guards)

    @property
    def _seldom(self) -> list[Session]:
        return [session for session in (self.prober, *self.makers) if session]

    def keep_awake(self) -> None:
        """Placing the sentries may have taken nearly as long as the server lets a session be idle."""
        for session in (*self.lockers, self.renamer, self.observer, self.spare, *self._seldom):
            session.execute_raw("DO 0")

    @staticmethod
    def _open(url: SourceUrl, deadline: float, stack: contextlib.ExitStack) -> Session:
        session = connect(url, lock_wait_seconds=LOCK_SECONDS, read_timeout=deadline + MARGIN_SECONDS)
        stack.callback(session.close)
        # A process that is stopped (SIGSTOP, a frozen host) cannot let go: the server does it for us.
        idle = math.ceil(deadline) + 1
        session.execute_raw(f"SET SESSION lock_wait_timeout={LOCK_SECONDS}, wait_timeout={idle}")
        return session


@dataclass(frozen=True, slots=True)
class _Held:
    """A part and the session that locks its table."""

    part: Part
    locker: Session


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
        sessions: _Sessions,
        barrier: Callable[[float], None],
        check_locked: Callable[[Part, Session], None],
    ) -> None:
        self._cut_over = cut_over
        self._server = cut_over._server
        self._sessions = sessions
        self._barrier = barrier
        self._check_locked = check_locked
        self._watchdog = Watchdog(sessions.spare, cut_over._deadline)
        self._in_turn = tuple(_Held(p, s) for p, s in zip(cut_over._parts, sessions.lockers, strict=True))
        self._held = tuple(sorted(self._in_turn, key=lambda each: _in_renames_order(each.part)))
        """As RENAME comes to them."""
        self._rename = Rename(sessions.renamer, sessions.observer, self._rows)
        self._sentries: list[Part] = []
        self._carried: list[Carried] = []
        self._keys: KeyMove | None = None
        self._lock_millis = 0.0
        self._is_locked = False
        self._is_way_free = False

    @property
    def _rows(self) -> tuple[WorkflowRow, ...]:
        return tuple(each.part.row for each in self._held)

    def run(self) -> Outcome:
        try:
            self._place_sentries()
        except (_NotNow, LockWait) as error:
            # Nothing is locked and nothing has been sent; while a backup forbids it no table can be made.
            self._remove_placed()
            return self._outcome(False, f"The cut-over cannot be prepared: {error}")
        except VReplicationError:
            self._remove_placed()
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
        if unusual := out_of_turn(int(observer.value("SELECT @@GLOBAL.max_write_lock_count"))):
            raise _NotNow(unusual)
        with observer.transaction():
            self._fence(observer)
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                sentry.remove_sentry(observer, *each.part.sentry, each.part.row.id)
                sentry.create_sentry(each.locker, *each.part.sentry, each.part.row.id)
            self._sentries.append(each.part)
        self._find_keys()
        self._sessions.keep_awake()

    def _find_keys(self) -> None:
        """Tables with foreign keys are switched alone."""
        row, maker = self._rows[0], self._sessions.maker
        if maker is None or not foreign.is_asked(row):
            return
        found = family(self._sessions.observer, self._held[0].part.table, is_mariadb=True)
        if found.relatives:
            guards = self._sessions.open_guards(len(found.relatives))
            self._cut_over._announce(self._sessions.ids)
            self._keys = KeyMove(row, found, maker, guards)

    def _fence(self, session: Session) -> None:
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                fence(session, each.part.lease)

    def _switch(self) -> None:
        for each in self._in_turn:
            self._lock(each)
        reach("cutover.locked")
        self._check_tables()
        self._barrier(max(0.0, self._watchdog.remaining_seconds - BEHIND_BARRIER_SECONDS))
        reach("cutover.after_barrier")
        for each in self._held:
            with self._cut_over.about(each.part.row.id):
                self._check_locked(each.part, each.locker)
                self._carry_counter(each.part.row)
                self._find_triggers(each)
        if self._keys:
            self._keys.check_same(self._sessions.observer)
            self._keys.fence_catch_up(self._sessions.observer)
        with self._sessions.observer.transaction():
            # The lease rows stay locked until RENAME has returned: nobody takes over in between.
            self._fence(self._sessions.observer)
            self._make_triggers()
            if self._keys:
                self._keys.check_fenced(self._sessions.observer)
                self._keys.give()
            self._rename_and_unlock()
            self._drop_old_keys()

    def _lock(self, each: _Held) -> None:
        # With autocommit off LOCK TABLES waits for InnoDB's own table lock as well: see the module's promise.
        each.locker.execute_raw("SET SESSION autocommit=0, innodb_table_locks=1")
        names = ", ".join(f"{qualified(*name)} WRITE" for name in (each.part.table, each.part.sentry))
        try:
            each.locker.execute_raw(self._keys.lock_sql() if self._keys else f"LOCK TABLES {names}")
        except LockWait:
            raise self._blocked(each.part) from None
        self._is_locked = True

    def _blocked(self, part: Part) -> _NotNow:
        """Name who made LOCK wait; the queue behind it is free again already."""
        own = frozenset(self._sessions.ids)
        relatives = self._keys.family.relatives if self._keys else ()
        tables = (part.table, *carried.used(self._sessions.observer, part.row), *relatives)
        each = (tuple(blockers(self._sessions.observer, self._server, *table, own=own)) for table in tables)
        found = next(filter(None, each), ())
        branches = branch_names(self._sessions.observer, self._server)
        who = [str(b) for b in found]
        if branches and not any(b.connection_id is None for b in found):
            who.append(f"Prepared XA branches on this server: {', '.join(branches)}; XA COMMIT or XA ROLLBACK them.")
        words = " ".join(who) or "No blocker could be found: it may be a session that holds LOCK TABLES."
        table = "The table" if len(self._held) == 1 else f"Table {'.'.join(part.table)}"
        return _NotNow(f"{table} could not be locked within {LOCK_SECONDS} s. {words}", found, part.row.id)

    def _check_tables(self) -> None:
        """Under the lock: the tables are still the sources, the shadows still ours, what was copied can be trusted."""
        check_commit_order(self._sessions.observer)
        found = self._identities()
        for row in self._rows:
            with self._cut_over.about(row.id):
                _check_identities(row, found)

    def _identities(self) -> dict[tuple[str, str], str | None]:
        """Of each schema's tables in one statement: it is read while writers wait."""
        found: dict[tuple[str, str], str | None] = {}
        for schema in dict.fromkeys(row.source_schema for row in self._rows):
            names = [n for r in self._rows if r.source_schema == schema for n in (r.source_table, r.shadow_table)]
            seen = table_identities(self._sessions.observer, schema, names, self._server.is_mariadb)
            found |= {(schema, name): identity for name, identity in seen.items()}
        return found

    def _carry_counter(self, row: WorkflowRow) -> None:
        carry_auto_increment(
            self._sessions.observer,
            row.source_schema,
            row.source_table,
            row.shadow_table,
            is_mariadb=self._server.is_mariadb,
        )

    def _find_triggers(self, each: _Held) -> None:
        found = carried.fence_catch_up(each.locker, self._sessions.observer, each.part.row)
        self._carried += [found] if found else []

    def _make_triggers(self) -> None:
        """Nobody takes catch-up's lease before RENAME has returned, either."""
        for each in self._carried:
            with self._cut_over.about(each.row.id):
                fence(self._sessions.observer, each.fenced)
                assert self._sessions.maker is not None
                carried.make(self._sessions.maker, each)

    def _uninterrupted(self) -> None:
        """Keys that have been moved are not to be cut off from RENAME: what is left takes no lock that is not held."""
        if not self._watchdog.disarm():
            raise Transient("There is no time left to move the foreign keys.")

    def _move_keys(self, locker: Session) -> None:
        """The last thing before the locks go: what dies behind it leaves the children with the new table."""
        if self._keys is None:
            return
        self._keys.guard(self._sessions.observer)
        self._uninterrupted()
        self._keys.move(locker)
        self._keys.check_guarded(self._sessions.observer)
        self._rename.check_pending([locker.id])

    def _drop_old_keys(self) -> None:
        """What cannot be dropped now is dropped behind the cut-over."""
        if self._keys:
            with contextlib.suppress(VReplicationError):
                self._keys.drop_old()
            self._keys.free(self._sessions.spare)

    def _rename_and_unlock(self) -> None:
        """One table after the other is left to RENAME, which has queued for it; with the last one the way is free."""
        last = self._held[-1]
        self._rename.send(self._watchdog.remaining_seconds)
        for number, each in enumerate(self._held):
            self._wait_until_queued(number)
            self._look_ahead()
            reach("cutover.rename_pending")
            self._move_keys(each.locker)
            self._is_way_free = each is last
            each.locker.execute_raw(f"DROP TABLE {qualified(*each.part.sentry)}")
            reach("cutover.sentry_dropped")
            if self._keys:
                self._keys.let_go()
            each.locker.execute_raw("UNLOCK TABLES")
            if each is not last:
                reach("cutover.handed_over")
        self._note_unlock()
        reach("cutover.after_unlock")
        self._rename.finish(self._watchdog.remaining_seconds + 5)
        reach("cutover.after_rename")

    def _wait_until_queued(self, number: int) -> None:
        """RENAME waits for the table of this number, and nobody has ended a session that still holds one."""
        lockers, seconds = [each.locker.id for each in self._held[number:]], self._watchdog.remaining_seconds
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
            raise _NotNow(f"A DDL statement would be served before the cut-over, by the old table: {who}.")
        if waiting := carried.dropped_ahead(self._sessions.observer, self._carried):
            raise _NotNow(f"A trigger would be dropped of the old table alone: {mask('; '.join(waiting))}.")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _note_unlock(self) -> None:
        if self._is_locked:
            self._lock_millis = self._watchdog.elapsed_seconds * 1000
        self._is_locked = False

    def _give_up(self, reason: str, found: tuple[Blocker, ...] = (), not_locked: str | None = None) -> Outcome:
        """Let go of everything, then look whether the cut-over has happened after all."""
        self._rename.end(self._sessions.spare)
        if self._keys:
            self._keys.put_back()
            self._keys.free(self._sessions.spare)
        for each in self._held:
            self._unlock(each.locker)
        self._note_unlock()
        if self._decided():
            return self._outcome(True, f"Told by table identity, after: {reason}")
        if self._rename.is_sent:
            found = self._users_of_shadows()
            reason = " ".join([reason, *map(str, found)])
        return self._outcome(False, reason, found, not_locked)

    def _users_of_shadows(self) -> tuple[Blocker, ...]:
        """RENAME needs the shadows as well: who has one open, as far as the server says."""
        with contextlib.suppress(VReplicationError), connect(self._cut_over._url) as session:
            own = frozenset((*self._sessions.ids, session.id))
            shadows = [(row.source_schema, row.shadow_table) for row in self._rows]
            found = [b for shadow in shadows for b in blockers(session, self._server, *shadow, own=own)]
            return tuple(b for b in found if b.age_seconds >= 1)
        return ()

    def _unlock(self, locker: Session) -> None:
        """UNLOCK if the session can still speak; otherwise its end frees the lock."""
        try:
            locker.execute_raw("UNLOCK TABLES")
        except Exception:
            locker.abort()
            # Not on the session of the watchdog's thread alone: that has ended before we come here.
            with contextlib.suppress(VReplicationError):
                self._sessions.spare.kill(locker.id)

    def _decided(self) -> bool:
        """Look up the result on a fresh connection, and clear the sentries away if there was none."""
        until = time.monotonic() + LOOKUP_SECONDS
        while True:
            try:
                return self._look()
            except Transient as error:
                if time.monotonic() > until:
                    raise self._ambiguous(error) from None
                time.sleep(0.2)

    def _ambiguous(self, error: Transient) -> Ambiguous:
        names, workflow = ", ".join(row.source_table for row in self._rows), self._rows[0].id
        if len(self._rows) > 1:
            # Of several tables each has the number behind the id of all.
            workflow = workflow.rpartition(".")[0]
        return Ambiguous(
            f"The cut-over of {names} may or may not have happened: {error}",
            cure=f"`vreplication resume {workflow}` looks it up when the server answers again.",
        )

    def _look(self) -> bool:
        with connect(self._cut_over._url) as session:
            self._wait_until_gone(session)
            if self._sessions.makers:
                # What it may still be making would come after those that are there have been removed.
                end_connections(session, tuple(each.id for each in self._sessions.makers))
            if self._has_switched(session):
                return True
            with contextlib.suppress(LockWait):
                # The next attempt removes them, or a cancel.
                self._remove_sentries(session)
            return False

    def _has_switched(self, session: Session) -> bool:
        """Raises SourceChanged when nobody can tell. While a sentry stood no RENAME has passed, whatever else has."""
        try:
            return decide_together(session, self._rows) == SWITCHED
        except SourceChanged:
            if self._is_way_free:
                raise
            return False

    def _remove_placed(self) -> None:
        """Of an attempt that has not begun; what stays is removed by the next one, or by a cancel."""
        with contextlib.suppress(VReplicationError), connect(self._cut_over._url) as session:
            self._remove_sentries(session)

    def _remove_sentries(self, session: Session) -> None:
        """Of a driver that took over they have the same names: so nobody takes over before ours have gone."""
        with connect(self._cut_over._url) as other, other.transaction():
            for part in self._sentries:
                fence(other, part.lease)
                sentry.remove_sentry(session, *part.sentry, part.row.id)

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


def _check_identities(row: WorkflowRow, found: Mapping[tuple[str, str], str | None]) -> None:
    for name, recorded in ((row.source_table, row.source_identity), (row.shadow_table, row.shadow_identity)):
        seen = found[row.source_schema, name]
        if seen is None or seen != recorded:
            raise SourceChanged(
                f"Table {row.source_schema}.{name} is not the one that workflow {row.id} knows "
                f"(found {seen or 'none'}, recorded {recorded}).",
                cure="Somebody has rebuilt or replaced it; cancel the workflow and begin again.",
            )
