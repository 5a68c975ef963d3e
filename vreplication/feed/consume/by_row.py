"""Mode row: each partition for itself, wherever it is read.

Kafka spreads the partitions over the processes of the group. The rows of a partition up to its Resolved are applied in
one transaction, or in several where they are many: readers see each row as it was or as it became, never a transaction.

What must stay true: as in reading.py; a partition that two processes take for theirs is written by one of them, for the
other's transaction begins with an offset that has changed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from vreplication.errors import Transient
from vreplication.feed.address import Address
from vreplication.feed.consume.listener import Listener
from vreplication.feed.consume.reading import SAVE_SECONDS, Reading
from vreplication.feed.consume.waiting import Waiting, some
from vreplication.mysql.session import LockWait
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.state import feed_asked, feed_offsets
from vreplication.state.feed_offsets import Offset

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1


class ByRow(Reading):
    mode = "row"
    aligns = True

    def __init__(self, address: Address, url: SourceUrl, group: str, notify: Callable[[str], None]) -> None:
        super().__init__(address, url, group, notify)
        self._numbers: list[int] = []
        self._is_new = False
        self._saved_at: dict[int, float] = {}

    def open(self) -> None:
        super().open()
        self.client.subscribe(self._assigned)

    def _assigned(self, numbers: list[int]) -> None:
        """Inside of reading: what is read by then belongs to nobody."""
        self._numbers, self._is_new = numbers, True

    def begin_again(self) -> None:
        self.begin(self._numbers)

    def apply(self) -> None:
        # Not inside of the callback: what that same read returns still goes to the former listeners, and is forgotten
        # with them.
        if self._is_new:
            self._is_new = False
            self.begin(self._numbers)
        for listener in self.listeners.values():
            self._apply(listener)

    def _apply(self, listener: Listener) -> None:
        while rows := some(listener.queue.until(listener.limit)):
            self.check()
            head = listener.queue.head
            # While rows of its time still wait the Resolved may not be stored: a crash would take them for applied.
            is_part = head is not None and head.t <= listener.limit
            self._commit(listener, rows, listener.part_way() if is_part else listener.offset(listener.reached))
        # At a stop at once: others go by what is saved, and wait for it.
        if listener.stop or time.monotonic() - self._saved_at.get(listener.number, 0.0) >= SAVE_SECONDS:
            to = listener.offset(listener.reached)
            if to != listener.stored:
                self._commit(listener, [], to)

    def _commit(self, listener: Listener, rows: list[Waiting], to: Offset) -> None:
        if rows:
            reach("consume.before_apply")
        for _ in range(_ATTEMPTS):
            self.check()
            try:
                self._write(listener, rows, to)
            except LockWait:
                # Not at once: whom it met has to get on, or they meet again.
                self.wait(random.uniform(0.0, _PAUSE_SECONDS))
                continue
            listener.stored = to
            self._saved_at[listener.number] = time.monotonic()
            if rows:
                reach("consume.after_commit")
            return
        raise Transient(f"A transaction of the consumer met a lock wait or deadlock {_ATTEMPTS} times.")

    def _write(self, listener: Listener, rows: list[Waiting], to: Offset) -> None:
        with self.session.transaction():
            # D1: locked before any row is written: who has lost the partition finds another offset here and writes
            # nothing.
            feed_offsets.claim(self.session, self.key, [listener.stored])
            self.target.write(rows)
            # With the rows: those that were asked, and of which nothing is noted, would let a RENAME pass (misled.py).
            for asked in self.asking.taken():
                feed_asked.note(self.session, self.key, listener.number, asked)
            feed_offsets.move(self.session, self.key, listener.stored, to)
            if rows:
                reach("consume.before_commit")
