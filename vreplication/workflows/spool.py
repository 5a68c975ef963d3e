"""Where catch-up puts aside what does not fit into memory, and how much fits.

VREPLICATION_SPOOL: a folder on a local disk (default: beside the logs). VREPLICATION_MEMORY_MIB: changes that wait in
memory (default 256), half of it for transactions whose outcome is open.

What must stay true: a workflow's folder goes when the workflow does; losing it costs reading the log again, nothing
else.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vreplication.errors import Refused
from vreplication.settings import MEMORY_BYTES
from vreplication.workflows.child import log_path

FOLDER, MEMORY = "VREPLICATION_SPOOL", "VREPLICATION_MEMORY_MIB"


def home(workflow: str) -> Path:
    chosen = os.environ.get(FOLDER)
    return (Path(chosen) if chosen else log_path(workflow, "replicate").parent / "spool") / workflow


def memory_bytes() -> int:
    """Raises Refused when the variable is not a number."""
    text = os.environ.get(MEMORY)
    if text is None:
        return MEMORY_BYTES
    try:
        return int(float(text) * (1 << 20))
    except (ValueError, OverflowError):
        raise Refused(f"{MEMORY}={text} is not a number of MiB.", cure=f"Set {MEMORY}=256, or leave it out.") from None


def forget(workflow: str) -> None:
    """The workflow has ended."""
    shutil.rmtree(home(workflow), ignore_errors=True)
