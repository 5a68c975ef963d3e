"""`airflow backfill create` through a real scheduler: three days are copied, and copied again without a change."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.deployment import Deployment
from tests.support.dag_runs import unpause
from tests.support.local_spark import WITHOUT
from vreplication.mysql.session import Session, connect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]
DAYS = 3
PATIENCE_SECONDS = 280.0
DEFINITION = "(id INT PRIMARY KEY, at DATETIME(3), v VARCHAR(20))"
JOB = """
jobs:
  - {{name: days, source: {conn}, target: {conn}, table: visits, target_table: visits_copy, time_column: at,
     spark_master: "{master}"}}
"""


def fill(session: Session) -> None:
    """A row every six hours from the day before until the day after, and one without a time."""
    for table in ("visits", "visits_copy"):
        session.execute_raw(f"CREATE TABLE {table} {DEFINITION}")
    for n in range((DAYS + 2) * 4):
        session.execute_raw(f"INSERT INTO visits VALUES ({n}, '2026-01-04' + INTERVAL {n * 6} HOUR, 'v{n}')")
    session.execute_raw("INSERT INTO visits VALUES (1000, NULL, 'never')")


def create(airflow: Deployment, *more: str) -> None:
    """From the fifth on; both dates are of logical dates, and inclusive."""
    conf = json.dumps({"jobs": ["days"]})
    dates = ("--from-date", "2026-01-05", "--to-date", "2026-01-07")
    words = ("backfill", "create", "--dag-id", "backfill", *dates, "--dag-run-conf", conf, *more)
    airflow.airflow(*words)


def wait_closed(airflow: Deployment) -> None:
    """The scheduler closes a backfill some time after its last run; until then there can be no other one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(b["completed_at"] is None for b in _get(airflow, "/api/v2/backfills?dag_id=backfill")["backfills"]):
        assert time.monotonic() < deadline, "the backfill is not closed"
        time.sleep(1.0)


def results(airflow: Deployment, tries: int) -> list[dict[str, Any]]:
    """Of the runs, once each has ended and was tried so often."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        runs = _get(airflow, "/api/v2/dags/backfill/dagRuns?run_type=backfill&limit=100")["dag_runs"]
        for run in runs:
            assert run["state"] != "failed", _story(airflow, run["dag_run_id"])
        if len(runs) == DAYS and all(run["state"] == "success" for run in runs):
            found = [_result(airflow, run["dag_run_id"]) for run in runs]
            if all(f is not None and f["try"] == tries for f in found):
                return [f for f in found if f is not None]
        assert time.monotonic() < deadline, runs
        time.sleep(1.0)


def _get(airflow: Deployment, path: str) -> Any:
    status, found = airflow.call("GET", path)
    assert status == 200, (path, status, found)
    return found


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
def test_three_days_twice(airflow: Deployment, database: Database) -> None:
    with connect(database.app_url) as app:
        fill(app)
        conn = f"shop_{database.name}"
        airflow.add_connection(conn, database.app_url)
        jobs = airflow.home / "migrations" / "backfills.yaml"
        jobs.write_text(JOB.format(conn=conn, master="local[*]"))
        unpause(airflow, "backfill")
        create(airflow)
        first = results(airflow, 1)
        assert sum(r["inserted"] for r in first) == 4 * DAYS
        assert all(r["verified"] and r["null_time_rows"] == 1 for r in first)
        days = "SELECT * FROM {} WHERE at >= '2026-01-05' AND at < '2026-01-08' ORDER BY id"
        copied = app.rows("SELECT * FROM visits_copy ORDER BY id")
        assert copied == app.rows(days.format("visits"))
        # What is still the same needs no JVM for each day to be found so.
        jobs.write_text(JOB.format(conn=conn, master=WITHOUT))
        wait_closed(airflow)
        create(airflow, "--reprocess-behavior", "completed")
        second = results(airflow, 2)
        assert sum(r["inserted"] + r["updated"] + r["deleted"] for r in second) == 0
        assert app.rows("SELECT * FROM visits_copy ORDER BY id") == copied
