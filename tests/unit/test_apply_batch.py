"""Batches: what is left of them gives the source's rows, whoever comes first and whatever a collation says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.changes import effects, gone, put
from tests.support.every_case import examples
from vreplication.apply.batch import Batch, Share, Step
from vreplication.binlog.events import RowChange

KEYS = ("a", "A", "á", "b", "B", "c")
"""Bytes; those of one letter are one key to the server."""


def same(key: str) -> str:
    return {"á": "a"}.get(key, key).lower()


@dataclass
class Table:
    """Rows by key as the server compares it, with a second unique key: REPLACE pushes out what is in its way."""

    rows: dict[str, tuple[str, int | None]] = field(default_factory=dict)

    def delete(self, key: str) -> None:
        self.rows.pop(same(key), None)

    def replace(self, key: str, value: int | None) -> None:
        self.delete(key)
        for other in [k for k, (_, v) in self.rows.items() if v is not None and v == value]:
            del self.rows[other]
        self.rows[same(key)] = key, value


class Source(Table):
    """The application's table. Each write returns what the log has of it, [] where the table does not take it."""

    def write(self, old: str | None, new: str | None, value: int | None) -> list[RowChange]:
        """INSERT (no old key), DELETE (no new one), or UPDATE of both columns."""
        kept = {k: v for k, v in self.rows.items() if old is None or k != same(old)}
        if old is not None and len(kept) == len(self.rows):
            return []
        if new is not None and (same(new) in kept or (value is not None and value in [v for _, v in kept.values()])):
            return []
        before = self.rows[same(old)][0] if old is not None else None
        self.rows = kept
        if new is not None:
            self.rows[same(new)] = new, value
        if new is not None:
            return [put(new, str(value), before)]
        return [gone(before)] if before is not None else []


keys = st.sampled_from(KEYS)
values = st.one_of(st.none(), st.integers(0, 4))
writes = st.lists(st.tuples(st.one_of(st.none(), keys), st.one_of(st.none(), keys), values), max_size=40)


def one_by_one(shares: list[Share]) -> Iterator[list[tuple[str, str | None]]]:
    """Of each share its rows in order."""
    for share in shares:
        yield [(key, step.values[i] if step.values else None) for step in share for i, key in enumerate(step.keys)]


def flush(batch: Batch, wanted: int, table: Table, data: st.DataObject, *, dies: bool = False) -> None:
    """Connections may be quick and slow in any order, but not beyond the round. dies: at any place."""
    for shares in batch.rounds(wanted):
        assert len(shares) <= wanted
        waiting = list(one_by_one(shares))
        while waiting := [rows for rows in waiting if rows]:
            if dies and data.draw(st.integers(0, 4)) == 0:
                return
            key, value = waiting[data.draw(st.integers(0, len(waiting) - 1))].pop(0)
            if value is None:
                table.delete(key)
            else:
                table.replace(key, None if value == "None" else int(value))


def collected(changes: list[RowChange]) -> Batch:
    batch = Batch(is_exact_key=False)
    for change in changes:
        batch.add(change)
    return batch


@settings(max_examples=examples(100, 400))
@given(writes, st.integers(1, 3), st.integers(1, 12), st.booleans(), st.data())
def test_keys_that_the_server_holds_for_one_come_out_as_on_the_source(
    todo: list[tuple[str | None, str | None, int | None]], wanted: int, size: int, dies: bool, data: st.DataObject
) -> None:
    """Batches end anywhere; who died within one reads it again, and longer or shorter ones than before."""
    source, target = Source(), Table()
    log = [(change, dict(source.rows)) for write in todo for change in source.write(*write)]
    place = 0
    while place < len(log):
        if dies:
            flush(collected([c for c, _ in log[place : place + size]]), wanted, target, data, dies=True)
            size = data.draw(st.integers(1, 12))
        flush(collected([c for c, _ in log[place : place + size]]), wanted, target, data)
        place += size
        if not dies:
            # Where one dies, a batch may have been begun that goes further.
            assert target.rows == log[min(place, len(log)) - 1][1]
    assert target.rows == source.rows


numbers = st.integers(0, 5).map(str)
exact = st.lists(st.one_of(st.builds(gone, numbers), st.builds(put, numbers, st.just("x"), st.none() | numbers)))


@given(exact, st.integers(1, 4))
def test_an_exact_batch_is_one_round(todo: list[RowChange], wanted: int) -> None:
    batch = Batch(is_exact_key=True)
    for change in todo:
        batch.add(change)
    [shares] = batch.rounds(wanted)
    found = [row for rows in one_by_one(shares) for row in rows]
    assert dict(found) == dict(effects(todo))
    assert len(found) == len(dict(found))


def test_the_last_change_of_a_key_wins() -> None:
    batch = Batch(is_exact_key=True)
    for change in (put("1", "a"), gone("1"), put("2", "b"), put("1", "c")):
        batch.add(change)
    assert batch.rounds(1) == [[[Step(keys=["1", "2"], values=["c", "b"])]]]
    assert batch.has_deletes
    assert batch.count == 4


def test_deletes_are_a_round_of_their_own_where_keys_may_be_the_same() -> None:
    """'A' may be the row that was 'a': its delete by another connection must not come behind the write."""
    batch = Batch(is_exact_key=False)
    for change in (gone("'a'"), put("'A'", "x"), put("'b'", "y")):
        batch.add(change)
    deleted, written = Step(keys=["'a'"], values=None), Step(keys=["'A'", "'b'"], values=["x", "y"])
    assert batch.rounds(1) == [[[deleted, written]]]
    assert batch.rounds(2) == [
        [[deleted]],
        [[Step(keys=["'A'"], values=["x"])], [Step(keys=["'b'"], values=["y"])]],
    ]


def test_rows_are_taken_out_before_any_is_written_where_they_may_be_in_each_others_way() -> None:
    batch = Batch(is_exact_key=True, takes_out=True)
    for change in (put("1", "x"), gone("2"), put("3", "y")):
        batch.add(change)
    out = [[Step(keys=["1", "2"], values=None)], [Step(keys=["3"], values=None)]]
    assert batch.rounds(2) == [out, [[Step(keys=["1"], values=["x"])], [Step(keys=["3"], values=["y"])]]]


def test_an_update_that_moves_a_row_takes_it_out_under_its_old_key() -> None:
    batch = collected([put("1", "a"), put("2", "b", "1"), put("2", "c", "2")])
    assert batch.rounds(1) == [[[Step(keys=["1"], values=None), Step(keys=["2"], values=["c"])]]]
    assert batch.has_deletes
    assert batch.count == 3


def test_near_rows_go_together() -> None:
    """Two connections in each other's neighborhood wait for each other's locks in turns."""
    batch = collected([put(key, "x") for key in ("'d'", "'a'", "'c'", "'b'")])
    assert [step.keys for [step] in batch.rounds(2)[0]] == [["'a'", "'b'"], ["'c'", "'d'"]]
    numbers = Batch(is_exact_key=True)
    for key in ("10", "9", "100", "11"):
        numbers.add(put(key, "x"))
    assert [step.keys for [step] in numbers.rounds(2)[0]] == [["9", "10"], ["11", "100"]]
