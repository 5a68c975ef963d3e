"""The command line as a process of its own, without a JVM (tests/support/without_spark.py) or with one.

A test starts it, stops it, kills it by its process id and starts it again; catch-up is a child process of its own.
Without a JVM both are forked from a process that has the program in memory (tests/support/forked.py), unless a test
says otherwise.

What must stay true: what runs is the program's own command, only that copy and verify do not go through Spark; a test
ends what it started, by process id.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.databases import Database
from tests.support import forked_catch_up
from tests.support.flow import Ended, finish, wait_until
from tests.support.forked import Forked, fork

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One run of the program."""

    process: subprocess.Popen[str] | Forked

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_going(self) -> bool:
        return self.process.poll() is None

    def finish(self, timeout_seconds: float = 120.0) -> Ended:
        return finish(self.process, timeout_seconds)

    def kill(self) -> list[int]:
        """kill -9; returns the process ids of its catch-up, which is to end by itself."""
        children = replicates(self.pid)
        self.process.kill()
        self.process.communicate()
        return children


def start(
    database: Database,
    logs: Path,
    words: Sequence[str],
    *,
    is_spark: bool = False,
    is_forked: bool = True,
    source: str = "",
) -> Command:
    """Start the program; `logs` is where it keeps its log files; `source`: another URL than the database's.

    A forked one talks to its server unencrypted, any other as a user's does.
    """
    is_short = is_forked and not is_spark
    environment = {
        **os.environ,
        "VREPLICATION_SOURCE": source or str(database.url if is_short else database.user_url),
        "VREPLICATION_PASSWORD": database.url.password,
        "XDG_STATE_HOME": str(logs),
    }
    if is_short:
        return Command(process=fork(words, environment, ROOT))
    module = "vreplication" if is_spark else "tests.support.without_spark"
    return Command(process=_started(module, words, environment))


def _started(module: str, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
        # As a shell does with what it starts.
        process_group=0,
    )


def replicates(pid: int) -> list[int]:
    """Catch-up processes that `pid` has started."""
    return [child for child in children(pid) if _is_catch_up(child)]


def _is_catch_up(pid: int) -> bool:
    words, name = _read(Path(f"/proc/{pid}/cmdline")), _read(Path(f"/proc/{pid}/comm"))
    return "\0replicate\0" in words or name.strip() == forked_catch_up.NAME


def children(pid: int) -> list[int]:
    """Processes that `pid` has started (any of its threads)."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in _read(each).split()]


def is_gone(pid: int) -> bool:
    """True also for one that has ended and waits for whoever inherited it."""
    status = _read(Path(f"/proc/{pid}/stat"))
    return not status or status.rpartition(")")[2].split()[0] in "ZX"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def wait_reached(folder: Path, point: str, command: Command, timeout_seconds: float = 180.0) -> int:
    """Wait until a process stands at the point; returns its id. Fails when `command` ends before."""
    mark = folder / f"{point}.reached"

    def is_there() -> bool:
        if not command.is_going:
            raise AssertionError(f"the command ended before {point}: {command.finish()}")
        return _read(mark) != ""

    wait_until(is_there, f"nobody reached {point}", timeout_seconds)
    return int(_read(mark))


def wait_gone(pids: Sequence[int], timeout_seconds: float = 30.0) -> None:
    wait_until(lambda: all(map(is_gone, pids)), f"of {pids} some are still there", timeout_seconds)
