"""Has RENAME queued for a table that another session has locked? Told by a statement that has to queue behind it.

RENAME shows that it waits, and not for which of its tables. PREPARE of a SELECT asks for the weakest metadata lock that
there is: it is granted beside LOCK TABLES … WRITE, and kept waiting by a statement that waits for the strongest one
(measured on both servers). So, while the table is locked and nobody else's DDL statement waits for it, a probe that is
kept waiting says that RENAME has queued.

What must stay true: it is believed when the server shows it waiting, never because it has not answered; when `waits`
returns, the probe has ended.
"""

from __future__ import annotations

import contextlib
import threading
import time

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import qualified, text
from vreplication.mysql.session import LockWait, Session

WAITING = "Waiting for table metadata lock"
"""How both servers show a session that waits for a table."""
_POLL_SECONDS = 0.002
_END_SECONDS = 2.0


class Probe:
    """Statements on `prober`, watched and ended through `observer`."""

    def __init__(self, prober: Session, observer: Session) -> None:
        self._prober = prober
        self._observer = observer
        self._error: BaseException | None = None

    def waits(self, schema: str, table: str) -> bool:
        """Somebody waits for the table with the strongest lock. Raises Transient when that cannot be told."""
        self._error = None
        # By a variable: MySQL's PREPARE takes a plain string or a variable, and no literal with a character set.
        self._prober.execute_raw(f"SET @vr_probe={text(f'SELECT 1 FROM {qualified(schema, table)}')}")
        thread = threading.Thread(target=self._run, name="cutover-probe", daemon=True)
        thread.start()
        try:
            return self._is_seen_waiting(thread)
        finally:
            self._end(thread)

    def _run(self) -> None:
        try:
            self._prober.execute_raw("PREPARE vr_probe FROM @vr_probe")
        except BaseException as error:
            self._error = error

    def _is_seen_waiting(self, thread: threading.Thread) -> bool:
        while thread.is_alive():
            found = processes(self._observer).get(self._prober.id)
            if found and found.state == WAITING:
                return True
            time.sleep(_POLL_SECONDS)
        if self._error is not None and not isinstance(self._error, LockWait):
            raise Transient(f"It cannot be told whether RENAME waits: {self._error}")
        # A wait that ran out before it was seen was a wait.
        return self._error is not None

    def _end(self, thread: threading.Thread) -> None:
        if thread.is_alive():
            with contextlib.suppress(VReplicationError):
                # The statement alone: the session is needed again.
                self._observer.execute_raw(f"KILL QUERY {self._prober.id}")
            thread.join(_END_SECONDS)
        if thread.is_alive():
            self._prober.abort()
