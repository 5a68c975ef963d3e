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
    prepare = operators.PrepareOperator(task_id="prepare")
    replicate = operators.ReplicateOperator(task_id="replicate")
    copy = operators.CopyOperator(task_id="copy")
    verify = operators.VerifyOperator(task_id="verify")
    gate = operators.GateSensor(task_id="gate")
    approve = CutOverApproval(task_id="approve")
    cut_over = operators.CutOverOperator(task_id="cut_over")
    clean_up = operators.CleanUpOperator(task_id="clean_up", approval="approve")

    plan >> prepare >> [replicate, copy]
    # Nothing waits for `approve`: the gate waits for the sidecar's release row, which the answer writes.
    copy >> verify >> [gate, approve]
    [gate, replicate] >> cut_over >> clean_up


online_ddl()
