"""An interval cut into slices, each the work of one Spark task.

What must stay true: the slices tile the interval on both sides, whatever rows the target holds: they are cut by the
values of the time column, or by an integer key with both ends open, and never by what the source happens to hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from vreplication.backfill.interval import Walls, parts, within_sql
from vreplication.backfill.tables import Tables
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.schema.literals import INTEGERS
from vreplication.schema.model import Column

SLICE_ROWS = 20_000
MAX_SLICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The rows of `span` whose key's first column is in [first, last); None is open."""

    span: Walls
    first: int | None = None
    last: int | None = None

    def source_sql(self, tables: Tables) -> str:
        return self._sql(tables.time.source, tables.mapping.key[0].source)

    def target_sql(self, tables: Tables) -> str:
        return self._sql(tables.time.target, tables.mapping.key[0].target)

    def _sql(self, time: Column, leading: Column) -> str:
        sides = [within_sql(time, self.span)]
        if self.first is not None:
            sides.append(f"{ident(leading.name)}>={self.first}")
        if self.last is not None:
            sides.append(f"{ident(leading.name)}<{self.last}")
        return " AND ".join(sides)


def cut(session: Session, tables: Tables, span: Walls, slice_rows: int = SLICE_ROWS) -> list[Slice]:
    """Slices of about `slice_rows` rows of the source, as far as they are spread evenly; one at least."""
    whole = Slice(span=span)
    where = whole.source_sql(tables)
    count = min(
        -(-int(session.value(f"SELECT COUNT(*) {source_from(tables)} WHERE {where}")) // slice_rows), MAX_SLICES
    )
    if count < 2:
        return [whole]
    if tables.is_time_indexed:
        return [replace(whole, span=part) for part in parts(span, count)]
    return _by_key(session, tables, whole, count)


def source_from(tables: Tables) -> str:
    source = tables.mapping.source
    # Left to itself the optimizer may take a range for too wide and read the whole table, for each of up to 512 slices.
    return f"FROM {qualified(source.schema, source.name)} FORCE INDEX ({ident(tables.source_index)})"


def _by_key(session: Session, tables: Tables, whole: Slice, count: int) -> list[Slice]:
    """Without an index on time each slice would read the whole table: cut the key, where that is a number."""
    pair = tables.mapping.key[0]
    # Of both, for the same bounds cut the target's rows.
    if not {pair.source.data_type, pair.target.data_type} <= INTEGERS:
        return [whole]
    name = ident(pair.source.name)
    found = session.row(f"SELECT MIN({name}),MAX({name}) {source_from(tables)} WHERE {whole.source_sql(tables)}")
    if found is None or found[0] is None:
        return [whole]
    low, high = int(found[0]), int(found[1])
    marks = sorted({low + (high - low) * i // count for i in range(1, count)})
    # Open at both ends: the target may hold keys below and above all that the source has now, which mirror has to see.
    return [replace(whole, first=a, last=b) for a, b in pairwise([None, *marks, None])]
