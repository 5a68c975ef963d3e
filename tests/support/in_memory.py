"""Temporary folders in memory, where there is plenty: what servers write to a disk costs the tests 4 % of their time.

What must stay true: a test of what a disk does (no room, writes that fail) has a folder of its own elsewhere. A process
that is killed leaves what it has written in either place.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
_FREE_BYTES = 12 << 30
"""Of the file system, and of the machine beside it."""


def temporary(prefix: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY if _is_plenty() else None, ignore_cleanup_errors=True)


def _is_plenty() -> bool:
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < _FREE_BYTES:
        return False
    return _available_bytes() > _FREE_BYTES


def _available_bytes() -> int:
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["MemAvailable"].split()[0]) << 10
