"""Fixtures: one shop under live writes, one browser and one login for all tests of this folder.

What must stay true: a page of ours that throws, or complains on the console, fails the test that looked at it; a test
that fails tells what its tabs showed; what was started ends with the last test of the folder, for it takes its part of
a core from all tests that follow (pytest ends what has a package's scope with the session, here).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from airflow_ui import log_in
from playwright.sync_api import Browser, StorageState, expect
from tabs import OpenTab, Tab

from sandbox import browser, servers
from sandbox.databases import Database, create_database
from sandbox.deployment import Deployment
from sandbox.servers import RunningServer
from tests.support.dag_runs import unpause
from tests.support.order import is_last
from tests.support.shop import Shop
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import layout

_FOLDER, _SHOP = contextlib.ExitStack(), contextlib.ExitStack()
"""What ends when the folder is left for good; and of that, what does before the shop's server ends."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    if is_last(item, lambda other: other.path.parent == item.path.parent):
        _end()


def pytest_sessionfinish() -> None:
    _end()


def _end() -> None:
    _SHOP.close()
    _FOLDER.close()


_MILLIS = 120_000
# A machine that runs three tests at a time is slow, and a state that has been reached is not waited for.
expect.set_options(timeout=_MILLIS)


@pytest.fixture(scope="package")
def database(server: RunningServer) -> Iterator[Database]:
    made = create_database(server, "shop" if server.is_ours else "")
    _SHOP.callback(made.drop)
    yield made
    _SHOP.close()


@pytest.fixture(scope="package")
def shop(airflow: Deployment, database: Database) -> Shop:
    unpause(airflow, "online_ddl")
    found = Shop(airflow, database, "shop")
    _SHOP.enter_context(found.workload)
    return found


@pytest.fixture(scope="package")
def archive(airflow: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A schema on a server without a shop, for workflows that nobody works on; its connection is called archive."""
    server = servers.start("mariadb", tmp_path_factory.mktemp("archive") / "server")
    _FOLDER.callback(server.stop)
    made = create_database(server, "archive")
    _FOLDER.callback(made.close)
    airflow.add_connection("archive", made.url)
    return made


@pytest.fixture
def session(archive: Database) -> Iterator[Session]:
    """Of a sidecar without a row, in the archive."""
    with connect(archive.url) as opened:
        archive.admin.execute_raw(f"DROP DATABASE IF EXISTS {SIDECAR}")
        layout.install(opened)
        # A slow browser may take longer between two questions than a session of ours may be idle.
        opened.execute_raw("SET SESSION wait_timeout=3600")
        yield opened


@pytest.fixture(scope="package")
def chromium() -> Browser:
    try:
        return _FOLDER.enter_context(browser.opened())
    except browser.BrowserMissing as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


@pytest.fixture(scope="package")
def login(chromium: Browser, airflow: Deployment) -> StorageState:
    """What a browser keeps of somebody who has logged in through Airflow's own form."""
    with chromium.new_context() as context:
        context.set_default_timeout(_MILLIS)
        log_in(context.new_page(), airflow, "admin")
        return context.storage_state()


@pytest.fixture
def open_tab(chromium: Browser, airflow: Deployment, login: StorageState, request: Any) -> Iterator[OpenTab]:
    """Opens tabs of the administrator; keywords are those of a browser context (viewport, color_scheme, …)."""
    made: list[Tab] = []

    def open_one(path: str = "", *, width: int = 1280, height: int = 900, **more: Any) -> Tab:
        context = chromium.new_context(
            base_url=airflow.url, storage_state=login, viewport={"width": width, "height": height}, **more
        )
        context.set_default_timeout(_MILLIS)
        made.append(Tab(context))
        if path:
            made[-1].page.goto(path)
        return made[-1]

    yield open_one
    if request.node.stash.get(FAILED, False):
        print("\n".join(tab.story() for tab in made))
    for tab in made:
        tab.close()
    assert [problem for tab in made for problem in tab.problems] == []


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report
