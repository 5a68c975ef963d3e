"""Cuts what the server sends into events: header, checksum, compressed pieces.

What must stay true: the checksum is verified where there is one; an event is never passed on with bytes that are not
its own; a type that nobody knows is the caller's to refuse, never dropped here.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from vreplication.binlog.spool import Spooled
from vreplication.errors import SourceChanged, Transient

HEADER = struct.Struct("<IBIIIH")
HEADER_BYTES = 19
CHECKSUM_BYTES = 4
ARTIFICIAL = 0x20
"""Flag of an event that the server makes up for the reader: it takes no room in the file."""
IGNORABLE = 0x80
_WRONG_CHECKSUM = "An event of the binary log arrived with a wrong checksum."
_RESIDUE = 0x2144DF1C
"""CRC-32 of whatever ends with its own CRC-32, low byte first."""


class Damaged(Transient):
    """What arrived is no event. In the file it may be whole; or nothing begins at the place that was asked for."""


class Type(IntEnum):
    """Event types that we handle, by the number in the header."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


class Event(NamedTuple):
    """One event. `body`: what follows the header, without checksum. `end`: log_pos of the header, 0: not told.

    spooled: where a compressed transaction too large for memory is found; its body is empty then.
    """

    type: int
    timestamp: int
    size: int
    end: int
    flags: int
    body: bytes
    server_id: int = 0
    spooled: Spooled | None = None


_DESCRIPTION, _ROTATE = int(Type.FORMAT_DESCRIPTION), int(Type.ROTATE)
# For each event: a NamedTuple's own constructor is a Python function in between.
_new, _unpack, _crc32 = tuple.__new__, HEADER.unpack_from, zlib.crc32


class Framer:
    """Packets to events. Knows whether the log carries checksums (told by FORMAT_DESCRIPTION)."""

    def __init__(self) -> None:
        self.has_checksum = False

    def event(self, packet: bytes | Spooled) -> Event:
        """Raises Damaged."""
        if isinstance(packet, Spooled):
            return self._spooled(packet)
        timestamp, kind, server_id, size, end, flags = _unpack(packet)
        if size != len(packet):
            raise Damaged(f"An event of {size} bytes arrived with {len(packet)} bytes.")
        if kind == _DESCRIPTION:
            body = self._description(packet)
        # It is sent before the file's own description, so nobody knows yet whether there are checksums.
        elif kind == _ROTATE and flags & ARTIFICIAL:
            body = packet[HEADER_BYTES : size - CHECKSUM_BYTES * _is_right(packet)]
        elif not self.has_checksum:
            body = packet[HEADER_BYTES:]
        elif _crc32(packet) == _RESIDUE:
            body = packet[HEADER_BYTES:-CHECKSUM_BYTES]
        else:
            raise Damaged(_WRONG_CHECKSUM)
        return _new(Event, (kind, timestamp, size, end, flags, body, server_id, None))

    def _description(self, packet: bytes) -> bytes:
        """Says whether there are checksums, and has one in any case."""
        self.has_checksum = _describes_checksum(packet)
        if self.has_checksum and not (_is_right(packet) or _is_right(_unflagged(packet))):
            raise Damaged(_WRONG_CHECKSUM)
        return packet[HEADER_BYTES:-CHECKSUM_BYTES]

    def _spooled(self, packet: Spooled) -> Event:
        timestamp, kind, server_id, size, end, flags = HEADER.unpack_from(packet.head)
        if size != packet.size:
            raise Damaged(f"An event of {size} bytes arrived with {packet.size} bytes.")
        if self.has_checksum and not packet.is_whole:
            raise Damaged(_WRONG_CHECKSUM)
        # Or the checksum would be read as data behind the last compressed frame.
        packet.cut(CHECKSUM_BYTES if self.has_checksum else 0)
        return Event(kind, timestamp, size, end, flags, b"", server_id, packet)


def _describes_checksum(packet: bytes) -> bool:
    """The algorithm's byte stands before the four bytes of the (always present) checksum of this event."""
    algorithm = packet[-CHECKSUM_BYTES - 1]
    if algorithm not in (0, 1):
        raise SourceChanged(
            f"The binary log uses checksum algorithm {algorithm}, which we do not know.",
            cure="Use binlog_checksum CRC32 or NONE.",
        )
    return algorithm == 1


def _is_right(packet: bytes) -> bool:
    """True when the last bytes are a checksum: of an event that stands before the file's own description."""
    return zlib.crc32(packet) == _RESIDUE


def _unflagged(packet: bytes) -> bytes:
    """FORMAT_DESCRIPTION of a file in use: its checksum was taken before the in-use flag was set."""
    cleared = bytearray(packet)
    cleared[17] &= 0xFE
    return bytes(cleared)


def uncompressed(data: bytes) -> bytes:
    """MariaDB's compressed piece: a byte of algorithm and length of length, the length big-endian, zlib data."""
    if data[0] & 0xF0 != 0x80:
        raise SourceChanged(
            f"A piece of the log is compressed in a way that we do not know ({data[0]:#x}).",
            cure="Switch log_bin_compress off.",
        )
    width = data[0] & 0x07
    size = int.from_bytes(data[1 : 1 + width], "big")
    # Not a slice, which would copy a row of many MiB once more.
    plain = zlib.decompress(memoryview(data)[1 + width :])
    if len(plain) != size:
        raise SourceChanged("A compressed piece of the log has not the length that it tells.")
    return plain


_WIDTHS = {252: 2, 253: 3, 254: 8}


def packed_int(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the place behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    # 251 and 255 are no numbers in the protocol (NULL, an error): the KeyError is told as an event that cannot be read.
    width = _WIDTHS[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
