"""Fixtures for tests of the page: a home for it, a browser for each kind of person, a sidecar with a workflow.

What must stay true: Airflow lives in a folder of its own, made when a test first asks for it, once a process.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

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
from tests.support.rows import workflow_row
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.state import layout, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import Run, asking
from vreplication.ui.asking import Source
from vreplication.ui.lakes import Lake
from vreplication.ui.pending import AskedRun
from vreplication.ui.pulse import Silence

SCRIPT = "<script>alert(1)</script>"
WORKFLOW = "wf-1"
RUN = Run("online_ddl", "manual__1")
ALTER = "ADD COLUMN c INT COMMENT '<b>\"&'"


class Home:
    """Where the sources are, for a test."""

    def __init__(self) -> None:
        self.known: list[Source] = []
        self.failed: set[str] = set()
        self.quiet: list[Silence] = []
        self.told: list[Lake] = []
        self.asked: list[AskedRun] = []
        self.planned: dict[Run, list[tuple[str, str]]] = {}

    def sources(self) -> list[Source]:
        return self.known

    def source(self, conn_id: str) -> Source | None:
        return next((s for s in self.known if s.conn_id == conn_id), None)

    def workflows_of_run(self, run: Run) -> list[tuple[str, str]] | None:
        return [("main", WORKFLOW)] if run == RUN else self.planned.get(run)

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
    return auth_manager()


@functools.cache
def auth_manager() -> Any:
    """Once, although each file of tests has the fixture as its own."""
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
def clients(home: Home) -> dict[str, Any]:
    """A browser for each kind of person. Each has a login cookie, but nobody."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from vreplication.ui.app import create_app

    whole = FastAPI()
    whole.mount("/vreplication", create_app(home))
    made: dict[str, Any] = {"nobody": TestClient(whole, base_url="http://testserver/vreplication")}
    for role in ("viewer", "user", "admin"):
        token = auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"a-{role}", role=role))
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
