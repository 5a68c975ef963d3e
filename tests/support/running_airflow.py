"""A real Airflow in a folder of its own: four components, the repository's DAGs, users of three roles.

What must stay true: whoever starts one is in the xdist group "airflow", so that there is at most one at a time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.deployment import Deployment
from sandbox.install import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_deployment(home: Path, environment: Mapping[str, str] | None = None) -> Deployment:
    """Prepared, not started. `environment` reaches every component and every task."""
    shutil.copy(ROOT / "airflow.cfg", home / "airflow.cfg")
    (home / "migrations").mkdir()
    settings = {
        "VREPLICATION_MIGRATIONS": str(home / "migrations"),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": bundles(ROOT / "dags", ROOT / "tests/dags/consumers"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
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
