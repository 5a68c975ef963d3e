"""Rows of the source that would be one under a unique key of the target.

What must stay true: values are compared as the target will compare them (its type, its collation, its prefix), so that
what is found here is what a plain ALTER TABLE would refuse; rows with a NULL in the key never collide.
"""

from __future__ import annotations

import re

from vreplication.mysql.quoting import ident, qualified, text
from vreplication.mysql.session import Session
from vreplication.schema.expressions import read_by
from vreplication.schema.fills import has_quoted_default, is_moment
from vreplication.schema.literals import (
    APPROXIMATE,
    BINARIES,
    DECIMALS,
    INTEGERS,
    LABELED,
    is_character,
)
from vreplication.schema.mapping import in_zone
from vreplication.schema.model import Column, ColumnPair, Key, KeyPart, Table, TableMapping

# A value may be a document of megabytes, and this goes into a sentence.
_SHOWN = 60
_NUMBER, _BITS = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.I), re.compile(r"b'[01]+'")


def find_duplicates(session: Session, mapping: TableMapping, unique: Key, limit: int = 10) -> list[str]:
    """Up to `limit` values that occur more than once, as text with their count."""
    if not mapping.is_written_in_zone:
        return _find(session, mapping, unique, limit)
    # Generated columns and expression defaults are computed by the session's zone; a plain ALTER has the server's.
    with session.in_the_servers_zone():
        return _find(session, in_zone(mapping), unique, limit)


def _find(session: Session, mapping: TableMapping, unique: Key, limit: int) -> list[str]:
    parts = [_part(mapping, part) for part in unique.parts]
    # What the server will fill in is not known here: rows that do collide by it keep conflicting while they are copied,
    # and are named then (docs/correctness.md).
    if any(part is None for part in parts):
        return []
    computed = [p for p in unique.parts if p.expression or mapping.target.column(p.column).generated]
    wanted = frozenset(name for p in computed for name in read_by(mapping.target, p.expression or ident(p.column)))
    if any(_filled(mapping.target, column) is None for column in _added(mapping, wanted)):
        return []
    values = [f"v{i}" for i in range(len(parts))]
    shown = ",".join(_shown_sql(mapping, p, v) for p, v in zip(unique.parts, values, strict=True))
    inner = ",".join(f"{part} AS {v}" for part, v in zip(parts, values, strict=True))
    rows = session.rows(
        f"SELECT {shown},COUNT(*) FROM (SELECT {inner} FROM {_mapped(mapping, wanted)}) grouped"
        f" WHERE {' AND '.join(f'{v} IS NOT NULL' for v in values)}"
        f" GROUP BY {','.join(values)} HAVING COUNT(*)>1 LIMIT {int(limit)}"
    )
    return [f"({', '.join(map(_shown, row[:-1]))}) {row[-1]} times" for row in rows]


def _shown_sql(mapping: TableMapping, part: KeyPart, value: str) -> str:
    """MySQL fails on MIN of text that was converted to another character set (3854, measured)."""
    if part.column and is_character(mapping.target.column(part.column)):
        value = f"CONVERT({value} USING utf8mb4)"
    return f"LEFT(CONCAT(MIN({value})),{_SHOWN})"


