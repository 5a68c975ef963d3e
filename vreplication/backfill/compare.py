"""Compares one slice on both sides and mends what differs.

What must stay true: a slice is clean only when every row of the source's slice was found on the target, equal in every
column; a row of the target is deleted only if its key is nowhere in the source (or there without a time), and only
while its own time is still in the slice; a row of the target's slice whose row in the source has another time takes
that row as it is, again only while it is still in the slice: who works on the other interval may have been here first.

Two servers do not print a DOUBLE alike, and JSON is stored in another shape than it was written in: such columns
("soft") are compared as values here, row by row, and the rest by checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vreplication.backfill.slices import Slice
from vreplication.backfill.tables import Tables
from vreplication.backfill.upsert import Counts, again, upsert
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.schema.bounds import equal_sql
from vreplication.schema.checksum import Checksum, Side, buckets, checksum, in_buckets, source_side, target_side
from vreplication.schema.literals import APPROXIMATE, literal_sql, row_literal_sql
from vreplication.schema.model import Column, TableMapping

BUCKET_ROWS = 5_000
KEYS_AT_ONCE = 200

Key = tuple[str, ...]
"""Literals of the key's columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a comparison saw before it mended. `extra`: rows of the target alone, which are left where they are."""

    differing: int = 0
    extra: int = 0
    example: str = ""
    counts: Counts = field(default_factory=Counts)

    def __add__(self, other: Found) -> Found:
        return Found(
            differing=self.differing + other.differing,
            extra=self.extra + other.extra,
            example=self.example or other.example,
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
            found += self._compare(_rows(self.source, sides[0], self.tables, ours, "source"),
                                   _rows(self.target, sides[1], self.tables, theirs, "target"))  # fmt: skip
        return found

    def _sides(self) -> tuple[Side, Side]:
        mapping = _firm(self.tables)
        return (
            replace(source_side(mapping), index=self.tables.source_index),
            replace(target_side(mapping), index=self.tables.target_index),
        )

    def _narrowed(self, sides: tuple[Side, Side], wheres: tuple[str, str]) -> Iterator[tuple[str, str]]:
        """Predicates for the parts of the slice that differ, or may."""
        sums = [checksum(session, side, where) for session, side, where in self._ends(sides, wheres)]
        if sums[0] == sums[1] and not self.tables.soft:
            return
        count = -(-max(c.rows for c in sums) // BUCKET_ROWS)
        if count < 2:
            yield wheres
            return
        ours, theirs = (buckets(session, side, where, count) for session, side, where in self._ends(sides, wheres))
        for number in sorted({*ours, *theirs}):
            if self.tables.soft or ours.get(number, Checksum()) != theirs.get(number, Checksum()):
                yield tuple(f"{w} AND {in_buckets(s, [number], count)}" for s, w in zip(sides, wheres, strict=True))  # type: ignore[misc]

    def _ends(self, sides: tuple[Side, Side], wheres: tuple[str, str]) -> Iterable[tuple[Session, Side, str]]:
        return zip((self.source, self.target), sides, wheres, strict=True)

    def _compare(self, ours: dict[str, tuple[object, Key]], theirs: dict[str, tuple[object, Key]]) -> Found:
        """What the target has too much goes first: it may hold a unique value that a missing row needs."""
        wrong = [key for name, (value, key) in ours.items() if name not in theirs or theirs[name][0] != value]
        extra = [key for name, (_, key) in theirs.items() if name not in ours]
        found = Found(differing=len(wrong), example=",".join(wrong[0]) if wrong else "")
        for keys in _several(extra):
            found += self._surplus(keys)
        for keys in _several(wrong):
            found += Found(counts=self._refresh(keys))
        return found

    def _refresh(self, keys: Sequence[Key]) -> Counts:
        where = f"({_any(self.tables.key, keys)}) AND {self.slice.source_sql(self.tables)}"
        return upsert(self.target, self.tables, (row for _, row in self._read(where)), self.batch_rows)

    def _read(self, where: str) -> list[tuple[Key, str | None]]:
        source = self.tables.mapping.source
        key = ",".join(literal_sql(c, ident(c.name)) for c in self.tables.key)
        sql = f"SELECT {row_literal_sql(self.tables.mapping)},{key} FROM {qualified(source.schema, source.name)}"
        return [(tuple(map(text, key)), None if row is None else text(row)) for row, *key in
                self.source.rows(f"{sql} WHERE {where}")]  # fmt: skip

    def _surplus(self, keys: Sequence[Key]) -> Found:
        """Rows of the target's slice that the source's slice does not have."""
        timed = f"({_any(self.tables.key, keys)}) AND {ident(self.tables.time.source.name)} IS NOT NULL"
        moved = dict(self._read(timed))
        guard = self.slice.target_sql(self.tables)
        counts = upsert(self.target, self.tables, moved.values(), self.batch_rows, guard=guard)
        gone = [key for key in keys if key not in moved]
        if not self.is_mirror:
            return Found(differing=len(moved), extra=len(gone), counts=counts)
        example = ",".join(keys[0])
        return Found(differing=len(keys), example=example, counts=counts + Counts(deleted=self._delete(gone)))

    def _delete(self, keys: Sequence[Key]) -> int:
        deleted = 0
        target = self.tables.mapping.target
        columns = tuple(pair.target for pair in self.tables.mapping.key)
        for start in range(0, len(keys), self.batch_rows):
            where = _any(columns, keys[start : start + self.batch_rows])
            sql = f"DELETE FROM {qualified(target.schema, target.name)} WHERE ({where}) AND "
            sql += self.slice.target_sql(self.tables)
            deleted += again(lambda sql=sql: self.target.execute_raw(sql))  # type: ignore[misc]
        return deleted


def _firm(tables: Tables) -> TableMapping:
    """The mapping without what checksums cannot compare."""
    return replace(tables.mapping, pairs=tuple(p for p in tables.mapping.pairs if p not in tables.soft))


def _several(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[start : start + KEYS_AT_ONCE]


def _any(columns: tuple[Column, ...], keys: Sequence[Key]) -> str:
    return " OR ".join(f"({equal_sql(columns, key)})" for key in keys) or "1=0"


def _rows(session: Session, side: Side, tables: Tables, where: str, which: str) -> dict[str, tuple[object, Key]]:
    """Hash of the key → (the row's value, the key's literals)."""
    soft = [getattr(pair, which) for pair in tables.soft]
    shown = [f"SHA2({side.exact_key},256)", f"SHA2({side.exact_row},256)", *map(_soft_sql, soft)]
    keys = [literal_sql(c, ident(c.name)) for c in side.columns]
    found = session.rows(f"SELECT {','.join([*shown, *keys])} {side.from_sql} WHERE {where}")
    width = 2 + len(soft)
    read = [_number if column.data_type in APPROXIMATE else _document for column in soft]
    return {
        text(row[0]): (
            (text(row[1]), *(f(v) for f, v in zip(read, row[2:width], strict=True))),
            tuple(map(text, row[width:])),
        )
        for row in found
    }


def _soft_sql(column: Column) -> str:
    name = ident(column.name)
    if column.data_type in APPROXIMATE:
        return f"IF({name} IS NULL,NULL,JSON_ARRAY({name}+0e0))"
    return f"CONVERT({name} USING utf8mb4)"


def _number(shown: object) -> float | None:
    """All digits of a DOUBLE, in brackets."""
    return None if shown is None else float(text(shown).strip("[]"))


def _document(shown: object) -> str | None:
    """One text for all texts of the same JSON value."""
    if shown is None:
        return None
    try:
        return json.dumps(_plain(json.loads(text(shown))), sort_keys=True)
    except ValueError:
        return f"text {text(shown)}"


def _plain(value: Any) -> Any:
    """Numbers as the servers keep them in JSON: 64-bit integers, else DOUBLE. -0 is 0."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 64 else float(value)
    return value + 0.0 if isinstance(value, float) else value


def text(value: object) -> str:
    """What the server rendered as ASCII may come as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
