"""Whole runs of the DAG online_ddl through scheduler, dag-processor, triggerer and api-server, under live writes."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alone import in_airflow

from sandbox.databases import Database, create_database
from sandbox.deployment import Deployment, descendants, is_there
from sandbox.servers import RunningServer
from tests.support import otel
from tests.support.dag_runs import DagRun, opens_soon, trigger, unpause
from tests.support.flow import call, definition, paused_at, settings, wait_reached, wait_until
from tests.support.local_spark import WITHOUT
from tests.support.shop import ROWS, Shop
from tests.support.small_tables import Tables
from tests.support.staged import BUSY_SECONDS, MISSED_SECONDS
from vreplication import names
from vreplication.engine import maintenance
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.state import journal, lease
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.either]
RELEASE_SECONDS = 20.0
"""From an approval to the cut-over, on a machine that does other things, too."""


@pytest.fixture
def database(server: RunningServer) -> Iterator[Database]:
    """Of a name that other DAGs know (tests/dags/consumers), on a server of ours."""
    made = create_database(server, f"shop_{server.flavor}" if server.is_ours else "")
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def shop(airflow: Deployment, database: Database) -> Iterator[Shop]:
    unpause(airflow, "online_ddl")
    found = Shop(airflow, database)
    with found.workload:
        yield found


@pytest.fixture
def figures(airflow: Deployment) -> Iterator[otel.Received]:
    with otel.received(airflow) as found:
        yield found


@pytest.mark.only_on("mariadb")
def test_watched_and_approved_by_rest(shop: Shop, figures: otel.Received) -> None:
    """Held at the gate without a worker slot, and verified again, until somebody approves; the result is the command's.
    Its figures are on the page and in Airflow's own store all the time, and go to OpenTelemetry.
    """
    for consumer in consumers(shop.database):
        unpause(shop.airflow, consumer)
    run = shop.trigger(cutover="manual", verify_every_minutes=0.02)
    seen = watched_to_the_gate(shop, run)
    # Each of the two starts Spark, so that it lasts longer than from one look to the next.
    assert {"copying", "verifying"} <= {each["phase"] for each in seen}, seen
    shares = [each["percent"] for each in seen if each["percent"] is not None]
    assert (shares, shares[-1]) == (sorted(shares), 100.0)
    asked = str(shop.airflow.call("GET", f"{run.path}/hitlDetails")[1])
    assert "ALTER TABLE" in asked
    assert "+   `region` varchar(16)" in asked
    copied, caught_up = run.stored("copy", "progress"), run.stored("replicate", "progress")
    assert (copied["rows_copied"] > ROWS // 2, copied["percent"], caught_up["workflow"]) == (True, 100, run.run_id)
    assert run.stored("verify", "progress")["verdict"] == "clean"
    assert run.tasks()["replicate"] == "running"
    first = verified_at(shop, run)
    run.wait_for(lambda: verified_at(shop, run) > first + 1, "it is not verified again")
    assert run.stored("replicate", "progress")["events_applied"] > caught_up["events_applied"]
    run.wait_for_question("approve")
    assert run.answer("approve", "Approve", user="viewer") == 403
    assert run.answer("approve", "Approve", user="editor") == 200
    assert run.end() == "success", run.story()
    result = run.result("clean_up")
    assert (result["event"], result["workflow"]) == ("complete", run.run_id)
    assert result["rows_copied"] > ROWS // 2
    assert figures["airflow.vreplication.workflow_rows_copied_total", run.run_id] > ROWS // 2
    acts = {("triggered", "admin (Airflow)"), ("released", "editor (Airflow)")}
    assert acts <= events(shop, run.run_id).items()
    assert {"release noticed", "cut-over begun", "cut-over attempt"} <= events(shop, run.run_id).keys()
    assert 0 <= seconds_between(shop, run.run_id, "released", "cut-over begun") < RELEASE_SECONDS
    own = f"vreplication://{shop.conn_id}/{shop.database.name}/orders"
    told = {"conn_id": shop.conn_id, "table": f"{shop.database.name}.orders", "workflow": run.run_id}
    for consumer in consumers(shop.database):
        run.wait_for(lambda consumer=consumer: told in _told_to(shop, consumer), f"{consumer} was not started")  # type: ignore[misc]
    # Airflow 3.3 answers this with 500 while a run that an event has created waits for its start.
    assert asset_events(shop, run) == {"vreplication_table_migrated": told, own: told}
    shop.prove(run.run_id)


def watched_to_the_gate(shop: Shop, run: DagRun) -> list[dict[str, Any]]:
    """All that the page's JSON told of it, looked at twice a second, until a person is asked."""
    seen: list[dict[str, Any]] = []

    def is_asking() -> bool:
        seen.extend(shown(shop, run))
        return run.tasks().get("approve") == "awaiting_input"

    run.wait_for(is_asking, "nobody is asked")
    return seen


