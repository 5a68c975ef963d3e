"""What columns of a feed are in Parquet: SQL of Spark that reads a value, and how a type gives way to a wider one.

A feed tells the kind of a value, and neither the sign nor the precision of its column. So a column begins with the
narrowest type that its kind usually needs; a value that does not fit makes it wider from then on: BIGINT above 2^63 a
decimal, a date that is none ('0000-00-00') text.

What must stay true: a value is stored exactly, or the type is a wider one; text takes everything.
"""

from __future__ import annotations

import re

# The largest BIGINT UNSIGNED has 20 digits.
_LARGE = "decimal(20,0)"
# No decimal of Spark's has more.
_MOST_DIGITS = 38
_FIRST = {
    **dict.fromkeys(("Tiny", "Short", "Medium", "Year"), "int"),
    # A Long is an INT with or without a sign, and Spark's int has one; MEDIUMINT UNSIGNED fits into it.
    **dict.fromkeys(("Long", "LongLong", "Bit"), "bigint"),
    **{"Float": "float", "Double": "double", "Date": "date", "DateTime": "timestamp_ntz", "Timestamp": "timestamp"},
    **{"Set": "array<string>", "Decimal": "decimal(38,0)"},
    **dict.fromkeys(("Binary", "Blob", "Vector", "Geometry"), "binary"),
}
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_OF_TIMES = ("timestamp_ntz", "date", "string")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def first_type(kind: str) -> str:
    """Of a column of which nothing is known but its kind."""
    return _FIRST.get(kind, "string")


def scale_of(type: str) -> int:
    found = _DECIMAL.fullmatch(type)
    return int(found.group(2)) if found else 0


def wider(kind: str, type: str, *, whole: int, fraction: int) -> str:
    """The next type when a value did not fit. whole, fraction: the most digits before and behind the point."""
    if kind in ("LongLong", "Bit") and type == "bigint":
        return _LARGE
    if kind == "Decimal" and type != "string" and whole + max(fraction, scale_of(type)) <= _MOST_DIGITS:
        return f"decimal(38,{max(fraction, scale_of(type))})"
    return "string"


def literal(text: str) -> str:
    """A string of Spark's SQL."""
    # By number where SQL might take it for something: only letters, digits and a few signs stand as they are.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in " _-.,:/{}[]()=+@~<>") else _escape(c) for c in text)
    return f"'{plain}'"


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def quoted(name: str) -> str:
    """A column of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def value(kind: str, type: str, text: str) -> str:
    """SQL of the value. text: SQL of the text that was sent."""
    if type == "binary":
        # With try_ a value that does not fit is NULL, and `misses` counts those.
        return f"try_to_binary({text}, 'base64')"
    if type == "array<string>":
        return f"from_json({text}, 'array<string>')"
    if type == "string":
        return short(text) if kind in ("DateTime", "Timestamp") else text
    return f"try_cast({text} AS {type})"


def short(text: str) -> str:
    """SQL of a time, or a number, as text without zeros at the end of its fraction: the same value is the same text."""
    bare = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))"
    return f"IF(instr({text}, '.') > 0, {bare}, {text})"


def identity(kind: str, type: str, column: str) -> str:
    """SQL that is the same of the same value in a key, with however many zeros behind the point it was written."""
    return short(column) if type == "string" and kind in ("Time", "Decimal") else column


def misses(kind: str, type: str, text: str) -> str | None:
    """SQL that is true where the value is not what was sent. None: that cannot be."""
    # The text of a FLOAT or DOUBLE reads back as the same value (docs/feed.md).
    if type in ("string", "float", "double", "array<string>"):
        return None
    lost = f"{text} IS NOT NULL AND {value(kind, type, text)} IS NULL"
    if type.startswith("decimal"):
        return f"({lost}) OR {fraction(text)} > {scale_of(type)}"
    return lost


def fraction(text: str) -> str:
    """SQL of how many digits stand behind the point."""
    return f"coalesce(length(split_part({text}, '.', 2)), 0)"


def whole(text: str) -> str:
    """SQL of how many digits stand before the point."""
    return f"coalesce(length(replace(split_part({text}, '.', 1), '-', '')), 0)"


def converted(column: str, old: str, new: str) -> str:
    """SQL of a column of another version's files, as the new one's type."""
    if old == new:
        return column
    if new == "string" and old.startswith(("array", "binary")):
        return f"array_join({column}, ',')" if old.startswith("array") else f"cast({column} AS string)"
    if "array" in (old[:5], new[:5]) or "binary" in (old, new):
        return column if old == new else f"try_cast({column} AS {new})" if new == "binary" else f"cast(NULL AS {new})"
    if old.startswith("decimal") and new.startswith("decimal"):
        return _all_of(column, f"try_cast({column} AS {new})", new)
    if old == "timestamp" and new in _OF_TIMES:
        column = _plain(column)
    elif old in ("timestamp_ntz", "date") and new == "timestamp":
        return f"timestamp_micros(timestampdiff(MICROSECOND, {_EPOCH}, cast({column} AS timestamp_ntz)))"
    # Spark 4 casts by the rules of ANSI: without try_ one value that does not fit would end each read of the table.
    return f"try_cast({column} AS {new})"


def _plain(timestamp: str) -> str:
    """SQL of what it is in UTC, whichever time zone the reader's session has: a cast would take that one."""
    return f"timestampadd(MICROSECOND, unix_micros({timestamp}), {_EPOCH})"


def _all_of(column: str, made: str, new: str) -> str:
    """More digits behind the point leave less room before it: a value that finds none is an error, and not NULL."""
    said = literal(f"A value written before this column became {new} has too many digits for it; read it as of then.")
    return f"CASE WHEN {column} IS NOT NULL AND {made} IS NULL THEN raise_error({said}) ELSE {made} END"
