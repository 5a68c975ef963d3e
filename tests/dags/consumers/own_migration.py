"""A DAG of somebody else with a migration in it, and a task that is not to begin before the tables are switched.

Beside it two sensors, of its own migration and of another's.
"""

from __future__ import annotations

from airflow.sdk import dag, task

from vreplication.airflow.groups import OnlineDdlGroup
from vreplication.airflow.sensors import WorkflowSensor

_ASKED = {"conn": "", "table": "", "master": "", "other": ""}


@task
def after() -> str:
    return "told"


@dag(dag_id="own_migration", schedule=None, catchup=False, params=_ASKED)
def own_migration() -> None:
    change = OnlineDdlGroup(
        "change",
        source_conn_id="{{ params.conn }}",
        table="{{ params.table }}",
        alter="ADD added INT",
        workflow="group-{{ run_id }}",
        spark_master="{{ params.master }}",
    )
    change >> after()
    conn_id = "{{ params.conn }}"
    WorkflowSensor(task_id="waited", source_conn_id=conn_id, workflow="group-{{ run_id }}", timeout=2 * 24 * 3600)
    WorkflowSensor(task_id="other", source_conn_id=conn_id, workflow="{{ params.other }}", soft_fail=True)


own_migration()
