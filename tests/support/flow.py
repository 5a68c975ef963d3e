"""Runs an online DDL the way the command line does, in this process or as a command of its own.

What must stay true: the database user is the one of sql/grants/; whatever a test leaves running is ended here, by
process id.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from sandbox.databases import Database
from sandbox.processes import descendants
from tests.support import local_spark
from tests.support.forked import Forked
from tests.support.hurried import hurry
from vreplication.cutover.attempt import CutOver
from vreplication.engine.replicate import replicate
from vreplication.engine.result import Result
from vreplication.errors import VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.spec import Spec
from vreplication.schema.shadow import comparable
from vreplication.state import verdicts
from vreplication.state.verdicts import Verdict
from vreplication.workflows.online_ddl import run as online_ddl
from vreplication.workflows.online_ddl import switching


class Going(Protocol):
    """A run in a thread."""

    @property
    def is_going(self) -> bool: ...

    def result(self, timeout_seconds: float = ...) -> Result: ...


class ThreadChild:
    """Catch-up in a thread, in the place of engine.child.ReplicateProcess: no second interpreter to start."""

    def __init__(self, url: SourceUrl, workflow: str) -> None:
        self._url, self._workflow = url, workflow
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self.pid = None

    def load(self) -> None: ...

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            replicate(self._url, self._workflow, self._stop)
        except VReplicationError:
            # Noted in the sidecar, where the driver reads it, but for what may be a cut-over: then it is tried again.
            self._has_failed = True

    def keep_alive(self) -> None:
        if self._has_failed and self._thread is not None and not self._thread.is_alive():
            self._has_failed = False
            self.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(30)
            self._thread = None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy and verify without a JVM, catch-up in a thread: for tests that are about something else."""
    import pyspark

    from vreplication.engine import driver
    from vreplication.workflows import operate

    monkeypatch.setattr(pyspark, "InheritableThread", threading.Thread)
    monkeypatch.setattr(online_ddl, "SparkStart", local_spark.LocalStart)
    monkeypatch.setattr(operate, "SparkStart", local_spark.LocalStart)
    monkeypatch.setattr(driver, "ReplicateProcess", ThreadChild)
    hurry(monkeypatch.setattr)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut-over may be held longer than writers may wait."""
    monkeypatch.setattr(switching, "CutOver", functools.partial(CutOver, deadline_seconds=60.0))


@dataclass(slots=True)
class Run:
    """An online DDL under way in a thread; `result` waits for it."""

    spec: Spec
    stop: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _result: Result | None = None
    _verdict: Verdict | None = None

    def start(self, url: SourceUrl) -> Run:
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()
        return self

    def _run(self, url: SourceUrl) -> None:
        result = online_ddl.run(self.spec, url, stop=self.stop, notify=self.said.append)
        if result.event == "complete":
            with connect(url) as session:
                self._verdict = verdicts.load(session, self.workflow)
        self._result = result

    def result(self, timeout_seconds: float = 120.0) -> Result:
        found = self.ended(timeout_seconds)
        # What verification had to copy again was wrong before.
        assert self._verdict is None or self._verdict.mismatches == 0, self._verdict
        return found

    def ended(self, timeout_seconds: float = 120.0) -> Result:
        """Also where verification had to copy rows again."""
        assert self._thread is not None
        self._thread.join(timeout_seconds)
        assert self._result is not None, f"the run does not end: {self.said}"
        return self._result

    @property
    def is_going(self) -> bool:
        return self._result is None

    @property
    def workflow(self) -> str:
        assert self.spec.workflow
        return self.spec.workflow


def begin(database: Database, table: str, alter: str, **more: Any) -> Run:
    """Start an online DDL in a thread of this process."""
    given = {"table": quoted(table), "alter": alter, "workflow": f"t-{secrets.token_hex(4)}", **more}
    return Run(Spec(**given)).start(database.url)


def quoted(table: str) -> str:
    return ident(table)


@contextmanager
def paused_at(folder: Path, *names: str) -> Iterator[None]:
    """Hold whoever reaches these points, until the block ends."""
    for name in names:
        # Of whoever stood there in a test before.
        (folder / f"{name}.reached").unlink(missing_ok=True)
        (folder / name).touch()
    try:
        yield
    finally:
        for name in names:
            let_go(folder, name)


def let_go(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)


def wait_reached(folder: Path, name: str, run: Going | None = None, timeout_seconds: float = 180.0) -> int:
    """Wait until somebody stands at the point; returns its process id. Fails when `run` ends before."""
    mark = folder / f"{name}.reached"

    def is_there() -> bool:
        assert run is None or run.is_going, f"the run ended before {name}: {run and run.result()}"
        return mark.exists() and mark.read_text() != ""

    wait_until(is_there, f"nobody reached {name}", timeout_seconds)
    return int(mark.read_text())


def wait_until(
    is_so: Callable[[], object], otherwise: str, timeout_seconds: float = 180.0, pause_seconds: float = 0.02
) -> None:
    """Ask again and again, the longer it takes the more rarely (five pauses at the most): most questions are queries.

    Raises AssertionError with `otherwise` after the time.
    """
    waited, seconds, pause = threading.Event(), 0.0, pause_seconds
    while not is_so():
        if seconds > timeout_seconds:
            raise AssertionError(otherwise)
        waited.wait(pause)
        seconds, pause = seconds + pause, min(1.2 * pause, 5 * pause_seconds)


@contextmanager
def settings(database: Database, values: dict[str, object]) -> Iterator[None]:
    """Global settings for the time of a block; sessions opened inside have them."""
    admin = database.admin
    before = {name: admin.value(f"SELECT @@global.{name}") for name in values}
    try:
        for name, value in values.items():
            admin.execute_raw(f"SET GLOBAL {name}={value}")
        yield
    finally:
        for name, value in before.items():
            admin.execute_raw(f"SET GLOBAL {name}={value}")


def purge_logs(database: Database) -> None:
    """Leave nothing but the newest binary log."""
    for _ in range(2):
        database.admin.execute_raw("FLUSH BINARY LOGS")
    newest = database.admin.rows("SHOW BINARY LOGS")[-1][0]

    def is_purged() -> bool:
        # A file that a dump thread still has open is passed over silently.
        database.admin.execute_raw(f"PURGE BINARY LOGS TO '{newest}'")
        return len(database.admin.rows("SHOW BINARY LOGS")) == 1

    wait_until(is_purged, "the logs are not purged")


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for pause points, known to this process and the children that it starts."""
    folder = tmp_path / "pauses"
    folder.mkdir()
    monkeypatch.setenv("VREPLICATION_PAUSE_DIR", str(folder))
    return folder


