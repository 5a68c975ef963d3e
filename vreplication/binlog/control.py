"""Reads the events that frame transactions: GTIDs, statements, XA PREPARE, table maps, rotates.

What must stay true: nothing is guessed; a field that a later server may have changed is read only as far as its
length is told. XA names stay bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from vreplication.binlog.framing import Event, Type, packed_int, uncompressed
from vreplication.binlog.gtids import Name
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid

_MARIADB_GTID = struct.Struct("<QIB")
_QUERY = struct.Struct("<IIBHH")
_XA = struct.Struct("<BIII")
_BEGIN = b"\0BEGIN"

PAD_CHAR_TO_FULL_LENGTH = 1 << 31
STANDALONE = 0x01
_GROUP_COMMIT = 0x02
_PREPARED_XA = 0x40
_COMPLETED_XA = 0x80
_TENTATIVE_ALTER = 0x02 | 0x08
_HAS_ORIGINAL = 1 << 55
# As plain numbers, and without the Python function that a NamedTuple's own constructor is: for each transaction.
_NAMED, _new = int(Type.GTID), tuple.__new__

_FLAGS, _SQL_MODE, _CHARSET, _ZONE, _INVOKER, _SCHEMAS, _TIMESTAMPS, _UTF8MB4 = 0, 1, 4, 5, 11, 12, 16, 18
_LANGUAGE, _MICROS, _MARIADB_MICROS = 7, 13, 128
_FIXED_STATUS = {
    **{_FLAGS: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, _LANGUAGE: 2, 8: 2, 9: 8, 10: 4, _MICROS: 3, 14: 8, 15: 8},
    **{_TIMESTAMPS: 1, 17: 8, _UTF8MB4: 2, 19: 1, 20: 1, _MARIADB_MICROS: 3, 129: 8},
}
_TEXTS = {_ZONE: 1, 6: 1, _INVOKER: 2}
_MANY_SCHEMAS = 254
"""Instead of their count, where it does not name them."""


class Gtid(NamedTuple):
    """What opens a group. `name`: None for an anonymous one. `xid`: of an XA branch, where it is told (MariaDB).

    nbytes: of the whole group in the log, this event included, where it is told (MySQL).
    """

    time_micros: int
    is_standalone: bool | None
    name: Name | None = None
    xid: Xid | None = None
    nbytes: int | None = None
    is_tentative: bool = False
    """An ALTER that begins, or is taken back (MariaDB): what it defines is said once more when it commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A statement in the log, with what is needed to read it, and with what its session decided of it.

    flags: options of the session. time_zone: '' where the statement asked for none. explicit_timestamps: as of
    `explicit_defaults_for_timestamp`, where it mattered (MySQL). utf8mb4: collation of that character set (MySQL); 0.
    at: what NOW() was to it, µs since 1970, with a fraction of a second where it asked for that. connection: collation
    of the connection, in whose character set literals are. language: number of `lc_time_names`; 0: en_US.
    """

    schema: str
    text: bytes
    collation: int
    sql_mode: int
    flags: int = 0
    time_zone: str = ""
    explicit_timestamps: bool | None = None
    utf8mb4: int = 0
    at: int = 0
    connection: int = 0
    language: int = 0


def mariadb_gtid(event: Event) -> Gtid:
    """MariaDB tells whole seconds, and whether one statement makes the group."""
    body = event.body
    number, domain, flags = _MARIADB_GTID.unpack_from(body)
    # Both flags may be set at once, although the public description of this event reads as if one excluded the other.
    at = _MARIADB_GTID.size + (8 if flags & _GROUP_COMMIT else 0)
    xid = None
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        format_id, gtrid, bqual = struct.unpack_from("<IBB", body, at)
        xid = _xid(format_id, body[at + 6 : at + 6 + gtrid + bqual], gtrid, bqual)
        at += 6 + gtrid + bqual
    # Where there are no further flags zeros may stand here, which fill the event up.
    extra = body[at] if at < len(body) else 0
    is_standalone, is_tentative = bool(flags & STANDALONE), bool(extra & _TENTATIVE_ALTER)
    name = (domain, event.server_id, number)
    return _new(Gtid, (event.timestamp * 1_000_000, is_standalone, name, xid, None, is_tentative))


def mysql_gtid(event: Event) -> Gtid:
    """Layout: flags 1, uuid 16, number 8, clock type 1, last committed 8, sequence 8, then times and length."""
    body = event.body
    time_micros, nbytes = event.timestamp * 1_000_000, None
    # MySQL 5.7 ends behind its logical clock (2); times and length came with 8.0.
    if len(body) >= 49 and body[25] == 2:
        time_micros, nbytes = _time_and_length(body)
    name = (_uuid(body[1:17]), int.from_bytes(body[17:25], "little")) if event.type == _NAMED else None
    return _new(Gtid, (time_micros, None, name, None, nbytes, False))


def _time_and_length(body: bytes) -> tuple[int, int | None]:
    """Commit time 7, of which the top bit says that the original server's follows, 7; the length, packed."""
    # This server's own time comes first. The original one's may be hours older where this is a replica that was behind.
    time = int.from_bytes(body[42:49], "little")
    at = 56 if time & _HAS_ORIGINAL else 49
    return time & ~_HAS_ORIGINAL, packed_int(body, at)[0] if at < len(body) else None


