"""The tables of a cut-over, each with its sentry, its lease and the session that locks it.

What must stay true: names of ours sort after the table's, by their bytes, as RENAME takes its locks: so it waits on the
table itself from its first moment, and no queued writer gets at that in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vreplication.errors import Terminal
from vreplication.mysql.session import Session
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A table to be switched, by its workflow's row, and the lease of who drives that."""

    row: WorkflowRow
    lease: Lease

    @property
    def table(self) -> tuple[str, str]:
        """(schema, name)"""
        return self.row.source_schema, self.row.source_table

    @property
    def sentry(self) -> tuple[str, str]:
        return self.row.source_schema, self.row.retired_table


@dataclass(frozen=True, slots=True)
class Held:
    """A part and the session that locks its table."""

    part: Part
    locker: Session


def check_names(row: WorkflowRow) -> None:
    """Raises Terminal where RENAME would wait for another name first."""
    table = row.source_table.encode()
    if not (table < row.shadow_table.encode() and table < row.retired_table.encode()):
        raise Terminal(
            f"The names {row.shadow_table} and {row.retired_table} do not sort after {row.source_table}, so a write "
            "could be lost at the cut-over."
        )


def in_renames_order(found: Sequence[Held]) -> tuple[Held, ...]:
    """As RENAME comes to them."""
    return tuple(sorted(found, key=lambda each: tuple(name.encode() for name in each.part.table)))