def shown(shop: Shop, run: DagRun) -> list[dict[str, Any]]:
    """What the page's JSON tells of it: nothing before it begins (404), nor where its source was too busy to answer in
    the page's two seconds (503)."""
    status, told = shop.airflow.call("GET", f"/vreplication/api/workflows/{run.run_id}", user="viewer")
    assert status in (200, 404, 503), (status, told)
    return [told] if status == 200 else []


def consumers(database: Database) -> list[str]:
    """DAGs that are scheduled on what happens to the table."""
    return ["after_any", f"after_{database.name}"] if database.server.is_ours else ["after_any"]


def _told_to(shop: Shop, dag_id: str) -> list[dict[str, Any]]:
    """What the events say for which the DAG's runs were started, as far as their tasks have said it."""
    runs = f"/api/v2/dags/{dag_id}/dagRuns"
    status, found = shop.airflow.call("GET", f"{runs}?state=success")
    assert status == 200, found
    results = [f"{runs}/{each['dag_run_id']}/taskInstances/told/xcomEntries/return_value" for each in found["dag_runs"]]
    # Airflow may show a run as ended and not yet have its task's result: 404, asked again.
    said = [shop.airflow.call("GET", path) for path in results]
    return [told for status, each in said if status == 200 for told in each["value"]]


def asset_events(shop: Shop, run: DagRun) -> dict[str, Any]:
    """What other DAGs can be scheduled on: the asset's address and what its event says."""
    where = f"/api/v2/assets/events?source_dag_id={run.dag_id}&source_run_id={run.run_id}"
    status, found = shop.airflow.call("GET", where)
    assert status == 200, found
    return {event["uri"]: event["extra"] for event in found["asset_events"]}


def verified_at(shop: Shop, run: DagRun) -> float:
    """When it was verified the last time, as the page tells it."""
    found: list[dict[str, Any]] = []
    wait_until(lambda: found.extend(shown(shop, run)) or found, "the page does not tell it", pause_seconds=0.2)  # type: ignore[func-returns-value]
    return time.monotonic() - float(found[-1]["verified_seconds_ago"])


def events(shop: Shop, workflow: str) -> dict[str, str]:
    """What the journal tells, and who did it."""
    with connect(shop.database.url) as session:
        return {entry["event"]: entry["actor"] for entry in journal.read(session, workflow)}


def seconds_between(shop: Shop, workflow: str, first: str, last: str) -> float:
    with connect(shop.database.url) as session:
        at = {entry["event"]: entry["at"] for entry in reversed(journal.read(session, workflow))}
    return float((at[last] - at[first]).total_seconds())


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_a_run_that_is_marked_failed_stops_and_leaves_the_source_alone(shop: Shop) -> None:
    """Paused in the middle of its copy, so that it cannot be faster than the test."""
    with connect(shop.database.app_url) as app:
        before = definition(app, "orders")
    run = shop.trigger(cutover="auto", chunk_rows=20)
    run.wait_for(lambda: shop.phase(run.run_id) is not None, "it does not begin")
    operate.pause(shop.database.url, run.run_id, by="tester")
    for task in ("copy", "replicate"):
        run.wait_for_task(task, "running")
    run.wait_for(lambda: len(descendants(run.pid("copy"))) > 1, "Spark does not start")
    pids = [pid for task in ("copy", "replicate") for pid in (run.pid(task), *descendants(run.pid(task)))]
    run.mark("failed")
    deadline = time.monotonic() + 30
    while left := [pid for pid in pids if is_there(pid)]:
        assert time.monotonic() < deadline, f"{left} of {pids} go on"
        time.sleep(0.2)
    assert run.state() == "failed"
    assert all(run.stands(task, "failed", tries=1) for task in ("copy", "replicate"))
    operate.cancel(shop.database.url, run.run_id, by="tester")
    with connect(shop.database.app_url) as app:
        assert definition(app, "orders") == before
        assert [n for (n,) in app.rows("SHOW TABLES") if names.is_ours(n)] == []


