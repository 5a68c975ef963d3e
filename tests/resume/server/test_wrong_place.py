"""Places where a workflow must not go on: another server's log, a log that has lost its end, a table made anew."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import socket
from pathlib import Path

import pytest
from live_setup import WORDS, WORKFLOW, Live

from sandbox import orders
from sandbox.databases import Database
from sandbox.servers import RunningServer
from tests.support import run_ddl
from tests.support.flow import Ended, Run, call, paused_at
from tests.support.private_server import forget_logs
from vreplication import names
from vreplication.binlog.events import Position
from vreplication.engine import log_kept
from vreplication.mysql.session import Session, connect
from vreplication.planning.spec import Spec
from vreplication.state import journal

pytestmark = pytest.mark.either


def stopped_at(live: Live, point: str) -> Ended:
    """The command, ended by Ctrl-C when it stands there."""
    with paused_at(live.pauses, point):
        command = live.start(is_forked=False)
        live.reached(point, command)
        command.process.send_signal(signal.SIGINT)
    ended = command.finish()
    assert ended.code == 130, ended
    return ended


@pytest.mark.slow
def test_the_sidecar_of_a_clone_is_of_another_server(live: Live, tmp_path: Path) -> None:
    """All our tables are there, as they were; the log is not."""
    stopped_at(live, "workflow.copied")
    clone = cloned(live.database, tmp_path / "clone")
    try:
        elsewhere = dataclasses.replace(live.database, server=clone, _admin=None)
        command = run_ddl.start(elsewhere, live.logs, (*WORDS, "--chunk-rows", "150"))
        ended = command.finish()
        assert ended.code in (1, 2), ended
        assert "server" in ended.last["reason"]
        with connect(elsewhere.app_url) as app:
            assert {"orders", names.shadow_table("orders")} <= {str(t) for (t,) in app.rows("SHOW TABLES")}
            assert app.row("SHOW COLUMNS FROM orders LIKE 'region'") is None
    finally:
        clone.stop()
    live.complete(live.start())
    live.prove()


def cloned(database: Database, folder: Path) -> RunningServer:
    """A second server from a copy of the first one's files, with a log of its own."""
    server, port = database.server, free_port()
    assert server.folder
    database.close()
    server.stop()
    shutil.copytree(server.folder, folder, ignore=shutil.ignore_patterns("*.sock", "*.sock.lock", "auto.cnf"))
    server.restart()
    clone = dataclasses.replace(server, folder=folder, port=port).restart()
    with clone.admin() as session:
        session.execute_raw(forget_logs(clone.flavor))
    return clone


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_server_that_lost_the_end_of_its_log(live: Live) -> None:
    """As after a power cut with sync_binlog=0. What is missing cannot be applied, so the workflow ends."""
    with paused_at(live.pauses, "workflow.copied"):
        command = live.start()
        live.reached("workflow.copied", command)
        live.workload.wait_for(10)
        begin = live.begin
        live.kill_server()
        cut_off(live.database.server, begin)
    live.wait_lost()
    live.restart_server()
    ended = command.finish()
    assert ended.code == 1, ended
    assert "binary log" in ended.last["reason"], ended.last
    assert "cancel" in ended.last["reason"], ended.last
    live.workload.wait_for(10)
    with connect(live.database.app_url) as app:
        assert app.row("SHOW COLUMNS FROM orders LIKE 'region'") is None
    assert call(live.database, "cancel", WORKFLOW, "--yes").code == 0
    with connect(live.database.app_url) as app:
        assert live.tables(app) == []


def cut_off(server: RunningServer, end: Position) -> None:
    """The log ends there, and no later file is there."""
    assert server.folder
    files = sorted(p for p in (server.folder / "data").glob("binlog.0*") if p.suffix[1:].isdigit())
    assert files[-1].name == end.file, "the log was rotated meanwhile"
    with files[-1].open("r+b") as file:
        file.truncate(end.offset)


@pytest.mark.in_turn("mysql")
def test_a_table_made_anew_is_another_one(live: Live) -> None:
    """Of the same name and definition; the copy of the old one is no copy of it."""
    stopped_at(live, "workflow.copied")
    live.workload.stop()
    with connect(live.database.app_url) as app:
        make_anew(app)
        before = app.rows("SELECT COUNT(*), MAX(id) FROM orders")
        ended = live.start().finish()
        assert ended.code == 1, ended
        assert "neither the one" in ended.last["reason"], ended.last
        assert app.rows("SELECT COUNT(*), MAX(id) FROM orders") == before
    assert call(live.database, "cancel", WORKFLOW, "--yes").code == 0


def make_anew(app: Session) -> None:
    for statement in (
        "CREATE TABLE again LIKE orders",
        "INSERT INTO again SELECT * FROM orders WHERE id < 1000",
        "DROP TABLE orders",
        "RENAME TABLE again TO orders",
    ):
        app.execute_raw(statement)


@pytest.mark.parametrize(
    ("seconds", "words"), [(7200, "keeps 2 hours of its binary log"), (864000, "10 days"), (0, None)]
)
def test_how_long_it_may_stand_still_is_told(live: Live, seconds: int, words: str | None) -> None:
    admin = live.database.admin
    before = admin.value("SELECT @@global.binlog_expire_logs_seconds")
    admin.execute_raw(f"SET GLOBAL binlog_expire_logs_seconds={seconds}")
    try:
        with connect(live.database.url) as session:
            told = log_kept.limit(session)
    finally:
        admin.execute_raw(f"SET GLOBAL binlog_expire_logs_seconds={before}")
    assert told == "" if words is None else words in told


def test_a_purged_log_is_told_while_it_is_not_needed(quick: None, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at when catch-up begins, and hourly: it goes on, and the journal has it."""
    monkeypatch.setattr(log_kept, "gone", lambda *_, **__: "binlog.000001:4")
    run = Run(Spec(table="orders", alter=orders.ALTER, workflow=WORKFLOW)).start(live.database.url)
    assert run.result().event == "complete"
    with connect(live.database.url) as session:
        told = [e["details"] for e in journal.read(session, WORKFLOW) if e["event"] == "log purged"]
    assert len(told) == 1
    assert "binlog.000001:4" in told[0]
