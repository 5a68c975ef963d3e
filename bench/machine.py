"""What a figure was measured on, and how a measured span has the machine to itself.

What must stay true: a description names no person, no path and no address.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import table
from sandbox import binaries, install
from sandbox.install import ROOT

LOCK = "BENCH_LOCK"
"""A file that is locked during each measured run, for who shares a machine by such a lock."""
_SYNCS, _BLOCK = 200, b"x" * 4096
_PIECES, _PIECE = 16, bytes(8 << 20)
_WORK, _WORK_EVERY_SECONDS = 100_000, 0.5
"""A millisecond or two of counting."""


def described(folder: Path, flavors: tuple[str, ...], tools: dict[str, str]) -> dict[str, Any]:
    """tools: the versions of what is compared. folder: on the disk that the servers' data are on."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": _first(r"^model name\s*: (.+)$", "/proc/cpuinfo"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(_first(r"^MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / (1 << 20), 1),
        "fsync_millis": sync_millis(folder),
        "log_mib_per_second": log_bandwidth(folder),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": install.java_version(),
        "commit": _commit(),
        "servers": {flavor: ".".join(map(str, binaries.version(flavor))) for flavor in flavors},
        "server_options": {flavor: _shown(flavor) for flavor in flavors},
        "tools": tools,
        "load_before": round(table.load(), 2),
    }


def sync_millis(folder: Path) -> dict[str, float]:
    """What it takes to append one block to a file and to have it on the disk."""
    took = []
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(_BLOCK)
            os.fdatasync(file.fileno())
            took.append(1000 * (time.perf_counter() - began))
    path.unlink()
    return {"median": round(statistics.median(took), 2), "p99": round(sorted(took)[-_SYNCS // 100], 2)}


def log_bandwidth(folder: Path) -> float:
    """MiB a second of a file that is written from its beginning on, synced every 8 MiB, as a large commit does it."""
    path = folder / "bandwidth"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(_PIECES):
            file.write(_PIECE)
            os.fdatasync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return round(_PIECES * len(_PIECE) / (1 << 20) / seconds, 0)


def in_words(found: dict[str, Any]) -> str:
    sync = found["fsync_millis"]
    versions = ", ".join(f"{name} {version}" for name, version in {**found["servers"], **found["tools"]}.items())
    return (
        f"{found['at']}, {found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, an fdatasync of 4 KiB "
        f"takes {sync['median']} ms (p99 {sync['p99']} ms), {found['kernel']}, Python {found['python']}, "
        f"Java {found['java']}, commit {found['commit']}; {versions}. Load before it began: {found['load_before']}."
    )


class Slowness:
    """How much slower the processors are than at their best, while the block runs.

    A fixed piece of work is done now and then and its CPU time taken, which other processes here do not add to; what
    shares a core with us, or takes it away from the whole machine, does.
    """

    best = float("inf")

    def __init__(self) -> None:
        self.took: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Slowness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_WORK_EVERY_SECONDS):
            began = time.thread_time()
            sum(range(_WORK))
            self.took.append(time.thread_time() - began)

    def figure(self) -> float:
        """Mean of all, as a multiple of the quickest that this process has seen; 1.0 where it was too short."""
        if not self.took:
            return 1.0
        Slowness.best = min(Slowness.best, *self.took)
        return statistics.fmean(self.took) / Slowness.best


@contextlib.contextmanager
def alone(patience_seconds: float) -> Iterator[bool]:
    """Inside the block nobody else measures, where a lock was agreed upon; gives whether it could be had in time."""
    path = os.environ.get(LOCK)
    if not path:
        yield False
        return
    with open(path, "a") as file:
        yield _locked(file.fileno(), time.monotonic() + patience_seconds)


def _locked(file: int, deadline: float) -> bool:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def _shown(flavor: str) -> str:
    given = {name: value for name, value in table.options(flavor).items() if value is not None}
    fixed = {"sync-binlog": 1, "innodb-flush-log-at-trx-commit": 1, **given}
    return " ".join(f"{name}={value}" for name, value in fixed.items())


def _first(pattern: str, path: str) -> str:
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
        return found.group(1) if found else ""
    return ""


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    print(in_words(described(ROOT, ("mariadb", "mysql"), {})), file=sys.stderr)
