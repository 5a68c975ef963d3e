"""How large a row of a table can become as a message, at the most.

It is worked out from the table's definition, for an UPDATE with both images, as if every letter of a text needed six
bytes (as NUL does in JSON). No value of a column is larger than the server's max_allowed_packet.

What must stay true: no row is ever larger than what is said here.
"""

from __future__ import annotations

from vreplication.feed.formats.encoding import BYTES, FLOATS, GEOMETRY, text
from vreplication.feed.large import size
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Format, Place, Row
from vreplication.schema.model import Column

_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_WIDE = 6
"""Bytes that a letter, or a byte of what is shown as letters, may need."""
_NUMBER, _FLOAT = 100, 400
"""Bytes that any other value may need; a number without an exponent (Canal) has as many digits as its exponent says."""
_OF_VECTOR = 60
"""Bytes of one of its numbers, which has no exponent (encoding.numbers), with a comma."""
_SLACK = 1_000
_IMAGES, _KEYS = 2, 3
"""How often a value may be in a message, and a value of the key beside that."""


def most_bytes(format: Format, layout: Layout, packet: int) -> int:
    """Of a message, but for our headers. packet: max_allowed_packet."""
    nothing = (None,) * len(layout.columns)
    place = Place(1 << 53, 1 << 40)
    row = Row(
        layout=layout, place=place, before=nothing, after=nothing, gtid="x" * 100, source="x" * 100, commit=place.t
    )
    empty = max(map(size, format.row(row)))
    names = sum(len(text(column.name).encode()) + 1 for column in layout.columns)
    values = {column.name: _most(column, packet) for column in layout.columns}
    keys = sum(values[name] for name in layout.key) if layout.has_key else 0
    return empty + names + _IMAGES * sum(values.values()) + _KEYS * keys + _SLACK


def _most(column: Column, packet: int) -> int:
    """Of a value, in any format."""
    kind = column.data_type
    if kind in _TEXT:
        return _WIDE * min(column.characters or column.length or packet, packet) + 2
    if kind in BYTES:
        return _WIDE * min(column.length or packet, packet) + 2
    if kind == "json" or kind in GEOMETRY:
        # What is in the log is shorter than its text: a backslash is doubled, a number is spelled out.
        return (_WIDE + 1) * packet
    if kind in ("enum", "set"):
        return sum(len(text(label).encode()) + 1 for label in column.labels) + 10
    if kind in FLOATS:
        return _FLOAT
    if kind == "vector":
        # Numbers of four bytes each, as many as the column has.
        return _OF_VECTOR * min(column.precision or packet, packet // 4) + 2
    return _NUMBER
