"""Packets of a binary log made by hand, as a server would send them, and a reader of them: a table t of two columns."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

from vreplication.binlog.events import Group, Heartbeat, Position
from vreplication.binlog.framing import ARTIFICIAL, Type
from vreplication.binlog.reader import Reader
from vreplication.binlog.watch import Watch
from vreplication.binlog.wire import Wire
from vreplication.changes.codecs import SqlText
from vreplication.schema.model import Column

START = Position.of("log.000007", 1000)
SERVER = 1
WATCH = Watch(
    number=0,
    schema="d",
    table="t",
    columns=(
        Column(name="id", ordinal=1, data_type="int", column_type="int", is_nullable=False),
        Column(name="n", ordinal=2, data_type="smallint", column_type="smallint", is_nullable=True),
    ),
    codec=SqlText(key=((1, "{}"),), values=((1, "{}"), (2, "{}"))),
)
TABLE_MAP = b"\x12\0\0\0\0\0\x01\0\x01d\0\x01t\0\x02\x03\x02\0\x02"
OTHER_MAP = b"\x13\0\0\0\0\0\x01\0\x01d\0\x01u\0\x02\x03\x02\0\x02"
MAP = (Type.TABLE_MAP, TABLE_MAP)
FORMAT = (Type.FORMAT_DESCRIPTION, bytes(80) + b"\x01")
BEGIN = (Type.QUERY, bytes(8) + b"\x01\0\0\0\0d\0BEGIN")
XID = (Type.XID, bytes(8))
GTID = (Type.ANONYMOUS_GTID, bytes(25) + b"\x02" + bytes(16) + (1_700_000_000_000_123).to_bytes(7, "little"))

Sent = tuple[int, bytes]


def rows(*pairs: tuple[int, int | None], table: int = 0x12, kind: int = Type.WRITE_ROWS_V1) -> Sent:
    images = b"".join(
        (b"\xfe" if n is None else b"\xfc") + struct.pack("<i", i) + (b"" if n is None else struct.pack("<h", n))
        for i, n in pairs
    )
    return kind, bytes([table]) + b"\0\0\0\0\0\x01\0\x02\xff" + images


def query(sql: str) -> Sent:
    return Type.QUERY, bytes(8) + b"\x01\0\0\0\0d\0" + sql.encode()


class Log:
    """Packets as a server would send them."""

    def __init__(self, offset: int = START.offset) -> None:
        self.offset = offset

    def packet(self, sent: Sent, *, flags: int = 0, end: int | None = None, has_checksum: bool = True) -> bytes:
        kind, body = sent
        size = 19 + len(body) + 4 * has_checksum
        if kind != Type.FORMAT_DESCRIPTION and not flags & ARTIFICIAL and kind != Type.HEARTBEAT:
            self.offset += size
        told = (self.offset if kind != Type.FORMAT_DESCRIPTION else 0) if end is None else end
        plain = struct.pack("<IBIIIH", 1_700_000_000, kind, SERVER, size, told & 0xFFFFFFFF, flags) + body
        return plain + (zlib.crc32(plain).to_bytes(4, "little") if has_checksum else b"")

    def packets(self, *sent: Sent) -> list[bytes]:
        return [self.packet(s) for s in (FORMAT, *sent)]


def reader(part_bytes: int = 1 << 24, start: Position = START) -> Reader:
    return Reader(start, [WATCH], guarded=(), part_bytes=part_bytes, codec_of=lambda _: "utf-8")


def read(*sent: Sent) -> list[Group | Heartbeat]:
    return list(reader().items(Log().packets(*sent)))


def wire(data: bytes) -> Wire:
    """A wire whose server has sent `data` and then closed the connection."""
    made = object.__new__(Wire)
    made.start, made._stream = START, io.BytesIO(data)
    return made


def framed(payload: bytes) -> Iterator[bytes]:
    """As packets of at most 2^24 - 1 bytes; a full one is always followed by another."""
    for at in range(0, len(payload) + 1, 0xFFFFFF):
        piece = payload[at : at + 0xFFFFFF]
        yield len(piece).to_bytes(3, "little") + b"\0" + piece
