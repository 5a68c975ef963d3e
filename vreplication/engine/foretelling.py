"""The driver's forecast: what a look at the sidecar says about the time to the end, written back for all to see.

What must stay true: whatever goes wrong with it, the workflow goes on. The thread that beats asks for it, so it reads
the sidecar alone: information_schema waits for whoever has locked the table. The main thread only notes what it learns.
"""

from __future__ import annotations

import logging
from collections import deque

from vreplication.clock import SYSTEM
from vreplication.errors import VReplicationError
from vreplication.mysql.session import ConnectionLost, Session, SqlError
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.forecast import Forecast, Outlook, Table
from vreplication.schema import model as schema
from vreplication.state import compared, forecasts, workflows
from vreplication.state.gate import released_by

log = logging.getLogger(__name__)


class Foretelling:
    """Of one driver's workflow."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._entered: deque[tuple[Phase, float]] = deque()
        self._forecast: Forecast | None = None
        self._described: Table | None = None
        self._needs_release = False
        self._has_failed = False

    def enter(self, phase: Phase) -> None:
        self._entered.append((phase, SYSTEM.monotonic()))

    def describe(self, source: schema.Table, is_compared_beside: bool) -> None:
        """What is known of the table by its statistics, which are not exact."""
        rows = source.estimated_rows
        name = f"{source.schema}.{source.name}"
        width = source.data_bytes / max(rows, 1)
        self._described = Table(name=name, rows=rows, row_bytes=width, is_compared_beside=is_compared_beside)

    def tell(self, session: Session) -> None:
        """To be called each second. Raises ConnectionLost and nothing else."""
        if self._has_failed:
            return
        try:
            self._tell(session)
        except ConnectionLost:
            raise
        except Exception as error:  # a fault of the forecast must not end a workflow
            # A fault of ours, or a table that an earlier release lacks, would come again each second.
            self._has_failed = isinstance(error, SqlError) or not isinstance(error, VReplicationError)
            log.warning("workflow %s: no forecast: %s", self._workflow, error, exc_info=self._has_failed)

    def _tell(self, session: Session) -> None:
        found = self._forecast = self._forecast or self._begin(session)
        found.table = self._described or found.table
        while self._entered:
            found.enter(*self._entered.popleft())
        seen = snapshot.find(session, self._workflow)
        if seen is not None:
            done = compared.rows_seen(session, self._workflow) if seen.phase is Phase.COPYING else None
            self._write(session, found.observe(SYSTEM.monotonic(), seen, self._end(session), compared=done))
        while found.finished:
            forecasts.note_pace(session, self._workflow, found.finished.pop(0))

    def _begin(self, session: Session) -> Forecast:
        row = workflows.load(session, self._workflow)
        self._needs_release = row.spec.get("cutover") == "manual" or bool(row.spec.get("cutover_window"))
        return Forecast(forecasts.paces(session), Table(name=f"{row.source_schema}.{row.source_table}"))

    def _end(self, session: Session) -> Phase:
        is_held = self._needs_release and released_by(session, self._workflow) is None
        return Phase.WAITING if is_held else Phase.COMPLETE

    def _write(self, session: Session, found: Outlook) -> None:
        forecasts.write(
            session,
            self._workflow,
            eta_seconds=found.eta_seconds,
            eta_low_seconds=found.low_seconds,
            eta_high_seconds=found.high_seconds,
            eta_of=str(found.of),
            eta_reason=found.reason,
        )
