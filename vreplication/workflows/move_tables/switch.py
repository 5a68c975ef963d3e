"""The switch of tables that move: from the side that serves to the other one, there and back.

Rules W1 to W10 of the model (tests/models/move_switch_model.py), by number:

    W1  `denying` is committed at home before anything is done on the serving side
    W2  its tables are locked, and the triggers that deny writes are made under that lock
    W3  a last marker is written there behind the triggers, and has to be applied on the other side
    W4  catch-up loses its lease; then what it has applied is looked at again
    W5  the rows that were written last are compared, the counters of AUTO_INCREMENT carried over
    W6  where the stream back begins is noted, before the other side takes a write
    W7  `decided`; the other side is opened; `opened`; the lock goes
    W8  whoever routes the application is told until it says yes
    W9  the stream back begins at the place of W6
    W10 who takes over has ended what was left on both servers, and goes on by the decision

What must stay true: at no moment do both sides take writes; until `decided` all is undone, behind it nothing is;
writers wait or fail for at most the deadline, counted from when the lock is asked for until the decision is being
committed; that is not cut off.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vreplication.binlog import position
from vreplication.cutover import deny
from vreplication.cutover.finish import raise_auto_increment
from vreplication.cutover.identity import table_identities
from vreplication.cutover.watchdog import Watchdog
from vreplication.engine import recheck
from vreplication.engine.job import StreamJob
from vreplication.engine.recheck import Mismatch
from vreplication.errors import Ambiguous, BadValue, Superseded, Terminal, Transient, VReplicationError
from vreplication.mysql import replica as replicas
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.schema.introspect import exists
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS, CUTOVER_DEADLINE_SECONDS, CUTOVER_RETRY_SECONDS
from vreplication.state import backups, checkpoint, journal, keytables, lease, markers, moves, source_marks, workflows
from vreplication.state.moves import Decision, Move
from vreplication.workflows.move_tables import left_behind, seen, steps, streams
from vreplication.workflows.move_tables.opening import give_up, open_side
from vreplication.workflows.move_tables.sides import (
    impatient,
    persist,
    serving_session,
    serving_tables,
    session_on,
)
from vreplication.workflows.move_tables.steps import Work

log = logging.getLogger(__name__)

DEADLINE_SECONDS = CUTOVER_DEADLINE_SECONDS
_UNDO_SECONDS = 0.5
_MISMATCHES = 5
SURE_SECONDS = 4.5
"""Behind the last look at the session that holds DDL off, in which the decision may be made."""
_COMMIT_SECONDS = 4
"""How long the server waits for its commit. Both together are less than what it leaves that session (ALIVE_SECONDS)."""


def switch(work: Work, is_asked: Callable[[], bool]) -> None:
    """Hold at the gate and try until the other side serves. Raises BadValue when rows keep differing."""
    attempt = mismatches = 0
    while True:
        steps.hold_at_gate(work, is_asked)
        attempt += 1
        try:
            # Before anybody waits: LOCK TABLES does not wait for such a backup, and CREATE TRIGGER under it does
            # (measured).
            if _is_ddl_free(work) and _try(work, attempt, is_asked):
                return
        except Mismatch as error:
            mismatches += 1
            work.driver.notify(f"{error}; comparing them again")
            if mismatches > _MISMATCHES:
                raise BadValue(f"The two sides keep differing: {error}") from None
        pause = CUTOVER_RETRY_SECONDS[min(attempt, len(CUTOVER_RETRY_SECONDS)) - 1]
        work.driver.wait(pause)


def _try(work: Work, attempt: int, is_asked: Callable[[], bool]) -> bool:
    job = work.load()
    prepare_next(work)
    is_ready = steps.until_small(work, job) and _may_deny(work) and _is_whole(work) and _is_wanted(work, is_asked)
    return is_ready and _attempt(work, job, attempt, is_asked)


def _is_wanted(work: Work, is_asked: Callable[[], bool]) -> bool:
    """Asked anew: to come here from the gate may have taken long."""
    reasons = steps.unwanted(work, is_asked)
    if reasons:
        work.driver.hold(reasons)
    return not reasons


def _may_deny(work: Work) -> bool:
    """What a replica applies fires no trigger. The plan has refused a source that is one; it may have become one since,
    by a failover to another server, and the application may be writing there. Of the target it only warns, which is
    what has to be denied on the way back.
    """
    with connect(work.route.source, read_timeout=BEAT_SECONDS) as session:
        is_replica = any(map(replicas.is_at_work, replicas.channels(session)))
    if is_replica:
        words = f"the {streams.serving(work.number)} is a replica: what it replicates could not be denied"
        work.driver.notify(f"switch not begun: {words}")
        work.driver.report(waiting_for=words)
    return not is_replica


def _is_whole(work: Work) -> bool:
    """Of all tables none is left behind. Asked anew: at the gate, and while keys were compared, one may have come."""
    driver = work.driver
    left_behind.anew(driver, work.spec, work.number, work.look)
    reasons = left_behind.reasons(driver, work.spec, work.number, work.look)
    if reasons:
        driver.notify(f"switch not begun: {reasons[0].sentence}")
        driver.hold(reasons)
    return not reasons


def _is_ddl_free(work: Work) -> bool:
    """Triggers can be made and dropped on the one side, and the other one be opened."""
    try:
        for url in (work.route.source, work.route.target):
            backups.check_none(url)
    except backups.BackupUnderWay as error:
        work.driver.notify(f"switch not begun: {error}")
        work.driver.report(waiting_for=error.message)
        return False
    return True


def prepare_next(work: Work) -> None:
    """The key tables of the stream that comes behind the switch: made before anybody waits."""
    with work.driver.route.open() as ends:
        if work.number == 1:
            _check_names_free(ends.home, work.driver.workflow)
        forward = streams.load_mappings(ends, work.driver.workflow, work.number)
        following = streams.stream_id(work.driver.workflow, work.number + 1)
        for table in workflows.tables(ends.home, work.driver.workflow):
            keytables.create_all(ends.home, forward[table.number], table.id(following))
        # The way back reads home's log, and its marks have to stand there.
        source_marks.install(ends.home)


def _attempt(work: Work, job: StreamJob, attempt: int, is_asked: Callable[[], bool]) -> bool:
    """One attempt. False: given up, and everything is as before. Raises Mismatch likewise."""
    driver = work.driver
    driver.move(Phase.CUTTING_OVER)
    driver.report(cutover_attempts=attempt)
    journal.attempted(driver.session, driver.workflow, attempt, actor=lease.me())
    driver.remember()
    # W1: whoever comes after a crash drops triggers only where this row says that there may be some.
    moves.decide(driver.session, driver.lease, Decision.DENYING)
    reach("switch.denying")
    trial = _Trial(work=work, job=job, identities=identities(work), is_asked=is_asked)
    try:
        # Forgotten by a home that crashes, triggers would deny writes with no process to drop them.
        moves.make_durable(driver.session)
        trial.run()
    except Exception as error:
        undo = functools.partial(give_up, work, trial.used, former=tuple(trial.lockers))
        # The decision may have been committed and its answer lost: then it has been brought to its end instead.
        if not persist(driver, undo):
            return True
        if not isinstance(error, Transient | Ambiguous):
            raise
        driver.notify(f"switch not done: {error}")
        driver.report(waiting_for=error.message)
        return False
    return True


def _check_left_behind(work: Work) -> None:
    """Writes are denied by now: what came to the source before that is seen here, what comes later when it is told."""
    left_behind.anew(work.driver, work.spec, work.number, work.look)
    if found := left_behind.reasons(work.driver, work.spec, work.number, work.look):
        raise Transient(found[0].sentence)


def _check_names_free(home: Session, workflow: str) -> None:
    """Tables that were there and empty make way. Raises Terminal where somebody has written to one since."""
    schema = moves.load(home, workflow).target_schema
    # Also those that have made way: a transaction may have filled one while RENAME waited for it.
    for table in (name for t in workflows.tables(home, workflow) for name in (t.source_table, t.retired_table)):
        if exists(home, schema, table) and home.row(f"SELECT 1 FROM {qualified(schema, table)} LIMIT 1"):
            raise Terminal(
                f"{schema}.{table} on the target has rows: another client writes to it.",
                cure="Empty or rename it, then go on with the same command.",
            )


def identities(work: Work) -> dict[str, str | None]:
    """Of the tables that take writes now: a TRUNCATE makes another one of a table."""
    tables = serving_tables(work)
    with connect(work.route.source, read_timeout=BEAT_SECONDS) as session:
        return table_identities(session, tables[0][0], [name for _, name in tables], is_mariadb(session))


@dataclass(slots=True, kw_only=True)
class _Trial:
    """What one attempt has done so far. identities: of the tables before it."""

    work: Work
    job: StreamJob
    identities: dict[str, str | None]
    is_asked: Callable[[], bool]
    used: list[str] = field(default_factory=list)
    lockers: list[int] = field(default_factory=list)
    denied: deny.Denied | None = None
    watchdog: Watchdog | None = None
    is_deciding: bool = False
    began: float = 0.0

    def run(self) -> None:
        work = self.work
        with serving_session(work) as locker, work.route.open(read_timeout=BEAT_SECONDS) as ends:
            self.lockers.append(locker.id)
            impatient(ends)
            move = moves.load(ends.home, work.driver.workflow)
            with session_on(work, streams.serving(work.number).other) as opener:
                # Before the first statement that may outlive us: who takes over ends these connections (W10).
                work.driver.announce(_at_home(ends, locker, opener))
                self._check_verified()
                with self._watched(locker), self._given_up(locker):
                    self._deny(locker, move)
                    self._last_marker(ends)
                    self._take_over(ends)
                    self._compare(locker, ends)
                    self._lock_other(locker, opener, ends)
                    self._decide(locker, ends)
                if work.number == 1:
                    # RENAME is another session's.
                    deny.unlock(opener)
                open_side(work, ends, self.began, opener)
            # It is opened by now, and the lock goes with the session in any case.
            with contextlib.suppress(VReplicationError):
                self._release()

    def _check_verified(self) -> None:
        """A server that was started since the last look may lack the end of its log; from here on that cuts a session
        of ours.
        """
        if not steps.is_verified(self.work):
            raise Transient("the verification does not count any more: a server was started since")

    @contextlib.contextmanager
    def _given_up(self, locker: Session) -> Iterator[None]:
        """While the lock is held the triggers go under it, so that no writer sees an error; else `give_up` does it."""
        try:
            yield
        except Exception:
            with contextlib.suppress(VReplicationError):
                if self.denied and self._is_to_be_opened():
                    deny.allow(locker, self.denied.tables, workflow=self.work.driver.workflow)
                    self._release()
            raise

    def _is_to_be_opened(self) -> bool:
        """Read once more: a decision whose answer was lost stands, and behind it nothing is undone."""
        driver = self.work.driver
        try:
            if moves.load(driver.session, driver.workflow).decision is not Decision.DENYING:
                return False
            moves.decide(driver.session, driver.lease, Decision.ABORTING)
        except Superseded:
            return False
        except VReplicationError:
            # Home is away, or takes no writes (a full disk, read_only), and that may stay so. What was not asked of it
            # is not decided; who takes over ends the locker before anything else, and does all of this again by the
            # row.
            return not self.is_deciding
        return True

    def _release(self) -> None:
        if self.denied:
            self.denied.release()

    @property
    def remaining(self) -> float:
        """For what comes before the decision; what is left then is for giving up under the lock."""
        return max(0.0, DEADLINE_SECONDS - _UNDO_SECONDS - (time.monotonic() - self.began))

    def _check_deadline(self) -> None:
        if not self.remaining:
            raise self._too_long()

    @staticmethod
    def _too_long() -> Transient:
        return Transient(f"the switch took longer than {DEADLINE_SECONDS:g} s")

    @contextlib.contextmanager
    def _watched(self, locker: Session) -> Iterator[None]:
        """At the deadline the session that has the lock is ended, whatever it is doing."""
        with connect(locker.url, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as spare:
            self.began = time.monotonic()
            self.watchdog = Watchdog(spare, DEADLINE_SECONDS)
            with self.watchdog.started(locker):
                yield

    def _deny(self, locker: Session, move: Move) -> None:
        """W2."""
        work = self.work
        tables = serving_tables(work)
        self.denied = deny.deny(
            locker,
            tables,
            workflow=work.driver.workflow,
            token=move.secret,
            message=f"This table has moved to {move.target_at if streams.is_forward(work.number) else move.source_at}",
        )
        reach("switch.denied")
        self._check_alone(locker, tables)
        self._check_ddl(locker)
        if work.spec.deny == "fail":
            self.denied.release()
            reach("switch.released")
            self._hold_off_ddl(locker, tables)

    def _hold_off_ddl(self, locker: Session, tables: list[tuple[str, str]]) -> None:
        """Readers and refused writers go on; DDL waits for the metadata lock of this transaction.

        What has come before that is looked for: catch-up ends at it and does not come to the last marker, for which
        writes would be denied until the deadline.
        """
        locker.execute_raw("SET SESSION autocommit=0")
        for table in tables:
            # A read of no row takes the metadata lock all the same.
            locker.rows(f"SELECT 1 FROM {qualified(*table)} LIMIT 0")
        found = table_identities(locker, tables[0][0], [name for _, name in tables], is_mariadb(locker))
        if found != self.identities:
            raise Transient("one of the tables was truncated or changed while writes were denied")

    def _check_alone(self, locker: Session, tables: list[tuple[str, str]]) -> None:
        workflow = self.work.driver.workflow
        if words := deny.not_alone(locker, tables, workflow=workflow):
            raise Terminal(words, cure=f"Look at them, drop them, then `vreplication resume {workflow}`.")

    def _check_ddl(self, locker: Session) -> None:
        """No trigger stops a TRUNCATE: it would run on the old table, and nowhere else."""
        tables = serving_tables(self.work)
        if waiting := deny.definitions(locker, tables, self.work.driver.own_on(locker)):
            raise Transient(f"a DDL statement waits for one of the tables (connection {waiting[0].id})")

    def _last_marker(self, ends: Ends) -> None:
        """W3. Behind the triggers; catch-up holds at it."""
        work = self.work
        of = source_marks.markers_of(ends, work.stream)
        marker = of.write(markers.CUTOVER, our_lease=work.driver.lease)
        self.used.append(marker)
        reach("switch.marked")
        # Applied and not only read (R22): what was committed before the lock is on the other side by then.
        applied = markers.wait(of, marker, timeout_seconds=self.remaining, check=work.driver.check, poll_seconds=0.003)
        if applied.branches:
            raise Transient(f"XA branch {applied.branches[0]} has no outcome yet")
        if not applied.is_holding:
            raise Transient("catch-up does not hold at the marker")
        reach("switch.applied")

    def _take_over(self, ends: Ends) -> None:
        """W4. A restart of catch-up may be on its way; whoever it is writes nothing from here on."""
        work = self.work
        work.driver.rest()
        # In the row, not by ending the process: one that is stopped and wakes up behind the decision finds the fence
        # closed.
        token = lease.depose(ends.home, work.stream, lease.REPLICATE)
        if not streams.is_forward(work.number):
            # On the way back rows are committed on the source, in transactions that begin with a row there: it fences
            # them.
            source_marks.take_fence(ends.target, work.stream, token)
        reach("switch.fenced")
        # A restart between marker and fence goes back to its checkpoint, and may have left older rows in the place of
        # newer.
        if markers.find_applied(ends.home, work.stream, self.used[-1]) is None:
            raise Transient("the last marker is not applied any more")
        if checkpoint.load(ends.home, work.stream) is None:
            raise Transient("catch-up has no checkpoint")

    def _compare(self, locker: Session, ends: Ends) -> None:
        """W5."""
        work, counted = self.work, 0
        for table in self.job.tables:
            self._check_deadline()
            counted += recheck.compare_locked(locker, ends, table.mapping, table.id)
            of, to = ((t.schema, t.name) for t in (table.mapping.source, table.mapping.target))
            # Before the other side takes a write: an id that was given out here must not be given out there again.
            raise_auto_increment(locker, of, ends.target, to, is_mariadb=self.job.is_mariadb)
        log.info("workflow %s: %d keys compared while writes were denied", work.driver.workflow, counted)
        reach("switch.compared")

    def _lock_other(self, locker: Session, opener: Session, ends: Ends) -> None:
        """Behind the decision nothing may keep the other side from being opened: so its tables are locked before it.

        And they must be those that were verified: its log nobody reads. Raises LockWait where somebody holds one for a
        second.
        """
        work, tables = self.work, self.job.tables
        deny.lock(opener, [(t.mapping.target.schema, t.mapping.target.name) for t in tables])
        # One that has begun since: behind the decision writes would be refused on both sides until it ends.
        backups.check_none(work.route.target)
        seen.check(ends.home, work.driver.workflow, work.number, tables, locker, opener)

    def _decide(self, locker: Session, ends: Ends) -> None:
        """W6 and W7. The last moment in which it can be given up, and in which a signal counts."""
        work = self.work
        if work.number == 1:
            # Once more: a table that somebody has made there and filled meanwhile would be moved aside without a word.
            _check_names_free(ends.home, work.driver.workflow)
            _move_aside(ends.home, moves.load(ends.home, work.driver.workflow))
            _check_names_free(ends.home, work.driver.workflow)
        _check_left_behind(work)
        if reasons := steps.unwanted(work, self.is_asked):
            raise Transient(reasons[0].sentence)
        self._keep_rows(ends)
        # W6: while the other side is closed, so nothing that the application writes there stands before it. Noted
        # later, its first writes would be missing on the way back.
        start = _start_back(ends, work)
        with self._in_time(ends.home) as until:
            self._commit(locker, ends, start, until)
        reach("switch.decided")

    def _keep_rows(self, ends: Ends) -> None:
        """The old server keeps what was written there last, whenever it crashes: behind the decision no log that is
        read has it. On the target RENAME, or what makes the decision outlive a crash, sees to that.
        """
        if streams.is_forward(self.work.number):
            return
        try:
            moves.make_durable(ends.target)
        except SqlError as error:
            self.work.driver.notify(f"the source may lose what was written there last if it crashes now: {error}")

    def _commit(self, locker: Session, ends: Ends, start: str | None, until: str) -> None:
        work = self.work
        # And that the session is there which has held DDL off up to now.
        self._check_ddl(locker)
        work.driver.check()
        self._check_deadline()
        column = "back_start" if streams.is_forward(work.number) else "forward_start"
        reach("switch.before_decided")
        # While it is being committed, however long that takes, DDL must not come to the old table.
        if self.watchdog is None or not self.watchdog.disarm():
            raise self._too_long()
        reach("switch.deciding")
        self.is_deciding = True
        moves.decide(ends.home, work.driver.lease, Decision.DECIDED, until=until, **{column: start})

    @contextlib.contextmanager
    def _in_time(self, home: Session) -> Iterator[str]:
        """A process that stands still (SIGSTOP, a frozen host) must not decide when it goes on: by then the server may
        have ended the session that holds DDL off.
        """
        idle = int(home.value("SELECT @@session.wait_timeout"))
        # The server ends a session that stands still behind its last look, so its decision cannot be committed late.
        home.execute_raw(f"SET SESSION wait_timeout={_COMMIT_SECONDS}")
        yield moves.later(home, SURE_SECONDS)
        home.execute_raw(f"SET SESSION wait_timeout={idle}")


def _start_back(ends: Ends, work: Work) -> str | None:
    """Where the stream that comes behind the switch begins: on the side that is still closed. None: none comes."""
    # Without a way back the target need not write a binary log, and then it has no place to tell.
    if not work.spec.reverse:
        return None
    following = streams.stream_id(work.driver.workflow, work.number + 1)

    def mark() -> None:
        source_marks.mark(ends.target, following)

    found = position.begin(ends.target, is_mariadb(ends.target), mark)
    mark()
    return found.saved


def _at_home(ends: Ends, *others: Session) -> tuple[int, ...]:
    """Connections of an attempt that whoever takes over has to end there."""
    return (ends.home.id, *(session.id for session in others if session.url == ends.home.url))


def _move_aside(home: Session, move: Move) -> None:
    """Empty tables that were there under the names: before the place is noted from which their log is read."""
    for table in workflows.tables(home, move.workflow):
        if exists(home, move.target_schema, table.source_table):
            old, aside = (qualified(move.target_schema, n) for n in (table.source_table, table.retired_table))
            home.execute_raw(f"RENAME TABLE {old} TO {aside}")
