"""Whole runs of the DAG online_ddl through scheduler, dag-processor, triggerer and api-server, under live writes."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from dag_runs import DagRun, trigger, unpause

from sandbox import orders
from sandbox.databases import Database
from sandbox.deployment import Deployment
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from vreplication import names
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import verdicts, workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]
ROWS = 3_000


class Shop:
    """The orders table of one database, written to all the time, and the connection that leads to it."""

    def __init__(self, airflow: Deployment, database: Database) -> None:
        self.airflow, self.database = airflow, database
        self.conn_id = f"shop_{database.name}"
        with connect(database.app_url) as app:
            orders.create(app, "orders")
            orders.fill(app, "orders", ROWS)
            keep_copy(app, "orders", "at_start")
        airflow.add_connection(self.conn_id, database.url)
        self.workload = Workload(database.app_url, "orders", rows=ROWS, writers=2, readers=1, rate=20, xa=True)

    def trigger(self, **more: Any) -> DagRun:
        conf = {"source_conn_id": self.conn_id, "table": "orders", "alter": orders.ALTER, **more}
        return trigger(self.airflow, "online_ddl", f"ddl-{secrets.token_hex(4)}", conf)

    def phase(self, run: DagRun) -> Phase | None:
        with connect(self.database.url) as session:
            found = workflows.find(session, run.run_id)
        return found.phase if found else None

    def prove(self, run: DagRun) -> None:
        """Every row is what the application committed; verification had nothing to mend; nothing is left."""
        self.workload.wait_for(5)
        report = self.workload.stop()
        assert report.errors == ()
        with connect(self.database.app_url) as app:
            assert prove(app, "orders", "at_start", orders.ALTER, self.workload.expected).differences == ()
            left = [name for (name,) in app.rows("SHOW TABLES") if names.is_ours(name)]
        assert left == [names.retired_table("orders", run.run_id)]
        with connect(self.database.url) as session:
            verdict = verdicts.load(session, run.run_id)
        assert verdict is not None
        assert verdict.mismatches == 0


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
    assert shop.phase(run) is Phase.WAITING
    assert run.tasks()["replicate"] == "running"
    operate.release(shop.database.url, run.run_id, by="tester")
    assert run.end() == "success", run.story()
    result = run.result("clean_up")
    assert (result["event"], result["workflow"]) == ("complete", run.run_id)
    assert result["rows_copied"] > ROWS // 2
    shop.prove(run)


def test_auto_with_the_processes_of_copy_and_replicate_killed(shop: Shop) -> None:
    """Airflow tries them again; they go on from the sidecar."""
    run = shop.trigger(cutover="auto", chunk_rows=50)
    run.wait_for_task("replicate", "running")
    run.wait_for(lambda: shop.phase(run) is Phase.COPYING, "it does not copy")
    os.kill(run.pid("copy"), signal.SIGKILL)
    os.kill(run.pid("replicate"), signal.SIGKILL)
    assert run.end() == "success", run.story()
    assert run.tries("copy") > 1
    assert run.tries("replicate") > 1
    shop.prove(run)


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
    assert shop.phase(run) is Phase.CANCELLED
