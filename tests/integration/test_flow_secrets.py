"""The password is nowhere but in our memory, the pipe to our child and the connections."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sandbox import orders
from sandbox.databases import Database
from sandbox.workload import Workload
from tests.support.flow import command, finish, wait_until
from vreplication.mysql.session import connect
from vreplication.settings import SIDECAR
from vreplication.state import sidecar

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
    running = command(database, "online-ddl", *words, XDG_STATE_HOME=str(tmp_path / "state"), SPARK_CONF_DIR=str(conf))
    with connect(database.url) as session:

        def is_waiting() -> bool:
            if running.poll() is not None:
                raise AssertionError(finish(running))
            is_there = sidecar.exists(session)
            return bool(is_there and session.row(f"SELECT 1 FROM {SIDECAR}.workflow WHERE phase='waiting'"))

        wait_until(is_waiting, "it never waits at the gate", 120)
        lines = {pid: command_line(pid) for pid in descendants(running.pid)}
        assert any("java" in line for line in lines.values()), lines
        assert any("replicate" in line for line in lines.values()), lines
        assert [line for line in lines.values() if secret in line] == []
        assert stored(database, secret) == []
        session.execute(f"INSERT INTO {SIDECAR}.gate_release VALUES ('held', 'test', NOW(6))")
    ended = finish(running)
    assert ended.code == 0, (ended.out[-1000:], ended.err[-1000:])
    assert secret not in ended.out + ended.err
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


def test_a_failed_login_does_not_tell_the_password(database: Database) -> None:
    ended = finish(
        command(database, "status", VREPLICATION_SOURCE=str(database.url), VREPLICATION_PASSWORD="wrong-secret-word")
    )
    assert ended.code == 2
    assert "wrong-secret-word" not in ended.out + ended.err
    assert "Access denied" in ended.err
    assert os.linesep.join(ended.err.splitlines()[:1]).startswith("vreplication:")
