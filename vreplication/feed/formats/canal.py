"""Canal-JSON as TiCDC writes it. Source: TiCDC's codec canal, and its document "TiCDC Canal-JSON Protocol".

{"id":0,"database":…,"table":…,"pkNames":[…],"isDdl":false,"type":"INSERT","es":ms,"ts":ms,"sql":"","sqlType":{…},
"mysqlType":{…},"data":[{…}],"old":[{…}],"_tidb":{"commitTs":t}}. A DELETE has the row that was in `data`; an UPDATE has
the whole of it in `old`. All values are text: ENUM the number of its label, SET its bits, bytes (and geometry: SRID and
WKB) a letter of ISO-8859-1 each. TIDB_WATERMARK is Resolved; ADMIN and ALIGN are ours. commitTs and watermarkTs are our
t. Messages have no key.

What must stay true: the same row is the same bytes, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vreplication.feed.claims import Claim
from vreplication.feed.formats.encoding import (
    BYTES,
    FLOATS,
    GEOMETRY,
    INTEGERS,
    PerLayout,
    Write,
    encode,
    first_table,
    inserted,
    is_of_database,
    is_of_index,
    numbers,
    positional,
    text,
)
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Admin, Ddl, Encoded, KeyOnly, Place, Row
from vreplication.schema.model import Column

_SMALLINT, _INTEGER, _BIGINT, _DECIMAL, _BIT, _VARCHAR, _BLOB, _CLOB = 5, 4, -5, 3, -7, 12, 2004, 2005
_SQL_TYPES = {
    **{"tinyint": -6, "smallint": _SMALLINT, "mediumint": _INTEGER, "int": _INTEGER, "integer": _INTEGER},
    **{"bigint": _BIGINT, "decimal": _DECIMAL, "numeric": _DECIMAL, "float": 7, "double": 8, "real": 8},
    **{"bit": _BIT, "set": _BIT, "enum": _INTEGER, "char": 1},
    **{"date": 91, "time": 92, "datetime": 93, "timestamp": 93},
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), _CLOB),
    **dict.fromkeys(BYTES, _BLOB),
    **dict.fromkeys(GEOMETRY, -2),
}
"""Numbers of java.sql.Types. The rest is VARCHAR."""
_WIDER = {
    "tinyint": (0x7F, _SMALLINT),
    "smallint": (0x7FFF, _INTEGER),
    **dict.fromkeys(("int", "integer"), (0x7FFF_FFFF, _BIGINT)),
    "bigint": (0x7FFF_FFFF_FFFF_FFFF, _DECIMAL),
}
"""Of an unsigned number above the first, the type is the second."""
_DEFINITIONS = {"CREATE": "CREATE", "ALTER": "ALTER", "DROP": "ERASE", "RENAME": "RENAME", "TRUNCATE": "TRUNCATE"}


@dataclass(frozen=True, slots=True)
class _Table:
    """columns: (its name as JSON, writer). sql_types: of each column. wide: (place, most, type) of the unsigned."""

    head: str
    columns: tuple[tuple[str, Write], ...]
    sql_types: tuple[int, ...]
    wide: tuple[tuple[int, int, int], ...]
    mysql_types: str


class CanalJson:
    """with_full_types: mysqlType is the whole of it (`enum('a','b')`), as Canal itself has it."""

    name = "canal-json"

    def __init__(self, *, with_full_types: bool = False) -> None:
        self._tables = PerLayout(lambda layout: _table(layout, with_full_types=with_full_types))

    def row(self, row: Row) -> list[Encoded]:
        table = self._tables.of(row.layout)
        shown = row.after if row.after is not None else row.before or ()
        old = "null" if row.before is None or row.after is None else f"[{_object(table, row.before)}]"
        value = (
            f'{table.head},"isDdl":false,"type":"{_kind(row)}",{_times(row.commit, row.place.t)},"sql":"",'
            f'"sqlType":{_sql_types(table, shown)},"mysqlType":{table.mysql_types},'
            f'"data":[{_object(table, shown)}],"old":{old},"_tidb":{{"commitTs":{row.place.t}}}}}'
        )
        return [Encoded(key=None, value=value.encode())]

    def ddl(self, ddl: Ddl) -> list[Encoded]:
        schema, table = first_table(ddl)
        return [_bare(_definition(ddl), ddl.commit, ddl.place.t, "commitTs", schema, table, ddl.sql, is_ddl=True)]

    def resolved(self, t: int) -> Encoded:
        return _bare("TIDB_WATERMARK", 0, t, "watermarkTs")

    def admin(self, admin: Admin) -> Encoded:
        said = encode({"partition": admin.partitions, "generation": admin.generation, "ts": admin.t})
        found = _bare("ADMIN", 0, admin.t, "commitTs")
        return Encoded(key=None, value=(found.value or b"")[:-1] + f',"_admin":{said}}}'.encode())

    def align(self, number: Place) -> Encoded:
        found = _bare("ALIGN", 0, number.t, "commitTs")
        return Encoded(key=None, value=(found.value or b"")[:-1] + f',"_align":{encode(number)}}}'.encode())

    def mark(self, message: Encoded, said: Claim | KeyOnly) -> Encoded:
        # Both go into `_tidb`, where TiCDC has them, and which is the last object of each value of ours.
        if isinstance(said, Claim):
            return inserted(message, f'"claimCheckLocation":{text(said.location)}', "}}")
        return inserted(message, '"onlyHandleKey":true', "}}")


def _bare(
    kind: str,
    commit: int,
    t: int,
    name: str,
    schema: str = "",
    table: str = "",
    sql: str = "",
    *,
    is_ddl: bool = False,
) -> Encoded:
    """A message that holds no row. name: what t is called."""
    value = (
        f'{_head(schema, table, None)},"isDdl":{str(is_ddl).lower()},"type":"{kind}",{_times(commit, t)},'
        f'"sql":{text(sql)},"sqlType":null,"mysqlType":null,"data":null,"old":null,"_tidb":{{"{name}":{t}}}}}'
    )
    return Encoded(key=None, value=value.encode())


def _head(schema: str, table: str, key: tuple[str, ...] | None) -> str:
    return f'{{"id":0,"database":{text(schema)},"table":{text(table)},"pkNames":{encode(key)}'


def _times(commit: int, t: int) -> str:
    """es: of the change. ts: Canal's own clock; ours is the place in the log, that a message be the same each time."""
    return f'"es":{(commit or t) // 1000},"ts":{t // 1000}'


