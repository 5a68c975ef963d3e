"""What a copying task is told, and what it answers.

What must stay true: both travel by pickle between the driver and Spark's workers; neither holds a password (the route
that does travels beside them, inside the task's closure).
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.errors import VReplicationError
from vreplication.settings import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """workflow: the stream, which has the lease, the gate and the tuning. table: id under which the ledger keeps the
    table; the workflow's own where none is given.

    copy_path: which of the two ways rows take on one server, "server" or "rows" (`paths.py`). packet: longest statement
    that is wanted, bytes; a session that takes less decides. by_turns: tasks insert one after the other (`turns.py`).
    """

    workflow: str
    copy_path: str
    limits: Limits
    table: str = ""
    packet: int = 16 << 20
    by_turns: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.table or self.workflow)


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
