"""A TCP proxy before a broker, by which one request to end a transaction comes late: during the next transaction.

The broker has to name the proxy as its own address (`advertised`), so that every client comes through it. Of a request
the header is read alone: size, api_key, version, number. An EndTxn that is held keeps its connection to the broker; the
client's end is either cut at once ("reset"), so that it asks again on another one, or left without an answer ("stall"),
so that its time runs out first. Either way it asks again, and that one is let through.

What must stay true: nothing but that one request is changed, left out or put elsewhere; it comes when a request of the
wanted kind was handed on that belongs to a transaction behind its own; `close` ends every thread.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Literal

PRODUCE, ADD_PARTITIONS, END_TXN = 0, 24, 26
Manner = Literal["reset", "stall"]
_TICK_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class Late:
    """An EndTxn. behind: kinds of requests that have to pass, in this order, before it comes. error: of the answer."""

    manner: Manner
    behind: list[int]
    error: int | None = None
    came: threading.Event = field(default_factory=threading.Event)
    _frame: bytes = b""
    _link: _Link | None = None

    @property
    def is_held(self) -> bool:
        return self._link is not None

    def take(self, link: _Link, frame: bytes) -> None:
        self._link, self._frame = link, frame

    def note(self, kind: int) -> None:
        """A request has passed."""
        if not self.came.is_set() and self._link is not None and kind == self.behind[0]:
            self.behind.pop(0)
            if not self.behind:
                self.error = self._link.ask(self._frame)
                self.came.set()


class KafkaProxy:
    """Listens on a port of its own while the block runs. port: the broker's, known when that one has started."""

    def __init__(self) -> None:
        self.port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._late: Late | None = None
        self._links: list[_Link] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._accept, name="kafka-proxy", daemon=True)

    @property
    def advertised(self) -> str:
        """As the broker's setting advertised.listeners."""
        return f"PLAINTEXT://127.0.0.1:{self._listener.getsockname()[1]}"

    def hold_end(self, manner: Manner, produced: int) -> Late:
        """The next EndTxn, until the next transaction has sent messages so many times."""
        made = Late(manner=manner, behind=[END_TXN, ADD_PARTITIONS, *[PRODUCE] * produced])
        with self._lock:
            self._late = made
        return made

    def __enter__(self) -> KafkaProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for link in self._links:
            link.is_over = True
        for link in self._links:
            link.join(5)

    def _accept(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(OSError):
                self._open(self._listener.accept()[0])

    def _open(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(("127.0.0.1", self.port), 5)
        except OSError:
            client.close()
            return
        self._links.append(_Link(self, client, broker))
        self._links[-1].start()

    def _holds(self, link: _Link, frame: bytes) -> Manner | None:
        with self._lock:
            late = self._late
            if late is None or late.is_held or _kind(frame) != END_TXN:
                return None
            late.take(link, frame)
            return late.manner

    def _passed(self, frame: bytes) -> None:
        with self._lock:
            if self._late is not None:
                self._late.note(_kind(frame))


class _Link(threading.Thread):
    """One connection."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket) -> None:
        super().__init__(name="kafka-proxy-link", daemon=True)
        self._proxy, self._client, self._broker = proxy, client, broker
        self._unread = b""
        self._manner: Manner | None = None
        self.is_over = False
        for end in (client, broker):
            end.settimeout(30)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        with self._client, self._broker, selectors.DefaultSelector() as selector:
            selector.register(self._client, selectors.EVENT_READ)
            selector.register(self._broker, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                while not self.is_over and self._manner is None and self._carry(selector):
                    pass
            if self._manner == "reset":
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._client.close()
            waited = threading.Event()
            while self._manner is not None and not self.is_over:
                waited.wait(_TICK_SECONDS)

    def ask(self, frame: bytes) -> int:
        """Hand it on at last; the error in its answer. What was answered before is passed over."""
        self._broker.sendall(frame)
        with self._broker.makefile("rb") as answers:
            while True:
                (size,) = struct.unpack(">i", answers.read(4))
                answer = answers.read(size)
                if answer[:4] == frame[8:12]:
                    # Behind the number: how long to wait, in ms.
                    return int.from_bytes(answer[8:10], "big", signed=True)

    def _carry(self, selector: selectors.BaseSelector) -> bool:
        """Hand on what there is. False: the connection is over."""
        for key, _ in selector.select(_TICK_SECONDS):
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not data:
                return False
            if key.fileobj is self._broker:
                self._client.sendall(data)
            elif not self._send(data):
                return False
        return True

    def _send(self, data: bytes) -> bool:
        self._unread += data
        while len(self._unread) >= 4 and len(self._unread) >= (end := 4 + int.from_bytes(self._unread[:4], "big")):
            frame, self._unread = self._unread[:end], self._unread[end:]
            self._manner = self._proxy._holds(self, frame)
            if self._manner is not None:
                return False
            self._broker.sendall(frame)
            self._proxy._passed(frame)
        return True


def _kind(frame: bytes) -> int:
    return int.from_bytes(frame[4:6], "big")
