"""What a table map says of its columns where the server writes binlog_row_metadata=FULL: a definition for each row.

What must stay true: a row event is read by the definition that stands in front of it in the log, whatever the table
is by now; what the log does not say (unique keys, MariaDB's UUID and INET types) is not made up here.

Layout: fields of (type 1, length packed, value). Source: MySQL's Table_map_event, "Optional metadata fields".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vreplication.binlog.control import TableMap
from vreplication.binlog.framing import packed_int
from vreplication.errors import SourceChanged
from vreplication.schema.model import Column

_SIGNEDNESS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SETS, _ENUMS = 1, 2, 3, 4, 5, 6
_PRIMARY, _PRIMARY_WITH_PREFIX, _LABEL_DEFAULT_CHARSET, _LABEL_CHARSETS = 8, 9, 10, 11
_HIDDEN = re.compile(r"DB_ROW_HASH_\d+")
"""MariaDB's column for a UNIQUE key by hash."""
Decode = Callable[[bytes], str]

_INTEGERS = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint"}
_PLAIN = {
    **_INTEGERS,
    **{4: "float", 5: "double", 246: "decimal", 16: "bit", 13: "year", 10: "date", 14: "date"},
    **{11: "time", 19: "time", 12: "datetime", 18: "datetime", 7: "timestamp", 17: "timestamp"},
    **{245: "json", 255: "geometry", 242: "vector", 247: "enum", 248: "set"},
}
_BLOBS = {
    1: ("tinytext", "tinyblob"),
    2: ("text", "blob"),
    3: ("mediumtext", "mediumblob"),
    4: ("longtext", "longblob"),
}
_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 246})
_YEAR = 13
_TEXTUAL = frozenset({15, 242, 252, 253, 254})
"""Kinds of which the map tells a collation. A VECTOR has one, too, for MySQL keeps it as a BLOB (measured)."""
_GEOMETRY = 255
"""It has one on MariaDB, and none on MySQL (measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Of each column, in order. collations: id by column, of those that hold text or bytes. key: places, from 0 on."""

    names: tuple[str, ...]
    unsigned: frozenset[int]
    collations: dict[int, int]
    labels: dict[int, tuple[bytes, ...]]
    key: tuple[int, ...]


def described(found: TableMap, *, is_mariadb: bool) -> Described | None:
    """None where the server does not write it (binlog_row_metadata=MINIMAL). Raises SourceChanged where it is cut."""
    try:
        fields = dict(_fields(found.described))
        # MINIMAL has signs and character sets all the same, but no names to know the columns by.
        if _NAMES not in fields:
            return None
        kinds = tuple(real_type(kind, meta)[0] for kind, meta in zip(found.types, found.metadata, strict=True))
        return Described(
            names=tuple(name.decode() for name in _texts(fields[_NAMES])),
            unsigned=_unsigned(fields.get(_SIGNEDNESS, b""), kinds),
            collations=_collations(
                fields, kinds, _DEFAULT_CHARSET, _CHARSETS, _TEXTUAL | {_GEOMETRY} if is_mariadb else _TEXTUAL
            ),
            labels=_labels(fields, kinds),
            key=_key(fields),
        )
    except (IndexError, ValueError) as error:
        raise SourceChanged(f"The map of table {found.schema}.{found.table} cannot be read ({error!r}).") from None


def label_collations(found: TableMap) -> dict[int, int]:
    """Collation id of each ENUM and SET, by place."""
    fields = dict(_fields(found.described))
    kinds = tuple(real_type(kind, meta)[0] for kind, meta in zip(found.types, found.metadata, strict=True))
    return _collations(fields, kinds, _LABEL_DEFAULT_CHARSET, _LABEL_CHARSETS, frozenset({247, 248}))


