"""Remove what is left over: originals past their time, old journal rows, orphaned shadow tables and leases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag

from vreplication.airflow.housekeeping import HousekeepingOperator, housekeeping_params


@dag(
    dag_id="housekeeping",
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params=housekeeping_params(),
    tags=["vreplication"],
    doc_md=__doc__,
    dagrun_timeout=timedelta(hours=12),
)
def housekeeping() -> None:
    folder = str(Path(__file__).resolve().parent.parent / "migrations")
    HousekeepingOperator(task_id="housekeeping", folder=folder, retries=1, retry_delay=timedelta(minutes=5))


housekeeping()
