"""Mode transaction: the target is at any time what the source has been.

One process reads all partitions; the others stand by until its connection is gone. Rows of all partitions up to the
least Resolved are applied in the order of the log, a whole number of the source's transactions in each of the target's,
however large one is: what does not fit into memory waits in files (waiting.py), and leaves them row by row.

What must stay true: as in reading.py; the named lock belongs to the connection that writes, so who has lost it cannot
commit; offsets of all partitions and the watermark change with the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vreplication.feed.address import Address
from vreplication.feed.consume.definitions import lock_name
from vreplication.feed.consume.listener import Listener
from vreplication.feed.consume.reading import SAVE_SECONDS, Reading
from vreplication.feed.consume.waiting import MOST_ROWS, merged, some
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.state import feed_offsets
from vreplication.state.feed_offsets import State

_STAND_BY_SECONDS = 1


class ByTransaction(Reading):
    mode = "transaction"

    def __init__(self, address: Address, url: SourceUrl, group: str, notify: Callable[[str], None]) -> None:
        super().__init__(address, url, group, notify)
        self._is_first = False
        self._watermark = 0
        self._saved_at = 0.0

    def step(self) -> None:
        if self._is_first:
            super().step()
        # In short waits, so that who stands by ends when it is told to, and shows signs of life.
        elif self.session.value("SELECT GET_LOCK(%s,%s)", (lock_name(self.key, "read"), _STAND_BY_SECONDS)):
            self._is_first = True
            # Behind the lock: until then the former holder may have moved the offsets.
            self.begin()

    def begin_again(self) -> None:
        self.begin()

    def begun(self, state: State) -> None:
        self._watermark = state.group.watermark

    @property
    def _least(self) -> int:
        """All rows of all partitions up to this time are here."""
        return min(listener.reached for listener in self.listeners.values())

    def has_enough(self, listener: Listener) -> bool:
        # More of it would only go to disk: the partition that is behind all others has to come first.
        return self.memory.is_full and listener.reached > self._least

    def apply(self) -> None:
        least = self._least
        while self._has_rows(least):
            self.check()
            self._commit(least, has_rows=True)
        is_due = time.monotonic() - self._saved_at >= SAVE_SECONDS
        if is_due or any(listener.stop for listener in self.listeners.values()):
            self._save(least)

    def _has_rows(self, upto: int) -> bool:
        return any((head := each.queue.head) is not None and head.t <= upto for each in self.listeners.values())

    def _save(self, least: int) -> None:
        """A place to which no row has led."""
        if any(each.offset(least) != each.stored for each in self.listeners.values()):
            self._commit(least, has_rows=False)

    def _commit(self, least: int, *, has_rows: bool) -> None:
        if has_rows:
            reach("consume.before_apply")
        with self.session.transaction():
            feed_offsets.claim(self.session, self.key, [each.stored for each in self.listeners.values()])
            last = self._write(least)
            # While rows of below still wait the watermark is that of the last one applied: the rest has not been here
            # yet.
            t = last if self._has_rows(least) else least
            moved = {number: each.offset(t) for number, each in self.listeners.items()}
            for number, to in moved.items():
                if to != self.listeners[number].stored:
                    feed_offsets.move(self.session, self.key, self.listeners[number].stored, to)
            feed_offsets.set_watermark(self.session, self.key, self._generation, t)
            if has_rows:
                reach("consume.before_commit")
        # Only now: what did not commit has moved nothing.
        for number, to in moved.items():
            self.listeners[number].stored = to
        self._watermark, self._saved_at = t, time.monotonic()
        if has_rows:
            reach("consume.after_commit")

    def _write(self, least: int) -> int:
        """Whole transactions of the source; returns the time of the last."""
        rows = merged((each.queue for each in self.listeners.values()), least, MOST_ROWS)
        last = self._watermark
        # In portions, for memory; in one transaction of the target, however many these are.
        while batch := some(rows):
            self.check()
            self.target.write(batch)
            last = batch[-1].t
        return last