def may_be_null(found: TableMap, place: int) -> bool:
    return bool(found.nullable[place // 8] & 1 << place % 8)


def real_type(kind: int, meta: int) -> tuple[int, int]:
    """ENUM, SET and long CHAR hide in the metadata of type 254: real type above, length below, mixed."""
    if kind != 254:
        return kind, meta
    high, low = meta >> 8, meta & 0xFF
    if high & 0x30 != 0x30:
        return high | 0x30, low | ((high & 0x30) ^ 0x30) << 4
    return high, low


def columns_of(
    found: TableMap, said: Described, collation_of: Callable[[int], str], decoder: Callable[[str], Decode]
) -> tuple[Column, ...]:
    """The columns as the map alone tells them, without hidden ones, which stand behind.

    collation_of: name of a collation by its id. decoder: of a character set.
    """
    charsets = {place: collation_of(id) for place, id in said.collations.items()}
    of_labels = {place: collation_of(id) for place, id in label_collations(found).items()}
    count = len(found.types)
    while count and _HIDDEN.fullmatch(said.names[count - 1]):
        count -= 1
    return tuple(_column(found, said, place, charsets | of_labels, decoder) for place in range(count))


def _column(
    found: TableMap, said: Described, place: int, collations: dict[int, str], decoder: Callable[[str], Decode]
) -> Column:
    kind, meta = real_type(found.types[place], found.metadata[place])
    collation = collations.get(place)
    # The log has one type for CHAR and BINARY; the collation beside it alone tells text from bytes.
    is_binary = collation in (None, "binary")
    name = _type_name(kind, meta, is_binary=is_binary)
    # A collation's name begins with that of its character set.
    charset = None if is_binary else str(collation).split("_", 1)[0]
    return Column(
        name=said.names[place],
        ordinal=place + 1,
        data_type=name,
        column_type=f"{name} unsigned" if place in said.unsigned else name,
        is_nullable=may_be_null(found, place),
        is_unsigned=place in said.unsigned,
        charset=charset,
        collation=None if is_binary else collation,
        labels=tuple(map(decoder(charset or "utf8mb4"), said.labels.get(place, ()))),
        **_sizes(kind, meta),
    )


def _sizes(kind: int, meta: int) -> dict[str, Any]:
    if kind == 246:
        return {"precision": meta >> 8, "scale": meta & 0xFF}
    if kind == 16:
        return {"precision": (meta >> 8) * 8 + (meta & 0xFF)}
    return {"fraction": meta} if kind in (17, 18, 19) else {}


def _type_name(kind: int, meta: int, *, is_binary: bool) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == 252:
        return _BLOBS[meta][is_binary]
    if kind in (15, 253):
        return "varbinary" if is_binary else "varchar"
    if kind == 254:
        return "binary" if is_binary else "char"
    raise ValueError(f"type {kind}")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind = data[at]
        size, at = packed_int(data, at + 1)
        if at + size > len(data):
            raise IndexError("a field that is cut")
        yield kind, data[at : at + size]
        at += size


def _texts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = packed_int(data, at)
        yield data[at : at + size]
        at += size


def _numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = packed_int(data, at)
        yield number


def _unsigned(bits: bytes, kinds: tuple[int, ...]) -> frozenset[int]:
    """A bit a numeric column, the first one highest. YEAR has one on both flavors, which is set (measured)."""
    places = [place for place, kind in enumerate(kinds) if kind in _NUMERIC or kind == _YEAR]
    found = frozenset(place for i, place in enumerate(places) if bits[i // 8] & 0x80 >> i % 8)
    years = frozenset(place for place in places if kinds[place] == _YEAR)
    # A server that has none for it would shift the bits of all columns behind: -1 would be sent as 4294967295.
    if not years <= found:
        raise ValueError("a YEAR with a sign")
    return found - years


def _collations(
    fields: dict[int, bytes], kinds: tuple[int, ...], default: int, each: int, of: frozenset[int]
) -> dict[int, int]:
    """Told for each such column, or one for all and those that differ, by their number among them."""
    places = [place for place, kind in enumerate(kinds) if kind in of]
    if each in fields:
        return dict(zip(places, _numbers(fields[each]), strict=False))
    if default not in fields:
        return {}
    first, *rest = _numbers(fields[default])
    differ = dict(zip(rest[::2], rest[1::2], strict=True))
    return {place: differ.get(i, first) for i, place in enumerate(places)}


def _labels(fields: dict[int, bytes], kinds: tuple[int, ...]) -> dict[int, tuple[bytes, ...]]:
    found = {}
    for kind, field in ((247, _ENUMS), (248, _SETS)):
        places = [place for place, each in enumerate(kinds) if each == kind]
        for place, labels in zip(places, _lists(fields.get(field, b"")), strict=False):
            found[place] = labels
    return found


def _lists(data: bytes) -> Iterator[tuple[bytes, ...]]:
    at = 0
    while at < len(data):
        count, at = packed_int(data, at)
        labels = []
        for _ in range(count):
            size, at = packed_int(data, at)
            labels.append(data[at : at + size])
            at += size
        yield tuple(labels)


def _key(fields: dict[int, bytes]) -> tuple[int, ...]:
    if _PRIMARY in fields:
        return tuple(_numbers(fields[_PRIMARY]))
    # Pairs of a column's place and the length of its prefix.
    return tuple(list(_numbers(fields.get(_PRIMARY_WITH_PREFIX, b"")))[::2])
