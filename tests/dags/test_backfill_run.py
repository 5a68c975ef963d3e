"""`airflow backfill create` through a real scheduler: a week is copied, and copied again without a change."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.deployment import Deployment, DeploymentFailed
from tests.support.dag_runs import unpause
from vreplication.mysql.session import Session, connect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]
DAYS = 7
PATIENCE_SECONDS = 280.0
DEFINITION = "(id INT PRIMARY KEY, at DATETIME(3), v VARCHAR(20))"
JOB = """
jobs:
  - {{name: week, source: {conn}, target: {conn}, table: visits, target_table: visits_copy, time_column: at}}
"""


def fill(session: Session) -> None:
    """A row every six hours from the day before the week until the day after it, and one without a time."""
    for table in ("visits", "visits_copy"):
        session.execute_raw(f"CREATE TABLE {table} {DEFINITION}")
    for n in range((DAYS + 2) * 4):
        session.execute_raw(f"INSERT INTO visits VALUES ({n}, '2026-01-04' + INTERVAL {n * 6} HOUR, 'v{n}')")
    session.execute_raw("INSERT INTO visits VALUES (1000, NULL, 'never')")


def create(airflow: Deployment, *more: str) -> None:
    """The week of the fifth; both dates are of logical dates, and inclusive."""
    conf = json.dumps({"jobs": ["week"]})
    dates = ("--from-date", "2026-01-05", "--to-date", "2026-01-11")
    words = ("backfill", "create", "--dag-id", "backfill", *dates, "--dag-run-conf", conf, *more)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with airflow.at_rest():
                airflow.airflow(*words)
            return
        except DeploymentFailed as error:
            # Held in the middle of a write; or the backfill before has not been closed yet.
            is_passing = "database is locked" in str(error) or "AlreadyRunning" in str(error)
            if not is_passing or time.monotonic() > deadline:
                raise
        time.sleep(2.0)


def results(airflow: Deployment, tries: int) -> list[dict[str, Any]]:
    """Of the runs of the week, once each has ended and was tried so often."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        path = "/api/v2/dags/backfill/dagRuns?run_type=backfill&limit=100"
        runs = airflow.call("GET", path)[1]["dag_runs"]
        found = [_result(airflow, run["dag_run_id"]) for run in runs if run["state"] == "success"]
        if len(found) == DAYS and all(f is not None and f["try"] == tries for f in found):
            return [f for f in found if f is not None]
        for run in runs:
            assert run["state"] != "failed", _story(airflow, run["dag_run_id"])
        assert time.monotonic() < deadline, runs
        time.sleep(1.0)


def _story(airflow: Deployment, run: str) -> str:
    path = f"/api/v2/dags/backfill/dagRuns/{run}/taskInstances"
    tasks = airflow.call("GET", path)[1]["task_instances"]
    logs = [
        airflow.call(
            "GET", f"{path}/{t['task_id']}/logs/{t['try_number']}?full_content=true&map_index={t['map_index']}"
        )
        for t in tasks
    ]
    return f"{[(t['task_id'], t['state'], t['try_number']) for t in tasks]} {str(logs)[-6000:]}"


def _result(airflow: Deployment, run: str) -> dict[str, Any] | None:
    path = f"/api/v2/dags/backfill/dagRuns/{run}/taskInstances/copy"
    status, task = airflow.call("GET", f"{path}/0")
    found = airflow.call("GET", f"{path}/xcomEntries/return_value?map_index=0")[1]
    return {"try": task["try_number"], **found["value"]} if status == 200 and "value" in found else None


@pytest.mark.only_on("mariadb")
@pytest.mark.timeout(600)
def test_a_week_twice(airflow: Deployment, database: Database) -> None:
    with connect(database.app_url) as app:
        fill(app)
        conn = f"shop_{database.name}"
        airflow.add_connection(conn, database.app_url)
        (airflow.home / "migrations" / "backfills.yaml").write_text(JOB.format(conn=conn))
        unpause(airflow, "backfill")
        create(airflow)
        first = results(airflow, 1)
        assert sum(r["inserted"] for r in first) == 4 * DAYS
        assert all(r["verified"] and r["null_time_rows"] == 1 for r in first)
        week = "SELECT * FROM {} WHERE at >= '2026-01-05' AND at < '2026-01-12' ORDER BY id"
        copied = app.rows("SELECT * FROM visits_copy ORDER BY id")
        assert copied == app.rows(week.format("visits"))
        create(airflow, "--reprocess-behavior", "completed")
        second = results(airflow, 2)
        assert sum(r["inserted"] + r["updated"] + r["deleted"] for r in second) == 0
        assert app.rows("SELECT * FROM visits_copy ORDER BY id") == copied
