"""The page on real servers, behind Airflow's own logins: who may look, who may act, what it shows and what it keeps.

What must stay true: every route is tried by nobody, a viewer and an editor; an act is seen in the sidecar, not only in
the answer. Airflow lives in a folder of its own.
"""

from __future__ import annotations

import atexit
import html
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urljoin

import pytest

if "airflow" not in sys.modules and "AIRFLOW_HOME" not in os.environ:
    _HOME = tempfile.mkdtemp(prefix="vreplication-airflow-")
    atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
    os.environ["AIRFLOW_HOME"] = _HOME
    os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{_HOME}/page.db"
os.environ.setdefault("AIRFLOW__API_AUTH__JWT_SECRET", "only-for-tests-" * 5)

from sandbox.databases import Database
from tests.support.private_server import missing
from tests.support.rows import make_consumers, make_feed, make_move, workflow_row
from vreplication.cutover.identity import table_identity
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.scheduler import queueing
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import gate, history, journal, layout, lease, moves, progress, queue, tuning, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import Run, answers, asking
from vreplication.ui.asking import Source
from vreplication.ui.lakes import Lake
from vreplication.ui.pending import AskedRun
from vreplication.ui.pulse import Silence

SCRIPT = "<script>alert(1)</script>"
WORKFLOW = "wf-1"
RUN = Run("online_ddl", "manual__1")
ALTER = "ADD COLUMN c INT COMMENT '<b>\"&'"
STATIC = ["/static/page.js", "/static/uplot/uPlot.iife.min.js"]
PAGES = ["/", "/metrics", f"/workflows/{WORKFLOW}", "/runs/online_ddl/manual__1", *STATIC]
JSONS = ["/api/openapi.json", "/api/workflows", f"/api/workflows/{WORKFLOW}"]
NOWHERE = ["/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/nope", "/nope", "/api/nope"]
ACTS = ["pause", "resume", "release", "tune", "cancel", "reverse", "complete", "cleanup", "revert"]


class Home:
    """Where the sources are, for a test."""

    def __init__(self) -> None:
        self.known: list[Source] = []
        self.failed: set[str] = set()
        self.quiet: list[Silence] = []
        self.told: list[Lake] = []
        self.asked: list[AskedRun] = []

    def sources(self) -> list[Source]:
        return self.known

    def source(self, conn_id: str) -> Source | None:
        return next((s for s in self.known if s.conn_id == conn_id), None)

    def workflow_of_run(self, run: Run) -> tuple[str | None, str] | None:
        return ("main", WORKFLOW) if run == RUN else None

    def run_of_workflow(self, conn_id: str, workflow: str) -> Run | None:
        return RUN if (conn_id, workflow) == ("main", WORKFLOW) else None

    def source_of_run(self, run: Run) -> Source | None:
        return self.source("old")

    def sink_password(self, run: Run) -> str:
        return ""

    def has_failed(self, run: Run) -> bool:
        return run.run_id in self.failed

    def asked_runs(self) -> list[AskedRun]:
        return self.asked

    def silent(self) -> list[Silence]:
        return self.quiet

    def lakes(self, run: Run | None = None) -> list[Lake]:
        return [each for each in self.told if run in (None, each.run)]


@pytest.fixture(scope="session")
def airflow() -> Any:
    """The auth manager of an Airflow with a metadata database of the tests' own; never one that somebody uses."""
    from airflow.configuration import conf

    store = conf.get("database", "sql_alchemy_conn")
    if not store.startswith(f"sqlite:///{tempfile.gettempdir()}/"):
        missing("Airflow's metadata database is not a temporary one; unset AIRFLOW_HOME.")
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.utils.db import initdb

    initdb()
    return init_auth_manager()


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def clients(airflow: Any, home: Home) -> dict[str, Any]:
    """A browser for each kind of person. Each has a login cookie, but nobody."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from vreplication.ui.app import create_app

    whole = FastAPI()
    whole.mount("/vreplication", create_app(home))
    made: dict[str, Any] = {"nobody": TestClient(whole, base_url="http://testserver/vreplication")}
    for role in ("viewer", "user", "admin"):
        token = airflow.generate_jwt(SimpleAuthManagerUser(username=f"a-{role}", role=role))
        made[role] = TestClient(whole, base_url="http://testserver/vreplication", cookies={"_token": token})
    return made


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source on a busy machine takes longer than a page may wait; where that itself is tested it does not."""
    if "silent" not in request.fixturenames:
        for name in ("BUDGET_SECONDS", "_READ_SECONDS", "_CONNECT_SECONDS"):
            monkeypatch.setattr(asking, name, 60.0)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        layout.install(opened)
        yield opened


@pytest.fixture
def workflow(session: Session, database: Database, home: Home) -> WorkflowRow:
    """A copying workflow on a source that is marked."""
    home.known = [Source(conn_id="main", url=database.url)]
    return make(session, database.name)


def make(session: Session, schema: str, **fields: Any) -> WorkflowRow:
    spec = {"table": SCRIPT, "alter": ALTER, "cutover": "manual"}
    given = {"source_schema": schema, "source_table": SCRIPT, "spec": spec, "phase": Phase.COPYING}
    tables = {"shadow_table": "t__vr_new", "retired_table": "t__vr_old"}
    row = workflow_row(WORKFLOW, **(given | tables | fields))
    workflows.create(session, row)
    return row


def press(
    client: Any, act: str, workflow: str = WORKFLOW, headers: dict[str, str] | None = None, body: Any = None
) -> Any:
    """As the page does it: its cookie, its token."""
    client.get("/")
    token = {"x-csrf-token": client.cookies["vreplication_csrf"]} if headers is None else headers
    return client.post(f"/api/workflows/{workflow}/{act}", headers=token, json=body)


# -- who may look and act


def test_nobody_gets_nothing(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    paths = [*PAGES, *JSONS, *NOWHERE]
    answers = {path: clients["nobody"].get(path, follow_redirects=False) for path in paths}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 401)
    assert [path for path, answer in answers.items() if WORKFLOW in answer.text] == []


