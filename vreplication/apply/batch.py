"""A batch: a contiguous stretch of the log, made small before it is written.

Of each key, as the bytes that the log has, the last change counts. So what is left is keys to be deleted and rows to be
written, each once. With an exact key (integers and binaries) these are different rows in any order. With any other key
only the server knows which keys are one ('A' and 'a'), and it need not be asked: a row is deleted in the log under the
bytes that it was written with before it is written under others, by whatever statement
(tests/integration/test_binlog_key_bytes.py). So at most one of the keys of a row is left as a write, and when all
deletes come before all writes each row is what its last change made of it, whatever its collation, type or prefix.

Neither needs an order among its own. Two writes are two rows of the source at one moment, the end of the batch: no
unique key that the source has, too, makes one push the other out; who is pushed out otherwise has its own change still
to come, in this batch or behind it (docs/correctness.md, coalescing). Under a new unique key several connections take
all rows of the batch out first, so that rows that exchanged their values are not in each other's way.

What must stay true: a batch is a contiguous prefix of what is not yet applied, and all of it is flushed before anything
behind it; the deletes of a round are committed before the writes of the next begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vreplication.binlog.events import RowChange
from vreplication.changes.stream import FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Deletes, or else writes, in any order. `keys` of both; `values` of the writes, in step with keys."""

    keys: list[str]
    values: list[str] | None


Share = list[Step]
"""What one connection does in a transaction, in order."""


def keys_of(change: RowChange) -> Iterator[str]:
    """The keys under which a change of an application's table touches the target."""
    table, before, after = change
    if table >= FIRST:
        if before is not None:
            yield before
        if after is not None:
            yield after[0]


class Batch:
    """Collects changes; `rounds` gives what is to be done."""

    def __init__(self, *, is_exact_key: bool, takes_out: bool = False) -> None:
        """takes_out: for several connections a written row, too, is deleted in the round of the deletes."""
        self._is_exact, self._takes_out = is_exact_key, takes_out
        self._last: dict[str, str | None] = {}
        self.count = 0
        self.nbytes = 0
        self.has_deletes = False

    def add(self, change: RowChange) -> None:
        """Rows are those of `SqlText`. An UPDATE that moves a row to another key takes it out under the old one."""
        _, before, after = change
        self.count += 1
        if after is None:
            self._gone(before)
            return
        key, values = after
        # R4: the old side of a key change is a delete like any other, tombstone included; left out, both keys would
        # hold the row.
        if before is not None and before != key:
            self._gone(before)
        self.nbytes += len(values) + len(key)
        self._last[key] = values

    def _gone(self, key: str) -> None:
        self.nbytes += len(key)
        self.has_deletes = True
        self._last[key] = None

    def __len__(self) -> int:
        return self.count

    def keys(self) -> Iterable[str]:
        """Of all changes."""
        return self._last

    def rounds(self, wanted: int) -> list[list[Share]]:
        """One after the other, each of up to `wanted` independent shares."""
        items = sorted(self._last.items(), key=self._near)
        # One connection writes its deletes before its writes by itself, and exact keys of deletes and of writes are
        # different rows. Else a connection could write 'A' before another one has deleted 'a', and the row just written
        # would go.
        if wanted == 1 or (self._is_exact and not self._takes_out):
            return [_shares(items, wanted)]
        deletes: list[tuple[str, str | None]]
        # U1: the next round begins when this one has committed on all connections. Without that barrier a write of one
        # connection pushes out, under a second unique key, what another one has still to delete.
        deletes = [(key, None) for key, row in items if row is None or self._takes_out]
        writes = [item for item in items if item[1] is not None]
        return [_shares(part, wanted) for part in (deletes, writes) if part]

    def _near(self, item: tuple[str, str | None]) -> tuple[int, str]:
        """Rows that are near each other in the table are written together, by one connection.

        Where connections write side by side they wait for each other's gaps, and in turns: 30 deadlocks in 40,000 rows.
        """
        # The length first, so that of integers 9 comes before 10.
        return (len(item[0]) if self._is_exact else 0), item[0]


def _shares(items: list[tuple[str, str | None]], wanted: int) -> list[Share]:
    size = max(1, -(-len(items) // wanted))
    return [_steps(items[i : i + size]) for i in range(0, len(items), size)]


def _steps(items: Iterable[tuple[str, str | None]]) -> Share:
    """All deletes, then all writes."""
    deletes: list[str] = []
    keys: list[str] = []
    values: list[str] = []
    for key, row in items:
        if row is None:
            deletes.append(key)
        else:
            keys.append(key)
            values.append(row)
    steps = [Step(keys=deletes, values=None)] if deletes else []
    return [*steps, Step(keys=keys, values=values)] if keys else steps
