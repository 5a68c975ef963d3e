"""Comparing where the two sides sort the key differently, so that a range of one is not a range of the other.

Each side is read in ranges of its own order, and the rows of all ranges are summed up in buckets by their key. What
the buckets that differ hold is then listed, on either side.

What must stay true: the source is read to its end before the target is begun, so each row's pair of readings is in
that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vreplication.mysql.ends import Ends
from vreplication.mysql.session import Session
from vreplication.schema import checksum
from vreplication.schema.checksum import Checksum, RowHash, Side, Which, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.ranges import EVERYTHING, Span, cut_off, span_rows, where
from vreplication.verify.scan import SAMPLE, Finding, choose, differing, unequal_keys

_ROWS_PER_BUCKET = 200
_BUCKETS = (64, 65_536)
MAX_LISTED = 100_000

RunAll = Callable[[Callable[[Ends, Span], Any], Iterable[Span], Callable[[Any], list[Span]]], None]
"""Runs a function over spans; what it gives is handed to the last argument, which may ask for more spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    buckets: dict[int, Checksum]
    rest: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    rows: list[RowHash]
    rest: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SumScan:
    """Buckets of a span of one side."""

    mapping: TableMapping
    which: Which
    count: int

    def __call__(self, ends: Ends, span: Span) -> Sums:
        session, side = _read(ends, self.mapping, self.which)
        span, rest = cut_off(session, side, span, span_rows(self.mapping))
        return Sums(buckets=checksum.buckets(session, side, where(side, span), self.count), rest=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListScan:
    """Rows of chosen buckets in a span of one side."""

    mapping: TableMapping
    which: Which
    count: int
    chosen: tuple[int, ...]

    def __call__(self, ends: Ends, span: Span) -> Listed:
        session, side = _read(ends, self.mapping, self.which)
        span, rest = cut_off(session, side, span, span_rows(self.mapping))
        predicate = f"{where(side, span)} AND {checksum.in_buckets(side, self.chosen, self.count)}"
        return Listed(rows=checksum.row_hashes(session, side, predicate), rest=rest)


def _read(ends: Ends, mapping: TableMapping, which: Which) -> tuple[Session, Side]:
    return (ends.source, source_side(mapping)) if which == "source" else (ends.target, target_side(mapping))


def scan(mapping: TableMapping, run_all: RunAll, on_rows: Callable[[int], None]) -> Finding:
    """Compare the whole table. `on_rows` gets the number of rows that were read on the source."""
    count = min(max(mapping.source.estimated_rows // _ROWS_PER_BUCKET, _BUCKETS[0]), _BUCKETS[1])
    one = _sum_up(mapping, "source", count, run_all, on_rows)
    other = _sum_up(mapping, "target", count, run_all, lambda rows: None)
    rows = sum(c.rows for c in one.values())
    chosen, left = choose(differing(one, other), MAX_LISTED)
    if not chosen:
        return Finding(span=EVERYTHING, rows=rows)
    # Read anew, the source first again: most of what was only written to between the two sums is equal by now.
    ours = _list(mapping, "source", count, chosen, run_all)
    keys = unequal_keys(ours, _list(mapping, "target", count, chosen, run_all))
    wide = left + len(keys) if left else 0
    return Finding(span=EVERYTHING, rows=rows, keys=tuple(keys[:SAMPLE] if wide else keys), wide=wide)


def _sum_up(
    mapping: TableMapping, which: Which, count: int, run_all: RunAll, on_rows: Callable[[int], None]
) -> dict[int, Checksum]:
    total: dict[int, Checksum] = {}

    def take(sums: Sums) -> list[Span]:
        for bucket, found in sums.buckets.items():
            # Buckets go by the CRC of the key, so each span has rows of every bucket.
            total[bucket] = total.get(bucket, Checksum()) + found
        on_rows(sum(c.rows for c in sums.buckets.values()))
        return [sums.rest] if sums.rest else []

    run_all(SumScan(mapping=mapping, which=which, count=count), [EVERYTHING], take)
    return total


def _list(mapping: TableMapping, which: Which, count: int, chosen: list[int], run_all: RunAll) -> list[RowHash]:
    rows: list[RowHash] = []

    def take(listed: Listed) -> list[Span]:
        rows.extend(listed.rows)
        return [listed.rest] if listed.rest else []

    run_all(ListScan(mapping=mapping, which=which, count=count, chosen=tuple(chosen)), [EVERYTHING], take)
    return rows
