"""A table as the feed sends it: the columns that are sent, the key of its messages, its unique keys.

What must stay true: a layout never changes; where a table's definition does, rows that follow have another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from vreplication.schema.model import Column, Key, Table

Distinct = tuple[tuple[str, int | None], ...]
"""A unique key: (column, how much of it). Without columns: it is an expression."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """columns: those that are sent, in the order of a row's values. key: of them, by name, what tells rows apart.

    unique: the columns of every unique key, the primary one first. has_key: `key` is one of them; else it is all
    columns. is_primary: it is the primary key. distinct: unique keys in detail, for dispatch by conflicts; None: the
    server does not know the table any more.
    """

    number: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    has_key: bool = True
    is_primary: bool = True
    distinct: tuple[Distinct, ...] | None = ()

    @cached_property
    def places(self) -> dict[str, int]:
        """Of each column in a row."""
        return {column.name: place for place, column in enumerate(self.columns)}

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.places[name] for name in self.key)

    @cached_property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


def make_layout(number: int, table: Table) -> Layout:
    """As a server defines it now. A key that is an expression, or part of a column, tells no rows apart here."""
    columns, keys = table.columns, table.keys
    nullable = {column.name for column in columns if column.is_nullable}
    whole = [key for key in keys if key.is_unique and not key.has_expression and not any(p.prefix for p in key.parts)]
    named = sorted(whole, key=lambda key: not key.is_primary)
    fit = next((key for key in named if not nullable.intersection(key.columns) and _is_logged(table, key)), None)
    return Layout(
        number=number,
        schema=table.schema,
        table=table.name,
        columns=tuple(columns),
        key=fit.columns if fit else tuple(column.name for column in columns),
        unique=tuple(key.columns for key in named),
        has_key=fit is not None,
        is_primary=fit is not None and fit.is_primary,
        distinct=distinct_of(keys),
    )


def _is_logged(table: Table, key: Key) -> bool:
    """The log tells rows apart by it, too: not by MariaDB's unique keys over hashes (long text, USING HASH)."""
    # Rows of before would go by another key, into other partitions, than their changes. MEMORY calls plain keys so.
    return key.index_type != "HASH" or table.engine.lower() == "memory"


def distinct_of(keys: Sequence[Key]) -> tuple[Distinct, ...]:
    """In an order of their own."""
    unique = (key for key in keys if key.is_unique)
    found = {() if key.has_expression else tuple((part.column, part.prefix) for part in key.parts) for key in unique}
    # By their text, for None, a whole column, is not compared with a number.
    return tuple(sorted(found, key=repr))
