"""What Airflow has for the page: connections, runs and their notes, in an Airflow of the tests' own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from page_setup import ALTER, SCRIPT, Home, airflow, clients, home, patient, session, workflow

from sandbox.databases import Database
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import Run, detail

__all__ = ["airflow", "clients", "home", "patient", "session", "workflow"]


def test_what_airflow_links_to_is_behind_the_prefix_too(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.models.taskinstancekey import TaskInstanceKey

    from vreplication.airflow.links import MigrationLink

    key = TaskInstanceKey(dag_id="online_ddl", task_id="copy", run_id="manual__1+00:00")
    where = "/dags/online_ddl/runs/manual__1%2B00%3A00/plugin/migration"
    assert MigrationLink().get_link(None, ti_key=key) == where  # type: ignore[arg-type]
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://data.example/air/flow/")
    assert MigrationLink().get_link(None, ti_key=key) == f"/air/flow{where}"  # type: ignore[arg-type]


def test_the_plugin_reads_airflows_connections(airflow: Any, database: Database) -> None:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    from vreplication.airflow.plugin import AirflowHome, VReplicationPlugin

    url = database.user_url
    marked = Connection(
        conn_id="page_marked", conn_type="mysql", host=url.host, port=url.port, login=url.user, password=url.password,
        schema=url.database, extra=json.dumps({"vreplication": True}),
    )  # fmt: skip
    plain = Connection(conn_id="page_plain", conn_type="mysql", host="h", schema="d")
    other = Connection(conn_id="page_http", conn_type="http", host="h", schema="d")
    with create_session() as store:
        store.query(Connection).filter(Connection.conn_id.like("page_%")).delete(synchronize_session=False)
        store.add_all([marked, plain, other])
    home = AirflowHome()
    found = {s.conn_id: s for s in home.sources()}
    assert "page_plain" not in found
    assert found["page_marked"].url == url
    assert home.source("page_plain") is not None
    assert home.source("page_http") is None
    assert home.source("nope") is None
    assert home.workflows_of_run(Run("online_ddl", "nope")) is None
    assert home.run_of_workflow("page_marked", "nope") is None
    assert VReplicationPlugin.fastapi_apps[0]["url_prefix"] == "/vreplication"


@pytest.mark.parametrize(
    ("dag_id", "conf", "found"),
    [
        ("online_ddl", {"source_conn_id": "main", "workflow": "given"}, ("main", "given")),
        ("online_ddl", {}, ("vreplication_source", "airflow-")),
        ("online_ddl", None, ("vreplication_source", "airflow-")),
        ("move_tables", {"source_conn_id": "old", "target_conn_id": "new", "workflow": "given"}, ("new", "given")),
        ("move_tables", {}, ("vreplication_target", "airflow-")),
    ],
)
def test_the_tab_of_a_run_finds_its_workflow(
    airflow: Any, dag_id: str, conf: dict[str, str] | None, found: tuple[str, str]
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    from vreplication.airflow.plugin import AirflowHome

    run_id = f"manual__2026-11-21T12:00:00.{time.time_ns()}+00:00"
    with create_session() as store:
        store.add(DagRun(dag_id=dag_id, run_id=run_id, run_type=DagRunType.MANUAL, conf=conf))
    run = Run(dag_id, run_id)
    [place] = AirflowHome().workflows_of_run(run) or []
    assert place[0] == found[0]
    assert place[1].startswith(found[1])
    home = AirflowHome()
    assert home.run_of_workflow(*place) == run
    assert home.run_of_workflow("elsewhere", place[1]) is None
    with create_session() as store:
        store.query(DagRun).filter_by(run_id=run_id).delete()


def test_a_run_that_takes_a_workflow_on_is_found(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections are those that a cancel asks; of the run before they may have been wrong."""
    from vreplication.airflow import plugin

    place, clock = ("main", "w1"), [100.0]
    runs = [None, Run("move_tables", "refused"), Run("move_tables", "again")]
    found = iter(runs)
    monkeypatch.setattr(plugin, "_newest_run", lambda *asked: next(found) if asked == place else None)
    monkeypatch.setattr(plugin.time, "monotonic", lambda: clock[0])
    home = plugin.AirflowHome()
    for run in runs:
        assert [home.run_of_workflow(*place) for _ in range(3)] == [run] * 3, "it is not asked for at each look"
        clock[0] += 30


