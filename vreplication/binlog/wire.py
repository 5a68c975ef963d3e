"""The dump connection: asks the server for its log and hands out the packets as they arrive.

What must stay true: a connection is opened once and never silently again; a packet is handed out whole or not at
all; `close` wakes up a reader that waits in another thread, and the socket is gone afterwards. File and offset are
asked for only where `binlog.origin` finds, on this very connection, that they are the place. mysql-replication
connects, registers and asks for the dump (but for one by MySQL's GTIDs, of which it knows no tags); what comes back is
read here.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from vreplication.binlog import origin
from vreplication.binlog.events import Origin, Position
from vreplication.binlog.framing import Event, Framer, Type
from vreplication.binlog.gtids import MariadbGtids, MysqlGtids
from vreplication.binlog.origin import Doubt, LogReplaced
from vreplication.binlog.spool import Spooled
from vreplication.binlog.track import MAX_OFFSET
from vreplication.errors import SourceChanged, Terminal, Transient, VReplicationError
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, SqlError, connect, translated
from vreplication.mysql.url import SourceUrl

log = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20
_CLOSED = "The server closed the connection that reads the binary log."
_FULL_PACKET = 0xFFFFFF
READ_TIMEOUT_SECONDS = 30.0
"""Heartbeats arrive several times a second: half a minute without a byte is a dead connection."""
_DENIED = frozenset({1044, 1045, 1142, 1227, 1370, 3118})
_PURGED = 1236
_FILE_START = 4
_COM_BINLOG_DUMP_GTID = 0x1E
# Flag of a dump: without it MySQL's heartbeats tell an offset by its low four bytes.
_HEARTBEATS_OF_64_BITS = 0x02
_KIND_AT = 4
"""Where an event tells its type: behind the time."""
_HEAD_BYTES = 5
"""Of a packet: its size, its number, and the status."""
# A rotate that is made up comes first, then the description.
_FIRST_PACKETS = 4
_SHOWN = 200
"""Characters of a set of GTIDs in a message."""


class _Counted(io.RawIOBase):
    """What a socket gives, and how many bytes that were: a BufferedReader does not tell whether it holds any."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._socket, self.total = raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._socket.readinto(buffer)
        self.total += count or 0
        return count

    def close(self) -> None:
        self._socket.close()
        super().close()


