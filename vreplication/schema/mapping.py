"""How rows of the source become rows of the target: columns, conversions, and the key that both sides share.

What must stay true: a target column takes the value of the column that the ALTER's text says, and of no other; the
shared key tells rows apart on both sides by the same literals; what may merge two rows of the source on the target is
in `added_unique` (when in doubt it is), because it makes REPLACE delete and INSERT IGNORE drop other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import Server
from vreplication.schema.alter import AlterClauses
from vreplication.schema.conversions import convert_template, family
from vreplication.schema.dates import DATED
from vreplication.schema.expressions import is_same_everywhere, is_settled, odd_days_of, read_by, reads_a_char
from vreplication.schema.fills import fill_literal
from vreplication.schema.introspect import check_expressions
from vreplication.schema.keys import (
    has_one_order,
    is_implied,
    is_kept_apart,
    is_same_value,
    is_sorted_alike,
    or_nullable,
    usable_keys,
)
from vreplication.schema.literals import INTEGERS, TEMPORALS
from vreplication.schema.model import Column, ColumnPair, Key, Table, TableMapping

_UTC = frozenset({"+00:00", "-00:00", "UTC", "ETC/UTC", "GMT", "ETC/GMT", "ZULU", "UCT"})
_UTC_OF_SYSTEMS = frozenset({"UTC", "UCT"})
"""What a server tells of its system's zone is what that was called when the server was started. GMT is not among them:
London's and Dublin's zones are called so in winter, and are an hour ahead in summer."""

Sources = dict[str, Column]
"""Lower-case name of a target column → the source column that lives on in it."""


def map_tables(
    source: Table,
    target: Table,
    alter: AlterClauses,
    *,
    is_mariadb: bool,
    global_time_zone: str = "+00:00",
    system_time_zone: str = "UTC",
    moment: datetime | None = None,
    may_be_null: bool = False,
) -> TableMapping:
    """Map `source` to `target`, which is what `alter` makes of it. Raises Refused.

    may_be_null: the shared key may be one whose columns may be NULL, where there is no other.

    moment: (UTC) what an added column with DEFAULT CURRENT_TIMESTAMP gets in all rows, as by a plain ALTER; without
    it each row gets the time at which it is written.
    """
    sources = follow_columns(source, target, alter)
    zone = local_zone(global_time_zone, system_time_zone)
    shared = shared_key(source, target, sources, may_be_null=may_be_null)
    first = source.column(shared[0].columns[0])
    fill = partial(fill_literal, target, zone=zone, moment=moment)
    filled = {
        column.name: ColumnPair(source=first, target=column, convert=_escaped(literal))
        for column in target.columns
        if column.name.lower() not in sources
        and (literal := fill(column, is_json=_is_json(target, column, is_mariadb))) is not None
    }
    if zone is not None and not is_mariadb:
        _refuse_offsets(target, sources)
    return _mapping(source, target, sources, tuple(_pairs(target, sources, filled, zone)), zone, shared)


def _mapping(
    source: Table,
    target: Table,
    sources: Sources,
    pairs: tuple[ColumnPair, ...],
    zone: str | None,
    shared: tuple[Key, Key],
) -> TableMapping:
    on_source, on_target = shared
    key = tuple(_key_pair(source, target, name, sources) for name in on_source.columns)
    is_written_in_zone = zone is not None and computes_by_session(target, pairs)
    # Keys and bounds are literals in UTC. In the server's zone they would be other moments, and no literal of a local
    # time tells the two hours apart that the clock shows twice in autumn.
    if is_written_in_zone and any(pair.source.data_type == "timestamp" for pair in key):
        raise Refused(
            f"The key of {source.name} holds a TIMESTAMP, and the new definition computes values that may depend on the"
            " time zone.",
            cure="Run it while the server's time_zone is '+00:00', or make the key of other columns.",
        )
    return TableMapping(
        source=source,
        target=target,
        pairs=pairs,
        key=key,
        source_index=on_source.name,
        target_index=on_target.name,
        added_unique=tuple(_added_unique(source, target, sources)),
        is_exact_key=all(_is_exact(pair) for pair in key),
        has_same_order=all(is_sorted_alike(p.source, p.target) for p in key),
        kept=tuple(_kept(source, target, sources)),
        is_written_in_zone=is_written_in_zone,
    )


def map_for(
    server: Server,
    source: Table,
    target: Table,
    alter: AlterClauses,
    *,
    moment: datetime | None = None,
    may_be_null: bool = False,
) -> TableMapping:
    """`map_tables` by the settings of the server that holds both tables."""
    return map_tables(
        source,
        target,
        alter,
        is_mariadb=server.is_mariadb,
        global_time_zone=server.setting("time_zone") or "SYSTEM",
        system_time_zone=server.setting("system_time_zone") or "UTC",
        moment=moment,
        may_be_null=may_be_null,
    )


def map_back(server: Server, source: Table, target: Table, alter: AlterClauses) -> TableMapping:
    """From `source`, which `alter` has made, to `target`, which it was before. Raises Refused."""
    zone = local_zone(server.setting("time_zone") or "SYSTEM", server.setting("system_time_zone") or "UTC")
    was = {new: old for new, old in follow_columns(target, source, alter).items()}
    sources = {old.name.lower(): source.column(new) for new, old in was.items()}
    if zone is not None and not server.is_mariadb:
        _refuse_offsets(target, sources)
    # Nothing is filled in, unlike on the way there: what the ALTER had dropped is spared, so that a row that is there
    # keeps what it had (docs/revert.md).
    pairs = tuple(_pairs(target, sources, {}, zone))
    spared = tuple(c for c in target.columns if c.name.lower() not in sources and not c.generated)
    shared = shared_key(source, target, sources)
    return replace(_mapping(source, target, sources, pairs, zone, shared), spared=spared)


def in_zone(mapping: TableMapping) -> TableMapping:
    """The same mapping for statements of a session in the server's own time zone, which read the source's columns."""
    return replace(mapping, pairs=tuple(_in_zone(pair) for pair in mapping.pairs))


def _in_zone(pair: ColumnPair) -> ColumnPair:
    if not pair.is_constant:
        # A session in the server's zone converts by itself, as a plain ALTER does.
        return replace(pair, convert=convert_template(pair.source, pair.target, zone=None))
    # What goes into a DATETIME has been brought into that zone already.
    if pair.target.data_type != "timestamp":
        return pair
    # The constant is a moment in UTC (fills.py), and here a session in the server's zone reads it as a local time.
    return replace(pair, convert=f"CONVERT_TZ({pair.convert},'+00:00',@@SESSION.time_zone)")


def follow_columns(source: Table, target: Table, alter: AlterClauses) -> Sources:
    """Which source column lives on in which target column. Raises Refused when the text does not explain the target."""
    found = {new: source.column(old) for new, old in alter.sources(tuple(c.name for c in source.columns)).items()}
    fresh = {name.lower() for name in (*alter.added, *alter.maybe_added)}
    missing = [column.name for new, column in found.items() if not target.has_column(new)]
    unknown = [c.name for c in target.columns if c.name.lower() not in found and c.name.lower() not in fresh]
    if missing or unknown:
        raise Refused(
            f"The ALTER's effect on column {(missing + unknown)[0]} cannot be followed.",
            cure="Write each rename as RENAME COLUMN old TO new or CHANGE old new …",
        )
    return found


def local_zone(global_time_zone: str, system_time_zone: str) -> str | None:
    """The zone that a plain ALTER converts TIMESTAMP by; None where it is UTC, which our sessions are in."""
    is_system = global_time_zone.upper() == "SYSTEM"
    zone, is_utc = (system_time_zone, _UTC_OF_SYSTEMS) if is_system else (global_time_zone, _UTC)
    if zone.upper() in is_utc:
        return None
    # Not `zone`: what the system calls its own (CEST) is an abbreviation, which the server takes for no zone.
    return global_time_zone


def _pairs(target: Table, sources: Sources, filled: dict[str, ColumnPair], zone: str | None) -> Iterator[ColumnPair]:
    for column in target.columns:
        origin = sources.get(column.name.lower())
        if column.generated:
            continue
        if origin is None:
            yield from filter(None, [filled.get(column.name)])
        else:
            yield ColumnPair(source=origin, target=column, convert=convert_template(origin, column, zone=zone))


def _refuse_offsets(target: Table, sources: Sources) -> None:
    """MySQL brings '2024-01-01 00:30:00+05:00' into the session's zone, which is the server's in a plain ALTER."""
    for column in target.columns:
        origin = sources.get(column.name.lower())
        if origin and column.data_type in TEMPORALS and family(origin) in ("characters", "bytes", "json"):
            raise Refused(
                f"Column {origin.name}: text becomes {column.column_type}, and the server brings text with an offset"
                " into its time zone.",
                cure="Run it while the server's time_zone is '+00:00'; or add a column of the new type, fill it by"
                " UPDATE, and drop the old one.",
            )


def _is_json(target: Table, column: Column, is_mariadb: bool) -> bool:
    """MariaDB's JSON is text with a constraint, which an empty text does not meet."""
    return is_mariadb and f"json_valid({ident(column.name)})" in target.create_sql


