"""The format `open`: JSON, and the one that our own consumers read. Source: TiCDC's design "MQ Protocol".

Key: {"ts":…,"type":"Row","schema":…,"table":…}; type is Row, DDL, Resolved, Admin or Align. Value of a row:
{"update":{column:{"type":…,"value":…,"unique":true}}}, with "before" beside it where the row was there, or
{"delete":{…}}. "unique" stands at the columns that tell rows apart. Of what was too large only those are there, and
"claim-check" or "key-only" beside them (large.py). Resolved has no value.

What must stay true: the same row is the same bytes, always; every value reads back as what it was.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import msgspec

from vreplication.errors import Terminal
from vreplication.feed.claims import Claim
from vreplication.feed.formats.encoding import PerLayout, Write, in_base64, inserted, members, text
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Admin, Ddl, Encoded, KeyOnly, Place, Row
from vreplication.schema.model import Column

_encode = msgspec.json.encode
_MOST_EXACT = 1 << 53
_TYPES = {
    **{"tinyint": "Tiny", "smallint": "Short", "mediumint": "Medium", "int": "Long", "integer": "Long"},
    **{"bigint": "LongLong", "year": "Year", "bit": "Bit", "decimal": "Decimal", "numeric": "Decimal"},
    **{"float": "Float", "double": "Double", "real": "Double", "date": "Date", "time": "Time"},
    **{"datetime": "DateTime", "timestamp": "Timestamp", "enum": "Enum", "set": "Set", "json": "JSON"},
    **dict.fromkeys(("char", "varchar"), "String"),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), "Text"),
    **dict.fromkeys(("binary", "varbinary"), "Binary"),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), "Blob"),
    **{"vector": "Vector", "uuid": "UUID", "inet4": "INET4", "inet6": "INET6"},
}
_GEOMETRY = "Geometry"


@dataclass(frozen=True, slots=True)
class _Cell:
    """head, tail: what stands around a value; write: the value as JSON."""

    head: str
    write: Write
    tail: str


class Open:
    """Compiles a layout once."""

    name = "open"

    def __init__(self) -> None:
        self._tables = PerLayout(_compiled)

    def row(self, row: Row) -> list[Encoded]:
        cells, key_tail = self._tables.of(row.layout)
        key = f'{{"ts":{row.place.t},"type":"Row",{key_tail}'
        if row.after is None:
            value = f'{{"delete":{_object(cells, row.before or ())}}}'
        elif row.before is None:
            value = f'{{"update":{_object(cells, row.after)}}}'
        else:
            value = f'{{"update":{_object(cells, row.after)},"before":{_object(cells, row.before)}}}'
        return [Encoded(key=key.encode(), value=value.encode())]

    def ddl(self, ddl: Ddl) -> list[Encoded]:
        schema, table = ddl.tables[0] if ddl.tables else (ddl.schema, "")
        key = {"ts": ddl.place.t, "type": "DDL", "schema": schema, "table": table}
        return [Encoded(key=_encode(key), value=_encode({"query": ddl.sql, "schema": ddl.schema}))]

    def resolved(self, t: int) -> Encoded:
        return Encoded(key=_encode({"ts": t, "type": "Resolved"}), value=None)

    def admin(self, admin: Admin) -> Encoded:
        value: dict[str, Any] = {"partition": admin.partitions, "generation": admin.generation, "ts": admin.t}
        if admin.snapshot:
            value["snapshot"] = admin.snapshot
        return Encoded(key=_encode({"ts": admin.t, "type": "Admin"}), value=_encode(value))

    def align(self, number: Place) -> Encoded:
        return Encoded(key=_encode({"ts": number.t, "type": "Align"}), value=_encode({"align": number}))

    def mark(self, message: Encoded, said: Claim | KeyOnly) -> Encoded:
        name = "claim-check" if isinstance(said, Claim) else "key-only"
        return inserted(message, f'"{name}":{_encode(said).decode()}')


def _compiled(layout: Layout) -> tuple[tuple[_Cell, ...], str]:
    key = layout.key if layout.has_key else ()
    cells = tuple(_cell(column, is_unique=column.name in key) for column in layout.columns)
    return cells, f'"schema":{text(layout.schema)},"table":{text(layout.table)}}}'


def _object(cells: tuple[_Cell, ...], row: tuple[Any, ...]) -> str:
    shown = [
        f"{cell.head}{'null' if value is None else cell.write(value)}{cell.tail}"
        for cell, value in zip(cells, row, strict=True)
    ]
    return "{" + ",".join(shown) + "}"


def _cell(column: Column, *, is_unique: bool) -> _Cell:
    head = f'{text(column.name)}:{{"type":"{_TYPES.get(column.data_type, _GEOMETRY)}","value":'
    return _Cell(head, _writer(column), ',"unique":true}' if is_unique else "}")


def _writer(column: Column) -> Write:
    kind = _TYPES.get(column.data_type, _GEOMETRY)
    if kind in ("LongLong", "Bit"):
        return _large
    if kind in ("Tiny", "Short", "Medium", "Long", "Year"):
        return str
    if kind in ("Float", "Double"):
        return repr
    if kind in ("Binary", "Blob", "Vector", _GEOMETRY):
        return in_base64
    if kind == "Set":
        return members
    return text


def _large(value: int) -> str:
    """Readers whose numbers are doubles would round what is larger."""
    return str(value) if -_MOST_EXACT <= value <= _MOST_EXACT else f'"{value}"'


# Reading.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value as it was sent: as of feed/values.py. is_unique: the column tells rows apart."""

    type: str
    value: Any
    is_unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row, read back. Cells by column name. only: those of the key are here, and the rest is to be asked for."""

    schema: str
    table: str
    before: dict[str, Cell] | None
    after: dict[str, Cell] | None
    only: KeyOnly | None = None


_decode = msgspec.json.Decoder()
# RecursionError: of JSON that is nested too deeply, which none of ours is.
_UNREADABLE = (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError)


def read_row(key: bytes | None, value: bytes | None) -> Change:
    """Raises Terminal for what is no row of this format."""
    try:
        names, said = _decode.decode(key or b""), _decode.decode(value or b"")
        deleted = said.get("delete")
        before = said.get("before") if deleted is None else deleted
        if deleted is None and "update" not in said:
            raise KeyError("update")
        return Change(
            schema=names["schema"],
            table=names["table"],
            before=None if before is None else _cells(before),
            after=_cells(said["update"]) if "update" in said else None,
            only=msgspec.convert(said["key-only"], KeyOnly) if "key-only" in said else None,
        )
    except (*_UNREADABLE, AttributeError) as error:
        raise Terminal(f"A row of the feed cannot be read ({error!r}).") from None


def _cells(said: dict[str, dict[str, Any]]) -> dict[str, Cell]:
    return {
        name: Cell(type=cell["type"], value=_read(cell["type"], cell["value"]), is_unique=cell.get("unique", False))
        for name, cell in said.items()
    }


def _read(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind in ("Binary", "Blob", "Vector", _GEOMETRY):
        return base64.b64decode(value, validate=True)
    if kind in ("LongLong", "Bit"):
        return int(value)
    if kind in ("Float", "Double"):
        return float(value)
    return ",".join(value) if kind == "Set" else value


def read_ddl(key: bytes | None, value: bytes | None) -> tuple[str, str]:
    """The session's schema, and the statement. Raises Terminal."""
    try:
        said = _decode.decode(value or b"")
        return said["schema"], said["query"]
    except _UNREADABLE as error:
        raise Terminal(f"A DDL of the feed cannot be read ({error!r}).") from None


def begins_generation(value: bytes | None) -> bool:
    """False: an Admin that only says that a snapshot is done."""
    return b'"snapshot"' not in (value or b"")


def read_admin(value: bytes | None) -> tuple[int, int, int]:
    """(generation, partitions, t). Raises Terminal."""
    try:
        said = _decode.decode(value or b"")
        return said["generation"], said["partition"], said["ts"]
    except _UNREADABLE as error:
        raise Terminal(f"An Admin of the feed cannot be read ({error!r}).") from None