class Wire:
    """Packets of one dump.

    by_file: begin at the file and offset of `start`, where they are the place; raises Doubt where the server finds that
    they are not. `is_by_file`: that has been done. server: the identity of who sends; began: when, by its clock.
    """

    _raw: _Counted | None = None
    _taken = 0
    """Bytes of what has come that were handed on."""

    def __init__(
        self, url: SourceUrl, start: Position, *, server_id: int, heartbeat_seconds: float, by_file: bool = False
    ) -> None:
        self.start = start
        self.is_by_file = by_file
        self.server = ""
        self.began = 0
        self.collations: dict[int, str] = {}
        self._url = url
        self._session: Session | None = None
        self._stream: Any = None
        self._socket: socket.socket | None = None
        self._first: bytes | Spooled | None = None
        self._open(server_id, heartbeat_seconds)

    def _open(self, server_id: int, heartbeat_seconds: float) -> None:
        try:
            self._begin(server_id, heartbeat_seconds)
        except BaseException as error:
            self.close()
            if self.is_by_file and isinstance(error, SourceChanged) and not isinstance(error, LogReplaced):
                raise Doubt(error.message) from None
            raise

    def _begin(self, server_id: int, heartbeat_seconds: float) -> None:
        try:
            session = self._connected()
            with translated("dump", session._connection):
                self._ask(session, server_id, heartbeat_seconds)
            # The first event names the file; or it is the server's refusal.
            self._first = self.packet()
        except SqlError as error:
            self._refuse(error.code, error.message.removesuffix(f" ({error.code})"))

    def _ask(self, session: Session, server_id: int, heartbeat_seconds: float) -> None:
        from pymysqlreplication import BinLogStreamReader

        self.is_by_file = self.is_by_file and self._can_begin_by_file(session)
        reader = BinLogStreamReader(
            connection_settings={},
            server_id=server_id,
            # The library's default begins at the start of the file, whatever place is given.
            resume_stream=True,
            blocking=True,
            # By default it prints its parameters, among them how to log in.
            enable_logging=False,
            # By this name our own readers are told from replicas (mysql/load.py).
            report_slave="vreplication",
            slave_heartbeat=heartbeat_seconds,
            pymysql_wrapper=lambda **_: self._take_over(),
            **self._asked_place(),
        )
        if isinstance(self.start.gtids, MysqlGtids):
            self._ask_by_gtids(reader, server_id, heartbeat_seconds, self.start.gtids, session)
        else:
            # Its public way of connecting is to fetch an event, which connects anew whenever the connection is lost.
            reader._BinLogStreamReader__connect_to_stream()
        if self._socket is not None:
            # PyMySQL's last act was to write.
            self._socket.settimeout(READ_TIMEOUT_SECONDS)
        # What was answered so far has been read; from here on only events come.
        self._taken = self._raw.total if self._raw else 0

    def _asked_place(self) -> dict[str, Any]:
        """A dump by file and offset can ask for no place beyond 4 GiB: then the reader leaves out what is before it."""
        if isinstance(self.start.gtids, MariadbGtids) and not self.is_by_file:
            return {"is_mariadb": True, "auto_position": str(self.start.gtids)}
        offset = self.start.offset if self.start.offset <= MAX_OFFSET else _FILE_START
        return {"log_file": self.start.file, "log_pos": offset}

    def _ask_by_gtids(
        self, reader: Any, server_id: int, heartbeat_seconds: float, gtids: MysqlGtids, session: Session
    ) -> None:
        """From file and offset on, too, if they are given: the server leaves out what is in the set either way."""
        # The library knows no tags, and the flag that it sends has come to mean that tagged transactions are left out.
        connection = reader._stream_connection = self._take_over()
        nanoseconds = int(heartbeat_seconds * 1e9)
        # MySQL takes either name by now, MariaDB the first alone.
        session.execute_raw(f"SET @master_heartbeat_period={nanoseconds}, @source_heartbeat_period={nanoseconds}")
        # So that whoever draws a server id sees that ours is taken (F16).
        reader._register_slave()
        file, offset = (self.start.file, self.start.offset) if self.is_by_file else ("", _FILE_START)
        connection._write_bytes(_gtid_dump(server_id, gtids, file, offset))
        # Written past PyMySQL, which counts packets and refuses an answer of another number.
        connection._next_seq_id = 1

    def _can_begin_by_file(self, session: Session) -> bool:
        """MariaDB takes an offset of four bytes."""
        is_far = isinstance(self.start.gtids, MariadbGtids) and self.start.offset > MAX_OFFSET
        return not is_far and origin.is_here(session, self.start)

    def _connected(self) -> Session:
        """One of our connections, with our session settings."""
        # A log is of a server: the schema of the URL may be dropped meanwhile.
        session = self._session = connect(self._url, use_database=False, read_timeout=READ_TIMEOUT_SECONDS)
        # mysql-replication announces checksums by the server's present setting only; older files may have them.
        session.execute_raw("SET @master_binlog_checksum='CRC32', @source_binlog_checksum='CRC32'")
        self.collations = _collations(session)
        self.server = identity_of(session)
        self.began = int(session.value("SELECT UNIX_TIMESTAMP()"))
        return session

    def _take_over(self) -> Any:
        """What mysql-replication gets for a connection."""
        assert self._session is not None
        connection = self._session._connection
        self._raw = _Counted(connection._sock.makefile("rb", 0))
        connection._rfile = io.BufferedReader(self._raw, _BUFFER_BYTES)
        self._socket, self._stream = connection._sock, connection._rfile
        return connection

    def packets(self) -> Iterator[bytes | Spooled]:
        """Events as the server sends them, for ever. Raises Transient when the connection ends."""
        if self._first is not None:
            yield self._first
        with self._lost():
            while True:
                yield self._event()

    def packet(self) -> bytes | Spooled:
        """The next event, without the leading status byte."""
        with self._lost():
            return self._event()

    @staticmethod
    @contextlib.contextmanager
    def _lost() -> Iterator[None]:
        try:
            yield
        # What a reader meets when `close` was called in another thread: a file that is closed, or a socket that is
        # gone.
        except (OSError, ValueError, AttributeError) as error:
            raise Transient(f"The connection that reads the binary log was lost ({type(error).__name__}).") from None

    def _event(self) -> bytes | Spooled:
        """Asked for each event, so the first packet is read without a further call."""
        read = self._stream.read
        # With the status, so that what is read next is the event itself and need not be cut out.
        head = read(_HEAD_BYTES)
        size = int.from_bytes(head[:3], "little")
        # Of size 0 is what the end of the stream reads as, too.
        event: bytes = read(size - 1) if size else b""
        if len(head) < _HEAD_BYTES or len(event) != size - 1:
            raise Transient(_CLOSED)
        self._taken += 4 + size
        if head[4]:
            self._complain(head[4:] + event)
        return event if size < _FULL_PACKET else self._long(event)

    def _long(self, first: bytes) -> bytes | Spooled:
        """An event of several packets."""
        # A compressed transaction may have a gigabyte and is checksummed as a whole, so it cannot be used before all is
        # there.
        return self._spooled(first) if first[_KIND_AT] == Type.TRANSACTION_PAYLOAD else self._joined(first)

    def _piece(self) -> tuple[bytes, bool]:
        """One packet of the protocol; a full one is followed by another."""
        size = int.from_bytes(self._read(4)[:3], "little")
        return self._read(size), size < _FULL_PACKET

    def _joined(self, first: bytes) -> bytes:
        return b"".join((first, *self._rest()))

    def _spooled(self, first: bytes) -> Spooled:
        made = Spooled()
        made.add(first)
        for piece in self._rest():
            made.add(piece)
        return made

    def _rest(self) -> Iterator[bytes]:
        is_last = False
        while not is_last:
            piece, is_last = self._piece()
            yield piece

    def _read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if len(data) < size:
            raise Transient(_CLOSED)
        self._taken += size
        return data

    def is_drained(self, seconds: float) -> bool:
        """All that has come was handed on, and nothing more comes for so long. Raises Transient."""
        if self._socket is None or self._raw is None or self._raw.total > self._taken:
            return False
        # TLS may hold bytes that are decrypted and not read, of which poll sees nothing.
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        try:
            # Not `select`, which takes no file descriptor above 1023.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(1000 * seconds)
        except (OSError, ValueError) as error:
            raise Transient(f"The connection that reads the binary log was lost ({type(error).__name__}).") from None

    def _complain(self, body: bytes) -> NoReturn:
        if body[0] == 0xFF:
            text = body[9:] if body[3:4] == b"#" else body[3:]
            self._refuse(int.from_bytes(body[1:3], "little"), text.decode("utf-8", "replace"))
        raise Transient("The server ended the binary log dump; it may be shutting down.")

    def _refuse(self, code: int, words: str) -> NoReturn:
        """The server's error as ours. 1236 covers everything that is wrong with the requested place."""
        # Two readers of one server_id get this code, too: that ends the one dump and is no place that is gone.
        if code == _PURGED and "same server_" not in words:
            raise SourceChanged(
                f"The server cannot send its binary log from {self._named_start()}: {words} ({code}).",
                cure=_cure_of(words),
            )
        if code in _DENIED:
            raise Terminal(
                f"The server does not let this user read the binary log: {words} ({code}).",
                cure="GRANT REPLICATION SLAVE ON *.* to it.",
            )
        raise Transient(f"The server stopped sending its binary log: {words} ({code}).")

    def _named_start(self) -> str:
        gtids = str(self.start.gtids or "")
        return f"behind {gtids[:_SHOWN]}{'…' * (len(gtids) > _SHOWN)}" if gtids else str(self.start)

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


