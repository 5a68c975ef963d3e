"""Drawn histories of two tables, what a feed writes of them into partitions, and listeners that read those.

Table t (id, a, u): id is its primary key, u a second unique one whose collation takes "x" and "X" for the same. Table
s has the same columns. The dispatcher and the conflicts are the feed's own; only what the server would be asked, the
weights of text, is made here.

What must stay true: a history is one that a source may have: no two of its rows have one key; a listener keeps the
rules of docs/feed.md, row mode, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from vreplication.feed.conflicts import NOWHERE, Conflicts
from vreplication.feed.dispatch import Dispatcher, Weights, parse
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Place, Row
from vreplication.schema.model import Column

Image = tuple[int, int, str | None]
"""id, a, u."""
Change = tuple[str, Image | None, Image | None]
"""Table, before, after."""
History = Sequence[Sequence[Change]]
"""Transactions."""
Log = list[Row | Place]
"""Of a partition: rows, and numbers of Aligns."""


class Folding(Weights):
    """A collation: case and trailing spaces do not count."""

    def __init__(self) -> None:
        """Nobody is asked."""

    def of(self, collation: str, text: str) -> bytes:
        return text.rstrip(" ").casefold().encode()

    def ask(self, collation: str, texts: Iterable[str]) -> None:
        """All are known."""


def layout(table: str, number: int = 0, **more: Any) -> Layout:
    columns = (
        Column(name="id", ordinal=1, data_type="int", column_type="int", is_nullable=False),
        Column(name="a", ordinal=2, data_type="int", column_type="int", is_nullable=False),
        Column(
            **{"name": "u", "ordinal": 3, "data_type": "varchar", "column_type": "varchar(9)", "is_nullable": True},
            **{"charset": "utf8mb4", "collation": "utf8mb4_general_ci"},
        ),
    )
    known: dict[str, Any] = {
        **{"number": number, "schema": "d", "table": table, "columns": columns, "key": ("id",)},
        **{"unique": (("id",), ("u",)), "distinct": ((("id", None),), (("u", None),)), **more},
    }
    return Layout(**known)


LAYOUTS = {name: layout(name, number) for number, name in enumerate(("t", "s"))}


# Histories.


@dataclass
class Source:
    """Rows by table and id."""

    rows: dict[tuple[str, int], Image] = field(default_factory=dict)

    def do(self, change: Change) -> None:
        table, before, after = change
        if before is not None:
            del self.rows[table, before[0]]
        if after is not None:
            self.rows[table, after[0]] = after

    def holder(self, table: str, u: str | None, but: Image | None) -> Image | None:
        """Another row that has this value."""
        found = (row for (of, _), row in self.rows.items() if of == table and row != but)
        return next((row for row in found if u is not None and folded(row[2]) == folded(u)), None)


def folded(u: str | None) -> str | None:
    return None if u is None else u.rstrip(" ").casefold()


@st.composite
def histories(draw: st.DrawFn, *, most: int = 25, steady: bool = False) -> History:
    """steady: column a of a row never changes, nor comes back as another."""
    source = Source()
    return [
        [change for _ in range(draw(st.integers(1, 4))) for change in _changes(draw, source, steady=steady)]
        for _ in range(draw(st.integers(1, most)))
    ]


def _changes(draw: st.DrawFn, source: Source, *, steady: bool) -> Iterator[Change]:
    table, id = draw(st.sampled_from("tts")), draw(st.integers(1, 6))
    there = source.rows.get((table, id))
    kind = draw(st.sampled_from(("write", "write", "delete", "move"))) if there else "write"
    u = draw(st.sampled_from(("x", "X", "y", "z", "z ", None)))
    to = id if kind != "move" or (table, 7 - id) in source.rows else 7 - id
    after: Image | None = (to, to % 3 if steady else draw(st.integers(0, 2)), u)
    if kind == "delete":
        after = None
    elif (other := source.holder(table, u, there)) is not None:
        # It hands its value over.
        yield from _done(source, (table, other, (*other[:2], None)))
    yield from _done(source, (table, there, after))


def _done(source: Source, change: Change) -> Iterator[Change]:
    source.do(change)
    yield change


def ended(history: History) -> dict[tuple[str, int], Image]:
    source = Source()
    for change in (change for transaction in history for change in transaction):
        source.do(change)
    return source.rows


def rows(history: History, layouts: dict[str, Layout] = LAYOUTS) -> list[Row]:
    return [
        Row(layout=layouts[table], place=Place(t, seq), before=before, after=after)
        for t, transaction in enumerate(history, 1)
        for seq, (table, before, after) in enumerate(transaction)
    ]


# Partitions.


class Sender:
    """A run of a feed. logs: what is there; behind `known` of each its progress does not know of it."""

    def __init__(self, way: str, partitions: int, logs: list[Log] | None = None, known: Sequence[int] = ()) -> None:
        rule, weights = parse(way), Folding()
        self.logs: list[Log] = [list(log) for log in logs] if logs else [[] for _ in range(partitions)]
        tails = [log[at:] for log, at in zip(self.logs, known, strict=True)] if known else []
        self._there = Counter((at, m.place) for at, tail in enumerate(tails) for m in tail if isinstance(m, Row))
        found = max((m for tail in tails for m in tail if isinstance(m, Place)), default=NOWHERE)
        of_rows = [m.place if isinstance(m, Row) else Place(m.t, m.seq // 2) for tail in tails for m in tail]
        self.latest = max(of_rows, default=NOWHERE)
        """The last row that is there, or that an Align stands before."""
        self._dispatcher = Dispatcher(rule, partitions, weights)
        self._conflicts = Conflicts(weights, found) if rule.way == "conflict" else None

    def send(self, some: Iterable[Row]) -> list[Log]:
        for row in some:
            for partition, each in self._dispatcher.placed(row):
                self._send(partition, each)
        return self.logs

    def _send(self, partition: int, row: Row) -> None:
        number = self._conflicts.meet(partition, row) if self._conflicts is not None else None
        if number is not None:
            for log in self.logs:
                log.append(number)
        if self._there[partition, row.place]:
            self._there[partition, row.place] -= 1
        else:
            self.logs[partition].append(row)


def sent(way: str, history: History, partitions: int = 3) -> list[Log]:
    return Sender(way, partitions).send(rows(history))


# Listeners.


class Target:
    """Tables with both unique keys; REPLACE takes out whatever holds one of them."""

    def __init__(self, logs: list[Log]) -> None:
        self.rows: dict[tuple[str, int], Image] = {}
        self._logs, self._at = logs, [0] * len(logs)
        self._reached = [NOWHERE] * len(logs)
        self._come()

    def read(self, choose: Callable[[list[int]], int]) -> dict[tuple[str, int], Image]:
        """Until nobody can go on. choose: who of them does. Raises AssertionError where something is left."""
        while able := [number for number in range(len(self._logs)) if self._is_able(number)]:
            self._step(choose(able))
            self._come()
        assert self._at == list(map(len, self._logs)), f"they stand at {self._at}"
        return self.rows

    def _is_able(self, number: int) -> bool:
        message = self._next(number)
        return isinstance(message, Row) or (message is not None and min(self._reached) >= message)

    def _next(self, number: int) -> Row | Place | None:
        log, at = self._logs[number], self._at[number]
        return log[at] if at < len(log) else None

    def _come(self) -> None:
        for number in range(len(self._logs)):
            message = self._next(number)
            if isinstance(message, Place):
                self._reached[number] = max(self._reached[number], message)

    def _step(self, number: int) -> None:
        message = self._next(number)
        self._at[number] += 1
        if isinstance(message, Row):
            table = message.layout.table
            if message.before is not None:
                self.rows.pop((table, message.before[0]), None)
            if message.after is not None:
                self._replace(table, message.after)  # type: ignore[arg-type]

    def _replace(self, table: str, after: Image) -> None:
        same = [at for at, row in self.rows.items() if at[0] == table and row[2] is not None]
        for at in same:
            if folded(self.rows[at][2]) == folded(after[2]):
                del self.rows[at]
        self.rows[table, after[0]] = after
