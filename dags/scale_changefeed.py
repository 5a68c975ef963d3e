"""Give a change feed more partitions, or fewer, while it runs, and wait until it sends to them."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.feeding import ScaleOperator, scale_params


@dag(
    dag_id="scale_changefeed",
    schedule=None,
    catchup=False,
    params=scale_params(),
    tags=["vreplication"],
    doc_md=__doc__,
)
def scale_changefeed() -> None:
    ScaleOperator(task_id="scale", retries=3, retry_delay=timedelta(seconds=5))


scale_changefeed()
