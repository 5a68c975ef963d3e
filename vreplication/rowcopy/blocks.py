"""Rows as blocks of values for MariaDB's bulk statements, rendered by the server itself.

What must stay true: a value that comes as a parameter is stored exactly as its literal would be
(`schema.literals.literal_sql`); a column for which that is not certain makes the whole table take the text way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vreplication.mysql.bulk import BYTES, TEXT, value_sql
from vreplication.mysql.quoting import ident
from vreplication.schema.literals import (
    APPROXIMATE,
    DECIMALS,
    INTEGERS,
    LABELED,
    PLAIN_TEXT,
    TEMPORALS,
    is_character,
    literal_sql,
)
from vreplication.schema.literals import BYTES as BYTE_TYPES
from vreplication.schema.model import Column, ColumnPair

NUMBERS = INTEGERS | DECIMALS
_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """rendered: SQL of the value's bytes; placeholder: what stands for it in VALUES."""

    rendered: str
    placeholder: str
    kind: int
    longest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """row: SQL that gives a row's part of a block; values: the list in VALUES; types: of its parameters."""

    row: str
    values: str
    types: tuple[int, ...]


def make_block(pairs: Sequence[ColumnPair]) -> Block | None:
    """How rows of these pairs become a block; None where they must go as text."""
    parts: list[str] = []
    values: list[str] = []
    types: list[int] = []
    for pair in pairs:
        if pair.is_constant:
            values.append(pair.convert.format())
            continue
        found = _parameter(pair)
        if found is None:
            return None
        source = pair.source
        parts.append(
            value_sql(found.rendered, ident(source.name), is_nullable=source.is_nullable, longest=found.longest)
        )
        values.append(found.placeholder)
        types.append(found.kind)
    return Block(row=f"CONCAT({','.join(parts)})", values=",".join(values), types=tuple(types)) if parts else None


def _parameter(pair: ColumnPair) -> Parameter | None:
    if pair.convert != "{}":
        return None
    source, target = pair.source, pair.target
    name = ident(source.name)
    if is_character(source):
        return _text(source, target)
    if source.data_type in BYTE_TYPES and target.data_type in BYTE_TYPES:
        return _made(name, "?", BYTES, source.length)
    if source.data_type in LABELED:
        # F16: by label. The new definition may list the labels in another order, and a number would then be another
        # label.
        return _made(f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)", "?", TEXT, None)
    return _plain(source, target)


def _text(source: Column, target: Column) -> Parameter:
    """Bytes are stored as they are in a column of the same character set, which costs a sixth less than as text."""
    rendered = f"CAST({ident(source.name)} AS BINARY)"
    if is_character(target) and source.charset == target.charset:
        return _made(rendered, "?", BYTES, source.length)
    if source.charset in _UTF8:
        return _made(rendered, "?", TEXT, source.length)
    return _made(rendered, f"CONVERT(? USING {source.charset})", BYTES, source.length)


def _plain(source: Column, target: Column) -> Parameter | None:
    """Numbers and times as their plain text: the same digits that the literal has."""
    name, kind = ident(source.name), source.data_type
    digits = literal_sql(replace(source, is_nullable=False), name)
    if kind in TEMPORALS:
        return _made(f"CONCAT({name})", "?", BYTES if target.data_type in TEMPORALS else TEXT, 64)
    if kind in PLAIN_TEXT:
        return _made(f"CONCAT({name})", "?", TEXT, 64)
    if kind in ("bit", "year") and target.data_type == kind:
        # As a string '5' would be a bit pattern, and '0' the year 2000.
        return _made(digits, "CAST(? AS UNSIGNED)", TEXT, 64)
    is_alike = (
        (kind in INTEGERS and target.data_type in NUMBERS)
        or (kind in DECIMALS and target.data_type in DECIMALS)
        or (kind in APPROXIMATE and target.data_type in APPROXIMATE)
    )
    return _made(digits, "?", BYTES, 128) if is_alike else None


def _made(rendered: str, placeholder: str, kind: int, longest: int | None) -> Parameter:
    return Parameter(rendered=rendered, placeholder=placeholder, kind=kind, longest=longest)