def _escaped(text: str) -> str:
    """Literal text as a template that holds no placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def _key_pair(source: Table, target: Table, name: str, sources: Sources) -> ColumnPair:
    origin = source.column(name)
    new = next(new for new, column in sources.items() if column.name == origin.name)
    # Without a conversion: a column is in a shared key only if a literal of its value is the target's value
    # (`is_same_value`).
    return ColumnPair(source=origin, target=target.column(new))


def shared_key(source: Table, target: Table, sources: Sources, *, may_be_null: bool = False) -> tuple[Key, Key]:
    """The unique not-null key by which rows are told apart on both sides. Raises Refused when there is none."""
    for key in usable_keys(source, may_be_null=may_be_null):
        for other in target.keys:
            if _is_shared(source, target, key, other, sources):
                return key, other
    beside = "" if may_be_null else or_nullable(source)
    raise Refused(
        f"{source.name} and its new definition share no unique key over columns that are NOT NULL.",
        cure="Keep or add one on the table first: a primary key, or a unique key over NOT NULL columns of numbers,"
        " decimals, strings (no CHAR under a NOPAD collation), binaries or dates, that the ALTER leaves in place"
        f"{beside}.",
    )


def _is_shared(source: Table, target: Table, key: Key, other: Key, sources: Sources) -> bool:
    """True when `other` is a unique key of the target over what the columns of `key` became."""
    if not other.is_unique or other.has_expression or other.is_hidden or other.index_type not in ("BTREE", "RTREE"):
        return False
    if any(part.prefix is not None for part in other.parts):
        return False
    origins = [sources.get(name.lower()) for name in other.columns]
    if None in origins or len(origins) != len(key.columns):
        return False
    # Their order in the target's key may be another one: ranges are predicates over the columns, and hold the same
    # rows.
    names = {origin.name.lower() for origin in origins if origin}
    pairs = zip(origins, other.columns, strict=True)
    return names == {n.lower() for n in key.columns} and all(
        # Digits that a session decides count in a key that may make two rows one; by this one rows are told apart on
        # the source already.
        o is not None
        and has_one_order(target.column(n))
        and is_same_value(o, target.column(n))
        and _is_settled(source, target, o, n, sources, is_same_everywhere)
        for o, n in pairs
    )


def _kept(source: Table, target: Table, sources: Sources) -> Iterator[ColumnPair]:
    """Stored generated columns whose values a plain ALTER does not change."""
    for column in target.columns:
        origin = sources.get(column.name.lower())
        # One that was written in another zone or language holds what its expression does not give now. It cannot be
        # written again, so it is compared, and the rows are named (docs/limits.md).
        if origin and origin.generated == column.generated == "stored" and _is_alike(source, target, column, sources):
            yield ColumnPair(source=origin, target=column)


def computes_by_session(target: Table, pairs: Sequence[ColumnPair]) -> bool:
    """True when what the server computes or checks while a row is written may come out otherwise in another session.

    MariaDB shows a default that is text like one that is an expression: read as one, it may count as dependent.
    """
    written = {pair.target.name for pair in pairs}
    texts = [column.expression for column in target.columns if column.generated]
    # An index over an expression is searched by the value that the session computes, and one that is not found there
    # breaks the index (state/stage.py).
    texts += [part.expression for key in target.keys for part in key.parts]
    texts += [column.default or "" for column in target.columns if column.name not in written and not column.generated]
    # A CHECK, too: asked in UTC it would refuse rows that a plain ALTER takes, or take some that it refuses.
    texts += check_expressions(target.create_sql)
    return not all(is_same_everywhere(target, text) for text in texts if text)


def is_told_apart_by_padding(mapping: TableMapping) -> bool:
    """A unique key goes by a value that a session under PAD_CHAR_TO_FULL_LENGTH finds otherwise than ours."""
    return any(reads_a_char(mapping.target, text) for text in _unique_expressions(mapping.target))


def told_apart_by_days(mapping: TableMapping) -> frozenset[int]:
    """Ordinals of the source's dates of whose days of zero a unique key may hold something else than ours would: what
    the application's sessions take for no day, by their SQL mode, ours take for one.
    """
    found = [odd_days_of(mapping.target, text) for text in _unique_expressions(mapping.target)]
    names = frozenset().union(*found)
    # Of a column that the ALTER adds the pair's source is another column.
    dated = (p for p in mapping.pairs if not p.is_constant and p.source.data_type in DATED)
    return frozenset(pair.source.ordinal for pair in dated if pair.target.name.lower() in names)


def _unique_expressions(target: Table) -> list[str]:
    """Of unique keys by which rows may be one that no other unique key tells apart."""
    plain = {key.name: _plain_columns(target, key) for key in target.keys if key.is_unique}
    whole = [plain[key.name] for key in target.keys if key.is_unique and len(plain[key.name]) == len(key.parts)]
    keys = [key for key in target.keys if key.is_unique and not any(one <= plain[key.name] for one in whole)]
    parts = [part for key in keys for part in key.parts]
    read = [target.column(part.column).expression if part.column else part.expression for part in parts]
    return [text for text in read if text]


def _plain_columns(table: Table, key: Key) -> frozenset[str]:
    """Lower-case names of those that the key has as they are."""
    plain = (part.column for part in key.parts if part.column and not part.prefix)
    return frozenset(name.lower() for name in plain if not table.column(name).generated)


def depends_on_zone(mapping: TableMapping) -> bool:
    """What rows become may depend on the server's time zone, whatever that is at the moment."""
    return computes_by_session(mapping.target, mapping.pairs) or any(map(_is_converted_by_zone, mapping.pairs))


