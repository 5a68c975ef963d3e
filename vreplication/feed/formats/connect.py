"""Schemas of Kafka Connect, as JSON: what stands beside a Debezium payload where a feed sends it with its schema.

Source: Debezium's page of its MySQL connector, "Data type mappings" and "Data change events". Defaults of columns are
left out.

What must stay true: a schema is of what formats/debezium.py sends, field for field.
"""

from __future__ import annotations

from typing import Any

from vreplication.feed.formats.encoding import BYTES, DECIMALS, FLOATS, GEOMETRY, width
from vreplication.schema.model import Column

Schema = dict[str, Any]
_STRING: Schema = {"type": "string"}
_INT32, _INT64 = {"type": "int32"}, {"type": "int64"}
_FLOAT, _DOUBLE, _BYTES = {"type": "float"}, {"type": "double"}, {"type": "bytes"}
_INTEGERS = {
    **{"tinyint": ("int16", "int16"), "smallint": ("int16", "int32"), "mediumint": ("int32", "int32")},
    **{"int": ("int32", "int64"), "integer": ("int32", "int64"), "bigint": ("int64", "int64")},
}
"""Signed, and unsigned."""
_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def _named(kind: Schema, name: str, **parameters: str) -> Schema:
    return {**kind, "name": name, "version": 1} | ({"parameters": parameters} if parameters else {})


def field(name: str, of: Schema, *, is_optional: bool = False) -> Schema:
    return {**of, "optional": is_optional, "field": name}


def struct(fields: list[Schema], **more: Any) -> Schema:
    return {"type": "struct", "fields": fields, **more}


# Columns.

_LOGICAL = {
    "json": _named(_STRING, "io.debezium.data.Json"),
    "uuid": _named(_STRING, "io.debezium.data.Uuid"),
    "year": _named(_INT32, "io.debezium.time.Year"),
    "date": _named(_INT32, "io.debezium.time.Date"),
    "time": _named(_INT64, "io.debezium.time.MicroTime"),
    "timestamp": _named(_STRING, "io.debezium.time.ZonedTimestamp"),
    "vector": _named({"type": "array", "items": {"type": "float", "optional": False}}, "io.debezium.data.FloatVector"),
    **dict.fromkeys(BYTES, _BYTES),
}
_GEOMETRY = [field("wkb", _BYTES), field("srid", _INT32, is_optional=True)]
_POINT = [field("x", _DOUBLE), field("y", _DOUBLE), field("wkb", _BYTES, is_optional=True), _GEOMETRY[1]]


def of_column(column: Column) -> Schema:
    return field(column.name, _of_type(column), is_optional=column.is_nullable)


def _of_type(column: Column) -> Schema:
    kind = column.data_type
    if kind in _INTEGERS:
        return {"type": _INTEGERS[kind][column.is_unsigned]}
    if kind in FLOATS or kind in DECIMALS or kind == "bit":
        return _of_number(column)
    if kind == "datetime":
        return _named(_INT64, f"io.debezium.time.{'Timestamp' if column.fraction <= 3 else 'MicroTimestamp'}")
    if kind in ("enum", "set"):
        allowed = ",".join(label.replace(",", "\\,") for label in column.labels)
        return _named(_STRING, f"io.debezium.data.{'Enum' if kind == 'enum' else 'EnumSet'}", allowed=allowed)
    if kind in GEOMETRY:
        shape, fields = ("Point", _POINT) if kind == "point" else ("Geometry", _GEOMETRY)
        return _named(struct(fields), f"io.debezium.data.geometry.{shape}")
    return _LOGICAL.get(kind, _STRING)


def _of_number(column: Column) -> Schema:
    if column.data_type == "bit":
        bits = width(column)
        return {"type": "boolean"} if bits == 1 else _named(_BYTES, "io.debezium.data.Bits", length=f"{bits}")
    if column.data_type in FLOATS:
        # FLOAT(M,D) is a double to Debezium.
        is_short = column.data_type == "float" and column.scale is None and (column.precision or 0) <= 24
        return _FLOAT if is_short else _DOUBLE
    sizes = {"scale": f"{column.scale or 0}", "connect.decimal.precision": f"{column.precision or 10}"}
    return _named(_BYTES, "org.apache.kafka.connect.data.Decimal", **sizes)


