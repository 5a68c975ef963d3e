"""Catch-up of several workflows in one process: a thread each, and one reader of the log for all of them.

What must stay true: what ends one of them ends no other, and is noted in its own row, where its driver reads it; of one
that another driver has taken over nothing is noted, and its lease is left to that one's catch-up; memory is divided
among as many as are worked on at a time.
"""

from __future__ import annotations

import logging
import threading

from vreplication import about
from vreplication.engine.reading import SharedReader
from vreplication.engine.replicate import replicate
from vreplication.errors import LeaseHeld, Superseded, Terminal, VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.state import journal, lease, workflows
from vreplication.state.lease import Lease

log = logging.getLogger(__name__)

_TRIES = 5
_AGAIN_SECONDS = 1.0
# Less than the 15 s after which the parent kills this process (engine/child.py).
_END_SECONDS = 12.0


class Followers:
    """Who is caught up with in this process. To be told by one thread."""

    def __init__(self, url: SourceUrl, at_once: int) -> None:
        self._url, self._at_once = url, max(1, at_once)
        self._reader = SharedReader()
        self._running: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def follow(self, workflow: str) -> None:
        """Begin; one that is being followed goes on."""
        found = self._running.get(workflow)
        # One that was told to leave does not count: it may still be writing its last batch, and is not coming back.
        if found and found[0].is_alive() and not found[1].is_set():
            return
        asked = threading.Event()
        thread = threading.Thread(target=self._run, args=(workflow, asked, found), name=workflow, daemon=True)
        self._running[workflow] = thread, asked
        thread.start()

    def leave(self, workflow: str) -> None:
        """Let it finish its batch and go."""
        if found := self._running.get(workflow):
            found[1].set()

    def end(self) -> None:
        """All of them."""
        for _, asked in self._running.values():
            asked.set()
        for thread, _ in self._running.values():
            thread.join(_END_SECONDS)

    def _run(
        self, workflow: str, asked: threading.Event, before: tuple[threading.Thread, threading.Event] | None
    ) -> None:
        # Whoever has told us to follow has the lease.
        driver = self._driver(workflow)
        if before:
            # It may still be giving the lease back, for which we would have to wait all the same.
            before[0].join(_END_SECONDS)
        tries = 0
        while not asked.is_set():
            error = self._once(workflow, asked)
            if error is None or self._is_over(workflow):
                return
            driver = driver or self._driver(workflow)
            if driver and self._is_taken_over(driver):
                log.info("workflow %s is another driver's, which has a catch-up of its own", workflow)
                return
            tries += self._counts(workflow, error)
            # Until its row says that it has ended: its driver would wait for ever for a catch-up that went without a
            # word.
            if tries > _TRIES and self._note_failure(workflow, error, driver):
                return
            asked.wait(_AGAIN_SECONDS)

    def _driver(self, workflow: str) -> Lease | None:
        """The lease of whoever drives it; None: the server does not say."""
        try:
            with connect(self._url) as session:
                return lease.current(session, workflow, lease.DRIVER)
        except VReplicationError:
            return None

    def _is_taken_over(self, driver: Lease) -> bool:
        now = self._driver(driver.workflow)
        return now is not None and now != driver

    def _counts(self, workflow: str, error: VReplicationError) -> bool:
        """False: it says nothing of the workflow."""
        # A cut-over takes the lease from us, too, and leaves it to us when it has not switched (lease.depose).
        if isinstance(error, (LeaseHeld, Superseded)):
            return False
        # While tables are switched the name may carry the new one already; whether it does the driver finds out, not
        # we.
        return self._phase(workflow) is not Phase.CUTTING_OVER

    def _is_over(self, workflow: str) -> bool:
        """It has ended, as its row says, or its tables have been switched."""
        try:
            with connect(self._url) as session:
                row = workflows.find(session, workflow)
            return row is None or row.has_ended or row.is_cut
        except VReplicationError:
            return False

    def _phase(self, workflow: str) -> Phase | None:
        """None: the server does not say."""
        try:
            with connect(self._url) as session:
                found = workflows.find(session, workflow)
            return found.phase if found else None
        except VReplicationError:
            return None

    def _once(self, workflow: str, asked: threading.Event) -> VReplicationError | None:
        """None: it has ended as it should. What did not may not have been noted: its driver would wait for ever."""
        about.this_thread(workflow)
        log.info("catch-up of workflow %s begins", workflow)
        try:
            replicate(self._url, workflow, asked, reader=self._reader, share=self._at_once)
        except VReplicationError as error:
            log.warning("catch-up of workflow %s: %s", workflow, error)
            return error
        except Exception as error:  # a fault of ours
            log.exception("catch-up of workflow %s ended by an unexpected error", workflow)
            return Terminal(f"Catch-up failed: {type(error).__name__}: {error}")
        log.info("catch-up of workflow %s ends", workflow)
        return None

    def _note_failure(self, workflow: str, error: VReplicationError, driver: Lease | None) -> bool:
        """Its driver is still there, and reads it. False: the server could not be told, or another one drives it."""
        try:
            with connect(self._url) as session:
                if not workflows.load(session, workflow).has_ended:
                    workflows.move(session, workflow, Phase.FAILED, str(error), our_lease=driver)
                    journal.write(session, workflow, "failed", str(error), actor=lease.me())
            return True
        except VReplicationError as other:
            log.error("the failure could not be noted in the sidecar: %s", other)
            return False
