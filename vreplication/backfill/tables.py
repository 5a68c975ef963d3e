"""The two tables of a job: which column goes where, by which key rows are told apart, and what is refused.

What must stay true: nothing is written when anything here refuses; each column of the source reaches the column of the
same name, and its value travels as a literal, unconverted; a column that
the target generates is generated alike on the source; the key is the primary key on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vreplication.backfill.interval import TIME_TYPES
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import Server
from vreplication.mysql.session import Session, SqlError
from vreplication.schema.conversions import convert_template
from vreplication.schema.introspect import introspect
from vreplication.schema.keys import is_same_value
from vreplication.schema.literals import APPROXIMATE, TEMPORALS, is_character
from vreplication.schema.mapping import local_zone
from vreplication.schema.model import Column, ColumnPair, Key, Table, TableMapping

_AMBIGUOUS = frozenset({"armscii8", "big5", "cp932", "eucjpms", "sjis", "tis620", "ujis"})
"""Character sets of which two characters are one in Unicode (measured on both servers, character by character)."""
_ZONED_FUNCTIONS = frozenset({"from_unixtime", "unix_timestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """source_index, target_index: what an interval is read by: an index on the time column, else the primary key.

    soft: columns that the two servers do not show alike (see `compare.py`). packet: what a statement may be long.
    """

    mapping: TableMapping
    time: ColumnPair
    source_index: str
    target_index: str
    soft: tuple[ColumnPair, ...]
    packet: int

    @property
    def key(self) -> tuple[Column, ...]:
        return tuple(pair.source for pair in self.mapping.key)

    @property
    def target_key(self) -> tuple[Column, ...]:
        return tuple(pair.target for pair in self.mapping.key)

    @property
    def may_collide(self) -> bool:
        """True when a written row may meet a row of the target that is another one."""
        return self.mapping.has_other_unique or any(is_character(column) for column in self.target_key)

    @property
    def plain_unique(self) -> tuple[Key, ...]:
        """The target's unique keys over columns that the source fills, the primary one first."""
        filled = {pair.target.name for pair in self.mapping.pairs}
        # Over a column that the target fills by itself the source has no value that conflict.py could look for.
        found = [k for k in self.mapping.target.keys if k.is_unique and {p.column for p in k.parts} <= filled]
        # conflict.py judges by the first key that has a rival, and only of the primary one may the rival be the row
        # itself, spelled in another way, which is then written.
        return tuple(sorted(found, key=lambda key: not key.is_primary))

    @property
    def unique_pairs(self) -> tuple[ColumnPair, ...]:
        names = {part.column for key in self.plain_unique for part in key.parts}
        return tuple(pair for pair in self.mapping.pairs if pair.target.name in names)

    @property
    def is_time_indexed(self) -> bool:
        # `time_index` says PRIMARY where there is none: each slice of time would read the whole table then.
        return "PRIMARY" not in (self.source_index, self.target_index)


def read_table(session: Session, name: str, side: str) -> Table:
    """`name` in the session's database. Raises Refused."""
    try:
        return introspect(session, session.url.database, name)
    except Refused as error:
        raise Refused(
            f"The {side}: {error.message}", cure="Check the job's table names and the user's SELECT privilege."
        ) from None


def pair_tables(source: Table, target: Table, time_column: str) -> TableMapping:
    """How rows of `source` become rows of `target`. Raises Refused."""
    check_time(source, time_column)
    key = _primary(source)
    _check_key(source, key, target)
    _check_columns(source, target)
    pairs = tuple(_pairs(source, target))
    _check_time_pair(source.column(time_column), target.column(time_column))
    return TableMapping(
        source=source,
        target=target,
        pairs=pairs,
        key=tuple(ColumnPair(source=source.column(n), target=target.column(n)) for n in key.columns),
        source_index="PRIMARY",
        target_index="PRIMARY",
    )


