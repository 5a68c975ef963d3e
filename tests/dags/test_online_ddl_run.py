"""Whole runs of the DAG online_ddl through scheduler, dag-processor, triggerer and api-server, under live writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.deployment import Deployment
from tests.support.dag_runs import DagRun, unpause
from tests.support.shop import ROWS, Shop
from vreplication import names
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]


@pytest.fixture
def shop(airflow: Deployment, database: Database) -> Iterator[Shop]:
    unpause(airflow, "online_ddl")
    found = Shop(airflow, database)
    with found.workload:
        yield found


def test_released_by_an_operator(shop: Shop) -> None:
    """Held at the gate, without a worker slot, until the release; then switched, and the result is the command's."""
    run = shop.trigger(cutover="manual")
    run.wait_for_task("gate", "deferred")
    assert shop.phase(run.run_id) is Phase.WAITING
    assert run.tasks()["replicate"] == "running"
    operate.release(shop.database.url, run.run_id, by="tester")
    assert run.end() == "success", run.story()
    result = run.result("clean_up")
    assert (result["event"], result["workflow"]) == ("complete", run.run_id)
    assert result["rows_copied"] > ROWS // 2
    own = f"vreplication://{shop.conn_id}/{shop.database.name}/orders"
    told = {"conn_id": shop.conn_id, "table": f"{shop.database.name}.orders", "workflow": run.run_id}
    assert asset_events(shop, run) == {"vreplication_table_migrated": told, own: told}
    shop.prove(run.run_id)


def asset_events(shop: Shop, run: DagRun) -> dict[str, Any]:
    """What other DAGs can be scheduled on: the asset's address and what its event says."""
    where = f"/api/v2/assets/events?source_dag_id={run.dag_id}&source_run_id={run.run_id}"
    status, found = shop.airflow.call("GET", where)
    assert status == 200, found
    return {event["uri"]: event["extra"] for event in found["asset_events"]}


def test_auto_with_the_processes_of_copy_and_replicate_killed(shop: Shop) -> None:
    """Airflow tries them again; they go on from the sidecar."""
    run = shop.trigger(cutover="auto", chunk_rows=50)
    run.wait_for_task("replicate", "running")
    run.wait_for(lambda: shop.phase(run.run_id) is Phase.COPYING, "it does not copy")
    os.kill(run.pid("copy"), signal.SIGKILL)
    os.kill(run.pid("replicate"), signal.SIGKILL)
    assert run.end() == "success", run.story()
    assert run.tries("copy") > 1
    assert run.tries("replicate") > 1
    shop.prove(run.run_id)


@pytest.mark.only_on("mariadb")
def test_refused_with_the_sentence_of_the_command_line(shop: Shop) -> None:
    run = shop.trigger(table="no_such_table")
    assert run.end() == "failed"
    assert run.tasks()["plan"] == "failed"
    assert run.tries("plan") == 1
    assert "no_such_table" in run.log("plan")
    assert shop.database.password not in run.log("plan")
    assert run.tasks()["prepare"] == "upstream_failed"


@pytest.mark.only_on("mysql")
def test_cancel_removes_what_was_made(shop: Shop) -> None:
    run = shop.trigger(cutover="manual")
    run.wait_for_task("gate", "deferred")
    operate.cancel(shop.database.url, run.run_id, by="tester")
    assert run.end() == "failed"
    with connect(shop.database.app_url) as app:
        assert [n for (n,) in app.rows("SHOW TABLES") if names.is_ours(n)] == []
    assert shop.phase(run.run_id) is Phase.CANCELLED
