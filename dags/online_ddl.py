"""Alter a live table. The same stages as `vreplication online-ddl`, each a task that can be cleared and tried again."""

from __future__ import annotations

from airflow.sdk import dag

from vreplication.airflow.operators import make_flow
from vreplication.airflow.params import params


@dag(
    dag_id="online_ddl",
    schedule=None,
    catchup=False,
    params=params("online_ddl"),
    tags=["vreplication"],
    doc_md=__doc__,
)
def online_ddl() -> None:
    make_flow("online_ddl")


online_ddl()
