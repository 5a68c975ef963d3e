"""One span compared: checksums of both sides, and where they differ, down to the keys. Runs on Spark's workers.

What must stay true: each row is read on the source first and on the target after it, each in a fresh statement; a key
that is not reported was equal in one such pair of readings. That keys are reported proves nothing yet: they may have
been written to in between (`rounds.py` decides).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vreplication.mysql.ends import Ends
from vreplication.mysql.session import Session
from vreplication.schema import checksum
from vreplication.schema.checksum import Checksum, RowHash, Side, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.ranges import Span, cut_off, where

BUCKETS = 1_024
_ROWS_A_BUCKET = 32
"""To tell rows one by one costs the servers ten times as much as to fold them, and us more."""
MAX_LISTED = 20_000
"""Rows of a span that are looked at one by one; where more differ, the span as a whole does."""
SAMPLE = 1_000
_PIECES = 25
"""A span that differs, or is expected to, is compared in so many pieces."""
_LEAST_PIECE = 80
_LOOKS = 1
"""How often a piece that differs is compared again before its rows are listed: catch-up was just behind, mostly."""


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
    """To be called with sessions and a span. is_busy: so much is written that spans are expected to differ.

    piece_rows: of the pieces that a span which differs is cut into.
    """

    mapping: TableMapping
    span_rows: int
    is_busy: bool = False
    piece_rows: int = 0

    def __call__(self, ends: Ends, span: Span) -> Finding:
        source, target = source_side(self.mapping), target_side(self.mapping)
        rest = None
        # Behind an open end any number of rows may have come; between two bounds there are about as many as were
        # copied.
        if span.lower is None or span.upper is None:
            span, rest = cut_off(ends.source, source, span, self.span_rows)
        if not self.is_busy:
            looked = _look(ends, source, target, span)
            if looked.is_equal:
                return Finding(span=span, rows=looked.rows, rest=rest)
        return self._narrowed(ends, source, target, span, rest)

    def _narrowed(self, ends: Ends, source: Side, target: Side, span: Span, rest: Span | None) -> Finding:
        """By pieces of the source's order; those that differ once more at the end, when catch-up has gone on."""
        size = max(self.piece_rows or self.span_rows // _PIECES, _LEAST_PIECE)
        looked = [_look(ends, source, target, piece) for piece in pieces(ends.source, source, span, size)]
        unequal_pieces = [piece for piece in looked if not piece.is_equal]
        # Under writes nearly every span differs for what catch-up has not applied yet. A moment later it has, and a
        # second look costs less than to list rows that are equal.
        for _ in range(_LOOKS):
            again = (_look(ends, source, target, piece.span) for piece in unequal_pieces)
            unequal_pieces = [piece for piece in again if not piece.is_equal]
        keys, left = _listed(ends, source, target, unequal_pieces)
        wide = left + len(keys) if left else 0
        rows = sum(piece.rows for piece in looked)
        return Finding(span=span, rows=rows, keys=tuple(keys[:SAMPLE] if wide else keys), wide=wide, rest=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A span, or a piece of one, read once on either side: rows of the side that has more."""

    span: Span
    rows: int
    is_equal: bool


def _look(ends: Ends, source: Side, target: Side, span: Span) -> _Looked:
    one = checksum.checksum(ends.source, source, where(source, span))
    other = checksum.checksum(ends.target, target, where(target, span))
    return _Looked(span=span, rows=max(one.rows, other.rows), is_equal=one == other)


def pieces(session: Session, side: Side, span: Span, rows: int) -> Iterator[Span]:
    """The span in parts of about `rows` rows of this side, found by walking its index."""
    left: Span | None = span
    while left is not None:
        piece, left = cut_off(session, side, left, rows)
        yield piece


def _listed(ends: Ends, source: Side, target: Side, found: Iterable[_Looked]) -> tuple[list[str], int]:
    """Keys that differ, one at least where any does, and how many rows are in what is too much to be listed."""
    keys: dict[str, None] = {}
    rows = left = 0
    for piece in found:
        if keys and rows + piece.rows > MAX_LISTED:
            left += piece.rows
            continue
        listed, more = _unequal_in(ends, source, target, piece)
        keys |= dict.fromkeys(listed)
        rows, left = rows + piece.rows, left + more
    return list(keys), left


def _unequal_in(ends: Ends, source: Side, target: Side, piece: _Looked) -> tuple[list[str], int]:
    """Of one piece, by the buckets of its keys that differ; and how many rows there are in more than can be listed."""
    ours, theirs, left = where(source, piece.span), where(target, piece.span), 0
    if (count := min(piece.rows // _ROWS_A_BUCKET, BUCKETS)) > 1:
        one = checksum.buckets(ends.source, source, ours, count)
        other = checksum.buckets(ends.target, target, theirs, count)
        chosen, left = choose(differing(one, other), MAX_LISTED)
        if not chosen:
            return [], 0
        ours += f" AND {checksum.in_buckets(source, chosen, count)}"
        theirs += f" AND {checksum.in_buckets(target, chosen, count)}"
    one_rows = checksum.row_hashes(ends.source, source, ours)
    other_rows = checksum.row_hashes(ends.target, target, theirs)
    return unequal_keys(one_rows, other_rows), left


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
        # The first one in any case: callers take it that nothing differs where none is chosen.
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
