"""The DAG backfill: it imports without a connection and without its file; its ids, params and schedule are stable."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from alone import LOAD, dag_words, in_airflow

from sandbox.databases import Database

pytestmark = pytest.mark.either

YAML = "jobs: [{name: orders, source: a, target: b, table: t, time_column: at}]"


def call(tmp_path: Path, code: str, jobs: str | None = YAML, **more: Any) -> Any:
    """What `code` tells, with this file of jobs."""
    folder = tmp_path / "jobs"
    folder.mkdir(exist_ok=True)
    if jobs is not None:
        (folder / "backfills.yaml").write_text(jobs)
    settings = {"VREPLICATION_MIGRATIONS": str(folder)}
    return in_airflow(tmp_path / "home", code, *dag_words("backfill"), settings=settings, **more)


FACTS = f"""{LOAD}
tell({{
    "id": dag.dag_id, "tasks": sorted(dag.task_ids), "catchup": dag.catchup, "max": dag.max_active_runs,
    "params": {{name: dag.params[name] for name in dag.params}}, "schedule": type(dag.timetable).__name__,
    "cron": dag.timetable.expression, "down": sorted(dag.get_task("choose").downstream_task_ids),
    "retries": dag.get_task("copy").partial_kwargs.get("retries"), "spark": "pyspark" in sys.modules,
}})
"""


@pytest.mark.parametrize("jobs", [YAML, "jobs: [", None])
def test_the_dag_imports_whatever_the_file_holds(tmp_path: Path, jobs: str | None) -> None:
    facts = call(tmp_path, FACTS, jobs)
    assert (facts["id"], facts["tasks"], facts["down"]) == ("backfill", ["choose", "copy"], ["copy"])
    assert (facts["schedule"], facts["cron"]) == ("CronDataIntervalTimetable", "0 0 * * *")
    assert (facts["catchup"], facts["max"], facts["params"]) == (False, 4, {"jobs": []})
    assert not facts["spark"]


CHOOSE = """
choose, params = dag.get_task("choose"), json.loads({params!r})
try:
    tell(["ok", choose.execute({{"params": params}})])
except Exception as error:
    tell([type(error).__name__, str(error)])
"""


@pytest.mark.parametrize(
    ("names", "jobs", "kind", "words"),
    [
        ([], YAML, "AirflowSkipException", "names no jobs"),
        (["orders", "orders"], YAML, "ok", ["orders"]),
        (["nope"], YAML, "AirflowFailException", "There is no job 'nope' in"),
        (["orders"], "jobs: [", "AirflowFailException", "is not valid YAML at line 1"),
        (["orders"], None, "AirflowFailException", "cannot be read"),
    ],
)  # fmt: skip
def test_choosing_jobs(tmp_path: Path, names: list[str], jobs: str | None, kind: str, words: Any) -> None:
    found = call(tmp_path, LOAD + CHOOSE.format(params=json.dumps({"jobs": names})), jobs)
    assert found[0] == kind
    assert found[1] == words if kind == "ok" else words in found[1]
    assert "\n" not in str(found[1])


COPY = """
from vreplication.airflow import backfill, connections
from vreplication.backfill import lateness, run
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk.exceptions import TaskDeferred
calls = []

def fake(job, source, target, start, end, **more):
    calls.append([job.name, source, target, start.isoformat(), end.isoformat(), sorted(more)])
    return SimpleNamespace(verified={verified}, reason="3 rows still differ", as_json=lambda: {{"rows_read": 1}})

run.run, connections.source_url = fake, lambda conn_id: f"url of {{conn_id}}"
left = {left}
lateness.seconds_left = lambda job, source, end: left.pop(0)
task = backfill.BackfillOperator(task_id="copy_one", migrations="/nowhere", job="orders")
context = {context}
try:
    tell([task.execute(context), calls])
except TaskDeferred as deferred:
    tell([deferred.trigger.serialize()[1]["moment"], task.proceed(context, None), len(calls)])
except Exception as error:
    tell([type(error).__name__, str(error)])
"""
INTERVAL = (
    "dict(data_interval_start=datetime(2026, 1, 1, tzinfo=UTC), data_interval_end=datetime(2026, 1, 2, tzinfo=UTC))"
)


def test_a_job_is_done_for_the_data_interval(tmp_path: Path) -> None:
    result, calls = call(tmp_path, LOAD + COPY.format(verified=True, context=INTERVAL, left=[0]))
    assert result == {"rows_read": 1}
    assert calls == [
        ["orders", "url of a", "url of b", "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", ["notify", "stop"]]
    ]


def test_a_day_that_has_just_ended_is_waited_for_without_a_worker(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    code = COPY.format(verified=True, context=INTERVAL, left=[890, 0])
    moment, result, called = call(tmp_path, LOAD + code)
    waited = datetime.fromisoformat(moment) - before
    assert timedelta(seconds=890) <= waited < timedelta(seconds=990)
    assert (result, called) == ({"rows_read": 1}, 1)


def test_a_run_without_an_interval_and_one_that_is_not_verified(tmp_path: Path) -> None:
    assert call(tmp_path, LOAD + COPY.format(verified=True, context="{}", left=[0]))[0] == "AirflowFailException"
    kind, words = call(tmp_path, LOAD + COPY.format(verified=False, context=INTERVAL, left=[0]))
    assert (kind, words) == ("AirflowException", "3 rows still differ")


RUN = """
from airflow.utils.db import initdb
initdb()
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
dag = bag.get_dag("backfill")
from datetime import UTC, datetime
states = []
for jobs in ([], ["orders"], ["orders"]):
    run = dag.test(logical_date=datetime(2026, 3, 1 + len(states), tzinfo=UTC), run_conf={"jobs": jobs})
    tis = {f"{ti.task_id}{ti.map_index}": str(ti.state) for ti in run.get_task_instances()}
    states.append([str(run.state), tis, run.data_interval_start.isoformat(), run.data_interval_end.isoformat()])
tell(states)
"""


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.in_turn("mysql")
def test_runs_of_the_dag(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow itself makes the runs and the mapped task, with connections and Spark, in a database of its own."""
    for table in ("t", "u"):
        database.admin.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, at DATETIME, KEY (at))")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'2026-03-01 12:00'),(2,'2026-03-02 12:00'),(3,'2026-03-04')")
    url = database.app_url
    uri = f"mysql://{url.user}:{url.password}@{url.host}:{url.port}/{url.database}"
    monkeypatch.setenv("AIRFLOW_CONN_A", uri)
    jobs = YAML.replace("target: b", "target: a, target_table: u")
    skipped, first, second = call(tmp_path, RUN, jobs, timeout=250, fresh=True)
    assert skipped[1]["choose-1"] == "skipped"
    assert skipped[1]["copy-1"] == "skipped"
    for state, tasks, start, end in (first, second):
        assert (state, tasks["choose-1"], tasks["copy0"]) == ("success", "success", "success")
        assert (start[:10] < end[:10], start[11:], end[11:]) == (True, "00:00:00+00:00", "00:00:00+00:00")
    days = [first[2], first[3], second[3]]
    rows = database.admin.rows("SELECT id FROM u ORDER BY id")
    assert rows == database.admin.rows(f"SELECT id FROM t WHERE at>='{days[0][:10]}' AND at<'{days[2][:10]}'")
    assert rows
