"""DAGs scheduled_migrations and housekeeping: they import without a connection; a real Airflow starts what is due."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alone import LOAD, dag_words, in_airflow

from sandbox.databases import Database
from sandbox.deployment import Deployment
from tests.support.dag_runs import DagRun, trigger, unpause
from tests.support.flow import call, wait_until
from tests.support.local_spark import WITHOUT
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.scheduler import due, queueing
from vreplication.settings import SIDECAR
from vreplication.state import lease, queue, workflows

pytestmark = pytest.mark.either

TELL = f"""{LOAD}
tell({{
    "dag_id": dag.dag_id, "tasks": sorted(dag.task_dict), "catchup": dag.catchup, "runs": dag.max_active_runs,
    "params": dag.params.dump(), "schedule": dag.schedule,
    "templates": {{t.task_id: list(t.template_fields) for t in dag.tasks}},
    "mapped": [[t.task_id, t.partial_kwargs.get("trigger_dag_id"), t.partial_kwargs.get("skip_when_already_exists"),
                t.partial_kwargs.get("logical_date")] for t in dag.tasks if hasattr(t, "partial_kwargs")],
}})
"""
REFUSED = f"""{LOAD}
from airflow.sdk.exceptions import ParamValidationError
for name, value in json.loads(sys.argv[3]):
    try:
        dag.params[name] = value
    except ParamValidationError:
        continue
    raise AssertionError((name, value))
tell(None)
"""


def test_scheduled_migrations_imports_with_stable_ids_and_params(tmp_path: Path) -> None:
    assert in_airflow(tmp_path, TELL, *dag_words("scheduled_migrations")) == {
        "dag_id": "scheduled_migrations",
        "tasks": ["claim_due", "start"],
        "templates": {"claim_due": [], "start": []},
        "catchup": False,
        "runs": 1,
        "params": {"source_conn_ids": [], "concurrency": 1},
        "schedule": "@continuous",
        "mapped": [["start", None, True, None]],
    }


def test_housekeeping_imports_with_stable_ids_and_params(tmp_path: Path) -> None:
    assert in_airflow(tmp_path, TELL, *dag_words("housekeeping")) == {
        "dag_id": "housekeeping",
        "tasks": ["housekeeping"],
        "templates": {"housekeeping": []},
        "catchup": False,
        "runs": 1,
        "params": {"source_conn_ids": [], "dry_run": False, "retired_days": 7, "journal_days": 90},
        "schedule": "30 3 * * *",
        "mapped": [],
    }


@pytest.mark.parametrize(
    ("dag", "wrong"),
    [
        ("scheduled_migrations", [["concurrency", 0], ["concurrency", "2"], ["source_conn_ids", "shop"]]),
        ("housekeeping", [["retired_days", -1], ["dry_run", "yes"], ["source_conn_ids", [1]]]),
    ],
)
def test_a_wrong_param_is_refused(tmp_path: Path, dag: str, wrong: list[list[Any]]) -> None:
    in_airflow(tmp_path, REFUSED, *dag_words(dag), json.dumps(wrong))


CLAIM = """
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from vreplication.airflow import scheduling

scheduling.read_files = lambda folder: SimpleNamespace(sources=frozenset({"shop"}))
scheduling.find_source = lambda conn_id: (conn_id, conn_id == "shop", "")
scheduling.installation = lambda: "a"
task, now = scheduling.ClaimDueOperator(task_id="t", folder="nowhere"), datetime.now(UTC)

def told(due, problems, run_type, event, hours, since, known):
    scheduling.look_after = lambda *given, **more: (due, problems)
    scheduling.standing = lambda conn_ids, concurrency: (known, False)
    run = SimpleNamespace(run_type=DagRunType(run_type), start_date=now - timedelta(hours=hours))
    dag = SimpleNamespace(dag_id="scheduled_migrations")
    context = {"params": {"concurrency": 3}, "run_id": "r", "ti": None, "dag": dag, "dag_run": run}
    try:
        begun = (now - timedelta(minutes=since)).isoformat() if since else ""
        return task.go_on(context, event and {"state": event}, begun)
    except TaskDeferred as wait:
        asked = wait.trigger.serialize()[1]
        assert (asked["conn_ids"], asked["concurrency"], asked["known"]) == (["shop"], 3, known)
        assert bool(wait.kwargs["since"]) == bool(problems)
        return round(asked["seconds"])
    except (AirflowSkipException, AirflowFailException) as end:
        return f"{type(end).__name__}: {end}"

