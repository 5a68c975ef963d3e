"""Where catch-up puts aside what does not fit into memory, and how much fits.

VREPLICATION_SPOOL: a folder on a local disk (default: beside the logs). VREPLICATION_MEMORY_MIB: changes that wait in
memory (default 256), half of it for transactions whose outcome is open.

What must stay true: a workflow's folder goes when the workflow does; workflows of two servers have two folders, also
where they have the same id; losing one costs reading the log again, nothing else.
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path

from vreplication.changes import sorter
from vreplication.changes.matcher import Held
from vreplication.engine.child import log_path
from vreplication.errors import Refused
from vreplication.settings import MEMORY_BYTES
from vreplication.state.workflows import WorkflowRow

FOLDER, MEMORY = "VREPLICATION_SPOOL", "VREPLICATION_MEMORY_MIB"


def home(row: WorkflowRow, stream: str = "") -> Path:
    """By id and by when it began, to the microsecond: that goes with the sidecar when a replica is promoted.

    stream: of those of a workflow that has more than one.
    """
    chosen, began = os.environ.get(FOLDER), row.created_at or datetime.min
    above = Path(chosen) if chosen else log_path(row.id, "replicate").parent / "spool"
    return above / f"{stream or row.id}-{began:%Y%m%dT%H%M%S%f}"


def holds(row: WorkflowRow, branch: Held, stream: str = "") -> bool:
    """Are all rows of a branch here, so that no restart reads its part of the log again?"""
    return branch.place is not None and sorter.left(home(row, stream), *branch.place) == len(branch.fragments)


def memory_bytes() -> int:
    """Raises Refused when the variable is not a number."""
    text = os.environ.get(MEMORY)
    if text is None:
        return MEMORY_BYTES
    try:
        return int(float(text) * (1 << 20))
    except (ValueError, OverflowError):
        raise Refused(f"{MEMORY}={text} is not a number of MiB.", cure=f"Set {MEMORY}=256, or leave it out.") from None


def forget(row: WorkflowRow, stream: str = "") -> None:
    """The workflow has ended."""
    shutil.rmtree(home(row, stream), ignore_errors=True)
