"""The RENAME of the cut-over: sent by a thread of its own, because it waits while the lock is held.

What must stay true: nobody acts on "it has been sent" but on "the server shows it waiting"; when `end` returns, its
session does nothing any more, or its socket is closed and the server has been told to kill it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC

from vreplication.cutover.probe import WAITING, Probe
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.remark import Altered, with_remark
from vreplication.mysql.session import ConnectionLost, Session
from vreplication.planning.stages import rename_sql
from vreplication.schema.alter import parse_alter
from vreplication.state.workflows import WorkflowRow

_POLL_SECONDS = 0.005


class Rename:
    """`RENAME TABLE t TO retired, shadow TO t, …` on `renamer`, watched through `observer`."""

    def __init__(self, renamer: Session, observer: Session, rows: Sequence[WorkflowRow]) -> None:
        self._renamer = renamer
        self._observer = observer
        self.sql = rename_statement(rows)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, seconds: float) -> None:
        """`seconds`: the longest it may wait for one lock (the servers count whole ones)."""
        self._renamer.execute_raw(f"SET SESSION lock_wait_timeout={max(1, math.ceil(seconds))}")
        # A daemon: a process that ends must not wait for a statement that may wait for our own lock.
        self._thread = threading.Thread(target=self._run, name="cutover-rename", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._renamer.execute_raw(self.sql)
        except BaseException as error:
            self._error = error

    def wait_until_pending(self, lockers: Iterable[int], seconds: float) -> None:
        """Return when the server shows RENAME waiting and the holders of the locks alive. Raises Transient.

        Of all its tables the first is meant: whether it has gone on to another one is `wait_until_queued`.
        """
        until = time.monotonic() + seconds
        # rename_seen: were the lock let go before it waits, a writer would get at the table, and RENAME would come
        # behind its commit.
        while not self._is_pending(lockers):
            self._check_deadline(until)
            time.sleep(_POLL_SECONDS)

    def check_pending(self, lockers: Iterable[int]) -> None:
        """Raises Transient when it does not wait any more, or a holder of a lock has gone."""
        if not self._is_pending(lockers):
            raise Transient("RENAME does not wait any more.")

    def wait_until_queued(self, probe: Probe, table: tuple[str, str], lockers: Iterable[int], seconds: float) -> None:
        """The same for a later one of its tables (schema, name), when those before it have been left to it."""
        until = time.monotonic() + seconds
        while not (probe.waits(*table) and self._is_pending(lockers)):
            self._check_deadline(until)

    @staticmethod
    def _check_deadline(until: float) -> None:
        if time.monotonic() > until:
            raise Transient("RENAME was not seen waiting before the deadline.")

    def _is_pending(self, lockers: Iterable[int]) -> bool:
        found = processes(self._observer)
        # dropped_by_holder: with its holder the lock is gone, and a writer may have come in before RENAME. That it
        # waits says nothing then.
        if any(locker not in found for locker in lockers):
            raise Transient("The session that held the lock has been ended.")
        if self._error is not None or self._renamer.id not in found:
            raise Transient(f"RENAME ended early: {self._error or 'its session is gone'}")
        renamer = found[self._renamer.id]
        return renamer.state == WAITING and renamer.statement != ""

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
        # rename_gone: still under way it may move the tables when somebody has found that they were not.
        if self._thread is None or not self._thread.is_alive():
            return
        with contextlib.suppress(VReplicationError):
            spare.kill(self._renamer.id)
        self._thread.join(2)
        if self._thread.is_alive():
            self._renamer.abort()


def rename_statement(rows: Sequence[WorkflowRow]) -> str:
    """It says by which ALTERs, for change feeds."""
    sql = rename_sql((row.source_schema, row.source_table, row.shadow_table, row.retired_table) for row in rows)
    return with_remark(sql, (_altered(row) for row in rows if _says_how(row)))


def _says_how(row: WorkflowRow) -> bool:
    """There is an ALTER which leads to the new definition: not where a change is taken back."""
    return bool(row.spec.get("alter")) and "reverts" not in row.spec


def _altered(row: WorkflowRow) -> Altered:
    clauses = parse_alter(str(row.spec["alter"])).text
    # By the moment that engine/job.py gives to all rows.
    moment = round(row.created_at.replace(tzinfo=UTC).timestamp() * 10**6) if row.created_at else 0
    return Altered(schema=row.source_schema, table=row.source_table, clauses=clauses, moment=moment)
