"""Stored values as text: golden bytes, and every reader against an encoder of its own."""

from __future__ import annotations

import contextlib
import decimal
import struct
from datetime import datetime, timedelta
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog import jsonb, values
from vreplication.errors import SourceChanged


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("800000", "00:00:00"),
        ("801083", "01:02:03"),
        ("7fef7d", "-01:02:03"),
        ("b46efb", "838:59:59"),
        ("4b9105", "-838:59:59"),
    ],
)
def test_time(data: str, text: str) -> None:
    assert values.time_reader(0)(bytes.fromhex(data), 0) == text


@pytest.mark.parametrize(
    ("data", "digits", "text"),
    [
        # -01:02:03.25: where the well-known reader says .75
        ("7fef7ce7", 2, "-01:02:03.25"),
        ("7ffffff6", 1, "-00:00:00.1"),
        ("7fffffffff", 4, "-00:00:00.0001"),
        ("7fffffffffff", 6, "-00:00:00.000001"),
        ("800000000001", 6, "00:00:00.000001"),
        ("8010830bb8", 3, "01:02:03.300"),
        ("8010830001e0", 5, "01:02:03.00048"),
    ],
)
def test_time_with_fraction(data: str, digits: int, text: str) -> None:
    assert values.time_reader(digits)(bytes.fromhex(data), 0) == text


@given(st.integers(-3020399, 3020399), st.integers(0, 999999), st.integers(0, 6))
def test_time_round_trip(seconds: int, micros: int, digits: int) -> None:
    part = micros // 10 ** (6 - digits) * 10 ** (6 - digits)
    sign = "-" if seconds < 0 or (seconds == 0 and micros % 2 and part) else ""
    clock = abs(seconds)
    packed = (clock // 3600 << 12) | (clock // 60 % 60 << 6) | clock % 60
    extra = values.fraction_bytes(digits)
    value = (packed << 8 * extra) + part // 10 ** (6 - 2 * extra)
    stored = (-value if sign else value) + (0x800000 << 8 * extra)
    text = f"{sign}{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
    expected = text + (f".{part:06d}"[: digits + 1] if digits else "")
    assert values.time_reader(digits)(b"\0" + stored.to_bytes(3 + extra, "big"), 1) == expected


@pytest.mark.parametrize(
    ("data", "digits", "text"),
    [
        ("8000000000", 0, "0000-00-00 00:00:00"),
        ("99a5443105", 0, "2020-01-02 03:04:05"),
        ("8000000000000000", 6, "0000-00-00 00:00:00.000000"),
        ("99a544310850", 2, "2020-01-02 03:04:08.80"),
        ("99a540000032", 1, "2020-01-00 00:00:00.5"),
    ],
)
def test_datetime(data: str, digits: int, text: str) -> None:
    assert values.datetime_reader(digits)(bytes.fromhex(data), 0) == text


def packed_datetime(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> bytes:
    clock = hour << 12 | minute << 6 | second
    return (((year * 13 + month) << 5 | day) << 17 | clock | 1 << 39).to_bytes(5, "big")


@given(
    st.tuples(*(st.integers(0, top) for top in (9999, 12, 31, 23, 59, 59))), st.integers(0, 999999), st.integers(0, 6)
)
def test_datetime_round_trip(fields: tuple[int, ...], micros: int, digits: int) -> None:
    extra = values.fraction_bytes(digits)
    part = micros // 10 ** (6 - digits) * 10 ** (6 - digits)
    raw = packed_datetime(*fields) + (part // 10 ** (6 - 2 * extra)).to_bytes(extra, "big")
    text = "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}".format(*fields)
    assert values.datetime_reader(digits)(raw, 0) == text + (f".{part:06d}"[: digits + 1] if digits else "")


@given(st.integers(1, 2**32 - 1))
def test_timestamp_round_trip(seconds: int) -> None:
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    raw = struct.pack(">I", seconds)
    assert values.timestamp_reader(0)(raw, 0) == str(moment)
    assert values.timestamp_reader(3)(raw + struct.pack(">H", 1230), 0) == f"{moment}.123"
    assert values.old_timestamp_reader(0)(raw[::-1], 0) == str(moment)
    assert values.old_timestamp_reader(2)(raw + b"\x0c", 0) == f"{moment}.12"


@pytest.mark.parametrize("digits", range(7))
def test_zero_timestamp(digits: int) -> None:
    zero = "0000-00-00 00:00:00" + ("." + "0" * digits if digits else "")
    assert values.timestamp_reader(digits)(bytes(7), 0) == zero
    assert values.old_timestamp_reader(digits)(bytes(7), 0) == zero


def test_old_formats() -> None:
    assert values.old_datetime_reader(0)((20200102030405).to_bytes(8, "little"), 0) == "2020-01-02 03:04:05"
    assert values.old_datetime_reader(0)(bytes(8), 0) == "0000-00-00 00:00:00"
    assert values.old_time_reader(0)((-8385959).to_bytes(3, "little", signed=True), 0) == "-838:59:59"
    assert values.old_time_reader(0)((5).to_bytes(3, "little", signed=True), 0) == "00:00:05"
    zero = 3020400 * 1000
    assert values.old_time_reader(3)((zero - 1500).to_bytes(5, "big"), 0) == "-00:00:01.500"
    moment = ((((2020 * 13 + 2) * 32 + 3) * 24 + 4) * 60 + 5) * 60 + 6
    assert values.old_datetime_reader(2)((moment * 100 + 7).to_bytes(6, "big"), 0) == "2020-02-03 04:05:06.07"


def test_as_servers_store_it() -> None:
    assert values.decimal_reader(5, 3)(bytes.fromhex("73fea6"), 0) == "-12.345"
    assert values.timestamp_reader(3)(bytes.fromhex("5e0be10004e2"), 0) == "2020-01-01 00:00:00.125"


def test_dates_and_years() -> None:
    assert values.date3((2020 << 9 | 2 << 5 | 29).to_bytes(3, "little"), 0) == "2020-02-29"
    assert values.date3(bytes(3), 0) == "0000-00-00"
    assert [values.year1(bytes([b]), 0) for b in (0, 1, 155, 255)] == ["0", "1901", "2055", "2155"]


def encoded_decimal(text: str, precision: int, scale: int) -> bytes:
    """By the format's description: groups of nine digits, the odd one outermost, negative inverted."""
    whole, _, part = text.lstrip("-").partition(".")
    whole, part = whole.zfill(precision - scale), part.ljust(scale, "0")
    odd, odd_part = (precision - scale) % 9, scale % 9
    groups = [whole[:odd], *(whole[i : i + 9] for i in range(odd, len(whole), 9))] if precision > scale else []
    groups += [part[i : i + 9] for i in range(0, scale - odd_part, 9)] + [part[scale - odd_part :]]
    raw = b"".join(int(g).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(g)], "big") for g in groups if g)
    raw = bytes([raw[0] ^ 0x80]) + raw[1:]
    return bytes(b ^ 0xFF for b in raw) if text.startswith("-") else raw


@given(st.data())
def test_decimal_round_trip(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(30, precision)))
    number = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    with decimal.localcontext(prec=80):
        text = f"{decimal.Decimal(number).scaleb(-scale):f}"
    raw = encoded_decimal(text, precision, scale)
    assert len(raw) == values.decimal_bytes(precision, scale)
    assert values.decimal_reader(precision, scale)(b"x" + raw, 1) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_approximate_and_exact(value: float) -> None:
    text = values.float8(struct.pack("<d", value), 0)
    assert "e" in text
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)