def test_processes_of_copy_of_replicate_and_of_cut_over_killed(shop: Shop, pauses: Path) -> None:
    """One after the other, while the others live; Airflow tries it again, and it goes on from the sidecar."""
    run = shop.trigger(cutover="manual", chunk_rows=50, verify_every_minutes=0)
    run.wait_for_task("replicate", "running")
    run.wait_for(lambda: shop.phase(run.run_id) is Phase.COPYING, "it does not copy")
    # Neither can be faster than the test: of a paused workflow no chunk begins.
    assert pressed(shop, run, "pause") == 200
    killed_and_tried_again(run, "copy")
    assert run.tries("replicate") == 1
    killed_and_tried_again(run, "replicate")
    assert pressed(shop, run, "resume") == 200
    seen = watched_to_the_gate(shop, run)
    assert seen[-1]["percent"] == 100
    with paused_at(pauses, "cutover.after_rename"):
        approve_at_once(shop, run)
        run.wait_for((pauses / "cutover.after_rename.reached").exists, "it does not switch")
        os.kill(wait_reached(pauses, "cutover.after_rename"), signal.SIGKILL)
    assert run.end() == "success", run.story()
    assert run.tries("cut_over") > 1
    shop.prove(run.run_id)


@pytest.mark.only_on("mariadb")
@pytest.mark.seldom
def test_a_signal_to_all_processes_of_a_task_is_no_failure(shop: Shop, pauses: Path) -> None:
    """As a service manager stops a worker: Spark's JVM goes first, then the task hears of it."""
    with paused_at(pauses, "copy.after_select"):
        run = shop.trigger(chunk_rows=50)
        run.wait_for((pauses / "copy.after_select.reached").exists, "it does not copy")
        task = run.pid("copy")
        for pid in (*descendants(task), task):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        run.wait_for(lambda: run.tries("copy") > 1 or run.tasks()["copy"] == "up_for_retry", "it is not tried again")
    assert run.end() == "success", run.story()
    assert "failed" not in events(shop, run.run_id)
    shop.prove(run.run_id)


def approve_at_once(shop: Shop, run: DagRun) -> None:
    """Airflow may lose an answer that comes in the very second of the question; then it asks again."""

    def is_released() -> bool:
        if run.tasks()["approve"] == "awaiting_input":
            assert run.answer("approve", "Approve", user="editor") in (200, 409)
        return "released" in events(shop, run.run_id)

    run.wait_for(is_released, "it is not released")


def pressed(shop: Shop, run: DagRun, act: str) -> int:
    """A button of the page; returns the HTTP status."""
    return shop.airflow.call("POST", f"/vreplication/api/workflows/{run.run_id}/{act}", user="editor")[0]


def killed_and_tried_again(run: DagRun, task: str) -> None:
    os.kill(run.pid(task), signal.SIGKILL)
    run.wait_for(lambda: run.stands(task, "running", tries=2), f"{task} is not tried again")


@pytest.mark.only_on("mysql")
def test_tasks_that_are_cleared_go_on_from_the_sidecar(shop: Shop) -> None:
    """Each by itself, while the run waits at its gate: what is done is not done again, and catch-up goes on."""
    run = shop.trigger(cutover="manual", spark_master=WITHOUT, verify_every_minutes=0)
    run.wait_for_question("approve")
    with connect(shop.database.app_url) as app:
        copied = shadow_made_at(app)
    for task, state in (("replicate", "running"), ("prepare", "success"), ("copy", "success"), ("verify", "success")):
        run.clear(task)
        run.wait_for(lambda task=task, state=state: run.stands(task, state, tries=2), f"{task} does not go on")  # type: ignore[misc]
    run.clear("gate")
    run.wait_for(lambda: run.stands("gate", "deferred", tries=2), "the gate is not waited at again")
    with connect(shop.database.app_url) as app:
        assert shadow_made_at(app) == copied
    assert run.answer("approve", "Approve", user="editor") == 200
    assert run.end() == "success", run.story()
    shop.prove(run.run_id)


