"""How each column lies in a row image, and the Python expression that reads it.

What must stay true: a column whose type in the log is not the one that the schema told ends the workflow; signedness,
character set, labels and digits come from the schema, lengths from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from vreplication.binlog import jsonb, values
from vreplication.binlog.control import TableMap
from vreplication.binlog.described import real_type
from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import text
from vreplication.schema.model import Column

_CURE = "The table is not what it was when the workflow began: cancel the workflow and start it again."

_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"})
_SHAPES = "geometry point linestring polygon multipoint multilinestring multipolygon geometrycollection"
_GEOMETRY = frozenset([*_SHAPES.split(), "geomcollection"])
_FIXED_TEXT: dict[str, Callable[[bytes], str]] = {
    "uuid": values.uuid_text,
    "inet6": values.inet6_text,
    "inet4": values.inet4_text,
}
_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_CODES = {
    **{"tinyint": (1,), "smallint": (2,), "mediumint": (9,), "int": (3,), "integer": (3,), "bigint": (8,)},
    **{"decimal": (246,), "numeric": (246,), "float": (4,), "double": (5,), "real": (5,), "bit": (16,)},
    **{"year": (13,), "date": (10, 14), "time": (11, 19), "datetime": (12, 18), "timestamp": (7, 17)},
    **{"char": (254,), "binary": (254,), "varchar": (15, 253), "varbinary": (15, 253)},
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), (252,)),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), (252,)),
    **dict.fromkeys(_FIXED_TEXT, (254,)),
    **dict.fromkeys(_GEOMETRY, (255,)),
    **{"enum": (247,), "set": (248,), "json": (245,), "vector": (242, 15)},
}
_STRUCTS = {1: "b", 2: "h", 4: "i", 8: "q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A column in the image. `size`: bytes of a fixed-size value; `prefix`: bytes of the length before another.

    `literal`, `plain`: expression for the value as SQL literal text, and as a Python value; `shown`: for the literal of
    a document's text, where `literal` keeps what no text can hold. In them {p} is the place of a fixed-size value, {a}
    and {b} begin and end of another; `names` are the objects that they use.
    """

    column: Column
    size: int = 0
    prefix: int = 0
    literal: str
    plain: str
    shown: str = ""
    names: dict[str, Any] = field(default_factory=dict)


def places(columns: tuple[Column, ...], found: TableMap, hidden: int = 0) -> tuple[Place, ...]:
    """A place for each column. Raises SourceChanged where the log shows another table than the schema."""
    where = f"{found.schema}.{found.table}"
    columns = (*sorted(columns, key=lambda c: c.ordinal), *(_hidden(len(columns) + i) for i in range(1, hidden + 1)))
    if len(columns) != len(found.types):
        raise SourceChanged(f"The log shows {where} with {len(found.types)} columns, not {len(columns)}.", cure=_CURE)
    # By ordinal, as the schema had them at the start; what the log says of types can only contradict (F13).
    made = zip(columns, found.types, found.metadata, strict=True)
    return tuple(_place(column, *real_type(kind, meta), where) for column, kind, meta in made)


def fits(column: Column, kind: int, meta: int) -> bool:
    """The log's type of a column may be this one's."""
    if kind not in _CODES.get(column.data_type, ()):
        return False
    if kind == 246:
        return (column.precision, column.scale) == (meta >> 8, meta & 0xFF)
    if kind == 16:
        return column.precision == (meta >> 8) * 8 + (meta & 0xFF)
    # The formats from before 5.6 do not tell their digits.
    return kind not in (17, 18, 19) or meta == column.fraction


def _hidden(ordinal: int) -> Column:
    return Column(
        name="hidden", ordinal=ordinal, data_type="bigint", column_type="bigint unsigned", is_nullable=True,
        # MariaDB 11.8 leaves it out of the rows of updates and deletes, as it does with all that is generated.
        generated="virtual",
    )  # fmt: skip


def _place(column: Column, kind: int, meta: int, where: str) -> Place:
    # MariaDB's COMPRESSED columns: 140 is the BLOB, 141 the VARCHAR.
    if kind in (140, 141):
        raise SourceChanged(f"Column {column.name} of {where} is compressed, which we do not read.", cure=_CURE)
    if kind not in _CODES.get(column.data_type, ()):
        raise SourceChanged(
            f"The log shows column {column.name} of {where} as type {kind}, not {column.data_type}.", cure=_CURE
        )
    name = column.data_type
    if name in _INTEGERS:
        return _integer(column)
    if name in _TEXT or name in _BYTES or name in _GEOMETRY or name in ("binary", "json") or name in _FIXED_TEXT:
        return _string(column, kind, meta)
    if name in ("enum", "set"):
        return _labelled(column, meta)
    if name in ("date", "time", "datetime", "timestamp", "year"):
        return _moment(column, kind, meta)
    return _number(column, kind, meta)


def _integer(column: Column) -> Place:
    size = _INTEGERS[column.data_type]
    if size == 3:
        read = f"int.from_bytes(data[{{p}}:{{p}}+3], 'little', signed={not column.is_unsigned})"
        return Place(column=column, size=size, literal=read, plain=read)
    code = _STRUCTS[size].upper() if column.is_unsigned else _STRUCTS[size]
    name = f"read_{'u' if column.is_unsigned else 'i'}{size}"
    read = f"{name}(data, {{p}})[0]"
    reader = struct.Struct("<" + code).unpack_from
    return Place(column=column, size=size, literal=read, plain=read, names={name: reader})


