"""How a workflow ended, as the faces show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something of ours that is still there, and the command that removes it."""

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """event: complete, refused, failed, cancelled or interrupted. Times in milliseconds; unknown is None.

    reverts: of a way back, the workflow whose it is.
    """

    event: str
    workflow: str
    reason: str | None = None
    shadow_table: str | None = None
    retired_table: str | None = None
    rows_copied: int | None = None
    events_applied: int | None = None
    cutover_millis: float | None = None
    write_stall_millis: float | None = None
    strategy: str | None = None
    """Of an online DDL: online, instant or inplace."""
    strategy_reason: str | None = None
    is_fallback: bool = False
    """It became online when the table refused what its empty copy took."""
    resume_command: str | None = None
    leftovers: tuple[Leftover, ...] = ()
    exit_code: int = 0
    reverts: str | None = None
    side_table: str | None = None
    """Holds the rows that gave way to another one under a new unique key; None: there is none."""
    side_rows: int | None = None
