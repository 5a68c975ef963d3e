"""Drawn histories of a source, how a feed writes them into a topic, and what a database must hold of them.

What must stay true: the same draws give the same topic; what is written follows the producer's rules, but for what the
broker may do to it: Kafka's transactions cut the source's anywhere, some are aborted, some rows stand there twice.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.feed_producer import FeedWriter
from vreplication.feed.layout import Layout

Image = tuple[Any, ...]
Shown = tuple[tuple[tuple[Any, ...], ...], tuple[tuple[Any, ...], ...]]
IDS, BARE = range(12), range(4)


@dataclass(frozen=True, slots=True)
class Change:
    """keyed: of table t (id, a, u), else of table bare (a)."""

    keyed: bool
    before: Image | None
    after: Image | None


@dataclass
class Source:
    """t: by id. bare: values, with how often each is there."""

    t: dict[int, Image] = field(default_factory=dict)
    bare: Counter[int] = field(default_factory=Counter)

    @property
    def shown(self) -> Shown:
        keyed = tuple(sorted(self.t.values()))
        return keyed, tuple((a,) for a in sorted(self.bare.elements()))

    def transaction(self, draw: random.Random, at: int, *, is_unique: bool) -> list[Change]:
        return [self._change(draw, at * 100 + seq, is_unique=is_unique) for seq in range(draw.randint(1, 5))]

    def _change(self, draw: random.Random, number: int, *, is_unique: bool) -> Change:
        if draw.randint(0, 4) == 0:
            return self._bare(draw)
        id = draw.choice(IDS)
        there = self.t.get(id)
        if there is not None and draw.randint(0, 3) == 0:
            del self.t[id]
            return Change(True, there, None)
        to = draw.choice(IDS) if there is not None else id
        to = id if to in self.t else to
        free = [u for u in range(6) if not is_unique or u not in {row[2] for row in self.t.values() if row != there}]
        row = (to, number, draw.choice([None, *free]))
        self.t.pop(id, None)
        self.t[to] = row
        return Change(True, there, row)

    def _bare(self, draw: random.Random) -> Change:
        there = sorted(self.bare)
        before = draw.choice([None, *there])
        after = draw.choice(BARE) if before is None or draw.random() < 0.5 else None
        if before is not None:
            self.bare -= Counter([before])
        if after is not None:
            self.bare[after] += 1
        return Change(False, None if before is None else (before,), None if after is None else (after,))


@dataclass
class Written:
    """What a topic holds. shown: what the source was after each time; last: the highest one."""

    shown: list[Shown]
    last: int
    generation: int


class History:
    """Draws and writes at once. t, bare: layouts of the two tables as they are at the beginning."""

    def __init__(
        self, draw: random.Random, feed: FeedWriter, schema: str, t: Layout, bare: Layout, *, is_unique: bool
    ) -> None:
        self._draw, self._feed, self._schema = draw, feed, schema
        self._t, self._bare, self._is_unique = t, bare, is_unique
        self._source = Source()
        self._at, self._resolved = 0, 0
        self._columns = 0

    def write(self, length: int, pause: Callable[[], None]) -> Written:
        shown = [self._source.shown]
        for _ in range(length):
            kind = self._draw.randint(0, 11)
            if kind == 0:
                self._ddl()
            elif kind == 1:
                self._scale()
            else:
                self._transaction()
            shown.append(self._source.shown)
            pause()
        with self._feed.transaction():
            self._feed.resolved(self._at)
        return Written(shown, self._at, self._feed.generation)

    def _transaction(self) -> None:
        self._at += 1
        changes = self._source.transaction(self._draw, self._at, is_unique=self._is_unique)
        self._send(changes, self._draw.randint(0, len(changes)))

    def _send(self, changes: list[Change], cut: int) -> None:
        """In one of Kafka's transactions, or in two."""
        first = list(enumerate(changes))[:cut]
        if self._draw.randint(0, 4) == 0:
            with self._feed.transaction(is_aborted=True):
                self._rows(first)
                self._feed.resolved(self._at)
        with self._feed.transaction():
            self._rows(first)
            if self._draw.random() < 0.5:
                self._feed.resolved(self._at - 1)
        with self._feed.transaction():
            if self._draw.randint(0, 4) == 0:
                self._feed.repeat_rows(self._draw.randint(1, 6))
            self._rows(list(enumerate(changes))[cut:])
            if self._draw.random() < 0.5:
                self._feed.resolved(self._at)

    def _rows(self, changes: list[tuple[int, Change]]) -> None:
        for seq, change in changes:
            layout = self._t if change.keyed else self._bare
            before, after = (self._wide(change.keyed, image) for image in (change.before, change.after))
            for partition, b, a in self._placed(change, before, after):
                self._feed.row(partition, layout, self._at, b, a, seq=seq, parts=self._draw.choice([1, 1, 1, 3]))

    def _wide(self, keyed: bool, image: Image | None) -> Image | None:
        return (*image, *range(self._columns)) if keyed and image is not None else image

    def _placed(self, change: Change, before: Image | None, after: Image | None) -> list[tuple[int, Any, Any]]:
        """An UPDATE that leaves its partition is a DELETE there and an INSERT here."""
        old, new = (None if image is None else self._partition(change.keyed, image) for image in (before, after))
        if old is None or new is None or old == new:
            found = new if old is None else old
            return [(found or 0, before, after)]
        return [(old, before, None), (new, None, after)]

    def _partition(self, keyed: bool, image: Image) -> int:
        return zlib.crc32(b"%d" % image[0] if keyed else b"bare") % self._feed.partitions

    def _ddl(self) -> None:
        """A column more, whose value is its number."""
        self._at += 1
        sql = f"ALTER TABLE t ADD COLUMN c{self._columns} INT DEFAULT {self._columns}"
        column = replace(self._t.columns[1], name=f"c{self._columns}", ordinal=len(self._t.columns) + 1)
        self._columns += 1
        self._t = replace(self._t, number=self._t.number + 1, columns=(*self._t.columns, column))
        with self._feed.transaction():
            self._feed.ddl(self._at, self._schema, sql)

    def _scale(self) -> None:
        """Some rows behind the time of Admin are there already, and come again."""
        count = self._draw.randint(1, 4)
        with self._feed.transaction():
            self._feed.resolved(self._at)
        base = self._at
        self._at += 1
        changes = self._source.transaction(self._draw, self._at, is_unique=self._is_unique)
        if self._draw.random() < 0.5:
            with self._feed.transaction():
                self._rows(list(enumerate(changes)))
        if count > len(self._feed.n):
            self._feed.grow(count)
        with self._feed.transaction():
            self._feed.admin(base, count)
        self._send(changes, len(changes))
