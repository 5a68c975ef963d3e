"""Alter a live table. The same stages as `vreplication online-ddl`, each a task that can be cleared and tried again."""

from __future__ import annotations

from airflow.sdk import dag

from vreplication.airflow import operators
from vreplication.airflow.approval import CutOverApproval
from vreplication.airflow.params import online_ddl_params


@dag(
    dag_id="online_ddl",
    schedule=None,
    catchup=False,
    params=online_ddl_params(),
    tags=["vreplication"],
    doc_md=__doc__,
)
def online_ddl() -> None:
    plan = operators.PlanOperator(task_id="plan")
    tasks = operators.make_tasks(plan, clean_up={"approval": "approve"})
    # Nothing waits for `approve`: the gate waits for the sidecar's release row, which the answer writes.
    tasks["verify"] >> CutOverApproval(task_id="approve")


online_ddl()
