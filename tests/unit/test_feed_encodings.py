"""What each format makes of a value, beside what the documents and recorded messages of its own project say; and that
what `open` sends reads back as what it was.
"""

from __future__ import annotations

import json
import math
import struct
from datetime import date, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_feed_formats import FULL, KEYLESS, LINE, POINT, POLYGON, column, layout, many, shape, wkb
from vreplication.errors import Terminal
from vreplication.feed.formats import FORMATS
from vreplication.feed.formats.canal import CanalJson
from vreplication.feed.formats.debezium import Debezium
from vreplication.feed.formats.encoding import clock, days, micros, origin, positional, unscaled, wkt
from vreplication.feed.formats.maxwell import Maxwell
from vreplication.feed.formats.open import Open, read_admin, read_ddl, read_row
from vreplication.feed.messages import Admin, Ddl, Format, Place, Row
from vreplication.schema.model import Column

# Values of the documents.

ABC: dict[str, Any] = {"labels": ("a", "b", "c")}


def sent(format: Format, of: Column, value: Any) -> dict[str, Any]:
    """The message of a row with one column."""
    (found,) = format.row(Row(layout=layout(0, "t", [of], ()), place=Place(1, 0), before=None, after=(value,)))
    return json.loads(found.value or b"")


def timed(column_type: str, fraction: int = 0, *, null: bool = True) -> Column:
    return column("x", f"{column_type}({fraction})", fraction=fraction, null=null)


def bit(width: int) -> Column:
    return column("x", f"bit({width})", precision=width)


def decimal(precision: int, scale: int) -> Column:
    return column("x", f"decimal({precision},{scale})", precision=precision, scale=scale)


# From Debezium's page "Temporal types", and a row that its MySQL connector sent (kept by TiCDC as testdata). DECIMAL,
# VECTOR and geometry are worked out from their descriptions; BIGINT UNSIGNED is ours, where that row has -1.
DEBEZIUM: list[tuple[Column, Any, Any]] = [
    (timed("datetime"), "2018-06-20 06:37:03", 1529476623000),
    (timed("timestamp"), "2018-06-20 13:37:03", "2018-06-20T13:37:03Z"),
    (column("x", "date"), "2023-11-30", 19691),
    (column("x", "date"), "1000-01-01", -354285),
    (column("x", "date"), "9999-12-31", 2932896),
    (column("x", "date"), "0000-00-00", None),
    (column("x", "date", null=False), "0000-00-00", 0),
    (timed("datetime"), "2023-11-30 12:34:56", 1701347696000),
    (timed("datetime", 1), "2023-11-30 12:34:56.1", 1701347696100),
    (timed("datetime", 4), "2023-11-30 12:34:56.1235", 1701347696123500),
    (timed("datetime", 6), "2023-11-30 12:34:56.123456", 1701347696123456),
    (timed("datetime", 6), "0000-00-00 00:00:00.000000", None),
    (timed("datetime", null=False), "0000-00-00 00:00:00", 0),
    (timed("time"), "12:34:56", 45296000000),
    (timed("time", 1), "12:34:56.1", 45296100000),
    (timed("time", 4), "12:34:56.1235", 45296123500),
    (timed("time", 6), "12:34:56.123456", 45296123456),
    (timed("time", 6), "-12:34:56.123456", -45296123456),
    (timed("timestamp", 1), "2023-11-30 12:34:56.1", "2023-11-30T12:34:56.1Z"),
    (timed("timestamp", 5), "2023-11-30 12:34:56.12346", "2023-11-30T12:34:56.12346Z"),
    (timed("timestamp", 6), "2023-11-30 12:34:56.123456", "2023-11-30T12:34:56.123456Z"),
    (timed("timestamp"), "0000-00-00 00:00:00", None),
    (timed("timestamp", null=False), "0000-00-00 00:00:00", "1970-01-01T00:00:00Z"),
    (column("x", "year"), 2023, 2023),
    (bit(1), 1, True),
    (bit(5), 16, "EA=="),
    (bit(6), 16, "EA=="),
    (bit(60), 16, "EAAAAAAAAAA="),
    (column("x", "varbinary(100)"), b"foo", "Zm9v"),
    (column("x", "binary(5)"), b"foo\0\0", "Zm9vAAA="),
    (column("x", "blob"), b"foo", "Zm9v"),
    (decimal(10, 2), "123.45", "MDk="),
    (decimal(10, 2), "3.14", "ATo="),
    (decimal(10, 2), "-1.28", "gA=="),
    (decimal(10, 2), "1.28", "AIA="),
    (decimal(10, 0), "0", "AA=="),
    (column("x", "float"), 12345.123, 12345.123),
    (column("x", "double"), 12345.12345, 12345.12345),
    (column("x", "int unsigned"), 4294967295, 4294967295),
    (column("x", "bigint"), -9223372036854775808, -9223372036854775808),
    (column("x", "bigint unsigned"), 18446744073709551615, 18446744073709551615),
    (column("x", "enum('a','b','c')", **ABC), "a", "a"),
    (column("x", "enum('a','b','c')", **ABC), "", ""),
    (column("x", "set('a','b','c')", **ABC), "a,b", "a,b"),
    (column("x", "json"), '["foo"]', '["foo"]'),
    (column("x", "vector(2)"), struct.pack("<2f", 0.1, 2), [0.1, 2]),
    (column("x", "geometry"), shape(POINT, 4326), {"wkb": "AQEAAAAAAAAAAAAIQAAAAAAAAABA", "srid": 4326}),
    (column("x", "point"), shape(POINT), {"x": 3.0, "y": 2.0, "wkb": "AQEAAAAAAAAAAAAIQAAAAAAAAABA", "srid": None}),
]

