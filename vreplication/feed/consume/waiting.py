"""Rows of a partition that have been read and may not be applied yet: first in, first out.

They are there in the order of the log, (t, seq), for so they stand in the partition. What is more than memory may hold
goes into files without a name, which are gone when the process is: a transaction of five million rows waits there for
its Resolved.

What must stay true: rows leave as they came; a full disk is an error, never a row less.
"""

from __future__ import annotations

import contextlib
import heapq
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

import msgspec

from vreplication.errors import Terminal

MEMORY_BYTES = 64 << 20
MOST_ROWS, MOST_BYTES = 5_000, 16 << 20
"""Of one batch; and of one transaction, where that may be cut."""
_CHUNK_BYTES = 2 << 20
# A file's room is given back only as a whole, so what waits is spread over several.
_FILE_BYTES = 256 << 20
_ROW_BYTES = 400
"""What a row takes beside its key and its value."""


class Waiting(NamedTuple):
    """A row as it came. is_write: it leaves something behind; offset: of its first part; n_before: the last n then."""

    t: int
    seq: int
    is_write: bool
    offset: int
    n_before: int
    key: bytes
    value: bytes

    @property
    def order(self) -> tuple[int, int, bool]:
        """Of one row that changes its partition the old image goes first."""
        return self[:3]


class Memory:
    """What all queues of a process have in memory together."""

    def __init__(self, most: int = MEMORY_BYTES) -> None:
        self.most, self.nbytes = most, 0
        self._file: IO[bytes] | None = None
        self._written = 0

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self.most

    def put_aside(self, data: bytes) -> _Aside:
        """A file is closed when nothing in it is remembered any more."""
        with _told():
            if self._file is None or self._written >= _FILE_BYTES:
                self._file, self._written = tempfile.TemporaryFile(prefix="vreplication-feed-"), 0  # noqa: SIM115
            # A read may have moved the file's place since.
            self._file.seek(self._written)
            self._file.write(data)
            # Else a full disk would show only when something else is written, or read.
            self._file.flush()
        self._written += len(data)
        return _Aside(file=self._file, at=self._written - len(data), size=len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aside:
    file: IO[bytes]
    at: int
    size: int

    def read(self) -> bytes:
        with _told():
            self.file.seek(self.at)
            data = self.file.read(self.size)
        if len(data) != self.size:
            raise Terminal("A row that was put aside on disk is not there any more.")
        return data


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Waiting]).decode


class Queue:
    """front: in memory; then what is aside, by chunks; then the last ones."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._front: deque[Waiting] = deque()
        self._aside: deque[_Aside] = deque()
        self._last: list[Waiting] = []
        self._last_bytes = 0

    def add(self, row: Waiting) -> None:
        size = _size(row)
        self._memory.nbytes += size
        # Behind rows that are aside none goes in front again, though there be room: they leave as they came.
        if not self._last and not self._aside and not self._memory.is_full:
            self._front.append(row)
            return
        self._last.append(row)
        self._last_bytes += size
        if self._last_bytes >= _CHUNK_BYTES:
            self._put_aside()

    def _put_aside(self) -> None:
        self._aside.append(self._memory.put_aside(_encode(self._last)))
        self._memory.nbytes -= self._last_bytes
        self._last, self._last_bytes = [], 0

    @property
    def head(self) -> Waiting | None:
        if not self._front and self._aside:
            self._front.extend(_decode(self._aside.popleft().read()))
            self._memory.nbytes += sum(map(_size, self._front))
        elif not self._front and self._last:
            self._front.extend(self._last)
            self._last, self._last_bytes = [], 0
        return self._front[0] if self._front else None

    def pop(self) -> Waiting:
        """The head, which is there."""
        row = self._front.popleft()
        self._memory.nbytes -= _size(row)
        return row

    def until(self, upto: float) -> Iterator[Waiting]:
        """Rows up to that time. A row leaves when it is given, not before."""
        while (head := self.head) is not None and head.t <= upto:
            yield self.pop()

    def clear(self) -> None:
        self._memory.nbytes -= self._last_bytes + sum(map(_size, self._front))
        self._front.clear()
        self._aside.clear()
        self._last, self._last_bytes = [], 0


def merged(queues: Iterable[Queue], upto: int, most: int) -> Iterator[Waiting]:
    """Rows of all of them up to that time, in the order of the log: so many, and the rest of the last transaction.

    A row leaves its queue when it is given, not before.
    """
    queues = list(queues)
    heap = [(head.order, number) for number, queue in enumerate(queues) if (head := queue.head) and head.t <= upto]
    heapq.heapify(heap)
    count, last_t = 0, 0
    # D2: cut only between two transactions of the source, whose times differ; within one the target would show half of
    # it.
    while heap and (count < most or heap[0][0][0] == last_t):
        row = queues[heap[0][1]].pop()
        _advance(heap, queues, upto)
        count, last_t = count + 1, row.t
        yield row


def _advance(heap: list[tuple[tuple[int, int, bool], int]], queues: list[Queue], upto: int) -> None:
    """The first one's queue has given its head."""
    number = heap[0][1]
    head = queues[number].head
    if head is not None and head.t <= upto:
        heapq.heapreplace(heap, (head.order, number))
    else:
        heapq.heappop(heap)


def some(rows: Iterator[Waiting]) -> list[Waiting]:
    """As many of the next ones as are written together. None: there are no more."""
    found: list[Waiting] = []
    nbytes = 0
    while len(found) < MOST_ROWS and nbytes < MOST_BYTES and (row := next(rows, None)) is not None:
        found.append(row)
        nbytes += _size(row)
    return found


def _size(row: Waiting) -> int:
    return len(row.key) + len(row.value) + _ROW_BYTES


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Terminal(
            f"Rows that wait cannot be put aside in {tempfile.gettempdir()}: {error.strerror}.",
            cure="Make room there, or set TMPDIR; the consumer goes on where it stands.",
        ) from None
