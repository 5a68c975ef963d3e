"""Cells as plain values: what a row of a feed is made of, before a format gives it its looks.

| type | value |
|---|---|
| integers, YEAR, BIT | int |
| FLOAT, DOUBLE | float, whose text is the shortest that reads back as the same |
| DECIMAL, dates and times, JSON, ENUM, SET, UUID, INET4, INET6 | str, as the server shows it; TIMESTAMP in UTC |
| text | str |
| BINARY (its full length), VARBINARY, BLOB, GEOMETRY (SRID and WKB), VECTOR | bytes |
| NULL | None |

What must stay true: text is what the server would convert it to (utf8mb4); what cannot be converted ends the feed.
"""

from __future__ import annotations

import codecs
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.binlog import jsonb
from vreplication.binlog.layout import Place
from vreplication.binlog.watch import Form
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_DIRECT = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii"}
_WIDE = {"utf32": "utf-32-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "ucs2": "utf-16-be"}
Decode = Callable[[bytes], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRow:
    """Codec: a row is the tuple of the values of `ordinals`. decoders: by character set, of the table's columns."""

    ordinals: tuple[int, ...]
    decoders: Mapping[str, Decode] = field(default_factory=dict)

    null = "None"

    @property
    def names(self) -> dict[str, Any]:
        found: dict[str, Any] = {f"text_{charset}": decode for charset, decode in self.decoders.items()}
        return {**found, "float4": _float4, "float8": _DOUBLE.unpack_from, "shown": jsonb.shown}

    def value(self, place: Place) -> str:
        kind = place.column.data_type
        if kind in _TEXT:
            charset = place.column.charset or ""
            codec = _DIRECT.get(charset) or _WIDE.get(charset)
            slice_ = "data[{a}:{b}]"
            return f"{slice_}.decode({codec!r})" if codec else f"text_{charset}({slice_})"
        if kind in ("float", "double", "real"):
            return "float4(data, {p})" if kind == "float" else "float8(data, {p})[0]"
        if kind == "json":
            return "shown(data[{a}:{b}])"
        return f"int({place.plain})" if kind == "year" else place.plain

    def before(self, laid: Sequence[Place]) -> Form:
        return self.after(laid)

    def after(self, laid: Sequence[Place]) -> Form:
        row = ", ".join(f"v{ordinal}" for ordinal in self.ordinals)
        return Form(ordinals=frozenset(self.ordinals), row=f"({row},)")


def _float4(data: bytes, at: int) -> float:
    """A FLOAT as the double with the shortest text that is the same FLOAT."""
    return shortest(data[at : at + 4])


@functools.lru_cache(4096)
def shortest(data: bytes) -> float:
    """Of four bytes."""
    (value,) = _FLOAT.unpack(data)
    # Six digits of a FLOAT are always right, and nine always tell it from all others.
    texts = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((each for each in texts if _packs_as(each, data)), value)


def _packs_as(value: float, data: bytes) -> bool:
    try:
        return _FLOAT.pack(value) == data
    except OverflowError:
        return False


def decoder(session: Session, charset: str) -> Decode:
    """Of any character set."""
    codec = _DIRECT.get(charset) or _WIDE.get(charset)
    return (lambda data: data.decode(codec)) if codec else _decoder(session, charset)


def decoders(session: Session, charsets: set[str]) -> dict[str, Decode]:
    """By character set, for those that need the server's own tables."""
    return {charset: _decoder(session, charset) for charset in charsets - _DIRECT.keys() - _WIDE.keys()}


def _decoder(session: Session, charset: str) -> Decode:
    sql = "SELECT MAXLEN FROM information_schema.CHARACTER_SETS WHERE CHARACTER_SET_NAME=%s"
    if int(session.value(sql, (charset,)) or 0) == 1:
        return _of_table(session, charset)
    # Each text that is not remembered is a question to the server.
    return functools.lru_cache(65_536)(functools.partial(_asked, session, charset))


def _of_table(session: Session, charset: str) -> Decode:
    """One letter a byte: what the server makes of all of them."""
    found = session.row(
        "SELECT " + ",".join(f"HEX(CONVERT(_{charset} X'{byte:02X}' USING utf8mb4))" for byte in range(256))
    )
    letters = "".join(_letter(byte, bytes.fromhex(each or "").decode()) for byte, each in enumerate(found or ()))

    def decode(data: bytes) -> str:
        try:
            return codecs.charmap_decode(data, "strict", letters)[0]
        except UnicodeDecodeError:
            raise _no_text(charset, data) from None

    return decode


def _letter(byte: int, text: str) -> str:
    """Of a byte that stands for nothing a server makes a question mark: U+FFFE is Python's sign for that."""
    return text if text and (text != "?" or byte == ord("?")) else "\ufffe"


def _asked(session: Session, charset: str, data: bytes) -> str:
    """What the server makes of text in a character set of several bytes a letter."""
    found = session.value(f"SELECT HEX(CONVERT(_{charset} X'{data.hex()}' USING utf8mb4))")
    text = bytes.fromhex(found or "").decode()
    # NULL, or question marks; in none of these sets one's byte is a part of another letter.
    if found is None or text.count("?") > data.count(b"?"):
        raise _no_text(charset, data)
    return text


def _no_text(charset: str, data: bytes) -> SourceChanged:
    # P3: a server converts such bytes to a question mark, and a target would have that with every check green.
    return SourceChanged(
        f"A row holds text in {charset} that the server cannot convert to Unicode: X'{data[:100].hex().upper()}'.",
        cure="Leave the column out (--columns), or make it VARBINARY before its rows are read; begin another feed.",
    )