# From Maxwell's dataformat.md and the rows that its own tests expect; DECIMAL, YEAR and JSON null from its code.
MAXWELL: list[tuple[Column, Any, Any]] = [
    (column("x", "double"), 4.2341, 4.2341),
    (timed("timestamp", 6), "2016-10-21 05:33:37.523000", "2016-10-21 05:33:37.523000"),
    (timed("datetime"), "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    (timed("time", 3), "12:23:33.345", "12:23:33.345"),
    (column("x", "set('a','b','c')", **ABC), "b,c", ["b", "c"]),
    (column("x", "set('a','b','c')", **ABC), "", []),
    (column("x", "enum('a','b','c')", **ABC), "b", "b"),
    (column("x", "blob"), bytes(range(4)), "AAECAw=="),
    (bit(64), 3, 3),
    (bit(24), 0b111000111000111001010110, 14913110),
    (bit(64), 18446744073709551615, 18446744073709551615),
    (column("x", "bigint unsigned"), 18446744073709551615, 18446744073709551615),
    (
        column("x", "json"),
        '{"foo": "bar", "baz": [1, {"a": "b"}], "bar": 123.4321}',
        {"foo": "bar", "baz": [1, {"a": "b"}], "bar": 123.4321},
    ),
    (column("x", "json"), "null", None),
    (column("x", "geometry"), shape(POINT), "POINT (3 2)"),
    (decimal(10, 2), "-0.05", -0.05),
    (column("x", "year"), 2024, 2024),
    (column("x", "varchar(9)"), "🍌", "🍌"),
]

# The text by the rules of TiCDC's codec of Canal-JSON, for values as its tests have them; the number of java.sql.Types
# from its table and those tests.
CANAL: list[tuple[Column, Any, str, int]] = [
    (column("x", "tinyint"), -128, "-128", -6),
    (column("x", "tinyint unsigned"), 127, "127", -6),
    (column("x", "tinyint unsigned"), 128, "128", 5),
    (column("x", "smallint unsigned"), 32767, "32767", 5),
    (column("x", "smallint unsigned"), 32768, "32768", 4),
    (column("x", "mediumint unsigned"), 16777215, "16777215", 4),
    (column("x", "int"), 2147483647, "2147483647", 4),
    (column("x", "int unsigned"), 2147483647, "2147483647", 4),
    (column("x", "int unsigned"), 2147483648, "2147483648", -5),
    (column("x", "bigint unsigned"), 9223372036854775807, "9223372036854775807", -5),
    (column("x", "bigint unsigned"), 9223372036854775808, "9223372036854775808", 3),
    (column("x", "float"), 3.14, "3.14", 7),
    (column("x", "double"), 2.71, "2.71", 8),
    (column("x", "double"), 1e21, "1000000000000000000000", 8),
    (column("x", "double"), 1e-7, "0.0000001", 8),
    (decimal(12, 6), "2333.654321", "2333.654321", 3),
    (bit(6), 65, "65", -7),
    (column("x", "year"), 2020, "2020", 12),
    (column("x", "date"), "2020-02-20", "2020-02-20", 91),
    (timed("datetime"), "2020-02-20 02:20:20", "2020-02-20 02:20:20", 93),
    (timed("timestamp"), "2020-02-20 10:20:20", "2020-02-20 10:20:20", 93),
    (timed("time"), "02:20:20", "02:20:20", 92),
    (column("x", "char(9)"), "测", "测", 1),
    (column("x", "varchar(9)"), "测试varchar", "测试varchar", 12),
    (column("x", "text"), "测试text", "测试text", 2005),
    (column("x", "blob"), "测试blob".encode(), "æµ\x8bè¯\x95blob", 2004),
    (column("x", "varbinary(20)"), "测试varbinary".encode(), "æµ\x8bè¯\x95varbinary", 2004),
    (column("x", "binary(2)"), b"\xff\x00", "ÿ\x00", 2004),
    (column("x", "enum('a','b','c')", **ABC), "b", "2", 4),
    (column("x", "enum('a','b','c')", **ABC), "", "0", 4),
    (column("x", "set('a','b','c')", **ABC), "a,c", "5", -7),
    (column("x", "set('a','b','c')", **ABC), "", "0", -7),
    (column("x", "json"), '{"key1": "value1"}', '{"key1": "value1"}', 12),
    (column("x", "vector(2)"), struct.pack("<2f", 0.1, 2), "[0.1,2]", 12),
]


@pytest.mark.parametrize(("of", "value", "wanted"), DEBEZIUM)
def test_debezium_shows_a_value_as_its_documents_do(of: Column, value: Any, wanted: Any) -> None:
    found = sent(Debezium(), of, value)["after"]["x"]
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(("of", "value", "wanted"), MAXWELL)
def test_maxwell_shows_a_value_as_its_documents_do(of: Column, value: Any, wanted: Any) -> None:
    found = sent(Maxwell(), of, value)["data"]["x"]
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(("of", "value", "wanted", "sql_type"), CANAL)
def test_canal_shows_a_value_as_ticdc_does(of: Column, value: Any, wanted: str, sql_type: int) -> None:
    found = sent(CanalJson(), of, value)
    assert (found["data"][0]["x"], found["sqlType"]["x"]) == (wanted, sql_type)


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (column("x", "int(10) unsigned zerofill"), "int unsigned zerofill"),
        (column("x", "year(4)"), "year"),
        (column("x", "varchar(9)"), "varchar"),
        (bit(3), "bit"),
    ],
)
def test_canal_names_a_type_as_ticdc_does(of: Column, wanted: str) -> None:
    assert sent(CanalJson(), of, None)["mysqlType"]["x"] == wanted
    assert sent(CanalJson(with_full_types=True), of, None)["mysqlType"]["x"] == of.column_type


