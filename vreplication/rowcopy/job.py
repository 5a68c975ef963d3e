"""What a copying task is told, and what it answers.

What must stay true: both travel by pickle between the driver and Spark's workers; neither holds a password (the URL
that does travels beside them, inside the task's closure).
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.errors import VReplicationError
from vreplication.settings import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """copy_path: which of the two ways rows take, "server" or "rows" (`paths.py`). packet: max_allowed_packet.
    by_turns: tasks insert one after the other (`turns.py`).
    """

    workflow: str
    copy_path: str
    limits: Limits
    is_mariadb: bool
    packet: int = 16 << 20
    by_turns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """error: what ended the split for good; what may succeed when done again is raised instead, so that Spark does.

    is_done: False for one that gave its slot back before its end; whoever claims it next goes on with it.
    """

    number: int
    chunks: int = 0
    rows_copied: int = 0
    is_done: bool = True
    error: VReplicationError | None = None
