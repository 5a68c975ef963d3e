"""The dump connection: asks the server for its log and hands out the packets as they arrive.

What must stay true: a connection is opened once and never silently again; a packet is handed out whole or not at
all; `close` wakes up a reader that waits in another thread, and the socket is gone afterwards. mysql-replication
connects, registers and asks for the dump; what comes back is read here.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, NoReturn

from vreplication.binlog.events import Position
from vreplication.errors import SourceChanged, Terminal, Transient, VReplicationError
from vreplication.mysql.session import Session, SqlError, connect, translated
from vreplication.mysql.url import SourceUrl

_BUFFER_BYTES = 1 << 20
_FULL_PACKET = 0xFFFFFF
_READ_TIMEOUT_SECONDS = 60.0
"""Heartbeats arrive several times a second: a minute without a byte is a dead connection."""
_DENIED = frozenset({1044, 1045, 1142, 1227, 1370, 3118})
_PURGED = 1236
_MAX_OFFSET = (1 << 32) - 1


class Wire:
    """Packets of one dump."""

    def __init__(self, url: SourceUrl, start: Position, *, server_id: int, heartbeat_seconds: float) -> None:
        self.start = start
        self.collations: dict[int, str] = {}
        self._url = url
        self._session: Session | None = None
        self._stream: Any = None
        self._socket: socket.socket | None = None
        if start.offset > _MAX_OFFSET:
            raise SourceChanged(f"The server cannot send its binary log from {start}: that is beyond 4 GiB.")
        self._open(server_id, heartbeat_seconds)

    def _open(self, server_id: int, heartbeat_seconds: float) -> None:
        try:
            with translated("dump"):
                self._ask(server_id, heartbeat_seconds)
            # The first event names the file that was asked for; or it is the server's refusal.
            self.packet()
        except SqlError as error:
            self.close()
            self._refuse(error.code, error.message.removesuffix(f" ({error.code})"))
        except BaseException:
            self.close()
            raise

    def _ask(self, server_id: int, heartbeat_seconds: float) -> None:
        from pymysqlreplication import BinLogStreamReader

        reader = BinLogStreamReader(
            connection_settings={},
            server_id=server_id,
            log_file=self.start.file,
            log_pos=self.start.offset,
            resume_stream=True,
            blocking=True,
            enable_logging=False,
            report_slave="vreplication",
            slave_heartbeat=heartbeat_seconds,
            pymysql_wrapper=self._connection,
        )
        # Its public way of connecting is to fetch an event, which connects anew whenever the connection is lost.
        reader._BinLogStreamReader__connect_to_stream()

    def _connection(self, **_: object) -> Any:
        """What mysql-replication gets for a connection: one of ours, with our session settings."""
        self._session = connect(self._url, read_timeout=_READ_TIMEOUT_SECONDS)
        # It announces checksums by the server's present setting only; older files may have them all the same.
        self._session.execute_raw("SET @master_binlog_checksum='CRC32', @source_binlog_checksum='CRC32'")
        self.collations = _collations(self._session)
        connection = self._session._connection
        connection._rfile = connection._sock.makefile("rb", _BUFFER_BYTES)
        self._socket, self._stream = connection._sock, connection._rfile
        return connection

    def packets(self) -> Iterator[bytes]:
        """Events as the server sends them, for ever. Raises Transient when the connection ends."""
        while True:
            yield self.packet()

    def packet(self) -> bytes:
        """The next event, without the leading status byte."""
        try:
            body = self._payload()
        except (OSError, ValueError, AttributeError) as error:
            raise Transient(f"The connection that reads the binary log was lost ({type(error).__name__}).") from None
        if body[0] == 0:
            return body[1:]
        return self._complain(body)

    def _payload(self) -> bytes:
        size = int.from_bytes(self._read(4)[:3], "little")
        body = self._read(size)
        if size < _FULL_PACKET:
            return body
        parts = [body]
        while size == _FULL_PACKET:
            size = int.from_bytes(self._read(4)[:3], "little")
            parts.append(self._read(size))
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if len(data) < size:
            raise Transient("The server closed the connection that reads the binary log.")
        return data

    def _complain(self, body: bytes) -> NoReturn:
        if body[0] == 0xFF:
            text = body[9:] if body[3:4] == b"#" else body[3:]
            self._refuse(int.from_bytes(body[1:3], "little"), text.decode("utf-8", "replace"))
        raise Transient("The server ended the binary log dump; it may be shutting down.")

    def _refuse(self, code: int, words: str) -> NoReturn:
        """The server's error as ours. 1236 covers everything that is wrong with the requested place."""
        if code == _PURGED and "same server_" not in words:
            raise SourceChanged(
                f"The server cannot send its binary log from {self.start}: {words} ({code}).",
                cure=_cure_of(words),
            )
        if code in _DENIED:
            raise Terminal(
                f"The server does not let this user read the binary log: {words} ({code}).",
                cure="GRANT REPLICATION SLAVE ON *.* to it.",
            )
        raise Transient(f"The server stopped sending its binary log: {words} ({code}).")

    def close(self) -> None:
        """Shut the socket down first: it wakes up a reader in another thread, whose lock `close` would wait for."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()
        if self._session is not None:
            self._session.abort()


def _cure_of(words: str) -> str:
    if "max_allowed_packet" in words:
        return "Raise max_allowed_packet on the server; then resume the workflow."
    return (
        "Changes in between are lost to this workflow: cancel it and start it again, "
        "with binary logs kept for longer than it runs."
    )


def _collations(session: Session) -> dict[int, str]:
    """Character set by collation id; MariaDB keeps the ids of its newer collations in another table."""
    found: dict[int, str] = {}
    for table in ("collations", "collation_character_set_applicability"):
        with contextlib.suppress(VReplicationError):
            for number, charset in session.rows(f"SELECT id, character_set_name FROM information_schema.{table}"):
                if number is not None and charset is not None:
                    found.setdefault(int(number), str(charset))
    return found
