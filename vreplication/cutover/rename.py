"""The RENAME of the cut-over: sent by a thread of its own, because it waits while the lock is held.

What must stay true: nobody acts on "it has been sent" but on "the server shows it waiting"; when `end` returns, its
session does nothing any more, or its socket is closed and the server has been told to kill it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import ConnectionLost, Session
from vreplication.state.workflows import WorkflowRow

_POLL_SECONDS = 0.005
_WAITING = "Waiting for table metadata lock"


class Rename:
    """`RENAME TABLE t TO retired, shadow TO t` on `renamer`, watched through `observer`."""

    def __init__(self, renamer: Session, observer: Session, row: WorkflowRow) -> None:
        self._renamer = renamer
        self._observer = observer
        self._sql = rename_sql(row)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, seconds: float) -> None:
        """`seconds`: the longest it may wait for one lock (the servers count whole ones)."""
        self._renamer.execute_raw(f"SET SESSION lock_wait_timeout={max(1, math.ceil(seconds))}")
        self._thread = threading.Thread(target=self._run, name="cutover-rename", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._renamer.execute_raw(self._sql)
        except BaseException as error:
            self._error = error

    def wait_until_pending(self, locker_id: int, seconds: float) -> None:
        """Return when the server shows RENAME waiting and the holder of the lock alive. Raises Transient."""
        until = time.monotonic() + seconds
        while not self._is_pending(locker_id):
            if time.monotonic() > until:
                raise Transient("RENAME was not seen waiting before the deadline.")
            time.sleep(_POLL_SECONDS)

    def _is_pending(self, locker_id: int) -> bool:
        found = processes(self._observer)
        if locker_id not in found:
            raise Transient("The session that held the lock has been ended.")
        if self._error is not None or self._renamer.id not in found:
            raise Transient(f"RENAME ended early: {self._error or 'its session is gone'}")
        renamer = found[self._renamer.id]
        return renamer.state == _WAITING and renamer.statement != ""

    def finish(self, seconds: float) -> None:
        """Wait for the answer. Raises Transient when there was none, or an error (which says nothing for sure)."""
        assert self._thread is not None
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Transient("RENAME did not answer.")
        if self._error is not None:
            raise Transient(f"RENAME ended with an error: {self._error}")

    @property
    def is_sent(self) -> bool:
        return self._thread is not None

    @property
    def is_unanswered(self) -> bool:
        """Sent, and the server has not said what became of it: it may still be at work on it."""
        if self._thread is None:
            return False
        return self._thread.is_alive() or isinstance(self._error, ConnectionLost)

    def end(self, spare: Session) -> None:
        """Kill it if it has been sent and not answered."""
        if self._thread is None or not self._thread.is_alive():
            return
        with contextlib.suppress(VReplicationError):
            spare.kill(self._renamer.id)
        self._thread.join(2)
        if self._thread.is_alive():
            self._renamer.abort()


def rename_sql(row: WorkflowRow) -> str:
    """One statement, so that it is atomic."""
    source = qualified(row.source_schema, row.source_table)
    retired = qualified(row.source_schema, row.retired_table)
    return f"RENAME TABLE {source} TO {retired}, {qualified(row.source_schema, row.shadow_table)} TO {source}"
