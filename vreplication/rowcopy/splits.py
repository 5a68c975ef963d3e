"""Cut a table's key range into contiguous splits of about equal numbers of rows.

What must stay true: the splits tile the range without gap or overlap; each bound is the key of a row that was there;
no statement reads more than a bounded number of index entries. Two ways: walking the index, which corrects itself and
fits any key type; and, for large tables whose key begins with an integer, bisecting the key space by the optimizer's
range estimates, which reads next to nothing. Gaps and skew cost halvings, not balance.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.rowcopy.probes import end_key, last_key_up_to, nth_key, source_key
from vreplication.schema.bounds import off_key_sql
from vreplication.schema.literals import INTEGERS
from vreplication.schema.model import TableMapping
from vreplication.state.ledger import Bound, KeyRange, Split

MIN_ROWS = 250
"""A split of fewer rows costs more to start than to copy."""
MIDDLING_ROWS, SPLIT_ROWS = 20_000, 25_000
"""From so many rows on a split of a walked table has at least so many."""
WALK_ROWS = 300_000
"""Up to this many rows (by estimate) the index is walked: a fraction of a second, and exact."""
_FAR = 10
"""Statistics lag behind a table that grows: past so many times WALK_ROWS (a second) the walk ends."""
MAX_STEP = 200_000
"""Index entries that one statement of the walk may read."""
FINENESS = 4
"""Pieces for each split wanted, before they are put together."""
MAX_ESTIMATES = 4_000
_CAP = 2
"""The servers cap an estimate at half of what they take for the table."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Values first..last of the leading integer; `weight`: minus the estimated rows, so a heap gives the heaviest."""

    weight: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return -self.weight


def key_range(session: Session, mapping: TableMapping) -> KeyRange | None:
    """Lowest and highest key of the source, or None when it is empty. To be read behind the start marker."""
    lower, upper = end_key(session, mapping, is_last=False), end_key(session, mapping, is_last=True)
    if lower is None or upper is None:
        return None
    return KeyRange(lower=lower, upper=upper, has_lower=True)


def cut(session: Session, mapping: TableMapping, whole: KeyRange, wanted: int) -> list[Split]:
    """At most about `wanted` splits that tile `whole`, numbered from 0."""
    if wanted < 2 or nth_key(session, mapping, whole, MIN_ROWS) is None:
        return _numbered([(whole, MIN_ROWS)])
    if _is_large(session, mapping, whole):
        return _numbered(_bisected(session, mapping, whole, wanted))
    walked = _walked_far(session, mapping, whole, wanted)
    return _numbered(walked or _bisected(session, mapping, whole, wanted, at_least=_FAR * WALK_ROWS))


def _walked_far(
    session: Session, mapping: TableMapping, whole: KeyRange, wanted: int
) -> list[tuple[KeyRange, int]] | None:
    """By walking; None where the table turns out to be far larger than its statistics say, and may be bisected."""
    far = _FAR * WALK_ROWS if source_key(mapping)[0].data_type in INTEGERS else None
    try:
        return _walked(session, mapping, whole, wanted, mapping.source.estimated_rows, far, is_whole=True)
    except _TooFar:
        return None


