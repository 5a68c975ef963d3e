"""Named places where a test can hold any of our processes, so that a race happens every time it is asked for.

A test sets VREPLICATION_PAUSE_DIR for the processes under test and creates a file named like the point in it. Who
reaches the point writes `<name>.reached` beside it and waits until the test removes `<name>`. Without the variable a
point costs one dictionary look-up.

What must stay true: a point changes nothing but time; names are `<room>.<place>` and stand in docs/design/testing.md.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "VREPLICATION_PAUSE_DIR"


def reach(name: str, timeout_seconds: float = 120.0) -> None:
    """Hold here while a test asks for it. Raises TimeoutError when the test forgot to let go."""
    folder = os.environ.get(VARIABLE)
    if folder and (asked := _asked(Path(folder) / name)) is not None:
        _hold(Path(folder) / name, asked, timeout_seconds)


def _asked(point: Path) -> tuple[int, int] | None:
    """Which request that is: a file that was removed and made again is another one."""
    try:
        found = point.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _hold(point: Path, asked: tuple[int, int], timeout_seconds: float) -> None:
    point.with_name(point.name + ".reached").write_text(str(os.getpid()))
    deadline = time.monotonic() + timeout_seconds
    # A test may ask for the point again before we have looked: then we are let go all the same, and meet it anew.
    while _asked(point) == asked:
        if time.monotonic() > deadline:
            raise TimeoutError(f"pause point {point.name} was never let go")
        time.sleep(0.01)