tell([told(*case) for case in json.loads(sys.argv[1])])
"""
SKIPPED, FAILED, WRONG = "AirflowSkipException: Nothing is due.", "AirflowFailException: a.yaml: x", ["a.yaml: x"]
CLAIMS: list[tuple[list[Any], Any]] = [
    ([[{"trigger_run_id": "w1"}], WRONG, "scheduled", None, 0, 0, []], [{"trigger_run_id": "w1"}]),
    ([[], [], "scheduled", None, 0, 0, []], 120),
    ([[], [], "scheduled", "due", 0, 0, ["w1"]], 60),
    ([[], [], "scheduled", "asked", 0, 0, []], SKIPPED),
    ([[], [], "scheduled", "time", 25, 0, []], SKIPPED),
    ([[], [], "manual", None, 0, 0, []], SKIPPED),
    ([[], WRONG, "manual", None, 0, 0, []], FAILED),
    ([[], WRONG, "scheduled", None, 0, 0, []], 60),
    ([[], WRONG, "scheduled", "time", 1, 11, []], FAILED),
]


def test_a_run_waits_for_a_day_and_with_problems_for_ten_minutes(tmp_path: Path) -> None:
    """Not one that a person has triggered, nor one for whose end another waits."""
    found = in_airflow(tmp_path, CLAIM, json.dumps([case for case, _ in CLAIMS]))
    assert found == [end for _, end in CLAIMS]


class Source:
    """A database with small tables and the connection that leads to it."""

    def __init__(self, airflow: Deployment, database: Database) -> None:
        self.airflow, self.database = airflow, database
        self.conn_id = f"queue_{database.name}"
        with connect(database.app_url) as app:
            for table in ("a", "b"):
                app.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY) ENGINE=InnoDB")
                app.execute_raw(f"INSERT INTO {table} VALUES (1),(2),(3)")
        airflow.add_connection(self.conn_id, database.url)

    def submit(self, workflow: str, table: str, alter: str, *words: str) -> None:
        """To be copied without a JVM."""
        ddl = ("submit", "--table", table, "--alter", alter, "--workflow", workflow, "--spark-master", WITHOUT, *words)
        ended = call(self.database, *ddl)
        assert ended.code == 0, ended.err

    def schedule(self, **more: Any) -> DagRun:
        conf = {"source_conn_ids": [self.conn_id], **more}
        run = trigger(self.airflow, "scheduled_migrations", f"q-{secrets.token_hex(4)}", conf)
        assert run.end() == "success", run.story()
        return run

    def listed(self) -> dict[str, str]:
        with connect(self.database.url) as session:
            return {s.entry.workflow: s.state for s in due.standings(queueing.look(session))}

    def waiting(self) -> DagRun:
        """The run that nobody has triggered, as soon as it waits without a slot."""
        path = "/api/v2/dags/scheduled_migrations/dagRuns?state=running&run_type=scheduled"

        def found() -> DagRun | None:
            for run in self.airflow.call("GET", path)[1]["dag_runs"]:
                made = DagRun(airflow=self.airflow, dag_id="scheduled_migrations", run_id=run["dag_run_id"])
                if made.tasks().get("claim_due") == "deferred":
                    return made
            return None

        wait_until(lambda: found() is not None, "no run waits for the queue")
        return found() or self.waiting()

    @contextmanager
    def going(self) -> Iterator[None]:
        """The DAGs run, and what is scheduled looks at this source."""
        named = self.airflow.home / "migrations" / "sources.yaml"
        for dag in ("online_ddl", "scheduled_migrations", "housekeeping"):
            unpause(self.airflow, dag)
        try:
            yield
        finally:
            named.unlink(missing_ok=True)
            for dag in ("scheduled_migrations", "housekeeping"):
                self.airflow.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": True})

    def run(self, workflow: str) -> DagRun:
        return DagRun(airflow=self.airflow, dag_id="online_ddl", run_id=workflow)


@pytest.mark.only_on("mariadb")
@pytest.mark.slow
@pytest.mark.xdist_group("airflow")
def test_what_is_submitted_is_started_when_it_is_due(airflow: Deployment, database: Database) -> None:
    """One that ends well, one that planning refuses and its successor; then housekeeping."""
    source = Source(airflow, database)
    first, bad, held = (f"{n}-{database.name}" for n in ("first", "bad", "held"))
    source.submit(first, "a", "ADD x INT COMMENT '{{ 1 + 1 }}'", "--priority", "5")
    source.submit(bad, "no_such_table", "ADD z INT")
    source.submit(held, "b", "ADD z INT", "--after", bad, "--priority", "9")
    with source.going():
        run = source.schedule(concurrency=2)
        assert [d["trigger_run_id"] for d in run.result("claim_due")] == [first, bad]
        assert source.listed() == {held: "waiting", first: "started", bad: "started"}
        assert source.run(bad).end() == "failed"
        assert source.run(first).end() == "success", source.run(first).story()
        with connect(database.app_url) as app:
            assert "COMMENT '{{ 1 + 1 }}'" in str(app.row("SHOW CREATE TABLE a"))
        idle = source.schedule(concurrency=1)
        assert (idle.tasks(), idle.note()) == ({"claim_due": "skipped", "start": "skipped"}, "Nothing was due.")
        assert source.listed() == {held: "waiting", first: "done", bad: "failed"}
        _tidied(source, first)


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
@pytest.mark.slow
@pytest.mark.xdist_group("airflow")
def test_a_successor_is_started_and_a_run_that_waits_gives_way(airflow: Deployment, database: Database) -> None:
    """The one that waits does so for what comes, until whoever triggers another: that has what is due."""
    source, named = Source(airflow, database), airflow.home / "migrations" / "sources.yaml"
    first, second, last = (f"{n}-{database.name}" for n in ("first", "second", "last"))
    source.submit(second, "b", "ADD y INT", "--after", first)
    source.submit(first, "a", "ADD x INT")
    with source.going():
        source.schedule(concurrency=1)
        assert source.run(first).end() == "success", source.run(first).story()
        source.schedule(concurrency=1)
        assert source.listed() == {first: "done", second: "started"}
        assert source.run(second).end() == "success", source.run(second).story()
        named.write_text(f"source_conn_ids: [{source.conn_id}]")
        waiting = source.waiting()
        source.submit(last, "a", "ADD z INT")
        assert waiting.end() == "success", waiting.story()
        assert [d["trigger_run_id"] for d in waiting.result("claim_due")] == [last]
        assert source.run(last).end() == "success", source.run(last).story()
        assert source.waiting().run_id != waiting.run_id


def _tidied(source: Source, workflow: str) -> None:
    """The original of `workflow` goes when it is old: listed by a dry run, removed by the next."""
    with connect(source.database.url) as session:
        row = workflows.load(session, workflow)
        assert row.phase is Phase.COMPLETE
        assert not lease.is_alive(session, workflow, lease.DRIVER)
        session.execute(f"UPDATE {SIDECAR}.workflow SET ended_at = ended_at - INTERVAL 8 DAY WHERE id=%s", (workflow,))
        for dry_run, removed in ((True, 0), (False, 1)):
            conf = {"source_conn_ids": [source.conn_id], "dry_run": dry_run}
            run = trigger(source.airflow, "housekeeping", f"h-{secrets.token_hex(4)}", conf)
            assert run.end() == "success", run.story()
            assert run.result("housekeeping")[source.conn_id] == {"found": 1, "removed": removed}
            assert f"{row.source_schema}.{row.retired_table}" in run.log("housekeeping")
        assert queue.find(session, workflow) is not None
    with connect(source.database.app_url) as app:
        assert row.retired_table not in {name for (name,) in app.rows("SHOW TABLES")}


TIDY = """
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from vreplication.airflow import housekeeping
from vreplication.errors import Refused, Transient

