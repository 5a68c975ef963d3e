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
    if folder and (Path(folder) / name).exists():
        _hold(Path(folder) / name, timeout_seconds)


def _hold(point: Path, timeout_seconds: float) -> None:
    point.with_name(point.name + ".reached").write_text(str(os.getpid()))
    deadline = time.monotonic() + timeout_seconds
    while point.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"pause point {point.name} was never let go")
        time.sleep(0.01)
