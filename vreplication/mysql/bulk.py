"""MariaDB's bulk statements: one prepared INSERT, and the values of thousands of rows in a single packet.

What must stay true: a block is what COM_STMT_BULK_EXECUTE takes behind the types, values in row order, each an
indicator byte (0: a value follows, 1: NULL) and a length-encoded string; the server has no text to parse. The protocol
is asked for in the handshake, in bits that only MariaDB reads, and nothing else of the session changes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from vreplication.mysql.session import Connection, Session, connect, translated
from vreplication.mysql.url import SourceUrl

TEXT, BYTES = 0xFD, 0xFC
"""Types of a parameter: a string in the connection's character set (utf8mb4), or bytes."""
_PREPARE, _BULK_EXECUTE = 0x16, 0xFA
_SEND_TYPES = 128
_CLIENT_MYSQL = 1
_STMT_BULK_OPERATIONS = 1 << 2


class BulkConnection(Connection):
    """A connection that says in its handshake that it speaks bulk statements, to a MariaDB."""

    _is_logging_in = False

    def _request_authentication(self) -> None:
        self._is_logging_in = "MariaDB" in str(self.server_version)
        super()._request_authentication()
        self._is_logging_in = False

    def write_packet(self, payload: bytes) -> None:
        # Our answers to the handshake (the TLS request and the login) begin with capabilities, packet size, character
        # set and 23 zero bytes; what an authentication plugin sends after them does not.
        is_answer = self._is_logging_in and payload[9:32] == bytes(23)
        super().write_packet(_greeting(payload) if is_answer else payload)


def _greeting(payload: bytes) -> bytes:
    """MariaDB's extended capabilities stand in the last four of the zero bytes, where CLIENT_MYSQL is not set."""
    (flags,) = struct.unpack_from("<I", payload)
    extended = struct.pack("<I", _STMT_BULK_OPERATIONS)
    return struct.pack("<I", flags & ~_CLIENT_MYSQL) + payload[4:28] + extended + payload[32:]


def connect_bulk(url: SourceUrl, **options: Any) -> Session:
    """As `session.connect`, ready for bulk statements where the server is a MariaDB."""
    return connect(url, connection_class=BulkConnection, **options)


class BulkInsert:
    """An INSERT … VALUES of one row with a `?` for each value, prepared on a session of `connect_bulk`."""

    def __init__(self, session: Session, sql: str, types: Sequence[int]) -> None:
        self._connection: Any = session._connection
        self._types = b"".join(struct.pack("<BB", kind, 0) for kind in types)
        self.sql = sql
        with translated(sql, self._connection):
            self._connection._execute_command(_PREPARE, sql)
            self._id = self._read_prepared()

    def _read_prepared(self) -> int:
        head = self._connection._read_packet().get_all_data()
        statement, columns, parameters = struct.unpack_from("<IHH", head, 1)
        for count in (parameters, columns):
            # Definitions, and the packet that ends them.
            for _ in range(count + 1 if count else 0):
                self._connection._read_packet()
        return int(statement)

    def run(self, block: bytes) -> int:
        """Insert the rows of `block`; returns the affected rows. Warnings are then on the session, as always."""
        payload = struct.pack("<IH", self._id, _SEND_TYPES) + self._types + block
        with translated(self.sql, self._connection):
            self._connection._execute_command(_BULK_EXECUTE, payload)
            return int(self._connection._read_query_result())


def value_sql(rendered: str, source: str, *, is_nullable: bool, longest: int | None) -> str:
    """SQL that gives a value as it stands in a block. `longest`: octets that it has at most, where that is known."""
    length = f"LENGTH({rendered})"
    # A length below 251 stands in one byte; behind 253 it has three, for up to 16 MiB.
    if longest is not None and longest < 251:
        head = f"CHAR(0,{length} USING binary)"
    else:
        # A value beyond 16 MiB gets a wrong length here, and never goes out: a block as long as that is not sent, but
        # read again row by row (rowcopy/paths.py).
        head = f"CHAR(0,253,{length}&255,{length}>>8&255,{length}>>16 USING binary)"
    value = f"CONCAT({head},{rendered})"
    return f"IF({source} IS NULL,X'01',{value})" if is_nullable else value