def origin_of(url: SourceUrl, place: Position, server_id: int) -> Origin | None:
    """Whose file that is: its first event is sent before what is asked for.

    None where it cannot be read, or was begun this second: one that is begun anew within it would look the same.
    """
    try:
        # Without GTIDs, so that it is this very file whose beginning is sent.
        wire = Wire(url, replace(place, gtids=None), server_id=server_id, heartbeat_seconds=1.0)
    except VReplicationError as error:
        # A place without an origin costs dumps by GTID, and nothing else.
        log.warning("the beginning of the binary log was not read: %s", error)
        return None
    try:
        first = _description(wire)
        is_told_apart = first and first.timestamp < wire.began
        return Origin(wire.server, first.timestamp, first.server_id) if first and is_told_apart else None
    finally:
        wire.close()


def _description(wire: Wire) -> Event | None:
    framer = Framer()
    with contextlib.suppress(VReplicationError):
        for packet in itertools.islice(wire.packets(), _FIRST_PACKETS):
            event = framer.event(packet)
            if event.type == Type.FORMAT_DESCRIPTION:
                return event
    return None


def _gtid_dump(server_id: int, gtids: MysqlGtids, file: str, offset: int) -> bytes:
    """The command with its packet's head. Where no file is named, the server looks for the one to begin with."""
    data, name = gtids.encoded(), file.encode()
    head = struct.pack("<BHII", _COM_BINLOG_DUMP_GTID, _HEARTBEATS_OF_64_BITS, server_id, len(name)) + name
    head += struct.pack("<QI", offset, len(data))
    return struct.pack("<I", len(head) + len(data)) + head + data


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
        # MySQL has a table of the second name, too, but without ids.
        with contextlib.suppress(VReplicationError):
            for number, charset in session.rows(f"SELECT id, character_set_name FROM information_schema.{table}"):
                if number is not None and charset is not None:
                    found.setdefault(int(number), str(charset))
    return found
