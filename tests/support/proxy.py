"""A TCP proxy before a database server, which cuts chosen connections at chosen statements.

A connection goes through unencrypted (`url`), so the proxy sees each statement. A `Cut` says which statement it waits
for, what happens to the connection there, and whether the server still gets the statement:

- "reset": both ends see the connection end at once.
- "stall": both ends stay connected and nothing passes any more, in either direction.
- "half-open": our end sees the connection end; the server does not, and keeps what the connection holds.

What must stay true: a cut happens at its statement and nowhere else, and never more often than it says; other
connections are not touched; `close` ends every thread.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from typing import Literal

from vreplication.mysql.url import SourceUrl

Manner = Literal["reset", "stall", "half-open"]
MANNERS: tuple[Manner, ...] = ("reset", "stall", "half-open")
_TICK_SECONDS = 0.05
_DUMP = rb"[\x12\x1e]"
"""COM_BINLOG_DUMP, and the one by GTID."""
DUMP = rb"\A.{4}" + _DUMP


@dataclass(slots=True, kw_only=True)
class Cut:
    """pattern: searched in what the client sends. is_sent: the server gets the statement, its answer is lost."""

    pattern: bytes
    manner: Manner
    is_sent: bool = False
    times: int = 1
    done: int = 0
    ids: list[int] = field(default_factory=list)
    """The server's ids of the connections that were cut."""
    reached: threading.Event = field(default_factory=threading.Event)

    def meets(self, data: bytes) -> bool:
        return self.done < self.times and re.search(self.pattern, data, re.DOTALL) is not None


class Proxy:
    """Listens on a port of its own while the block runs."""

    def __init__(self, url: SourceUrl) -> None:
        self._server = url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []
        self._links: list[_Link] = []
        self._is_closing = self._is_away = False
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    @property
    def url(self) -> SourceUrl:
        """The same login through the proxy, in clear text."""
        port = int(self._listener.getsockname()[1])
        return replace(self._server, host="127.0.0.1", port=port, tls=(("ssl_disabled", "true"),))

    def cut(self, pattern: bytes, manner: Manner, *, is_sent: bool = False, times: int = 1) -> Cut:
        """The next `times` statements that match are cut."""
        made = Cut(pattern=pattern, manner=manner, is_sent=is_sent, times=times)
        with self._lock:
            self._cuts.append(made)
        return made

    def cut_all(self, manner: Manner) -> None:
        """Cut every connection that is open, wherever it stands."""
        for link in list(self._links):
            link.manner = manner

    def go_away(self) -> None:
        """Nothing passes any more, and nobody is let in."""
        self._is_away = True
        self.cut_all("stall")

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for link in self._links:
            link.end()
        for link in self._links:
            link.thread.join(5)

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open(client)

    def _open(self, client: socket.socket) -> None:
        if self._is_away:
            client.close()
            return
        try:
            server = socket.create_connection((self._server.host, self._server.port), 5)
        except OSError:
            client.close()
            return
        self._links = [link for link in self._links if link.thread.is_alive()]
        self._links.append(_Link(self, client, server))

    def _due(self, data: bytes, connection_id: int) -> Cut | None:
        """The cut that this statement meets."""
        with self._lock:
            for cut in self._cuts:
                if cut.meets(data):
                    cut.done += 1
                    cut.ids.append(connection_id)
                    return cut
        return None


class _Link:
    """One connection, carried by a thread."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self.id = 0
        self.manner: Manner | None = None
        self._is_over = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.thread = threading.Thread(target=self._run, name="proxy-link", daemon=True)
        self.thread.start()

    def end(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        with self._client, self._server, selectors.DefaultSelector() as selector:
            selector.register(self._client, selectors.EVENT_READ, (self._client, self._server))
            selector.register(self._server, selectors.EVENT_READ, (self._server, self._client))
            with contextlib.suppress(OSError):
                while not self._is_over and self.manner is None and self._carry(selector):
                    pass
            if self.manner is not None:
                self._cut(self.manner)

    def _carry(self, selector: selectors.BaseSelector) -> bool:
        """Hand on what there is. False: the connection is over."""
        for key, _ in selector.select(_TICK_SECONDS):
            source, sink = key.data
            data = source.recv(1 << 16) if self.manner is None else b""
            if not data:
                return False
            if source is self._server:
                self.id = self.id or _connection_id(data)
                sink.sendall(data)
            else:
                self._send(data)
        return True

    def _send(self, data: bytes) -> None:
        cut = self._proxy._due(data, self.id)
        if cut is None or cut.is_sent:
            self._server.sendall(data)
        if cut is not None and cut.is_sent:
            # The answer has come this far, so the server has done it.
            self._server.recv(1, socket.MSG_PEEK)
        if cut is not None:
            self.manner = cut.manner
            cut.reached.set()

    def _cut(self, manner: Manner) -> None:
        if manner in ("reset", "half-open"):
            self._reset(self._client)
        if manner == "reset":
            self._reset(self._server)
        # Otherwise open and unread until the proxy goes.
        waited = threading.Event()
        while manner != "reset" and not self._is_over:
            waited.wait(_TICK_SECONDS)

    @staticmethod
    def _reset(end: socket.socket) -> None:
        """Close with RST."""
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()


def _connection_id(greeting: bytes) -> int:
    """Of the server's first packet: header, protocol, version, then the id."""
    at = greeting.find(b"\0", 5) + 1
    return int.from_bytes(greeting[at : at + 4], "little") if at else 0