def test_debezium_schema_of_a_bit_whose_width_is_not_known() -> None:
    found = sent(Debezium(with_schema=True), column("x", "bit"), 1)
    assert found["payload"]["after"]["x"] == "AQAAAAAAAAA="
    assert found["schema"]["fields"][1]["fields"][0]["parameters"] == {"length": "64"}


# Helpers.


@given(st.dates())
def test_days_are_those_of_the_calendar(day: date) -> None:
    assert days(day.isoformat()) == (day - date(1970, 1, 1)).days


def test_the_year_0_is_a_leap_year_before_the_first() -> None:
    assert days("0001-01-01") == (days("0000-12-31") or 0) + 1
    assert days("0000-03-01") == (days("0000-02-29") or 0) + 1


@pytest.mark.parametrize("text", ["0000-00-00", "2020-00-10", "2020-10-00", "2021-02-29", "0000-00-01"])
def test_no_calendar_has_these(text: str) -> None:
    assert days(text) is None
    assert micros(f"{text} 00:00:00") is None


@given(st.integers(-3_020_399_999_999, 3_020_399_999_999))
def test_a_time_is_its_microseconds(wanted: int) -> None:
    seconds, part = divmod(abs(wanted), 1_000_000)
    text = f"{'-' if wanted < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{part:06d}"
    assert clock(text) == wanted


