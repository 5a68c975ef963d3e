"""The DAG backfill's two steps: choose the jobs of a run, and copy one job's rows of the run's data interval.

What must stay true: nothing is read when the DAG is imported, neither the jobs' file nor a connection nor a server; a
broken file is one sentence in the task; a password is in no rendered field, XCom or log; what may succeed when it is
done again is tried again by Airflow, and doing it again is harmless.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from vreplication.airflow.ending import in_airflow
from vreplication.airflow.folder import chosen
from vreplication.airflow.noting import SKIPPED, store_end

if TYPE_CHECKING:
    from pathlib import Path

    from vreplication.backfill.job import Job

log = logging.getLogger(__name__)

_DEFER_SECONDS = 10.0
"""A shorter wait is not worth another process."""
BACKFILL_POOL = "vreplication_backfill"
"""Of its own: a month of intervals must not take the places that a cut-over needs."""


def backfill_params() -> dict[str, Param]:
    """Relied on from outside: `airflow backfill create … --dag-run-conf '{"jobs": ["orders"]}'`."""
    return {
        "jobs": Param(
            [],
            type="array",
            items={"type": "string", "minLength": 1},
            title="Jobs",
            description="Names of jobs in migrations/backfills.yaml. None: the run is skipped.",
        )
    }


class _Operator(BaseOperator):
    """Knows where the jobs are. `migrations`: the folder, where the environment names no other."""

    def __init__(self, *, migrations: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.migrations = migrations

    def jobs(self) -> tuple[dict[str, Job], Path]:
        from vreplication.backfill.job import load_jobs

        path = chosen(self.migrations) / "backfills.yaml"
        return load_jobs(path), path


class ChooseJobsOperator(_Operator):
    """The names of the run's jobs, each once; a name that is not there fails, and no name at all skips."""

    def execute(self, context: Any) -> list[str]:
        # A job that comes twice would be two tasks on one interval, of which the second waits for the first
        # (backfill/places.py).
        wanted = list(dict.fromkeys(context["params"]["jobs"]))
        if not wanted:
            store_end(context, SKIPPED, "Nothing was copied: the run names no jobs.")
            raise AirflowSkipException("The run names no jobs.")
        return in_airflow(lambda: self._known(wanted))

    def _known(self, wanted: list[str]) -> list[str]:
        from vreplication.backfill.job import find_job

        jobs, path = self.jobs()
        return [find_job(jobs, name, path).name for name in wanted]


class BackfillOperator(_Operator):
    """Copies or refreshes one job's rows of the data interval; its result is the task's XCom."""

    ui_color = "#e8eef7"

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self._stop = threading.Event()

    def execute(self, context: Any) -> dict[str, Any]:
        start, end = interval(context)
        # An interval that is not over is refused here, before it waits, by the source's clock and not the worker's.
        left = in_airflow(lambda: self._seconds_left(end))
        if left > _DEFER_SECONDS and not self._stop.is_set():
            log.info("waiting until the interval is lateness_minutes old, in the triggerer: %.0f s more", left)
            self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=left)), method_name="proceed")
        return in_airflow(lambda: self._work(start, end))

    def proceed(self, context: Any, event: Any = None) -> dict[str, Any]:
        """Called when the trigger has fired; whether it is time yet the source's clock says again."""
        return self.execute(context)

    def _seconds_left(self, end: datetime) -> float:
        from vreplication.airflow.connections import source_url
        from vreplication.backfill import lateness

        job = self._job()
        return lateness.seconds_left(job, source_url(job.source), end)

    def _job(self) -> Job:
        from vreplication.backfill.job import find_job

        jobs, path = self.jobs()
        return find_job(jobs, self.job, path)

    def _work(self, start: datetime, end: datetime) -> dict[str, Any]:
        from vreplication.airflow.connections import source_url, use_own_python
        from vreplication.backfill.run import run

        use_own_python()
        job = self._job()
        urls = source_url(job.source), source_url(job.target)
        result = run(job, *urls, start, end, stop=self._stop, notify=log.info)
        # Before it may fail: what was copied, and what differs, is told either way.
        log.info("%s", result.as_json())
        if not result.verified:
            # To be tried again: rows that are written all the time may come to rest until then.
            raise AirflowException(result.reason)
        return result.as_json()

    def on_kill(self) -> None:
        self._stop.set()


def interval(context: Any) -> tuple[datetime, datetime]:
    """The run's data interval. Raises AirflowFailException when it has none."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        raise AirflowFailException(
            "refused: This run has no data interval. Give it a logical date, or use `airflow backfill create`."
        )
    return start, end
