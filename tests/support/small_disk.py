"""A file system of a few MiB, to see what a full disk does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.private_server import missing


@contextmanager
def small_disk_at(place: Path, mebibytes: int) -> Iterator[Path]:
    """Mounted in memory for the block; where nothing can be mounted that skips the test, and in CI fails it."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        missing(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def make_room(place: Path, mebibytes: int) -> None:
    """What is on it stays."""
    subprocess.run(["mount", "-o", f"remount,size={mebibytes}m", str(place)], check=True)