def command(database: Database, *words: str, **environment: str) -> subprocess.Popen[str]:
    """`vreplication …` as a process of its own; the password travels in the environment."""
    env = {
        **os.environ,
        "VREPLICATION_SOURCE": str(database.user_url),
        "VREPLICATION_PASSWORD": database.url.password,
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "vreplication", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=env,
    )


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1]


def finish(process: subprocess.Popen[str] | Forked, timeout_seconds: float = 180.0) -> Ended:
    """Wait for a command; kill it when it does not end."""
    try:
        out, err = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the command does not end: {_killed(process)}") from None
    return Ended(process.returncode, out, err)


def _killed(process: subprocess.Popen[str] | Forked) -> str:
    """Kill it with all that it has started, which would keep its pipes open; the end of what it said."""
    for each in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    return f"{out[-2000:]} {err[-2000:]}"


def call(database: Database, *words: str, **environment: str) -> Ended:
    """Run a command to its end."""
    return finish(command(database, *words, **environment))


def altered_copy(session: Session, database: Database, table: str, alter: str, name: str) -> None:
    """What a plain ALTER TABLE makes of a frozen copy of `table`, as table `name`."""
    session.execute_raw(f"CREATE TABLE {ident(name)} LIKE {ident(table)}")
    columns = session.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_schema=%s AND table_name=%s "
        "AND generation_expression IN ('') OR (table_schema=%s AND table_name=%s AND generation_expression IS NULL) "
        "ORDER BY ordinal_position",
        (database.name, table, database.name, table),
    )
    names = ",".join(ident(c) for (c,) in columns)
    session.execute_raw(f"INSERT INTO {ident(name)} ({names}) SELECT {names} FROM {ident(table)}")
    session.execute_raw(f"ALTER TABLE {ident(name)} {alter}")


def definition(session: Session, table: str) -> str:
    """SHOW CREATE TABLE without the table's name and its AUTO_INCREMENT."""
    found = session.row(f"SHOW CREATE TABLE {ident(table)}")
    assert found is not None
    return comparable(str(found[1]), table)


_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year", "bit")


def contents(session: Session, table: str) -> list[tuple[Any, ...]]:
    """All rows, every value exactly (text and binary as their bytes), in a stable order."""
    columns = session.rows(
        "SELECT column_name, LOWER(data_type) FROM information_schema.columns "
        "WHERE table_schema=DATABASE() AND table_name=%s ORDER BY ordinal_position",
        (table,),
    )
    shown = ",".join(_exact(ident(name), str(kind)) for name, kind in columns)
    return sorted(session.rows(f"SELECT {shown} FROM {ident(table)}"), key=repr)


def _exact(column: str, kind: str) -> str:
    if kind in ("float", "double"):
        return f"{column}+0e0"
    return f"{column}+0" if kind in _NUMBERS else f"HEX({column})"


def until_taken(session: Session, statement: str) -> None:
    """The server takes a moment to see that the branch's connection has gone."""
    refused: list[SqlError] = []

    def is_taken() -> bool:
        try:
            session.execute_raw(statement)
        except SqlError as error:
            refused.append(error)
            return False
        return True

    try:
        wait_until(is_taken, f"{statement} is not taken")
    except AssertionError as error:
        known = session.rows("XA RECOVER")
        raise AssertionError(f"{error}: first {refused[0]}, last {refused[-1]}; prepared: {known}") from None