def shadow_made_at(app: Session) -> list[Any]:
    """The shadow table and when it was made: one that is made anew is another one."""
    sql = "SELECT table_name, create_time FROM information_schema.tables WHERE table_schema=DATABASE()"
    return [row for row in app.rows(sql) if names.is_ours(str(row[0]))]


@pytest.mark.only_on("mariadb")
def test_refused_with_the_sentence_of_the_command_line(shop: Shop) -> None:
    run = shop.trigger(table="no_such_table")
    assert run.end() == "failed"
    assert run.tasks()["plan"] == "failed"
    assert run.tries("plan") == 1
    assert "no_such_table" in run.log("plan")
    assert shop.database.password not in run.log("plan")
    assert run.tasks()["prepare"] == "upstream_failed"
    status, tab = shop.airflow.call("GET", f"/vreplication/runs/online_ddl/{run.run_id}", user="viewer")
    assert (status, "This run began no migration." in tab) == (404, True)
    assert (run.note() or "").startswith("Refused: There is no table"), run.note()
    listed = shop.airflow.call("GET", f"/vreplication/api/workflows?conn_id={shop.conn_id}", user="viewer")[1][
        "pending"
    ]
    [told] = [each["why"] for each in listed if each["workflow"] == run.run_id]
    assert "Refused: " + told == run.note()


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
def test_the_gate_misses_catch_up_and_cancel_removes_what_was_made(shop: Shop) -> None:
    run = shop.trigger(cutover="manual", spark_master=WITHOUT, verify_every_minutes=0)
    run.wait_for_task("gate", "deferred")
    missed = seconds_to_miss_catch_up(shop, run)
    print(f"the gate's task failed {missed:.1f} s after catch-up had gone")
    assert missed < MISSED_SECONDS + BUSY_SECONDS
    assert seconds_told(run, "gate") <= MISSED_SECONDS
    # Where nobody is going to try it again, all that comes after it has failed with it.
    run.wait_for_task("clean_up", "failed")
    assert "after: replicate (failed) did not succeed" in run.log("clean_up")
    run.clear("verify")
    run.wait_for(lambda: run.stands("verify", "up_for_retry", tries=2), "verify does not miss it")
    assert seconds_told(run, "verify", 2) <= MISSED_SECONDS
    for task in ("replicate", "cut_over", "clean_up"):
        run.clear(task)
    run.wait_for(lambda: run.stands("gate", "deferred", tries=2), "the gate is not waited at again")
    assert pressed(shop, run, "cancel") == 200
    assert run.end() == "failed"
    ended = run.tasks()
    assert {ended[each] for each in ("gate", "replicate", "approve", "cut_over")} == {"skipped"}, ended
    assert ended["clean_up"] == "failed", ended
    assert run.note() == "Cancelled by editor (Airflow)."
    with connect(shop.database.app_url) as app:
        assert [n for (n,) in app.rows("SHOW TABLES") if names.is_ours(n)] == []
    assert shop.phase(run.run_id) is Phase.CANCELLED


def seconds_to_miss_catch_up(shop: Shop, run: DagRun) -> float:
    """From when nobody holds its lease any more until the gate's task has failed, to be tried again."""
    run.mark_task("replicate", "failed")
    with connect(shop.database.url) as session:
        wait_until(lambda: not lease.is_alive(session, run.run_id, lease.REPLICATE), "it goes on")
    gone = time.monotonic()
    run.wait_for(lambda: not run.stands("gate", "deferred", tries=1), "the gate does not miss it")
    run.wait_for(lambda: run.tasks()["gate"] == "up_for_retry" or run.tries("gate") > 1, "the gate does not fail")
    return time.monotonic() - gone


def seconds_told(run: DagRun, task: str, number: int = 1) -> int:
    """How long the task had been without catch-up when it failed, by its own log."""
    found = re.search(r"has not run for (\d+) seconds", run.log(task, number))
    assert found, run.log(task, number)[-3000:]
    return int(found[1])


ROUTES = """
from vreplication.ui.acts import ACTS
from vreplication.ui.app import create_app

tell([[[r.path, sorted(r.methods)] for r in create_app(None).routes], list(ACTS)])
"""


def requests(routes: list[tuple[str, list[str]]], acts: list[str]) -> list[tuple[str, str]]:
    """Method and path of every route, acts and all, with something in the place of each parameter."""
    paths = [(method, path.replace("{act}", act)) for path, methods in routes for method in methods for act in acts]
    return sorted({(method, re.sub("{[^}]*}", "any", path)) for method, path in paths})