@lru_cache(1024)
def _uuid(data: bytes) -> str:
    return str(UUID(bytes=data))


def tagged_gtid(event: Event) -> Gtid:
    """MySQL's newer form: a message of numbered fields, each number of a width of its own."""
    fields = _tagged_fields(event.body)
    uuid, tag = _uuid(fields[_UUID]), fields.get(_TAG, b"").decode("ascii")
    return Gtid(
        time_micros=fields.get(_COMMIT_TIME) or event.timestamp * 1_000_000,
        is_standalone=None,
        # The number is signed, with the sign in its lowest bit.
        name=(f"{uuid}:{tag}" if tag else uuid, fields[_NUMBER] >> 1),
        nbytes=fields.get(_LENGTH),
    )


_UUID, _NUMBER, _TAG, _COMMIT_TIME, _LENGTH = 1, 2, 3, 6, 8


def _tagged_fields(body: bytes) -> dict[int, Any]:
    """As far as the length. They come in the order of their numbers: flags, uuid (16 numbers), number, tag, …"""
    fields: dict[int, Any] = {}
    at = 0
    for _ in ("version", "size", "last field that must be known"):
        _, at = variable_int(body, at)
    while at < len(body) and _LENGTH not in fields:
        number, at = variable_int(body, at)
        fields[number], at = _tagged_field(number, body, at)
    return fields


def _tagged_field(number: int, body: bytes, at: int) -> tuple[Any, int]:
    if number == _UUID:
        parts = []
        for _ in range(16):
            part, at = variable_int(body, at)
            parts.append(part)
        return bytes(parts), at
    value, at = variable_int(body, at)
    return (body[at : at + value], at + value) if number == _TAG else (value, at)


def variable_int(body: bytes, at: int) -> tuple[int, int]:
    """As many one bits at the low end of the first byte, so many bytes follow it."""
    first = body[at]
    more = (~first & (first + 1)).bit_length() - 1
    value = int.from_bytes(body[at : at + more + 1], "little") >> min(more + 1, 8)
    return value, at + more + 1


def query(event: Event) -> Query:
    """A QUERY event of either kind."""
    body = event.body
    _, _, schema_size, _, status_size = _QUERY.unpack_from(body)
    at = _QUERY.size + status_size
    text = body[at + schema_size + 1 :]
    if event.type == Type.QUERY_COMPRESSED:
        text = uncompressed(text)
    said = _status(body[_QUERY.size : at])
    timestamps = said.get(_TIMESTAMPS)
    return Query(
        schema=body[at : at + schema_size].decode("utf-8", "replace"),
        text=text,
        collation=_number(said.get(_CHARSET, b"")[:2]),
        sql_mode=_number(said.get(_SQL_MODE, b"")),
        flags=_number(said.get(_FLAGS, b"")),
        time_zone=said.get(_ZONE, b"")[1:].decode("utf-8", "replace"),
        explicit_timestamps=None if timestamps is None else bool(timestamps[0]),
        utf8mb4=_number(said.get(_UTF8MB4, b"")),
        at=event.timestamp * 1_000_000 + _number(said.get(_MICROS) or said.get(_MARIADB_MICROS) or b""),
        connection=_number(said.get(_CHARSET, b"")[2:4]),
        language=_number(said.get(_LANGUAGE, b"")),
    )


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def is_begin(event: Event) -> bool:
    """A QUERY event that says BEGIN, as before most transactions of MySQL."""
    # Asked of nearly every transaction, so nothing else of the statement is read. With the checksum over the whole
    # event a transaction of one row takes 21.5 µs of CPU in place of 33.
    body = event.body
    return body.endswith(_BEGIN) and _text_at(body) == len(body) - len(_BEGIN) + 1 and event.type == Type.QUERY


def is_padding(event: Event) -> bool:
    """Of a BEGIN: its session has the SQL mode PAD_CHAR_TO_FULL_LENGTH."""
    # The mode stands behind the session's options, which are always told: four bytes behind their number.
    status = event.body[_QUERY.size : _QUERY.size + 14]
    return len(status) == 14 and status[5] == _SQL_MODE and bool(_number(status[6:]) & PAD_CHAR_TO_FULL_LENGTH)


