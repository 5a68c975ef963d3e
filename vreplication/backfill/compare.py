"""Compares one slice on both sides and repairs what differs.

What must stay true: a slice is clean only when every row of the source's slice was found on the target, equal in every
column; a row of the target is deleted only if its key is nowhere in the source (or there without a time), and only
while its own time is still in the slice; a row of the target's slice whose row in the source has another time takes
that row as it is, again only while it is still in the slice: who works on the other interval may have been here first.

Two servers do not print a DOUBLE alike, and JSON is stored in another shape than it was written in: such columns are
compared as values (schema/soft.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from vreplication.backfill.conflict import FOREIGN, Conflicts
from vreplication.backfill.rows import Key, Row, any_sql, read_row, row_sql, shown
from vreplication.backfill.slices import Slice
from vreplication.backfill.tables import Tables
from vreplication.backfill.upsert import KEYS_AT_ONCE, Counts, Upsert
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.values import split_literals
from vreplication.schema.checksum import (
    Checksum,
    Side,
    buckets,
    checksum,
    in_buckets,
    row_hashes,
    source_side,
    target_side,
)
from vreplication.schema.literals import literal_sql, quoted

BUCKET_ROWS = 5_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a comparison saw before it wrote. `extra`: rows of the target alone, which are left where they are.

    blocked: words on what keeps a row out of the target.
    """

    differing: int = 0
    extra: int = 0
    example: str = ""
    blocked: str = ""
    counts: Counts = field(default_factory=Counts)

    def __add__(self, other: Found) -> Found:
        return Found(
            differing=self.differing + other.differing,
            extra=self.extra + other.extra,
            example=self.example or other.example,
            blocked=self.blocked or other.blocked,
            counts=self.counts + other.counts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparer:
    """Both ends of a slice."""

    source: Session
    target: Session
    tables: Tables
    slice: Slice
    is_mirror: bool
    batch_rows: int

    def run(self) -> Found:
        sides = self._sides()
        wheres = (self.slice.source_sql(self.tables), self.slice.target_sql(self.tables))
        found = Found()
        for ours, theirs in self._narrowed(sides, wheres):
            found += self._compare(_rows(self.source, sides[0], ours), _rows(self.target, sides[1], theirs))
        return found

    def _sides(self) -> tuple[Side, Side]:
        mapping = replace(self.tables.mapping, soft=self.tables.soft)
        return (
            replace(source_side(mapping), index=self.tables.source_index),
            replace(target_side(mapping), index=self.tables.target_index),
        )

    def _narrowed(self, sides: tuple[Side, Side], wheres: tuple[str, str]) -> Iterator[tuple[str, str]]:
        """Predicates for the parts of the slice that differ, or may."""
        sums = [checksum(session, side, where) for session, side, where in self._ends(sides, wheres)]
        if sums[0] == sums[1]:
            return
        count = -(-max(c.rows for c in sums) // BUCKET_ROWS)
        if count < 2:
            yield wheres
            return
        ours, theirs = (buckets(session, side, where, count) for session, side, where in self._ends(sides, wheres))
        for number in sorted({*ours, *theirs}):
            if ours.get(number, Checksum()) != theirs.get(number, Checksum()):
                yield tuple(f"{w} AND {in_buckets(s, [number], count)}" for s, w in zip(sides, wheres, strict=True))  # type: ignore[misc]

    def _ends(self, sides: tuple[Side, Side], wheres: tuple[str, str]) -> Iterable[tuple[Session, Side, str]]:
        return zip((self.source, self.target), sides, wheres, strict=True)

    def _compare(self, ours: dict[str, tuple[str, Key]], theirs: dict[str, tuple[str, Key]]) -> Found:
        """What the target has too much goes first: it may hold a unique value that a missing row needs."""
        wrong = [key for name, (value, key) in ours.items() if name not in theirs or theirs[name][0] != value]
        extra = {name: key for name, (_, key) in theirs.items() if name not in ours}
        found = Found(differing=len(wrong), example=shown(self.tables, wrong[0]) if wrong else "")
        for names in _several(list(extra)):
            found += self._surplus({name: extra[name] for name in names})
        for keys in _several(wrong):
            found += self._refresh(keys)
        return found

    def _refresh(self, keys: Sequence[Key]) -> Found:
        # Within the slice only: a row that has left it meanwhile belongs to another interval, whose run may have been
        # here first.
        return self._write(self._read(keys, self.slice.source_sql(self.tables)))

    def _write(self, rows: Sequence[Row], guard: str = "") -> Found:
        upsert = Upsert(session=self.target, tables=self.tables, batch_rows=self.batch_rows, blocked=[], guard=guard)
        counts = upsert.write(rows)
        settled, words = Conflicts(source=self.source, target=self.target, tables=self.tables).settle(upsert)
        return Found(counts=counts + settled, blocked=words)

    def _read(self, keys: Sequence[Key], where: str) -> list[Row]:
        """Rows of the source with these keys. A key that its character set cannot spell is none of its keys."""
        source = self.tables.mapping.source
        sql = f"SELECT {row_sql(self.tables)} FROM {qualified(source.schema, source.name)} "
        try:
            return [
                read_row(row) for row in self.source.rows(f"{sql}WHERE ({any_sql(self.tables.key, keys)}) AND {where}")
            ]
        except SqlError as error:
            if error.code not in FOREIGN:
                raise
        # The error does not name the key: it is looked for in halves until it stands alone.
        middle = len(keys) // 2
        return [*self._read(keys[:middle], where), *self._read(keys[middle:], where)] if middle else []

    def _surplus(self, extra: dict[str, Key]) -> Found:
        """Rows of the target's slice that the source's slice does not have."""
        timed = f"{ident(self.tables.time.source.name)} IS NOT NULL"
        moved = self._read(list(extra.values()), timed)
        # The guard is part of the statement: between our look and this write the other interval's run may have taken
        # the row, with a newer image than ours.
        written = self._write(moved, guard=self.slice.target_sql(self.tables))
        gone = self._gone(extra, moved, timed)
        if not self.is_mirror:
            # Rows that are to stay are no difference: no round would repair them, and the interval would never be
            # verified.
            return written + Found(differing=len(extra) - len(gone), extra=len(gone))
        example = shown(self.tables, next(iter(extra.values())))
        return written + Found(differing=len(extra), example=example, counts=Counts(deleted=self._delete(gone)))

    def _gone(self, extra: dict[str, Key], moved: Sequence[Row], timed: str) -> dict[str, Key]:
        """Rows whose key the source does not have, in another spelling either."""
        known = {row.ident for row in moved}
        left = {name: key for name, key in extra.items() if name not in known}
        if known <= set(extra):
            return left
        # A row was found under another spelling than the target's: whose it is is asked one by one.
        return {name: key for name, key in left.items() if not self._read([key], timed)}

    def _delete(self, gone: dict[str, Key]) -> int:
        deleted = 0
        target = self.tables.mapping.target
        exact = target_side(self.tables.mapping).exact_key
        for names in _several(list(gone), self.batch_rows):
            where = any_sql(self.tables.target_key, [gone[name] for name in names])
            sql = f"DELETE FROM {qualified(target.schema, target.name)} WHERE ({where}) AND "
            # The keys are found by collation, and another spelling is another row.
            sql += f"SHA2({exact},256) IN ({','.join(quoted(name) for name in names)}) AND "
            # Another interval's run may have taken the row meanwhile; its time is not in this slice any more then.
            deleted += self.target.execute_raw(sql + self.slice.target_sql(self.tables))
        return deleted


def _several(items: Sequence[T], most: int = KEYS_AT_ONCE) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]


def _rows(session: Session, side: Side, where: str) -> dict[str, tuple[str, Key]]:
    """Hash of the key → (the row's hash, the key's literals)."""
    keys = [literal_sql(c, ident(c.name)) for c in side.columns]
    # As each side spells them: what finds the row there again.
    own = replace(side, literals=tuple(keys), templates=("{}",) * len(keys))
    return {row.ident: (row.value, tuple(split_literals(row.key))) for row in row_hashes(session, own, where)}