def test_every_route_of_the_page_asks_who_is_there(airflow: Deployment, tmp_path: Path) -> None:
    """Through the api-server: of nobody, and of somebody who may look only."""
    routes, acts = in_airflow(tmp_path / "home", ROUTES)
    known = requests(routes, acts)
    assert {("GET", "/api/workflows"), ("POST", "/api/workflows/any/cancel"), ("GET", "/")} <= set(known)

    def status(method: str, path: str, user: str | None) -> int:
        return airflow.call(method, f"/vreplication{path}", user=user)[0]

    assert {(m, p): status(m, p, None) for m, p in known} == dict.fromkeys(known, 401)
    posts = [(m, p) for m, p in known if m == "POST" and p != "/any"]
    assert len(posts) >= len(acts)
    assert {(m, p): status(m, p, "viewer") for m, p in posts} == dict.fromkeys(posts, 403)
    assert status("GET", "/api/workflows", "viewer") == 200
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert (status("GET", path, "viewer"), status("GET", path, None)) == (404, 401)


def leaves_a_row_out(tables: Tables, run: DagRun) -> None:
    """Of two rows of a value; the page says where it is, and drops it."""
    where = f"/vreplication/api/workflows/{run.run_id}"
    told = tables.airflow.call("GET", where, user="viewer")[1]["left_out"]
    assert told["rows"] == run.result("clean_up")["side_rows"] == 1
    assert tables.database.admin.rows(f"SELECT id, u FROM {told['table']}") == [(2, 7)]
    assert tables.database.admin.rows("SELECT id, u FROM by_page ORDER BY id") == [(1, 7), (3, 8)]
    assert tables.airflow.call("POST", f"{where}/cleanup-duplicates", user="editor")[0] == 200
    assert tables.airflow.call("GET", where, user="viewer")[1]["left_out"] is None


@pytest.fixture
def trusting(database: Database) -> Iterator[None]:
    """Who keeps one of several rows makes triggers."""
    with settings(database, {"log_bin_trust_function_creators": 1}):
        yield


