"""Comparing keys across an ALTER: which may serve as the shared key, and which are implied by what the source has.

What must stay true: each predicate answers True only where it holds for every value that the columns can take.
"""

from __future__ import annotations

from collections.abc import Callable

from vreplication.schema.literals import DECIMALS, INTEGERS, PLAIN_TEXT
from vreplication.schema.model import Column, Key, KeyPart, Table

_TIMES = ("date", "time", "datetime", "timestamp", "year", "bit")


def usable_keys(table: Table, *, may_be_null: bool = False) -> list[Key]:
    """Unique keys whose columns are NOT NULL and can be told apart by their literals: primary first, then by size.

    may_be_null: behind these those that have columns which may be NULL, too (`schema.nulls`).
    """
    found = [key for key in table.keys if _is_usable(table, key) and (may_be_null or not has_nullable(table, key))]
    order = lambda key: (has_nullable(table, key), not key.is_primary, _size(table, key), len(key.parts), key.name)  # noqa: E731
    return sorted(found, key=order)


def or_nullable(table: Table) -> str:
    """What else there is where no key is NOT NULL."""
    found = [key for key in usable_keys(table, may_be_null=True) if has_nullable(table, key)]
    columns = ", ".join(found[0].columns) if found else ""
    return f", or, if no row has NULL in {columns}, take it with --allow-nullable-key" if found else ""


def has_nullable(table: Table, key: Key) -> bool:
    return any(table.column(name).is_nullable for name in key.columns)


def _is_usable(table: Table, key: Key) -> bool:
    # HASH is MariaDB's unique key over whole texts, of which no range can be read. One that is hidden no statement may
    # ask for (FORCE INDEX).
    if not key.is_unique or key.has_expression or key.index_type != "BTREE" or key.is_hidden:
        return False
    columns = [table.column(part.column) for part in key.parts]
    # A generated one that may be NULL: what of it the log has depends on the server.
    is_told = all(_is_plain(c) and not (c.is_nullable and c.generated) for c in columns)
    return is_told and all(part.prefix is None for part in key.parts)


def _is_plain(column: Column) -> bool:
    # Not SET: MySQL reads no range of it from an index. Not FLOAT, JSON, BLOB: no literal tells their values apart.
    kinds = INTEGERS | DECIMALS | PLAIN_TEXT | {"char", "varchar", "binary", "varbinary", "enum", *_TIMES}
    return column.data_type in kinds and has_one_order(column)


def has_one_order(column: Column) -> bool:
    """False for MariaDB's CHAR under a NOPAD collation: its index sorts it with the spaces that comparisons leave out.

    'a' is less than 'a\\t' there, and stands behind it: a range that ends between the two is read without 'a'.
    """
    return column.data_type != "char" or "_nopad_" not in (column.collation or "")


def _size(table: Table, key: Key) -> int:
    return sum(table.column(part.column).length or 8 for part in key.parts)


def is_same_value(source: Column, target: Column) -> bool:
    """True when a literal of the source's value equals what the target stores for it."""
    before, after = source.data_type, target.data_type
    if before in INTEGERS and after in INTEGERS:
        return True
    if before in DECIMALS and after in DECIMALS:
        return (target.scale or 0) >= (source.scale or 0)
    if before in _TIMES or before in PLAIN_TEXT:
        return before == after and target.fraction >= source.fraction
    if before in ("enum", "set"):
        return before == after
    if before in ("binary", "varbinary"):
        return source.column_type == target.column_type or after == "varbinary"
    return before in ("char", "varchar") and _is_same_text(source, target)


def _is_same_text(source: Column, target: Column) -> bool:
    """CHAR cuts trailing spaces that a VARCHAR's literal still has."""
    if (source.charset == "binary") != (target.charset == "binary"):
        return False
    return target.data_type == source.data_type or (source.data_type, target.data_type) == ("char", "varchar")


def is_kept_apart(source: Column, target: Column) -> bool:
    """True when two values that differ on the source always differ on the target (or are refused by it)."""
    if not is_same_value(source, target):
        return source.column_type == target.column_type and source.collation == target.collation
    if source.data_type in ("char", "varchar"):
        return source.collation == target.collation
    return not source.labels or source.collation == target.collation


def is_sorted_alike(source: Column, target: Column) -> bool:
    """True when both sides put the values in the same order."""
    if source.labels or target.labels:
        # They sort by their numbers, which go by the places of the labels.
        return source.labels == target.labels
    return source.collation == target.collation


Apart = Callable[[Column, str], bool]
"""(source column, name of the target column that it became): are different values different there?"""


def is_implied(
    key: Key, known: Key, sources: dict[str, Column], is_apart: Apart, is_settled: Callable[[str], bool]
) -> bool:
    """True when the source's unique key `known` makes the target's unique key `key` hold."""
    if not known.is_unique or {known.index_type, key.index_type} - {"BTREE", "HASH"}:
        return False
    return all(any(_covers(new, old, sources, is_apart, is_settled) for new in key.parts) for old in known.parts)


def _covers(
    new: KeyPart, old: KeyPart, sources: dict[str, Column], is_apart: Apart, is_settled: Callable[[str], bool]
) -> bool:
    """True when the target's part tells apart whatever the source's part does."""
    if old.expression or new.expression:
        return old.expression == new.expression and is_settled(new.expression)
    origin = sources.get(new.column.lower())
    if origin is None or origin.name.lower() != old.column.lower():
        return False
    is_as_long = new.prefix is None or (old.prefix is not None and new.prefix >= old.prefix)
    # A shorter prefix on the target may make two values one that the source's key tells apart.
    return is_as_long and is_apart(origin, new.column)
