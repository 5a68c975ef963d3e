"""MySQL's binary JSON as SQL that gives the same document again.

What must stay true: JSON text is used only where reading it back gives every value with its own type; a document with
a DECIMAL, a time, a binary or a small unsigned number inside becomes an expression of JSON_OBJECT and JSON_ARRAY.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass

from vreplication.binlog.values import decimal_bytes, decimal_reader, float_text, packed_datetime, packed_time
from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import binary, text

_DOUBLE = struct.Struct("<d")
_LITERALS = {0: None, 1: True, 2: False}
# MySQL itself takes no more than 100.
_MAX_DEPTH = 200

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _REAL, _STRING = range(5, 13)
_OPAQUE = 15
_INTEGERS = {
    _INT16: (2, True),
    _UINT16: (2, False),
    _INT32: (4, True),
    _UINT32: (4, False),
    _INT64: (8, True),
    _UINT64: (8, False),
}
# How the server prints a DOUBLE (measured on MySQL 8.0, 8.4 and 9.7): 0.000000000000001, 1e-16; 1e15 and not its zeros.
_MOST_PLACES, _FROM_HERE_WITH_EXPONENT = 15, 1e15
_LINE = 76
# Column types of opaque values.
_DECIMAL, _TIMESTAMP, _DATE, _TIME, _DATETIME, _VARCHAR = 246, 7, 10, 11, 12, 15


@dataclass(frozen=True, slots=True)
class Typed:
    """A value that JSON text cannot carry, as SQL; shown: as the server prints it inside a document."""

    sql: str
    shown: str


def literal(data: bytes) -> str:
    """SQL for a stored document: a text literal, or an expression where text would lose a type."""
    try:
        reader = _Reader()
        # A JSON column's bytes are empty after INSERT IGNORE of nothing; the server reads that as null.
        document = reader.value(data[0], memoryview(data), 1, 0) if data else None
        if isinstance(document, Typed):
            # A column takes no bare scalar; JSON_ARRAY makes JSON of anything.
            return f"JSON_EXTRACT(JSON_ARRAY({document.sql}),'$[0]')"
        if reader.has_typed:
            return _sql(document)
        # Python gives each DOUBLE a point or an exponent, by which the server reads it back as one.
        return text(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise SourceChanged(f"A JSON document in the binary log cannot be read ({error!r}).") from None


def shown(data: bytes) -> str:
    """The document as the server prints it, where some values lose their type."""
    try:
        return _shown(_Reader().value(data[0], memoryview(data), 1, 0) if data else None)
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise SourceChanged(f"A JSON document in the binary log cannot be read ({error!r}).") from None


def _shown(value: object) -> str:
    if isinstance(value, Typed):
        return value.shown
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(name)}: {_shown(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    # As text of a column it has to be what the server writes for a row that is copied, letter by letter.
    return _double(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _double(value: float) -> str:
    """A DOUBLE as the server prints it inside a document: the digits are Python's, their layout is not."""
    plain, _, exponent = repr(value).partition("e")
    if not exponent:
        is_long = abs(value) >= _FROM_HERE_WITH_EXPONENT and value.is_integer()
        return _with_exponent(plain.removesuffix(".0")) if is_long else plain
    if not -_MOST_PLACES <= int(exponent) < 0:
        return f"{plain}e{int(exponent)}"
    sign, digits = "-" * (value < 0), plain.lstrip("-").replace(".", "")
    return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits}"


def _with_exponent(digits: str) -> str:
    """Of a whole number."""
    first = 1 + digits.startswith("-")
    rest = digits[first:].rstrip("0")
    return f"{digits[:first]}{'.' * bool(rest)}{rest}e{len(digits) - first}"


def _quoted(words: object) -> str:
    return json.dumps(words, ensure_ascii=False)


