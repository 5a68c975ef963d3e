"""Several sources as one stream, by the times of their transactions.

Each source is read by a thread of its own. What may not go yet waits: in memory up to so many bytes, behind that in the
source's sorter, and where that is full its log is not read on. (A server ends a dump that is not read, after its
net_write_timeout: the feed then begins again at its progress, and has lost nothing but time.)

A piece goes once no other source can have an earlier one: of every other it is known what comes next, or up to when all
was read. A source that is silent would hold the others, so the feed writes a heartbeat to each of them.

What must stay true: pieces leave in the order of their times, and a source's own in the order of its log; memory is
bounded, whatever the sources hold; what fails in one of them ends the stream.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from vreplication.changes.encoding import decode_items, encode_items
from vreplication.changes.sorter import Entry
from vreplication.errors import Transient
from vreplication.feed.progress import Branch, Filled
from vreplication.feed.reading import Mark, Piece, Reading

log = logging.getLogger(__name__)

MEMORY_BYTES = 64 << 20
"""Of all sources together."""
DISK_BYTES = 8 << 30
"""Of each."""
_TABLE = 1
"""Number of the backlog in the sorter, below those of the transactions that wait there."""
_CHUNK_BYTES = 1 << 20
_WAIT_SECONDS = 0.05
_JOIN_SECONDS = 15.0
AHEAD_MICROS = 60_000_000
"""A time so far ahead of the clock is no matter of clocks that differ a little."""


class Backlog:
    """Pieces of one source, first in, first out: `front`, then what is on disk, then `last`. Not thread-safe."""

    def __init__(self, reading: Reading, memory_bytes: int, disk_bytes: int) -> None:
        self._sorter, self._memory, self._disk = reading.sorter, memory_bytes, disk_bytes
        self._front: deque[Piece] = deque()
        self._last: list[Piece] = []
        self._front_bytes = self._last_bytes = 0
        self._written = self._fetched = 0
        """Chunks, counted from 1 on."""
        self._aside: deque[int] = deque()
        """Bytes of each chunk that is on disk."""
        self.read_to = 0
        """All pieces up to this time are in, or were."""

    def add(self, piece: Piece) -> None:
        # Behind what waits on disk, or for it, nothing goes to the front: a source's pieces leave in its order.
        if not self._aside and not self._last and self._front_bytes < self._memory:
            self._front.append(piece)
            self._front_bytes += piece.nbytes
        else:
            self._last.append(piece)
            self._last_bytes += piece.nbytes
            if self._last_bytes >= _CHUNK_BYTES:
                self._put_aside()
        if piece.mark is not None:
            self.read_to = piece.mark.t

    @property
    def is_full(self) -> bool:
        return bool(self._aside) and sum(self._aside) >= self._disk

    @property
    def head(self) -> Piece | None:
        if not self._front:
            self._take_back()
        return self._front[0] if self._front else None

    def pop(self) -> Piece:
        """The head, which is there."""
        piece = self._front.popleft()
        self._front_bytes -= piece.nbytes
        return piece

    def _put_aside(self) -> None:
        self._written += 1
        data = _encode(self._last)
        self._sorter.add([Entry(_TABLE, self._written, 0, 0, data)])
        self._aside.append(len(data))
        # A chunk's number is its time to the sorter, which gives out nothing above what is resolved.
        self._sorter.resolve(_TABLE, self._written)
        self._last, self._last_bytes = [], 0

    def _take_back(self) -> None:
        if self._aside:
            self._fetched += 1
            for entry in self._sorter.fetch(_TABLE, self._fetched, self._fetched):
                self._front.extend(_decode(entry.data))
            self._sorter.clean(_TABLE, self._fetched + 1)
            self._aside.popleft()
        else:
            self._front.extend(self._last)
            self._last, self._last_bytes = [], 0
        self._front_bytes = sum(piece.nbytes for piece in self._front)


class Merge:
    """As a `Reading`, of several."""

    def __init__(
        self, readings: Sequence[Reading], *, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES
    ) -> None:
        self._readings = readings
        self._backlogs = [Backlog(each, memory_bytes // len(readings), disk_bytes) for each in readings]
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Raises Transient, SourceChanged."""
        for reading in self._readings:
            reading.open()
        for number, reading in enumerate(self._readings):
            thread = threading.Thread(target=self._pump, args=(number, reading), name=f"source-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def pieces(self) -> Iterator[Piece | None]:
        """None: behind a transaction, and several times a second while nothing may go. Raises what ends a source."""
        while True:
            with self._changed:
                piece = self._next()
                if piece is None:
                    self._changed.wait(_WAIT_SECONDS)
                else:
                    # Whoever waits with a full backlog may have room now.
                    self._changed.notify_all()
                error = self._error
            if error is not None:
                raise error
            if piece is not None:
                yield piece
            if piece is None or piece.mark is not None:
                yield None

    def next_head(self, number: int) -> int:
        """Time of what comes next of this source; 0: it is not here yet."""
        with self._changed:
            head = self._backlogs[number].head
            return head.t if head is not None else 0

    def ahead(self, of: int) -> list[Piece]:
        """What waits, with all behind it, for the other sources to come to a time that is behind this one (µs)."""
        with self._changed:
            heads = [each.head for each in self._backlogs]
        return [head for head in heads if head is not None and head.t > of]

    def is_drained(self, seconds: float) -> bool:
        """Nothing may go now, nor for so long; who is woken up looks once."""
        with self._changed:
            if self._ready() is None and seconds > 0:
                self._changed.wait(seconds)
            return self._ready() is None

    def close(self) -> None:
        with self._changed:
            # A thread that waits for room reads no connection, so to close the logs alone would not end it.
            self._is_closed = True
            self._changed.notify_all()
        for reading in self._readings:
            reading.close()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def remove(self) -> None:
        for reading in self._readings:
            reading.remove()

    def _next(self) -> Piece | None:
        found = self._ready()
        return None if found is None else found.pop()

    def _ready(self) -> Backlog | None:
        """Who has the earliest piece, once no source can have an earlier one. Times are of one source each."""
        found: Backlog | None = None
        least, others = 0, None
        for backlog in self._backlogs:
            head = backlog.head
            if head is None:
                others = backlog.read_to if others is None else min(others, backlog.read_to)
            elif found is None or head.t < least:
                found, least = backlog, head.t
        # No two sources have one time, so a source of which all is known up to `least` has nothing that belongs before
        # it.
        if found is None or (others is not None and others < least):
            return None
        return found

    def _pump(self, number: int, reading: Reading) -> None:
        try:
            for piece in reading.pieces():
                if piece is not None:
                    self._put(self._backlogs[number], piece)
            # Without an error the others would wait for this source for ever.
            raise Transient("The log of a source ended.")
        except BaseException as error:  # the main thread ends by it, whatever it is
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _put(self, backlog: Backlog, piece: Piece) -> None:
        with self._changed:
            while backlog.is_full and not self._is_closed:
                self._changed.wait(1.0)
            if self._is_closed:
                raise Transient("The reader of the binary log was closed.")
            backlog.add(piece)
            self._changed.notify_all()


# On disk.

_encoder = msgspec.msgpack.Encoder()
_Written = tuple[int, str, tuple[Branch, ...], Filled | None]
"""A Mark, its end as text."""
_decoder = msgspec.msgpack.Decoder(
    list[tuple[int, int, int, bytes, str, int, int, _Written | None, bool]]  # a Piece, its changes encoded
)


def _encode(pieces: Sequence[Piece]) -> bytes:
    return _encoder.encode([_written(piece) for piece in pieces])


def _written(piece: Piece) -> Piece:
    mark = None if piece.mark is None else piece.mark._replace(end=piece.mark.position)
    return piece._replace(changes=encode_items(piece.changes), mark=mark)  # type: ignore[arg-type]


def _decode(data: bytes) -> list[Piece]:
    return [
        Piece(source, t, seq, decode_items(changes), gtid, commit, nbytes, mark and Mark(*mark), is_snapshot)
        for source, t, seq, changes, gtid, commit, nbytes, mark, is_snapshot in _decoder.decode(data)
    ]
