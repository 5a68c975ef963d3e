"""Columns whose equal values two servers show in different texts: read as they are and compared by the client.

Two flavors do not print a DOUBLE alike (-0, 1.0). JSON is text on MariaDB, with the spaces, the order and the doubled
keys that it came with; MySQL keeps the values alone.

What must stay true: equal values give equal bytes, whatever server showed them, and values that differ give others: a
DOUBLE by all of its bits, where -0 is 0; a document after MySQL's rules (the last of doubled keys counts, an integer
beyond 64 bits is a DOUBLE). A row's bytes can be cut into its values in one way only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from vreplication.mysql.quoting import ident
from vreplication.schema.literals import APPROXIMATE, is_character
from vreplication.schema.model import Column, ColumnPair, TableMapping

_DOUBLE, _LENGTH = struct.Struct(">cd"), struct.Struct(">cQ")
_NULL, _NUMBER, _DOCUMENT = b"N", b"D", b"J"


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """One column on one side. `sql`: shows its value, to be read by `number` or `document`."""

    sql: str
    is_number: bool

    def value(self, shown: object) -> float | str | None:
        return number(shown) if self.is_number else document(shown)


def soft_pairs(mapping: TableMapping, *, is_foreign: bool) -> tuple[ColumnPair, ...]:
    """Columns of a mapping that are to be compared as values. is_foreign: between two flavors."""
    pairs = (*mapping.pairs, *mapping.kept)
    return tuple(pair for pair in pairs if not pair.is_constant and is_soft(pair, is_foreign=is_foreign))


def is_soft(pair: ColumnPair, *, is_foreign: bool) -> bool:
    columns = (pair.source, pair.target)
    is_json = any(c.data_type == "json" for c in columns) and any(is_character(c) for c in columns)
    return is_json or (is_foreign and any(c.data_type in APPROXIMATE for c in columns))


def soft(column: Column) -> Soft:
    """How a column of such a pair is read.

    JSON and text are sent as they are: no function that would give NULL for what no packet holds stands in between.
    """
    name = ident(column.name)
    if column.data_type in APPROXIMATE:
        return Soft(sql=f"IF({name} IS NULL,NULL,JSON_ARRAY({name}+0e0))", is_number=True)
    return Soft(sql=name, is_number=False)


def number(shown: object) -> float | None:
    """All digits of a DOUBLE, in brackets. -0 is 0."""
    return None if shown is None else float(_text(shown)[1:-1]) + 0.0


def document(shown: object) -> str | None:
    """One text for all texts of the same JSON value."""
    if shown is None:
        return None
    try:
        return json.dumps(_plain(json.loads(_text(shown))), sort_keys=True)
    # MariaDB takes an integer of more than 308 digits for JSON, which no DOUBLE holds: such text counts by its
    # letters.
    except (ValueError, OverflowError, RecursionError):
        return f"text {_text(shown)}"


def _plain(value: Any) -> Any:
    """Numbers as the servers keep them in JSON: 64-bit integers, else DOUBLE. -0 is 0."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 64 else float(value)
    return value + 0.0 if isinstance(value, float) else value


def _text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def digest(columns: Sequence[Soft], shown: Iterable[object], size: int) -> bytes:
    """Of a row's values, `size` bytes."""
    found = blake2b(digest_size=size)
    for column, value in zip(columns, shown, strict=True):
        found.update(_packed(column.value(value)))
    return found.digest()


def _packed(value: float | str | None) -> bytes:
    if value is None:
        return _NULL
    if isinstance(value, float):
        return _DOUBLE.pack(_NUMBER, value)
    # Half of a surrogate pair, which MariaDB lets through, is an escape in the text.
    data = value.encode(errors="surrogatepass")
    return _LENGTH.pack(_DOCUMENT, len(data)) + data
