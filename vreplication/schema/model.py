"""Tables, columns and keys as values, and how a source table's columns become the target's.

What must stay true: everything here is plain data (it is pickled to Spark's workers); columns are known by
their ordinal as information_schema counts them, which is the order of the values in a row event.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column as information_schema describes it. `ordinal` counts from 1."""

    name: str
    ordinal: int
    data_type: str
    """Lower case, without length: int, varchar, enum, datetime, json, …"""
    column_type: str
    """The whole of it: `int(10) unsigned`, `enum('a','b')`."""
    is_nullable: bool
    is_unsigned: bool = False
    charset: str | None = None
    collation: str | None = None
    length: int | None = None
    """Octets of a string or binary type (CHARACTER_OCTET_LENGTH)."""
    characters: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int = 0
    """Fractional digits of a time type."""
    labels: tuple[str, ...] = ()
    """Of ENUM and SET, in order."""
    generated: str = ""
    """'', 'virtual' or 'stored'."""
    is_invisible: bool = False
    is_auto_increment: bool = False
    has_default: bool = False
    default: str | None = None
    """Text of the default as SHOW COLUMNS gives it; None: NULL or none."""
    expression: str = ""
    """Of a generated column, as SHOW CREATE TABLE writes it."""

    @property
    def is_zerofill(self) -> bool:
        return "zerofill" in self.column_type


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """A column of a key, or an expression (then `column` is empty)."""

    column: str
    prefix: int | None = None
    expression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """is_hidden: from the optimizer (MySQL's INVISIBLE, MariaDB's IGNORED): no row is looked for in it, nor may be."""

    name: str
    parts: tuple[KeyPart, ...]
    is_unique: bool
    is_primary: bool = False
    has_expression: bool = False
    index_type: str = "BTREE"
    is_hidden: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(p.column for p in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table's definition and the optimizer's estimates of its size."""

    schema: str
    name: str
    engine: str
    columns: tuple[Column, ...]
    keys: tuple[Key, ...]
    create_sql: str
    estimated_rows: int = 0
    data_bytes: int = 0
    index_bytes: int = 0
    is_partitioned: bool = False
    collation: str = ""
    """The default of its text columns; empty where that is not known, of a temporary table."""
    auto_increment: int | None = None

    @property
    def row_bytes(self) -> int:
        """Of a row of usual size, by the estimates; at least 1."""
        return max(self.data_bytes // max(self.estimated_rows, 1), 1)

    def column(self, name: str) -> Column:
        """By name, as the server compares column names (case-insensitively). Raises KeyError."""
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        raise KeyError(name)

    def has_column(self, name: str) -> bool:
        return any(c.name.lower() == name.lower() for c in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPair:
    """A source column and the target column that takes its value.

    `convert` is a Python format string: `convert.format(value)`, where `value` is SQL of the source's type (the
    column itself, or a literal), is SQL for what is written to the target. Nearly always "{}". It may use its value
    several times ("COALESCE(CONVERT_TZ({0},…),{0})"), and not at all: a column that the ALTER adds NOT NULL without
    a default takes a constant, as a plain ALTER gives it; its `source` is then the key's first column.
    """

    source: Column
    target: Column
    convert: str = "{}"

    @property
    def is_constant(self) -> bool:
        return "{" not in self.convert

    @property
    def is_recollated(self) -> bool:
        """True for text that the target compares by another collation: what is one value there may be two here."""
        # Of text only these two can be in a shared key (keys.py): TEXT is indexed by a prefix or a hash alone, and an
        # ENUM is compared by its number, whatever its collation.
        is_text = self.source.data_type in ("char", "varchar") and self.source.collation is not None
        return is_text and self.source.collation != self.target.collation


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """How rows of `source` become rows of `target`.

    pairs: every target column that takes a value from the source (generated ones take none), in target order.
    key:   the shared unique key, in key order; rows are told apart by it on both sides; see `may_have_null`.
    source_index, target_index: the names of that key on either side.
    added_unique: unique keys of the target that the source does not have, or has wider: see `may_collide`.
    may_collide: rows that were different may now collide: what is in the way of a write is noted before it goes.
    is_exact_key: the key is made of integers and binaries alone, so equal keys are equal literals.
    has_same_order: both sides sort the key alike: a range of the source's key is the same rows on the target.
    kept: stored generated columns that a plain ALTER leaves as they are. They are compared, not written.
    is_written_in_zone: what the target computes or checks may depend on the time zone: rows go in the server's.
    soft: those of `pairs` and `kept` whose equal values two servers do not show alike: compared by `schema/soft.py`.
    spared: target columns that the source does not know: a row that is there keeps its values of them.
    """

    source: Table
    target: Table
    pairs: tuple[ColumnPair, ...]
    key: tuple[ColumnPair, ...]
    source_index: str
    target_index: str
    added_unique: tuple[Key, ...] = ()
    is_exact_key: bool = False
    has_same_order: bool = True
    kept: tuple[ColumnPair, ...] = ()
    is_written_in_zone: bool = False
    soft: tuple[ColumnPair, ...] = ()
    spared: tuple[Column, ...] = ()

    @property
    def is_staged(self) -> bool:
        """Rows go by way of a temporary table of the server's (state/stage.py)."""
        # VALUES could do neither: a local time is two moments for an hour of each year, and REPLACE would set columns
        # that the row does not bring to their defaults.
        return self.is_written_in_zone or bool(self.spared)

    @property
    def is_recollated(self) -> bool:
        """True when the target compares keys by another collation: there "equal" does not mean the same row."""
        return any(pair.is_recollated for pair in self.key)

    @property
    def may_have_null(self) -> bool:
        """In its key (`schema.nulls`)."""
        return any(pair.source.is_nullable for pair in self.key)

    @property
    def has_other_unique(self) -> bool:
        """True when writing one row of the target can push another one out."""
        return any(key.is_unique and key.name != self.target_index for key in self.target.keys)

    @property
    def may_collide(self) -> bool:
        return bool(self.added_unique)

    @property
    def is_found_by_index(self) -> bool:
        """True when a row in the way of another is found in an index: not by a prefix, nor in MariaDB's hash keys, nor
        in one that is hidden.

        Else it is looked for in the whole table, which is locked by that.
        """
        unique = [key for key in self.target.keys if key.is_unique]
        is_plain = all(key.index_type == "BTREE" and not key.is_hidden for key in unique)
        return is_plain and not any(part.prefix for key in unique for part in key.parts)
