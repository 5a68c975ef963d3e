"""A new migration on the page, on real servers: who may, what is planned, and what is wrong with a value.

What must stay true: a plan leaves nothing behind.
"""

from __future__ import annotations

from typing import Any

import pytest
from page_setup import Home, airflow, clients, home, patient, session

from sandbox.databases import Database
from tests.support.flow import wait_until
from vreplication.mysql.session import Session, connect
from vreplication.state import workflows
from vreplication.ui import answers, starting
from vreplication.ui.asking import Source

pytestmark = pytest.mark.either

__all__ = ["airflow", "clients", "home", "patient", "session"]
ROUTES = [("GET", "/new"), ("POST", "/new"), ("GET", "/api/tables?conn_id=main"), ("POST", "/api/plan")]


@pytest.fixture(autouse=True)
def table(database: Database, session: Session, home: Home) -> None:
    """On a source that is marked."""
    home.known = [Source(conn_id="main", url=database.url)]
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT) COMMENT '<b>'")


def send(client: Any, path: str = "/api/plan", **asked: Any) -> Any:
    client.get("/")
    token = {"x-csrf-token": client.cookies.get("vreplication_csrf", "")}
    return client.post(path, headers=token, json={"conn_id": "main", "table": "t", **asked})


def test_only_who_may_trigger_the_dag_sees_a_table(clients: dict[str, Any]) -> None:
    expected = {"nobody": 401, "viewer": 403, "user": 200}
    for role, status in expected.items():
        got = [clients[role].get(path).status_code for method, path in ROUTES if method == "GET"]
        sent = [send(clients[role], path, alter="ADD x INT").status_code for method, path in ROUTES if method == "POST"]
        assert got + sent == [status] * len(ROUTES), role
    assert clients["user"].post("/new", json={"conn_id": "main", "table": "t"}).status_code == 403
    assert ['href="./new"' in clients[role].get("/").text for role in ("viewer", "user")] == [False, True]


def test_a_plan_says_what_differs_and_what_the_run_is_asked_for(
    clients: dict[str, Any], session: Session, database: Database
) -> None:
    asked = {"alter": "ADD x INT", "chunk_rows": "300", "cutover": "window", "cutover_window": "02:00-04:00 UTC"}
    found = send(clients["user"], **asked, reverse="").json()
    [line] = [line for line in found["definition"]["lines"] if line["mark"] != " "]
    assert (line["mark"], "`x` int" in line["text"]) == ("+", True)
    assert found["is_refused"] is False
    assert "privileges" in [check["name"] for check in found["checks"]]
    assert found["conf"] == {
        "source_conn_id": "main", "table": "t", "alter": "ADD x INT", "chunk_rows": 300, "cutover": "window",
        "cutover_window": "02:00-04:00 UTC",
    }  # fmt: skip
    answers.Planned.model_validate(found)
    assert answers.Tables.model_validate(clients["user"].get("/api/tables?conn_id=main").json()).tables[0] == "t"
    for path in ("/api/tables?conn_id=", "/api/workflows/w/history?conn_id="):
        assert clients["user"].get(path).status_code == 422, path
    assert session.rows(f"SHOW TABLES FROM {database.name}") == [("t",)]
    assert workflows.find(session, found["workflow"]) is None


def test_what_is_refused_cannot_be_started(clients: dict[str, Any]) -> None:
    part = send(clients["user"], "/new", alter="DROP PRIMARY KEY").text
    assert "says no" in part
    assert 'id="start"' not in part
    part = send(clients["user"], "/new", alter="ADD x INT COMMENT '<i>'").text
    assert 'id="start"' in part
    assert "&lt;i&gt;" in part
    assert "<i>" not in part
    assert "&lt;b&gt;" in send(clients["user"], "/new").text


@pytest.mark.parametrize(
    ("asked", "field", "sentence"),
    [
        (
            {"table": "nothing"},
            "table",
            "There is no table {}.nothing, or the user may not see it. "
            'Check the name ("Table"), the database of the URL, and the user\'s SELECT privilege.',
        ),
        ({"table": "`t"}, "table", "The table name '`t' has a backtick without its pair."),
        ({"chunk_rows": "many"}, "chunk_rows", "Size of a chunk (rows): it has to be a whole number."),
        (
            {"cutover": "window"},
            "cutover_window",
            "Maintenance window: '' is no window. Write it as Sat 02:00-04:00 Europe/Berlin.",
        ),
        ({"conn_id": "elsewhere"}, "conn_id", "elsewhere cannot be used: There is no such connection of type mysql."),
        ({"conn_id": ""}, "conn_id", "Choose a server."),
        ({"colour": "red"}, "", "colour: there is no such option."),
    ],
)
def test_a_wrong_value_is_one_sentence_at_its_field(
    clients: dict[str, Any], database: Database, asked: dict[str, str], field: str, sentence: str
) -> None:
    answer = send(clients["user"], **{"alter": "ADD x INT", **asked})
    assert answer.status_code == 409
    assert answer.json() == {"detail": sentence.format(database.name), "field": field}


def test_whom_nobody_waits_for_any_more_ends_on_the_server(
    clients: dict[str, Any], database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "PLAN_SECONDS", 1.0)
    with connect(database.app_url) as app:
        app.execute_raw("LOCK TABLES t WRITE")
        answer = send(clients["user"], alter="ADD x INT")
        assert answer.status_code == 503
        assert "main did not answer within 1 s. `vreplication plan online-ddl` waits" in answer.json()["detail"]
        waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'CREATE TEMPORARY%'"
        wait_until(lambda: database.admin.value(waiting) == 0, "its statement goes on")