class _Reader:
    """Reads one document; `has_typed` tells whether it holds a value for which there is no JSON text."""

    def __init__(self) -> None:
        self.has_typed = False

    def value(self, kind: int, data: memoryview, at: int, depth: int) -> object:
        """The value of type `kind` at `at`; offsets of a container count from its own start."""
        if kind <= _LARGE_ARRAY:
            return self._container(kind, data[at:], depth + 1)
        if kind == _LITERAL:
            return _LITERALS[data[at]]
        if kind in _INTEGERS:
            return self._integer(kind, data, at)
        if kind == _REAL:
            return _DOUBLE.unpack_from(data, at)[0]
        if kind == _STRING:
            size, at = _variable(data, at)
            return str(data[at : at + size], "utf-8")
        if kind == _OPAQUE:
            return self._opaque(data, at)
        raise SourceChanged(f"A JSON document in the binary log holds a value of the unknown type {kind}.")

    def _integer(self, kind: int, data: memoryview, at: int) -> object:
        size, is_signed = _INTEGERS[kind]
        number = int.from_bytes(data[at : at + size], "little", signed=is_signed)
        # Beyond the signed range JSON text is read back as unsigned anyway.
        if is_signed or number >> 63:
            return number
        # As text it would come back signed.
        return self._typed(f"CAST({number} AS UNSIGNED)", str(number))

    def _typed(self, sql: str, shown: str) -> Typed:
        self.has_typed = True
        return Typed(sql, shown)

    def _container(self, kind: int, data: memoryview, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise SourceChanged("A JSON document in the binary log is nested too deeply.")
        width = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
        count, at = int.from_bytes(data[:width], "little"), 2 * width
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        entries = at + count * (width + 2) * is_object
        behind = entries + count * (width + 1)
        # A damaged count could ask for four billion entries.
        if behind > len(data):
            raise IndexError("a container larger than its document")
        names = [_name(data, at + i * (width + 2), width) for i in range(count)] if is_object else []
        values = [self._entry(data, entries + i * (1 + width), width, behind, depth) for i in range(count)]
        return dict(zip(names, values, strict=True)) if is_object else values

    def _entry(self, data: memoryview, at: int, width: int, behind: int, depth: int) -> object:
        """A value's entry: its type, then the value itself where it fits, else its place, `behind` all entries."""
        kind = data[at]
        if kind in (_LITERAL, _INT16, _UINT16) or (width == 4 and kind in (_INT32, _UINT32)):
            return self.value(kind, data, at + 1, depth)
        place = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        # A container that held itself would be read once more for each of its entries, down to the greatest depth.
        if place < behind:
            raise IndexError("a value inside the entries of its container")
        return self.value(kind, data, place, depth)

    def _opaque(self, data: memoryview, at: int) -> Typed:
        kind = data[at]
        size, at = _variable(data, at + 1)
        return self._typed(*_opaque(kind, bytes(data[at : at + size])))


def _name(data: memoryview, at: int, width: int) -> str:
    start = int.from_bytes(data[at : at + width], "little")
    size = int.from_bytes(data[at + width : at + width + 2], "little")
    return str(data[start : start + size], "utf-8")


def _variable(data: memoryview, at: int) -> tuple[int, int]:
    """Length in groups of seven bits, lowest first."""
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size, at


def _opaque(kind: int, data: bytes) -> tuple[str, str]:
    """SQL, and what the server shows."""
    if kind == _DECIMAL:
        precision, scale = data[0], data[1]
        digits = decimal_reader(precision, scale)(data[: 2 + decimal_bytes(precision, scale)], 2)
        return f"CAST('{digits}' AS DECIMAL({precision},{scale}))", digits
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        return _time(kind, int.from_bytes(data, "little", signed=True))
    if kind == _VARCHAR:
        return f"CAST({binary(data)} AS BINARY)", f'"base64:type{kind}:{_base64(data)}"'
    raise SourceChanged(
        f"A JSON document on the table holds a binary value of column type {kind}, which no SQL rebuilds.",
        cure="Store it as text, or alter the table without this tool.",
    )


def _base64(data: bytes) -> str:
    """As the server prints it: in lines, with a line feed as JSON writes one."""
    digits = base64.b64encode(data).decode()
    return "\\n".join(digits[at : at + _LINE] for at in range(0, len(digits), _LINE))


def _time(kind: int, packed: int) -> tuple[str, str]:
    """Microseconds are the lowest 24 bits. There is no cast to TIMESTAMP: it becomes the DATETIME that it prints."""
    if kind == _TIME:
        moment, name = packed_time(packed, 3, 6), "TIME(6)"
    elif kind == _DATE:
        moment, name = packed_datetime(packed >> 24)[:10], "DATE"
    else:
        moment, name = f"{packed_datetime(packed >> 24)}.{packed & 0xFFFFFF:06d}", "DATETIME(6)"
    return f"CAST('{moment}' AS {name})", f'"{moment}"'


def _sql(value: object) -> str:
    """SQL whose value, taken as JSON, is `value`."""
    if isinstance(value, Typed):
        return value.sql
    if isinstance(value, dict):
        return f"JSON_OBJECT({','.join(f'{text(k)},{_sql(v)}' for k, v in value.items())})"
    if isinstance(value, list):
        return f"JSON_ARRAY({','.join(map(_sql, value))})"
    return _scalar_sql(value)


def _scalar_sql(value: object) -> str:
    if isinstance(value, bool):
        return f"CAST('{'true' if value else 'false'}' AS JSON)"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, str):
        return text(value)
    return "NULL" if value is None else str(value)
