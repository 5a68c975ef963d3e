"""The bytes of every format, for a table with every column type and for every kind of event, as they were recorded.

`python -m tests.unit.test_feed_formats` records them again (tests/feed/golden); read the difference before you keep it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from vreplication.errors import Refused
from vreplication.feed.formats import FORMATS, make_format
from vreplication.feed.formats.canal import CanalJson
from vreplication.feed.formats.debezium import Debezium
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Admin, Ddl, Encoded, Format, Place, Row
from vreplication.schema.model import Column

GOLDEN = Path(__file__).resolve().parents[1] / "feed" / "golden"
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
T = 1_700_000_000_123_456


def column(name: str, column_type: str, *, null: bool = True, **more: Any) -> Column:
    """column_type: as the server shows it, where its first word is the data type."""
    data_type = column_type.partition("(")[0].partition(" ")[0]
    is_unsigned = "unsigned" in column_type
    return Column(
        **{"name": name, "ordinal": more.pop("ordinal", 1), "data_type": data_type, "column_type": column_type},
        **{"is_nullable": null, "is_unsigned": is_unsigned, **more},
    )


def layout(number: int, table: str, columns: Sequence[Column], key: Sequence[str] = ("id",)) -> Layout:
    names = tuple(each.name for each in columns)
    return Layout(
        **{"number": number, "schema": "s", "table": table, "columns": tuple(columns), "key": tuple(key) or names},
        **{"unique": (tuple(key),) if key else (), "has_key": bool(key), "is_primary": bool(key)},
    )


def wkb(kind: int, *body: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}BI", order == "<", kind) + b"".join(body)


def xy(*numbers: float, order: str = "<") -> bytes:
    return struct.pack(f"{order}{len(numbers)}d", *numbers)


def many(*parts: bytes) -> bytes:
    return struct.pack("<I", len(parts)) + b"".join(parts)


def shape(data: bytes, srid: int = 0) -> bytes:
    return struct.pack("<I", srid) + data


POINT = wkb(1, xy(3, 2))
LINE = wkb(2, many(xy(0, 1), xy(1, 2.5), xy(-2e-7, 3e20)))
RING = many(xy(0, 0), xy(4, 0), xy(4, 4), xy(0, 0))
POLYGON = wkb(3, many(RING, many(xy(1, 1), xy(2, 1), xy(2, 2), xy(1, 1))))
BOXES = wkb(6, many(POLYGON, POLYGON))
LABELS: dict[str, Any] = {"labels": ("a", "ä,1", "ß")}
MEMBERS: dict[str, Any] = {"labels": ("x", "y", "z")}

EVERY: list[tuple[Column, Any, Any]] = [
    (column("id", "int", null=False), 1, -2_147_483_648),
    (column("i8", "tinyint"), -128, 127),
    (column("u8", "tinyint unsigned"), 128, 127),
    (column("i16", "smallint"), -32_768, 32_767),
    (column("u16", "smallint(5) unsigned zerofill"), 65_535, 7),
    (column("i24", "mediumint"), -8_388_608, 8_388_607),
    (column("u24", "mediumint unsigned"), 16_777_215, 0),
    (column("u32", "int unsigned"), 4_294_967_295, 2_147_483_647),
    (column("i64", "bigint"), -9_223_372_036_854_775_808, 9_223_372_036_854_775_807),
    (column("u64", "bigint unsigned"), 18_446_744_073_709_551_615, 1 << 53),
    (column("dec", "decimal(10,2)", precision=10, scale=2), "-1234.50", "0.00"),
    (column("big", "decimal(65,30)", precision=65, scale=30), "9" * 35 + "." + "9" * 30, "-0." + "0" * 29 + "1"),
    (column("f", "float"), 0.1, -3.4028235e38),
    (column("f74", "float(7,4)", precision=7, scale=4), 999.9999, -0.0),
    (column("d", "double"), 1e16, 2.2250738585072014e-308),
    (column("b1", "bit(1)", precision=1), 1, 0),
    (column("b12", "bit(12)", precision=12), 0xABC, 1),
    (column("b64", "bit(64)", precision=64), (1 << 64) - 1, 0),
    (column("y", "year"), 2024, 0),
    (column("day", "date"), "1000-01-01", "0000-00-00"),
    (column("day_nn", "date", null=False), "9999-12-31", "2020-00-00"),
    (column("dt", "datetime"), "2018-06-20 06:37:03", "0000-00-00 00:00:00"),
    (column("dt3", "datetime(3)", fraction=3), "1969-12-31 23:59:59.999", "2021-02-30 00:00:00.000"),
    (column("dt6", "datetime(6)", fraction=6), "2023-11-30 12:34:56.123456", "0000-01-01 00:00:00.000000"),
    (
        column("dt_nn", "datetime(6)", fraction=6, null=False),
        "0001-01-01 00:00:00.000000",
        "0000-00-00 00:00:00.000000",
    ),
    (column("ts", "timestamp"), "2018-06-20 13:37:03", "0000-00-00 00:00:00"),
    (column("ts6", "timestamp(6)", fraction=6, null=False), "2038-01-19 03:14:07.999999", "0000-00-00 00:00:00.000000"),
    (column("tm", "time"), "-838:59:59", "00:00:00"),
    (column("tm6", "time(6)", fraction=6), "-01:02:03.250000", "838:59:59.000000"),
    (column("c", "char(9)", charset="latin1"), "Ünï", ""),
    (column("v", "varchar(40)", charset="utf8mb4"), 'zß水🍌"\\/\n\x00\u2028', "null"),
    (column("t1", "tinytext", charset="utf8mb4"), "t", "u"),
    (column("t2", "text", charset="sjis"), "日本", ""),
    (column("t3", "mediumtext", charset="utf8mb4"), "m", "m"),
    (column("t4", "longtext", charset="utf8mb4"), '{"a": 1}', "[]"),
    (column("bin", "binary(4)"), b"\x01\x00\x00\x00", b"\xff\xfe\x80\x7f"),
    (column("vb", "varbinary(9)"), b"\x00\x01\x02\x03", b""),
    (column("b_1", "tinyblob"), b"\x00", b""),
    (column("b_2", "blob"), bytes(range(250, 256)), b"foo"),
    (column("b_3", "mediumblob"), b"m", b"m"),
    (column("b_4", "longblob"), b"l", b"\n"),
    (column("e", "enum('a','ä,1','ß')", charset="utf8mb4", **LABELS), "ß", ""),
    (column("st", "set('x','y','z')", charset="utf8mb4", **MEMBERS), "x,z", ""),
    (column("js", "json"), '{"a": [1, 2.50, null, true, "ü"], "b": {}}', '"x"'),
    (column("g", "geometry"), shape(POINT, 4326), shape(wkb(7, many()))),
    (column("pt", "point"), shape(POINT, 4326), shape(wkb(1, xy(-0.5, 1e-9, order=">"), order=">"))),
    (column("ln", "linestring"), shape(LINE), shape(LINE)),
    (column("pg", "polygon"), shape(POLYGON), shape(POLYGON, 3857)),
    (column("mp", "multipoint"), shape(wkb(4, many(POINT, POINT))), shape(wkb(4, many(POINT)))),
    (column("ml", "multilinestring"), shape(wkb(5, many(LINE, LINE))), shape(wkb(5, many(LINE)))),
    (column("my", "multipolygon"), shape(BOXES), shape(wkb(6, many(POLYGON)))),
    (column("gc", "geomcollection"), shape(wkb(7, many(POINT, LINE, BOXES))), shape(wkb(7, many(wkb(7, many()))))),
    (column("vec", "vector(3)", precision=3), struct.pack("<3f", 0.1, -2, 3e-20), struct.pack("<3f", 0, 1, 2)),
    (column("u", "uuid"), "123e4567-e89b-12d3-a456-426655440000", "00000000-0000-0000-0000-000000000000"),
    (column("i4", "inet4"), "10.1.2.3", "0.0.0.0"),
    (column("i6", "inet6"), "2001:db8::1", "::"),
]
FULL = layout(0, "every", [each for each, _, _ in EVERY])
ONE = tuple(value for _, value, _ in EVERY)
TWO = (1, *(value for _, _, value in EVERY[1:]))
MOVED = tuple(value for _, _, value in EVERY)
NULLS = tuple(value if not each.is_nullable else None for each, value, _ in EVERY)

TEXT = column("t", "varchar(9)", charset="utf8mb4")
KEYLESS = layout(1, "keyless", [column("n", "int"), TEXT], ())
PAIR = layout(2, "Paár", [column("B", "int", null=False), TEXT, column("A", "binary(2)", null=False)], ("A", "B"))


def row(table: Layout, before: Any, after: Any, seq: int = 0, gtid: str = GTID, **more: Any) -> Row:
    given: dict[str, Any] = {"gtid": gtid, "source": "src", "commit": T - 1_000_000, **more}
    return Row(layout=table, place=Place(T, seq), before=before, after=after, **given)


def ddl(sql: str, *tables: tuple[str, str], gtid: str = GTID) -> Ddl:
    given: dict[str, Any] = {"gtid": gtid, "source": "src", "commit": T - 1_000_000}
    verb, *words = sql.upper().split()
    what = next((word for word in words[:5] if word in ("INDEX", "DATABASE")), "TABLE")
    return Ddl(place=Place(T, 0), schema="s", sql=sql, verb=verb, what=what, tables=tables, **given)


ROWS = {
    "insert": row(FULL, None, ONE),
    "insert of NULLs": row(FULL, None, NULLS, 1),
    "update": row(FULL, ONE, TWO, 2),
    "delete": row(FULL, TWO, None, 3),
    "key change": row(FULL, ONE, MOVED, 4),
    "snapshot row": row(FULL, None, TWO, gtid="", commit=0, is_snapshot=True),
    "insert without a key": row(KEYLESS, None, (1, "a"), 5),
    "update without a key": row(KEYLESS, (1, "a"), (1, None), 6),
    "delete without a key": row(KEYLESS, (1, None), None, 7),
    "insert by MariaDB": row(PAIR, None, (1, "a", b"xy"), gtid="0-1-42"),
    "key change in a log without names": row(PAIR, (1, "a", b"xy"), (2, "a", b"xy"), gtid="mysql-bin.000003:484"),
}
OTHERS = {
    "truncate": ddl("TRUNCATE TABLE every", ("s", "every")),
    "create": ddl("CREATE TABLE every (id INT PRIMARY KEY)", ("s", "every")),
    "alter": ddl("alter table `q\"t` ADD c INT COMMENT 'ü'", ("s", 'q"t')),
    "rename": ddl("RENAME TABLE a TO b", ("s", "a"), ("r", "b"), gtid="0-1-42"),
    "drop": ddl("DROP TABLE a, r.b", ("s", "a"), ("r", "b"), gtid="mysql-bin.000003:484"),
    "create index": ddl("CREATE /* now */ UNIQUE INDEX i ON every (c)", ("s", "every")),
    "drop index": ddl("DROP INDEX i ON every", ("s", "every")),
    "create database": ddl("CREATE DATABASE d", ("d", "")),
    "drop of no known table": ddl(r"DROP TABLE \xff"),
    "resolved": T,
    "admin": Admin(t=T, partitions=5, generation=2),
    "align": Place(T, 3),
}
_WITH_SCHEMA = (
    *("insert", "delete", "truncate", "create", "resolved", "admin", "align"),
    "key change in a log without names",
)
MADE: dict[str, tuple[Callable[[], Format], Sequence[str]]] = {
    "open": (FORMATS["open"], ()),
    "debezium": (lambda: Debezium("shop", version="1.0"), ()),
    "debezium-schema": (lambda: Debezium("shop", with_schema=True, connector="mariadb", version="1.0"), _WITH_SCHEMA),
    "canal-json": (FORMATS["canal-json"], ()),
    "canal-json-full": (lambda: CanalJson(with_full_types=True), ("insert",)),
    "maxwell": (FORMATS["maxwell"], ()),
}
"""What makes each file, and the cases that are in it, where it is not all."""


def messages(format: Format, event: Any) -> Sequence[Encoded]:
    if isinstance(event, Row):
        return format.row(event)
    if isinstance(event, Ddl):
        return format.ddl(event)
    if isinstance(event, Place):
        return [format.align(event)]
    return [format.admin(event) if isinstance(event, Admin) else format.resolved(event)]


def as_text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()


def lines(name: str) -> Iterator[str]:
    make, wanted = MADE[name]
    format = make()
    for case, event in {**ROWS, **OTHERS}.items():
        for each in messages(format, event) if not wanted or case in wanted else ():
            headers = [[header, as_text(value)] for header, value in each.headers]
            said = {"case": case, "key": as_text(each.key), "value": as_text(each.value), "headers": headers}
            yield json.dumps(said, ensure_ascii=False)


@pytest.mark.parametrize("name", MADE)
def test_messages_are_the_recorded_bytes(name: str) -> None:
    # A line may hold U+2028, at which splitlines() would cut.
    recorded = (GOLDEN / f"{name}.jsonl").read_text().removesuffix("\n").split("\n")
    assert list(lines(name)) == recorded


@pytest.mark.parametrize("name", MADE)
def test_every_message_is_json(name: str) -> None:
    for line in lines(name):
        said = json.loads(line)
        for part in (said["key"], said["value"]):
            assert part is None or isinstance(json.loads(part), dict)


@pytest.mark.parametrize("name", MADE)
def test_the_same_event_is_the_same_bytes(name: str) -> None:
    format = MADE[name][0]()
    for event in (*ROWS.values(), *OTHERS.values()):
        assert messages(format, event) == messages(MADE[name][0](), event)


def test_a_layout_of_the_same_number_is_compiled_anew() -> None:
    other = layout(FULL.number, "other", [column("id", "int", null=False)])
    for make in FORMATS.values():
        format = make()
        before = format.row(ROWS["insert"])
        (found,) = format.row(row(other, None, (1,)))
        assert b'"other"' in (found.key or b"") + (found.value or b"")
        assert format.row(ROWS["insert"]) == before


def test_formats_are_known_by_name() -> None:
    assert list(FORMATS) == ["open", "debezium", "canal-json", "maxwell"]
    assert all(make_format(name).name == name for name in FORMATS)
    with pytest.raises(Refused, match=r"no protocol 'avro'.*open, debezium, canal-json, maxwell"):
        make_format("avro")


def test_options_go_to_the_format() -> None:
    (found,) = make_format("debezium", server="shop").row(ROWS["insert"])
    assert json.loads(found.value or b"")["source"]["name"] == "shop"


# Debezium: which messages an event becomes.


def shown(found: Sequence[Encoded]) -> list[tuple[str, Any, list[str]]]:
    """op or "tombstone", key, names of headers."""
    return [
        (
            json.loads(each.value)["op"] if each.value else "tombstone",
            each.key and json.loads(each.key),
            [h for h, _ in each.headers],
        )
        for each in found
    ]


def test_debezium_follows_a_delete_with_a_tombstone() -> None:
    assert shown(Debezium().row(ROWS["delete"])) == [("d", {"id": 1}, []), ("tombstone", {"id": 1}, [])]
    assert shown(Debezium().row(ROWS["delete without a key"])) == [("d", None, [])]


def test_debezium_takes_a_change_of_the_key_apart() -> None:
    found = Debezium().row(ROWS["key change in a log without names"])
    old, new = {"A": "eHk=", "B": 1}, {"A": "eHk=", "B": 2}
    assert shown(found) == [
        ("d", old, ["__debezium.newkey"]),
        ("tombstone", old, []),
        ("c", new, ["__debezium.oldkey"]),
    ]
    assert json.loads(found[0].headers[0][1]) == new
    assert json.loads(found[2].headers[0][1]) == old


def test_debezium_sends_a_truncate_for_each_table_beside_the_ddl() -> None:
    event = ddl("TRUNCATE TABLE every", ("s", "every"), ("r", "b"))
    said, *truncated = Debezium().ddl(event)
    assert json.loads(said.value or b"")["ddl"] == "TRUNCATE TABLE every"
    assert json.loads(said.key or b"") == {"databaseName": "s"}
    assert shown(truncated) == [("t", None, []), ("t", None, [])]
    assert [json.loads(each.value or b"")["source"]["table"] for each in truncated] == ["every", "b"]


def fits(schema: dict[str, Any], value: Any) -> bool:
    """value is of a schema of Kafka Connect."""
    if value is None:
        return bool(schema["optional"])
    if schema["type"] == "struct":
        names = [each["field"] for each in schema["fields"]]
        return list(value) == names and all(fits(each, value[each["field"]]) for each in schema["fields"])
    if schema["type"] == "array":
        return isinstance(value, list) and all(fits(schema["items"], each) for each in value)
    wanted = {"string": str, "bytes": str, "boolean": bool, "float": (int, float), "double": (int, float)}
    return isinstance(value, wanted.get(schema["type"], int))


def test_debezium_schemas_are_of_what_is_sent() -> None:
    format = Debezium("shop", with_schema=True)
    for event in (*ROWS.values(), *OTHERS.values()):
        for each in messages(format, event):
            for part in (each.key, each.value, *(value for _, value in each.headers)):
                if part is not None:
                    said = json.loads(part)
                    assert list(said) == ["schema", "payload"]
                    assert fits(said["schema"], said["payload"]), said["payload"]


def write() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in MADE:
        (GOLDEN / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines(name)))


if __name__ == "__main__":
    write()
