"""What the commands say to who has just begun: the wrong place, a user without grants, a server that logs otherwise."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sandbox.databases import Database
from tests.support.oracle import settings
from tests.support.rows import workflow_row
from vreplication import masking
from vreplication.cli import main, options
from vreplication.feed import broker
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.scheduler import queueing
from vreplication.settings import SIDECAR
from vreplication.state import layout, workflows
from vreplication.workflows.changefeed.plan import make_feed_plan
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.either

Told = tuple[int, str]
Call = Callable[..., Told]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """A command as this user: exit code, and what it says."""

    def call(url: SourceUrl, *words: str) -> Told:
        place = f"mysql+pymysql://{url.user}@{url.host}:{url.port}/{url.database}"
        monkeypatch.setenv(options.SOURCE, place)
        monkeypatch.setenv(options.PASSWORD, url.password)
        code = main.run([*words, "--json"])
        *_, last = capsys.readouterr().out.splitlines()
        return code, str(json.loads(last)["reason"])

    yield call
    masking.forget()


@pytest.fixture
def poor(database: Database) -> Iterator[SourceUrl]:
    """A user that may do nothing but read the application's tables."""
    name, password = f"poor{secrets.token_hex(4)}", secrets.token_hex(8)
    database.admin.execute_raw(f"CREATE USER {name}@'%' IDENTIFIED BY '{password}'")
    database.admin.execute_raw(f"GRANT SELECT ON `{database.name}`.* TO {name}@'%'")
    yield replace(database.url, user=name, password=password)
    database.admin.execute_raw(f"DROP USER {name}@'%'")


@pytest.fixture
def free_port() -> Iterator[int]:
    """Where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def test_a_place_where_no_server_is(database: Database, call: Call, free_port: int) -> None:
    """It was never there to be lost."""
    code, words = call(replace(database.url, host="127.0.0.1", port=free_port, unix_socket=None), "status")
    assert (code, "was lost" in words) == (1, False)
    assert words.startswith(f"The server at 127.0.0.1:{free_port} cannot be reached: ")
    assert words.endswith(" Check that it runs, and the URL's host and port.")


@pytest.mark.parametrize("words", [("status",), ("status", "w1"), ("queue",), ("housekeeping",), ("pause", "w1")])
def test_who_may_not_see_workflows_is_not_told_that_there_are_none(
    database: Database, poor: SourceUrl, call: Call, words: tuple[str, ...]
) -> None:
    with connect(database.url) as session:
        layout.install(session)
        workflows.create(session, workflow_row("w1", source_schema=database.name))
    code, told = call(poor, *words)
    assert (code, f"The user may not read our own schema {SIDECAR}" in told) == (2, True), told
    assert f"GRANT SELECT ON `{SIDECAR}`.*" in told


@pytest.mark.parametrize("words", [("status",), ("pause",), ("cancel", "--yes"), ("resume",), ("release",)])
def test_what_waits_in_the_queue_has_not_begun(database: Database, call: Call, words: tuple[str, ...]) -> None:
    """There is such a workflow, and each command would have said that there is none."""
    with connect(database.url) as session:
        given = {"table": "t", "alter": "ADD x INT", "workflow": "w1"}
        queueing.submit(session, queueing.make_entry(database.name, given), "ann")
    code, told = call(database.url, words[0], "w1", *words[1:])
    assert (code, told.startswith("Workflow w1 is in the queue and has not begun.")) == (2, True), told
    assert "`vreplication queue --remove w1`" in told


def test_who_may_not_make_our_schema_is_told_what_to_grant(poor: SourceUrl, call: Call) -> None:
    code, told = call(poor, "submit", "--table", "t", "--alter", "ADD x INT")
    assert (code, f"The user may not make our own schema {SIDECAR}" in told) == (2, True), told
    assert "sql/grants/" in told


def test_a_broker_that_is_away_is_said_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """Three checks waited for it, one behind the other, and two of them spoke of the topic."""
    monkeypatch.setattr(broker, "_SECONDS", 1.0)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    spec = make_feed_spec(sink=f"kafka://127.0.0.1:{free_port}/shop", tables=(f"{database.name}.t",))
    with connect(database.url) as session:
        refused = [each for each in make_feed_plan([session], spec).refusals if each.name != "row metadata"]
    [one] = refused
    assert one.sentence.startswith(f"No broker of 127.0.0.1:{free_port} answers: "), one
    assert "Check that Kafka runs" in one.cure


def test_a_server_that_logs_statements_is_refused_by_name(database: Database, call: Call) -> None:
    """Also an ALTER that the server does in place: what proves it could not be written."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    with settings(database, binlog_format="STATEMENT"):
        code, told = call(database.url, "online-ddl", "--table", "t", "--alter", "ADD x INT", "--yes")
    assert (code, "binlog_format is STATEMENT." in told) == (2, True), told
    assert "SET GLOBAL binlog_format=ROW" in told