def _shown(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _mapped(mapping: TableMapping, wanted: frozenset[str]) -> str:
    """The source's rows under the target's column names, each value in its target's type.

    wanted: generated columns, in lower case, to be computed too; one behind the other, for they may read each other.
    """
    shown = [f"{_typed(pair)} AS {ident(pair.target.name)}" for pair in (*mapping.pairs, *mapping.kept)]
    shown += [f"{_filled(mapping.target, column)} AS {ident(column.name)}" for column in _added(mapping, wanted)]
    columns = ",".join(shown)
    sql = f"(SELECT {columns} FROM {qualified(mapping.source.schema, mapping.source.name)}) mapped"
    known = {pair.target.name.lower() for pair in mapping.kept}
    missing = [c for c in mapping.target.columns if c.generated and c.name.lower() in wanted - known]
    while missing:
        names = {c.name.lower() for c in missing}
        column = next(c for c in missing if not names & (read_by(mapping.target, c.expression) - {c.name.lower()}))
        missing.remove(column)
        sql = f"(SELECT mapped.*,{_cast(column, column.expression)} AS {ident(column.name)} FROM {sql}) mapped"
    return sql


def _added(mapping: TableMapping, wanted: frozenset[str]) -> list[Column]:
    """Columns that the ALTER adds and generated ones read; what they hold is in no pair, for the server fills them."""
    there = {pair.target.name.lower() for pair in (*mapping.pairs, *mapping.kept)}
    return [c for c in mapping.target.columns if c.name.lower() in wanted - there and not c.generated]


def _filled(table: Table, column: Column) -> str | None:
    """SQL of their value, the same in every row; None: it is not known."""
    if column.default is None and not column.is_auto_increment:
        return "NULL"
    value = _default(table, column)
    # Of bytes SHOW COLUMNS shows the digits; of a moment it is not known by now which it will be.
    if value is None or column.data_type in BINARIES:
        return None
    if column.data_type in INTEGERS:
        # No text, of which a DOUBLE would be made.
        return f"CAST({value} AS {'UNSIGNED' if column.is_unsigned else 'SIGNED'})"
    return _cast(column, value)


def _part(mapping: TableMapping, part: KeyPart) -> str | None:
    """SQL over the mapped rows; None: the server fills it with values that we cannot know, or with NULL."""
    if part.expression:
        # SHOW INDEX, from which the expression comes, escapes its quotes; SHOW CREATE TABLE does not.
        return re.sub(r"\\(.)", r"\1", part.expression, flags=re.S)
    column = mapping.target.column(part.column)
    is_known = column.generated or any(pair.target.name == column.name for pair in mapping.pairs)
    value = ident(column.name) if is_known else _same(mapping.target, column)
    if value is None:
        return None
    value = _compared(column, value)
    return value if part.prefix is None else f"LEFT({value},{part.prefix})"


def _same(table: Table, column: Column) -> str | None:
    """What is the same in every row of an added column: its literal default, or the moment of the ALTER."""
    is_constant = is_moment(table, column) or _BITS.fullmatch(column.default or "")
    return text(column.default or "") if is_constant else _default(table, column)


def _default(table: Table, column: Column) -> str | None:
    """An added column's literal default. None: it has none, or an expression, whose values are not known."""
    if column.is_auto_increment or column.default is None:
        return None
    # By its quotes in the definition: 'NULL' and 'now' may be text.
    is_literal = has_quoted_default(table, column) or _NUMBER.fullmatch(column.default)
    return text(column.default) if is_literal else None


def _compared(column: Column, value: str) -> str:
    # By the source's collation 'a' and 'A' may be two, and by the target's one.
    if is_character(column) or column.data_type in LABELED:
        return f"CONVERT({value} USING {column.charset}) COLLATE {column.collation}"
    return value


def _typed(pair: ColumnPair) -> str:
    """The pair's value, rounded or cut as its target will."""
    value = pair.convert.format(ident(pair.source.name))
    before, after = pair.source, pair.target
    if before.column_type == after.column_type or (after.data_type in INTEGERS and before.data_type in INTEGERS):
        return value
    if after.data_type == "char" and before.data_type in BINARIES:
        # Its bytes as text, of which a space is one sign.
        value = f"CONVERT({value} USING {after.charset})"
    return _cast(after, value)


def _cast(column: Column, value: str) -> str:
    """A value as a column of this type holds it."""
    kind = column.data_type
    if kind in DECIMALS:
        return f"CAST({value} AS DECIMAL({column.precision},{column.scale or 0}))"
    if kind in INTEGERS:
        # As it is stored: a CAST to an integer cuts where storing rounds, and two values that become one would pass.
        return f"ROUND({value})"
    if kind in APPROXIMATE:
        return f"CAST({value} AS {kind.upper()})"
    if kind == "char":
        # A collation that counts spaces at the end does not see them there.
        return f"TRIM(TRAILING ' ' FROM {value})"
    if kind in BINARIES:
        # Padded with zero bytes, or as long as it is; by a collation no more.
        return f"CAST({value} AS BINARY{f'({column.characters})' if kind == 'binary' else ''})"
    if kind in ("datetime", "timestamp", "time"):
        return f"CAST({value} AS {'TIME' if kind == 'time' else 'DATETIME'}({column.fraction}))"
    return f"CAST({value} AS DATE)" if kind == "date" else value
