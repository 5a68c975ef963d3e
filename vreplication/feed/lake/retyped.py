"""Values of a key that an ALTER writes otherwise: a row of before would not be known under its key of now.

No message tells what a conversion has made of the rows that are there. What a lake has of them goes on where the new
type writes the same value in the same way, or in one that a lake takes for the same (10:00:00 and 10:00:00.000).

What must stay true: only what every server writes so counts as carried; a type that is not known here is judged by the
kind of the rows that come behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from vreplication.feed.lake import types
from vreplication.feed.lake.ddl import Statement, clauses_of
from vreplication.feed.lake.manifest import Column
from vreplication.mysql.text import Token

ALL = "TRUE"
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_OTHERS = (
    *("decimal", "float", "double", "year", "bit", "date", "time", "datetime", "timestamp", "char", "varchar", "enum"),
    *("set", "json", "uuid", "inet4", "inet6", "binary", "varbinary"),
)
_KNOWN = frozenset((*_WHOLE, *_TEXTS, *_BLOBS, *_OTHERS))
_ALIASES = {
    **{"integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint"},
    **{"int4": "int", "int8": "bigint", "bool": "tinyint", "boolean": "tinyint"},
    **{"dec": "decimal", "numeric": "decimal", "fixed": "decimal", "number": "decimal"},
    **{"real": "double", "float4": "float", "float8": "double"},
    **{"character": "char", "nchar": "char", "nvarchar": "varchar", "varchar2": "varchar", "clob": "longtext"},
}
_INTEGERS = ("Tiny", "Short", "Medium", "Long", "LongLong")
_OF_TEXT = ("String", "Text", "Enum", "UUID", "INET4", "INET6", "JSON")
_OF_KIND = {**dict.fromkeys(_INTEGERS, "bigint"), "String": "text", "Binary": "blob"}
"""A type that takes all values of a kind, where it is not called so."""


class Declared(NamedTuple):
    """A column's new type. numbers, labels: in its parentheses."""

    type: str
    numbers: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return self.numbers[0] if self.numbers else 1

    @property
    def digits(self) -> int:
        """Behind the point, of a number or of a second."""
        if self.type in ("time", "datetime", "timestamp"):
            return self.numbers[0] if self.numbers else 0
        return self.numbers[1] if self.type == "decimal" and len(self.numbers) > 1 else 0


def declared(statement: Statement) -> dict[str, Declared]:
    """By a column's name of before, in lower case: what MODIFY and CHANGE of an ALTER make it."""
    found = (_declared(clause) for clause in clauses_of(statement) if clause[0].is_word("MODIFY", "CHANGE"))
    return {name: type for name, type in found if type is not None}


def of_kind(kind: str) -> Declared:
    """As rows show it that come behind an ALTER: nothing is known but the kind."""
    return Declared(_OF_KIND.get(kind, kind.lower()), (6,) if kind in ("Time", "DateTime", "Timestamp") else (65, 30))


def lost(column: Column, new: Declared) -> str | None:
    """SQL that is true of the values that this type writes otherwise; None: there are none."""
    if new.type not in _KNOWN:
        return None
    found = next((judge for kinds, judge in _JUDGES if column.kind in kinds), _unless_same)
    return found(column, new, types.quoted(column.name))


def _declared(clause: list[Token]) -> tuple[str, Declared | None]:
    rest = list(itertools.dropwhile(lambda each: each.is_word("COLUMN", "IF", "EXISTS"), clause[1:]))
    type = rest[1 + clause[0].is_word("CHANGE") :]
    return (rest[0].value.lower() if rest else ""), (_type(type) if type else None)


def _type(written: list[Token]) -> Declared:
    name = _ALIASES.get(written[0].value.lower(), written[0].value.lower())
    varies = name == "char" and len(written) > 1 and written[1].is_word("VARYING")
    rest = written[2:] if varies else written[1:]
    within = itertools.takewhile(lambda each: not each.is_punct(")"), rest[1:]) if _opens(rest) else ()
    found = list(within)
    numbers = tuple(int(each.text) for each in found if each.kind == "number" and each.text.isdigit())
    labels = tuple(each.value.rstrip(" ") for each in found if each.kind == "string")
    return Declared("varchar" if varies else name, numbers, labels)


def _opens(rest: list[Token]) -> bool:
    return bool(rest) and rest[0].is_punct("(")


# What becomes of values, by their kind.


def _unless_same(column: Column, new: Declared, name: str) -> str | None:
    return None if column.kind.lower() == new.type else ALL


def _whole(column: Column, new: Declared, name: str) -> str | None:
    # The same digits, or the same number in the lake's files, too; but for ZEROFILL (docs/limits.md).
    fit = (*_WHOLE, *_TEXTS, "char", "varchar", "decimal", "float", "double", "bit")
    return None if new.type in fit else ALL


def _bits(column: Column, new: Declared, name: str) -> str | None:
    """Also a YEAR, of which 0 is written otherwise as text."""
    return None if new.type in _WHOLE else _unless_same(column, new, name)


def _approximate(column: Column, new: Declared, name: str) -> str | None:
    return None if new.type in ("float", "double") else ALL


def _decimal(column: Column, new: Declared, name: str) -> str | None:
    return _rounded(new, name) if new.type in ("decimal", *_WHOLE) else ALL


def _time(column: Column, new: Declared, name: str) -> str | None:
    # Between TIMESTAMP and DATETIME a server converts by the session's time zone, of which no row tells.
    return _rounded(new, name) if column.kind.lower() == new.type else ALL


def _rounded(new: Declared, name: str) -> str:
    return f"{types.fraction(types.short(f'cast({name} AS string)'))} > {new.digits}"


def _day(column: Column, new: Declared, name: str) -> str | None:
    # As text, for a day of zero, it would have no time behind it.
    is_wider = column.type == "date" and new.type == "datetime"
    return None if is_wider else _unless_same(column, new, name)


def _text(column: Column, new: Declared, name: str) -> str | None:
    if new.type in ("char", "varchar"):
        # A CHAR loses the spaces at its end.
        ends = f" OR {name} LIKE '% '" if new.type == "char" else ""
        return f"char_length({name}) > {new.length}{ends}"
    if new.type in _WHOLE:
        # '007' becomes 7, and is written so from then on.
        return f"NOT coalesce(cast(try_cast({name} AS bigint) AS string) = {name}, FALSE)"
    if new.type == "enum" and new.labels:
        return f"{name} NOT IN ({', '.join(map(types.literal, new.labels))})"
    return None if new.type in _TEXTS else _unless_same(column, new, name)


def _set(column: Column, new: Declared, name: str) -> str | None:
    return None if new.type in ("set", "varchar", *_TEXTS) else ALL


def _bytes(column: Column, new: Declared, name: str) -> str | None:
    if new.type in ("binary", "varbinary"):
        # BINARY fills up with zero bytes.
        return f"length({name}) {'<>' if new.type == 'binary' else '>'} {new.length}"
    return None if new.type in _BLOBS else ALL


_Judge = Callable[[Column, Declared, str], str | None]
_JUDGES: tuple[tuple[tuple[str, ...], _Judge], ...] = (
    (_INTEGERS, _whole),
    (("Bit", "Year"), _bits),
    (("Float", "Double"), _approximate),
    (("Decimal",), _decimal),
    (("Time", "DateTime", "Timestamp"), _time),
    (("Date",), _day),
    (_OF_TEXT, _text),
    (("Set",), _set),
    (("Binary", "Blob"), _bytes),
)
