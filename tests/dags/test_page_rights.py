"""Who may look at the page on real servers, and who may act, behind Airflow's own logins; and what it keeps to itself.

What must stay true: every route is tried by nobody, a viewer and an editor; an act is seen in the sidecar, not only in
the answer.
"""

from __future__ import annotations

import html
import itertools
import re
import time
from typing import Any
from urllib.parse import urljoin

import pytest
from page_setup import SCRIPT, WORKFLOW, Home, airflow, clients, home, patient, press, session, workflow

from sandbox.databases import Database
from tests.support.rows import make_consumers, make_feed, make_move, workflow_row
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.state import gate, journal, lease, moves, progress, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import DAGS, Run, answers
from vreplication.ui.asking import Source
from vreplication.ui.lakes import Lake
from vreplication.ui.pending import AskedRun

pytestmark = pytest.mark.either

__all__ = ["airflow", "clients", "home", "patient", "session", "workflow"]
STATIC = ["/static/page.js", "/static/uplot/uPlot.iife.min.js"]
PAGES = ["/", "/metrics", f"/workflows/{WORKFLOW}", "/runs/online_ddl/manual__1", *STATIC]
JSONS = ["/api/openapi.json", "/api/workflows", f"/api/workflows/{WORKFLOW}"]
STRONG = re.compile(r'class="act[^"]* strong"[^>]*data-label="(\w+)"')
NOWHERE = ["/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/nope", "/nope", "/api/nope"]
ACTS = ["pause", "resume", "release", "tune", "cancel", "reverse", "complete", "cleanup", "revert"]


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


def test_what_is_expected_stands_out_for_who_may_do_it(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow
) -> None:
    workflows.set_fields(session, WORKFLOW, phase=Phase.WAITING)
    pages = ("/", f"/workflows/{WORKFLOW}")
    shown = {role: [clients[role].get(page).text for page in pages] for role in ("viewer", "user")}
    standing_out = {role: [STRONG.findall(text) for text in texts] for role, texts in shown.items()}
    assert standing_out == {"viewer": [[], []], "user": [["Release"], ["Release"]]}


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


def test_links_are_relative(clients: dict[str, Any], workflow: WorkflowRow) -> None:
    assert 'href="./static/page.css"' in clients["viewer"].get("/").text
    assert 'href="../static/page.css"' in clients["viewer"].get(f"/workflows/{WORKFLOW}").text
    moved = clients["viewer"].get("/runs/online_ddl/manual__1", follow_redirects=False)
    assert moved.headers["location"] == f"../../workflows/{WORKFLOW}?conn_id=main"
    assert clients["viewer"].get("/runs/other/manual__1").status_code == 404


def test_a_run_with_several_workflows_has_the_list_of_them(
    clients: dict[str, Any], session: Session, workflow: WorkflowRow, database: Database, home: Home
) -> None:
    """Of somebody's own DAG: none of others are listed, and before there are any it is said."""
    run, viewer = Run("theirs", "r"), clients["viewer"]
    for name in ("wf-2", "wf-3"):
        workflows.create(session, workflow_row(name, source_schema=database.name, spec={"alter": "x"}))
    home.planned[run] = []
    waits = viewer.get("/runs/theirs/r")
    assert (waits.status_code, "has planned no migration yet" in waits.text, "/tasks/" in waits.text) == (
        202,
        True,
        False,
    )
    home.planned[run] = [("main", WORKFLOW), ("main", "wf-2")]
    listed = viewer.get("/runs/theirs/r").text
    assert set(re.findall(r'href="\.\./\.\./workflows/([^?"]+)', listed)) == {WORKFLOW, "wf-2"}
    home.planned[run] = [("main", "wf-3")]
    moved = viewer.get("/runs/theirs/r", follow_redirects=False)
    assert moved.headers["location"] == "../../workflows/wf-3?conn_id=main"


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


@pytest.fixture
def allowed(airflow: Any, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Method and DAG of all that Airflow allows, as by an auth manager that has rights for each DAG."""
    found: set[tuple[str, str]] = set()

    def is_authorized_dag(*, method: str, details: Any, **_: Any) -> bool:
        return (method, details.id) in found

    monkeypatch.setattr(airflow, "is_authorized_dag", is_authorized_dag)
    return found


OF_KIND = {
    "online_ddl": {WORKFLOW, "asked-online_ddl"},
    "move_tables": {"move-1", "asked-move_tables"},
    "changefeed": {"feed-1", "asked-changefeed", "group-of-feed-1"},
    "lake": {"/lakes/shop"},
}
EVERY = set().union(*OF_KIND.values())


@pytest.fixture
def every_kind(session: Session, workflow: WorkflowRow, home: Home) -> None:
    """A workflow of each kind, a run that has not begun, consumers and a lake."""
    make_move(session, "move-1", "shop2", number=2)
    make_feed(session, "feed-1", "shop")
    make_consumers(session, "group-of-feed-1")
    home.told = [Lake(run=Run("lake", "r"), state="running", told={"directory": "/lakes/shop", "at": time.time()})]
    runs = [Run(kind, f"asked-{kind}") for kind in DAGS]
    home.asked = [AskedRun(run=run, place=("main", run.run_id), state="queued") for run in runs]


@pytest.mark.usefixtures("every_kind")
def test_who_may_read_one_kinds_dag_sees_that_kind_alone(
    clients: dict[str, Any], allowed: set[tuple[str, str]]
) -> None:
    client = clients["viewer"]
    for kind, names in OF_KIND.items():
        allowed.clear()
        allowed.add(("GET", kind))
        texts = {path: client.get(path).text for path in ("/", "/api/workflows", "/metrics", "/api/lakes")}
        seen = {path: {name for name in EVERY if name in text} for path, text in texts.items()}
        assert seen["/"] == names, kind
        assert [path for path, found in seen.items() if not found <= names] == [], kind
        assert seen["/metrics"], kind
        for name in (WORKFLOW, "move-1", "feed-1"):
            paths = [f"/workflows/{name}", f"/api/workflows/{name}", f"/api/workflows/{name}/history?conn_id=main"]
            expected = 200 if name in names else 403
            assert [client.get(path).status_code for path in paths] == [expected] * 3, (kind, name)
    allowed.clear()
    paths = [*PAGES, *JSONS, *NOWHERE, "/api/lakes"]
    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 403)


@pytest.mark.usefixtures("every_kind")
def test_who_may_edit_one_kinds_dag_acts_on_that_kind_alone(
    clients: dict[str, Any], session: Session, allowed: set[tuple[str, str]]
) -> None:
    """To edit is to see, too."""
    lease.acquire(session, "move-1", lease.DRIVER)
    allowed |= {("PUT", "move_tables"), ("GET", "online_ddl")}
    client = clients["viewer"]
    assert [press(client, "pause", each).status_code for each in (WORKFLOW, "feed-1")] == [403, 403]
    assert press(client, "complete", "move-1").status_code == 200
    assert moves.load(session, "move-1").asked == moves.COMPLETE
    assert [workflows.load(session, each).is_paused for each in (WORKFLOW, "feed-1")] == [False, False]
    assert "disabled title=" in client.get(f"/workflows/{WORKFLOW}").text
    assert "disabled title=" not in client.get("/workflows/move-1").text
