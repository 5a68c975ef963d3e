"""What the checks of a move look at.

What must stay true: plain values and sessions; a check reads and never writes. A table that could not be read is not
among them, and one whose definition the target does not take has no `made` and no mapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vreplication.mysql.server import Server
from vreplication.mysql.session import Session
from vreplication.schema.carry import Carried
from vreplication.schema.model import Table, TableMapping
from vreplication.workflows.move_tables.spec import MoveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OneServer:
    """`planning.facts.OfServer`. role: 'source' or 'target'."""

    role: str
    session: Session
    server: Server
    spec: MoveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTable:
    """`planning.facts.OfTable`."""

    session: Session
    server: Server
    spec: MoveSpec
    source: Table


_SHOWN = 5
_NOT_CARRIED = Carried(create_sql="", changes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTable:
    """A table, and what it becomes.

    target_name: what it is called on the target after the switch; shadow: until then, '' where no such name can be
    made. carried: empty where it is refused. made: as it came out there, tried as a temporary table.
    """

    source: Table
    target_schema: str
    target_name: str
    shadow: str
    carried: Carried = _NOT_CARRIED
    made: Table | None = None
    mapping: TableMapping | None = None

    @property
    def name(self) -> str:
        return f"{self.source.schema}.{self.source.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFacts:
    """All that a check, or the explanation of a stage, may read. replica: of the source, where the copy is to read."""

    source: OneServer
    target: OneServer
    schema: str
    target_schema: str
    spec: MoveSpec
    tables: tuple[MovedTable, ...]
    replica: Session | None = None

    @property
    def sides(self) -> tuple[OneServer, OneServer]:
        return self.source, self.target


def named(names_: Iterable[str]) -> str:
    """The first of them, and how many more."""
    found = list(names_)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
