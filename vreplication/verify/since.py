"""Comparing again what catch-up has written since the verification began, round by round until the cut-over.

A round is a window between two markers, as in rounds.py: at the first catch-up hands over the keys that it has written,
their rows are read on the source, then on the target, and at the second it tells which keys were written in between.
What differs and was not is wrong, exactly, unless it gave way to another row under a new unique key: that is copied
again at the gate. What was written comes with the next round; the last one is compared under the cut-over's lock, where
nothing is written.

What must stay true: for each key the rows are compared that either table's collation calls equal to it, so that a row
that another one took the place of is seen; a key is forgotten only when it was equal, or when its row has been copied
again and is to be compared once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vreplication.errors import Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import Session
from vreplication.schema import checksum
from vreplication.schema.checksum import RowHash, Side, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.state import markers, since
from vreplication.verify.ranges import Span, cut_off, span_rows, spans, where
from vreplication.verify.rounds import Examiner, read_keys
from vreplication.verify.scan import SpanScan, unequal

FEW_KEYS = 2_000
"""So few are left for the cut-over at once; under its lock they take about a tenth of a second."""
LOCKED_KEYS = 10_000
"""At most so many are compared under the lock, in about half a second: with more the attempt is given up."""
_LOCKED_BYTES = 32 << 20
"""Of rows: wide ones are fewer in that time."""
_LEAST_KEYS = 50
_KEYS_A_ROUND = 100_000
_MAX_ROUNDS = 30
_SAMPLES = 4
_SAMPLE_ROWS = 1_000
_DEPTH = 4

Both = Callable[[Sequence[str]], tuple[list[RowHash], list[RowHash]]]
"""The rows of these keys on the source, and on the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """wrong: keys whose rows differ for certain. left: keys that are still to be compared."""

    compared: int
    wrong: tuple[str, ...]
    left: int


@dataclass(slots=True, kw_only=True)
class SinceRounds:
    """Of one table. copied: id under which home has the ranges that it was copied in, where that is another one."""

    examiner: Examiner
    share: int = 1
    copied: str | None = None
    ends: Ends = field(init=False)
    mapping: TableMapping = field(init=False)
    table: str = field(init=False)

    def __post_init__(self) -> None:
        self.ends, self.mapping, self.table = self.examiner.ends, self.examiner.mapping, self.examiner.table

    def hand_over(self) -> int:
        """Let catch-up hand over what it has collected, and begin where it has not; returns the new round's number."""
        self.examiner.pass_marker(markers.SINCE)
        found = since.load(self.ends.home, self.table)
        if found is None or found.is_void:
            raise Transient("What was written since the verification is not known any more.", cure="Verify again.")
        return found.round

    def compare(self, beside: Sequence[str] = ()) -> Round:
        """One round over what is there; `beside`: keys to be compared although nothing came for them."""
        began = self.hand_over()
        keys = since.keys(self.ends.home, self.mapping, self.table, began, _KEYS_A_ROUND)
        asked = list(dict.fromkeys([*keys, *beside]))
        differing = different(self._source_then_target, asked)
        # Asked inside the window: later the row's own change may have taken its key off that list.
        gave_way = self.examiner.gave_way(differing)
        ended = self.hand_over()
        written = since.written_since(self.ends.home, self.mapping, self.table, differing, began)
        unsettled = [key for key in differing if key not in written]
        wrong = tuple(key for key in unsettled if key not in gave_way)
        # First: killed in between, it would have forgotten what it has found. The new round keeps these on the list.
        since.add(self.ends.home, self.table, unsettled, ended)
        since.forget(self.ends.home, self.mapping, self.table, keys, began)
        return Round(compared=len(asked), wrong=wrong, left=since.count(self.ends.home, self.table))

    def _source_then_target(self, keys: Sequence[str]) -> tuple[list[RowHash], list[RowHash]]:
        of_source = self._read(self.ends.source, source_side(self.mapping), keys)
        return of_source, self._read(self.ends.target, target_side(self.mapping), keys)

    def _read(self, session: Session, side: Side, keys: Sequence[str]) -> list[RowHash]:
        self.examiner.check()
        return read_keys(session, side, keys)

    def until_small(self, on_wrong: Callable[[tuple[str, ...]], None], *, with_sample: bool = False) -> int:
        """Go round until few enough keys are left for the lock; returns how many were compared. Raises Transient.

        on_wrong: copies the rows again, or raises when that has not helped.
        """
        compared, before = 0, None
        for number in range(_MAX_ROUNDS):
            found = self.compare(self._sample() if with_sample and number == 0 else ())
            compared += found.compared
            if found.wrong:
                on_wrong(found.wrong)
            elif is_small(found.left, before, locked_keys(self.mapping) // self.share):
                return compared
            before = found.left
        raise Transient(
            f"Rows change faster than they can be compared: {found.left} keys are left.",
            cure="It is tried again; the application's writes may have to become fewer.",
        )

    def _sample(self) -> list[str]:
        """Keys of a few ranges, whether written or not: where their checksums differ, or all where ranges differ."""
        todo = spans(self.ends.home, self.copied or self.table, self.mapping)
        found: list[str] = []
        for span in random.sample(todo, min(_SAMPLES, len(todo))):
            self.examiner.check()
            found += self._of_span(span)
        return found

    def _of_span(self, span: Span) -> list[str]:
        if self.mapping.has_same_order:
            return list(SpanScan(mapping=self.mapping, span_rows=span_rows(self.mapping))(self.ends, span).keys)
        source = source_side(self.mapping)
        # Where the sides sort the key otherwise, a range of one is none of the other: so by the keys, which find their
        # rows on either side.
        first, _ = cut_off(self.ends.source, source, span, _SAMPLE_ROWS)
        return [row.key for row in checksum.row_hashes(self.ends.source, source, where(source, first))]


def locked_keys(mapping: TableMapping) -> int:
    """How many keys may be compared under the lock: fewer where rows are wide."""
    width = mapping.source.data_bytes // max(mapping.source.estimated_rows, 1)
    return min(LOCKED_KEYS, max(_LOCKED_BYTES // max(width, 1), _LEAST_KEYS))


def is_small(left: int, before: int | None, most: int) -> bool:
    """Is a round's rest small enough for the cut-over to begin? before: that of the round before; most: for the lock.

    Where rounds do not become shorter any more, a busy table leaves as much as is written during one; until the lock is
    taken as much may come again.
    """
    has_settled = before is not None and left > 0.75 * before
    return left <= min(FEW_KEYS, most) or (has_settled and left <= most // 2)


def different(both: Both, keys: Sequence[str]) -> list[str]:
    """Those whose rows are not the same on both sides, and rows that only a collation calls equal to one of them.

    A row that one side alone found is asked for on the other side by its own key.
    """
    one: dict[str, RowHash] = {}
    other: dict[str, RowHash] = {}
    asked: set[str] = set()
    waiting = list(keys)
    for _ in range(_DEPTH):
        of_source, of_target = both(waiting)
        one |= {row.ident: row for row in of_source}
        other |= {row.ident: row for row in of_target}
        asked |= set(waiting)
        found = [row.key for _, several in unequal(one, other) for row in several]
        waiting = [key for key in dict.fromkeys(found) if key not in asked]
        if not waiting:
            break
    return list(dict.fromkeys(several[0].key for _, several in unequal(one, other)))
