"""The form in which a source value and the target value that it became are compared, as SQL for either side.

What must stay true: both forms are equal exactly when the target holds what the ALTER makes of the source's value. Two
values that differ never share a form (a FLOAT by all of its bits, text by its bytes, 'a ' is not 'a'), and where the
server would report a loss (a shorter text, a smaller scale) the comparison is made in the wider type, so that a cast
on the source's side cannot hide it. What the server rounds without a word (DOUBLE to FLOAT, a shorter fraction) is
what the ALTER asked for: there the source's value is cast. docs/correctness.md, verification.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.quoting import ident, text
from vreplication.schema.literals import (
    APPROXIMATE,
    BYTES,
    CHARACTERS,
    DECIMALS,
    GEOMETRIES,
    INTEGERS,
    LABELED,
    PLAIN_TEXT,
    TEMPORALS,
    is_character,
)
from vreplication.schema.model import Column, ColumnPair

_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})
# Those that hold every letter: utf8mb3 and ucs2 end at U+FFFF.
_UNICODE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_SHORT = frozenset({"char", "varchar", "binary", "varbinary"})
_ZERO = "CAST(X'00' AS BINARY)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """SQL of one comparison.

    is_bytes: may hold any byte, so it needs its length beside it; others hold neither X'FE' nor X'FF'.
    is_long: may be megabytes, so a digest stands for it (CONCAT gives NULL beyond max_allowed_packet).
    """

    source: str
    target: str
    is_bytes: bool = False
    is_long: bool = False
    may_be_null: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """A value on its way: `value` is SQL of what is written (conversion included), `stored` the target's column."""

    source: Column
    target: Column
    value: str
    stored: str
    is_plain: bool

    def holds(self, *kinds: frozenset[str]) -> bool:
        """True when the source's own value is written, and is of one of these kinds."""
        return self.is_plain and any(self.source.data_type in kind for kind in kinds)


def forms(pair: ColumnPair, *, value: str = "", stored: str = "") -> tuple[Form, ...]:
    """How a pair of columns is compared: both forms of each must be equal. `value`, `stored`: SQL of the columns."""
    move = _Move(
        source=pair.source,
        target=pair.target,
        value=pair.convert.format(value or ident(pair.source.name)),
        stored=stored or ident(pair.target.name),
        is_plain=pair.convert == "{}",
    )
    return _same(move) if move.is_plain and _is_same(pair.source, pair.target) else _changed(move)


def _is_same(source: Column, target: Column) -> bool:
    """True when both columns show equal values in equal texts."""
    if is_character(source) and is_character(target):
        # A CHAR shows its value without the spaces at its end, so the source's has to lose them for the comparison,
        # too.
        return _is_same_charset(source, target) and (target.data_type != "char" or source.data_type == "char")
    if source.data_type in INTEGERS or source.data_type == "bit":
        return target.data_type in INTEGERS or target.data_type == "bit"
    if source.data_type != target.data_type:
        return False
    if source.data_type in LABELED:
        # Labels that are added at the end leave the numbers of the others as they are.
        return source.labels == target.labels[: len(source.labels)]
    if source.data_type == "binary":
        return source.length == target.length
    return (source.scale, source.fraction) == (target.scale, target.fraction)


def _is_same_charset(source: Column, target: Column) -> bool:
    return source.charset == target.charset or {source.charset, target.charset} <= _UTF8


def _same(move: _Move) -> tuple[Form, ...]:
    return (
        Form(
            source=_shown(move.source, move.value),
            target=_shown(move.target, move.stored),
            is_bytes=_is_bytes(move.source) or _is_bytes(move.target),
            is_long=_is_long(move.source) or _is_long(move.target),
            may_be_null=move.source.is_nullable or move.target.is_nullable,
        ),
    )


def _is_bytes(column: Column) -> bool:
    # UTF-8 has no byte FE or FF: such text needs no length beside it.
    return column.data_type in _SHORT and column.charset not in _UTF8


def _is_long(column: Column) -> bool:
    kind = column.data_type
    return kind in GEOMETRIES or kind == "json" or (kind in CHARACTERS | BYTES and kind not in _SHORT)