def test_groups_of_tasks_in_a_dag_of_others_are_found(airflow: Any) -> None:
    """As soon as each is planned; before that the run is known to have some."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType
    from sqlalchemy import insert

    from vreplication.airflow import noting
    from vreplication.airflow.plugin import AirflowHome

    stem = f"own-{time.time_ns()}"
    run, other = Run("theirs", f"{stem}-1"), Run("theirs", f"{stem}-2")

    def tell(group: str, workflow: str, number: int) -> None:
        told = {"group": group, "conn_id": "new", "conn_ids": {"source": "old", "target": "new"}, "workflow": workflow}
        row = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": f"{group}.plan", "map_index": -1}
        with create_session() as store:
            store.add(Stored(**row, dag_run_id=number, key=noting.WORKFLOW, value=json.dumps(told)))

    with create_session() as store:
        for each in (run, other):
            store.add(DagRun(dag_id=each.dag_id, run_id=each.run_id, run_type=DagRunType.MANUAL))
        store.flush()
        number = store.query(DagRun.id).filter_by(run_id=run.run_id).scalar()
        task = {"id": uuid.uuid4(), "state": "running", "pool": "p", "pool_slots": 1, "try_number": 1}
        where = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "a.plan", "map_index": -1}
        store.execute(insert(TaskInstance.__table__).values(**where, **task, operator="PlanOperator"))
    home = AirflowHome()
    try:
        assert (home.workflows_of_run(run), home.workflows_of_run(other)) == ([], None)
        tell("a", f"{stem}-a", number)
        assert home.workflows_of_run(run) == [("new", f"{stem}-a")]
        tell("b", f"{stem}-b", number)
        assert home.workflows_of_run(run) == [("new", f"{stem}-a"), ("new", f"{stem}-b")]
        found = home.run_of_workflow("new", f"{stem}-b")
        assert found == Run("theirs", run.run_id, "b")
        assert detail.task_path(found, "copy") == f"dags/theirs/runs/{stem}-1/tasks/b.copy"
        asked: list[str] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(home, "source", asked.append)
            home.source_of_run(found)
        assert asked == ["old"]
    finally:
        with create_session() as store:
            for model in (Stored, TaskInstance, DagRun):
                store.query(model).filter(model.run_id.startswith(stem)).delete(synchronize_session=False)


def test_runs_that_airflow_has_not_begun_or_refused_are_told(airflow: Any, clients: dict[str, Any], home: Home) -> None:
    """With what they were asked for, and the sentence; one that failed otherwise, or long ago, is not."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    from vreplication.airflow.plugin import AirflowHome

    now, stem = datetime.now(UTC), f"asked-{time.time_ns()}"
    later, old = now + timedelta(days=1), now - timedelta(days=9)
    states = {"a": ("queued", later), "b": ("failed", now), "c": ("failed", now), "d": ("failed", old)}
    conf = {"source_conn_id": "main", "table": SCRIPT, "alter": ALTER}
    with create_session() as store:
        for name, (state, at) in states.items():
            run = DagRun(
                dag_id="online_ddl", run_id=f"{stem}-{name}", run_type=DagRunType.MANUAL, conf=conf, state=state,
                run_after=at, triggering_user_name="ann",
            )  # fmt: skip
            store.add(run)
            store.flush()
            if name in "bd":
                told = {"dag_run_id": run.id, "dag_id": run.dag_id, "run_id": run.run_id, "task_id": "prepare"}
                store.add(Stored(**told, map_index=-1, key="refused", value=json.dumps("There is <no> key.")))
    try:
        home.asked = [run for run in AirflowHome().asked_runs() if run.run.run_id.startswith(stem)]
    finally:
        with create_session() as store:
            store.query(DagRun).filter(DagRun.run_id.startswith(stem)).delete(synchronize_session=False)
    first, second = clients["viewer"].get("/api/workflows").json()["pending"]
    assert (first["state"], first["by"], first["not_before"]) == ("queued", "ann", f"{later:%Y-%m-%dT%H:%M:%SZ}")
    assert first["why"] == "its time has not come"
    assert (second["state"], second["why"], second["title"]) == ("refused", "There is <no> key.", SCRIPT)
    assert second["run"]["log_url"] == f"dags/online_ddl/runs/{stem}-b/tasks/prepare"
    text = clients["viewer"].get("/").text
    assert "There is &lt;no&gt; key." in text
    assert SCRIPT not in text


