"""A queue of groups between the thread that reads the log and the one that applies it, bounded by bytes.

Past its budget it goes on in the sorter, in blocks of groups, so that reading keeps up with the source while a giant
transaction is being applied; past a second limit the reader waits.

What must stay true: groups leave in the order in which they came; memory stays bounded whatever the log brings (one
larger than the whole budget still passes, alone); an error of the reader reaches the other end behind everything that
was read before it.
"""

from __future__ import annotations

import threading
from collections import deque

from vreplication.binlog.events import Group
from vreplication.changes.encoding import decode_groups, encode_groups
from vreplication.changes.sorter import DiskSorter, Entry
from vreplication.settings import CHANNEL_BUDGET_BYTES

# Of several that follow one reader one with more than that is let go, and comes again by a dump of its own.
DISK_BYTES = 4 << 30
_BLOCK_BYTES = 4 << 20
_TABLE = 0
"""The number under which the sorter has the blocks."""


class Closed(Exception):
    """The other end has gone."""


class Channel:
    """sorter: where groups past the budget wait; None: the reader waits instead."""

    def __init__(
        self,
        budget_bytes: int = CHANNEL_BUDGET_BYTES,
        *,
        sorter: DiskSorter | None = None,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._head: deque[Group] = deque()
        self._tail: list[Group] = []
        self._blocks: deque[int] = deque()
        """Bytes of each block that waits on disk."""
        self._written = self._read = 0
        self._budget, self._disk_bytes, self._sorter = budget_bytes, disk_bytes, sorter
        self._head_bytes = self._tail_bytes = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def disk_bytes(self) -> int:
        """What waits on disk."""
        return sum(self._blocks)

    def put(self, item: Group, nbytes: int) -> None:
        """Wait for room, then add. Raises Closed when nobody reads any more, Terminal when the disk is full."""
        with self._changed:
            while not self._has_room(nbytes) and not self._closed:
                self._changed.wait(1.0)
            if self._closed:
                raise Closed
            if self._is_behind or not self._fits(nbytes):
                self._put_aside(item, nbytes)
            else:
                self._head.append(item)
                self._head_bytes += nbytes
            self._changed.notify_all()

    def has_room(self, nbytes: int) -> bool:
        """False while `put` would wait."""
        with self._changed:
            return self._has_room(nbytes)

    @property
    def _is_behind(self) -> bool:
        """What is to come stands behind something that is not in the head."""
        return bool(self._blocks or self._tail)

    def _fits(self, nbytes: int) -> bool:
        return not self._head or self._head_bytes + nbytes <= self._budget

    def _has_room(self, nbytes: int) -> bool:
        return self._fits(nbytes) if self._sorter is None else self.disk_bytes < self._disk_bytes

    def _put_aside(self, item: Group, nbytes: int) -> None:
        self._tail.append(item)
        self._tail_bytes += nbytes
        if self._tail_bytes < _BLOCK_BYTES:
            return
        assert self._sorter is not None
        self._sorter.add([Entry(_TABLE, self._written, 0, 0, encode_groups(self._tail))])
        self._sorter.resolve(_TABLE, self._written)
        self._written += 1
        self._blocks.append(self._tail_bytes)
        self._tail, self._tail_bytes = [], 0

    def fail(self, error: BaseException) -> None:
        """The reader has ended with this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, timeout_seconds: float) -> list[Group]:
        """What is there, after waiting for something; [] after the time. Raises the reader's error."""
        with self._changed:
            if not (self._head or self._is_behind or self._error or self._closed):
                self._changed.wait(timeout_seconds)
            items = list(self._head) or self._following()
            self._head.clear()
            self._head_bytes = 0
            self._changed.notify_all()
            if not items and self._error is not None:
                raise self._error
        return items

    def _following(self) -> list[Group]:
        """The oldest block, or what has not become one yet."""
        if not self._blocks:
            items, self._tail, self._tail_bytes = self._tail, [], 0
            return items
        assert self._sorter is not None
        [entry] = self._sorter.fetch(_TABLE, self._read, self._read)
        self._read += 1
        # Before it is applied: a restart reads the log again from the checkpoint, and nothing of the queue.
        self._sorter.clean(_TABLE, self._read)
        self._blocks.popleft()
        return decode_groups(entry.data)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
