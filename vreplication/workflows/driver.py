"""The driver's own affairs: its lease and heartbeat, the catch-up process, what the operator wants, progress.

What must stay true: the heartbeat and the progress row are written by a thread of its own each second, whatever the
main thread waits for; `check` is called by everything that waits, and raises what ends the workflow: an interrupt, a
cancel, a failure noted by catch-up, or another driver's takeover.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from vreplication.clock import SYSTEM
from vreplication.errors import Ambiguous, Cancelled, Interrupted, Terminal, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.estimate import CopyEstimate
from vreplication.settings import Tuning
from vreplication.state import gate, lease, ledger, progress, sidecar, tuning, workflows
from vreplication.state.lease import Lease
from vreplication.workflows.child import CatchUp, ReplicateProcess

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 0.5


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
        self.session: Session = connect(url)
        self._stop = stop
        self._closing = threading.Event()
        self._ended: VReplicationError | None = None
        self._thread: threading.Thread | None = None
        self.right: Lease | None = None
        self._is_copying = False
        self._estimate = CopyEstimate()
        self._announced: tuple[int, ...] = ()
        self._beating: int | None = None
        self._asked = Tuning()
        self.child: CatchUp = child or ReplicateProcess(url, workflow)

    @property
    def lease(self) -> Lease:
        if self.right is None:
            raise Terminal("The workflow's lease has not been taken.")
        return self.right

    @property
    def is_superseded(self) -> bool:
        """True when another driver has taken over: then nothing is ours to write any more."""
        if self.right is None:
            return False
        with connect(self.url) as session:
            return not lease.is_held(session, self.right)

    def start(self) -> None:
        """Take the lease and begin to beat. Raises LeaseHeld."""
        sidecar.complete(self.session)
        self.right = lease.acquire(self.session, self.workflow, lease.DRIVER)
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> tuple[int, ...]:
        """Ids of our open connections: they are no blockers, and who takes over has to end them."""
        beating = () if self._beating is None else (self._beating,)
        return (self.session.id, *beating, *self._announced)

    def announce(self, ids: tuple[int, ...]) -> None:
        """Connections of a cut-over's attempt; in the heartbeat before anything is locked."""
        self._announced = ids
        if ids:
            lease.beat(self.session, self.lease, self.connections)

    def start_replicate(self) -> None:
        """Start catch-up; `check` keeps it alive from here on."""
        self.child.start()

    def check(self) -> None:
        """To be called by whatever waits."""
        if self._stop.is_set():
            raise Interrupted("Interrupted.")
        if self._ended is not None:
            raise self._ended
        self.child.keep_alive()

    def asked(self) -> Tuning:
        """What the operator asks for, as of the last beat."""
        return self._asked

    def wait(self, seconds: float) -> None:
        """Wait, but not past the end of the workflow."""
        self.check()
        self._stop.wait(seconds)
        self.check()

    def move(self, phase: Phase) -> None:
        self.check()
        workflows.move(self.session, self.workflow, phase, right=self.lease)
        was_copying, self._is_copying = self._is_copying, phase in (Phase.COPYING, Phase.CATCHING_UP)
        if was_copying and not self._is_copying:
            self._write_copy(self.session)
        log.info("workflow %s: %s", self.workflow, phase)

    def report(self, **columns: Any) -> None:
        """Write columns of the progress row."""
        progress.write_driver(self.session, self.workflow, **columns)

    def remember(self) -> None:
        """A point of the history, now: what happens between two of catch-up's must not be missed."""
        snapshot.remember(self.session, self.workflow)

    def reconnect(self) -> None:
        """A fresh control connection; tried for a while, because what follows has to be noted."""
        self.session.close()
        for pause in (0.0, 0.5, 1.0, 2.0, 5.0):
            self._closing.wait(pause)
            try:
                self.session = connect(self.url)
                return
            except Transient as error:
                log.warning("the driver's connection: %s", error)
        self.session = connect(self.url)

    def close(self) -> None:
        """End catch-up, stop beating, give the lease back."""
        self.child.end()
        self._closing.set()
        if self._thread:
            self._thread.join(10.0)
        try:
            if self._is_copying:
                self._write_copy(self.session)
            if self.right:
                lease.release(self.session, self.right)
        except VReplicationError as error:
            log.info("the lease was not given back: %s", error)
        self.session.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(self.url) as session:
                    self._beating = session.id
                    self._beat_until_closed(session)
            except (Transient, Ambiguous) as error:
                log.warning("the driver's heartbeat failed: %s", error)
                self._closing.wait(1.0)
            except Terminal as error:
                self._ended = error
                return
            except Exception as error:  # a silent end of this thread would look like a dead driver
                log.exception("the driver's heartbeat failed")
                self._ended = Terminal(f"The driver's heartbeat failed: {type(error).__name__}: {error}")
                return

    def _beat_until_closed(self, session: Session) -> None:
        beats = 0
        while not self._closing.wait(_PERIOD_SECONDS if beats else 0):
            if beats % 2 == 0:
                lease.beat(session, self.lease, self.connections)
            self._read_wishes(session)
            if self._is_copying:
                self._write_copy(session)
            beats += 1

    def _read_wishes(self, session: Session) -> None:
        row = workflows.load(session, self.workflow)
        self._asked = tuning.read(session, self.workflow)
        if row.is_cancel_requested and not row.is_cut:
            self._ended = self._ended or Cancelled("Cancelled by the operator.")
        if row.phase is Phase.FAILED:
            self._ended = self._ended or Terminal(row.reason or "Catch-up failed.")

    def _write_copy(self, session: Session) -> None:
        totals = ledger.totals(session, self.workflow)
        row = workflows.load(session, self.workflow)
        done = totals.splits == totals.splits_done and totals.splits > 0
        figures = self._estimate.observe(
            SYSTEM.monotonic(),
            rows_copied=totals.rows_copied,
            rows_total=totals.rows_copied if done else row.rows_total,
            is_throttled=not (totals.has_chunks and gate.read(session, self.workflow).is_open),
            is_matched=totals.is_all_matched and totals.splits > 0,
        )
        columns = figures.columns() | (asdict(totals.lately) if totals.lately else {})
        progress.write_driver(
            session,
            self.workflow,
            **columns,
            rows_total_exact=int(done),
            chunks_landed=totals.chunks_landed + totals.chunks_matched,
        )