def check_time(table: Table, name: str) -> None:
    if not table.has_column(name):
        raise Refused(f"The time column {name} is not a column of {table.schema}.{table.name}.")
    column = table.column(name)
    if column.data_type not in TIME_TYPES:
        raise Refused(f"The time column {name} is {column.column_type}, not DATETIME, TIMESTAMP or DATE.")


def _primary(table: Table) -> Key:
    for key in table.keys:
        if key.is_primary:
            return key
    raise Refused(
        f"{table.schema}.{table.name} has no primary key.",
        cure="Rows are refreshed by their key: add one to the table.",
    )


def _check_key(source: Table, key: Key, target: Table) -> None:
    other = _primary(target)
    ours, theirs = ({name.lower() for name in k.columns} for k in (key, other))
    if ours != theirs:
        raise Refused(f"The primary key is ({_list(key)}) on the source and ({_list(other)}) on the target.")
    for part in (*key.parts, *other.parts):
        # Rows are found by whole values, and such a key takes two for one that differ behind the prefix.
        if part.prefix is not None:
            raise Refused(f"The primary key holds only the beginning of {part.column}.")
    for name in key.columns:
        _check_key_column(source.column(name), target.column(name))


def _check_key_column(source: Column, target: Column) -> None:
    """Two keys of the source stay two keys, unless the target's collation takes them for the same."""
    if not is_same_value(source, target) or not set(source.labels) <= set(target.labels):
        raise _differ(source, target)
    if source.charset in _AMBIGUOUS and source.charset != target.charset:
        raise Refused(
            f"The key's column {source.name} is in {source.charset} on the source and in {target.charset} on the "
            f"target: some characters of {source.charset} become the same there.",
            cure="Make the character sets the same.",
        )
    if target.generated and not (source.generated and source.expression == target.expression):
        raise Refused(
            f"The key's column {target.name} is generated on the target.", cure="Make it a plain column there."
        )


def _list(key: Key) -> str:
    return ", ".join(key.columns)


def _check_columns(source: Table, target: Table) -> None:
    lost = [c.name for c in source.columns if not c.generated and not target.has_column(c.name)]
    if lost:
        raise Refused(f"The target {target.schema}.{target.name} does not have the columns: {', '.join(lost)}.")
    unfilled = [c.name for c in target.columns if not source.has_column(c.name) and _must_be_given(c)]
    if unfilled:
        raise Refused(
            f"The target's columns {', '.join(unfilled)} have no default and are not in the source.",
            cure="Give them a default.",
        )


def _must_be_given(column: Column) -> bool:
    return not (column.has_default or column.generated or column.is_auto_increment)


def _pairs(source: Table, target: Table) -> Iterator[ColumnPair]:
    for column in target.columns:
        # A value for a generated column is an error on both servers; `check_generated` looks at those.
        if source.has_column(column.name) and not column.generated:
            origin = source.column(column.name)
            if not _is_taken_as_it_is(origin, column):
                raise _differ(origin, column)
            yield ColumnPair(source=origin, target=column)


def _is_taken_as_it_is(source: Column, target: Column) -> bool:
    if _is_rounded(source, target):
        return False
    try:
        return convert_template(source, target, zone=None) == "{}"
    except Refused:
        return False


def _is_rounded(source: Column, target: Column) -> bool:
    """True where the server would round without a word. A DECIMAL that loses digits is found as it is written."""
    if target.data_type in APPROXIMATE:
        return source.data_type not in APPROXIMATE or (source.data_type, target.data_type) == ("double", "float")
    return target.data_type in TEMPORALS and target.fraction < source.fraction


def check_generated(source: Table, target: Table, servers: tuple[Server, Server]) -> None:
    """Raises Refused where the target computes what the source stores, or computes it in another way."""
    is_foreign = servers[0].flavor != servers[1].flavor
    for column in target.columns:
        if not column.generated or not source.has_column(column.name):
            continue
        origin = source.column(column.name)
        # Two flavors do not write an expression alike.
        if not origin.generated or not (is_foreign or origin.expression == column.expression):
            raise _computed(origin, column)
        # What is written would be an error there, and what is computed is rounded without a word.
        if origin.scale != column.scale or not _is_taken_as_it_is(origin, column):
            raise _differ(origin, column)