def _shown(column: Column, value: str) -> str:
    """A column's value so that equal texts are equal values."""
    kind = column.data_type
    if kind == "set":
        # As a number it is a DOUBLE on MySQL, which does not tell all sets of more than 53 labels apart (measured).
        return f"CAST({value} AS UNSIGNED)"
    if kind in ("bit", "enum"):
        return f"{value}+0"
    if kind in APPROXIMATE:
        # A DOUBLE column is shown with all of its digits, a computed one is cut at 22 characters (MySQL, measured).
        is_whole = kind == "double" and column.scale is None
        return f"IF({value}=0,'0',{value})" if is_whole else _digits(value)
    if column.is_zerofill:
        return f"CAST({value} AS {'UNSIGNED' if kind in INTEGERS else _decimal(column)})"
    return value


def _digits(value: str) -> str:
    """All digits of a computed DOUBLE; -0 is 0."""
    return f"JSON_ARRAY({value}+0e0)"


def _decimal(column: Column) -> str:
    return f"DECIMAL({column.precision or 10},{column.scale or 0})"


def _changed(move: _Move) -> tuple[Form, ...]:
    kind = move.target.data_type
    if kind in INTEGERS or kind == "bit":
        return _to_integer(move)
    if kind in DECIMALS:
        return _to_decimal(move)
    if kind in APPROXIMATE:
        return _to_approximate(move)
    if kind == "year":
        return (Form(source=_full_year(move.value), target=f"{move.stored}+0"),)
    if kind in TEMPORALS:
        return (Form(source=f"CAST({move.value} AS {_time_type(move.target)})", target=move.stored),)
    if kind in PLAIN_TEXT:
        return (Form(source=f"CAST({move.value} AS {kind.upper()})", target=move.stored),)
    if kind in LABELED:
        return _to_labels(move)
    if kind == "json":
        return (Form(source=f"CAST({move.value} AS JSON)", target=move.stored, is_long=True),)
    return _to_characters(move) if is_character(move.target) else _to_bytes(move)


def _time_type(column: Column) -> str:
    if column.data_type == "date":
        return "DATE"
    return f"{'TIME' if column.data_type == 'time' else 'DATETIME'}({column.fraction})"


def _full_year(value: str) -> str:
    """Of an integer (nothing else may become a YEAR): servers make 2069 of 69, 1970 of 70, and 0 of 0."""
    century = f"CASE WHEN {value} BETWEEN 1 AND 69 THEN 2000 WHEN {value} BETWEEN 70 AND 99 THEN 1900 ELSE 0 END"
    return f"CAST({value}+{century} AS SIGNED)"


def _number(move: _Move) -> str:
    """The value where a number is expected."""
    return f"({move.value}+0)" if move.source.data_type in (*TEMPORALS, "bit", "year", "enum", "set") else move.value


def _to_integer(move: _Move) -> tuple[Form, ...]:
    if move.holds(DECIMALS):
        return _exact(move)
    kind = "UNSIGNED" if move.target.is_unsigned or move.target.data_type == "bit" else "SIGNED"
    if move.holds(APPROXIMATE) or move.source.data_type in TEMPORALS:
        return (Form(source=f"CAST({_number(move)} AS {kind})", target=_shown(move.target, move.stored)),)
    # Text: with its digits behind the point, which a plain ALTER refuses (MariaDB) and storing rounds without a word.
    both = "DECIMAL(65,30)"
    return (
        Form(source=f"CAST({_number(move)} AS {both})", target=f"CAST({_shown(move.target, move.stored)} AS {both})"),
    )


def _to_decimal(move: _Move) -> tuple[Form, ...]:
    if move.holds(INTEGERS, DECIMALS, frozenset({"bit"})):
        return _exact(move)
    stored = _shown(move.target, move.stored)
    return (Form(source=f"CAST({_number(move)} AS {_decimal(move.target)})", target=stored),)


def _exact(move: _Move) -> tuple[Form, ...]:
    """In a DECIMAL that holds both; where none does, each way by itself."""
    scale = max(move.source.scale or 0, move.target.scale or 0)
    digits = max(_whole_digits(move.source), _whole_digits(move.target))
    value = _number(move)
    # DECIMAL has at most 65 digits.
    if digits + scale <= 65:
        both = f"DECIMAL({digits + scale},{scale})"
        return (Form(source=f"CAST({value} AS {both})", target=f"CAST({move.stored} AS {both})"),)
    return (
        Form(source=f"CAST({value} AS {_decimal(move.target)})", target=_shown(move.target, move.stored)),
        Form(source=_shown(move.source, move.value), target=f"CAST({move.stored} AS {_decimal(move.source)})"),
    )