ends, tidied = json.loads(sys.argv[1]), []

def tidy(conn_id, url, params, by):
    tidied.append(conn_id)
    if kind := ends[conn_id]:
        raise {"Transient": Transient, "Refused": Refused}[kind](f"{conn_id} says no.")
    return {"found": 1, "removed": 1}, []

housekeeping._tidy = tidy
housekeeping.find_source = lambda conn_id: (conn_id, object(), "") if conn_id in ends else (conn_id, None, "")
task = housekeeping.HousekeepingOperator(task_id="t", folder="nowhere")
try:
    told = ["ok", task.execute({"params": {"source_conn_ids": list(ends)}, "run_id": "r"})]
except AirflowException as error:
    told = [type(error).__name__, str(error)]
tell([*told, tidied])
"""


@pytest.mark.parametrize(
    ("ends", "kind", "words"),
    [
        ({"a": None, "b": None}, "ok", ""),
        ({"a": "Transient", "b": None}, "AirflowException", "Connection 'a': a says no."),
        ({"a": "Refused", "b": None}, "AirflowFailException", "Connection 'a': a says no."),
        ({"a": "Refused", "b": "Transient"}, "AirflowException", "Connection 'a': a says no."),
    ],
)
def test_a_source_that_was_away_is_tidied_again(
    tmp_path: Path, ends: dict[str, str | None], kind: str, words: str
) -> None:
    """After the others: what is no more than away is for the task's retry, what is wrong is not."""
    told, text, tidied = in_airflow(tmp_path, TIDY, json.dumps(ends))
    assert (told, tidied) == (kind, ["a", "b"])
    assert words in str(text)
