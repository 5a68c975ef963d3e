"""The password is nowhere but in our memory, the pipe to our child and the connections."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox import orders
from sandbox.databases import Database
from sandbox.workload import Workload
from tests.support.flow import begin, call, command, finish, quick, wait_until
from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, workflows
from vreplication.ui import detail, reading
from vreplication.ui.asking import Answer, Source
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import retrying

pytestmark = pytest.mark.either

__all__ = ["quick"]

ROWS = 200


def descendants(pid: int) -> set[int]:
    """Process ids below `pid`."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            found |= {int(folder.name)} | descendants(int(folder.name))
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_password_shows_nowhere(database: Database, tmp_path: Path) -> None:
    """Command lines of all children, Spark's properties and event log, our logs, the output, the sidecar."""
    with connect(database.app_url) as app:
        orders.create(app, "t")
        orders.fill(app, "t", ROWS)
    with Workload(database.app_url, "t", rows=ROWS, writers=1, readers=0, rate=30) as workload:
        run_and_look(database, tmp_path)
        workload.wait_for(10)
    assert workload.stop().errors == ()


def check_stderr(text: str, form: str) -> None:
    """As JSON all is there, of command and catch-up, and nothing else: neither a bar nor a word of Spark's."""
    if form == "text":
        assert '"level"' not in text
        return
    told = [json.loads(line) for line in text.splitlines()]
    assert {each["workflow"] for each in told} == {"held"}
    assert {"copying", "verifying", "waiting", "complete"} <= {each["phase"] for each in told}
    assert {each["level"] for each in told} <= {"info", "warning"}
    assert all({"time", "level", "workflow", "phase", "message"} <= set(each) for each in told)
    of_catch_up = [each for each in told if each["logger"] == "vreplication.replicate"]
    of_command = [each for each in told if each["logger"] == "vreplication.engine.driver"]
    assert of_catch_up, told
    assert of_command, told
    # Either may be the first to say something.
    assert of_catch_up[0]["process"] != of_command[0]["process"]
    assert of_catch_up[-1]["phase"] not in (None, "copying"), of_catch_up


def run_and_look(database: Database, tmp_path: Path) -> None:
    secret = database.url.password
    events = tmp_path / "events"
    events.mkdir()
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\n")
    words = (
        "--table",
        "t",
        "--alter",
        "ADD COLUMN b INT",
        "--workflow",
        "held",
        "--cutover",
        "manual",
        "--yes",
        "--json",
    )
    # On one server as text in files, on the other as JSON lines.
    form = "text" if database.server.is_mariadb else "json"
    where = {"XDG_STATE_HOME": str(tmp_path / "state"), "SPARK_CONF_DIR": str(conf)}
    running = command(database, "online-ddl", *words, VREPLICATION_LOG_FORMAT=form, **where)
    with connect(database.url) as session:

        def is_waiting() -> bool:
            if running.poll() is not None:
                raise AssertionError(finish(running))
            is_there = layout.exists(session)
            return bool(is_there and session.row(f"SELECT 1 FROM {SIDECAR}.workflow WHERE phase='waiting'"))

        wait_until(is_waiting, "it never waits at the gate")
        lines = {pid: command_line(pid) for pid in descendants(running.pid)}
        assert any("java" in line for line in lines.values()), lines
        assert any("replicate" in line for line in lines.values()), lines
        assert [line for line in lines.values() if secret in line] == []
        assert stored(database, secret) == []
        session.execute(f"INSERT INTO {SIDECAR}.gate_release VALUES ('held', 'test', NOW(6))")
    ended = finish(running)
    assert ended.code == 0, (ended.out[-1000:], ended.err[-1000:])
    assert secret not in ended.out + ended.err
    check_stderr(ended.err, form)
    logs = [p for p in (tmp_path / "state").rglob("*") if p.is_file()]
    assert len(logs) >= 2
    written = [*logs, *(p for p in events.rglob("*") if p.is_file())]
    assert any(p.is_relative_to(events) for p in written), "Spark wrote no event log"
    assert [p for p in written if secret.encode() in p.read_bytes()] == []


