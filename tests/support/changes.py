"""Row changes in tests, as `SqlText` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vreplication.binlog.events import RowChange


class Effect(NamedTuple):
    """What a change does to one key of the target: values None takes its row out."""

    key: str
    values: str | None


def put(key: str, values: str, before: str | None = None) -> RowChange:
    """INSERT, or UPDATE of the row that had the key `before`."""
    return RowChange(0, before, (key, values))


def gone(key: str) -> RowChange:
    return RowChange(0, key, None)


def effects(items: Iterable[RowChange]) -> list[Effect]:
    """One by one, of the application's tables; an UPDATE that moves a row to another key is two."""
    found: list[Effect] = []
    for table, before, after in items:
        if table < 0:
            continue
        if before is not None and (after is None or after[0] != before):
            found.append(Effect(before, None))
        if after is not None:
            found.append(Effect(*after))
    return found
