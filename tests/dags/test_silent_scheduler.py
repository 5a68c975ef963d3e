"""Airflow's scheduler dies while a run waits at its gate: who releases then is told, and can carry it on without it."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator

import pytest

from sandbox.databases import create_database
from sandbox.deployment import Deployment, is_there
from sandbox.servers import RunningServer
from tests.support.dag_runs import DagRun, unpause
from tests.support.flow import wait_until
from tests.support.run_ddl import start
from tests.support.shop import Shop

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.only_on("mariadb")]


@pytest.fixture
def shop(airflow: Deployment, server: RunningServer) -> Iterator[Shop]:
    unpause(airflow, "online_ddl")
    made = create_database(server)
    found = Shop(airflow, made)
    with found.workload:
        yield found
    made.drop()


@pytest.fixture
def scheduler(airflow: Deployment) -> Iterator[int]:
    """Its process id; another one is there afterwards."""
    process = airflow.processes["scheduler"]
    yield process.pid
    if process.poll() is not None and airflow.processes["scheduler"] is process:
        airflow.restart("scheduler")


def page(shop: Shop, run: DagRun) -> dict[str, object]:
    status, found = shop.airflow.call("GET", f"/vreplication/api/workflows/{run.run_id}")
    return found if status == 200 else {"pulse": [], "advice": None}


@pytest.mark.seldom
def test_a_release_that_the_dead_scheduler_misses_is_told_and_carried_on_by_command(
    shop: Shop, scheduler: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = shop.trigger(cutover="manual")
    run.wait_for_task("gate", "deferred")
    os.kill(scheduler, signal.SIGKILL)
    wait_until(lambda: not is_there(scheduler), "it is killed")
    assert shop.airflow.call("POST", f"/vreplication/api/workflows/{run.run_id}/release", {})[0] == 200
    wait_until(lambda: page(shop, run)["pulse"] and page(shop, run)["advice"], "nobody is told", 90.0, 0.5)
    [told] = page(shop, run)["pulse"]  # type: ignore[misc]
    assert str(told).startswith("Airflow's scheduler has been silent since")
    words = shlex.split(str(page(shop, run)["advice"]).split("`")[1])
    assert words[:3] == ["vreplication", "resume", run.run_id]
    ended = start(shop.database, tmp_path_factory.mktemp("logs"), [*words[1:3], "--json"]).finish()
    assert (ended.code, ended.last["event"]) == (0, "complete"), ended
    shop.airflow.restart("scheduler")
    assert run.end() == "success", run.story()
    shop.prove(run.run_id)
