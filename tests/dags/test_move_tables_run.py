"""Whole runs of the DAG move_tables: there by an approval, back and there again by the page, and a rejected one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.deployment import Deployment
from tests.support.dag_runs import DagRun, trigger, unpause
from tests.support.local_spark import WITHOUT
from tests.support.moving import Application, application
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import journal, moves, workflows
from vreplication.state.moves import Side

__all__ = ["_pair_servers", "pair"]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(900), pytest.mark.either]
T = "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40), KEY (n)) COLLATE utf8mb4_general_ci"


@pytest.fixture
def app(airflow: Deployment, pair: Pair) -> Iterator[Application]:
    """Table t, written to all the time, and the connections to both servers."""
    unpause(airflow, "move_tables")
    pair.source.admin.execute_raw(T)
    pair.source.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i * 7},'v{i}')" for i in range(1_000)))
    pair.source.admin.execute_raw("CREATE TABLE u (id INT PRIMARY KEY)")
    airflow.add_connection("old", pair.source.url)
    airflow.add_connection("new", pair.target.url)
    with application(pair) as found:
        yield found


def start(airflow: Deployment, **more: Any) -> DagRun:
    conf = {"source_conn_id": "old", "target_conn_id": "new", "tables": ["t", "u"], "cutover": "manual", **more}
    return trigger(airflow, "move_tables", f"move-{secrets.token_hex(4)}", conf)


def serves(pair: Pair, workflow: str, side: Side, phase: Phase) -> bool:
    with connect(pair.target.url) as home:
        row, move = workflows.find(home, workflow), moves.find(home, workflow)
    return row is not None and move is not None and (row.phase, move.serving) == (phase, side)


def events(pair: Pair, workflow: str) -> set[tuple[str, str]]:
    """What is journaled, and by whom."""
    with connect(pair.target.url) as home:
        return {(entry["event"], entry["actor"]) for entry in journal.read(home, workflow)}


def has_event(pair: Pair, workflow: str, event: str) -> bool:
    return any(name == event for name, _ in events(pair, workflow))


def answer(run: DagRun, option: str, is_heard: Callable[[], bool]) -> None:
    run.wait_for_question("approve")
    assert run.answer("approve", option, user="editor") == 200
    run.wait_for(is_heard, "it is not heard")


def press(run: DagRun, act: str, user: str = "editor") -> int:
    path = f"/vreplication/api/workflows/{run.run_id}/{act}?conn_id=new"
    return run.airflow.call("POST", path, {}, user=user)[0]


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_there_by_an_approval_back_and_there_again_by_the_page(
    airflow: Deployment, pair: Pair, app: Application
) -> None:
    run = start(airflow)
    run.wait_for_task("approve", "awaiting_input")
    asked = str(airflow.call("GET", f"{run.path}/hitlDetails")[1])
    assert f"Switch 2 tables of {pair.source.name} to" in asked
    answer(run, "Approve", lambda: has_event(pair, run.run_id, "released"))
    run.wait_for(lambda: serves(pair, run.run_id, Side.TARGET, Phase.SWITCHED), "it is not switched")
    status, shown = airflow.call("GET", f"/vreplication/api/workflows/{run.run_id}?conn_id=new", user="viewer")
    assert status == 200
    assert shown["servers"]["serves"].startswith("the target, ")
    assert shown["run"]["log_url"].endswith("/tasks/reverse_stream")
    run.wait_for_task("reverse_stream", "running")
    assert press(run, "reverse", "viewer") == 403
    run.wait_for(lambda: press(run, "reverse") == 200, "nobody drives it")
    run.wait_for(lambda: serves(pair, run.run_id, Side.SOURCE, Phase.WAITING), "it is not switched back")
    before = app.accepted[False]
    run.wait_for(lambda: app.accepted[False] > before, "the application does not write on the source")
    assert press(run, "release") == 200
    run.wait_for(lambda: serves(pair, run.run_id, Side.TARGET, Phase.SWITCHED), "it is not switched again")
    run.wait_for(lambda: press(run, "complete") == 200, "nobody drives it")
    assert run.end() == "success", run.story()
    app.end()
    app.check(pair.target.admin)
    result = run.result("clean_up")
    assert (result["event"], result["workflow"]) == ("complete", run.run_id)
    run.wait_for(lambda: moved_by_events(run) >= {f"{pair.target.name}.t", f"{pair.target.name}.u"}, "no assets")
    assert {("released", "editor (Airflow)"), ("reverse asked", "editor (Airflow)")} <= events(pair, run.run_id)


def moved_by_events(run: DagRun) -> set[str]:
    """Tables, as the assets' events tell them: nothing while Airflow's database is busy."""
    where = f"/api/v2/assets/events?source_dag_id=move_tables&source_run_id={run.run_id}"
    status, found = run.airflow.call("GET", where)
    return {event["extra"]["table"] for event in found["asset_events"]} if status == 200 else set()


@pytest.mark.seldom
@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_who_rejects_leaves_nothing_on_either_server(airflow: Deployment, pair: Pair, app: Application) -> None:
    """The gate waits in the triggerer, so that nobody drives it: both servers are seen to by the answer itself."""
    run = start(airflow, spark_master=WITHOUT)
    run.wait_for_task("gate", "deferred")
    answer(run, "Reject", lambda: has_event(pair, run.run_id, "rejected"))
    assert (run.end(), run.note()) == ("failed", "Cancelled by editor (Airflow)."), run.story()
    with connect(pair.target.url) as home:
        assert workflows.load(home, run.run_id).phase is Phase.CANCELLED
    assert list(pair.target.admin.rows("SHOW TABLES")) == []
    assert len(pair.source.admin.rows("SHOW TABLES")) == 2
    assert list(pair.source.admin.rows("SHOW TRIGGERS")) == []
    app.end()
    app.check(pair.source.admin)
