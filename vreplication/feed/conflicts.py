"""Dispatch `conflict`: rows that exchange a value of a unique key are applied in order, wherever they stand.

Rows stand in their key's partition, as with index-value. What was sent of every other unique key, before and after
images, is remembered with its partition. A row whose value is with another partition comes behind an Align in all
partitions, and what was remembered is forgotten; a DDL and a new generation hold all rows back as well. A reader
applies nothing behind an Align before every partition has come to one that is not below it.

An Align has the number of the row that it stands before, (t, 2·seq), one more where that is an INSERT, for an UPDATE
may be a DELETE and an INSERT. So numbers rise in the order of the log, whoever sends them: behind Align(k) of a
partition there is no row of it before k. A run that dies may have sent some partitions more than others; what the next
one adds to those that are behind is below what stands in the others, and is waited for. A number that counts what each
producer has sent would let them pass.

What must stay true: two rows with one unique value in different partitions have an Align between them that stands, in
the partition of the later one, before it; an Align of a former run that stands in some partitions only is followed by
one in all that is not below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vreplication.feed.dispatch import Weights, bytes_of, is_odd, is_text
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Place, Row
from vreplication.schema.model import Column

MOST_VALUES = 1_000_000
"""That are remembered; about 100 MiB."""
NOWHERE = Place(0, 0)
_Image = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A column of a key. prefix: how much of it is compared."""

    place: int
    column: Column
    prefix: int | None

    def of(self, image: _Image) -> Any:
        value = image[self.place]
        return value if value is None or self.prefix is None else value[: self.prefix]


_Key = tuple[_Part, ...]
"""Without parts: any two values of it may be the same."""


class Conflicts:
    """Of one run. found: the highest Align that stands behind the progress at its start."""

    def __init__(self, weights: Weights, found: Place = NOWHERE, most: int = MOST_VALUES) -> None:
        self._weights, self._found, self._most = weights, found, most
        self._where: dict[int, int] = {}
        self._keys: dict[int, tuple[Layout, tuple[_Key, ...]]] = {}
        self._current: dict[str, tuple[_Key, ...]] = {}
        self._is_new = True
        """What stands in front of all is not known."""

    def prepare(self, rows: Sequence[Row]) -> None:
        """Ask the server once for what `meet` will want to know of these rows."""
        wanted: dict[str, set[str]] = {}
        for row in rows:
            for part in (part for key in self._keys_of(row.layout) for part in key if is_text(part.column)):
                found = wanted.setdefault(str(part.column.collation), set())
                found.update(text for image in _images(row) if (text := part.of(image)) is not None)
        for collation, texts in wanted.items():
            self._weights.ask(collation, texts)

    def meet(self, partition: int, row: Row) -> Place | None:
        """The row is sent there next: of the Align that has to be sent before it, the number."""
        number = Place(row.place.t, 2 * row.place.seq + (row.before is None))
        values = self._values(row)
        is_due = self._is_due(number, partition, row.layout, values)
        if is_due:
            self._begin(number)
        self._current[row.layout.name] = self._keys_of(row.layout)
        if values:
            self._where.update(dict.fromkeys(values, partition))
        return number if is_due else None

    def pass_barrier(self) -> None:
        """A DDL, or an Admin, has been sent to all."""
        self._where.clear()
        self._current.clear()
        self._is_new = False

    def _begin(self, number: Place) -> None:
        self.pass_barrier()
        if number >= self._found:
            self._found = NOWHERE

    def _is_due(self, number: Place, partition: int, layout: Layout, values: set[int]) -> bool:
        # Its keys have changed, and no DDL of ours says so: other values have been remembered of its rows.
        is_changed = self._current.get(layout.name, keys := self._keys_of(layout)) != keys
        if is_changed or NOWHERE < self._found <= number:
            return True
        if not values:
            return False
        is_full = len(self._where) + len(values) > self._most
        where = self._where.get
        return self._is_new or is_full or any(where(value, partition) != partition for value in values)

    def _values(self, row: Row) -> set[int]:
        """A digest of each. Of different values the same one costs an Align, and breaks nothing."""
        keys = self._keys_of(row.layout)
        if not keys:
            return set()
        found = (self._value(key, image) for image in _images(row) for key in enumerate(keys))
        # Python's hash differs from process to process; nothing that is remembered here outlives a run.
        return {hash((row.layout.name, *value)) for value in found if value is not None}

    def _value(self, numbered: tuple[int, _Key], image: _Image) -> tuple[int | bytes, ...] | None:
        """NULL is not equal to anything."""
        number, key = numbered
        # With the key's number: one value under two keys is no conflict.
        found: list[int | bytes] = [number]
        for part in key:
            value = part.of(image)
            if value is None:
                return None
            found.append(bytes_of(part.column, value, self._weights))
        return tuple(found)

    def _keys_of(self, layout: Layout) -> tuple[_Key, ...]:
        found = self._keys.get(id(layout))
        if found is None:
            # The layout is kept with it, because the id of one that is gone may be given to another.
            found = self._keys[id(layout)] = layout, tuple(_keys(layout))
        return found[1]


def _images(row: Row) -> Iterator[_Image]:
    return (image for image in (row.before, row.after) if image is not None)


def _keys(layout: Layout) -> Iterator[_Key]:
    """But for the one whose values have a partition of their own. What is not sent is not in the target, either."""
    if layout.distinct is None:
        yield ()
        return
    for key in layout.distinct:
        if key == tuple((name, None) for name in layout.key) or any(name not in layout.places for name, _ in key):
            continue
        parts = ((layout.places[name], prefix) for name, prefix in key)
        yield tuple(_Part(place=place, column=layout.columns[place], prefix=prefix) for place, prefix in parts)


def always(layout: Layout) -> bool:
    """Any two of its rows may conflict, as far as we can tell."""
    return any(all(map(_is_odd, key)) for key in _keys(layout))


def _is_odd(part: _Part) -> bool:
    return is_text(part.column) and is_odd(str(part.column.collation))


def is_checked(layout: Layout) -> bool:
    """It has a unique key beside the one that its rows are dispatched by."""
    return any(True for _ in _keys(layout))
