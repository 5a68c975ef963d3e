"""CPU seconds by who used them, read from /proc: on few cores they say more than a clock does.

What must stay true: reading costs next to nothing, and a process that has ended meanwhile is simply not counted.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_ROLES = ((b"\0replicate\0", "replicate"), (b"pyspark.daemon", "workers"), (b"SparkSubmit", "jvm"))


def used(server: int, command: int | None = None, helpers: Sequence[int] = ()) -> dict[str, float]:
    """CPU seconds since the start of each: the server's process, and those of a command with its children, and of
    others that work for it with theirs."""
    found = {"server": _seconds(server)}
    for pid in [*(_tree(command) if command else ()), *(each for helper in helpers for each in _tree(helper))]:
        role = _role(pid, command)
        found[role] = found.get(role, 0.0) + _seconds(pid)
    return found


def resident(command: int) -> dict[str, int]:
    """Bytes of resident memory, by role, of a command and its children; a page that several share counts once (Pss)."""
    found: dict[str, int] = {}
    for pid in _tree(command):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            role = _role(pid, command)
            found[role] = found.get(role, 0) + sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return {role: kib << 10 for role, kib in found.items()}


def between(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    return {role: round(seconds - first.get(role, 0.0), 2) for role, seconds in last.items()}


def of_machine() -> float:
    """CPU seconds of everything that runs here, since the machine started."""
    with open("/proc/stat") as file:
        times = [int(x) for x in file.readline().split()[1:9]]
    return (sum(times) - times[3] - times[4]) / _TICKS


def of_ended_children() -> float:
    """CPU seconds of all processes that we started and that have ended, with theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


def _tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _tree(int(child))
    return found


def _role(pid: int, command: int | None) -> str:
    words = b""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return next((role for mark, role in _ROLES if mark in words), "driver" if pid == command else "other")
