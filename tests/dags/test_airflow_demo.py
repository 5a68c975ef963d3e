"""`make airflow` and `make airflow-stop`, as a person calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.deployment import COMPONENTS, Deployment, is_there
from sandbox.install import ROOT
from tests.support.flow import wait_until
from tests.support.running_airflow import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]


def phases(where: Deployment) -> dict[str, str]:
    """Of each workflow, as the page's JSON tells it."""
    found: dict[str, str] = {}
    for workflow in ("d1", "m1"):
        status, told = where.call("GET", f"/vreplication/api/workflows/{workflow}")
        found[workflow] = told["phase"] if status == 200 else str(status)
    return found


def runs(where: Deployment) -> dict[str, int]:
    """DAG → how many runs it has."""
    found = {dag: where.call("GET", f"/api/v2/dags/{dag}/dagRuns") for dag in ("online_ddl", "move_tables")}
    return {dag: told["total_entries"] for dag, (_, told) in found.items()}


def noted(where: Deployment) -> dict[str, int]:
    """Component → process id."""
    return {name: pid for name, (pid, _) in json.loads(where.noted.read_text()).items()}


class Demo:
    def __init__(self, home: Path) -> None:
        self.home = home

    def begin(self, word: str, **environment: str) -> subprocess.Popen[str]:
        around = {name: value for name, value in os.environ.items() if name != "AIRFLOW_PORT"}
        mine = {"VREPLICATION_AIRFLOW_HOME": str(self.home), "VREPLICATION_DEMO_ROWS": "300"}
        return subprocess.Popen(
            [sys.executable, "-m", "sandbox.airflow_demo", word],
            cwd=ROOT, env={**around, **mine, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def is_well(self, **environment: str) -> bool:
        """As `start` tells who asks again."""
        process = self.begin("start", **environment)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0 or (process.returncode == 2 and "scheduler has been silent since" in err), err
        return process.returncode == 0

    def end(self, process: subprocess.Popen[str]) -> list[str]:
        """Its lines."""
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out.splitlines()


@pytest.fixture
def demo() -> Iterator[Demo]:
    """In a folder whose name is short enough for a server's socket."""
    with tempfile.TemporaryDirectory(prefix="vreplication-", ignore_cleanup_errors=True) as folder:
        found = Demo(Path(folder))
        yield found
        found.end(found.begin("stop"))


@pytest.mark.seldom
def test_started_once_whoever_asks_and_ended_with_all_that_it_started(demo: Demo) -> None:
    port = str(free_port())
    calls = [demo.begin("start", AIRFLOW_PORT=port) for _ in range(2)]
    first, second = (demo.end(call) for call in calls)
    assert [line.split(": ")[0] for line in first] == ["url", "user", "password"]
    assert second == first
    where = Deployment(home=demo.home, port=int(first[0].rsplit(":", 1)[1]))
    assert demo.end(demo.begin("start", AIRFLOW_PORT=str(free_port()))) == first, "not where the one that runs is"
    move = {"conf": {"tables": ["customers"]}, "logical_date": None, "dag_run_id": "m1"}
    assert where.call("POST", "/api/v2/dags/move_tables/dagRuns", move)[0] == 200
    ddl = {"conf": {"table": "orders", "alter": "ADD x INT"}, "logical_date": None, "dag_run_id": "d1"}
    assert where.call("POST", "/api/v2/dags/online_ddl/dagRuns", ddl)[0] == 200
    wait_until(lambda: phases(where) == {"d1": "complete", "m1": "switched"}, f"{phases(where)}", 200.0, 1.0)
    killed = noted(where)["scheduler"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_there(killed), "it is killed")
    assert not demo.is_well(), "nobody acts, and nobody is told"
    wait_until(demo.is_well, "it is not started again", 120.0, 0.5)
    assert noted(where)["scheduler"] != killed
    pids = [*noted(where).values(), json.loads((where.var / "postgres.json").read_text())["pid"]]
    pids.append(int((demo.home / "var" / "sandbox.pid").read_text()))
    assert len(pids) == len(COMPONENTS) + 2
    assert all(map(is_there, pids))
    assert demo.end(demo.begin("stop")) == []
    assert [pid for pid in pids if is_there(pid)] == []
    again = demo.end(demo.begin("start", AIRFLOW_PORT=port))
    assert runs(Deployment(home=demo.home, port=int(again[0].rsplit(":", 1)[1]))) == {"online_ddl": 0, "move_tables": 0}
