"""The driver of tables that move: what any driver is, with a second server.

What must stay true: nobody takes over a workflow whose source cannot be reached; when `start` has returned, nothing
that an earlier driver has sent to either server comes any more; a connection to the source is noted there before it
does anything.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from vreplication.clock import SYSTEM
from vreplication.engine.child import StreamCatchUp
from vreplication.engine.driver import Driver
from vreplication.errors import Ambiguous, Superseded, Transient, VReplicationError
from vreplication.mysql import read_only
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import Session, connect
from vreplication.settings import ALIVE_SECONDS, OUTAGE_SECONDS, WORK_SECONDS
from vreplication.state import lease, ledger, source_marks, workflows
from vreplication.state.counting import Counting
from vreplication.state.ledger import Totals, Walked
from vreplication.workflows.move_tables.streams import stream_id

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


class MoveDriver(Driver):
    """Holds the lease at home between `start` and `close`."""

    def __init__(
        self, route: Route, workflow: str, stop: threading.Event, notify: Callable[[str], None], child: StreamCatchUp
    ) -> None:
        super().__init__(route.home, workflow, stop, notify, child)
        self.route, self.stream = route, child
        self._noted: dict[int, int] = {}
        self._noting = threading.Lock()
        self._rests = False

    def start(self) -> None:
        """Raises LeaseHeld, or Transient when the source cannot be reached, or takes no writes."""
        with connect(self.route.source) as source:
            # The source first, and then the lease: W10 needs what was left ended on both servers, so without the source
            # nobody takes over.
            super().start()
            with read_only.told("the source"):
                source_marks.install(source)
                source_marks.claim(source, self.workflow, lease.DRIVER, self.lease.token, (source.id,))

    @contextlib.contextmanager
    def at_source(self, *, alive_seconds: int = ALIVE_SECONDS) -> Iterator[Session]:
        """A connection to the source that may change something there. Raises Superseded."""
        with connect(self.route.source, read_timeout=WORK_SECONDS, idle_seconds=alive_seconds) as session:
            with self._noting, read_only.told("the source"):
                self._noted[session.id] = session.id
                source_marks.claim(session, self.workflow, lease.DRIVER, self.lease.token, tuple(self._noted))
            # Behind the note there: whoever has taken the lease since has ended what was noted, or finds this
            # connection.
            if self.is_superseded:
                raise Superseded(f"Workflow {self.workflow} has been taken over by another process.")
            try:
                yield session
            finally:
                self._noted.pop(session.id, None)

    def own_on(self, session: Session) -> tuple[int, ...]:
        """Our connections on the server of this one, which is of either side: each server has numbers of its own."""
        others = tuple(self._noted) if session.url == self.route.source else self.connections
        return (session.id, *others)

    @contextlib.contextmanager
    def ends(self) -> Iterator[Ends]:
        """For reading, and for the state."""
        with self.route.open(read_timeout=WORK_SECONDS) as ends:
            yield ends

    def table_ids(self, number: int = 1) -> list[str]:
        """Of the tables, as the stream to this switch keeps them."""
        stream = stream_id(self.workflow, number)
        return [table.id(stream) for table in workflows.tables(self.session, self.workflow)]

    def is_ridden_out(self, error: VReplicationError) -> bool:
        return super().is_ridden_out(error) or read_only.says_so(error)

    def ride_out(self, error: VReplicationError) -> None:
        """Either server may have been lost. Raises `error` when one stays away, or when nothing gets on.

        One that is read-only is waited for as long, for writes may be denied until we go on.
        """
        if read_only.says_so(error):
            return self._wait_writable(error)
        until = SYSTEM.monotonic() + OUTAGE_SECONDS
        while not self._answers():
            if SYSTEM.monotonic() > until:
                raise error
            self.wait(_PAUSE_SECONDS)
        super().ride_out(error)

    def _wait_writable(self, error: VReplicationError) -> None:
        said = read_only.named(error, self.route)
        self.notify(f"{said} Going on when it takes writes.")
        self._tell_waiting(str(said))
        closed, until = read_only.closed_of(self.route), SYSTEM.monotonic() + OUTAGE_SECONDS
        self.wait(_PAUSE_SECONDS)
        # Of the other one, which may be closed for long behind a switch, nothing is wanted now. And not without an end:
        # a user whom read_only does not bind may have been refused by the other one.
        while closed and read_only.closed_of(self.route) == closed:
            if SYSTEM.monotonic() > until:
                raise error
            self.wait(_PAUSE_SECONDS)
        self._tell_waiting(None)
        try:
            reached = self._returned()
        except (Transient, Ambiguous):
            raise error from None
        self._count_outage(error, reached)

    def _tell_waiting(self, words: str | None) -> None:
        """As far as home can be told: it may be the one that takes no writes."""
        with contextlib.suppress(VReplicationError):
            self.report(waiting_for=words)

    def _answers(self) -> bool:
        """The source."""
        try:
            with connect(self.route.source):
                return True
        except Transient as error:
            log.warning("the source does not answer: %s", error)
            return False

    def rest(self) -> None:
        """Catch-up is ended by a switch: until the next stream begins nobody starts it again."""
        # Each switch would count as a death of catch-up, and as a start too many.
        self._rests = True

    def start_replicate(self) -> None:
        self._rests = False
        super().start_replicate()

    def _keep_alive(self) -> None:
        if not self._rests:
            super()._keep_alive()

    def _planned_rows(self, session: Session) -> int | None:
        return sum(table.rows_total or 0 for table in workflows.tables(session, self.workflow))

    def _totals(self, session: Session) -> Totals:
        return total([ledger.totals(session, table) for table in self._copied(session)])

    def _counting(self) -> Callable[[Session], Totals]:
        counting: dict[str, Counting] = {}

        def count(session: Session) -> Totals:
            ids = self._copied(session)
            return total([counting.setdefault(table, Counting(table)).totals(session) for table in ids])

        return count

    def _copied(self, session: Session) -> list[str]:
        """Ids of the tables in the first stream, which alone copies."""
        stream = stream_id(self.workflow, 1)
        return [table.id(stream) for table in workflows.tables(session, self.workflow)]

    # Each table by its rows: the share of ten small ones would hide how far a large one is.
    def _walked(self, session: Session) -> Walked:
        stream = stream_id(self.workflow, 1)
        tables = workflows.tables(session, self.workflow)
        found = [(table.rows_total or 0, ledger.walked(session, table.id(stream))) for table in tables]
        whole = sum(rows for rows, _ in found)
        share = sum(rows * walked.share for rows, walked in found) / whole if whole else 0.0
        return Walked(rows=sum(walked.rows for _, walked in found), share=share)


def total(several: list[Totals]) -> Totals:
    """Of all tables; the mean chunk is the last table's that has one."""
    counted = {f.name: sum(getattr(each, f.name) for each in several) for f in fields(Totals) if f.name != "lately"}
    lately = next((each.lately for each in reversed(several) if each.lately), None)
    return replace(Totals(**counted, lately=None), lately=lately)
