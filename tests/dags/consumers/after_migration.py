"""DAGs of somebody else: one for each table that the tests migrate by this name, and one for every table.

Read by the dag-processor of a test's Airflow, beside the repository's own DAGs.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, dag, get_current_context, task

from vreplication.airflow.assets import table_asset


@task
def told() -> list[dict[str, Any]]:
    """What the events say that this run was started for."""
    events = get_current_context()["triggering_asset_events"]
    return [dict(event.extra) for asset in events for event in events[asset]]


def consumer(dag_id: str, asset: Asset) -> None:
    @dag(dag_id=dag_id, schedule=[asset], catchup=False)
    def flow() -> None:
        told()

    flow()


for name in ("shop_mariadb", "shop_mysql"):
    consumer(f"after_{name}", table_asset(name, name, "orders"))
consumer("after_any", Asset("vreplication_table_migrated"))
