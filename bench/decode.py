"""How fast row images become SQL text, and how fast events that nobody watches are passed over.

    .venv/bin/python bench/decode.py

No server: the events are made here, in the shape of `stress (id BIGINT, name VARCHAR(40), code CHAR(8))`.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable

from vreplication.binlog.control import TableMap
from vreplication.binlog.events import Position
from vreplication.binlog.framing import Type
from vreplication.binlog.reader import Reader
from vreplication.binlog.rows import Decoder
from vreplication.binlog.watch import Watch
from vreplication.changes.codecs import SqlText
from vreplication.schema.model import Column

ROWS_PER_EVENT = 120
EVENTS = 400
REPEATS = 5


def column(ordinal: int, name: str, data_type: str, column_type: str) -> Column:
    charset = "utf8mb4" if "char" in data_type else None
    return Column(
        name=name, ordinal=ordinal, data_type=data_type, column_type=column_type, is_nullable=True, charset=charset
    )


WATCH = Watch(
    number=0,
    schema="test",
    table="stress",
    columns=(
        column(1, "id", "bigint", "bigint"),
        column(2, "name", "varchar", "varchar(40)"),
        column(3, "code", "char", "char(8)"),
    ),
    codec=SqlText(key=((1, "{}"),), values=((1, "{}"), (2, "{}"), (3, "{}"))),
)
LAYOUT = TableMap(schema="test", table="stress", types=(8, 15, 254), metadata=(0, 160, 0xFE20))


def image(number: int) -> bytes:
    name, code = f"name of the row number {number:09d}".encode(), f"{number % 10**8:08d}".encode()
    return b"\xf8" + struct.pack("<qB", number, len(name)) + name + bytes([len(code)]) + code


def rows_body(kind: int) -> bytes:
    bitmaps = b"\x07" * (2 if kind == Type.UPDATE_ROWS_V1 else 1)
    images = b"".join(image(i) for i in range(ROWS_PER_EVENT * len(bitmaps)))
    return b"\x12\0\0\0\0\0\x01\0\x03" + bitmaps + images


def packet(kind: int, body: bytes, end: int = 0) -> bytes:
    """`end`: where the event ends in its file; 0: that is not told, and the reader counts by itself."""
    size = 19 + len(body) + 4
    plain = struct.pack("<IBIIIH", 1, kind, 1, size, end, 0) + body
    return plain + zlib.crc32(plain).to_bytes(4, "little")


def best(work: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def decoding(kind: int) -> float:
    """Rows per second from an event's body to changes."""
    decoder, body = Decoder(WATCH, LAYOUT), rows_body(kind)

    def work() -> None:
        for _ in range(EVENTS):
            decoder.decode(kind, body, [].append)

    return ROWS_PER_EVENT * EVENTS / best(work)


def skipping() -> float:
    """Rows per second in events of a table that nobody watches, checksum included."""
    reader = Reader(Position.of("log.000001", 4), [WATCH], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    table_map = b"\x12\0\0\0\0\0\x01\0\x04test\0\x05other\0\x03\x08\x0f\xfe\x04\xa0\0\xfe\x20\x07"
    format_description = packet(Type.FORMAT_DESCRIPTION, bytes(80) + b"\x01")
    one = packet(Type.WRITE_ROWS_V1, rows_body(Type.WRITE_ROWS_V1))

    def work() -> None:
        packets = [format_description, packet(Type.TABLE_MAP, table_map), *[one] * EVENTS * 10]
        assert not list(reader.items(packets))

    return ROWS_PER_EVENT * EVENTS * 10 / best(work)


def small_transactions() -> float:
    """Transactions of one row per second, as MySQL writes them, by GTID."""
    start = Position.parse("log.000001:4 00000000-0000-0000-0000-000000000000:1-5")
    table_map = b"\x12\0\0\0\0\0\x01\0\x04test\0\x06stress\0\x03\x08\x0f\xfe\x04\xa0\0\xfe\x20\x07"
    rows = b"\x12\0\0\0\0\0\x01\0\x03\x07" + image(1)
    rest = [
        (Type.QUERY, bytes(8) + b"\x04\0\0\0\0test\0BEGIN"),
        (Type.TABLE_MAP, table_map),
        (Type.WRITE_ROWS_V1, rows),
        (Type.XID, bytes(8)),
    ]
    packets, at = [packet(Type.FORMAT_DESCRIPTION, bytes(80) + b"\x01")], start.offset
    for number in range(10_000):
        gtid = Type.GTID, bytes(17) + (number + 6).to_bytes(8, "little") + b"\x02" + bytes(23)
        for kind, body in (gtid, *rest):
            at += 19 + len(body) + 4
            packets.append(packet(kind, body, at))

    def work() -> None:
        reader = Reader(start, [WATCH], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
        assert sum(1 for _ in reader.items(packets)) == 10_000

    return 10_000 / best(work)


def main() -> None:
    for kind in (Type.WRITE_ROWS_V1, Type.UPDATE_ROWS_V1, Type.DELETE_ROWS_V1):
        print(f"{kind.name:16} {decoding(kind):12,.0f} rows/s")
    print(f"{'one-row':16} {small_transactions():12,.0f} transactions/s")
    print(f"{'not watched':16} {skipping():12,.0f} rows/s")


if __name__ == "__main__":
    main()
