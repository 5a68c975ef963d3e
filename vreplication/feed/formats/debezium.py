"""Debezium's format, with the defaults of its MySQL connector. Source: Debezium's page of it.

Value: {"before":…,"after":…,"source":{…},"op":…,"ts_ms":…,"ts_us":…,"ts_ns":…,"transaction":null}, without its schema
unless it is asked for. op: c, u, d, r (of a snapshot), t (TRUNCATE, beside the DDL event), m (a watermark, where
source.commit_ts is our t; with "admin" or "align" it is that). Key: the columns that tell rows apart; none where no key
does. A delete is followed by a tombstone; an update of the key is d, tombstone, c, which name each other's key in a
header.

Unlike Debezium: TIME is signed and may have more than 24 hours; BIGINT UNSIGNED never turns negative; years below 100
stay as they are. What we do not know is null, "" or 0. The connector's own clock (ts_ms beside op) is the place in the
log.

What must stay true: the same row is the same bytes, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vreplication import __version__
from vreplication.feed.claims import Claim
from vreplication.feed.formats import connect
from vreplication.feed.formats.encoding import (
    BYTES,
    DECIMALS,
    FLOATS,
    GEOMETRY,
    INTEGERS,
    PerLayout,
    Write,
    clock,
    coordinates,
    days,
    encode,
    first_table,
    in_base64,
    inserted,
    is_of_database,
    is_of_index,
    micros,
    numbers,
    origin,
    srid,
    text,
    unscaled,
    width,
)
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Admin, Ddl, Encoded, KeyOnly, Place, Row
from vreplication.schema.model import Column

_CHANGES = {"CREATE": "CREATE", "ALTER": "ALTER", "RENAME": "ALTER", "DROP": "DROP"}
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


@dataclass(frozen=True, slots=True)
class _Table:
    """columns, key: (place, its name as JSON, writer). schema, key_schema: as JSON, or empty."""

    columns: tuple[tuple[int, str, Write], ...]
    key: tuple[tuple[int, str, Write], ...]
    schema: str
    key_schema: str


@dataclass(frozen=True, slots=True)
class _When:
    """What `source` says of a message. commit, t: microseconds."""

    schema: str
    table: str
    gtid: str
    commit: int
    t: int
    is_snapshot: bool = False


class Debezium:
    """server: the feed's name, as `topic.prefix` is Debezium's. connector: "mysql" or "mariadb"."""

    name = "debezium"

    def __init__(
        self,
        server: str = "vreplication",
        *,
        with_schema: bool = False,
        connector: str = "mysql",
        version: str = __version__,
    ) -> None:
        self.server = server
        self.with_schema = with_schema
        self.connector = connector
        self._about = f'"version":{text(version)},"connector":{text(connector)},"name":{text(server)}'
        self._tables = PerLayout(self._table)

    # Rows.

    def row(self, row: Row) -> list[Encoded]:
        table = self._tables.of(row.layout)
        before, after = row.before, row.after
        if before is not None and after is not None:
            return self._updated(row, table, before, after)
        if before is not None:
            return self._deleted(row, table, before)
        return [self._event(row, table, "r" if row.is_snapshot else "c", None, after)]

    def _updated(self, row: Row, table: _Table, before: tuple[Any, ...], after: tuple[Any, ...]) -> list[Encoded]:
        old, new = _key(table, before), _key(table, after)
        # Compared as it is sent: Kafka compacts by these bytes, so keys that a collation takes for equal ('a' and 'A')
        # are two, and the old one needs its tombstone.
        if old == new or old is None or new is None:
            return [self._event(row, table, "u", before, after)]
        created = self._event(row, table, "c", None, after, (_OLD_KEY, old))
        return [*self._deleted(row, table, before, (_NEW_KEY, new)), created]

    def _deleted(self, row: Row, table: _Table, before: tuple[Any, ...], *headers: tuple[str, bytes]) -> list[Encoded]:
        """The tombstone of a row that nothing tells apart would say nothing."""
        event = self._event(row, table, "d", before, None, *headers)
        return [event] if event.key is None else [event, Encoded(key=event.key, value=None)]

    def _event(
        self,
        row: Row,
        table: _Table,
        op: str,
        before: tuple[Any, ...] | None,
        after: tuple[Any, ...] | None,
        *headers: tuple[str, bytes],
    ) -> Encoded:
        layout = row.layout
        when = _When(layout.schema, layout.table, row.gtid, row.commit, row.place.t, row.is_snapshot)
        images = f'"before":{_image(table, before)},"after":{_image(table, after)}'
        shown = after if after is not None else before or ()
        value = _with_schema(table.schema, f"{{{images},{self._told(when, op)}}}")
        return Encoded(key=_key(table, shown), value=value.encode(), headers=headers)

    # Everything else.

    def ddl(self, ddl: Ddl) -> list[Encoded]:
        schema, table = first_table(ddl)
        when = _When(schema, table, ddl.gtid, ddl.commit, ddl.place.t)
        value = (
            f'{{"source":{self._source(when)},{_times(when.t)},"databaseName":{text(schema)},"schemaName":null,'
            f'"ddl":{text(ddl.sql)},"tableChanges":{encode(_changes(ddl))}}}'
        )
        key = self._wrapped(f'{{"databaseName":{text(schema)}}}', connect.definition_key, self.connector)
        said = Encoded(key=key, value=self._wrapped(value, connect.definition, self.connector))
        return [said, *(self._truncated(ddl, *each) for each in ddl.tables if ddl.verb == "TRUNCATE")]

    def _truncated(self, ddl: Ddl, schema: str, table: str) -> Encoded:
        """The columns are not known here: the images of its schema, which are null, have none."""
        when = _When(schema, table, ddl.gtid, ddl.commit, ddl.place.t)
        value = f'{{"before":null,"after":null,{self._told(when, "t")}}}'
        name = f"{self.server}.{schema}.{table}"
        # Debezium's has no key either.
        return Encoded(key=None, value=self._wrapped(value, connect.envelope, name, self.connector, []))

    def resolved(self, t: int) -> Encoded:
        value = f"{{{self._told(_When('', '', '', 0, t), 'm', commit_ts=t)}}}"
        return Encoded(
            key=self._wrapped(encode({"serverName": self.server}), connect.server_key),
            value=self._wrapped(value, connect.signal, self.connector, [], name="Watermark"),
        )

    def admin(self, admin: Admin) -> Encoded:
        said = encode({"partition": admin.partitions, "generation": admin.generation, "ts": admin.t})
        value = f'{{{self._told(_When("", "", "", 0, admin.t), "m")},"admin":{said}}}'
        # With the generation: compaction would else keep the last Admin alone, and a reader goes from the first one on.
        key = encode({"serverName": self.server, "generation": admin.generation})
        return Encoded(
            key=self._wrapped(key, connect.server_key, has_generation=True),
            value=self._wrapped(value, connect.signal, self.connector, [connect.admin()], name="Admin"),
        )

    def align(self, number: Place) -> Encoded:
        said = encode({"t": number.t, "number": number.seq})
        value = f'{{{self._told(_When("", "", "", 0, number.t), "m")},"align":{said}}}'
        return Encoded(
            key=self._wrapped(encode({"serverName": self.server}), connect.server_key),
            value=self._wrapped(value, connect.signal, self.connector, [connect.align()], name="Align"),
        )

    def mark(self, message: Encoded, said: Claim | KeyOnly) -> Encoded:
        """Where the schema is sent, it does not name this: Connect passes over it, and has our header."""
        member = f'"claim_check":{encode(said)}' if isinstance(said, Claim) else '"key_only":true'
        return inserted(message, member, "}}" if self.with_schema else "}")

    # Parts.

    def _told(self, when: _When, op: str, commit_ts: int | None = None) -> str:
        return f'"source":{self._source(when, commit_ts)},"op":"{op}",{_times(when.t)},"transaction":null'

    def _source(self, when: _When, commit_ts: int | None = None) -> str:
        found = origin(when.gtid)
        more = "" if commit_ts is None else f',"commit_ts":{commit_ts}'
        return (
            f'{{{self._about},{_times(when.commit or when.t)},"snapshot":"{_snapshot(when)}",'
            f'"db":{text(when.schema)},"sequence":null,"table":{_or_null(when.table)},"server_id":0,'
            f'"gtid":{_or_null(found.gtid)},"file":{text(found.file)},"pos":{found.offset},"row":0,'
            f'"thread":null,"query":null{more}}}'
        )

    def _wrapped(self, payload: str, schema: Any, *given: Any, **more: Any) -> bytes:
        """schema: makes it."""
        return _with_schema(encode(schema(*given, **more)) if self.with_schema else "", payload).encode()

    def _table(self, layout: Layout) -> _Table:
        columns = tuple((place, text(each.name), _writer(each)) for place, each in enumerate(layout.columns))
        key = layout.key_places if layout.has_key else ()
        schema = key_schema = ""
        if self.with_schema:
            name, fields = f"{self.server}.{layout.name}", [connect.of_column(each) for each in layout.columns]
            schema = encode(connect.envelope(name, self.connector, fields))
            key_schema = encode(connect.key(name, [fields[place] for place in key]))
        return _Table(columns, tuple(columns[place] for place in key), schema, key_schema)


def _with_schema(schema: str, payload: str) -> str:
    return f'{{"schema":{schema},"payload":{payload}}}' if schema else payload


def _key(table: _Table, row: tuple[Any, ...]) -> bytes | None:
    return _with_schema(table.key_schema, _struct(table.key, row)).encode() if table.key else None


def _image(table: _Table, row: tuple[Any, ...] | None) -> str:
    return "null" if row is None else _struct(table.columns, row)


def _struct(cells: Sequence[tuple[int, str, Write]], row: tuple[Any, ...]) -> str:
    shown = [f"{name}:{'null' if row[place] is None else write(row[place])}" for place, name, write in cells]
    return "{" + ",".join(shown) + "}"


def _times(t: int) -> str:
    return f'"ts_ms":{t // 1000},"ts_us":{t},"ts_ns":{t * 1000}'


def _snapshot(when: _When) -> str:
    """A chunk is read while the log goes on, as those of an incremental snapshot are."""
    return "incremental" if when.is_snapshot else "false"


def _or_null(value: str) -> str:
    return text(value) if value else "null"


def _changes(ddl: Ddl) -> list[dict[str, Any]]:
    """How the tables look is not known here."""
    kind = "ALTER" if is_of_index(ddl) else _CHANGES.get(ddl.verb)
    if kind is None or is_of_database(ddl):
        return []
    ids = [".".join('"' + name.replace('"', '""') + '"' for name in each) for each in ddl.tables]
    if ddl.verb == "RENAME" and len(ids) == 2:
        # Debezium names one changed table here, by its old and its new name.
        ids = [",".join(ids)]
    return [{"type": kind, "id": id, "table": None} for id in ids]


# Values.


def _writer(column: Column) -> Write:
    kind = column.data_type
    if kind in INTEGERS or kind == "year":
        return str
    if kind in FLOATS:
        return repr
    if kind in DECIMALS:
        return lambda value: in_base64(unscaled(value))
    if kind in BYTES:
        return in_base64
    if kind in GEOMETRY:
        return _point if kind == "point" else lambda value: f"{{{_shape(value)}}}"
    if kind in ("date", "datetime", "timestamp"):
        return _moment(column)
    return _OTHERS[kind](column) if kind in _OTHERS else text


def _bits(column: Column) -> Write:
    bits = width(column)
    if bits == 1:
        return lambda value: "true" if value else "false"
    size = (bits + 7) // 8
    # Debezium's Bits begin with the lowest byte.
    return lambda value: in_base64(value.to_bytes(size, "little"))


def _moment(column: Column) -> Write:
    """What no calendar has is null, or the epoch in a column that may not be NULL."""
    read, epoch = _moments(column)
    instead = "null" if column.is_nullable else epoch

    def write(value: str) -> str:
        found = read(value)
        return instead if found is None else found

    return write


def _moments(column: Column) -> tuple[Any, str]:
    if column.data_type == "timestamp":
        return _zoned, '"1970-01-01T00:00:00Z"'
    if column.data_type == "date":
        return (lambda value: None if (found := days(value)) is None else str(found)), "0"
    # As of time.precision.mode=adaptive_time_microseconds, Debezium's default: a DATETIME of up to three digits in
    # milliseconds.
    unit = 1000 if column.fraction <= 3 else 1
    return (lambda value: None if (found := micros(value)) is None else str(found // unit)), "0"


def _zoned(value: str) -> str | None:
    return None if days(value[:10]) is None else f'"{value[:10]}T{value[11:]}Z"'


def _shape(value: bytes) -> str:
    """SRID 0 is none."""
    return f'"wkb":{in_base64(value[4:])},"srid":{srid(value) or "null"}'


def _point(value: bytes) -> str:
    x, y = coordinates(value)
    return f'{{"x":{x!r},"y":{y!r},{_shape(value)}}}'


_OTHERS: dict[str, Any] = {
    "bit": _bits,
    "time": lambda column: lambda value: str(clock(value)),
    "vector": lambda column: lambda value: f"[{','.join(numbers(value))}]",
}
