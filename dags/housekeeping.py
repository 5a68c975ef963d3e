"""Remove what is left over: originals past their time, old journal rows, orphaned shadow tables and leases."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.folder import beside
from vreplication.airflow.housekeeping import HousekeepingOperator, housekeeping_params
from vreplication.airflow.scheduling import ONE_AT_A_TIME


@dag(
    dag_id="housekeeping",
    schedule="30 3 * * *",
    params=housekeeping_params(),
    doc_md=__doc__,
    dagrun_timeout=timedelta(hours=12),
    **ONE_AT_A_TIME,
)
def housekeeping() -> None:
    HousekeepingOperator(task_id="housekeeping", folder=beside(__file__), retries=1, retry_delay=timedelta(minutes=5))


housekeeping()
