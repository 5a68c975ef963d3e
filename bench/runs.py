"""Whole runs of `vreplication online-ddl`, as a user starts them, with a watch beside them.

What must stay true: every time is taken where the work is done: chunks by the server's clock in the ledger, phases
from the command's own log, the whole by a stopwatch around the process; a process that was started here is ended here.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cpu
from bench.table import NAME
from sandbox.databases import Database
from vreplication import pausepoints
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.progress.snapshot import APPLY
from vreplication.settings import SIDECAR
from vreplication.state import gate, markers, workflows

ALTER = "ENGINE=InnoDB"
_PHASE = re.compile(r"^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d),(\d{3}) .*: workflow \S+: (\w+)$", re.MULTILINE)
_LIMIT_SECONDS = 900.0
_CHUNKS_BEFORE = 5


@dataclass(slots=True, kw_only=True)
class Run:
    """One command. first, last: when the first chunk was opened, and the last one landed (epoch seconds); landed: the
    first one did. helpers: processes that are not its children and whose CPU time is its own.
    """

    process: subprocess.Popen[bytes]
    workflow: str
    folder: Path
    began: float
    first: float = 0.0
    last: float = 0.0
    landed: float = 0.0
    chunks: int = 0
    copy_path: str = ""
    ended: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    cpu: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    helpers: tuple[int, ...] = ()

    @property
    def copy_seconds(self) -> float:
        return self.last - self.first

    def copy_cpu(self) -> dict[str, float]:
        """CPU seconds by role while rows were copied, to a quarter of a second; `machine`: of everybody together."""
        inside = [used for at, used in self.cpu if self.first - 0.25 <= at <= self.last + 0.25]
        return cpu.between(inside[0], inside[-1]) if len(inside) > 1 else {}

    def phases(self) -> dict[str, float]:
        """When each phase was entered first (epoch seconds)."""
        text = (self.folder / "vreplication" / f"{self.workflow}.cli.log").read_text()
        found: dict[str, float] = {}
        for match in _PHASE.finditer(text):
            *moment, millis, phase = match.groups()
            found.setdefault(phase, calendar.timegm((*map(int, moment), 0, 0, 0)) + int(millis) / 1000)
        return found

    def verify_seconds(self) -> float:
        found = self.phases()
        return found["waiting"] - found["verifying"]

    def around_seconds(self) -> float:
        """All that is neither copying nor verifying, from the command's start to its end."""
        return self.ended - self.began - self.copy_seconds - self.verify_seconds()

    def parts(self) -> dict[str, float]:
        """Where the time around the copy goes."""
        found = self.phases()
        return {
            "to_copying": found["copying"] - self.began,
            "to_first_chunk": self.first - found["copying"],
            "to_verifying": found["verifying"] - self.last,
            "waiting": found["cutting_over"] - found["waiting"],
            "cutting_over": found["complete"] - found["cutting_over"],
            "ending": self.ended - found["complete"],
        }


@contextlib.contextmanager
def started(
    database: Database, folder: Path, *options: str, pauses: Path | None = None, table: str = NAME
) -> Iterator[Run]:
    """Start the command; end it, if it still runs, when the block does. `pauses`: the folder of its pause points."""
    workflow = f"bench-{secrets.token_hex(3)}"
    words = ["online-ddl", "--table", table, "--alter", ALTER, "--yes", "--json", "--workflow", workflow, *options]
    environment = {
        **os.environ,
        "VREPLICATION_SOURCE": str(database.user_url),
        "VREPLICATION_PASSWORD": database.url.password,
        "XDG_STATE_HOME": str(folder),
        "TZ": "UTC",
        **({pausepoints.VARIABLE: str(pauses)} if pauses else {}),
    }
    began = time.time()
    with (folder / f"{workflow}.out").open("wb") as out, (folder / f"{workflow}.err").open("wb") as err:
        command = [sys.executable, "-m", "vreplication", *words]
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    run = Run(process=process, workflow=workflow, folder=folder, began=began)
    try:
        yield run
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def follow(
    run: Run, session: Session, server_pid: int, until: Callable[[str], bool], limit: float = _LIMIT_SECONDS
) -> None:
    """Look at the ledger until the phase is the wanted one, or the command ends."""
    deadline = time.monotonic() + limit
    while run.process.poll() is None and time.monotonic() < deadline:
        run.cpu.append(
            (time.time(), {**cpu.used(server_pid, run.process.pid, run.helpers), "machine": cpu.of_machine()})
        )
        with contextlib.suppress(SqlError):
            _look(run, session)
            phase = session.value(f"SELECT phase FROM {SIDECAR}.workflow WHERE id=%s", (run.workflow,))
            if phase is not None and until(str(phase)):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(0.25)
    run.ended = time.time()


def _look(run: Run, session: Session) -> None:
    row = session.row(
        f"SELECT COUNT(*), MIN(UNIX_TIMESTAMP(opened_at)), MAX(UNIX_TIMESTAMP(landed_at)), "
        f"MIN(UNIX_TIMESTAMP(landed_at)) FROM {SIDECAR}.chunk "
        "WHERE workflow=%s",
        (run.workflow,),
    )
    if row and row[0]:
        run.chunks, run.first, run.last = int(row[0]), float(row[1]), float(row[2] or 0)
        run.landed = float(row[3] or 0)
    if not run.copy_path:
        run.copy_path = str(
            session.value(f"SELECT copy_path FROM {SIDECAR}.workflow_table WHERE workflow=%s", (run.workflow,)) or ""
        )


