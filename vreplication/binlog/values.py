"""Values of a row image as text: one reader for each way in which the servers store a type.

What must stay true: each reader takes the bytes and a place and gives the text of the exact value, without quotes;
zero dates, partial dates and negative times come out as they went in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from uuid import UUID

Reader = Callable[[bytes, int], str]

_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes that hold so many decimal digits."""
_HIRES_TIME_BYTES = (3, 4, 4, 5, 5, 5, 6)
_HIRES_DATETIME_BYTES = (5, 6, 6, 7, 7, 7, 8)
_HIRES_SECOND_BYTES = (0, 1, 1, 2, 2, 3, 3)
# MariaDB adds it to a TIME with a fraction, so that none is below zero and bytes sort as times do.
_TIME_SECONDS_ABOVE_ALL = (838 * 3600 + 59 * 60 + 59) + 1
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_INET6 = struct.Struct(">8H")
_EPOCH = date(1970, 1, 1)


def float_text(value: float) -> str:
    """Shortest text that reads back as this double, with an exponent: without one it would be a DECIMAL."""
    text = repr(value)
    return text if "e" in text else text + "e0"


def float4(data: bytes, at: int) -> str:
    # With all digits of the double, which the server rounds back to this very FLOAT.
    return float_text(_FLOAT.unpack_from(data, at)[0])


def float8(data: bytes, at: int) -> str:
    return float_text(_DOUBLE.unpack_from(data, at)[0])


def decimal_bytes(precision: int, scale: int) -> int:
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    return 4 * whole[0] + _DIGIT_BYTES[whole[1]] + 4 * part[0] + _DIGIT_BYTES[part[1]]


def decimal_reader(precision: int, scale: int) -> Reader:
    """DECIMAL(precision, scale): big-endian groups of nine digits, the odd group outermost, sign in the top bit."""
    size = decimal_bytes(precision, scale)
    whole, part = _groups(precision, scale)
    top, ones = 1 << (8 * size - 1), (1 << (8 * size)) - 1

    def read(data: bytes, at: int) -> str:
        bits = int.from_bytes(data[at : at + size], "big")
        sign = "" if bits & top else "-"
        # Of a negative number all bits are inverted, so that bytes sort as numbers do.
        bits ^= ones ^ top if sign else top
        number = 0
        for shift, mask, factor in whole:
            number = number * factor + (bits >> shift & mask)
        if not scale:
            return f"{sign}{number}"
        fraction = 0
        for shift, mask, factor in part:
            fraction = fraction * factor + (bits >> shift & mask)
        return f"{sign}{number}.{fraction:0{scale}d}"

    return read


