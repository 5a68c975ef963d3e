"""What is to be said of tables that move, beside their workflow's snapshot: each table, and which side serves.

What must stay true: read from the sidecar alone; a figure that is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vreplication.mysql.session import Session
from vreplication.state import ledger, moves, workflows
from vreplication.state.moves import Move, Side
from vreplication.state.workflows import TableRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTable:
    """rows_total: counted or estimated when it began. is_copied: each chunk of it is there."""

    source: str
    target: str
    rows_copied: int
    rows_total: int | None
    is_copied: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.source,
            "target": self.target,
            "rows_copied": self.rows_copied,
            "rows_total": self.rows_total,
            "copied": self.is_copied,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """source_at, target_at: host and port. switches: how many there have been."""

    tables: tuple[MovedTable, ...]
    source_at: str
    target_at: str
    serving: Side
    switches: int
    asked: str | None
    asked_by: str | None

    def as_json(self) -> dict[str, Any]:
        """What `status` adds of a move."""
        return {
            "source": self.source_at,
            "target": self.target_at,
            "serving": str(self.serving),
            "switches": self.switches,
            "asked": self.asked,
            "asked_by": self.asked_by,
            "tables": [table.as_json() for table in self.tables],
        }


def find(session: Session, workflow: str) -> Moved | None:
    """None: the workflow moves no tables."""
    move = moves.find(session, workflow)
    if move is None:
        return None
    return Moved(
        tables=tuple(_table(session, move, table) for table in workflows.tables(session, workflow)),
        source_at=move.source_at,
        target_at=move.target_at,
        serving=move.serving,
        switches=move.number - 1,
        asked=move.asked,
        asked_by=move.asked_by,
    )


def _table(session: Session, move: Move, table: TableRow) -> MovedTable:
    """The ledger goes at the end; a switch tells that all was copied."""
    # The first stream, which copies, is called as the workflow.
    totals = ledger.totals(session, table.id(move.workflow))
    is_copied = move.number > 1 or totals.is_first_matched
    copied = totals.rows_copied if totals.splits or not is_copied else table.rows_total or 0
    return MovedTable(
        source=f"{table.source_schema}.{table.source_table}",
        target=f"{move.target_schema}.{table.source_table}",
        rows_copied=copied,
        rows_total=table.rows_total,
        is_copied=is_copied,
    )
