"""One span compared: checksums of both sides, and where they differ, down to the keys. Runs on Spark's workers.

What must stay true: each row is read on the source first and on the target after it, each in a fresh statement; a key
that is not reported was equal in one such pair of readings. That keys are reported proves nothing yet: they may have
been written to in between (`rounds.py` decides).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vreplication.mysql.session import Session
from vreplication.schema import checksum
from vreplication.schema.checksum import Checksum, RowHash, Side, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.ranges import Span, cut_off, where

BUCKETS = 1_024
MAX_LISTED = 20_000
"""Rows of a span that are looked at one by one; where more differ, the span as a whole does."""
SAMPLE = 1_000
_FEW = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a span showed.

    wide: about so many rows differ, too many to list; `keys` is a sample then. rest: what is still to be done.
    """

    span: Span
    rows: int
    keys: tuple[str, ...] = ()
    wide: int = 0
    rest: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanScan:
    """To be called with a session and a span."""

    mapping: TableMapping
    span_rows: int

    def __call__(self, session: Session, span: Span) -> Finding:
        source, target = source_side(self.mapping), target_side(self.mapping)
        rest = None
        if span.lower is None or span.upper is None:
            span, rest = cut_off(session, source, span, self.span_rows)
        one = checksum.checksum(session, source, where(source, span))
        other = checksum.checksum(session, target, where(target, span))
        if one == other:
            return Finding(span=span, rows=one.rows, rest=rest)
        return _narrowed(session, source, target, span, max(one.rows, other.rows), rest)


def _narrowed(session: Session, source: Side, target: Side, span: Span, rows: int, rest: Span | None) -> Finding:
    """Find the keys that differ: by buckets, unless the rows are few."""
    ours, theirs = where(source, span), where(target, span)
    left = 0
    if rows > _FEW:
        one = checksum.buckets(session, source, ours, BUCKETS)
        other = checksum.buckets(session, target, theirs, BUCKETS)
        chosen, left = choose(differing(one, other), MAX_LISTED)
        ours += f" AND {checksum.in_buckets(source, chosen, BUCKETS)}"
        theirs += f" AND {checksum.in_buckets(target, chosen, BUCKETS)}"
        if not chosen:
            return Finding(span=span, rows=rows, rest=rest)
    keys = unequal_keys(checksum.row_hashes(session, source, ours), checksum.row_hashes(session, target, theirs))
    wide = left + len(keys) if left else 0
    return Finding(span=span, rows=rows, keys=tuple(keys[:SAMPLE] if wide else keys), wide=wide, rest=rest)


def differing(one: dict[int, Checksum], other: dict[int, Checksum]) -> dict[int, int]:
    """Buckets that differ, with the number of their rows."""
    empty = Checksum()
    return {
        b: max(one.get(b, empty).rows, other.get(b, empty).rows)
        for b in one.keys() | other.keys()
        if one.get(b, empty) != other.get(b, empty)
    }


def choose(found: dict[int, int], limit: int) -> tuple[list[int], int]:
    """Buckets with at most `limit` rows in all (one at least), and the number of rows in the others."""
    chosen: list[int] = []
    rows = left = 0
    for bucket, size in sorted(found.items()):
        if chosen and rows + size > limit:
            left += size
        else:
            chosen.append(bucket)
            rows += size
    return chosen, left


def unequal_keys(source: Iterable[RowHash], target: Iterable[RowHash]) -> list[str]:
    """Keys, as both sides spell them, of rows that are not the same on both sides."""
    one, other = {r.ident: r for r in source}, {r.ident: r for r in target}
    return list(dict.fromkeys(row.key for _, several in unequal(one, other) for row in several))


def unequal(one: dict[str, RowHash], other: dict[str, RowHash]) -> list[tuple[str, list[RowHash]]]:
    """Hash of each key whose rows differ, with the rows that are there."""
    found = []
    for name in [*one, *(n for n in other if n not in one)]:
        rows = [r for r in (one.get(name), other.get(name)) if r is not None]
        if len(rows) == 1 or rows[0].value != rows[1].value:
            found.append((name, rows))
    return found
