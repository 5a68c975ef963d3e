"""The orders table of one database, written to all the time, the Airflow connection that leads to it, and the proof.

What must stay true: the proof's truth is what the application committed, never what our tables say.
"""

from __future__ import annotations

import secrets
from typing import Any

from sandbox import orders
from sandbox.databases import Database
from sandbox.deployment import Deployment
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support.dag_runs import DagRun, trigger
from vreplication import names
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import verdicts, workflows

ROWS = 3_000


class Shop:
    """`workload` is for the test to start."""

    def __init__(self, airflow: Deployment, database: Database, conn_id: str = "") -> None:
        self.airflow, self.database = airflow, database
        self.conn_id = conn_id or database.name
        with connect(database.app_url) as app:
            orders.create(app, "orders")
            orders.fill(app, "orders", ROWS)
            keep_copy(app, "orders", "at_start")
        airflow.add_connection(self.conn_id, database.url)
        self.workload = Workload(
            database.app_url, "orders", rows=ROWS, writers=2, readers=1, rate=15, xa=True, read_every=0.02
        )

    def trigger(self, **more: Any) -> DagRun:
        """A run whose id is its workflow's, too."""
        conf = {"source_conn_id": self.conn_id, "table": "orders", "alter": orders.ALTER, **more}
        return trigger(self.airflow, "online_ddl", f"ddl-{secrets.token_hex(4)}", conf)

    def phase(self, workflow: str) -> Phase | None:
        with connect(self.database.url) as session:
            found = workflows.find(session, workflow)
        return found.phase if found else None

    def prove(self, workflow: str) -> None:
        """Every row is what the application committed; verification had nothing to repair; nothing is left."""
        self.workload.wait_for(5)
        report = self.workload.stop()
        assert report.errors == ()
        with connect(self.database.app_url) as app:
            assert prove(app, "orders", "at_start", orders.ALTER, self.workload.expected).differences == ()
            left = [name for (name,) in app.rows("SHOW TABLES") if names.is_ours(name)]
        assert left == [names.retired_table("orders", workflow)]
        with connect(self.database.url) as session:
            verdict = verdicts.load(session, workflow)
        assert verdict is not None
        assert verdict.mismatches == 0
