"""An ALTER of the table itself, in the place of a cut-over: one attempt, and whether it has happened.

What must stay true: the lock is waited for at most a second, so that nobody queues behind us for longer; an instant
ALTER is ended at the cut-over's deadline; whatever the connection said, the definition tells whether it was done, and
only when the connection is gone from the server; a table that somebody else has altered is left alone; the algorithm
is in the statement, so a table that the server would have to copy stays as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vreplication.clock import SYSTEM
from vreplication.cutover.blockers import Blocker, blockers
from vreplication.cutover.decide import SWITCHED, decide
from vreplication.cutover.sessions import LOCK_SECONDS, MARGIN_SECONDS
from vreplication.cutover.watchdog import Watchdog
from vreplication.errors import Terminal
from vreplication.mysql.processes import still_there
from vreplication.mysql.server import Server
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.settings import CUTOVER_DEADLINE_SECONDS, TABLE_SECONDS
from vreplication.state.workflows import WorkflowRow

_LOOK_SECONDS = 0.1
_GONE_SECONDS = 60.0
"""How long the rest of an ALTER that was ended may take: the server rolls it back."""
_DAY_SECONDS = 86_400.0
_UNABLE = frozenset({1845, 1846, 4092, 4157})
"""Not by this algorithm: at all, for a reason, for the table's row versions, for a row that may get too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """reason: why it was not done, this time. millis: the statement took so long.

    refusal: the server's words where it cannot do it so, now or later; the table is as it was.
    """

    is_done: bool
    millis: float
    reason: str = ""
    refusal: str = ""
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """check: raises what ends the workflow; asked while it runs. announce: as of `CutOver`.

    stopped_by: asked last of all, by a connection of its own: `paused` or `cancelled` since its gate was open.
    """

    url: SourceUrl
    server: Server
    row: WorkflowRow
    sql: str
    check: Callable[[], None]
    announce: Callable[[tuple[int, ...]], None]
    stopped_by: Callable[[Session], str | None]
    deadline_seconds: float = CUTOVER_DEADLINE_SECONDS

    @property
    def is_instant(self) -> bool:
        return self.row.copy_path == "instant"

    def attempt(self, fence: Callable[[], None]) -> Tried:
        """Try once. fence: raises Superseded. Raises Terminal where it fails, all being as before."""
        with self._sessions() as (worker, spare):
            ids = (worker.id, spare.id)
            # Before anything is sent: who takes over ends them.
            self.announce(ids)
            fence()
            reach("in_place.before_alter")
            # A former attempt may have altered it without hearing the answer; an ALTER is done once.
            if decide(spare, self.row) == SWITCHED:
                return Tried(is_done=True, millis=0.0)
            if stopped_by := self.stopped_by(spare):
                return Tried(is_done=False, millis=0.0, reason=f"The workflow was {stopped_by} a moment ago.")
            asked = _Statement(worker, self.sql)
            began = SYSTEM.monotonic()
            try:
                self._wait(asked, worker, spare)
            except BaseException:
                self._end(asked, worker, spare)
                if decide(spare, self.row) == SWITCHED:
                    return Tried(is_done=True, millis=1000 * (SYSTEM.monotonic() - began))
                raise
            tried = self._tell(asked, spare, ids, 1000 * (SYSTEM.monotonic() - began))
        self.announce(())
        return tried

    @contextlib.contextmanager
    def _sessions(self) -> Iterator[tuple[Session, Session]]:
        """One that alters, and one that ends it and looks."""
        # An ALTER in place may take hours, and the server says nothing until it is over.
        patience = self.deadline_seconds + MARGIN_SECONDS if self.is_instant else _DAY_SECONDS
        with (
            connect(self.url, lock_wait_seconds=LOCK_SECONDS, read_timeout=patience) as worker,
            connect(self.url, read_timeout=TABLE_SECONDS, idle_seconds=int(_DAY_SECONDS)) as spare,
        ):
            worker.execute_raw(f"SET SESSION lock_wait_timeout={LOCK_SECONDS}")
            yield worker, spare

    def _wait(self, asked: _Statement, worker: Session, spare: Session) -> None:
        watchdog = Watchdog(spare, self.deadline_seconds)
        with watchdog.started(worker) if self.is_instant else contextlib.nullcontext():
            asked.start()
            while not asked.is_over(_LOOK_SECONDS):
                self.check()

    def _end(self, asked: _Statement, worker: Session, spare: Session) -> None:
        spare.kill(worker.id)
        asked.is_over(_GONE_SECONDS)
        # KILL is answered before the ALTER is rolled back: until its connection is gone the definition may change.
        self._see_gone(worker, spare)

    def _see_gone(self, worker: Session, spare: Session) -> None:
        until = SYSTEM.monotonic() + _GONE_SECONDS
        while still_there(spare, [worker.id]):
            if SYSTEM.monotonic() > until:
                raise Terminal(f"Connection {worker.id}, which alters {self._name}, does not end.")
            SYSTEM.sleep(_LOOK_SECONDS)

    def _tell(self, asked: _Statement, spare: Session, ids: tuple[int, ...], millis: float) -> Tried:
        error = asked.error
        if error is not None and not isinstance(error, LockWait | SqlError):
            # Lost, or ended by the watchdog: it may still be at work there.
            spare.kill(ids[0])
            self._see_gone(asked.session, spare)
        if decide(spare, self.row) == SWITCHED:
            return Tried(is_done=True, millis=millis)
        if isinstance(error, SqlError):
            # These alone mean "not by this algorithm". For a full disk, or a KILL, no copy is begun in its place.
            if error.code in _UNABLE:
                return Tried(is_done=False, millis=millis, refusal=error.message)
            raise Terminal(
                f"The server does not alter {self._name} in place, as it did an empty copy: {error.message}",
                cure=f"The table is as it was. Run `vreplication cancel {self.row.id}`, then take --strategy online.",
            )
        if error is None:
            raise Terminal(f"The ALTER of {self._name} has left another definition than that of its empty copy.")
        return self._not_now(error, millis, spare, ids)

    def _not_now(self, error: BaseException, millis: float, spare: Session, ids: tuple[int, ...]) -> Tried:
        if not isinstance(error, LockWait):
            why = f"{self._name} could not be altered within {self.deadline_seconds:.0f} s, and the ALTER was ended."
            return Tried(is_done=False, millis=millis, reason=why)
        found = blockers(spare, self.server, self.row.source_schema, self.row.source_table, own=frozenset(ids))
        who = " ".join(map(str, found)) or "No blocker could be found: it may have ended."
        why = f"{self._name} could not be locked within {LOCK_SECONDS} s: {who}"
        return Tried(is_done=False, millis=millis, reason=why, blockers=tuple(found))

    @property
    def _name(self) -> str:
        return f"{self.row.source_schema}.{self.row.source_table}"


class _Statement:
    """A statement that runs in a thread, so that we can end it."""

    def __init__(self, session: Session, sql: str) -> None:
        self.session, self._sql = session, sql
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="in-place", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_over(self, seconds: float) -> bool:
        """Waits for it so long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            # sql_mode and time zone decide which values an ALTER gives; those of a plain ALTER are the server's.
            with self.session.as_the_server():
                self.session.execute_raw(self._sql)
        except BaseException as error:
            self.error = error
