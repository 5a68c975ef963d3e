"""The cut-over of a table with foreign keys on MySQL: by one session, which holds all of the locks.

RENAME and ADD FOREIGN KEY want the exclusive locks of all these tables, so the one session does all of it. It locks the
new table, too, to which catch-up cannot write then. So catch-up stands still before the lock, and what the log has
behind that place is written by the holder of the lock.

What must stay true (docs/design/foreign-keys.md has the why of each):
- All locks come with one statement and go with one: in between none changes hands, so nothing can be written to the old
  table behind the marker up to which the log is read, for that is written under the lock.
- Before the holder writes the first row catch-up has lost its lease, durably: what it has in hand never comes later.
- A child gets the new key beside its old one, which goes behind RENAME. Whatever dies in between, there is a key more
  than there should be, never one less: rows may be refused until the next start, none loses its parent.
- Writers wait at most one deadline, and from the first child's ALTER on as long as the statements take that are left:
  they wait for no lock. Whatever happened, the result is told by identity.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from vreplication.cutover import carried, sentry
from vreplication.cutover.blockers import Blocker, in_the_way
from vreplication.cutover.decide import SWITCHED, decide
from vreplication.cutover.doubled import DoubledKeys
from vreplication.cutover.finish import carry_auto_increment
from vreplication.cutover.identity import check_recorded, identities_of
from vreplication.cutover.outcome import LOOKUP_SECONDS, Outcome, ambiguous
from vreplication.cutover.parts import Part
from vreplication.cutover.sessions import LOCK_SECONDS, Sessions
from vreplication.cutover.watchdog import Watchdog
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.server import Server, check_commit_order
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.schema.introspect import exists
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state import backups, lease
from vreplication.state.backups import BackupUnderWay
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow

BEHIND_MARKER_SECONDS = 1.0
"""Of the deadline, what reading up to the marker has to leave for writing, comparing and the ALTERs."""


class Rest(Protocol):
    """What the log has behind the place at which catch-up stands still."""

    @property
    def keys(self) -> Sequence[str]:
        """Of the rows in it, as comma lists of literals."""

    @property
    def aliases(self) -> Sequence[str]:
        """Other names under which the holder has to lock the new table."""

    def read(self, seconds: float) -> None:
        """Under the lock: write the marker and read up to it. Raises Transient."""

    def write(self, holder: Session) -> None:
        """To the new table, in the transaction that is open."""


class Alone:
    """Attempts at the cut-over of one workflow. `announce`: as of `cutover.attempt.CutOver`."""

    def __init__(
        self,
        url: SourceUrl,
        server: Server,
        part: Part,
        *,
        deadline_seconds: float = CUTOVER_DEADLINE_SECONDS,
        announce: Callable[[tuple[int, ...]], None] = lambda ids: None,
    ) -> None:
        self.url = url
        self.server = server
        self.part = part
        self.deadline = deadline_seconds
        self._announce = announce

    def attempt(
        self,
        *,
        hold: Callable[[float], None],
        reading: Callable[[Session], AbstractContextManager[Rest]],
        check_locked: Callable[[Session, Rest], None],
    ) -> Outcome:
        """Try once. `hold(seconds)` returns when catch-up stands still; `reading` begins to read the log from there on,
        for the session that is going to write it. `check_locked`: as of `CutOver.attempt`, but for the holder's session
        reads both tables. All may raise, as there.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._announce, ())
            sessions = Sessions(self.url, self.deadline, 1, stack)
            self._announce(sessions.ids)
            found = _Attempt(self, sessions, check_locked)
            try:
                found.prepare()
                hold(self.deadline)
                rest = stack.enter_context(reading(found.holder))
                # All of that may have taken nearly as long as the server lets a session be idle.
                sessions.keep_awake()
                reach("cutover.before_lock")
            except (LockWait, BackupUnderWay) as error:
                return Outcome(is_switched=False, reason=f"The cut-over cannot be prepared: {error}")
            except Transient as error:
                return Outcome(is_switched=False, reason=str(error))
            return found.run(rest)


class _Blocked(LockWait):
    """Somebody uses one of the tables."""

    def __init__(self, message: str, found: tuple[Blocker, ...]) -> None:
        super().__init__(message)
        self.blockers = found


