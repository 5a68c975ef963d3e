"""A batch: a contiguous stretch of the log, made small before it is written.

What must stay true (docs/correctness.md, coalescing): a batch is a contiguous prefix of what is not yet applied, and
all of it is flushed before anything behind it. With an exact key (integers and binaries) the last change of a key
wins and keys may be flushed in any order. With any other key we cannot tell here which keys the server holds for the
same, so changes stay in log order, joined only with neighbors of their kind: rows of one REPLACE are written in order.
Where such a key begins with integers or binaries, changes that differ there are of different rows and may be written by
different connections; not so where the table has another unique key, for then a row's earlier image may push out a row
that another connection has already given its last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from vreplication.binlog.events import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Deletes, or else writes, that one statement may do. `keys` of both; `values` of the writes, in step with keys."""

    keys: list[str]
    values: list[str] | None


class Batch:
    """Collects changes; `steps` gives what is to be done, in order."""

    def __init__(self, *, is_exact_key: bool, exact_leading: int = 0) -> None:
        self._is_exact, self._leading = is_exact_key, exact_leading
        self._last: dict[str, str | None] = {}
        self._ordered: list[Change] = []
        self.count = 0
        self.nbytes = 0
        self.has_deletes = False

    def add(self, change: Change) -> None:
        self.count += 1
        self.nbytes += len(change.values or "") + len(change.key)
        self.has_deletes = self.has_deletes or change.values is None
        if self._is_exact:
            self._last[change.key] = change.values
        else:
            self._ordered.append(change)

    def __len__(self) -> int:
        return self.count

    def keys(self) -> Iterable[str]:
        """Of all changes."""
        return self._last if self._is_exact else (change.key for change in self._ordered)

    def shares(self, wanted: int) -> list[list[Step]]:
        """Up to `wanted` independent lists of steps; one, when order matters."""
        if not self._is_exact:
            return [_runs(changes) for changes in self._apart(wanted if self._leading else 1)]
        items = list(self._last.items())
        size = max(1, -(-len(items) // wanted))
        return [_collapsed(items[i : i + size]) for i in range(0, len(items), size)]

    def _apart(self, wanted: int) -> list[list[Change]]:
        """Changes in log order, those with equal leading columns in one list."""
        lists: list[list[Change]] = [[] for _ in range(wanted)]
        for change in self._ordered:
            leading = ",".join(change.key.split(",", self._leading)[: self._leading])
            lists[zlib.crc32(leading.encode()) % wanted].append(change)
        return [changes for changes in lists if changes] or [[]]


def _collapsed(items: Iterable[tuple[str, str | None]]) -> list[Step]:
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


def _runs(changes: Iterable[Change]) -> list[Step]:
    steps: list[Step] = []
    for change in changes:
        is_delete = change.values is None
        if not steps or (steps[-1].values is None) != is_delete:
            steps.append(Step(keys=[], values=None if is_delete else []))
        steps[-1].keys.append(change.key)
        if change.values is not None and steps[-1].values is not None:
            steps[-1].values.append(change.values)
    return steps
