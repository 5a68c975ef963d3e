"""What stands in the log behind a giant transaction, for partitions that get nothing of it, while it is on its way.

A reader of its own begins where the giant transaction does. It steps over its rows and notes their tables; behind it
it reads as ever, and gives what it reads the same times and numbers, for these are made of the log alone. To the
progress what is sent so is what a dead producer has left behind it (P7): it is not sent again when its turn comes. The
reasons, and what is modelled: docs/design/giants.md.

What must stay true: a partition to which the giant transaction may send is left alone; whatever goes to all partitions,
or cannot be read without what was before, ends it; so many rows at the most, for a start reads them into memory.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from vreplication.binlog.control import TableMap
from vreplication.binlog.definitions import Definition
from vreplication.binlog.events import Group, GroupKind, Position, Stopped
from vreplication.binlog.reader import Item
from vreplication.binlog.watch import DEFINED, Following
from vreplication.errors import VReplicationError
from vreplication.feed.catalog import Tables
from vreplication.feed.lanes import Lanes, Named
from vreplication.feed.layout import Layout
from vreplication.feed.progress import Followed
from vreplication.feed.reading import Piece, Reading, Source, gtid_text
from vreplication.feed.sending import Sending

log = logging.getLogger(__name__)

GIANT_ROWS = 100_000
"""So many rows make a transaction that others do not wait for."""
_MOST_ROWS = 200_000
_PIECES = 64
_LEAST_TURN, _SHARE = 0.02, 0.5
"""A turn: seconds at the least, and of what has gone by since the last one."""
_WAIT_SECONDS, _JOIN_SECONDS = 0.2, 15.0

Elsewhere = Mapping[str, frozenset[int]]
"""By topic, the partitions that get nothing of the giant transaction."""


class _Scout:
    """A catalog that has nothing decoded, and notes what would be."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.met: set[Named] = set()
        self.has_ddl = False

    def watch(self, found: TableMap) -> None:
        if self._tables.filter.has(found.schema, found.table):
            self.met.add((found.schema, found.table))

    def defined(self, found: Definition) -> tuple[Definition, ...]:
        self.has_ddl = self.has_ddl or bool(self._tables.defined(found))
        return ()


class _Over(Exception):
    """In words, why nothing more is read ahead."""


