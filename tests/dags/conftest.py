"""A real Airflow in a folder of its own: four components, the repository's DAGs, users of three roles."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.deployment import Deployment
from sandbox.install import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_deployment(home: Path) -> Deployment:
    """Prepared, not started."""
    shutil.copy(ROOT / "airflow.cfg", home / "airflow.cfg")
    (home / "migrations").mkdir()
    settings = {
        "VREPLICATION_MIGRATIONS": str(home / "migrations"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }
    found = Deployment(home=home, port=free_port(), settings=settings)
    found.prepare()
    return found


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Started once a module: an idle scheduler takes a tenth of a core from all the other tests."""
    found = make_deployment(tmp_path_factory.mktemp("airflow"))
    try:
        found.start()
        yield found
    finally:
        found.stop()