def _computed(source: Column, target: Column) -> Refused:
    there = f"as {source.expression}" if source.generated else "an ordinary column"
    return Refused(
        f"Column {target.name} is generated as {target.expression} on the target and {there} on the source.",
        cure="A backfill cannot write it: make it an ordinary column on the target, or generated alike on both sides.",
    )


def check_zone(target: Table, server: Server) -> None:
    """Raises Refused when the target keeps values that depend on the session's time zone: ours is UTC."""
    if local_zone(server.setting("time_zone") or "SYSTEM", server.setting("system_time_zone") or "UTC") is None:
        return
    dependent = _zoned(target)
    keyed = {part.column.lower() for key in target.keys for part in key.parts}
    for column in target.columns:
        if column.name in dependent and (column.generated == "stored" or column.name.lower() in keyed):
            raise Refused(
                f"The target keeps the generated column {column.name}, whose value depends on the time zone, and the "
                "server is not in UTC.",
                cure="A backfill writes in UTC: make the column virtual and without a key, or the server's zone UTC.",
            )


def _zoned(table: Table) -> set[str]:
    """Generated columns that are computed from a TIMESTAMP or by a function of the zone, through others, too."""
    words = {c.name.lower() for c in table.columns if c.data_type == "timestamp"} | _ZONED_FUNCTIONS
    found: set[str] = set()
    while True:
        more = {c.name for c in table.columns if c.generated and c.name not in found and _uses(c, words)}
        if not more:
            return found
        found |= more
        words |= {name.lower() for name in more}


def _uses(column: Column, words: set[str]) -> bool:
    expression = column.expression.lower()
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", expression) for word in words)


def _differ(source: Column, target: Column) -> Refused:
    return Refused(
        f"Column {source.name} is {source.column_type} on the source and {target.column_type} on the target.",
        cure="A backfill converts no types: make them the same.",
    )


def _check_time_pair(source: Column, target: Column) -> None:
    if target.generated:
        raise Refused(
            f"The time column {target.name} is generated on the target.", cure="Make it a plain column there."
        )
    if source.data_type != target.data_type or target.fraction < source.fraction:
        raise _differ(source, target)


def soft_pairs(mapping: TableMapping, servers: tuple[Server, Server]) -> tuple[ColumnPair, ...]:
    """Columns that a checksum cannot compare: numbers of DOUBLE as two flavors print them, text that became JSON."""
    is_foreign = servers[0].flavor != servers[1].flavor
    return tuple(p for p in mapping.pairs if _is_soft(p, is_foreign=is_foreign))


def _is_soft(pair: ColumnPair, *, is_foreign: bool) -> bool:
    kinds = {pair.source.data_type, pair.target.data_type}
    return (is_foreign and bool(kinds & APPROXIMATE)) or (pair.target.data_type == "json" and len(kinds) == 2)


def time_index(session: Session, table: Table, column: str) -> str:
    """An index that begins with the column and that the optimizer may use; else PRIMARY."""
    for key in table.keys:
        if not key.is_primary and _begins_with(key, column) and _is_visible(session, table, key):
            return key.name
    return "PRIMARY"


def _begins_with(key: Key, column: str) -> bool:
    first = key.parts[0]
    # No other type of index reads a range of times.
    return first.column.lower() == column.lower() and first.prefix is None and key.index_type == "BTREE"


def _is_visible(session: Session, table: Table, key: Key) -> bool:
    """An invisible or ignored index cannot be asked for."""
    try:
        # MySQL calls such an index invisible and MariaDB ignored; in FORCE INDEX both refuse it alike.
        session.rows(f"SELECT 1 FROM {qualified(table.schema, table.name)} FORCE INDEX ({ident(key.name)}) LIMIT 0")
    except SqlError:
        return False
    return True