class Ahead:
    """waiting: name of the giant transaction; at: the place before it."""

    def __init__(self, source: Source, tables: Tables, name: str, waiting: str, at: Followed) -> None:
        self._tables, self._name, self._waiting = tables, name, waiting
        # Its sorter's folder lies beside the first reader's, whose next run removes what a killed one left there.
        self._reading = Reading(name, replace(source, tables=tables, snapshot=None), at)
        self._queue: queue.Queue[Piece] = queue.Queue(_PIECES)
        self._is_closed = False
        self._met: tuple[frozenset[Named], int] | None = None
        """Tables and time of the giant transaction, once it was stepped over."""
        self._turned_at = time.monotonic()
        self.elsewhere: Elsewhere | None = None
        self.resolved = self.said = 0
        """Elsewhere all up to this time was sent; and said so."""
        try:
            self._tailer = source.open_log(Position.parse(at.position))
        except BaseException:
            self._reading.remove()
            tables.close()
            raise
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def layout(self, number: int) -> Layout:
        return self._tables.layout(number)

    @property
    def has_news(self) -> bool:
        return bool(self.elsewhere) and self.resolved > self.said

    def pieces(self, lanes: Lanes, source: Source) -> Iterator[Piece]:
        """What has been read, as long as its turn is."""
        if self._is_closed or self._met is None:
            return
        # Not by the thread: topics come and partitions change in the one that sends.
        if self.elsewhere is None:
            self.elsewhere = elsewhere(lanes, source, *self._met)
        now = time.monotonic()
        until = now + max(_LEAST_TURN, _SHARE * (now - self._turned_at))
        while not self._is_closed and time.monotonic() < until:
            # Not waited for: the giant transaction's own pieces come next.
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                break
        self._turned_at = time.monotonic()

    def close(self) -> None:
        """Nothing more is sent ahead; what was is known still."""
        if self._is_closed:
            return
        self._is_closed = True
        # First, for it wakes up the thread, which may be waiting for the log.
        self._tailer.close()
        self._thread.join(_JOIN_SECONDS)
        self._reading.remove()
        self._tables.close()

    # The thread.

    def _run(self) -> None:
        try:
            items = iter(self._tailer)
            self._step_over(items)
            self._read(items)
        except (_Over, VReplicationError) as error:
            log.info("nothing more is sent ahead: %s", error)
        except Exception:
            # What cannot be read the first reader comes to in its turn.
            log.exception("nothing more is sent ahead")

    def _step_over(self, items: Iterator[Item]) -> None:
        scout = _Scout(self._tables)
        self._tailer.join(Following(name="scout", catalog=scout))
        group = next(each for each in items if isinstance(each, Group))
        if gtid_text(group) != self._waiting or group.kind is not GroupKind.COMMIT or not group.is_last:
            raise _Over("the large transaction is none that can be stepped over")
        if scout.has_ddl:
            raise _Over("the large transaction holds a DDL")
        (piece,) = self._reading.take(group)
        # Elsewhere the giant one has no rows, and what stands before it was sent by the first reader.
        self.resolved = self.said = piece.t
        self._tailer.leave("scout")
        self._tailer.join(Following(name=self._name, catalog=self._tables))
        self._met = frozenset(scout.met), piece.t

    def _read(self, items: Iterator[Item]) -> None:
        rows = 0
        for item in items:
            if isinstance(item, Stopped):
                raise item.error
            if not isinstance(item, Group):
                continue
            if item.kind is not GroupKind.COMMIT or not item.is_last:
                raise _Over("a transaction comes that is large, or XA")
            # It goes to all partitions, also to those that get rows of the giant transaction.
            if any(change.table == DEFINED for change in item.items):
                raise _Over("a DDL comes")
            rows += len(item.items)
            if rows > _MOST_ROWS:
                raise _Over("it is far enough ahead")
            for piece in self._reading.take(item):
                self._put(piece)

    def _put(self, piece: Piece) -> None:
        # In slices: who closes it joins this thread, and takes nothing out of the queue any more.
        while not self._is_closed:
            try:
                self._queue.put(piece, timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue
        raise _Over("it is closed")


def begin(name: str, sending: Sending, reading: Reading, *, is_each: bool) -> Ahead | None:
    """While a transaction is read: None where nothing may go, or the log cannot be asked for."""
    source = sending.source
    at = sending.at
    is_filling = at.filled is not None and not at.filled.is_done
    is_apart = is_each or source.dispatcher.rule.way in ("table", "ts")
    # Rows of a branch are elsewhere in the log, and those of a snapshot in none (docs/design/giants.md, How).
    if source.tables_ahead is None or not is_apart or is_filling or reading.has_branches:
        return None
    try:
        return Ahead(source, source.tables_ahead(), name, reading.waiting, sending.told)
    except VReplicationError as error:
        log.info("nothing is sent ahead of transaction %s: %s", reading.waiting, error)
        return None


def elsewhere(lanes: Lanes, source: Source, tables: frozenset[Named], t: int) -> Elsewhere:
    """Where a transaction of these tables and this time sends nothing.

    With a topic for each table, the one of the address has nothing but DDL, and is left alone.
    """
    if lanes.is_each:
        apart = (lane for table, lane in lanes.by_table.items() if table not in tables)
        return {lane.name: frozenset(range(lane.partitions)) for lane in apart}
    by_table, partitions = source.dispatcher.of_table, range(lanes.main.partitions)
    is_by_time = source.dispatcher.rule.way == "ts"
    its = {t % len(partitions)} if is_by_time else {by_table(*each) for each in tables}
    return {lanes.main.name: frozenset(partitions) - its}
