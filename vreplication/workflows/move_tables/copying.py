"""The copy of tables that move: several side by side on Spark, each by its splits.

What must stay true: the first error of one table ends the copy of all; what a restart finds open is copied then.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from vreplication.clock import SYSTEM
from vreplication.engine.job import StreamJob, StreamTable
from vreplication.engine.saying import Saying
from vreplication.errors import VReplicationError
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.rowcopy.spark_job import run_copy, slots
from vreplication.settings import TABLES_AT_ONCE
from vreplication.state import journal, ledger, tuning
from vreplication.state.tuning import Room
from vreplication.workflows.move_tables import replica_checks
from vreplication.workflows.move_tables.steps import Work, copy_job, is_open, shared

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 2.0


def copy(work: Work) -> None:
    """Copy every split that is not done, several tables side by side, on Spark."""
    driver = work.driver
    driver.move(Phase.COPYING)
    job = work.load()
    open_tables = [t for t in job.tables if is_open(driver.session, t.id)]
    if open_tables:
        context = work.spark.context(driver.check)
        # Rows go by VALUES, which do not hold the counter to the statement's end as INSERT … SELECT does (F3b).
        tuning.note_room(driver.session, driver.workflow, Room(slots=slots(context), holds_counter=False))
        _Several(work=work, job=job, waiting=list(open_tables), context=context).run()
    driver.freshen()
    rows = sum(ledger.totals(driver.session, table).rows_copied for table in driver.table_ids())
    journal.once(driver.session, driver.lease, "copied", f"{rows:,} rows")
    reach("workflow.copied")


@dataclass(slots=True, kw_only=True)
class _Several:
    """Threads that each copy one table after the other; the first error ends all."""

    work: Work
    job: StreamJob
    waiting: list[StreamTable]
    context: object
    errors: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    looked: float = 0.0
    behind: Saying = field(init=False)

    def __post_init__(self) -> None:
        self.behind = Saying(self.work.driver.notify)

    def run(self) -> None:
        count = min(TABLES_AT_ONCE, len(self.waiting))
        threads = [threading.Thread(target=self._run, args=(count,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(_POLL_SECONDS)
            if not self.errors:
                self._check()
                self._look_at_replica()
        if self.errors:
            raise self.errors[0]
        if self.looked:
            self.work.driver.report(waiting_for=None)

    def _check(self) -> None:
        """An end of the workflow ends the threads at their next tick."""
        try:
            self.work.driver.check()
        except BaseException as error:
            # Before those of the threads, which end because of it: the first one is raised.
            self.errors.insert(0, error)

    def _look_at_replica(self) -> None:
        """Say it when the copy is waiting for the replica that it reads; tasks have no way to."""
        driver, now = self.work.driver, SYSTEM.monotonic()
        if driver.route.replica is None or now - self.looked < _LOOK_SECONDS:
            return
        self.looked = now
        words = replica_checks.behind(driver.route)
        if words:
            self.behind.say(words)
        try:
            driver.report(waiting_for=words or None)
        except VReplicationError as error:
            # What is lost is noticed where work is done, and threads end there.
            log.debug("it could not be reported: %s", error)

    def _run(self, at_once: int) -> None:
        try:
            while table := self._next():
                self._copy(table, at_once)
        except BaseException as error:
            self.errors.append(error)

    def _next(self) -> StreamTable | None:
        with self.lock:
            return self.waiting.pop(0) if self.waiting and not self.errors else None

    def _copy(self, table: StreamTable, at_once: int) -> None:
        driver = self.work.driver
        run_copy(
            self.context,  # type: ignore[arg-type]
            self.work.route,
            driver.lease,
            table.mapping,
            copy_job(self.work, self.job, table, at_once),
            on_tick=self._tick,
            asked=lambda: shared(driver.asked(), at_once),
            pace=driver.pace,
        )

    def _tick(self) -> None:
        if self.errors:
            raise self.errors[0]
