"""Whole runs of each tool, as its own documentation says it is run, from its start to its exit.

What must stay true: every tool does the same work (it rebuilds the table and drops the original) on the same server
with the same connections' encryption; one that does not come to its end is ended here, and what it left is removed.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import runs
from sandbox.databases import Database
from sandbox.install import ROOT
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import workflows

OURS = "ours"
GH_OST, SPIRIT, PT = "gh-ost", "spirit", "pt-online-schema-change"
FLAVORS = {
    OURS: ("mariadb", "mysql"),
    GH_OST: ("mariadb", "mysql"),
    SPIRIT: ("mysql",),
    PT: ("mariadb",),
}
"""Where each is measured. spirit refuses MariaDB: it asks for variables that only MySQL has."""


def begin() -> None:
    """SIGTERM ends this process as an exception does, so that servers and tools are ended with it.

    Ours runs from bytecode, as what pip installs does: else each of its processes would compile 500 files, which takes
    half a second to one, wherever PYTHONDONTWRITEBYTECODE is set.
    """
    compileall.compile_dir(ROOT / "vreplication", quiet=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@dataclass(slots=True, kw_only=True)
class Site:
    """Where all tools work. programs: the peers that there are."""

    database: Database
    session: Session
    folder: Path
    table: str
    programs: dict[str, Path]

    @property
    def flavor(self) -> str:
        return self.database.server.flavor

    def login_file(self) -> Path:
        """Of the administrator; so no password is seen in a process list."""
        server = self.database.server
        path = self.folder / "login.cnf"
        path.touch(mode=0o600)
        login = f"user={server.user}\npassword={server.password}\nhost={server.host}\nport={server.port}\n"
        path.write_text(f"[client]\n{login}database={self.database.name}\n")
        return path


@dataclass(slots=True, kw_only=True)
class Outcome:
    """began, ended: by time.monotonic(). figures: what else is known of it, seconds each. failed: why, in its words."""

    began: float
    ended: float
    figures: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def run(site: Site, tool: str, options: tuple[str, ...], limit: float) -> Outcome:
    """One run; at most `limit` seconds."""
    try:
        return _ours(site, options, limit) if tool == OURS else theirs(site, tool, options, limit)
    finally:
        tidy(site)


def copied(site: Site, options: tuple[str, ...], limit: float, helpers: tuple[int, ...] = ()) -> Outcome:
    """Ours until it stands before the cut-over; then it is cancelled. Figures as of a whole run."""
    began = time.monotonic()
    with runs.started(site.database, site.folder, "--cutover", "manual", *options, table=site.table) as found:
        found.helpers = helpers
        runs.follow(found, site.session, site.database.server.pid, lambda phase: phase == "waiting", limit)
        outcome = Outcome(began=began, ended=time.monotonic(), figures=_figures(found))
        if found.process.poll() is not None or outcome.seconds > limit:
            outcome.failed = _said(site.folder / f"{found.workflow}.out")
        with connect(site.database.url) as session:
            workflows.request_cancel(session, found.workflow)
        with contextlib.suppress(subprocess.TimeoutExpired):
            found.process.wait(120)
    tidy(site)
    return outcome


def _ours(site: Site, options: tuple[str, ...], limit: float) -> Outcome:
    began = time.monotonic()
    with runs.started(site.database, site.folder, "--retired", "drop", *options, table=site.table) as found:
        runs.follow(found, site.session, site.database.server.pid, lambda phase: False, limit)
        ended, is_late = time.monotonic(), found.process.poll() is None
    outcome = Outcome(began=began, ended=ended, figures=_figures(found))
    if is_late:
        outcome.failed = f"not at its end after {limit:.0f} s"
        _cancelled(site, found)
    elif found.process.returncode:
        outcome.failed = _said(site.folder / f"{found.workflow}.out")
    return outcome


def _figures(found: runs.Run) -> dict[str, float]:
    """Phases that were not entered are left out. verify: what comes behind the copy until the cut-over may begin.

    CPU time is of all processes while they lived: not every one is waited for by the one that started it.
    """
    phases = found.phases()
    figures = {"copy": found.copy_seconds, "start": found.first - found.began} if found.chunks else {}
    figures["tool_cpu"] = max((_of_tool(used) for _, used in found.cpu), default=0.0)
    if spent := found.copy_cpu():
        figures["copy_server_cpu"], figures["copy_tool_cpu"] = spent["server"], _of_tool(spent)
        figures["copy_others_cpu"] = max(spent["machine"] - spent["server"] - _of_tool(spent), 0.0)
    if "waiting" in phases and "verifying" in phases:
        figures["verify"] = phases["waiting"] - phases["verifying"]
    return figures


def _of_tool(used: dict[str, float]) -> float:
    return sum(seconds for role, seconds in used.items() if role not in ("server", "machine"))


def _cancelled(site: Site, found: runs.Run) -> None:
    words = ["-m", "vreplication", "cancel", found.workflow, "--yes"]
    login = {"VREPLICATION_SOURCE": str(site.database.user_url), "VREPLICATION_PASSWORD": site.database.url.password}
    command = [sys.executable, *words]
    subprocess.run(command, env={**os.environ, **login}, capture_output=True, timeout=120, check=False)


def theirs(site: Site, tool: str, options: tuple[str, ...], limit: float) -> Outcome:
    """One run of a peer. What it leaves is the caller's to remove."""
    said = site.folder / f"{tool}.out"
    # A socket's path may have a hundred bytes, and gh-ost stops where it finds a file of this name.
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    command = [str(program(site, tool)), *COMMANDS[tool](site, scratch), *options]
    began = time.monotonic()
    with said.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        code: int | None = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(process)
        shutil.rmtree(scratch, ignore_errors=True)
    outcome = Outcome(began=began, ended=time.monotonic())
    if code != 0:
        outcome.failed = f"not at its end after {limit:.0f} s" if code is None else _said(said)
    return outcome