def _groups(precision: int, scale: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """(shift, mask, factor) of each group of digits, before and behind the point."""
    full, odd = divmod(precision - scale, 9)
    full_part, odd_part = divmod(scale, 9)
    whole_digits = ([odd] if odd else []) + [9] * full
    part_digits = [9] * full_part + ([odd_part] if odd_part else [])
    shift = 8 * decimal_bytes(precision, scale)
    found = []
    for digits in whole_digits + part_digits:
        width = 8 * _DIGIT_BYTES[digits]
        shift -= width
        found.append((shift, (1 << width) - 1, 10**digits))
    return found[: len(whole_digits)], found[len(whole_digits) :]


def date3(data: bytes, at: int) -> str:
    bits = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return f"{bits >> 9:04d}-{bits >> 5 & 15:02d}-{bits & 31:02d}"


def year1(data: bytes, at: int) -> str:
    """As a number, where 0 is the year 0000 (the text '0' would be 2000)."""
    return str(1900 + data[at]) if data[at] else "0"


def fraction_bytes(digits: int) -> int:
    return (digits + 1) // 2


def _fraction(part: int, digits: int) -> str:
    """`part` counts 100ths, 10000ths or 1000000ths; the column has `digits` of them."""
    return f".{part:0{2 * fraction_bytes(digits)}d}"[: digits + 1]


def time_reader(digits: int) -> Reader:
    """TIME of 5.6 and later: sign bit, 10 bits hours, 6, 6, fraction; the whole of it is one signed number."""
    extra = fraction_bytes(digits)
    size, zero = 3 + extra, 0x800000 << 8 * extra

    def read(data: bytes, at: int) -> str:
        # As one number: taken apart first, -01:02:03.25 would come out as -01:02:03.75.
        return packed_time(int.from_bytes(data[at : at + size], "big") - zero, extra, digits)

    return read


def packed_time(value: int, extra: int, digits: int) -> str:
    sign, value = ("-", -value) if value < 0 else ("", value)
    clock, part = value >> 8 * extra, value & ((1 << 8 * extra) - 1)
    text = f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
    return text + _fraction(part, digits) if digits else text


def datetime_reader(digits: int) -> Reader:
    """DATETIME of 5.6 and later: 17 bits year * 13 + month, 5, 5, 6, 6, fraction."""
    extra = fraction_bytes(digits)

    def read(data: bytes, at: int) -> str:
        text = packed_datetime(int.from_bytes(data[at : at + 5], "big") - 0x8000000000)
        return text + _fraction(int.from_bytes(data[at + 5 : at + 5 + extra], "big"), digits)

    def read_whole(data: bytes, at: int) -> str:
        return packed_datetime(int.from_bytes(data[at : at + 5], "big") - 0x8000000000)

    return read if digits else read_whole


@lru_cache(4096)
def _packed_date(bits: int) -> str:
    year, month = divmod(bits >> 5, 13)
    return f"{year:04d}-{month:02d}-{bits & 31:02d}"


def packed_datetime(value: int) -> str:
    return f"{_packed_date(value >> 17)} {value >> 12 & 31:02d}:{value >> 6 & 63:02d}:{value & 63:02d}"


@lru_cache(4096)
def _day(days: int) -> str:
    return (_EPOCH + timedelta(days)).isoformat()


def _moment(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    return f"{_day(days)} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _timestamp(seconds: int, part: int) -> str:
    """Zero seconds is the zero date."""
    return _moment(seconds) if seconds or part else "0000-00-00 00:00:00"


def timestamp_reader(digits: int) -> Reader:
    """TIMESTAMP of 5.6 and later: four bytes big-endian seconds, fraction."""
    extra = fraction_bytes(digits)

    def read(data: bytes, at: int) -> str:
        part = int.from_bytes(data[at + 4 : at + 4 + extra], "big")
        return _timestamp(int.from_bytes(data[at : at + 4], "big"), part) + _fraction(part, digits)

    def read_whole(data: bytes, at: int) -> str:
        return _timestamp(int.from_bytes(data[at : at + 4], "big"), 0)

    return read if digits else read_whole


# The formats before 5.6, which MariaDB still has (mysql56_temporal_format=OFF). The log does not tell the digits of
# the fraction; they come from the schema.


def old_time_bytes(digits: int) -> int:
    return _HIRES_TIME_BYTES[digits]


def old_datetime_bytes(digits: int) -> int:
    return _HIRES_DATETIME_BYTES[digits] if digits else 8


def old_timestamp_bytes(digits: int) -> int:
    return 4 + _HIRES_SECOND_BYTES[digits]


def _plain_fraction(part: int, digits: int) -> str:
    return f".{part:0{digits}d}" if digits else ""


def old_time_reader(digits: int) -> Reader:
    if not digits:
        return _old_time
    size, unit = _HIRES_TIME_BYTES[digits], 10**digits
    zero = _TIME_SECONDS_ABOVE_ALL * unit

    def read(data: bytes, at: int) -> str:
        value = int.from_bytes(data[at : at + size], "big") - zero
        sign, value = ("-", -value) if value < 0 else ("", value)
        seconds, part = divmod(value, unit)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return sign + clock + _plain_fraction(part, digits)

    return read


def _old_time(data: bytes, at: int) -> str:
    """Decimal HHMMSS in three bytes."""
    value = int.from_bytes(data[at : at + 3], "little", signed=True)
    sign, value = ("-", -value) if value < 0 else ("", value)
    return f"{sign}{value // 10000:02d}:{value // 100 % 100:02d}:{value % 100:02d}"


def old_datetime_reader(digits: int) -> Reader:
    if not digits:
        return _old_datetime
    size, unit = _HIRES_DATETIME_BYTES[digits], 10**digits

    def read(data: bytes, at: int) -> str:
        rest, part = divmod(int.from_bytes(data[at : at + size], "big"), unit)
        rest, second = divmod(rest, 60)
        rest, minute = divmod(rest, 60)
        rest, hour = divmod(rest, 24)
        return f"{_packed_date(rest)} {hour:02d}:{minute:02d}:{second:02d}" + _plain_fraction(part, digits)

    return read


def _old_datetime(data: bytes, at: int) -> str:
    """Decimal YYYYMMDDhhmmss in eight bytes."""
    t = f"{int.from_bytes(data[at : at + 8], 'little'):014d}"
    return f"{t[:4]}-{t[4:6]}-{t[6:8]} {t[8:10]}:{t[10:12]}:{t[12:]}"


def old_timestamp_reader(digits: int) -> Reader:
    extra = _HIRES_SECOND_BYTES[digits]
    # Without a fraction it is stored as an INT is, with one so that its bytes sort.
    order = "big" if digits else "little"

    def read(data: bytes, at: int) -> str:
        part = int.from_bytes(data[at + 4 : at + 4 + extra], "big")
        seconds = int.from_bytes(data[at : at + 4], order)  # type: ignore[arg-type]
        return _timestamp(seconds, part) + _plain_fraction(part, digits)

    return read


# MariaDB's fixed-size types are CHAR-like in the log: a length byte, trailing zero bytes cut.


def uuid_text(data: bytes) -> str:
    return str(UUID(bytes=data.ljust(16, b"\0")))


def inet6_text(data: bytes) -> str:
    """As MariaDB shows it, which is not as Python does: a single zero is left out, too, and IPv4 has its dots."""
    raw = data.ljust(16, b"\0")
    words = [f"{word:x}" for word in _INET6.unpack(raw)]
    # The first of the longest runs of zeros.
    length, at = max((_zeros(words, at), -at) for at in range(8))
    begin, end = -at, -at + length
    if begin == 0 and (end == 6 or (end == 5 and words[5] == "ffff")):
        words[6:] = [inet4_text(raw[12:])]
    if not length:
        return ":".join(words)
    return f"{':'.join(words[:begin])}::{':'.join(words[end:])}"


def _zeros(words: list[str], at: int) -> int:
    """How many there are from here on."""
    return next((i for i, word in enumerate(words[at:]) if word != "0"), len(words) - at)


def inet4_text(data: bytes) -> str:
    return ".".join(map(str, data.ljust(4, b"\0")))
