"""Server-side SQL that renders a value as a SQL literal, in the shapes that `binlog/rows.py` writes.

What must stay true: the literal, executed in a session of ours, is the very value (a FLOAT to its last bit, a
string by its bytes and character set, an ENUM by its label); for integers and binaries equal values are equal texts,
here and in the reader of row images.
"""

from __future__ import annotations

from string import Formatter

from vreplication.mysql.quoting import ident
from vreplication.schema.model import Column, ColumnPair, TableMapping

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
APPROXIMATE = frozenset({"float", "double"})
DECIMALS = frozenset({"decimal", "numeric"})
TEMPORALS = frozenset({"date", "time", "datetime", "timestamp"})
CHARACTERS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
BYTES = BINARIES | {"vector"}
GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
PLAIN_TEXT = frozenset({"uuid", "inet6", "inet4"})
LABELED = frozenset({"enum", "set"})


def is_character(column: Column) -> bool:
    """True for text with a character set. MariaDB calls JSON longtext."""
    return column.data_type in CHARACTERS and column.charset not in (None, "binary")


def literal_sql(column: Column, expression: str) -> str:
    """SQL that gives the literal of `expression`, a value of the column's type; 'NULL' for NULL.

    It gives NULL for a value whose text is longer than the session's max_allowed_packet.
    """
    return _or_null(column, expression, _not_null(column, expression))


def bound_sql(column: Column, expression: str) -> str:
    """As `literal_sql`, for comparing by `<` and `>`: ENUM and SET by number, as the server sorts them."""
    if column.data_type in LABELED:
        return f"CONCAT({expression}+0)"
    return literal_sql(column, expression)


def key_literal_sql(columns: tuple[Column, ...], expressions: list[str]) -> str:
    """SQL that gives the comma list of the key's literals."""
    parts = [literal_sql(c, e) for c, e in zip(columns, expressions, strict=True)]
    return f"CONCAT({','.join(_between(parts, quoted(',')))})"


def row_literal_sql(mapping: TableMapping, *, alias: str = "") -> str:
    """SQL over the source that gives `(literal,literal,…)` for a row, in the target's column order.

    It gives NULL for a row whose text is longer than the server's max_allowed_packet: an error, never a skip.
    """
    prefix = f"{ident(alias)}." if alias else ""
    values = []
    for pair in mapping.pairs:
        literal = pair_literal_sql(mapping, pair, prefix + ident(pair.source.name))
        values.append(",".join(_around(pair.convert, literal)))
    return f"CONCAT('(',{','.join(_between(values, quoted(',')))},')')"


def pair_literal_sql(mapping: TableMapping, pair: ColumnPair, expression: str) -> str:
    """SQL that gives the literal of a source's value as a row has it, before the pair's conversion."""
    return (_bytes_sql if _is_kept_as_bytes(mapping, pair) else literal_sql)(pair.source, expression)


def has_bytes(column: Column) -> bool:
    """True for a value that may be long: its literal shows its bytes."""
    kind = column.data_type
    return is_character(column) or kind in BINARIES or kind in GEOMETRIES or kind == "json"


def piece_sql(column: Column, expression: str, start: int, length: int) -> str:
    """SQL of a piece of those bytes. start (from 1), length: in units of `unit_bytes`.

    The value is cut before it is cast: no function gives a text that is longer than the session's max_allowed_packet.
    """
    value = f"CAST({expression} AS BINARY)" if column.data_type in GEOMETRIES else expression
    return f"CAST(SUBSTRING({value},{start},{length}) AS BINARY)"


def unit_bytes(column: Column) -> int:
    """What `piece_sql` counts: characters of at most so many bytes, or bytes."""
    return 4 if is_character(column) or column.data_type == "json" else 1


def from_bytes_sql(mapping: TableMapping, pair: ColumnPair, data: str) -> str:
    """SQL of what the literal stands for, of SQL of its bytes."""
    # MySQL's JSON names no character set of its own; its text is utf8mb4.
    charset = "utf8mb4" if pair.source.data_type == "json" else pair.source.charset
    is_text = is_character(pair.source) or pair.source.data_type == "json"
    return f"CONVERT({data} USING {charset})" if is_text and not _is_kept_as_bytes(mapping, pair) else data


