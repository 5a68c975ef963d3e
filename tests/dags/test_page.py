"""What the page shows of migrations, feeds and lakes on real servers: to people, to programs and to Prometheus."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import Any

import pytest
from page_setup import ALTER, SCRIPT, WORKFLOW, Home, clients, home, make, patient, press, session, workflow

from sandbox.databases import Database
from tests.support.rows import make_consumers, make_feed
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import history, journal, progress, tuning, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import Run, answers, live
from vreplication.ui.asking import Source
from vreplication.ui.lakes import Lake

pytestmark = pytest.mark.either

__all__ = ["clients", "home", "patient", "session", "workflow"]


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
    alone = viewer.get(f"/{viewer.get(f'/api/workflows/{WORKFLOW}').json()['past_url']}&history=whole")
    answers.Remembered.model_validate(alone.json())
    assert len(alone.json()["history"]["points"]) == 3
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


def test_the_page_is_sent_as_it_changes(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To who is logged in, with the buttons of his own rights and nobody's token; for a while."""
    monkeypatch.setattr(live, "LIFE_SECONDS", 0.0)
    monkeypatch.setattr(live, "_FIRST_SECONDS", 60.0)
    asked = {"accept": "text/event-stream"}
    for path in ("/", f"/workflows/{WORKFLOW}?conn_id=main"):
        assert clients["nobody"].get(path, headers=asked).status_code == 401
        for role, is_disabled in (("viewer", True), ("user", False)):
            answer = clients[role].get(path, headers=asked)
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            [data] = re.findall("^event: page\nid: .+\ndata: (.*)$", answer.text, re.MULTILINE)
            html = json.loads(data)["html"]
            assert ('data-token=""' in html, SCRIPT in html, "ADD COLUMN c INT" in html) == (True, False, True)
            assert ("disabled title=" in html) is (is_disabled and path != "/")