@pytest.mark.either
def test_a_run_that_waits_for_a_place_of_its_dag_says_so(
    airflow: Any, clients: dict[str, Any], home: Home, workflow: WorkflowRow
) -> None:
    """Runs that have begun their workflow take a place as well, also on other servers."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    from vreplication.airflow.plugin import AirflowHome

    stem = f"full-{time.time_ns()}"
    confs = {"a": ("running", workflow.id, "main"), "b": ("running", "x", "other"), "c": ("queued", "y", "main")}
    with create_session() as store:
        store.add(DagBundleModel(name=stem))
        store.flush()
        store.add(DagModel(dag_id="online_ddl", bundle_name=stem, max_active_runs=2))
        for name, (state, id, conn_id) in confs.items():
            conf = {"source_conn_id": conn_id, "workflow": id, "table": "t", "alter": ALTER}
            about = {"dag_id": "online_ddl", "run_type": DagRunType.MANUAL, "run_after": datetime.now(UTC)}
            store.add(DagRun(run_id=f"{stem}-{name}", conf=conf, state=state, **about))
    try:
        home.asked = [run for run in AirflowHome().asked_runs() if run.run.run_id.startswith(stem)]
    finally:
        with create_session() as store:
            store.query(DagRun).filter(DagRun.run_id.startswith(stem)).delete(synchronize_session=False)
            store.query(DagModel).filter_by(dag_id="online_ddl").delete()
            store.query(DagBundleModel).filter_by(name=stem).delete()
    for path in ("/api/workflows", "/api/workflows?conn_id=main"):
        pending = clients["viewer"].get(path).json()["pending"]
        assert {row["workflow"]: row["why"] for row in pending}["y"] == (
            "Airflow runs 2 of online_ddl already, and 2 at most"
        )


def test_a_note_on_a_run_says_how_it_ended(airflow: Any) -> None:
    """Put in the middle of the scheduler's transaction, which allows no commit; what a person has noted stays."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from airflow.utils.types import DagRunType
    from sqlalchemy import insert

    from vreplication.airflow import noting

    stem = f"noted-{time.time_ns()}"
    hooks = {"failed": noting.on_dag_run_failed, "success": noting.on_dag_run_success}
    ends = {
        "a": ("failed", "failed", noting.REFUSED, "", "Refused: no key"),
        "b": ("failed", "failed", noting.CANCELLED, "ours: look", "ours: look\nno key"),
        "c": ("success", "skipped", noting.SKIPPED, "", "no key"),
        # Tried again since, it went well.
        "d": ("failed", "success", noting.REFUSED, "", None),
    }
    with create_session() as store:
        for name, (_state, task_state, key, note, _) in ends.items():
            run = DagRun(dag_id="online_ddl", run_id=f"{stem}-{name}", run_type=DagRunType.MANUAL, note=note or None)
            store.add(run)
            store.flush()
            told = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "plan", "map_index": -1}
            store.add(Stored(**told, dag_run_id=run.id, key=key, value=json.dumps("no key")))
            task = {"id": uuid.uuid4(), "state": task_state, "pool": "p", "pool_slots": 1, "try_number": 1}
            store.execute(insert(TaskInstance.__table__).values(**told, **task))
    try:
        with create_session() as store, prohibit_commit(store) as guard:
            for name, (state, *_) in ends.items():
                hooks[state](store.query(DagRun).filter_by(run_id=f"{stem}-{name}").one(), "")
            guard.commit()
        with create_session() as store:
            found = {run.run_id[-1]: run.note for run in store.query(DagRun).filter(DagRun.run_id.startswith(stem))}
        assert found == {name: end[-1] for name, end in ends.items()}
    finally:
        with create_session() as store:
            store.query(TaskInstance).filter(TaskInstance.run_id.startswith(stem)).delete(synchronize_session=False)
            store.query(DagRun).filter(DagRun.run_id.startswith(stem)).delete(synchronize_session=False)


def test_importing_the_plugin_builds_nothing() -> None:
    """Every process of Airflow does it."""
    code = (
        "import sys, airflow.plugins_manager, vreplication.airflow.plugin as p; "
        "heavy = {'fastapi', 'jinja2', 'pymysql', 'sqlalchemy.orm', 'vreplication.ui', 'airflow.models.connection'}; "
        "before = set(sys.modules) & heavy; import importlib; importlib.reload(p); "
        "assert not (set(sys.modules) & heavy) - before and 'vreplication.ui' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
