"""Start the migrations of the queue that are due: what `vreplication submit` and the files under migrations/ put in."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.folder import beside
from vreplication.airflow.scheduling import (
    ONE_AT_A_TIME,
    WAIT_SECONDS,
    ClaimDueOperator,
    StartOperator,
    scheduling_params,
)


@dag(
    dag_id="scheduled_migrations",
    # The next run begins when one has ended: each waits until something is due, and starts it.
    schedule="@continuous",
    params=scheduling_params(),
    doc_md=__doc__,
    dagrun_timeout=timedelta(seconds=WAIT_SECONDS) + timedelta(hours=1),
    # Files that come while it waits are of a newer version.
    disable_bundle_versioning=True,
    **ONE_AT_A_TIME,
)
def scheduled_migrations() -> None:
    due = ClaimDueOperator(task_id="claim_due", folder=beside(__file__), retries=2, retry_delay=timedelta(seconds=10))
    # logical_date None: two runs with the same one could not both be.
    StartOperator.partial(
        task_id="start",
        logical_date=None,
        skip_when_already_exists=True,
        retries=3,
        retry_delay=timedelta(seconds=10),
        map_index_template="{{ task.trigger_run_id }}",
    ).expand_kwargs(due.output)


scheduled_migrations()
