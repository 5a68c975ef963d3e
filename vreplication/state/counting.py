"""The totals of a table that is being copied, for who asks twice a second: each chunk is counted for good once.

A table of some billions of rows has a hundred thousand chunks, which the server reads for a tenth of a second.

What must stay true: these are figures for progress and hold nothing back. Only chunks that are matched, with all that
are before them in their split, and that have not landed lately are not read again: they stay as they are, unless the
server loses the end of what it has committed. So whoever reconnects begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state.ledger import LANDED, LATELY, MATCHED, OPEN, REPAIR_SPLIT, Lately, Totals

_FOLD_CHUNKS = 256
"""Chunks of a split are put away by so many: that takes a statement of its own."""
_NUMBER = f"LEAST(split, {REPAIR_SPLIT})"
"""Repairs are counted as one: there may be many of them, of a chunk each."""
_LOOKED_AT = (
    f"SUM(state='{OPEN}'), SUM(state='{LANDED}'), SUM(state='{MATCHED}'), SUM(rows_read), MAX(ordinal) + 1, "
    f"MIN(IF(state='{MATCHED}' AND NOT {LATELY}, NULL, ordinal)), "
    f"SUM({LATELY}), SUM(IF({LATELY}, rows_read, 0)), SUM(IF({LATELY}, millis, 0))"
)


@dataclass(slots=True)
class _Split:
    """Or all repairs together. upto: chunks before this ordinal are put away: so many, with so many rows; the others
    are as last looked at. still: chunks before this one stay as they are.
    """

    splits: int = 0
    done: int = 0
    upto: int = 0
    away: int = 0
    away_rows: int = 0
    opened: int = 0
    landed: int = 0
    matched: int = 0
    rows: int = 0
    still: int = 0
    late: int = 0
    late_rows: int = 0
    late_millis: int = 0

    @property
    def is_done(self) -> bool:
        return self.splits == self.done

    @property
    def is_over(self) -> bool:
        """Nothing of it can change any more, and all of it is put away."""
        return self.is_done and self.upto > 0 and not (self.opened or self.landed or self.matched)

    def look(self, figures: tuple[Any, ...]) -> None:
        opened, landed, matched, rows, end, moving, late, late_rows, late_millis = figures
        self.opened, self.landed, self.matched, self.rows = int(opened), int(landed), int(matched), int(rows)
        self.still = int(end if moving is None else moving)
        self.late, self.late_rows, self.late_millis = int(late or 0), int(late_rows), int(late_millis)


@dataclass(slots=True)
class Counting:
    """Of one table, by one thread."""

    workflow: str
    splits: dict[int, _Split] = field(default_factory=dict)

    def totals(self, session: Session) -> Totals:
        """As `ledger.totals`."""
        self._look_at_splits(session)
        self._look_at_chunks(session)
        found = self._summed()
        for number, split in self.splits.items():
            least = 1 if split.is_done else _FOLD_CHUNKS
            if number < REPAIR_SPLIT and split.still - split.upto >= least:
                self._put_away(session, number, split)
        return found

    def _look_at_splits(self, session: Session) -> None:
        # Before the chunks: of a split that is done all chunks are counted then.
        sql = f"SELECT {_NUMBER}, COUNT(*), SUM(is_done) FROM {SIDECAR}.split WHERE workflow=%s GROUP BY 1"
        for number, splits, done in session.rows(sql, (self.workflow,)):
            split = self.splits.setdefault(int(number), _Split())
            split.splits, split.done = int(splits), int(done)

    def _look_at_chunks(self, session: Session) -> None:
        seen = {number: split for number, split in self.splits.items() if not split.is_over}
        if not seen:
            return
        ranges = (f"(split{'=' if n < REPAIR_SPLIT else '>='}{n} AND ordinal >= {seen[n].upto})" for n in seen)
        where = f"workflow=%s AND ({' OR '.join(ranges)})"
        sql = f"SELECT {_NUMBER}, {_LOOKED_AT} FROM {SIDECAR}.chunk WHERE {where} GROUP BY 1"
        for number, *figures in session.rows(sql, (self.workflow,)):
            seen[int(number)].look(tuple(figures))

    def _put_away(self, session: Session, number: int, split: _Split) -> None:
        sql = (
            f"SELECT COUNT(*), COALESCE(SUM(rows_read),0) FROM {SIDECAR}.chunk "
            "WHERE workflow=%s AND split=%s AND ordinal >= %s AND ordinal < %s"
        )
        found = session.row(sql, (self.workflow, number, split.upto, split.still))
        assert found is not None
        count, rows = map(int, found)
        split.away, split.away_rows, split.upto = split.away + count, split.away_rows + rows, split.still
        split.matched, split.rows = split.matched - count, split.rows - rows

    def _summed(self) -> Totals:
        every = self.splits.values()
        first = [split for number, split in self.splits.items() if number < REPAIR_SPLIT]
        late = sum(split.late for split in every)
        lately = Lately(
            chunk_rows=round(sum(split.late_rows for split in every) / max(late, 1)),
            chunk_millis=sum(split.late_millis for split in every) / max(late, 1),
        )
        return Totals(
            chunks_open=sum(split.opened for split in every),
            chunks_landed=sum(split.landed for split in every),
            chunks_matched=sum(split.away + split.matched for split in every),
            rows_copied=sum(split.away_rows + split.rows for split in first),
            splits=sum(split.splits for split in every),
            splits_done=sum(split.done for split in every),
            first_left=sum(not split.is_done for split in first),
            first_unmatched=sum(split.opened + split.landed for split in first),
            lately=lately if late else None,
        )
