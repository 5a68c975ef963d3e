"""A statement that waits for a lock, sent by a thread: seen waiting, and ended."""

from __future__ import annotations

import contextlib
import threading
import time

from vreplication.cutover.probe import WAITING
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session

_POLL_SECONDS = 0.003
_SEEN_SECONDS = 1.0


class Waiter:
    """It is sent at once."""

    def __init__(self, session: Session, sql: str) -> None:
        self.session = session
        self._sql = sql
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="cutover-waiter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.session.execute_raw(self._sql)
        except Exception as error:
            self._error = error

    def wait_until_pending(self, observer: Session) -> None:
        """It waits, or has its locks. Raises Transient."""
        until = time.monotonic() + _SEEN_SECONDS
        while self._thread.is_alive():
            found = processes(observer).get(self.session.id)
            if found is not None and found.state == WAITING:
                return
            if time.monotonic() > until:
                raise Transient("A lock was not seen waited for.")
            time.sleep(_POLL_SECONDS)
        if self._error is not None:
            # It holds off no one, and would be taken for one that has its locks.
            raise Transient(f"A lock could not be waited for: {self._error}")

    def finish(self, spare: Session, seconds: float) -> None:
        """Wait for its end, and end it when that takes longer. It may have failed."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._kill(spare)

    def _kill(self, spare: Session) -> None:
        with contextlib.suppress(VReplicationError):
            spare.kill(self.session.id)
        self._thread.join(2)

    def end(self, spare: Session) -> None:
        """Its locks are free again, or never had."""
        # Before UNLOCK: a session speaks for one thread at a time.
        if self._thread.is_alive():
            self._kill(spare)
        with contextlib.suppress(VReplicationError):
            self.session.execute_raw("UNLOCK TABLES")
