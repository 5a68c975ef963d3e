"""What several formats make of a value: dates as numbers, DECIMAL as bytes, geometry as WKT; and what a layout became.

What must stay true: the same value is the same text, always; what no calendar has (zero, partial and invalid dates) is
None here, and it is the format's to say what is sent for it.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from vreplication.errors import Terminal
from vreplication.feed import values
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Ddl, Encoded
from vreplication.schema.model import Column

Write = Callable[[Any], str]
T = TypeVar("T")

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint"})
FLOATS = frozenset({"float", "double", "real"})
DECIMALS = frozenset({"decimal", "numeric"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRY = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)
_EPOCH = date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097


@dataclass(slots=True)
class PerLayout(Generic[T]):
    """make: what a format compiles of a layout, once."""

    make: Callable[[Layout], T]
    _made: dict[int, tuple[Layout, T]] = field(default_factory=dict)

    def of(self, layout: Layout) -> T:
        found = self._made.get(layout.number)
        # A format outlives a run of the feed, and the catalog of each run numbers its layouts from the beginning again:
        # by the number alone rows of one table would be written as another's.
        if found is None or found[0] is not layout:
            found = self._made[layout.number] = layout, self.make(layout)
        return found[1]


# JSON.


def encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


text: Callable[[str], str] = encode


def in_base64(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def members(value: str) -> str:
    """A SET as a list."""
    return encode(value.split(",") if value else [])


def inserted(message: Encoded, members: str, ends: str = "}") -> Encoded:
    """With more members (JSON, without a brace) behind the last one. ends: what closes the object they go into."""
    value = message.value or b""
    tail = ends.encode()
    comma = b"" if value[: -len(tail)].endswith(b"{") else b","
    return Encoded(
        key=message.key, value=value[: -len(tail)] + comma + members.encode() + tail, headers=message.headers
    )


# Numbers.


def positional(value: float) -> str:
    """The shortest text that reads back as the same, without an exponent."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def unscaled(value: str) -> bytes:
    """A DECIMAL without its point, as a big-endian number in two's complement of as few bytes as it takes."""
    number = int(value.replace(".", ""))
    bits = (number if number >= 0 else ~number).bit_length()
    # One bit more than the number has, for its sign.
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def width(column: Column) -> int:
    """Of a BIT. Where the log alone tells of the table, it may not be known: then as wide as can be."""
    return column.precision or 64


def numbers(value: bytes) -> list[str]:
    """Of a VECTOR, each as JSON, without an exponent."""
    found = (values._float4(value, at) for at in range(0, len(value), 4))
    # JSON has no word for what is not finite.
    return [positional(each) if math.isfinite(each) else "null" for each in found]


# Times.


@lru_cache(4096)
def days(value: str) -> int | None:
    """'YYYY-MM-DD' since 1970. None: no calendar has it."""
    year, month, day = int(value[:4]), int(value[5:7]), int(value[8:10])
    try:
        # Python's calendar begins with the year 1; 400 years later all is the same.
        found = date(year or 400, month, day).toordinal() - _EPOCH
    except ValueError:
        return None
    return found if year else found - _DAYS_OF_400_YEARS


def micros(value: str) -> int | None:
    """'YYYY-MM-DD hh:mm:ss[.ffffff]' since 1970. None: no calendar has it."""
    day = days(value[:10])
    return None if day is None else day * 86_400_000_000 + clock(value[11:])


def clock(value: str) -> int:
    """'[-]hhh:mm:ss[.ffffff]' in microseconds."""
    whole, _, part = value.removeprefix("-").partition(".")
    hours, minutes, seconds = whole.split(":")
    found = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int(part.ljust(6, "0"))
    return -found if value.startswith("-") else found


# Geometry: SRID in four bytes, then WKB.


def srid(value: bytes) -> int:
    return int.from_bytes(value[:4], "little")


def coordinates(value: bytes) -> tuple[float, float]:
    """Of a POINT."""
    x, y = struct.unpack_from("<dd" if value[4] else ">dd", value, 9)
    return x, y


def wkt(value: bytes) -> str:
    """Raises Terminal."""
    try:
        return _Wkb(value).shape()
    except (struct.error, IndexError, KeyError) as error:
        raise Terminal(f"A geometry cannot be shown as text ({error!r}).") from None


class _Wkb:
    """Reads from the left. Each shape tells the order of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 4
        self.order = "<"

    def shape(self) -> str:
        name, body = self._shape()
        return f"{name} {body}"

    def _shape(self) -> tuple[str, str]:
        self.order = "<" if self.data[self.at] else ">"
        self.at += 1
        name, read = _SHAPES[self._count()]
        return name, read(self)

    def point(self) -> str:
        return f"({self._place()})"

    def line(self) -> str:
        return self._list(self._place)

    def rings(self) -> str:
        return self._list(self.line)

    def parts(self) -> str:
        return self._list(lambda: self._shape()[1])

    def shapes(self) -> str:
        return self._list(self.shape)

    def _list(self, read: Callable[[], str]) -> str:
        found = [read() for _ in range(self._count())]
        return f"({', '.join(found)})" if found else "EMPTY"

    def _place(self) -> str:
        x, y = struct.unpack_from(f"{self.order}dd", self.data, self.at)
        self.at += 16
        return f"{positional(x)} {positional(y)}"

    def _count(self) -> int:
        (found,) = struct.unpack_from(f"{self.order}I", self.data, self.at)
        self.at += 4
        return int(found)


_SHAPES: dict[int, tuple[str, Callable[[_Wkb], str]]] = {
    1: ("POINT", _Wkb.point),
    2: ("LINESTRING", _Wkb.line),
    3: ("POLYGON", _Wkb.rings),
    4: ("MULTIPOINT", _Wkb.parts),
    5: ("MULTILINESTRING", _Wkb.parts),
    6: ("MULTIPOLYGON", _Wkb.parts),
    7: ("GEOMETRYCOLLECTION", _Wkb.shapes),
}


# Where it was in the log, and what a statement is about.


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A transaction by its name, or by where it stands; the other is empty."""

    gtid: str = ""
    file: str = ""
    offset: int = 0


_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}:")


# Each row of a transaction asks for the same one.
@lru_cache(64)
def origin(gtid: str) -> Origin:
    """gtid: as of a Row: uuid[:tag]:number, domain-server-number, or file:offset."""
    file, _, offset = gtid.rpartition(":")
    # A name of MySQL's has colons and ends in digits as well: uuid:number, uuid:tag:number.
    if not file or _UUID.match(gtid) or not offset.isdecimal():
        return Origin(gtid=gtid)
    return Origin(file=file, offset=int(offset))


def is_of_index(ddl: Ddl) -> bool:
    """CREATE INDEX, DROP INDEX: they change the table that they name."""
    return ddl.what == "INDEX"


def is_of_database(ddl: Ddl) -> bool:
    return bool(ddl.tables) and not ddl.tables[0][1]


def first_table(ddl: Ddl) -> tuple[str, str]:
    """(schema, table); the session's schema where the statement names none."""
    return ddl.tables[0] if ddl.tables else (ddl.schema, "")
