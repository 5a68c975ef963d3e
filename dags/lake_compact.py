"""Make few files of a lake's many, and give up what its rows were before a time, beside who fills and who reads it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.lakes import CompactOperator
from vreplication.airflow.params import command_params


@dag(
    dag_id="lake_compact",
    schedule=None,
    catchup=False,
    params=command_params("lake_compact"),
    tags=["vreplication"],
    doc_md=__doc__,
)
def lake_compact() -> None:
    CompactOperator(task_id="compact", retries=3, retry_delay=timedelta(seconds=30))


lake_compact()