@given(st.integers(-(10**65), 10**65), st.integers(0, 30))
def test_a_decimal_is_as_short_as_it_can_be(number: int, scale: int) -> None:
    digits = f"{abs(number):0{scale + 1}d}"
    text = f"{'-' if number < 0 else ''}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}"
    found = unscaled(text)
    assert int.from_bytes(found, "big", signed=True) == number
    assert len(found) == 1 or int.from_bytes(found[1:], "big", signed=True) != number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_without_an_exponent_reads_back(number: float) -> None:
    found = positional(number)
    assert float(found) == number
    assert math.copysign(1, float(found)) == math.copysign(1, number)
    assert "e" not in found


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (LINE, "LINESTRING (0 1, 1 2.5, -0.0000002 300000000000000000000)"),
        (POLYGON, "POLYGON ((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))"),
        (wkb(4, many(POINT, POINT)), "MULTIPOINT ((3 2), (3 2))"),
        (wkb(6, many(POLYGON)), "MULTIPOLYGON (((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1)))"),
        # Of Maxwell's own test.
        (
            wkb(
                7,
                many(wkb(1, struct.pack("<2d", 1, 1)), wkb(2, many(*(struct.pack("<2d", n, n + 1) for n in range(4))))),
            ),
            "GEOMETRYCOLLECTION (POINT (1 1), LINESTRING (0 1, 1 2, 2 3, 3 4))",
        ),
        (wkb(7, many()), "GEOMETRYCOLLECTION EMPTY"),
    ],
)
def test_geometry_as_text(data: bytes, wanted: str) -> None:
    assert wkt(shape(data, 4326)) == wanted


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", shape(POINT[:-1]), shape(wkb(99)), shape(wkb(3, many(b"\1\0")))])
def test_what_is_no_geometry_ends_the_feed(data: bytes) -> None:
    with pytest.raises(Terminal):
        wkt(data)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:23", ("3e11fa47-71ca-11e1-9e33-c80aa9429562:23", "", 0)),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:tag:23", ("3e11fa47-71ca-11e1-9e33-c80aa9429562:tag:23", "", 0)),
        ("0-1-42", ("0-1-42", "", 0)),
        ("mysql-bin.000003:484", ("", "mysql-bin.000003", 484)),
        ("odd:name.1:4", ("", "odd:name.1", 4)),
        ("", ("", "", 0)),
    ],
)
def test_a_transaction_has_a_name_or_a_place(text: str, wanted: tuple[str, str, int]) -> None:
    found = origin(text)
    assert (found.gtid, found.file, found.offset) == wanted


# What `open` sends reads back.


def _dates(fraction: int = 0) -> st.SearchStrategy[str]:
    part = st.integers(0, 10**fraction - 1).map(lambda n: f".{n:0{fraction}d}" if fraction else "")
    whole = st.datetimes().map(lambda moment: moment.isoformat(" ", "seconds"))
    return st.tuples(st.one_of(whole, st.sampled_from(["0000-00-00 00:00:00", "2020-00-31 23:59:59"])), part).map(
        "".join
    )


def _times() -> st.SearchStrategy[str]:
    spans = st.timedeltas(timedelta(0), timedelta(hours=838, minutes=59, seconds=59))
    text = spans.map(lambda s: f"{s // timedelta(hours=1):02d}:{s.seconds // 60 % 60:02d}:{s.seconds % 60:02d}")
    return st.tuples(st.sampled_from(["", "-"]), text).map("".join)


_WIDTHS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def _numbers(of: Column) -> st.SearchStrategy[Any]:
    if of.data_type in _WIDTHS:
        bits = _WIDTHS[of.data_type]
        return st.integers(0, (1 << bits) - 1) if of.is_unsigned else st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if of.data_type == "bit":
        return st.integers(0, (1 << (of.precision or 0)) - 1)
    if of.data_type == "year":
        return st.sampled_from([0, 1901, 2024, 2155])
    if of.data_type == "decimal":
        places = of.scale or 0
        return st.decimals(-(10**8), 10**8, places=places, allow_nan=False).map(lambda number: f"{number:.{places}f}")
    return st.floats(allow_nan=False, allow_infinity=False, width=32 if of.data_type == "float" else 64)


def _values(of: Column) -> st.SearchStrategy[Any]:
    kind = of.data_type
    if kind in _WIDTHS or kind in ("bit", "year", "decimal", "float", "double"):
        return _numbers(of)
    if kind in ("date", "datetime", "timestamp"):
        return _dates(of.fraction).map(lambda text: text[:10] if kind == "date" else text)
    if kind == "time":
        return _times()
    if kind == "enum":
        return st.sampled_from(["", *of.labels])
    if kind == "set":
        return st.sets(st.sampled_from(of.labels)).map(lambda found: ",".join(m for m in of.labels if m in found))
    if kind == "json":
        return st.recursive(
            st.none() | st.booleans() | st.integers() | _TEXTS,
            lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
        ).map(json.dumps)
    return _bytes_or_text(kind)


