"""Maxwell's format. Source: its docs, dataformat.md.

{"database":…,"table":…,"type":"insert","ts":seconds,"gtid" or "position":…,"primary_key":[…],
"primary_key_columns":[…],"data":{…},"old":{…}}. data is the whole row, after a DELETE the one that was; old has what
an UPDATE changed. A row of a snapshot is a "bootstrap-insert". What we do not know (xid, commit, server_id, thread_id)
is left out. Key: {"database":…,"table":…,"pk.id":1}.

Ours, for Maxwell has none: "table-truncate", "resolved", "admin" and "align", whose `t` is exact, in microseconds.

What must stay true: the same row is the same bytes, always, the `_uuid` in the key of a row that has no key too.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from vreplication.feed.claims import Claim
from vreplication.feed.formats.encoding import (
    BYTES,
    DECIMALS,
    FLOATS,
    GEOMETRY,
    INTEGERS,
    PerLayout,
    Write,
    encode,
    first_table,
    in_base64,
    inserted,
    is_of_database,
    is_of_index,
    members,
    origin,
    text,
    wkt,
)
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Admin, Ddl, Encoded, KeyOnly, Place, Row
from vreplication.schema.model import Column

_SECOND = 1_000_000
_ALTERING = frozenset({"RENAME", "ALTER"})
_OURS = uuid.UUID("8f3c1f0e-6d0b-5f4e-9a52-5b0f6c1c7f10")
"""The namespace of our `_uuid`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """head: the first members of key and value. columns: (its name as JSON, writer). key: (its name, place)."""

    head: str
    columns: tuple[tuple[str, Write], ...]
    key: tuple[tuple[str, int], ...]
    key_columns: str


class Maxwell:
    name = "maxwell"

    def __init__(self) -> None:
        self._tables = PerLayout(_table)

    def row(self, row: Row) -> list[Encoded]:
        table = self._tables.of(row.layout)
        cells = _cells(table, row.after if row.after is not None else row.before or ())
        old = _changed(table, row, cells)
        value = (
            f'{table.head},"type":"{_kind(row)}","ts":{(row.commit or row.place.t) // _SECOND}{_origin(row.gtid)},'
            f'"primary_key":[{",".join(cells[place] for _, place in table.key)}],'
            f'"primary_key_columns":{table.key_columns},"data":{_object(table, cells)}{old}}}'
        )
        return [Encoded(key=_key(table, cells, row).encode(), value=value.encode())]

    def ddl(self, ddl: Ddl) -> list[Encoded]:
        schema, table = first_table(ddl)
        named = {"database": schema} if is_of_database(ddl) else {"database": schema, "table": table}
        # Of a definition Maxwell tells milliseconds.
        said = {"type": _definition(ddl), **named, "ts": (ddl.commit or ddl.place.t) // 1000, "sql": ddl.sql}
        key = {"database": schema, "table": table, "_uuid": _uuid(ddl.source, ddl.place)}
        return [Encoded(key=encode(key).encode(), value=f"{encode(said)[:-1]}{_origin(ddl.gtid)}}}".encode())]

    def resolved(self, t: int) -> Encoded:
        # One key for all: in a compacted topic the last of them says enough.
        said = {"type": "resolved", "ts": t // _SECOND, "t": t}
        return Encoded(key=b'{"type":"resolved"}', value=encode(said).encode())

    def admin(self, admin: Admin) -> Encoded:
        key = {"type": "admin", "generation": admin.generation}
        said = {**key, "partition": admin.partitions, "ts": admin.t // _SECOND, "t": admin.t}
        return Encoded(key=encode(key).encode(), value=encode(said).encode())

    def align(self, number: Place) -> Encoded:
        said = {"type": "align", "ts": number.t // _SECOND, "t": number.t, "align": number}
        return Encoded(key=b'{"type":"align"}', value=encode(said).encode())

    def mark(self, message: Encoded, said: Claim | KeyOnly) -> Encoded:
        return inserted(message, f'"claim_check":{encode(said)}' if isinstance(said, Claim) else '"key_only":true')


def _table(layout: Layout) -> _Table:
    key = layout.key if layout.has_key else ()
    return _Table(
        head=f'{{"database":{text(layout.schema)},"table":{text(layout.table)}',
        columns=tuple((text(column.name), _writer(column)) for column in layout.columns),
        key=tuple((text(f"pk.{name.lower()}"), layout.places[name]) for name in key),
        key_columns=encode(key),
    )


def _kind(row: Row) -> str:
    if row.is_snapshot:
        return "bootstrap-insert"
    if row.after is None:
        return "delete"
    return "insert" if row.before is None else "update"


def _cells(table: _Table, row: tuple[Any, ...]) -> list[str]:
    return ["null" if value is None else write(value) for (_, write), value in zip(table.columns, row, strict=True)]


def _object(table: _Table, cells: list[str]) -> str:
    return "{" + ",".join(f"{name}:{cell}" for (name, _), cell in zip(table.columns, cells, strict=True)) + "}"


def _changed(table: _Table, row: Row, cells: list[str]) -> str:
    """What an UPDATE changed, as it was."""
    if row.before is None or row.after is None:
        return ""
    pairs = zip(table.columns, _cells(table, row.before), cells, strict=True)
    changed = [f"{name}:{was}" for (name, _), was, now in pairs if was != now]
    return f',"old":{{{",".join(changed)}}}' if changed else ""


def _key(table: _Table, cells: list[str], row: Row) -> str:
    if not table.key:
        return f'{table.head},"_uuid":"{_uuid(row.source, row.place)}"}}'
    return f"{table.head},{','.join(f'{name}:{cells[place]}' for name, place in table.key)}}}"


def _uuid(source: str, place: Place) -> str:
    """Maxwell draws one; ours is the same each time."""
    return str(uuid.uuid5(_OURS, f"{source}/{place.t}/{place.seq}"))


def _origin(gtid: str) -> str:
    found = origin(gtid)
    if found.file:
        return f',"position":{text(f"{found.file}:{found.offset}")}'
    return f',"gtid":{text(gtid)}' if gtid else ""


def _definition(ddl: Ddl) -> str:
    what = "database" if is_of_database(ddl) else "table"
    verb = "alter" if ddl.verb in _ALTERING or is_of_index(ddl) else ddl.verb.lower()
    return f"{what}-{verb}"


def _writer(column: Column) -> Write:
    kind = column.data_type
    if kind in INTEGERS or kind in DECIMALS or kind in ("bit", "year", "json"):
        return str
    if kind in FLOATS:
        return repr
    if kind in BYTES or kind == "vector":
        return in_base64
    if kind in GEOMETRY:
        return lambda value: text(wkt(value))
    return members if kind == "set" else text
