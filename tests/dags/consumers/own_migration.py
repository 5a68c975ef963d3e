"""A DAG of somebody else with a migration in it, and a task that is not to begin before the tables are switched."""

from __future__ import annotations

from airflow.sdk import dag, task

from vreplication.airflow.groups import OnlineDdlGroup


@task
def after() -> str:
    return "told"


@dag(dag_id="own_migration", schedule=None, catchup=False, params={"conn": "", "table": "", "master": ""})
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


own_migration()