# Messages.


def source(connector: str, *, is_watermark: bool = False) -> Schema:
    snapshot = {**_named(_STRING, "io.debezium.data.Enum", allowed=_SNAPSHOTS), "default": "false"}
    kinds = [
        *(("version", _STRING, False), ("connector", _STRING, False), ("name", _STRING, False)),
        *(("ts_ms", _INT64, False), ("ts_us", _INT64, True), ("ts_ns", _INT64, True), ("snapshot", snapshot, True)),
        *(("db", _STRING, False), ("sequence", _STRING, True), ("table", _STRING, True), ("server_id", _INT64, False)),
        *(("gtid", _STRING, True), ("file", _STRING, False), ("pos", _INT64, False), ("row", _INT32, False)),
        *(("thread", _INT64, True), ("query", _STRING, True)),
        *((("commit_ts", _INT64, False),) if is_watermark else ()),
    ]
    fields = [field(name, of, is_optional=is_optional) for name, of, is_optional in kinds]
    return struct(fields, optional=False, name=f"io.debezium.connector.{connector}.Source", version=1, field="source")


def _times() -> list[Schema]:
    return [field(name, _INT64, is_optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]


def _transaction() -> Schema:
    fields = [field("id", _STRING), field("total_order", _INT64), field("data_collection_order", _INT64)]
    return struct(fields, optional=True, name="event.block", version=1, field="transaction")


def envelope(name: str, connector: str, columns: list[Schema]) -> Schema:
    """name: server.schema.table."""
    images = [struct(columns, optional=True, name=f"{name}.Value", field=which) for which in ("before", "after")]
    fields = [*images, source(connector), field("op", _STRING), *_times(), _transaction()]
    return struct(fields, optional=False, name=f"{name}.Envelope", version=2)


def key(name: str, columns: list[Schema]) -> Schema:
    return struct(columns, optional=False, name=f"{name}.Key")


def definition_key(connector: str) -> Schema:
    name = f"io.debezium.connector.{connector}.SchemaChangeKey"
    return struct([field("databaseName", _STRING)], optional=False, name=name, version=1)


def definition(connector: str) -> Schema:
    """The tables themselves are not told, so theirs has no fields."""
    table = struct([], optional=True, name="io.debezium.connector.schema.Table", version=1, field="table")
    change = struct(
        [field("type", _STRING), field("id", _STRING), table],
        **{"optional": False, "name": "io.debezium.connector.schema.Change", "version": 1},
    )
    texts = [field(name, _STRING, is_optional=True) for name in ("databaseName", "schemaName", "ddl")]
    changes = {"type": "array", "items": change, "optional": False, "field": "tableChanges"}
    fields = [source(connector), *_times(), *texts, changes]
    name = f"io.debezium.connector.{connector}.SchemaChangeValue"
    return struct(fields, optional=False, name=name, version=1)


def server_key(*, has_generation: bool = False) -> Schema:
    """Of a watermark, an Admin and an Align, which belong to no table."""
    generation = [field("generation", _INT64)] if has_generation else []
    name = "io.debezium.connector.common.ServerNameKey"
    return struct([field("serverName", _STRING), *generation], optional=False, name=name, version=1)


def signal(connector: str, more: list[Schema], *, name: str) -> Schema:
    """Of a message that holds no row."""
    fields = [
        source(connector, is_watermark=name == "Watermark"),
        field("op", _STRING),
        *_times(),
        _transaction(),
        *more,
    ]
    return struct(fields, optional=False, name=f"vreplication.{name}", version=1)


def admin() -> Schema:
    fields = [field(name, _INT64) for name in ("partition", "generation", "ts")]
    return struct(fields, optional=False, field="admin")


def align() -> Schema:
    return struct([field(name, _INT64) for name in ("t", "number")], optional=False, field="align")
