"""Rows that wait until it is known what becomes of their transaction: in memory, and past a budget in the sorter.

What must stay true: they come back in the order in which they were taken; what `cut` takes out never comes back; the
memory of all rows that wait together is bounded by one budget; a fragment on disk is written whole before it counts; no
fragment or part is larger than PART_ROWS and PART_BYTES, but for one row that is larger by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from vreplication.binlog.events import RowChange
from vreplication.changes.encoding import decode_items, encode_items
from vreplication.changes.sorter import DiskSorter, Entry
from vreplication.changes.stream import count_changes
from vreplication.errors import Terminal
from vreplication.settings import MIB

PART_ROWS = 4_000
# 4,000 rows of 20 KB, which are 40 KB as hex, would be a fragment of 160 MB.
PART_BYTES = 4 << 20
_ITEM_BYTES = 300
"""About what a change takes besides its texts, and a row of the sidecar."""
FIRST_TABLE = 1 << 32
"""Numbers of transactions that wait; smaller ones are for tables and for the queue."""


class Budget:
    """What all that wait may take in memory, and where the rest goes (None: nowhere, which is an error)."""

    def __init__(self, nbytes: int, sorter: DiskSorter | None) -> None:
        self.limit = nbytes
        self.sorter = sorter
        self.used = 0
        self._users: dict[Rows, None] = {}
        self._tables = itertools.count(FIRST_TABLE)

    def new_table(self) -> int:
        """A number under which a transaction's rows are put aside."""
        return next(self._tables)

    def join(self, rows: Rows) -> None:
        self._users[rows] = None

    def leave(self, rows: Rows) -> None:
        del self._users[rows]

    def relieve(self) -> None:
        """Past the limit, put the largest aside until the rest is half of it: with thousands of small ones they are
        looked through once for many. Raises Terminal where there is no place for them."""
        if self.used <= self.limit:
            return
        if self.sorter is None:
            raise Terminal(
                f"Open transactions hold more than {self.limit // MIB} MiB of changes to this table.",
                cure="End them, then run the same command again.",
            )
        for rows in sorted(self._users, key=lambda rows: rows.memory_bytes, reverse=True):
            if self.used <= self.limit // 2:
                break
            rows.put_aside()
        # A branch may be among them that a checkpoint is going to list as being on disk.
        self.sorter.flush()


class Rows:
    """The rows of one transaction. table: under which number the sorter has those on disk."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._items: list[RowChange] = []
        self._fragments: list[int] = []
        """Rows in each fragment on disk."""
        self.memory_bytes = 0
        self.changes = 0
        self.table: int | None = None
        budget.join(self)

    def __len__(self) -> int:
        return sum(self._fragments) + len(self._items)

    @property
    def place(self) -> tuple[str, int] | None:
        """The run and number under which all of them are on disk."""
        if self._items or self.table is None or self._budget.sorter is None:
            return None
        return self._budget.sorter.name, self.table

    @property
    def fragments(self) -> tuple[int, ...]:
        return tuple(self._fragments)

    def add(self, items: Sequence[RowChange], nbytes: int) -> None:
        self._items.extend(items)
        self.changes += count_changes(items)
        self._weigh(nbytes if items else 0)
        self._budget.relieve()

    def cut(self, keep: int) -> None:
        """Only the first `keep` stay."""
        on_disk = sum(self._fragments)
        if keep >= on_disk:
            del self._items[keep - on_disk :]
        else:
            self._items = self._cut_fragments(keep)
        # A fragment's length is no help: rows of ours are in it, too, and are no changes.
        self.changes = count_changes(self._items) + sum(map(count_changes, self._read(len(self._fragments))))
        self._weigh(sum(map(_weight, self._items)) - self.memory_bytes)

    def _cut_fragments(self, keep: int) -> list[RowChange]:
        """Forget fragments from the end; what stays of the last one is in memory again."""
        counts = list(itertools.accumulate(self._fragments, initial=0))
        whole = max(i for i, total in enumerate(counts) if total <= keep)
        rest = next(itertools.islice(self._read(whole + 1), whole, None), [])[: keep - counts[whole]]
        del self._fragments[whole:]
        # At once: the numbers of the fragments are used again, and what stood there would be counted twice.
        if self.table is not None and self._budget.sorter is not None:
            self._budget.sorter.cut(self.table, whole)
        return rest

    def parts(self) -> Iterator[list[RowChange]]:
        """All rows in order, some at a time; an empty list at the end when there are none."""
        yield from self._read(len(self._fragments))
        yield from _pieces(self._items)

    def put_aside(self) -> None:
        """Everything that is in memory goes to disk."""
        sorter = self._budget.sorter
        assert sorter is not None
        if self.table is None:
            self.table = self._budget.new_table()
        for part in _pieces(self._items):
            sorter.add([Entry(self.table, 0, 0, len(self._fragments), encode_items(part))])
            self._fragments.append(len(part))
        self._items = []
        self._weigh(-self.memory_bytes)

    def adopt(self, run: str, table: int, fragments: Sequence[int], changes: int) -> bool:
        """Take over what an earlier run has put aside; False when not all of it is there."""
        sorter = self._budget.sorter
        # Each run counts from the same number on: under the old one the rows would mix with another branch's.
        self.table = self._budget.new_table()
        if sorter is None or sorter.copy(run, table, self.table) != len(fragments):
            return False
        self._fragments, self.changes = list(fragments), changes
        return True

    def drop(self) -> None:
        """They are not needed any more."""
        self._weigh(-self.memory_bytes)
        self._budget.leave(self)
        if self.table is not None and self._budget.sorter is not None:
            # All of them stand at time 0.
            self._budget.sorter.clean(self.table, 1)
        self._items, self._fragments = [], []

    def _read(self, count: int) -> Iterator[list[RowChange]]:
        """The first `count` fragments."""
        if not count:
            return
        assert self._budget.sorter is not None
        assert self.table is not None
        for entry in itertools.islice(self._budget.sorter.read(self.table), count):
            yield decode_items(entry.data)

    def _weigh(self, nbytes: int) -> None:
        self.memory_bytes += nbytes
        self._budget.used += nbytes


def _pieces(items: Sequence[RowChange]) -> Iterator[list[RowChange]]:
    """In order, so many rows or bytes at a time."""
    piece: list[RowChange] = []
    nbytes = 0
    for item in items:
        weight = _weight(item)
        if piece and (len(piece) >= PART_ROWS or nbytes + weight > PART_BYTES):
            yield piece
            piece, nbytes = [], 0
        piece.append(item)
        nbytes += weight
    if piece:
        yield piece


def _weight(item: RowChange) -> int:
    """About what it takes in memory."""
    return _ITEM_BYTES + _text_bytes(item.before) + _text_bytes(item.after)


def _text_bytes(row: Any) -> int:
    """A row is a text or several of them; those of ours are small."""
    if isinstance(row, str):
        return len(row)
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row) if isinstance(row, tuple) else 0
