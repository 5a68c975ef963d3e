"""Small tables of one database, and runs in Airflow that each change one of them.

What must stay true: nobody else writes to them, so that what is in them at the end is what was in them at first.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sandbox.databases import Database
from sandbox.deployment import Deployment
from tests.support.dag_runs import DagRun, trigger
from vreplication.mysql.session import connect
from vreplication.state import journal


class Tables:
    """Small tables that nobody writes to, and runs that add a column to one of them each."""

    def __init__(self, airflow: Deployment, database: Database, tables: list[str]) -> None:
        self.airflow, self.database, self.conn_id = airflow, database, f"tables_{database.name}"
        self.names = tables
        for name in tables:
            database.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY) ENGINE=InnoDB")
            database.admin.execute_raw(f"INSERT INTO {name} VALUES (1),(2),(3)")
        airflow.add_connection(self.conn_id, database.url)

    def trigger(self, name: str, **more: str) -> DagRun:
        conf = {"source_conn_id": self.conn_id, "table": name, "alter": "ADD added INT", **more}
        return trigger(self.airflow, "online_ddl", f"{name}-{self.database.name}", conf)

    def has_changed(self, name: str) -> bool:
        return "added" in str(self.database.admin.row(f"SHOW CREATE TABLE {name}"))

    def journal(self, run: DagRun) -> dict[str, str]:
        with connect(self.database.url) as session:
            return {entry["event"]: entry["actor"] for entry in journal.read(session, run.run_id)}

    def released_at(self, run: DagRun) -> datetime:
        with connect(self.database.url) as session:
            (at,) = (entry["at"] for entry in journal.read(session, run.run_id) if entry["event"] == "released")
            return datetime.fromisoformat(str(at)).replace(tzinfo=UTC)