def stored(database: Database, secret: str) -> list[str]:
    """Sidecar tables that hold the secret."""
    found = []
    for (name,) in database.admin.rows(f"SHOW TABLES FROM {SIDECAR}"):
        rows = database.admin.named_rows(f"SELECT * FROM {SIDECAR}.`{name}`")
        if secret in json.dumps(rows, default=str):
            found.append(str(name))
    return found


SECRETIVE = [
    "SELECT id, SLEEP(60), AES_ENCRYPT('x', 'Sup3r-secret') FROM t",
    "SELECT id, SLEEP(60) /* CREATE USER joe IDENTIFIED BY 'Sup3r-secret' */ FROM t",
]


@pytest.mark.parametrize("statement", SECRETIVE)
def test_the_secrets_of_who_blocks_show_nowhere(
    database: Database,
    quick: None,
    statement: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In what is said, the sidecar, the journal, `status` in words and as JSON, the logs, and the page's JSON.

    The next attempt comes when who blocked has been killed, and not before.
    """
    monkeypatch.setattr(retrying, "CUTOVER_RETRY_SECONDS", (3600.0,))
    caplog.set_level(logging.INFO)
    with connect(database.app_url) as app, connect(database.url) as session:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
        app.execute_raw("INSERT INTO t VALUES (1,'a'),(2,'b')")
        run = begin(database, "t", "ADD COLUMN w INT", cutover="manual")
        wait_until(lambda: phase(session, run.workflow) == "waiting", "it does not get to the gate")
        blocking = threading.Thread(target=block, args=(database, app, statement), daemon=True)
        blocking.start()
        try:
            operate.release(database.url, run.workflow, "dba")
            wait_until(lambda: any("KILL" in text for text in run.said), f"nobody is named: {run.said}")
            shown: list[object] = [read_page(session, database, run.workflow)["gate"]]
            for words in (["status", run.workflow], ["status", run.workflow, "--json"]):
                shown.append(call(database, *words, XDG_STATE_HOME=str(tmp_path)))
            kept = stored(database, "Sup3r-secret")
            said = repr([run.said, *shown])
        finally:
            database.admin.kill(app.id)
            blocking.join(30)
    assert run.result().event == "complete"
    assert all("***" in repr(each) for each in (run.said, *shown)), said
    assert (kept, stored(database, "Sup3r-secret")) == ([], [])
    assert "Sup3r" not in said + caplog.text + json.dumps(journal_of(database, run.workflow), default=str)


def block(database: Database, app: Session, statement: str) -> None:
    """Until it is killed."""
    with contextlib.suppress(VReplicationError):
        app.execute_raw(statement)


def phase(session: Session, workflow: str) -> str:
    row = workflows.find(session, workflow) if layout.exists(session) else None
    return str(row.phase) if row else ""


def read_page(session: Session, database: Database, workflow: str) -> dict[str, Any]:
    """What the page answers, as JSON."""
    source = Source(conn_id="main", url=database.url)
    answer = Answer(source=source, value=reading.detail(session, workflow=workflow))
    return dict(detail.detail(answer))


def journal_of(database: Database, workflow: str) -> list[dict[str, Any]]:
    with connect(database.url) as session:
        return journal.read(session, workflow)


def test_a_failed_login_does_not_tell_the_password(database: Database) -> None:
    ended = finish(
        command(database, "status", VREPLICATION_SOURCE=str(database.url), VREPLICATION_PASSWORD="wrong-secret-word")
    )
    assert ended.code == 2
    assert "wrong-secret-word" not in ended.out + ended.err
    assert "Access denied" in ended.err
    assert os.linesep.join(ended.err.splitlines()[:1]).startswith("vreplication:")