def _is_converted_by_zone(pair: ColumnPair) -> bool:
    if pair.is_constant:
        # The time at which the ALTER began, perhaps.
        return pair.target.data_type in TEMPORALS
    return (pair.source.data_type == "timestamp") != (pair.target.data_type == "timestamp")


def _is_settled(
    source: Table,
    target: Table,
    origin: Column,
    name: str,
    sources: Sources,
    is_alike: Callable[[Table, str], bool] = is_settled,
) -> bool:
    """A generated key column must be generated alike, and by every session alike."""
    column = target.column(name)
    if not (origin.generated or column.generated):
        return True
    return _is_alike(source, target, column, sources) and is_alike(target, column.expression)


def _is_alike(source: Table, target: Table, column: Column, sources: Sources) -> bool:
    """True when the source has this generated column with the same expression over columns that are what they were."""
    origin = sources.get(column.name.lower())
    if origin is None or (origin.expression, origin.generated) != (column.expression, column.generated):
        return False
    is_same = (origin.column_type, origin.collation) == (column.column_type, column.collation)
    return is_same and _reads_unchanged(source, target, column.expression, sources)


def _reads_unchanged(source: Table, target: Table, expression: str, sources: Sources) -> bool:
    """True when every column that the expression reads, through generated ones too, is what it was."""
    read = read_by(target, expression)
    return read == read_by(source, expression) and all(
        (origin := sources.get(name)) is not None and _is_unchanged(origin, target.column(name)) for name in read
    )


def _is_unchanged(origin: Column, column: Column) -> bool:
    before, after = (
        (c.name.lower(), c.column_type, c.collation, bool(c.generated), c.expression) for c in (origin, column)
    )
    return before == after


def _added_unique(source: Table, target: Table, sources: Sources) -> Iterator[Key]:
    """Unique keys of the target that the source's own unique keys do not imply."""

    def is_apart(origin: Column, name: str) -> bool:
        return is_kept_apart(origin, target.column(name)) and _is_settled(source, target, origin, name, sources)

    def is_alike(expression: str) -> bool:
        return _reads_unchanged(source, target, expression, sources) and is_settled(target, expression)

    for key in target.keys:
        # F7. One too many costs a search for duplicates and the notes; one too few, and REPLACE deletes other rows,
        # silently.
        known = any(is_implied(key, known, sources, is_apart, is_alike) for known in source.keys)
        if key.is_unique and not known:
            yield key


def _is_exact(pair: ColumnPair) -> bool:
    """Integers, and binaries whose length did not change: equal values are equal literals."""
    source, target = pair.source, pair.target
    if source.data_type in INTEGERS:
        return target.data_type in INTEGERS
    return source.data_type in ("binary", "varbinary") and source.column_type == target.column_type
