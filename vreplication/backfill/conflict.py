"""What keeps a row of the source out of the target, and whether that is for good.

What must stay true: a conflict alone is no proof, for the target may be behind. It is proven when one statement has
read both rows of the source, and the target takes their keys, or their values of a unique key, for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vreplication.backfill.rows import Key, Row, any_sql, read_key, shown, source_key_sql, target_key_sql, text
from vreplication.backfill.tables import Tables
from vreplication.backfill.upsert import Counts, Upsert
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.schema import model
from vreplication.schema.literals import literal_sql

FOREIGN = frozenset({1267, 3854})
"""The literal has characters that the column's character set does not have: no row of the source has that key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A row of the source. values: by the target's column names. is_rival: it has the rival's key, as spelled there."""

    ident: str
    key: Key
    values: dict[str, str]
    is_rival: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """Both ends, and what wrote the rows."""

    source: Session
    target: Session
    tables: Tables

    def settle(self, upsert: Upsert) -> tuple[Counts, str]:
        """Writes what is only another spelling; says what is in the first other row's way. Raises BadValue."""
        done, words = Counts(), ""
        for row in upsert.blocked:
            verdict = self._judge(row)
            if verdict is None:
                done += upsert.respell(row)
            words = words or verdict or ""
        return done, words

    def _judge(self, row: Row) -> str | None:
        """None: the row that is in the way is the same, spelled in another way. '': nothing is in the way any more."""
        mine = next((seen for seen in self._seen(row.key, row.key) if seen.ident == row.ident), None)
        # The source has deleted or renamed it since it was read: there is nothing to be written, and the next
        # comparison tells.
        if mine is None:
            return ""
        for unique in self.tables.plain_unique:
            for rival in self._rivals(unique, mine):
                return self._verdict(unique, mine, rival)
        return ""

    def _verdict(self, unique: model.Key, mine: _Seen, rival: Key) -> str | None:
        # Both in one statement: by two, a value that went from one row to the other meanwhile would look like a real
        # duplicate.
        seen = self._seen(mine.key, rival)
        mine = next((one for one in seen if one.ident == mine.ident), mine)
        other = next((one for one in seen if one.ident != mine.ident and one.is_rival), None)
        # The target is asked, whose collation decides: a row of it that equals both values shows that it cannot hold
        # both rows.
        if other is not None and self._rivals(unique, mine, other):
            raise self._proven(unique, mine.key, other.key)
        if other is None and mine.is_rival and unique.is_primary:
            return None
        why = "whose values are others on the source" if other or mine.is_rival else "which the source does not have"
        return (
            f"the target's row {shown(self.tables, rival)}, {why}, is in the way of {shown(self.tables, mine.key)} "
            f"under the key {unique.name}"
        )

    def _proven(self, unique: model.Key, mine: Key, other: Key) -> BadValue:
        source, target = self.tables.mapping.source, self.tables.mapping.target
        return BadValue(
            f"{shown(self.tables, mine)} and {shown(self.tables, other)} are two rows of "
            f"{source.schema}.{source.name}, but the key {unique.name} of {target.schema}.{target.name} takes them for "
            "the same.",
            cure="Give its columns the collation and definition that they have on the source, or change one of the "
            "rows; no row was replaced.",
        )

    def _rivals(self, unique: model.Key, *rows: _Seen) -> list[Key]:
        """The other row of the target that has these rows' values of the key."""
        target = self.tables.mapping.target
        where = " AND ".join(_equal(part, row.values[part.column]) for part in unique.parts for row in rows)
        sql = f"SELECT {target_key_sql(self.tables)} FROM {qualified(target.schema, target.name)} WHERE {where}"
        return [read_key(found[1:]) for found in self.target.rows(sql) if text(found[0]) != rows[0].ident]

    def _seen(self, key: Key, rival: Key) -> list[_Seen]:
        """The source's rows with either key, read at one moment."""
        try:
            return self._look(key, rival)
        except SqlError as error:
            # A rival that the source's character set cannot spell is no row of the source, so what is left is the row
            # itself.
            if error.code not in FOREIGN or key == rival:
                raise
            return [one for one in self._look(key, key) if not one.is_rival]

    def _look(self, key: Key, rival: Key) -> list[_Seen]:
        source, columns = self.tables.mapping.source, self.tables.key
        pairs = self.tables.unique_pairs
        values = [literal_sql(pair.source, ident(pair.source.name)) for pair in pairs]
        shape = ",".join([f"({any_sql(columns, [rival])})", *values, source_key_sql(self.tables)])
        where = any_sql(columns, [key, rival])
        found = self.source.rows(f"SELECT {shape} FROM {qualified(source.schema, source.name)} WHERE {where}")
        return [_read(row, [pair.target.name for pair in pairs]) for row in found]


def _read(found: Sequence[object], names: Sequence[str]) -> _Seen:
    width = 1 + len(names)
    values = dict(zip(names, read_key(found[1:width]), strict=True))
    return _Seen(ident=text(found[width]), key=read_key(found[width + 1 :]), values=values, is_rival=bool(found[0]))


def _equal(part: model.KeyPart, literal: str) -> str:
    name = ident(part.column)
    if part.prefix is None:
        return f"{name}={literal}"
    return f"LEFT({name},{part.prefix})=LEFT({literal},{part.prefix})"
