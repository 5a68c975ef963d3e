"""What the page's buttons do, on real servers: of migrations, of tables that move, of what waits in a queue.

What must stay true: an act is seen in the sidecar, not only in the answer.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from page_setup import ALTER, SCRIPT, WORKFLOW, Home, clients, home, make, patient, press, session, workflow

from sandbox.databases import Database
from tests.support.rows import make_move, workflow_row
from vreplication.cutover.identity import table_identity
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.scheduler import queueing
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import gate, journal, lease, moves, progress, queue, tuning, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import answers, asking
from vreplication.ui.asking import Source
from vreplication.ui.pulse import Silence

pytestmark = pytest.mark.either

__all__ = ["clients", "home", "patient", "session", "workflow"]


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
    held_by = {f["name"]: f["value"] for f in fields[2:] if f["value"]}
    assert held_by == {"max_load": "Threads_running=60", "latency_factor": "1.5"}


WRONG: list[tuple[Any, str]] = [
    ({"copy_parallelism": 65}, "Copying tasks at a time: it has to be at most 64."),
    ({"copy_parallelism": "x"}, "Copying tasks at a time: it has to be a whole number"),
    ({"chunk_millis": ""}, "Time a chunk may take, milliseconds: it has to be a whole number"),
    ({"chunk_millis": 9.5}, "Time a chunk may take, milliseconds: it has to be a whole number"),
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
    assert buttons_of(client, "move-1") == ["pause", "release"]
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
    seconds = "INTERVAL IF(event='copied', 20, 0) SECOND"
    session.execute_raw(f"UPDATE {SIDECAR}.journal SET at = TIMESTAMP'2026-01-01 00:00:00' + {seconds}")
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


def test_a_complete_one_names_the_rows_left_out_and_drops_them_alone(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    home.known = [Source(conn_id="main", url=database.url)]
    spec = {"table": "t", "alter": "ADD UNIQUE (u)", "on_duplicate": "keep-first"}
    row = make(session, database.name, source_table="t", spec=spec, phase=Phase.WAITING)
    made = {row.retired_table: "", row.side_table: f" COMMENT 'vreplication: rows that workflow {row.id} left out'"}
    for name, comment in made.items():
        database.admin.execute_raw(f"CREATE TABLE {database.name}.{name} (id INT PRIMARY KEY){comment}")
    journal.write(session, row.id, journal.SET_ASIDE, f"3 rows in {row.side_table}", actor="ann")
    workflows.set_fields(session, row.id, is_cut=1)
    workflows.move(session, row.id, Phase.COMPLETE)

    def shown() -> dict[str, Any]:
        answers.Detailed.model_validate(found := clients["viewer"].get(f"/api/workflows/{WORKFLOW}").json())
        return {"acts": [b["act"] for b in found["buttons"]], **found}

    told, place = shown(), f"{database.name}.{row.side_table}"
    assert (told["acts"], told["left_out"]["table"], told["left_out"]["rows"]) == (
        ["cleanup", "cleanup-duplicates"], place, 3,
    )  # fmt: skip
    text = clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    assert f"3 rows that gave way to others: {place}, " in text
    assert f"<code>vreplication cleanup {WORKFLOW} --duplicates</code> drops it" in text
    assert press(clients["viewer"], "cleanup-duplicates").status_code == 403
    assert press(clients["user"], "cleanup-duplicates").json()["done"] == f"Dropped: {place}."
    told = shown()
    assert (told["acts"], told["left_out"], told["side_table"]) == (["cleanup"], None, None)
    assert journal.latest(session, row.id, journal.SIDE_DROPPED)["actor"] == "a-user (Airflow)"  # type: ignore[index]


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


def test_what_a_move_without_a_run_has_kept_is_dropped_by_the_command(
    clients: dict[str, Any], session: Session, database: Database, home: Home
) -> None:
    """Where it came from is known by its run alone: Clean up was offered, and then refused."""
    home.known = [Source(conn_id="new", url=database.url)]
    make_move(session, "move-1", "shop2", number=2, phase=Phase.COMPLETE)
    assert buttons_of(clients["admin"], "move-1") == []
    told = clients["admin"].get("/api/workflows/move-1").json()["kept"]
    assert told["drop"] == "vreplication cleanup move-1"
    assert "<code>vreplication cleanup move-1</code> drops them" in clients["admin"].get("/workflows/move-1").text


def submit(session: Session, workflow: str, **more: Any) -> None:
    given = {"table": f"t_{workflow}", "alter": ALTER, "workflow": workflow, **more}
    queueing.submit(session, queueing.make_entry("shop", given), "ann@host")


def test_what_was_refused_before_it_was_started_is_in_the_list(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    submit(session, "w4")
    queue.fail(session, "w4", "A run of its id is there for another connection.")
    [found] = clients["viewer"].get("/api/workflows").json()["pending"]
    assert (found["workflow"], found["phase"]) == ("w4", "refused")


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
    assert buttons_of(clients["admin"], "move-1") == ["pause", "release"]
