"""The key space cut into spans that one statement can check.

What must stay true: the spans tile the whole key space, its open ends included, whatever the ledger holds; they come
from the bounds of the copy's chunks, so that no index has to be walked to find them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session
from vreplication.schema import nulls
from vreplication.schema.bounds import order_sql, range_sql
from vreplication.schema.checksum import Side
from vreplication.schema.literals import bound_sql
from vreplication.schema.model import TableMapping
from vreplication.state import ledger, progress
from vreplication.state.ledger import REPAIR_SPLIT, Bound, Chunk, KeyRange, Split

_SPAN_BYTES = 64 << 20
_SPAN_ROWS = (2_000, 100_000)
"""A span takes about 0.1 s on either side; with wide rows fewer of them, so that no statement runs for long."""
_SOFT = 10
"""A row whose values the client reads takes at least so many times as long."""
_BEHIND_SECONDS = 0.3
"""A row that is written is another one on the target for about so long."""
_FEW_DIFFER = 0.5
"""Rows of a span that are expected to differ, from which on it is compared in pieces at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """(lower, upper] in the order of the key; None: no bound."""

    lower: Bound | None
    upper: Bound | None


EVERYTHING = Span(lower=None, upper=None)


def where(side: Side, span: Span) -> str:
    """Predicate for the span's rows on this side."""
    return f"{range_sql(side.columns, span.lower, span.upper)}{nulls.known(side.columns)}"


def span_rows(mapping: TableMapping) -> int:
    """Rows that a span should hold."""
    least, most = _SPAN_ROWS
    wanted = _SPAN_BYTES // mapping.source.row_bytes
    if mapping.soft:
        wanted, most = wanted // _SOFT, most // _SOFT
    return max(min(wanted, most), least)


def quiet_rows(session: Session, stream: str, mapping: TableMapping) -> int:
    """So many rows are mostly equal at once; of more, one differs for what catch-up has not applied yet."""
    changes = float(progress.read(session, stream).get("applied_per_second") or 0.0)
    rows = max(mapping.source.estimated_rows, 1)
    return max(1, int(min(rows, rows * _FEW_DIFFER / max(changes * _BEHIND_SECONDS, 1e-9))))


def spans(
    session: Session, workflow: str, mapping: TableMapping, done: Collection[KeyRange] = frozenset()
) -> list[Span]:
    """All of the key space: neighboring chunks of the copy put together, and both ends.

    done: ranges of chunks to be left out.
    """
    # What was copied again lies within the others, or at an end that is open here.
    splits = [s for s in ledger.splits(session, workflow) if s.number < REPAIR_SPLIT]
    if not splits:
        return [EVERYTHING]
    chunks = ledger.chunks(session, workflow)
    # Both ends open: rows below and above the copied range came by the log, and are compared like all others.
    cuts: list[Bound | None] = [None, splits[0].range.lower]
    for split in splits:
        cuts += _cuts(split, (c for c in chunks if c.split == split.number), span_rows(mapping), done)
    distinct = [cut for before, cut in pairwise(cuts) if cut != before]
    # A range that begins with its lowest key, the table's first, leaves that to the span before it.
    left_out = {(keys.lower, keys.upper) for keys in done}
    ends = pairwise([None, *distinct, None])
    return [Span(lower=lower, upper=upper) for lower, upper in ends if (lower, upper) not in left_out]


def _cuts(split: Split, chunks: Iterable[Chunk], wanted: int, done: Collection[KeyRange]) -> list[Bound]:
    """Upper bounds of chunks, about `wanted` rows apart, and that of the split; a chunk that is done stands alone."""
    found: list[Bound] = []
    rows, last = 0, split.range.lower
    for chunk in chunks:
        # It stands alone, so that a span has its very bounds, by which `spans` leaves it out.
        is_done = chunk.range in done
        if rows and (is_done or rows + chunk.rows_copied > wanted):
            found.append(last)
            rows = 0
        rows += chunk.rows_copied
        last = chunk.range.upper
        if is_done:
            found.append(last)
            rows = 0
    return [*found, split.range.upper]


def cut_off(session: Session, side: Side, span: Span, rows: int) -> tuple[Span, Span | None]:
    """The first `rows` rows of a span as a span of its own, and the rest (None: there is none)."""
    upper = _key(session, side, span, f"LIMIT 1 OFFSET {int(rows) - 1}")
    if upper is None or upper == span.upper:
        return span, None
    return Span(lower=span.lower, upper=upper), Span(lower=upper, upper=span.upper)


def _key(session: Session, side: Side, span: Span, limit: str, *, descending: bool = False) -> Bound | None:
    keys = ",".join(bound_sql(c, ident(c.name)) for c in side.columns)
    order = order_sql(side.columns, descending=descending)
    # A column outside the key, too: see `schema.bounds.off_key_sql`.
    row = session.row(f"SELECT {keys},{side.beside} {side.from_sql} WHERE {where(side, span)} ORDER BY {order} {limit}")
    return None if row is None else tuple(x.decode() if isinstance(x, bytes) else str(x) for x in row[:-1])


def extent(session: Session, side: Side, span: Span) -> KeyRange | None:
    """The range of keys that the span holds on this side; None: no row."""
    first = _key(session, side, span, "LIMIT 1")
    last = _key(session, side, span, "LIMIT 1", descending=True)
    return KeyRange(lower=first, upper=last, has_lower=True) if first and last else None
