"""Copy or refresh the rows of one day of the tables in migrations/backfills.yaml, from one server to another.

A month again: `airflow backfill create --dag-id backfill --from-date 2026-01-01 --to-date 2026-01-31
--dag-run-conf '{"jobs": ["orders"]}'`. A run that names no jobs is skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, dag

from vreplication.airflow.backfill import BACKFILL_POOL, BackfillOperator, ChooseJobsOperator, backfill_params
from vreplication.airflow.folder import beside

MIGRATIONS = beside(__file__)


@dag(
    dag_id="backfill",
    # Not "@daily": its intervals have no length.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=4,
    params=backfill_params(),
    tags=["vreplication"],
    doc_md=__doc__,
)
def backfill() -> None:
    choose = ChooseJobsOperator(task_id="choose", migrations=MIGRATIONS)
    BackfillOperator.partial(
        task_id="copy",
        migrations=MIGRATIONS,
        # Said here, because what an operator sets for itself does not count for a mapped task.
        pool=BACKFILL_POOL,
        retries=3,
        retry_delay=timedelta(seconds=30),
        map_index_template="{{ task.job }}",
        max_active_tis_per_dagrun=2,
    ).expand(job=choose.output)


backfill()