def whole(database: Database, session: Session, folder: Path, *options: str) -> Run:
    """A run to its end; then the tables are switched back."""
    with started(database, folder, *options) as run:
        follow(run, session, database.server.pid, until=lambda phase: False)
    read_result(run)
    if run.result.get("event") != "complete":
        raise RuntimeError(f"the run did not complete: {run.result}")
    switch_back(session, run)
    return run


def switch_back(session: Session, run: Run) -> None:
    """The original takes its name again, and the new table goes."""
    retired = ident(run.result["retired_table"])
    session.execute_raw(f"DROP TABLE {ident(NAME)}")
    session.execute_raw(f"RENAME TABLE {retired} TO {ident(NAME)}")


def read_result(run: Run) -> None:
    """The last line that the command printed."""
    lines = (run.folder / f"{run.workflow}.out").read_text().splitlines()
    run.result = json.loads(lines[-1]) if lines else {}


def held(
    database: Database, session: Session, folder: Path, *options: str, at_gate: Callable[[Run], None] = lambda _: None
) -> Run:
    """A run up to the gate, where `at_gate` is called; then it is cancelled."""
    with started(database, folder, "--cutover", "manual", *options) as run:
        follow(run, session, database.server.pid, until=lambda phase: phase == "waiting")
        if run.process.poll() is not None:
            raise RuntimeError(f"the run ended before the gate: {(folder / f'{run.workflow}.out').read_text()[-2000:]}")
        _look(run, session)
        at_gate(run)
        with connect(database.url) as ours:
            workflows.request_cancel(ours, run.workflow)
        run.process.wait(120)
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Seconds from the moment when catch-up was let go: until it had applied the backlog, until a chunk was opened."""

    changes: int
    drained: float
    stood_still: float


def backlog(database: Database, session: Session, folder: Path, ranges: Sequence[tuple[int, int]]) -> Backlog:
    """In the middle of a copy the applier is held, these id ranges are updated, and then it is let go."""
    pauses = folder / "pauses"
    pauses.mkdir(exist_ok=True)
    point = pauses / "apply.before_flush"
    with started(database, folder, "--cutover", "manual", "--chunk-rows", "10000", pauses=pauses) as run:
        follow(run, session, database.server.pid, until=lambda phase: run.chunks >= _CHUNKS_BEFORE)
        point.touch()
        changes = sum(_reversed(session, low, high) for low, high in ranges)
        marker = markers.write(session, run.workflow)
        _wait(run, lambda: _stands_still(session, run))
        freed = session.value("SELECT NOW(6)")
        point.unlink()
        markers.wait_applied(session, run.workflow, marker, timeout_seconds=300, poll_seconds=0.01)
        drained = (session.value("SELECT NOW(6)") - freed).total_seconds()
        _wait(run, lambda: _opened_since(session, run, freed) is not None)
        stood = (_opened_since(session, run, freed) - freed).total_seconds()
        with connect(database.url) as ours:
            workflows.request_cancel(ours, run.workflow)
        run.process.wait(120)
    return Backlog(changes=changes, drained=drained, stood_still=stood)


def _reversed(session: Session, low: int, high: int) -> int:
    return session.execute_raw(f"UPDATE {ident(NAME)} SET sig=REVERSE(sig) WHERE id BETWEEN {low} AND {high}")


def _stands_still(session: Session, run: Run) -> bool:
    """The gate is closed for the backlog, and the chunks that were under way have landed."""
    sql = f"SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow=%s AND landed_at IS NULL"
    found = gate.read(session, run.workflow)
    return not found.is_open and found.reason.startswith(APPLY) and not session.value(sql, (run.workflow,))


def _opened_since(session: Session, run: Run, moment: Any) -> Any:
    sql = f"SELECT MIN(opened_at) FROM {SIDECAR}.chunk WHERE workflow=%s AND opened_at > %s"
    return session.value(sql, (run.workflow, moment))


def _wait(run: Run, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not is_so():
        if run.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run ended or stands still: {(run.folder / f'{run.workflow}.out').read_text()}")
        time.sleep(0.02)


def drain(database: Database, session: Session, run: Run, ranges: Sequence[tuple[int, int]]) -> float:
    """Seconds that catch-up needs for the updated rows of these id ranges: reading, decoding and applying.

    Catch-up is stopped while they are written, so that nothing of it is done before the stopwatch starts.
    """
    pid = replicate_pid(run.process.pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        for low, high in ranges:
            session.execute_raw(f"UPDATE {ident(NAME)} SET sig=REVERSE(sig) WHERE id BETWEEN {low} AND {high}")
        marker = markers.write(session, run.workflow)
    finally:
        began = time.monotonic()
        os.kill(pid, signal.SIGCONT)
    markers.wait_applied(session, run.workflow, marker, timeout_seconds=300, poll_seconds=0.01)
    seconds = time.monotonic() - began
    markers.remove(session, run.workflow, marker)
    return seconds


def replicate_pid(parent: int) -> int:
    """The catch-up process among the command's children."""
    for thread in Path(f"/proc/{parent}/task").iterdir():
        for child in (thread / "children").read_text().split():
            if b"\0replicate\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise RuntimeError("catch-up does not run")
