"""A queue between the thread that reads the log and the one that applies it, bounded by bytes.

What must stay true: memory stays bounded whatever the log brings (an item larger than the whole budget still passes,
alone); an error of the reader reaches the other end behind everything that was read before it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The other end has gone."""


class Channel(Generic[T]):
    def __init__(self, budget_bytes: int = 64 << 20) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._budget = budget_bytes
        self._nbytes = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, item: T, nbytes: int) -> None:
        """Wait for room, then add. Raises Closed when nobody reads any more."""
        with self._changed:
            while self._nbytes + nbytes > self._budget and self._items and not self._closed:
                self._changed.wait(1.0)
            if self._closed:
                raise Closed
            self._items.append((item, nbytes))
            self._nbytes += nbytes
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The reader has ended with this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, timeout_seconds: float) -> list[T]:
        """Everything that is there, after waiting for something; [] after the time. Raises the reader's error."""
        with self._changed:
            if not self._items and self._error is None and not self._closed:
                self._changed.wait(timeout_seconds)
            items = [item for item, _ in self._items]
            self._items.clear()
            self._nbytes = 0
            self._changed.notify_all()
            if not items and self._error is not None:
                raise self._error
        return items

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
