"""The driver's own affairs: its lease and heartbeat, the catch-up process, what the operator wants, progress.

What must stay true: the heartbeat and the progress row are written by a thread of its own each second, whatever the
main thread waits for; `check` is called by everything that waits, and raises what ends the workflow: an interrupt, a
cancel, a failure noted by catch-up, or another driver's takeover. A connection that was lost is ended on the server
before another one takes its place: there it may still hold locks, or be at work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from vreplication import about
from vreplication.clock import SYSTEM
from vreplication.cutover.reasons import Reason
from vreplication.engine.child import CatchUp, ReplicateProcess
from vreplication.engine.effort import effort
from vreplication.engine.foretelling import Foretelling
from vreplication.engine.steering import Steering
from vreplication.errors import Ambiguous, Cancelled, Interrupted, Terminal, Transient, VReplicationError
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError, connect, is_passing
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.estimate import CopyEstimate, total_rows
from vreplication.schema.model import Table
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS, LONG_IDLE_SECONDS, OUTAGE_SECONDS, Pace, Tuning
from vreplication.state import gate, held, journal, layout, lease, ledger, progress, workers, workflows
from vreplication.state.counting import Counting
from vreplication.state.lease import Lease
from vreplication.state.ledger import Totals, Walked

log = logging.getLogger(__name__)

T = TypeVar("T")

_PERIOD_SECONDS = 0.25
_NOTE_SECONDS = 10.0
_RECONNECT_PAUSE_SECONDS = 0.5
_OUTAGES = 10
"""Outages with nothing copied and no phase further in between, before we give up."""
_APART_SECONDS = 3600.0
"""Two that are further apart do not add up: at the gate and in a revert window nothing is copied for months, in which a
server is started again more often than that.
"""

_STEPS = {Phase.COPYING: "copy begun", Phase.WAITING: "gate reached"}
"""Phases that the journal tells of as they are come to; of the others it has what they do."""


def loaded_catch_up(url: SourceUrl, workflow: str) -> CatchUp:
    """Catch-up that begins to load now. Who does not hand it to a driver ends it."""
    child = ReplicateProcess(url, workflow)
    child.load()
    return child


class Driver:
    """Holds the driver's lease of a workflow between `start` and `close`."""

    def __init__(
        self,
        url: SourceUrl,
        workflow: str,
        stop: threading.Event,
        notify: Callable[[str], None],
        child: CatchUp | None = None,
    ) -> None:
        self.url, self.workflow, self.notify = url, workflow, notify
        self.session: Session = connect(url, idle_seconds=LONG_IDLE_SECONDS)
        self._server_run = lease.server_run(self.session)
        self._stop = stop
        self._closing = threading.Event()
        self._ended: VReplicationError | None = None
        self._thread: threading.Thread | None = None
        self.our_lease: Lease | None = None
        self._is_copying = False
        self._estimate = CopyEstimate()
        self._count: Callable[[Session], Totals] = self._totals
        self._foretelling = Foretelling(workflow)
        self._total: tuple[int, int | None] = (0, None)
        self._held: list[dict[str, Any]] | None = None
        self._announced: tuple[int, ...] = ()
        self._beating: int | None = None
        self._asked = Tuning()
        self._steering = Steering(workflow)
        self._outages, self._outage_at = 0, SYSTEM.monotonic()
        self._reached: tuple[int, int] = (0, 0)
        self._furthest = 0
        self._is_switched = False
        self._is_done = False
        self.child: CatchUp = child or ReplicateProcess(url, workflow)
        self.check_others: Callable[[], None] = lambda: None
        """Raises when a workflow that is switched in one with this one has ended. Not asked once it is switched."""

    @property
    def lease(self) -> Lease:
        if self.our_lease is None:
            raise Terminal("The workflow's lease has not been taken.")
        return self.our_lease

    @property
    def is_superseded(self) -> bool:
        """True when another driver has taken over: then nothing is ours to write any more."""
        if self.our_lease is None:
            return False
        # A connection of its own: whoever takes over has ended ours.
        with connect(self.url) as session:
            return not lease.is_held(session, self.our_lease)

    def start(self) -> None:
        """Take the lease and begin to beat. Raises LeaseHeld.

        A failed workflow goes on from here: before the first beat, which would take the last run's end for this one's.
        """
        # A sidecar of an earlier release gets here what this one needs.
        layout.complete(self.session)
        self.our_lease = lease.acquire(self.session, self.workflow, lease.DRIVER)
        workflows.reopen(self.session, self.workflow)
        # Which rules it knows: catch-up raises the workflow's version when all that work on it know a newer one.
        workers.tell(self.session, self.our_lease)
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> tuple[int, ...]:
        """Ids of our open connections: they are no blockers, and who takes over has to end them."""
        beating = () if self._beating is None else (self._beating,)
        return (self.session.id, *beating, *self._announced)

    def announce(self, ids: tuple[int, ...]) -> None:
        """Connections of a verification or an attempt at the cut-over; in the heartbeat before anything is locked.

        They stay there until others are announced: one that was lost may still be at work on the server.
        """
        if ids:
            self._announced = ids
            lease.beat(self.session, self.lease, self.connections)

    def announce_last(self, session: Session) -> None:
        """The connection that removes what was made, beside what stands there. Raises Superseded.

        A process that is stopped in the middle of it and wakes up behind a takeover would drop what another workflow
        has made under the same names since.
        """
        self._announced = (*self._announced, session.id)
        lease.beat(session, self.lease, self.connections)

    def start_replicate(self) -> None:
        """Start catch-up; `check` keeps it alive from here on."""
        self.child.start()

    def is_stopping(self) -> bool:
        """A signal has come."""
        return self._stop.is_set()

    def check(self) -> None:
        """To be called by whatever waits."""
        if self._stop.is_set():
            raise Interrupted("Interrupted.")
        if self._ended is not None and not (self._is_switched and isinstance(self._ended, Cancelled)):
            raise self._ended
        if not self._is_switched:
            self.check_others()
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Of catch-up."""
        self.child.keep_alive()

    def asked(self) -> Tuning:
        """What the operator asks for, as of the last beat."""
        return self._asked

    def pace(self) -> Pace | None:
        """What the server bears, as of the last second."""
        return self._steering.pace

    def wait(self, seconds: float) -> None:
        """Wait, but not past the end of the workflow."""
        self.check()
        self._stop.wait(seconds)
        self.check()

    def move(self, phase: Phase) -> None:
        self.check()
        workflows.move(self.session, self.workflow, phase, our_lease=self.lease)
        if step := _STEPS.get(phase):
            # Once, whoever drives: told by each driver anew it would read as if it had happened twice.
            journal.once(self.session, self.lease, step, since=("switched",))
        self._foretelling.enter(phase)
        self._furthest = max(self._furthest, list(Phase).index(phase))
        was_copying, self._is_copying = self._is_copying, phase in (Phase.COPYING, Phase.CATCHING_UP)
        if was_copying and not self._is_copying:
            # The beating thread writes it no more from here on, and its last figures may be half a second old.
            self._write_copy(self.session)
        log.info("workflow %s: %s", self.workflow, phase)

    def report(self, **columns: Any) -> None:
        """Write columns of the progress row."""
        progress.write_driver(self.session, self.workflow, **columns)

    def hold(self, reasons: Sequence[Reason] = ()) -> None:
        """What keeps the gate shut now, in words and as values; (): nothing."""
        self.report(waiting_for="; ".join(each.sentence for each in reasons) or None)
        values = [each.as_json() for each in reasons]
        if values != self._held:
            held.note(self.session, self.workflow, held.GATE, values)
            self._held = values

    def describe(self, source: Table, *, is_compared_beside: bool = False) -> None:
        """The table at work, for the forecast."""
        self._foretelling.describe(source, is_compared_beside)

    def remember(self) -> None:
        """A point of the history, now: what happens between two of catch-up's must not be missed."""
        snapshot.remember(self.session, self.workflow)

    def freshen(self) -> None:
        """A control connection that answers: one that nothing was asked of for hours may have been dropped."""
        if not self.session.is_alive():
            self.reconnect()

    def reconnect(self, patience_seconds: float = _NOTE_SECONDS, check: Callable[[], None] = lambda: None) -> None:
        """A fresh control connection; what the lost ones may still have at work is ended first. Raises Transient."""
        self.session.close()
        fresh = self._connected(SYSTEM.monotonic() + patience_seconds, check)
        # An attempt's connections, too: a RENAME of theirs may still be waiting.
        lost = (self.session.id, *self._announced)
        self._server_run = lease.end_lost(fresh, lost, self._server_run)
        self.session = fresh

    def _connected(self, until: float, check: Callable[[], None]) -> Session:
        while True:
            check()
            try:
                return connect(self.url, idle_seconds=LONG_IDLE_SECONDS)
            except Transient as error:
                if SYSTEM.monotonic() > until:
                    raise
                log.warning("the driver's connection: %s", error)
            self._closing.wait(_RECONNECT_PAUSE_SECONDS)

    def is_ridden_out(self, error: VReplicationError) -> bool:
        """A statement that was refused for a moment, and is to be done again."""
        return is_passing(error)

    def ride_out(self, error: VReplicationError) -> None:
        """The server was lost, somebody's lock was in the way, or a statement was killed: wait until it answers.

        Raises `error` when it stays away, or when nothing gets on.
        """
        if is_passing(error):
            log.warning("a statement of the driver's was not done: %s", error)
            self.notify(f"{error.message}. Trying again.")
        else:
            log.warning("the server was lost: %s", error)
            self.notify(f"{error.message} Going on as soon as the server answers.")
        try:
            reached = self._returned()
        except (Transient, Ambiguous):
            raise error from None
        self._count_outage(error, reached)

    def _returned(self) -> tuple[int, int]:
        """Wait for the server; returns how far the workflow is. What is killed of this is done again, too."""
        for is_last in (*(False,) * _OUTAGES, True):
            try:
                self.reconnect(OUTAGE_SECONDS, self.check)
                # While the server was away another driver may have taken over there.
                lease.fence(self.session, self.lease)
                return self._furthest, self._totals(self.session).chunks_matched
            except SqlError as killed:
                if is_last or not is_passing(killed):
                    raise
        raise AssertionError

    def _count_outage(self, error: VReplicationError, reached: tuple[int, int]) -> None:
        before, self._outage_at = self._outage_at, SYSTEM.monotonic()
        is_new = reached > self._reached or self._outage_at - before > _APART_SECONDS
        self._outages = 1 if is_new else self._outages + 1
        self._reached = max(reached, self._reached)
        if self._outages > _OUTAGES:
            raise error

    def note_switched(self) -> None:
        """A cancel that was asked for in the instant of the cut-over has come too late."""
        self._is_switched = True

    def note_serving(self, *, is_source: bool) -> None:
        """Of tables that move: while the source serves a cancel may come again; one that came too late is forgotten."""
        self._is_switched = not is_source
        if isinstance(self._ended, Cancelled):
            self._ended = None

    def note_done(self) -> None:
        """All is done: the lease stays ours until that has been told, by which `ending.is_untold` knows."""
        self._is_done = True

    def close(self) -> None:
        """End catch-up, stop beating, give the lease back."""
        self.child.end()
        self._closing.set()
        if self._thread:
            self._thread.join(10.0)
        try:
            # The last figures are half a second old, and a scheduler's stage may end in the middle of the copy.
            if self._is_copying:
                self._write_copy(self.session)
            if self.our_lease and lease.is_held(self.session, self.our_lease):
                self._foretelling.tell(self.session)
            if self.our_lease:
                # Whoever comes next finds none of ours at work.
                lease.end_lost(self.session, self._announced, self._server_run)
                if not self._is_done:
                    lease.release(self.session, self.our_lease)
        except VReplicationError as error:
            log.info("the lease was not given back: %s", error)
        self.session.close()

    def _run(self) -> None:
        about.this_thread(self.workflow)
        run: int | None = None
        while not self._closing.is_set():
            try:
                with connect(self.url, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as session:
                    lost = () if self._beating is None else (self._beating,)
                    run = lease.end_lost(session, lost, run)
                    self._beating = session.id
                    self._beat_until_closed(session)
            except (Transient, Ambiguous) as error:
                log.warning("the driver's heartbeat failed: %s", error)
                self._closing.wait(1.0)
            except Terminal as error:
                if not self.is_ridden_out(error):
                    self._ended = error
                    return
                log.warning("a statement of the driver's heartbeat was not done: %s", error)
                self._closing.wait(1.0)
            except Exception as error:  # a silent end of this thread would look like a dead driver
                log.exception("the driver's heartbeat failed")
                self._ended = Terminal(f"The driver's heartbeat failed: {type(error).__name__}: {error}")
                return

    def _beat_until_closed(self, session: Session) -> None:
        beats = 0
        # Anew with each connection: the server may have lost what it said that it had.
        self._count = self._counting()
        # At once on a new connection: to get it may have taken most of the time after which the lease counts as stale.
        while not self._closing.wait(_PERIOD_SECONDS if beats else 0):
            if beats % 4 == 0:
                lease.beat(session, self.lease, self.connections)
            if beats % 2 == 0:
                self._read_requests(session)
                if self._is_copying:
                    self._write_copy(session)
            if beats % 4 == 0:
                self._foretelling.tell(session)
            self._steering.probe(session)
            beats += 1

    def _read_requests(self, session: Session) -> None:
        row = workflows.load(session, self.workflow)
        found = effort(session, row)
        self._asked = found.asked
        self._steering.decide(session, row, found.limits)
        if row.is_cancel_requested and not row.is_cut:
            # What came first stays the reason, whatever is found before `check` is called the next time.
            self._ended = self._ended or Cancelled("Cancelled by the operator.")
        if row.phase is Phase.FAILED:
            self._ended = self._ended or Terminal(row.reason or "Catch-up failed.")

    def _totals(self, session: Session) -> Totals:
        """Of the copy."""
        return ledger.totals(session, self.workflow)

    def _counting(self) -> Callable[[Session], Totals]:
        """The same, for one thread that asks again and again."""
        return Counting(self.workflow).totals

    def _walked(self, session: Session) -> Walked:
        return ledger.walked(session, self.workflow)

    def _planned_rows(self, session: Session) -> int | None:
        """As estimated, or counted, when it was prepared."""
        return workflows.load(session, self.workflow).rows_total

    def _write_copy(self, session: Session) -> None:
        totals = self._count(session)
        planned = self._planned_rows(session)
        # Ranges that are copied again are not part of these figures: they never go back.
        done = totals.is_walked
        figures = self._estimate.observe(
            SYSTEM.monotonic(),
            rows_copied=totals.rows_copied,
            rows_total=totals.rows_copied if done else self._rows_total(session, totals.splits_done, planned),
            is_throttled=not (totals.has_chunks and gate.read(session, self.workflow).is_open),
            is_matched=totals.is_first_matched,
        )
        columns = figures.columns() | (asdict(totals.lately) if totals.lately else {})
        progress.write_driver(
            session,
            self.workflow,
            **columns,
            rows_total_exact=int(done),
            # A chunk that is matched has landed before: without those the figure would fall with each match.
            chunks_landed=totals.chunks_landed + totals.chunks_matched,
        )

    def _rows_total(self, session: Session, splits_done: int, estimate: int | None) -> int | None:
        """Looked at again with each split that is done."""
        if splits_done and self._total[0] != splits_done:
            walked = self._walked(session)
            self._total = (splits_done, total_rows(estimate, walked.rows, walked.share))
        return self._total[1] if splits_done else estimate


def through_outages(driver: Driver, act: Callable[[], T]) -> T:
    """Do it, and from wherever it stands do it again each time the server was lost and is back, or a lock is gone.

    And where somebody has killed a statement of it (KILL QUERY).
    """
    while True:
        try:
            return act()
        except (ConnectionLost, Ambiguous, LockWait, SqlError) as error:
            if isinstance(error, SqlError) and not driver.is_ridden_out(error):
                raise
            driver.ride_out(error)