def _kind(row: Row) -> str:
    if row.after is None:
        return "DELETE"
    return "INSERT" if row.before is None else "UPDATE"


def _definition(ddl: Ddl) -> str:
    if is_of_database(ddl):
        return "QUERY"
    if is_of_index(ddl):
        return "CINDEX" if ddl.verb == "CREATE" else "DINDEX"
    return _DEFINITIONS.get(ddl.verb, "QUERY")


def _table(layout: Layout, *, with_full_types: bool) -> _Table:
    wide = [
        (place, *_WIDER[column.data_type])
        for place, column in enumerate(layout.columns)
        if column.is_unsigned and column.data_type in _WIDER
    ]
    shown = {each.name: each.column_type if with_full_types else _mysql_type(each) for each in layout.columns}
    return _Table(
        head=_head(layout.schema, layout.table, layout.key if layout.has_key else None),
        columns=tuple((text(column.name), _writer(column)) for column in layout.columns),
        sql_types=tuple(_SQL_TYPES.get(column.data_type, _VARCHAR) for column in layout.columns),
        wide=tuple(wide),
        mysql_types=encode(shown),
    )


def _mysql_type(column: Column) -> str:
    is_plain = column.data_type in ("bit", "year")
    unsigned = " unsigned" if column.is_unsigned and not is_plain else ""
    return column.data_type + unsigned + (" zerofill" if column.is_zerofill and not is_plain else "")


def _object(table: _Table, row: tuple[Any, ...]) -> str:
    shown = [
        f"{name}:{'null' if value is None else write(value)}"
        for (name, write), value in zip(table.columns, row, strict=True)
    ]
    return "{" + ",".join(shown) + "}"


def _sql_types(table: _Table, row: tuple[Any, ...]) -> str:
    # Types of JDBC are signed: a value that one cannot hold is told as the next wider one, in this message alone.
    found = list(table.sql_types)
    for place, most, wider in table.wide:
        if row[place] is not None and row[place] > most:
            found[place] = wider
    return "{" + ",".join(f"{name}:{kind}" for (name, _), kind in zip(table.columns, found, strict=True)) + "}"


def _writer(column: Column) -> Write:
    kind = column.data_type
    if kind in INTEGERS or kind in ("bit", "year"):
        return lambda value: f'"{value}"'
    if kind in FLOATS:
        return lambda value: f'"{positional(value)}"'
    if kind in BYTES or kind in GEOMETRY:
        return lambda value: text(value.decode("latin-1"))
    if kind in ("enum", "set"):
        return _numbered(column)
    return _vector if kind == "vector" else text


def _numbered(column: Column) -> Write:
    """An invalid ENUM, and an empty SET, are 0."""
    if column.data_type == "enum":
        places = {label: place for place, label in enumerate(column.labels, 1)}
        return lambda value: f'"{places.get(value, 0)}"'
    bits = {label: 1 << place for place, label in enumerate(column.labels)}
    return lambda value: f'"{sum(bits[label] for label in value.split(",")) if value else 0}"'


def _vector(value: bytes) -> str:
    return f'"[{",".join(numbers(value))}]"'