def _is_kept_as_bytes(mapping: TableMapping, pair: ColumnPair) -> bool:
    """Text off the key whose bytes are stored as they are. MySQL warns of an introducer, value by value, where the
    character set is deprecated or a byte stands for no character.
    """
    source, target = pair.source, pair.target
    # F9: keys are compared by the server, as their collation does; a literal that is bare bytes has none.
    if source.name in {key.source.name for key in mapping.key}:
        return False
    is_same = is_character(target) and source.charset == target.charset
    return is_character(source) and pair.convert == "{}" and (is_same or target.data_type in BINARIES)


def _bytes_sql(column: Column, expression: str) -> str:
    return _or_null(column, expression, _hex(expression))


def _or_null(column: Column, expression: str, rendered: str) -> str:
    """It asks the value: text that no packet holds is NULL, of a value that is not."""
    return f"IF({expression} IS NULL,'NULL',{rendered})" if column.is_nullable else rendered


def _around(template: str, literal: str) -> list[str]:
    """`template` with SQL for the literal's text in its places, as pieces for CONCAT."""
    pieces = []
    for text, name, _, _ in Formatter().parse(template):
        if text:
            pieces.append(quoted(text))
        if name is not None:
            pieces.append(literal)
    return pieces


def _between(parts: list[str], glue: str) -> list[str]:
    return [piece for part in parts for piece in (glue, part)][1:]


def quoted(text: str) -> str:
    """ASCII text as a plain string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _not_null(column: Column, value: str) -> str:
    kind = column.data_type
    if kind in INTEGERS or kind in DECIMALS:
        return _number(column, value)
    if kind in APPROXIMATE:
        return _approximate(value)
    # As numbers: a BIT is shown as its bytes, and a YEAR that is written as the text '0' is 2000 and not 0000.
    if kind in ("bit", "year"):
        return f"CONCAT({value}+0)"
    if kind in TEMPORALS or kind in PLAIN_TEXT:
        return f"CONCAT('''',{value},'''')"
    return _text(column, value) if kind in LABELED or kind == "json" or is_character(column) else _hex(value)


def _number(column: Column, value: str) -> str:
    """Digits. ZEROFILL's leading zeros would make two texts of one number."""
    if not column.is_zerofill:
        return f"CONCAT({value})"
    if column.data_type in INTEGERS:
        return f"CONCAT(CAST({value} AS UNSIGNED))"
    return f"CONCAT(CAST({value} AS DECIMAL({column.precision},{column.scale or 0})))"


def _approximate(value: str) -> str:
    """The value as DOUBLE, with an exponent: without one the server would read a DECIMAL.

    CONCAT cuts a computed DOUBLE at 22 characters on MySQL (measured); JSON prints all of its digits on both servers.
    """
    text = f"TRIM(TRAILING ']' FROM TRIM(LEADING '[' FROM JSON_ARRAY({value}*1e0)))"
    return f"IF({value} IS NULL,NULL,CONCAT({text},IF(LOCATE('e',{text}),'','e0')))"


def _text(column: Column, value: str) -> str:
    if column.data_type == "json":
        # No JSON is empty: it is what MySQL gives of one that no packet holds (measured).
        return _hex(f"CONVERT({value} USING utf8mb4)", "_utf8mb4 ", empty="NULL")
    # By its label: the error value 0, which has none, cannot be written so and ends the workflow (docs/limits.md).
    if column.data_type in LABELED:
        return _hex(f"CONVERT({value} USING utf8mb4)", "_utf8mb4 ")
    return _hex(value, f"_{column.charset} ")


def _hex(value: str, introducer: str = "", empty: str = "''''''") -> str:
    return f"IF(LENGTH({value})=0,{empty},CONCAT('{introducer}X''',HEX({value}),''''))"