def _whole_digits(column: Column) -> int:
    return (column.precision or 10) - (column.scale or 0) if column.data_type in DECIMALS else 20


def _to_approximate(move: _Move) -> tuple[Form, ...]:
    number = f"({_number(move)}+0e0)"
    if move.target.scale is not None:
        number = f"ROUND({number},{move.target.scale})"
    if move.target.data_type == "float":
        number = f"CAST({number} AS FLOAT)"
    return (Form(source=_digits(number), target=_digits(move.stored)),)


def _to_labels(move: _Move) -> tuple[Form, ...]:
    """The place of the value's text among the target's labels, compared as the target compares."""
    words = f"CONVERT({move.value} USING {move.target.charset}) COLLATE {move.target.collation}"
    if move.target.data_type == "set":
        bits = (f"IF(FIND_IN_SET({text(x)},{words}),{1 << i},0)" for i, x in enumerate(move.target.labels))
        place = "|".join(bits)
    else:
        labels = ",".join(map(text, move.target.labels))
        place = f"FIELD(TRIM(TRAILING ' ' FROM {words}),{labels})"
        if move.holds(CHARACTERS):
            # Text that is no label but a number is the number of a label.
            place = f"COALESCE(NULLIF({place},0),CAST({move.value} AS UNSIGNED))"
    return (Form(source=f"IF({move.value} IS NULL,NULL,{place})", target=_shown(move.target, move.stored)),)


def _to_characters(move: _Move) -> tuple[Form, ...]:
    is_long = _is_long(move.source) or _is_long(move.target)
    if _is_bytewise(move):
        return (Form(source=_unpadded(move), target=move.stored, is_bytes=not is_long, is_long=is_long),)
    if move.is_plain and is_character(move.source):
        return _recoded(move, is_long)
    return (_in_charset(move, "utf8mb4", is_long),)


def _is_bytewise(move: _Move) -> bool:
    """True when bytes become text without a conversion."""
    if move.source.data_type == "bit" and not move.is_plain:
        return move.target.data_type not in _SHORT
    return move.holds(BYTES, GEOMETRIES) or (move.holds(CHARACTERS) and not is_character(move.source))


def _unpadded(move: _Move) -> str:
    """CHAR drops trailing spaces, without a word."""
    return f"TRIM(TRAILING ' ' FROM {move.value})" if move.target.data_type == "char" else move.value


def _recoded(move: _Move, is_long: bool) -> tuple[Form, ...]:
    """Text that changes its character set is compared in the one that holds both; else in each."""
    before, after = move.source.charset or "utf8mb4", move.target.charset or "utf8mb4"
    if _is_same_charset(move.source, move.target):
        is_bytes = after not in _UTF8 and not is_long
        return (Form(source=_unpadded(move), target=move.stored, is_bytes=is_bytes, is_long=is_long),)
    wider = [c for c in (after, before) if c in _UNICODE][:1] or [after, before]
    return tuple(_in_charset(move, charset, is_long) for charset in wider)


def _in_charset(move: _Move, charset: str, is_long: bool) -> Form:
    return Form(
        source=_converted(_unpadded(move), move.source, charset),
        target=_converted(move.stored, move.target, charset),
        is_bytes=charset not in _UTF8 and not is_long,
        is_long=is_long,
    )


def _converted(value: str, column: Column, charset: str) -> str:
    own = column.charset if is_character(column) else None
    return value if own == charset or {own, charset} <= _UTF8 else f"CONVERT({value} USING {charset})"


def _to_bytes(move: _Move) -> tuple[Form, ...]:
    """BLOB, VARBINARY, BINARY, GEOMETRY, VECTOR: bytes as they are."""
    is_long = _is_long(move.source) or _is_long(move.target)
    value, stored = move.value, move.stored
    if move.target.data_type == "binary" and move.target.length:
        width = move.target.length
        value = f"IF(LENGTH({value})<{width},RPAD(CAST({value} AS BINARY),{width},{_ZERO}),{value})"
    return (Form(source=value, target=stored, is_bytes=not is_long, is_long=is_long),)
