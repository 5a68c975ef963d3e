"""Rows of the source as SQL text, each with its key: what an upsert writes and a comparison finds again.

What must stay true: `ident` tells keys apart by their exact values, alike on both sides, whatever a collation takes for
the same; a key's literals find its row on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vreplication.backfill.tables import Tables
from vreplication.mysql.quoting import ident
from vreplication.mysql.values import readable
from vreplication.schema.bounds import equal_sql
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.literals import literal_sql, row_literal_sql
from vreplication.schema.model import Column

Key = tuple[str, ...]
"""Literals of the key's columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the source. `text`: `(literal,…)`; None: longer than max_allowed_packet."""

    text: str | None
    ident: str
    key: Key


def row_sql(tables: Tables) -> str:
    """The select list that `read_row` takes apart."""
    return f"{row_literal_sql(tables.mapping)},{source_key_sql(tables)}"


def read_row(found: Sequence[Any]) -> Row:
    return Row(text=None if found[0] is None else text(found[0]), ident=text(found[1]), key=read_key(found[2:]))


def source_key_sql(tables: Tables) -> str:
    """Select list: ident and the key's literals."""
    return _key_sql(source_side(tables.mapping).exact_key, tables.key)


def target_key_sql(tables: Tables) -> str:
    return _key_sql(target_side(tables.mapping).exact_key, tables.target_key)


def _key_sql(exact: str, columns: Sequence[Column]) -> str:
    return ",".join([f"SHA2({exact},256)", *(literal_sql(c, ident(c.name)) for c in columns)])


def read_key(found: Sequence[Any]) -> Key:
    return tuple(map(text, found))


def any_sql(columns: Sequence[Column], keys: Sequence[Key]) -> str:
    """Predicate for rows with one of these keys. To be put into brackets."""
    return " OR ".join(f"({equal_sql(columns, key)})" for key in keys) or "1=0"


def shown(tables: Tables, key: Key) -> str:
    """A key as a person writes it."""
    return ", ".join(f"{c.name}={readable(literal)}" for c, literal in zip(tables.key, key, strict=True))


def text(value: object) -> str:
    """What the server rendered as ASCII may come as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