def program(site: Site, tool: str) -> Path:
    """gh-ost for MariaDB is another one than for MySQL."""
    return site.programs.get(f"{tool}-{site.flavor}") or site.programs[tool]


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _said(path: Path) -> str:
    return " ".join(path.read_text(errors="replace").split())[-400:]


def _gh_ost(site: Site, scratch: Path) -> list[str]:
    """On MariaDB it cannot see who waits for a lock, and says so. It takes neither host nor port from the file."""
    server = site.database.server
    flavored = ["--skip-metadata-lock-check"] if site.flavor == "mariadb" else ["--ssl", "--ssl-allow-insecure"]
    return [
        f"--conf={site.login_file()}",
        f"--host={server.host}",
        f"--port={server.port}",
        f"--database={site.database.name}",
        f"--table={site.table}",
        f"--alter={runs.ALTER}",
        "--chunk-size=10000",
        "--allow-on-master",
        "--assume-rbr",
        "--initially-drop-ghost-table",
        "--initially-drop-old-table",
        "--ok-to-drop-table",
        f"--serve-socket-file={scratch / 'socket'}",
        f"--throttle-additional-flag-file={scratch / 'throttle'}",
        "--execute",
        *flavored,
    ]


def _spirit(site: Site, _: Path) -> list[str]:
    return ["migrate", f"--conf={site.login_file()}", f"--statement=ALTER TABLE {ident(site.table)} {runs.ALTER}"]


def _pt(site: Site, _: Path) -> list[str]:
    where = f"F={site.login_file()},D={site.database.name},t={site.table}"
    return ["--execute", "--alter", runs.ALTER, "--recursion-method=none", "--no-version-check", where]


COMMANDS: dict[str, Callable[[Site, Path], list[str]]] = {GH_OST: _gh_ost, SPIRIT: _spirit, PT: _pt}


def tidy(site: Site) -> None:
    """Remove all triggers and all tables of the schema but the measured one."""
    name = site.database.name
    sql = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema=%s"
    for (trigger,) in site.session.rows(sql, (name,)):
        site.session.execute_raw(f"DROP TRIGGER IF EXISTS {ident(name)}.{ident(trigger)}")
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema=%s AND table_name<>%s"
    for (left,) in site.session.rows(sql, (name, site.table)):
        with contextlib.suppress(SqlError):
            site.session.execute_raw(f"DROP TABLE IF EXISTS {ident(name)}.{ident(left)}")