def _enough(wanted: int, rows: int) -> int:
    """Of a middling table fewer splits do: each begins with small chunks, which cost what large ones do."""
    if rows < MIDDLING_ROWS:
        return wanted
    return min(wanted, max(1, wanted // FINENESS, rows // SPLIT_ROWS))


class _TooFar(Exception):
    """More rows have been walked over than were expected in all."""


def _numbered(parts: Sequence[tuple[KeyRange, int]]) -> list[Split]:
    return [Split(number=i, range=r, estimated_rows=rows) for i, (r, rows) in enumerate(parts)]


def _is_large(session: Session, mapping: TableMapping, whole: KeyRange) -> bool:
    if source_key(mapping)[0].data_type not in INTEGERS:
        return False
    return _estimate(session, mapping, int(whole.lower[0]), int(whole.upper[0])) > WALK_ROWS


def _ranges(whole: KeyRange, marks: Sequence[Bound]) -> list[KeyRange]:
    """The range cut behind each mark."""
    inner = [mark for mark in dict.fromkeys(marks) if mark not in (whole.lower, whole.upper)]
    ends = [whole.lower, *inner, whole.upper]
    found = [KeyRange(lower=a, upper=b, has_lower=False) for a, b in pairwise(ends)]
    return [replace(found[0], has_lower=whole.has_lower), *found[1:]]


def _walked(
    session: Session,
    mapping: TableMapping,
    whole: KeyRange,
    wanted: int,
    expected: int,
    far: int | None = None,
    *,
    is_whole: bool = False,
) -> list[tuple[KeyRange, int]]:
    """In steps that fit `expected` rows; where far fewer are found, once more in smaller ones. Raises _TooFar."""
    while True:
        parts = _enough(wanted, expected) if is_whole else wanted
        first = max(MIN_ROWS, min(expected // (2 * FINENESS * parts), MAX_STEP))
        marks, step = _marks(session, mapping, whole, first, 2 * FINENESS * wanted, far)
        if is_whole:
            parts = _enough(wanted, len(marks) * step)
        # By so few marks no even parts can be made.
        if first == MIN_ROWS or len(marks) >= 2 * parts:
            return _picked(whole, marks, step, parts)
        expected = len(marks) * step


def _marks(
    session: Session, mapping: TableMapping, whole: KeyRange, step: int, most: int, far: int | None
) -> tuple[list[Bound], int]:
    """Every step-th key, and the step; when there are many drop every other and double the step. Raises _TooFar."""
    marks: list[Bound] = []
    rest = whole
    while (key := nth_key(session, mapping, rest, step)) is not None:
        marks.append(key)
        rest = KeyRange(lower=key, upper=whole.upper, has_lower=False)
        if far is not None and len(marks) * step > far:
            raise _TooFar
        if len(marks) >= most and step < MAX_STEP:
            marks, step = marks[1::2], min(2 * step, MAX_STEP)
    return marks, step


def _picked(whole: KeyRange, marks: Sequence[Bound], step: int, wanted: int) -> list[tuple[KeyRange, int]]:
    """Of evenly spaced marks those that make `wanted` ranges."""
    every = max(1.0, (len(marks) + 1) / wanted)
    places = [round(every * i) - 1 for i in range(1, wanted)]
    chosen = [marks[p] for p in places if p < len(marks)]
    return [(r, int(every * step)) for r in _ranges(whole, chosen)]


def _bisected(
    session: Session, mapping: TableMapping, whole: KeyRange, wanted: int, at_least: int = 0
) -> list[tuple[KeyRange, int]]:
    """at_least: rows that are known to be there. Estimates that know of far fewer say nothing about any part."""
    first, last = int(whole.lower[0]), int(whole.upper[0])
    # Statistics lag behind a table that was just filled; where they are wrong of the whole, they are of each part.
    is_blind = at_least > _CAP * _estimate(session, mapping, first, last)
    pieces = _even(first, last, FINENESS * wanted, at_least) if is_blind else _halve(session, mapping, whole, wanted)
    share = max(1, sum(p.rows for p in pieces) // wanted)
    parts: list[tuple[KeyRange, int]] = []
    for bounds, rows in _joined(session, mapping, whole, pieces, share):
        # One value of the leading column may hold a great part of the table: there the index is walked.
        parts += _walked(session, mapping, bounds, rows // share + 1, rows) if rows > 2 * share else [(bounds, rows)]
    return parts


def _even(first: int, last: int, count: int, rows: int) -> list[Piece]:
    """The values in parts of one width."""
    marks = sorted({first + (last + 1 - first) * i // count for i in range(count + 1)})
    return [Piece(-max(1, rows // count), a, b - 1) for a, b in pairwise(marks)]


def _halve(session: Session, mapping: TableMapping, whole: KeyRange, wanted: int) -> list[Piece]:
    """Halve the heaviest piece until none holds more than its part, in key order."""
    first, last = int(whole.lower[0]), int(whole.upper[0])
    heap, finished, asked = [Piece(-_estimate(session, mapping, first, last), first, last)], [], 0
    total = heap[0].rows
    while heap and asked < MAX_ESTIMATES and heap[0].rows > total // (FINENESS * wanted):
        piece = heapq.heappop(heap)
        # One value cannot be halved; how much it holds, `_bisected` walks over.
        if piece.first == piece.last:
            finished.append(piece)
            continue
        middle = (piece.first + piece.last) // 2
        halves = [(piece.first, middle), (middle + 1, piece.last)]
        fresh = [Piece(-_estimate(session, mapping, a, b), a, b) for a, b in halves]
        # For the cap the total is what the parts say.
        total += sum(p.rows for p in fresh) - piece.rows
        asked += 2
        for half in fresh:
            heapq.heappush(heap, half)
    return sorted([*heap, *finished], key=lambda p: p.first)


def _joined(
    session: Session, mapping: TableMapping, whole: KeyRange, pieces: Sequence[Piece], share: int
) -> list[tuple[KeyRange, int]]:
    """Neighboring pieces put together to about `share` rows; a heavy piece stands alone. Cuts snap to keys."""
    marks: list[tuple[Bound, int]] = []
    rows = 0
    for piece, following in pairwise(pieces):
        rows += piece.rows
        if rows + following.rows // 2 < share and following.rows < share:
            continue
        key = last_key_up_to(session, mapping, whole, piece.last)
        before = marks[-1][0] if marks else whole.lower
        # No row between the two cuts: the pieces were gaps, and a split without a row costs a task all the same.
        if key is not None and key not in (before, whole.upper):
            marks.append((key, rows))
            rows = 0
    rows += pieces[-1].rows
    ranges = _ranges(whole, [key for key, _ in marks])
    weights = [*(n for _, n in marks), rows]
    return list(zip(ranges, weights[-len(ranges) :], strict=True))


def _estimate(session: Session, mapping: TableMapping, first: int, last: int) -> int:
    """The optimizer's estimate of the rows with a leading value in first..last: two dives into the index.

    USE INDEX, because MySQL spares itself the dives under FORCE INDEX and answers 1.
    """
    column = ident(source_key(mapping)[0].name)
    table = f"{qualified(mapping.source.schema, mapping.source.name)} USE INDEX ({ident(mapping.source_index)})"
    where = f"{column}>={first} AND {column}<={last}"
    read = off_key_sql(mapping.source, mapping.source_index)
    found = session.named_rows(f"EXPLAIN FORMAT=TRADITIONAL SELECT {read} FROM {table} WHERE {where}")
    return sum(int(row["rows"] or 0) for row in found)