def _number(column: Column, kind: int, meta: int) -> Place:
    if kind == 16:
        size = (meta >> 8) + (1 if meta & 0xFF else 0)
        read = f"int.from_bytes(data[{{p}}:{{p}}+{size}], 'big')"
        return Place(column=column, size=size, literal=read, plain=read)
    if kind == 246:
        return _decimal(column, meta >> 8, meta & 0xFF)
    return _read_with(column, meta, values.float4 if kind == 4 else values.float8, quote="")


def _decimal(column: Column, precision: int, scale: int) -> Place:
    if (column.precision, column.scale) != (precision, scale):
        raise SourceChanged(
            f"The log shows column {column.name} as DECIMAL({precision},{scale}), not {column.column_type}.", cure=_CURE
        )
    size = values.decimal_bytes(precision, scale)
    return _read_with(column, size, values.decimal_reader(precision, scale), quote="")


def _read_with(column: Column, size: int, reader: values.Reader, *, quote: str = "'") -> Place:
    """A fixed-size value that a function turns into text."""
    name = f"read_{column.ordinal}"
    plain = f"{name}(data, {{p}})"
    literal = f'"{quote}" + {plain} + "{quote}"' if quote else plain
    return Place(column=column, size=size, literal=literal, plain=plain, names={name: reader})


def _moment(column: Column, kind: int, meta: int) -> Place:
    digits = column.fraction
    if kind in (17, 18, 19) and meta != digits:
        raise SourceChanged(
            f"The log shows column {column.name} with {meta} digits of a second, not {digits}.", cure=_CURE
        )
    extra = values.fraction_bytes(digits)
    size, reader = {
        13: (1, values.year1),
        10: (3, values.date3),
        14: (3, values.date3),
        19: (3 + extra, values.time_reader(digits)),
        18: (5 + extra, values.datetime_reader(digits)),
        17: (4 + extra, values.timestamp_reader(digits)),
        11: (values.old_time_bytes(digits), values.old_time_reader(digits)),
        12: (values.old_datetime_bytes(digits), values.old_datetime_reader(digits)),
        7: (values.old_timestamp_bytes(digits), values.old_timestamp_reader(digits)),
    }[kind]
    return _read_with(column, size, reader, quote="" if kind == 13 else "'")


def _labelled(column: Column, size: int) -> Place:
    if column.data_type == "enum":
        # Servers store '' as number 0 where they are given a label that the column does not have and the mode lets it
        # pass.
        table = {0: "''", **{i: text(label) for i, label in enumerate(column.labels, 1)}}
        labels = {0: "", **dict(enumerate(column.labels, 1))}
        literal, plain = f"label_{column.ordinal}[{{v}}]", f"name_{column.ordinal}[{{v}}]"
        names: dict[str, Any] = {f"label_{column.ordinal}": table, f"name_{column.ordinal}": labels}
    else:
        # A SET of 64 members has more values than could be listed, as those of an ENUM are.
        members = lru_cache(4096)(partial(_members, column.labels))
        literal, plain = f"text(set_{column.ordinal}({{v}}))", f"set_{column.ordinal}({{v}})"
        names = {f"set_{column.ordinal}": members, "text": text}
    value = f"int.from_bytes(data[{{p}}:{{p}}+{size}], 'little')"
    return Place(
        column=column,
        size=size,
        literal=literal.replace("{v}", value),
        plain=plain.replace("{v}", value),
        names=names,
    )


def _members(labels: tuple[str, ...], bits: int) -> str:
    if bits >> len(labels):
        # As of an ENUM's unknown number: the decoder refuses the event.
        raise KeyError(bits)
    return ",".join(label for i, label in enumerate(labels) if bits >> i & 1)


def _string(column: Column, kind: int, meta: int) -> Place:
    """A value behind its length. What is empty is '' in all of them."""
    # Of BLOB and its like the log tells the length's bytes, of the others the most bytes that a value may have.
    prefix = meta if kind in (242, 245, 252, 255) else 1 if meta < 256 else 2
    slice_ = "data[{a}:{b}]"
    name, shown = column.data_type, ""
    names: dict[str, Any] = {}
    if name in _TEXT:
        literal = f'("_{_charset(column)} X\'" + {slice_}.hex().upper() + "\'" if {{b}} > {{a}} else "\'\'")'
        plain = f"{slice_}.decode({_codec(column)!r})"
    elif name == "json":
        names |= {"json_literal": jsonb.literal, "json_shown": jsonb.shown, "text": text}
        literal = plain = f"json_literal({slice_})"
        shown = f"text(json_shown({slice_}))"
    elif name in _FIXED_TEXT:
        names[f"text_{name}"] = _FIXED_TEXT[name]
        plain = f"text_{name}({slice_})"
        literal = f'"\'" + {plain} + "\'"'
    else:
        if name == "binary":
            # The log cuts trailing zero bytes.
            slice_ = f"{slice_}.ljust({meta}, b'\\0')"
        # A BINARY of zero bytes alone comes without any, and is as long as the column all the same.
        literal = (
            f'("X\'" + {slice_}.hex().upper() + "\'" if {{b}} > {{a}} or {meta if name == "binary" else 0} else "\'\'")'
        )
        plain = slice_
    return Place(column=column, prefix=prefix, literal=literal, plain=plain, shown=shown, names=names)


def _charset(column: Column) -> str:
    if not column.charset:
        raise SourceChanged(f"The character set of column {column.name} is not known.", cure=_CURE)
    return column.charset


def _codec(column: Column) -> str:
    """Of a sidecar's column; those are ours."""
    known = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "latin-1"}
    return known.get(column.charset or "", "utf-8")