class _Attempt:
    """One attempt, from the lock to the answer."""

    def __init__(self, of: Alone, sessions: Sessions, check_locked: Callable[[Session, Rest], None]) -> None:
        self._of = of
        self._sessions = sessions
        self._observer = sessions.observer
        self.holder = sessions.lockers[0]
        self._check_locked = check_locked
        self._watchdog = Watchdog(sessions.spare, of.deadline)
        self._keys = DoubledKeys(of.part.row, self.holder)
        self._lock_millis = 0.0

    @property
    def _row(self) -> WorkflowRow:
        return self._of.part.row

    def prepare(self) -> None:
        """Before anything is locked. Raises Terminal where RENAME would find the name taken."""
        with self._observer.transaction():
            lease.fence(self._observer, self._of.part.lease)
        # Else each attempt would hold the locks until the first ALTER has waited for it in vain.
        backups.check_none(self._of.url)
        sentry.remove_sentry(self._observer, *self._of.part.sentry, self._row.id)
        if exists(self._observer, *self._of.part.sentry):
            raise sentry.taken(*self._of.part.sentry)
        self._keys.find(self._observer)

    def run(self, rest: Rest) -> Outcome:
        try:
            with self._watchdog.started(self.holder):
                self._switch(rest)
        except _Blocked as error:
            return self._give_up(str(error), error.blockers)
        except Transient as error:
            return self._give_up(self._sentence(error))
        except BaseException as error:
            # The lock goes first, then it is raised on.
            outcome = self._give_up(str(error))
            if outcome.is_switched and isinstance(error, VReplicationError):
                return outcome
            raise
        return self._outcome(True, "")

    def _switch(self, rest: Rest) -> None:
        self._lock(rest.aliases)
        reach("cutover.locked")
        self._check_tables()
        rest.read(max(0.0, self._watchdog.remaining_seconds - BEHIND_MARKER_SECONDS))
        reach("cutover.after_barrier")
        self._keys.check_same(self._observer)
        fenced = self._fence_catch_up()
        rest.write(self.holder)
        self._check_locked(self.holder, rest)
        self.holder.execute_raw("COMMIT")
        self._carry_counter()
        with self._observer.transaction():
            # Both leases' rows stay locked to the end: nobody takes over in between.
            lease.fence(self._observer, self._of.part.lease)
            lease.fence_deposed(self._observer, fenced)
            self._move()
        self._unlock()

    def _lock(self, aliases: Sequence[str]) -> None:
        # As the other cut-over, with autocommit off: so it waits for InnoDB's own table lock as well, which a prepared
        # XA branch keeps.
        self.holder.execute_raw("SET SESSION autocommit=0, innodb_table_locks=1, foreign_key_checks=0")
        try:
            self.holder.execute_raw(self._keys.lock_sql(aliases))
        except LockWait:
            raise self._blocked() from None

    def _blocked(self) -> _Blocked:
        """Names who made LOCK wait; the queue behind it is free again already."""
        own = frozenset(self._sessions.ids)
        words, found = in_the_way(self._observer, self._of.server, self._keys.locked_tables(self._observer), own)
        return _Blocked(f"The table could not be locked within {LOCK_SECONDS} s. {words}", found)

    def _check_tables(self) -> None:
        """Under the lock: the table is still the source, the shadow still ours, what was copied can be trusted."""
        check_commit_order(self._observer)
        check_recorded(self._row, identities_of(self._observer, [self._row], self._of.server.is_mariadb))
        carried.refuse_others(self.holder, self.holder, self._row)

    def _fence_catch_up(self) -> Lease:
        token = lease.depose(self._observer, self._row.id, lease.REPLICATE)
        reach("cutover.catch_up_fenced")
        return Lease(workflow=self._row.id, role=lease.REPLICATE, token=token)

    def _carry_counter(self) -> None:
        row = self._row
        carry_auto_increment(self.holder, row.source_schema, row.source_table, row.shadow_table, is_mariadb=False)

    def _move(self) -> None:
        """From the first child's ALTER on nobody is ended: what is left waits for no lock."""
        self._keys.give()
        if not self._watchdog.disarm():
            raise Transient("There is no time left to move the foreign keys.")
        self._keys.double()
        self._keys.rename()
        self._keys.finish()

    def _unlock(self) -> None:
        """UNLOCK if the session can still speak; otherwise its end frees the locks."""
        try:
            self.holder.execute_raw("UNLOCK TABLES")
        except Exception:
            self.holder.abort()
            with contextlib.suppress(VReplicationError):
                self._sessions.spare.kill(self.holder.id)
        self._lock_millis = self._watchdog.elapsed_seconds * 1000
        reach("cutover.after_unlock")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _give_up(self, reason: str, found: tuple[Blocker, ...] = ()) -> Outcome:
        """Let go of everything, then look whether the cut-over has happened after all."""
        # UNLOCK commits.
        self.holder.rollback()
        self._keys.put_back()
        self._unlock()
        if self._has_switched():
            return self._outcome(True, f"Told by table identity, after: {reason}")
        return self._outcome(False, reason, found)

    def _has_switched(self) -> bool:
        """Raises Ambiguous."""
        until = time.monotonic() + LOOKUP_SECONDS
        while True:
            try:
                with connect(self._of.url) as session:
                    # A statement that has not answered may be at work yet; keys are put back when it is not.
                    lease.end_connections(session, (self.holder.id,), user=self._of.url.user)
                    return self._keys.is_rename_sent and decide(session, self._row) == SWITCHED
            except Transient as error:
                if time.monotonic() > until:
                    raise ambiguous([self._row], error) from None
                time.sleep(0.2)

    def _sentence(self, error: VReplicationError) -> str:
        if self._watchdog.has_fired:
            return f"The deadline of {self._of.deadline:g} s passed. {error}"
        return str(error)

    def _outcome(self, is_switched: bool, reason: str, found: tuple[Blocker, ...] = ()) -> Outcome:
        return Outcome(
            is_switched=is_switched,
            reason=reason,
            blockers=found,
            lock_millis=self._lock_millis,
            total_millis=self._watchdog.elapsed_seconds * 1000,
        )
