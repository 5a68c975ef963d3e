"""A real Airflow in a folder of its own: four components, the repository's DAGs, users of three roles.

What must stay true: whoever needs it is in the xdist group "airflow", so that all share one; what a test leaves in it,
takes neither places nor time from the next one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sandbox.deployment import Deployment
from sandbox.install import ROOT

GROUP = "airflow"
_NEVER = "86400"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_deployment(home: Path, environment: Mapping[str, str] | None = None) -> Deployment:
    """Prepared, not started. `environment` reaches every component and every task."""
    shutil.copy(ROOT / "airflow.cfg", home / "airflow.cfg")
    (home / "config").mkdir()
    shutil.copy(ROOT / "tests/support/airflow_local_settings.py", home / "config")
    (home / "migrations").mkdir()
    settings = {
        "VREPLICATION_MIGRATIONS": str(home / "migrations"),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": bundles(ROOT / "dags", ROOT / "tests/dags/consumers"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        # Reading files again that do not change takes a tenth of a core from the tests.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": _NEVER,
        # Of a lake, whose JVM would optimize more than it does in a test.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        **(environment or {}),
    }
    found = Deployment(home=home, port=free_port(), settings=settings)
    found.prepare()
    return found


def bundles(*folders: Path) -> str:
    """Folders of DAGs, as Airflow's setting has them."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return json.dumps([{"name": f.name, "classpath": local, "kwargs": {"path": str(f)}} for f in folders])


@contextlib.contextmanager
def running(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[Deployment]:
    """Started, and ended with every task of it."""
    found = make_deployment(home, environment)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def clear(airflow: Deployment) -> None:
    """End the runs that go on, and forget the connections: their servers may be gone when the page asks them."""
    for run in _found(airflow, "/api/v2/dags/~/dagRuns?state=running&state=queued")["dag_runs"]:
        airflow.call("PATCH", f"/api/v2/dags/{run['dag_id']}/dagRuns/{quote(run['dag_run_id'])}", {"state": "failed"})
    for connection in _found(airflow, "/api/v2/connections")["connections"]:
        airflow.call("DELETE", f"/api/v2/connections/{connection['connection_id']}")


def _found(airflow: Deployment, path: str) -> Any:
    status, found = airflow.call("GET", path)
    assert status == 200, (path, status, found)
    return found
