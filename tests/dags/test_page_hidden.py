"""A workflow of a kind that somebody may not look at, in a real browser: what is said of it stays true."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from page_setup import WORKFLOW, Home, airflow, clients, home, patient, session, workflow

from sandbox import browser
from tests.support.flow import wait_until
from tests.support.rows import make_move
from vreplication.mysql.session import Session
from vreplication.state.workflows import WorkflowRow

pytestmark = [pytest.mark.slow, pytest.mark.only_on("mariadb")]

__all__ = ["airflow", "clients", "home", "patient", "session", "workflow"]


@pytest.fixture
def address(home: Home) -> Iterator[str]:
    """Where the page is served, as by Airflow's API server."""
    import uvicorn
    from fastapi import FastAPI

    from vreplication.ui.app import create_app

    whole = FastAPI()
    whole.mount("/vreplication", create_app(home))
    server = uvicorn.Server(uvicorn.Config(whole, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the page is not served")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.force_exit = server.should_exit = True
    thread.join(30)


@pytest.fixture
def page(address: str, clients: dict[str, Any]) -> Iterator[Any]:
    """Of a viewer."""
    token = {"name": "_token", "value": clients["viewer"].cookies["_token"], "url": address}
    try:
        with browser.opened() as chromium, chromium.new_context(base_url=f"{address}/vreplication/") as context:
            context.add_cookies([token])
            yield context.new_page()
    except browser.BrowserMissing as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


def wait_until_heard(page: Any) -> None:
    """Asked from here: what a page asks itself by a timer is evaluated under its own policy, which forbids that."""
    wait_until(lambda: page.evaluate("isHeard"), "the page has not looked again")


def test_it_is_a_right_that_is_missing_and_no_login(
    page: Any, airflow: Any, monkeypatch: pytest.MonkeyPatch, session: Session, workflow: WorkflowRow
) -> None:
    """Also when the page has looked again."""

    def is_authorized_dag(*, method: str, details: Any, **_: Any) -> bool:
        return (method, details.id) == ("GET", "online_ddl")

    monkeypatch.setattr(airflow, "is_authorized_dag", is_authorized_dag)
    make_move(session, "move-1", "shop2", number=2)
    page.goto("workflows/move-1")
    wait_until_heard(page)
    told = page.locator("body").inner_text()
    assert "Looking at move-1 takes the right to read the DAG move_tables." in told
    assert "login" not in told
    page.goto(f"workflows/{WORKFLOW}")
    wait_until_heard(page)
    assert page.locator("button.act:enabled").count() == 0
    assert "login" not in page.locator("body").inner_text()