def test_float_is_widened_exactly() -> None:
    assert values.float4(struct.pack("<f", 1.1), 0) == "1.100000023841858e0"


def test_network_types() -> None:
    assert values.uuid_text(bytes.fromhex("00112233445566778899aabbccddee")) == "00112233-4455-6677-8899-aabbccddee00"
    assert values.inet6_text(b"\x20\x01") == "2001::"
    assert values.inet4_text(b"\x01\x02") == "1.2.0.0"


@pytest.mark.parametrize(
    "text",
    [
        *("::", "::1", "::7", "1::", "2001:db8::1", "fe80::ff:fe00:1", "::ffff:1.2.3.4", "::1.2.3.4", "::0.1.0.0"),
        *("::ffff:0.0.0.0", "1::1:0:1:0:1:0", "::1:1:0:1:0:1:0", "1:1::1:0:0:1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"),
        *("::ffff:0:102:304", "0:0:1::", "1::ffff:102:304"),
    ],
)
def test_an_inet6_reads_as_mariadb_shows_it(text: str) -> None:
    """Each is what SELECT shows for itself (10.11): a row has one text by the copy and by the log."""
    assert values.inet6_text(IPv6Address(text).packed.rstrip(b"\0")) == text


def text(value: str) -> str:
    return f"_utf8mb4 X'{value.encode().hex()}'"


@pytest.mark.parametrize(
    ("data", "sql"),
    [
        ("", text("null")),
        ("0400", text("null")),
        ("0401", text("true")),
        ("05ffff", text("-1")),
        ("0affffffffffffffff", text("18446744073709551615")),
        ("0b000000000000f83f", text("1.5")),
        ("0b0000000000000080", text("-0.0")),
        ("0c04c3a92241", text('"é\\"A"')),
        ("0200000400", text("[]")),
        ("0001000c000b0001000501006100", text('{"a":1}')),
        ("060500", "JSON_EXTRACT(JSON_ARRAY(CAST(5 AS UNSIGNED)),'$[0]')"),
        ("0ff604030281" + "60", "JSON_EXTRACT(JSON_ARRAY(CAST('1.96' AS DECIMAL(3,2))),'$[0]')"),
        ("0201000700" + "060500", "JSON_ARRAY(CAST(5 AS UNSIGNED))"),
    ],
)
def test_json(data: str, sql: str) -> None:
    assert jsonb.literal(bytes.fromhex(data)) == sql


@given(st.binary(max_size=60))
def test_damaged_json_is_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(SourceChanged):
        assert isinstance(jsonb.literal(data), str)