def _text_at(body: bytes) -> int:
    """Where the statement stands: behind the status and the schema's name with its zero."""
    return _QUERY.size + (body[11] | body[12] << 8) + body[8] + 1


def _status(data: bytes) -> dict[int, bytes]:
    """Fields by their number, up to the first whose length we do not know; SQL mode and collation stand early."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        kind, at = data[at], at + 1
        size = _status_size(kind, data, at)
        if size is None:
            break
        found[kind] = data[at : at + size]
        at += size
    return found


def _status_size(kind: int, data: bytes, start: int) -> int | None:
    at = start
    if kind == _SCHEMAS:
        at += 1
        for _ in range(data[start] if data[start] != _MANY_SCHEMAS else 0):
            at = data.index(b"\0", at) + 1
        return at - start
    for _ in range(_TEXTS.get(kind, 0)):
        at += 1 + data[at]
    return at - start if kind in _TEXTS else _FIXED_STATUS.get(kind)


def xa_prepare(event: Event) -> tuple[bool, Xid]:
    """(one phase, branch)."""
    # The length of bqual has four bytes here, on both flavors; MariaDB's page about the event says one.
    one_phase, format_id, gtrid, bqual = _XA.unpack_from(event.body)
    return bool(one_phase), _xid(format_id, event.body[_XA.size :][: gtrid + bqual], gtrid, bqual)


def _xid(format_id: int, data: bytes, gtrid: int, bqual: int) -> Xid:
    if len(data) != gtrid + bqual:
        raise SourceChanged("An XA event of the binary log ends inside the branch's name.")
    # XA RECOVER tells it with a sign, the event without one; the two are compared.
    signed = format_id - (1 << 32) if format_id >> 31 else format_id
    return Xid(signed, data[:gtrid], data[gtrid:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMap:
    """Layout of the row images that follow under this table id."""

    schema: str
    table: str
    types: tuple[int, ...]
    metadata: tuple[int, ...]
    described: bytes = b""
    """What the server says of the columns besides (binlog/described.py), unread."""
    nullable: bytes = b""
    """A bit a column, the first one lowest."""


# Compressed columns of MariaDB (140, 141) are known here, so that layout.py can refuse them by the column's name.
_NO_METADATA = frozenset({0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14})
_ONE_BYTE = frozenset({4, 5, 17, 18, 19, 140, 242, 244, 245, 249, 250, 251, 252, 255})
_TWO_BYTES = frozenset({15, 16, 141, 246, 247, 248, 253, 254})


def table_map(body: bytes) -> TableMap:
    """Two-byte metadata is little-endian for lengths (VARCHAR, BIT) and big-endian for pairs (CHAR, DECIMAL)."""
    at = 8
    schema = body[at + 1 : at + 1 + body[at]].decode("utf-8")
    at += body[at] + 2
    table = body[at + 1 : at + 1 + body[at]].decode("utf-8")
    at += body[at] + 2
    count, at = packed_int(body, at)
    types = tuple(body[at : at + count])
    size, at = packed_int(body, at + count)
    return TableMap(
        schema=schema,
        table=table,
        types=types,
        metadata=_metadata(body, at, types, table),
        described=body[at + size + (count + 7) // 8 :],
        nullable=body[at + size : at + size + (count + 7) // 8],
    )


def _metadata(body: bytes, at: int, types: tuple[int, ...], table: str) -> tuple[int, ...]:
    found = []
    for kind in types:
        size = 0 if kind in _NO_METADATA else 1 if kind in _ONE_BYTE else 2 if kind in _TWO_BYTES else None
        if size is None:
            raise SourceChanged(f"The log has a column of the unknown type {kind} in table {table}.")
        order = "little" if kind in (15, 16, 141) else "big"
        found.append(int.from_bytes(body[at : at + size], order))  # type: ignore[arg-type]
        at += size
    return tuple(found)


def names_of_map(body: bytes) -> tuple[bytes, bytes]:
    """Schema and table of a table map, undecoded: all that is needed of a table that nobody watches."""
    at = 9 + body[8]
    return body[9:at], body[at + 2 : at + 2 + body[at + 1]]


def heartbeat(event: Event) -> tuple[str, int]:
    """File and offset. MariaDB puts an offset beyond 4 GiB in front of the name, and 0 into the header."""
    body = event.body
    if event.end:
        return body.decode(errors="replace"), event.end
    return body[8:].decode(errors="replace"), int.from_bytes(body[:8], "little")


def rotated_to(event: Event) -> tuple[str, int]:
    """File and offset where the log goes on."""
    return event.body[8:].decode(errors="replace"), int.from_bytes(event.body[:8], "little")