def _bytes_or_text(kind: str) -> st.SearchStrategy[Any]:
    if kind in ("uuid", "inet4", "inet6"):
        return {
            "uuid": st.uuids().map(str),
            "inet4": st.ip_addresses(v=4).map(str),
            "inet6": st.ip_addresses(v=6).map(str),
        }[kind]
    if kind.endswith(("char", "text")):
        return _TEXTS
    if kind.endswith(("binary", "blob")):
        return st.binary()
    if kind == "vector":
        return st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1).map(
            lambda found: struct.pack(f"<{len(found)}f", *found)
        )
    return st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([POINT, wkb(1, struct.pack("<2d", -0.5, 1e300))])).map(
        lambda found: shape(found[1], found[0])
    )


rows = st.tuples(*(st.one_of(st.none(), _values(each)) if each.is_nullable else _values(each) for each in FULL.columns))
widely = settings(deadline=None, max_examples=60)
"""A row of all columns takes long to draw."""
images = st.one_of(st.tuples(st.none(), rows), st.tuples(rows, st.none()), st.tuples(rows, rows))


def _same(found: Any, wanted: Any) -> bool:
    is_signed = not isinstance(wanted, float) or math.copysign(1, found) == math.copysign(1, wanted)
    return (found, type(found)) == (wanted, type(wanted)) and is_signed


@widely
@given(images)
def test_open_reads_back_what_went_in(given: tuple[Any, Any]) -> None:
    before, after = given
    (found,) = Open().row(Row(layout=FULL, place=Place(1, 0), before=before, after=after))
    change = read_row(found.key, found.value)
    assert (change.schema, change.table) == ("s", "every")
    for read, row in ((change.before, before), (change.after, after)):
        assert (read is None) == (row is None)
        for of, value in zip(FULL.columns, row or (), strict=row is not None):
            cell = (read or {})[of.name]
            assert _same(cell.value, value), of
            assert cell.is_unique == (of.name == "id")


@widely
@given(images)
def test_other_formats_are_json_whatever_a_row_holds(given: tuple[Any, Any]) -> None:
    event = Row(layout=FULL, place=Place(1, 0), before=given[0], after=given[1])
    for make in FORMATS.values():
        for found in make().row(event):
            for part in (found.key, found.value):
                assert part is None or isinstance(json.loads(part), dict)


@widely
@given(rows)
def test_bytes_and_text_come_back_from_every_format(row: tuple[Any, ...]) -> None:
    event = Row(layout=FULL, place=Place(1, 0), before=None, after=row)
    canal, maxwell, debezium = (
        json.loads(make().row(event)[0].value or b"") for make in (CanalJson, Maxwell, Debezium)
    )
    for of, value in zip(FULL.columns, row, strict=True):
        found = canal["data"][0][of.name], maxwell["data"][of.name], debezium["after"][of.name]
        if of.data_type.endswith(("binary", "blob")) and value is not None:
            letters, *encoded = found
            assert letters.encode("latin-1") == value
            assert all(msgspec.convert(each, bytes) == value for each in encoded)
        if of.data_type.endswith(("char", "text")):
            assert found == (value, value, value)


def test_open_marks_no_column_of_a_table_without_a_key() -> None:
    (found,) = Open().row(Row(layout=KEYLESS, place=Place(1, 0), before=None, after=(1, "a")))
    change = read_row(found.key, found.value)
    assert [cell.is_unique for cell in (change.after or {}).values()] == [False, False]


def test_open_reads_back_ddl_and_admin() -> None:
    (said,) = Open().ddl(
        Ddl(place=Place(7, 0), schema="s", sql="DROP TABLE `t🍌`", verb="DROP", what="TABLE", tables=(("s", "t🍌"),))
    )
    assert read_ddl(said.key, said.value) == ("s", "DROP TABLE `t🍌`")
    assert json.loads(said.key or b"") == {"ts": 7, "type": "DDL", "schema": "s", "table": "t🍌"}
    assert read_admin(Open().admin(Admin(t=7, partitions=5, generation=2)).value) == (2, 5, 7)


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"{", b"[]", b"7", b"null", b'"update"', b"{}", b'{"before":{}}', b'{"update":7}', b"[" * 5000),
        *(b'{"update":{"a":{}}}', b'{"update":{"a":[]}}', b'{"delete":{"a":{"type":"Blob","value":"%%%%"}}}'),
        *(b'{"update":{"a":{"type":"Bit","value":"x"}}}', b'{"update":{"a":{"type":"Set","value":[1]}}}'),
    ],
)
def test_what_is_no_row_of_open_ends_the_reader(value: bytes | None) -> None:
    key = b'{"ts":1,"type":"Row","schema":"s","table":"t"}'
    with pytest.raises(Terminal):
        read_row(key, value)
    with pytest.raises(Terminal):
        read_ddl(key, value)
    with pytest.raises(Terminal):
        read_admin(value)
