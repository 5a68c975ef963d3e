"""Write a topic of a change feed as Parquet files, each change once, until somebody ends the run: mark it as success.

Whatever ends a worker, the task is tried again and goes on where the lake's newest manifest says. With
`until_caught_up` it ends by itself, for a schedule.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.lakes import FILL, FillOperator
from vreplication.airflow.operators import ENDLESS_RETRIES, FEED_POOL
from vreplication.airflow.params import command_params


@dag(
    dag_id="lake",
    schedule=None,
    catchup=False,
    params=command_params("lake"),
    tags=["vreplication"],
    doc_md=__doc__,
)
def lake() -> None:
    FillOperator(task_id=FILL, pool=FEED_POOL, retries=ENDLESS_RETRIES, retry_delay=timedelta(seconds=5))


lake()