@pytest.mark.only_on("mariadb")
@pytest.mark.timeout(560)
@pytest.mark.usefixtures("trusting")
def test_every_other_way_through_the_gate_by_four_runs_at_once(airflow: Deployment, database: Database) -> None:
    """Three wait for a person and have all of catch-up's places; the fourth's copy gives its own place up meanwhile,
    which it can only where its tasks can be ended: on Spark. While that waits for its window, a group in another's DAG,
    and sensors beside it.
    The one that is released on the page leaves a row out, for its new key.
    """
    unpause(airflow, "online_ddl")
    tables = Tables(airflow, database, ["by_command", "by_page", "rejected", "in_window", "in_group"])
    manual = {"cutover": "manual", "spark_master": WITHOUT}
    one_stays = {"alter": "ADD added INT, ADD UNIQUE KEY one (u)", "on_duplicate": "keep-first"}
    database.admin.execute_raw("ALTER TABLE by_page ADD u INT NOT NULL DEFAULT 7")
    database.admin.execute_raw("UPDATE by_page SET u=8 WHERE id=3")
    asked = {"by_command": manual, "by_page": manual | one_stays, "rejected": manual}
    held = by_command, by_page, rejected = [tables.trigger(name, **more) for name, more in asked.items()]
    for run in held:
        run.wait_for_task("replicate", "running")
    window, opening = opens_soon()
    in_window = tables.trigger("in_window", cutover="window", cutover_window=window)
    in_window.wait_for_task("copy", "deferred")
    assert (in_window.tasks()["replicate"], in_window.tries("copy")) == ("scheduled", 1)
    for run in held:
        run.wait_for_task("approve", "awaiting_input")

    assert "the row with the lowest key stays" in str(airflow.call("GET", f"{by_page.path}/hitlDetails")[1])

    assert call(database, "release", by_command.run_id).code == 0
    path = f"/vreplication/api/workflows/{by_page.run_id}/release?conn_id={tables.conn_id}"
    assert airflow.call("POST", path, user="editor")[0] == 200
    rejected.wait_for_question("approve")
    assert rejected.answer("approve", "Reject", user="editor") == 200
    unpause(airflow, "own_migration")
    conf = {"conn": tables.conn_id, "table": "in_group", "master": WITHOUT, "other": rejected.run_id}
    in_group = trigger(airflow, "own_migration", f"own-{database.name}", conf)
    in_group.wait_for_task("waited", "deferred")

    for run in (by_command, by_page, in_window):
        assert run.end() == "success", run.story()
        assert run.tasks()["approve"] == "skipped", run.run_id
    assert tables.journal(by_command)["released"].startswith(getpass.getuser())
    assert tables.journal(by_page)["released"] == "editor (Airflow)"
    leaves_a_row_out(tables, by_page)
    assert tables.journal(in_window)["released"] == maintenance.named(window)
    assert tables.released_at(in_window) >= opening
    # Airflow has no state for it: nothing has failed but what says so, for those who wait for the run.
    assert rejected.end() == "failed", rejected.story()
    assert rejected.note() == "Cancelled by editor (Airflow)."
    # Answered within seconds, Airflow's scheduler may take the end of the asking for the end of the answer, and want to
    # try again what has been carried out: then nobody is asked any more. Who has rejected it the journal tells.
    assert rejected.tasks()["approve"] in ("success", "skipped"), rejected.story()
    ended = rejected.tasks()
    assert {ended[each] for each in ("gate", "replicate", "cut_over")} == {"skipped"}, ended
    assert (ended["clean_up"], "Cancelled by editor (Airflow)." in rejected.log("clean_up")) == ("failed", True), ended
    told = tables.journal(rejected)
    assert (told["rejected"], "cancelled" in told) == ("editor (Airflow)", True)
    assert {name: tables.has_changed(name) for name in tables.names} == {
        "by_command": True, "by_page": True, "rejected": False, "in_window": True, "in_group": True,
    }  # fmt: skip
    assert in_group.end() == "success", in_group.story()
    # What comes behind the group waits neither for its `approve` nor for its way back, both of which are skipped.
    assert (in_group.result("after"), in_group.tasks()["change.approve"]) == ("told", "skipped")
    assert in_group.result("change.clean_up")["workflow"] == f"group-{in_group.run_id}"
    assert (in_group.result("waited"), in_group.tasks()["other"]) == (f"group-{in_group.run_id}", "skipped")
    where = f"workflows/group-{in_group.run_id}?conn_id={tables.conn_id}"
    run = airflow.call("GET", f"/vreplication/api/{where}")[1]["run"]
    assert run["log_url"] == f"dags/own_migration/runs/{in_group.run_id}/tasks/change.clean_up"
    status, tab = airflow.call("GET", f"/vreplication/runs/own_migration/{in_group.run_id}")
    assert (status, f"group-{in_group.run_id}" in tab) == (200, True)
    pending = airflow.call("GET", "/api/v2/dags/online_ddl/dagRuns/~/hitlDetails?state=awaiting_input")[1]
    assert pending["total_entries"] == 0


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
@pytest.mark.timeout(900)
def test_nine_runs_at_once_while_one_waits_at_the_gate(airflow: Deployment, database: Database) -> None:
    """More than there are places for, each at once: none is lost, and the one that waits goes on as it is told to."""
    unpause(airflow, "online_ddl")
    names = [f"t{n}" for n in range(9)]
    tables = Tables(airflow, database, ["waits", *names])
    waits = tables.trigger("waits", cutover="manual", spark_master=WITHOUT)
    waits.wait_for_task("gate", "deferred")
    runs = [tables.trigger(name, spark_master=WITHOUT) for name in names]
    shown = {
        each["workflow"] for each in airflow.call("GET", "/vreplication/api/workflows", user="viewer")[1]["workflows"]
    }
    assert waits.run_id in shown
    for run in runs:
        assert run.end() == "success", run.story()
    assert waits.tasks()["gate"] == "deferred"
    status, page = airflow.call("GET", f"/vreplication/api/workflows/{waits.run_id}?conn_id={tables.conn_id}")
    assert (status, page["pulse"]) == (200, [])
    path = f"/vreplication/api/workflows/{waits.run_id}/release?conn_id={tables.conn_id}"
    assert airflow.call("POST", path, user="editor")[0] == 200
    assert waits.end() == "success", waits.story()
    assert all(tables.has_changed(name) for name in tables.names)
    assert [database.admin.value(f"SELECT COUNT(*) FROM {name}") for name in tables.names] == [3] * 10