def test_nobody_acts(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    tried = list(itertools.product(["GET", "POST", "PUT", "DELETE", "PATCH"], ACTS))
    found = {(m, a): clients["nobody"].request(m, f"/api/workflows/{WORKFLOW}/{a}").status_code for m, a in tried}
    assert found == dict.fromkeys(tried, 401)
    assert journal.read(session, WORKFLOW) == []


def test_who_is_logged_in_may_look(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    expected = {path: 404 if path in NOWHERE else 200 for path in PAGES + JSONS + NOWHERE}
    for role in ("viewer", "user", "admin"):
        assert {path: clients[role].get(path).status_code for path in expected} == expected, role


def test_a_viewer_may_not_act(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    assert {act: press(clients["viewer"], act).status_code for act in ACTS} == dict.fromkeys(ACTS, 403)
    assert journal.read(session, WORKFLOW) == []
    assert 'disabled title="You may look' in clients["viewer"].get(f"/workflows/{WORKFLOW}").text


@pytest.mark.parametrize("role", ["user", "admin"])
def test_an_editor_acts_and_the_sidecar_knows_it(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, role: str
) -> None:
    client = clients[role]
    assert press(client, "pause").status_code == 200
    assert workflows.load(session, WORKFLOW).is_paused
    assert client.get(f"/api/workflows/{WORKFLOW}").json()["words"]["phase"] == "copying, paused"
    assert press(client, "resume").status_code == 200
    assert not workflows.load(session, WORKFLOW).is_paused
    assert press(client, "release").status_code == 200
    assert gate.released_by(session, WORKFLOW) == f"a-{role} (Airflow)"
    told = press(client, "release").json()["done"]
    assert told == f"It was released before, by a-{role} (Airflow)."
    written = [(e["event"], e["actor"]) for e in journal.read(session, WORKFLOW)]
    assert written == [(event, f"a-{role} (Airflow)") for event in ("paused", "resumed", "released")]


def test_cancel_without_a_driver_ends_it_here(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    answer = press(clients["user"], "cancel")
    assert answer.status_code == 200, answer.text
    assert workflows.load(session, WORKFLOW).phase is Phase.CANCELLED
    assert "a-user (Airflow)" in {e["actor"] for e in journal.read(session, WORKFLOW)}
    assert press(clients["user"], "pause").status_code == 409


def test_cancel_asks_the_driver_that_is_alive(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    lease.acquire(session, WORKFLOW, lease.DRIVER)
    started = time.monotonic()
    assert "Asked" in press(clients["user"], "cancel").json()["done"]
    assert time.monotonic() - started < 30, "as long as a driver is waited for that does not react"
    row = workflows.load(session, WORKFLOW)
    assert row.is_cancel_requested
    assert row.phase is Phase.COPYING


def test_what_has_switched_is_not_cancelled(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    workflows.set_fields(session, WORKFLOW, is_cut=1)
    answer = press(clients["user"], "cancel")
    assert answer.status_code == 409
    assert "has switched its tables" in answer.json()["detail"]


def test_a_failed_workflow_is_told_how_it_goes_on(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    """Not from here: clearing the task that failed, or the command line."""
    workflows.move(session, WORKFLOW, Phase.FAILED, "the disk was full")
    answer = press(clients["user"], "resume")
    assert answer.status_code == 409
    assert "has failed and cannot be resumed here. Clear the task" in answer.json()["detail"]
    assert f"vreplication resume {WORKFLOW}" in answer.json()["detail"]


def at_the_gate(session: Session, seconds_ago: int) -> None:
    """Released so long ago."""
    workflows.set_fields(session, WORKFLOW, phase=Phase.WAITING)
    gate.release(session, WORKFLOW, "somebody")
    session.execute_raw(f"UPDATE {SIDECAR}.gate_release SET released_at = released_at - INTERVAL {seconds_ago} SECOND")


def test_a_release_that_nobody_acts_on_is_told_with_a_command_that_carries_it_on(
    clients: dict[str, Any],
    session: Session,
    workflow: WorkflowRow,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "FRESH_SECONDS", 0.0)

    def told() -> tuple[str | None, str | None]:
        found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
        return found["unheeded"], found["advice"]

    at_the_gate(session, 20)
    assert told() == (None, None)
    at_the_gate(session, 40)
    sentence, advice = told()
    assert sentence is not None
    assert sentence.startswith("Released by somebody, and nobody has acted on it for 4")
    assert advice is not None
    assert f"`vreplication resume {WORKFLOW} --source {database.url}`" in advice
    assert database.url.password not in advice
    assert 'id="unheeded"' in clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    lease.acquire(session, WORKFLOW, lease.DRIVER)
    session.execute_raw(f"UPDATE {SIDECAR}.lease SET taken_at = taken_at - INTERVAL 60 SECOND")
    assert told() == (None, None)


def test_a_silent_part_of_airflow_is_told_where_somebody_waits_for_it(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, home: Home
) -> None:
    home.quiet = [Silence(name="scheduler", since=datetime.now(UTC) - timedelta(minutes=1))]
    for path in ("/api/workflows", f"/api/workflows/{WORKFLOW}"):
        [sentence] = clients["viewer"].get(path).json()["pulse"]
        assert sentence.startswith("Airflow's scheduler has been silent since ")
    assert [
        path for path in ("/", f"/workflows/{WORKFLOW}") if "data-pulse" not in clients["viewer"].get(path).text
    ] == []
    at_the_gate(session, 0)
    assert "releases will not be acted on" in press(clients["user"], "release").json()["done"]
    assert "vreplication resume" in clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()["advice"]
    home.quiet = []
    assert clients["viewer"].get("/api/workflows").json()["pulse"] == []


def test_every_json_route_says_what_it_answers(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    """And answers it."""
    found = clients["viewer"].get("/api/openapi.json").json()
    assert found["servers"] == [{"url": "/vreplication"}]
    routes = {path: method for path, methods in found["paths"].items() for method in methods.items()}
    assert {path for path in routes if not path.startswith("/api/")} == set()
    for path, (method, route) in routes.items():
        assert "$ref" in route["responses"]["200"]["content"]["application/json"]["schema"], (method, path)
        assert route["tags"], path
        assert route["summary"].lower() != route["operationId"].rpartition("_api_")[0].replace("_", " "), path
    answers.Listing.model_validate(clients["viewer"].get("/api/workflows").json())
    answers.Lakes.model_validate(clients["viewer"].get("/api/lakes").json())
    answers.Detailed.model_validate(clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json())
    answers.Done.model_validate(press(clients["user"], "pause").json())
    answers.Problem.model_validate(press(clients["user"], "nothing").json())


FORGED = [
    {},
    {"x-csrf-token": ""},
    {"x-csrf-token": "guessed"},
    {"x-csrf-token": "OURS", "sec-fetch-site": "cross-site"},
    {"x-csrf-token": "OURS", "sec-fetch-site": "same-site"},
    {"x-csrf-token": "OURS", "origin": "https://elsewhere.example"},
]


def test_an_act_that_another_site_sends_is_not_done(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    client = clients["user"]
    client.get("/")
    for headers in FORGED:
        sent = {k: client.cookies["vreplication_csrf"] if v == "OURS" else v for k, v in headers.items()}
        assert press(client, "pause", headers=sent).status_code == 403, headers
    assert not workflows.load(session, WORKFLOW).is_paused


def test_a_program_with_a_bearer_token_needs_no_page(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    token = clients["user"].cookies["_token"]
    answer = clients["nobody"].post(f"/api/workflows/{WORKFLOW}/pause", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert workflows.load(session, WORKFLOW).is_paused


# -- what it shows


def test_figures_of_a_live_workflow(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    progress.write_driver(session, WORKFLOW, percent=61.04, rows_copied=29_300_000, rows_total=48_100_000,
                          rows_total_exact=0, rows_per_second=48_213.0, copy_eta_seconds=390.0, chunk_rows=5_000,
                          chunk_millis=480)  # fmt: skip
    progress.write_replicate(session, WORKFLOW, lag_seconds=0.4, backlog=310, events_applied=9,
                             applied_per_second=1_204.0, apply_eta_seconds=0.0, converging=1)  # fmt: skip
    found = clients["viewer"].get("/api/workflows").json()["workflows"][0]
    assert (found["phase"], found["state"], found["conn_id"], found["alter"]) == ("copying", "running", "main", ALTER)
    assert found["words"]["rows"] == "29.3M of about 48.1M rows"
    assert found["words"]["rate"] == "48.2k rows/s"
    one = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
    assert (one["chunk_rows"], one["chunk_millis"]) == (5_000, 480)
    assert one["effort"]["words"] == "2 tasks at a time, 500 ms a chunk; lately 5,000 rows in 480 ms."
    assert [s["state"] for s in one["steps"][:4]] == ["done", "done", "now", "to come"]
    text = clients["viewer"].get(f"/workflows/{WORKFLOW}?conn_id=main").text
    assert "61.0 %" in text
    assert "lag 0.4 s" in text


def test_an_editor_tunes_it(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    asked_for = {"copy_parallelism": "4", "chunk_millis": 200}
    told = press(clients["user"], "tune", body=asked_for).json()["done"]
    assert told == "Set: 4 copying tasks at a time, 200 ms a chunk. No copy is running; it holds when one does."
    assert tuning.read(session, WORKFLOW) == Tuning(copy_parallelism=4, chunk_millis=200)
    [entry] = journal.read(session, WORKFLOW)
    assert (entry["event"], entry["actor"]) == ("tuned", "a-user (Airflow)")
    found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
    assert (found["effort"]["copy_parallelism"], found["effort"]["chunk_millis"]) == (4, 200)
    fields = next(b["fields"] for b in found["buttons"] if b["act"] == "tune")
    assert [(f["name"], f["value"]) for f in fields][:2] == [("copy_parallelism", 4), ("chunk_millis", 200)]
    press(clients["user"], "tune", body={"max_load": "Threads_running=60", "nice_ratio": "0.5"})
    press(clients["user"], "tune", body={"nice_ratio": "off"})
    found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
    fields = next(b["fields"] for b in found["buttons"] if b["act"] == "tune")
    assert {f["name"]: f["value"] for f in fields[2:] if f["value"]} == {"max_load": "Threads_running=60"}


WRONG: list[tuple[Any, str]] = [
    ({"copy_parallelism": 65}, "copy_parallelism: it has to be at most 64."),
    ({"copy_parallelism": "x"}, "copy_parallelism: it has to be a whole number"),
    ({"chunk_millis": ""}, "chunk_millis: it has to be a whole number"),
    ({"chunk_millis": 9.5}, "chunk_millis: it has to be a whole number"),
    ({"by": "somebody else"}, "by: there is no such setting."),
    ({}, "Nothing to set is given."),
    ([1], "Say what to set as an object"),
    (None, "Say what to set as an object"),
]


def test_a_wrong_value_is_one_sentence(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    for body, sentence in WRONG:
        answer = press(clients["user"], "tune", body=body)
        assert answer.status_code == 409, body
        assert answer.json()["detail"].startswith(sentence), body
    assert tuning.read(session, WORKFLOW) == Tuning()
    assert journal.read(session, WORKFLOW) == []


def test_a_feed_its_consumers_and_their_metrics(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    make_feed(session, WORKFLOW, "shop")
    make_consumers(session)
    viewer = clients["viewer"]
    listed = viewer.get("/api/workflows").json()
    assert listed["workflows"][0]["words"]["lag"] == "lag 0.4 s"
    assert listed["consumers"][0]["lag_seconds"] >= 1.5
    one = viewer.get(f"/api/workflows/{WORKFLOW}").json()
    assert (one["title"], one["change"]) == ("shop.*", "into kafka://b1.example:9092,b2.example:9092/shop")
    assert [s["state"] for s in one["steps"]] == ["done", "now"]
    assert one["feed"]["broker"] == "answers: last commit 0.1 s ago"
    assert one["feed"]["each"][2] == {"number": 2, "rows": "12,030,200", "rate": "310 rows/s", "messages": "902"}
    assert [(c["group"], c["behind"]) for c in one["consumers"]] == [("copies", "26 messages")]
    assert [b["act"] for b in one["buttons"]] == ["pause", "cancel"]
    text = viewer.get("/metrics").text
    where = f'server="{database.url.host}:{database.url.port}"'
    assert f'vreplication_feed_generation{{{where},topic="shop",workflow="{WORKFLOW}"}} 2.0\n' in text
    of_one = f'partition="3",{where},topic="shop",workflow="{WORKFLOW}"'
    assert f"vreplication_feed_rows_sent_total{{{of_one}}} 1.2030045e+07" in text
    assert f'vreplication_feed_consumer_partitions{{consumer_group="copies",{where},topic="shop"}} 4.0' in text
    assert press(clients["user"], "tune", body={"chunk_millis": 100}).status_code == 409
    assert press(clients["user"], "release").status_code == 409
    assert "the topic and what it holds stay" in press(clients["user"], "cancel").json()["done"]


def test_a_feed_whose_kafka_does_not_answer_is_ended_by_force(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    make_feed(session, WORKFLOW, "shop", waiting_for="Kafka (b1:9092) does not answer. Waiting for it.")
    user = clients["user"]
    said = press(user, "cancel").json()["done"]
    assert "Now it waits: Kafka (b1:9092) does not answer." in said
    assert said.endswith("press Cancel without Kafka.")
    shown = [b["act"] for b in user.get(f"/api/workflows/{WORKFLOW}").json()["buttons"]]
    assert shown == ["pause", "force-cancel"]
    assert press(clients["viewer"], "force-cancel").status_code == 403
    assert not workflows.load(session, WORKFLOW).is_cancel_forced
    assert press(user, "force-cancel").status_code == 200
    assert workflows.load(session, WORKFLOW).is_cancel_forced
    written = [(e["event"], e["details"]) for e in journal.read(session, WORKFLOW)]
    assert written == [("cancel requested", ""), ("cancel requested", "by force")]


def test_only_a_feed_is_cancelled_by_force(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    assert press(clients["user"], "force-cancel").status_code == 409
    assert not workflows.load(session, WORKFLOW).is_cancel_requested


def test_a_lake_is_listed_and_has_the_tab_of_its_run(
    clients: dict[str, Any], workflow: WorkflowRow, home: Home
) -> None:
    run = Run("lake", "manual__1/x+y")
    told = {"directory": "/data/<i>lake", "topic": "shop", "at": time.time(), "manifest": 7, "changes": 12_345}
    home.told = [Lake(run=run, state="running", told=told)]
    viewer = clients["viewer"]
    (found,) = viewer.get("/api/lakes").json()["lakes"]
    assert (found["state"], found["changes"], found["files"], found["lag"]) == (
        "filled", "12,345", "not known", "not known yet",
    )  # fmt: skip
    listed = viewer.get("/").text
    assert "/data/&lt;i&gt;lake" in listed
    assert f'href="./{found["page"]}"' in listed
    page = viewer.get(f"/{found['page']}")
    assert (page.status_code, "Nothing: it goes on until somebody ends the run." in page.text) == (200, True)
    assert 'vreplication_lake_up{directory="/data/<i>lake",topic="shop"} 1.0\n' in viewer.get("/metrics").text
    assert clients["nobody"].get("/api/lakes").status_code in (401, 403)


def test_a_feed_that_waits_and_one_that_is_silent(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    make_feed(session, "waits", "shop", waiting_for="The brokers do not answer.", lag=70)
    make_feed(session, "silent", "shop")
    session.execute_raw(f"UPDATE {SIDECAR}.feed SET written_at=NOW(6) - INTERVAL 60 SECOND WHERE workflow='silent'")
    viewer = clients["viewer"]
    found = {w["workflow"]: w for w in viewer.get("/api/workflows").json()["workflows"]}
    assert found["waits"]["words"]["phase"] == "streaming, waiting"
    assert found["waits"]["feed"]["broker"] == "waited for: The brokers do not answer."
    assert found["silent"]["words"]["phase"] == "streaming, silent"
    assert found["silent"]["words"]["lag"] is None
    text = viewer.get("/metrics").text
    assert 'topic="shop",workflow="waits"} 70.0' in text
    lags = [line for line in text.splitlines() if line.startswith("vreplication_feed_lag_seconds")]
    assert len(lags) == 1
    ups = sorted(line[-3:] for line in text.splitlines() if line.startswith("vreplication_feed_up{"))
    assert ups == ["0.0", "1.0"]


def past(client: Any, query: str = "") -> dict[str, Any]:
    found = client.get(f"/api/workflows/{WORKFLOW}{query}").json()["history"]
    return {**found, "points": [dict(zip(found["columns"], row, strict=True)) for row in found["points"]]}


def test_the_history_is_served_by_the_hour_or_whole(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    viewer = clients["viewer"]
    assert past(viewer, "?after=0")["points"] == []
    now = history.slot_now(session)
    for n, ago in enumerate((3 * history.HOUR, 10, 0)):
        history.add(session, WORKFLOW, eta_seconds=60.0, phase="copying", rows_copied=n, throttled=f"{SCRIPT} {n}")
        newest = f"UPDATE {SIDECAR}.history SET slot = %s ORDER BY slot DESC LIMIT 1"
        session.execute(newest, (now - ago,))
    hour = past(viewer)
    assert [(p["at"], p["rows_copied"]) for p in hour["points"]] == [((now - 10) * 5, 1), (now * 5, 2)]
    assert hour["points"][0]["throttled"] == f"{SCRIPT} 1"
    assert hour["points"][0]["eta_at"].endswith("Z")
    assert [p["rows_copied"] for p in past(viewer, "?history=whole")["points"]] == [0, 1, 2]
    assert [p["rows_copied"] for p in past(viewer, f"?after={hour['last'] - 1}")["points"]] == [2]
    refused = clients["viewer"].get(f"/api/workflows/{WORKFLOW}?history=other")
    told = {"detail": "query.history: it has to be one of 'hour' or 'whole'."}
    assert (refused.status_code, refused.json()) == (422, told)


def test_a_sidecar_of_an_earlier_release_is_shown(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    for table in ("history", "tuning", "forecast", "pace"):
        session.execute_raw(f"DROP TABLE {SIDECAR}.{table}")
    assert len(clients["viewer"].get("/api/workflows").json()["workflows"]) == 1
    assert past(clients["viewer"])["points"] == []
    assert clients["viewer"].get(f"/workflows/{WORKFLOW}").status_code == 200
    assert press(clients["user"], "tune", body={"chunk_millis": 100}).status_code == 200
    assert tuning.read(session, WORKFLOW) == Tuning(chunk_millis=100)


def test_a_figure_that_is_not_known_says_why(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
    assert found["rows_per_second"] is None
    assert found["unknown"]["lag_seconds"] == "not known yet"
    assert found["words"]["eta"]["why"] == "ETA not known yet"
    assert found["words"]["rows"] == "not counted yet"


def test_everything_is_escaped(clients: dict[str, Any], session: Session, workflow: WorkflowRow) -> None:
    workflows.move(session, WORKFLOW, Phase.FAILED, f"{SCRIPT} reason")
    journal.write(session, WORKFLOW, SCRIPT, SCRIPT, actor=SCRIPT)
    progress.write_driver(session, WORKFLOW, waiting_for=SCRIPT)
    for path in ("/", f"/workflows/{WORKFLOW}"):
        text = clients["user"].get(path).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
        assert "<b>" not in text


def test_no_secret_leaves(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, database: Database, home: Home
) -> None:
    password = database.url.password
    journal.write(session, WORKFLOW, "x", f"mysql://u:{password}@h/d and {password}", actor="a")
    wrong = SourceUrl(host=database.url.host, port=database.url.port, user="u", password="hunter2hunter2", database="d")
    home.known.append(Source(conn_id="wrong", url=wrong))
    for path in ["/", *PAGES, *JSONS]:
        answer = clients["admin"].get(path)
        assert password not in answer.text
        assert "hunter2" not in answer.text


def test_headers_keep_the_page_to_itself(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    headers = clients["viewer"].get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    cookie = headers["set-cookie"].lower()
    assert "samesite=strict" in cookie
    assert "httponly" in cookie


def test_a_run_that_was_refused_says_where_the_reason_is(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    page = f"/workflows/{WORKFLOW}?conn_id=main"
    waits = clients["viewer"].get(page)
    assert (waits.status_code, f"the run of {WORKFLOW}; it has not planned it yet" in waits.text) == (202, True)
    home.failed = {"manual__1"}
    failed = clients["viewer"].get(page)
    assert (failed.status_code, "This run began no migration." in failed.text) == (404, True)
    assert 'href="../../dags/online_ddl/runs/manual__1/tasks/plan" target="_top"' in failed.text


def test_links_are_relative(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    assert 'href="./static/page.css"' in clients["viewer"].get("/").text
    assert 'href="../static/page.css"' in clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    moved = clients["viewer"].get("/runs/online_ddl/manual__1", follow_redirects=False)
    assert moved.headers["location"] == f"../../workflows/{WORKFLOW}?conn_id=main"
    assert clients["viewer"].get("/runs/other/manual__1").status_code == 404


OURS = re.compile(r'(?:href|src|data-root)="([^"]*)"|data-(?:past-)?url="([^"]*)"')


@pytest.mark.parametrize("is_taken_off", [True, False], ids=["taken off", "left on"])
def test_every_link_works_behind_a_prefix(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, home: Home, is_taken_off: bool
) -> None:
    """Airflow's base_url has a path; the proxy before it takes that off, or leaves it on."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from vreplication.ui.app import create_app

    whole = FastAPI(root_path="/air/flow")
    whole.mount("/vreplication", create_app(home))
    cookies = {"_token": clients["user"].cookies["_token"]}
    client = TestClient(whole, base_url="http://testserver", cookies=cookies)

    def browse(url: str, method: str = "GET", **more: Any) -> Any:
        """What a browser sees at this address."""
        return client.request(method, url.removeprefix("/air/flow") if is_taken_off else url, **more)

    top = "/air/flow/vreplication"
    for place in (f"{top}/", f"{top}/workflows/{WORKFLOW}?conn_id=main", f"{top}/workflows/none"):
        answer = browse(place)
        token = re.search(r'data-token="([^"]+)"', answer.text)
        assert token, (place, answer.status_code, answer.text)
        assert "path=/air/flow/vreplication;" in answer.headers["set-cookie"].lower() + ";"
        links = [html.unescape(a or b) for a, b in OURS.findall(answer.text)]
        root = urljoin(place, re.search(r'data-root="([^"]+)"', answer.text)[1])  # type: ignore[index]
        assert root == f"{top}/"
        for link in links:
            goal = urljoin(root if link.startswith("api/") else place, link)
            if goal.startswith("/air/flow/dags/"):
                continue
            assert goal.startswith(f"{top}/"), (place, link)
            is_act = goal.split("?")[0].rpartition("/")[2] in ACTS
            assert is_act or browse(goal).status_code == 200, (place, link)
        press = urljoin(root, f"api/workflows/{WORKFLOW}/pause?conn_id=main")
        headers = {"x-csrf-token": token[1], "cookie": f"vreplication_csrf={token[1]}; _token={cookies['_token']}"}
        assert browse(press, "POST", headers=headers).status_code == 200
    moved = browse(f"{top}/runs/online_ddl/manual__1", follow_redirects=False).headers["location"]
    goal = urljoin(f"{top}/runs/online_ddl/manual__1", moved)
    assert goal == f"{top}/workflows/{WORKFLOW}?conn_id=main"


def test_what_airflow_links_to_is_behind_the_prefix_too(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.models.taskinstancekey import TaskInstanceKey

    from vreplication.airflow.links import MigrationLink

    key = TaskInstanceKey(dag_id="online_ddl", task_id="copy", run_id="manual__1+00:00")
    where = "/dags/online_ddl/runs/manual__1%2B00%3A00/plugin/migration"
    assert MigrationLink().get_link(None, ti_key=key) == where  # type: ignore[arg-type]
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://data.example/air/flow/")
    assert MigrationLink().get_link(None, ti_key=key) == f"/air/flow{where}"  # type: ignore[arg-type]


def test_the_run_in_airflow_is_linked(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    text = clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    assert 'href="../../dags/online_ddl/runs/manual__1" target="_top"' in text
    assert 'href="../../dags/online_ddl/runs/manual__1/tasks/copy" target="_top"' in text
    assert clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()["run"]["run_id"] == "manual__1"


def test_who_blocks_the_cut_over_is_named(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    database.admin.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    make(session, database.name, source_table="t", phase=Phase.WAITING)
    for phase, ago in (("verifying", 30), ("waiting", 20), ("waiting", 10)):
        history.add(session, WORKFLOW, eta_seconds=None, phase=phase)
        newest = f"UPDATE {SIDECAR}.history SET slot = slot - {ago} ORDER BY slot DESC LIMIT 1"
        session.execute(newest)
    with connect(database.app_url) as other:
        other.execute("BEGIN")
        other.rows("SELECT * FROM t")
        found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
        text = clients["viewer"].get(f"/workflows/{WORKFLOW}").text
        assert found["gate"]["problem"] is None
        assert other.id in [b["connection"] for b in found["gate"]["blockers"]]
        assert str(other.id) in text
        listed = clients["viewer"].get("/").text
        assert f"blocked by connection {other.id} (" in listed
        assert "holds since <time" in listed
        since = datetime.fromisoformat(found["gate"]["since"]).timestamp()
        assert 99 <= history.slot_now(session) * 5 - since <= 125
    assert found["words"]["phase"] == "waiting for you"
    assert any("release" in reason for reason in found["gate"]["reasons"])


# -- sources


# -- tables that move


def buttons_of(client: Any, workflow: str) -> list[str]:
    return [button["act"] for button in client.get(f"/api/workflows/{workflow}").json()["buttons"]]


def test_a_move_shows_both_servers_and_each_table(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="new", url=database.url)]
    make_move(session, "move-1", "shop2")
    client = clients["admin"]
    told = client.get("/api/workflows/move-1").json()
    assert (told["title"], told["change"]) == (
        "shop.orders, shop.items",
        "move from old.example:3306 to new.example:3307",
    )
    assert told["servers"]["serves"] == "the source, old.example:3306"
    assert [(t["source"], t["target"]) for t in told["servers"]["tables"]] == [
        ("shop.orders", "shop2.orders"),
        ("shop.items", "shop2.items"),
    ]
    assert told["state"] == "waiting"
    assert any("release move-1" in reason for reason in told["gate"]["reasons"])
    assert buttons_of(client, "move-1") == ["pause", "release", "cancel"]
    for path in ("/", "/workflows/move-1"):
        text = client.get(path).text
        assert "shop.items" in text
        assert "new.example:3307" in text
        assert "s3cr3t-of-the-move" not in text


def test_a_move_that_was_switched_is_reversed_or_completed(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    """Asked of its driver, in the person's name; without one nothing is noted."""
    home.known = [Source(conn_id="new", url=database.url)]
    make_move(session, "move-1", "shop2", number=2)
    client = clients["user"]
    assert client.get("/api/workflows/move-1").json()["servers"]["serves"] == "the target, new.example:3307"
    assert buttons_of(client, "move-1") == ["pause", "reverse", "complete"]
    refused = press(client, "reverse", "move-1")
    assert (refused.status_code, "no active worker" in refused.json()["detail"]) == (409, True)
    assert press(client, "cancel", "move-1").status_code == 409
    assert moves.load(session, "move-1").asked is None
    lease.acquire(session, "move-1", lease.DRIVER)
    assert press(clients["viewer"], "complete", "move-1").status_code == 403
    assert press(client, "complete", "move-1").status_code == 200
    found = moves.load(session, "move-1")
    assert (found.asked, found.asked_by) == (moves.COMPLETE, "a-user (Airflow)")
    assert press(client, "reverse", "move-1").status_code == 409
    assert buttons_of(client, "move-1") == ["pause"]
    assert press(client, "reverse", WORKFLOW).status_code == 404


def test_who_may_edit_one_kind_may_not_act_on_the_other(
    airflow: Any, session: Session, workflow: WorkflowRow, database: Database, home: Home
) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    from vreplication.ui import access
    from vreplication.ui.app import create_app

    make_move(session, "move-1", "shop2", number=2)
    lease.acquire(session, "move-1", lease.DRIVER)
    app = create_app(home)
    app.dependency_overrides[access.editable] = lambda: frozenset({"online_ddl"})
    token = airflow.generate_jwt(SimpleAuthManagerUser(username="a-user", role="user"))
    client = TestClient(app, cookies={"_token": token})
    assert press(client, "pause").status_code == 200
    assert press(client, "complete", "move-1").status_code == 403
    assert moves.load(session, "move-1").asked is None
    assert "disabled title=" in client.get("/workflows/move-1").text
    assert "disabled title=" not in client.get(f"/workflows/{WORKFLOW}").text


def test_a_complete_one_shows_its_figures_and_drops_its_original(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    """With the size that the server tells; by who may edit, and only the table that the workflow began with."""
    home.known = [Source(conn_id="main", url=database.url)]
    database.admin.execute_raw(f"CREATE TABLE {database.name}.t__vr_old (id INT PRIMARY KEY, v LONGTEXT)")
    database.admin.execute_raw(f"INSERT INTO {database.name}.t__vr_old VALUES (1, REPEAT('x', 3000000))")
    database.admin.execute_raw(f"ANALYZE TABLE {database.name}.t__vr_old")
    row = make(session, database.name, phase=Phase.WAITING, rows_total=48_000)
    found = table_identity(session, database.name, "t__vr_old", is_mariadb(session))
    workflows.set_fields(session, row.id, source_identity=found, is_cut=1)
    for event in ("triggered", "prepared", "copied"):
        journal.write(session, row.id, event, actor="ann")
    session.execute_raw(f"UPDATE {SIDECAR}.journal SET at = at + INTERVAL 20 SECOND WHERE event='copied'")
    progress.write_driver(session, row.id, rows_copied=48_000, write_stall_millis=41.0, cutover_attempts=2)
    workflows.move(session, row.id, Phase.COMPLETE)

    def shown() -> dict[str, Any]:
        found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
        return {"acts": [b["act"] for b in found["buttons"]], **found}

    told = shown()
    size = told["kept"]["size"]
    assert (told["acts"], 3 <= float(size.split()[0]) < 4, size.split()[1]) == (["cleanup"], True, "MB")
    assert told["buttons"][0]["question"] == f"Drop the original, {size}?"
    assert told["outcome"] == [
        "48,000 rows copied in 20 s (2,400 rows/s)", "writers waited at most 41 ms", "2 attempts at the cut-over",
    ]  # fmt: skip
    text = clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    assert f"{database.name}.t__vr_old kept: {size}" in text
    assert re.search(r"Ended <time.*</time>, after [\d.]+ s", text)
    assert press(clients["viewer"], "cleanup").status_code == 403
    workflows.set_fields(session, row.id, source_identity="another")
    assert press(clients["user"], "cleanup").status_code == 409
    workflows.set_fields(session, row.id, source_identity=found)
    assert press(clients["user"], "cleanup").json()["done"] == f"Dropped: {database.name}.t__vr_old."
    assert (shown()["acts"], shown()["kept"]) == ([], None)
    assert journal.latest(session, row.id, "dropped")["actor"] == "a-user (Airflow)"  # type: ignore[index]


def test_what_can_be_reverted_is_from_its_own_page(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, database: Database
) -> None:
    """It is the way back's release, or its end, that is asked for; it is not dropped while it may be wanted."""
    database.admin.execute_raw(f"CREATE TABLE {database.name}.t__vr_old (id INT PRIMARY KEY)")
    workflows.move(session, WORKFLOW, Phase.COMPLETE)
    back = f"{WORKFLOW}.revert"
    spec = {"table": SCRIPT, "alter": ALTER, "cutover": "manual", "reverts": WORKFLOW}
    workflows.create(session, workflow_row(back, phase=Phase.WAITING, source_schema=database.name, spec=spec))
    found = clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json()
    assert [b["act"] for b in found["buttons"]] == ["revert", "end-window"]
    assert press(clients["user"], "cleanup").status_code == 409
    assert press(clients["viewer"], "revert").status_code == 403
    assert press(clients["user"], "revert").status_code == 200
    assert gate.released_by(session, back) == "a-user (Airflow)"


def submit(session: Session, workflow: str, **more: Any) -> None:
    given = {"table": f"t_{workflow}", "alter": ALTER, "workflow": workflow, **more}
    queueing.submit(session, queueing.make_entry("shop", given), "ann@host")


def test_the_queue_is_in_the_list_and_changed_there(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    """What waits, why, after what and not before when; moved and taken out by who may edit the kind's DAG."""
    submit(session, "w1", not_before="2999-01-01T00:00:00Z")
    submit(session, "w2", after=WORKFLOW)
    submit(session, "w3", priority=7)
    queue.start(session, "w3", "s1")
    queue.fail(session, "w3", "Its run w3 failed <before> the workflow began.")
    journal.write(session, WORKFLOW, "triggered", actor="ann@host")

    def listed() -> list[tuple[Any, ...]]:
        found = clients["viewer"].get("/api/workflows").json()["pending"]
        return [(p["workflow"], p["phase"], p["place"], p["why"], [b["act"] for b in p["buttons"]]) for p in found]

    first = ("w1", "queued", "1 of 2", "its time has not come", ["later", "remove"])
    second = ("w2", "queued", "2 of 2", f"waiting for {WORKFLOW}, which is not complete", ["earlier", "remove"])
    refused = ("w3", "refused", None, "Its run w3 failed <before> the workflow began.", [])
    assert listed() == [first, second, refused]
    [row] = clients["viewer"].get("/api/workflows").json()["workflows"]
    assert (row["followers"], row["owner"]) == (["w2"], "ann@host")
    text = clients["viewer"].get("/").text
    assert "since <time" in text
    assert (text.count("by ann@host"), "not before <time" in text, "waited for by w2" in text) == (4, True, True)
    assert "failed &lt;before&gt; the" in text
    assert ("queued 2" in text, "refused 1" in text, text.count("disabled title=") > 3) == (True, True, True)

    def act(client: Any, name: str, entry: str) -> int:
        client.get("/")
        token = {"x-csrf-token": client.cookies["vreplication_csrf"]}
        return int(client.post(f"/api/queue/{entry}/{name}", headers=token).status_code)

    assert clients["nobody"].post("/api/queue/w2/remove").status_code == 401
    assert act(clients["viewer"], "remove", "w2") == 403
    assert clients["user"].post("/api/queue/w2/remove").status_code == 403
    assert (act(clients["user"], "earlier", "w2"), act(clients["user"], "earlier", "w2")) == (200, 409)
    assert [row[0] for row in listed()] == ["w2", "w1", "w3"]
    assert (act(clients["user"], "remove", "w2"), act(clients["user"], "remove", "w2")) == (200, 409)
    assert (act(clients["user"], "remove", "none"), act(clients["user"], "start", "w1")) == (404, 404)
    assert [row[0] for row in listed()] == ["w1", "w3"]
    told = [(e["event"], e["actor"]) for e in journal.read(session, "w2")][1:]
    by = "a-user (Airflow)"
    assert told == [("moved in the queue", by), ("removed from the queue", by)]


def test_what_was_switched_back_goes_there_again_by_a_release_alone(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="new", url=database.url)]
    make_move(session, "move-1", "shop2", number=3, spec={"tables": ["orders", "items"], "cutover": "auto"})
    told = clients["admin"].get("/api/workflows/move-1").json()
    assert (told["state"], told["words"]["expected"]) == ("waiting", "Release the cut-over.")
    assert told["words"]["safety"] == "The source, old.example:3306, serves again; the target is kept level."
    assert buttons_of(clients["admin"], "move-1") == ["pause", "release", "cancel"]


def test_a_server_without_our_schema_has_no_workflows(clients: dict[str, Any], database: Database, home: Home) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    found = clients["viewer"].get("/api/workflows").json()
    assert (found["workflows"], found["sources"][0]["reachable"]) == ([], True)
    assert "No migration yet" in clients["viewer"].get("/").text
    assert clients["viewer"].get("/api/workflows/nope").status_code == 404


def test_no_source_says_what_to_do(clients: dict[str, Any]) -> None:
    assert "No source yet" in clients["viewer"].get("/").text


@pytest.fixture
def silent() -> Iterator[list[Source]]:
    """Servers that take a connection and never say a word, and one where nobody listens."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
    ports = [s.getsockname()[1] for s in listeners] + [1]
    yield [
        Source(conn_id=f"silent-{n}", url=SourceUrl(host="127.0.0.1", port=p, user="u", password="p", database="d"))
        for n, p in enumerate(ports)
    ]
    for listener in listeners:
        listener.close()


@pytest.mark.in_turn("mariadb")
def test_unreachable_sources_cost_two_seconds_in_all(
    clients: dict[str, Any],
    workflow: WorkflowRow,
    home: Home,
    silent: list[Source],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home.known += silent
    # Ours may take its time on a busy machine.
    monkeypatch.setattr(asking, "BUDGET_SECONDS", 5.0)
    clients["viewer"].get("/static/page.js")
    for _ in range(2):
        started = time.monotonic()
        found = clients["viewer"].get("/api/workflows").json()
        assert time.monotonic() - started < 7, "one after another they would take 13"
        assert [w["workflow"] for w in found["workflows"]] == [WORKFLOW]
        problems = {s["conn_id"]: s["problem"] for s in found["sources"]}
        assert problems["main"] is None
        assert all(problems[s.conn_id] for s in silent)
    assert "silent-0 is unreachable" in clients["viewer"].get("/").text


def test_silent_sources_cost_no_more_than_two_seconds(
    clients: dict[str, Any], home: Home, silent: list[Source]
) -> None:
    """As it is shipped; the quickest of three looks, for the machine may have other things to do."""
    home.known = silent
    took = []
    for _ in range(3):
        started = time.monotonic()
        found = clients["viewer"].get("/api/workflows").json()
        took.append(time.monotonic() - started)
        assert all(s["problem"] for s in found["sources"])
    assert min(took) < 2.0


def test_who_comes_to_the_page_is_told_at_once_who_is_still_asked(
    clients: dict[str, Any], workflow: WorkflowRow, home: Home, silent: list[Source]
) -> None:
    home.known += silent[:1]
    clients["viewer"].get("/static/page.js")
    coming = {"sec-fetch-mode": "navigate"}
    started = time.monotonic()
    text = clients["viewer"].get("/", headers=coming).text
    found = clients["viewer"].get("/workflows/none", headers=coming)
    assert time.monotonic() - started < 2 * asking.BUDGET_SECONDS, "both have waited"
    assert re.search(r"Asking .*silent-0", text)
    assert "unreachable" not in text
    assert (found.status_code, "Looking for workflow none" in found.text) == (202, True)
    assert 'data-poll="50"' in found.text
    assert "static/charts.js" in found.text, "what it becomes when the workflow is found has charts"
    assert clients["viewer"].get("/workflows/none").status_code == 503


def test_one_workflow_on_a_silent_source_is_unreachable_and_not_missing(
    clients: dict[str, Any], home: Home, silent: list[Source]
) -> None:
    home.known = silent[:1]
    assert clients["viewer"].get(f"/api/workflows/{WORKFLOW}").status_code == 503
    assert "is unreachable" in clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    assert press(clients["user"], "pause").status_code == 503


def test_five_hundred_workflows(clients: dict[str, Any], session: Session, database: Database, home: Home) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    make(session, database.name)
    for n in range(499):
        workflows.create(session, workflow_row(f"w{n}", phase=Phase.COMPLETE, spec={"alter": "x"}))
    asked = connections(session)
    text = clients["viewer"].get("/").text
    assert connections(session) - asked < 50, "no look at a server for each of them"
    assert text.count('<li id="w-') == 500
    assert "done 499" in text
    assert text.index(WORKFLOW) < text.index("w0")


def connections(session: Session) -> int:
    """How many there have been on the server."""
    return int(session.rows("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])


# -- the plugin


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
    assert home.workflow_of_run(Run("online_ddl", "nope")) is None
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
    place = AirflowHome().workflow_of_run(run)
    assert place is not None
    assert place[0] == found[0]
    assert place[1].startswith(found[1])
    home = AirflowHome()
    assert home.run_of_workflow(*place) == run
    assert home.run_of_workflow("elsewhere", place[1]) is None
    with create_session() as store:
        store.query(DagRun).filter_by(run_id=run_id).delete()


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
