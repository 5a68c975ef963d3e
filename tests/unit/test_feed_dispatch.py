"""The matrix of docs/changefeed.md: each "yes" holds over drawn histories, each "no" is broken by a stored one."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dispatched import LAYOUTS, Folding, History, Log, Target, ended, histories, layout, rows, sent
from vreplication.errors import Refused
from vreplication.feed.dispatch import Dispatcher, parse
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Place, Row
from vreplication.feed.snapshot import unreadable
from vreplication.schema.model import Column

PARTITIONS = 3


# What is promised, of the logs of all partitions. Each says the first thing that breaks it.


def placed(logs: list[Log]) -> Iterator[tuple[int, Row]]:
    return ((number, m) for number, log in enumerate(logs) for m in log if isinstance(m, Row))


def row_order(logs: list[Log]) -> str | None:
    """All changes of a row stand in one partition, in the order of the log."""
    where: dict[object, int] = {}
    last: dict[object, Place] = {}
    for number, row in placed(logs):
        for id in {image[0] for image in (row.before, row.after) if image is not None}:
            key = row.layout.table, id
            if where.setdefault(key, number) != number:
                return f"row {key} is in {where[key]} and {number}"
            if row.place < last.get(key, row.place):
                return f"row {key} at {row.place} is behind {last[key]}"
            last[key] = row.place
    return None


def table_order(logs: list[Log]) -> str | None:
    """... of a table."""
    where: dict[str, int] = {}
    last: dict[str, Place] = {}
    for number, row in placed(logs):
        table = row.layout.table
        if where.setdefault(table, number) != number or row.place < last.get(table, row.place):
            return f"table {table} is in {where[table]} and {number}, or not in order"
        last[table] = row.place
    return None


def whole(logs: list[Log]) -> str | None:
    """What a transaction changes of a table stands in one partition."""
    where: dict[tuple[str, int], int] = {}
    for number, row in placed(logs):
        key = row.layout.table, row.place.t
        if where.setdefault(key, number) != number:
            return f"transaction {row.place.t} of table {row.layout.table} is in {where[key]} and {number}"
    return None


def prefix(logs: list[Log]) -> str | None:
    """Whatever the way: each partition is in the order of the log (2.1)."""
    for log in logs:
        places = [m.place for m in log if isinstance(m, Row)]
        if places != sorted(places):
            return f"{places}"
    return None


Promise = Callable[[list[Log]], str | None]
WAYS = ("table", "index-value", "columns:a", "ts", "conflict")
YES: list[tuple[str, Promise]] = [
    *(("table", promise) for promise in (row_order, table_order, whole)),
    *((way, row_order) for way in ("index-value", "conflict")),
    # All rows of a transaction have one time.
    ("ts", whole),
    *((way, prefix) for way in WAYS),
]
ONE, TWO, THREE = (1, 0, None), (2, 0, None), (3, 1, None)
SEVERAL: History = [[("t", None, ONE), ("t", None, TWO), ("t", None, THREE)]]
"""One transaction with three rows."""
FOUR_TIMES: History = [[("t", None, ONE)], [("t", ONE, (1, 1, None))], [("t", (1, 1, None), (1, 2, None))]]
"""One row, in transactions that follow each other, and whose column a changes."""
KEY_CHANGE: History = [[("t", None, ONE)], [("t", ONE, TWO)], [("t", TWO, THREE)]]
"""A row whose key changes, in turn."""
NO: list[tuple[str, Promise, History]] = [
    ("index-value", table_order, SEVERAL),
    ("index-value", whole, SEVERAL),
    ("index-value", whole, KEY_CHANGE),
    ("columns:a", row_order, FOUR_TIMES),
    ("columns:a", table_order, SEVERAL),
    ("columns:a", whole, SEVERAL),
    ("ts", row_order, FOUR_TIMES),
    ("ts", table_order, FOUR_TIMES),
    ("conflict", table_order, SEVERAL),
    ("conflict", whole, SEVERAL),
]


@pytest.mark.parametrize(("way", "promise"), YES, ids=lambda each: getattr(each, "__name__", each))
@given(history=histories())
def test_what_is_promised_holds(way: str, promise: Promise, history: History) -> None:
    assert promise(sent(way, history, PARTITIONS)) is None


@given(history=histories(steady=True))
def test_by_columns_a_row_stays_as_long_as_they_do(history: History) -> None:
    assert row_order(sent("columns:a", history, PARTITIONS)) is None


@given(history=histories())
def test_by_columns_no_key_is_in_two_partitions_before_one_is_given_up(history: History) -> None:
    dispatcher, where = Dispatcher(parse("columns:a"), PARTITIONS, Folding()), dict[object, int]()
    for row in rows(history):
        places = dispatcher.placed(row)
        if dispatcher.gives_up(row, is_split=len(places) > 1):
            return
        for partition, each in places:
            for image in filter(None, (each.before, each.after)):
                assert where.setdefault((row.layout.table, image[0]), partition) == partition


@pytest.mark.parametrize(("way", "promise", "history"), NO, ids=lambda each: getattr(each, "__name__", None))
def test_what_is_not_promised_does_not_hold(way: str, promise: Promise, history: History) -> None:
    assert promise(sent(way, history, PARTITIONS)) is not None


def test_each_cell_of_the_matrix_is_looked_at() -> None:
    """columns: row order is a yes and a no."""
    cells = {(way, promise) for way, promise in YES} | {(way, promise) for way, promise, _ in NO}
    assert {(way, promise) for way in WAYS for promise in (row_order, table_order, whole)} <= cells


# Unique values in row mode: what comes of it in the target, whoever is quicker.

SWAPPED: History = [
    [("t", None, (1, 0, "x"))],
    [("t", (1, 0, "x"), (1, 0, None))],
    [("t", None, (3, 1, "X"))],
]
"""Row 3 takes a value over from row 1, which has come first. Read the other way round, it is lost."""


@given(history=histories(), data=st.data())
def test_by_conflict_and_by_table_the_target_becomes_the_source(history: History, data: st.DataObject) -> None:
    for way in ("conflict", "table"):
        draw = data.draw(st.randoms(use_true_random=False), label=way)
        assert Target(sent(way, history, PARTITIONS)).read(draw.choice) == ended(history)


@pytest.mark.parametrize("way", ["index-value", "columns:a", "ts"])
def test_by_other_ways_it_may_not(way: str) -> None:
    orders: list[Callable[[list[int]], int]] = [min, max]
    assert any(Target(sent(way, SWAPPED, PARTITIONS)).read(order) != ended(SWAPPED) for order in orders)


# Even: how many rows more than the mean the fullest partition has.

MANY = 100_000


def _uneven(dispatcher: Dispatcher, of: Layout, images: Iterator[tuple[object, ...]], spread: int = 1) -> float:
    draw = random.Random(1)
    counts = Counter(dispatcher.of(of, image, draw.randrange(1 << 50)) for image in images)
    return max(counts.values()) / (sum(counts.values()) / dispatcher.partitions)


def _text_key() -> Layout:
    """By a UUID as text."""
    whole = LAYOUTS["t"]
    return layout("t", 7, key=("u",), columns=(*whole.columns[:2], _not_null(whole.columns[2])))


def _not_null(column: Column) -> Column:
    return Column(**{**{name: getattr(column, name) for name in Column.__slots__}, "is_nullable": False})


@pytest.mark.parametrize("partitions", [2, 4, 16])
@pytest.mark.parametrize("way", ["index-value", "ts", "conflict"])
def test_uniform_keys_are_spread_evenly(way: str, partitions: int) -> None:
    dispatcher = Dispatcher(parse(way), partitions, Folding())
    assert _uneven(dispatcher, LAYOUTS["t"], ((id, 0, None) for id in range(MANY))) <= 1.2
    draw = random.Random(2)
    names = (str(uuid.UUID(int=draw.getrandbits(128))) for _ in range(MANY))
    assert _uneven(dispatcher, _text_key(), ((1, 0, name) for name in names)) <= 1.2


@pytest.mark.parametrize(("way", "most"), [("table", 1), ("columns:a", 2)])
def test_other_ways_are_as_even_as_the_data_is(way: str, most: int) -> None:
    """One table; a column with two values."""
    dispatcher = Dispatcher(parse(way), 8, Folding())
    assert _uneven(dispatcher, LAYOUTS["t"], ((id, id % 2, None) for id in range(1000))) >= 8 / most
    if way == "columns:a":
        assert _uneven(dispatcher, LAYOUTS["t"], ((0, id, None) for id in range(MANY))) <= 1.2


# What is refused.


@pytest.mark.parametrize("way", ["index-value", "conflict"])
def test_a_table_without_a_key_is_refused_by_name(way: str) -> None:
    without = layout("bare", 9, key=("id", "a", "u"), has_key=False, is_primary=False, distinct=())
    with pytest.raises(Refused, match=r"Table d\.bare has no unique key without NULLs"):
        Dispatcher(parse(way), 2, Folding()).check(without)


@pytest.mark.parametrize(
    ("kind", "collation", "is_refused"),
    [
        ("char", "utf8mb4_uca1400_nopad_ai_ci", True),
        ("char", "utf8mb4_0900_ai_ci", False),
        ("varchar", "utf8mb4_nopad_bin", False),
    ],
)
def test_a_key_of_which_no_range_can_be_read_has_no_snapshot(kind: str, collation: str, is_refused: bool) -> None:
    """MariaDB sorts a CHAR under a NOPAD collation otherwise than it compares it."""
    text = Column(name="k", ordinal=1, data_type=kind, column_type=kind, is_nullable=False, collation=collation)
    found = unreadable(layout("t", columns=(text,), key=("k",)))
    assert (found is not None) == is_refused
    assert found is None or "CHAR under a NOPAD collation" in found[0]


def test_rules_are_read_and_written_alike() -> None:
    assert [str(parse(way)) for way in WAYS] == list(WAYS)
    with pytest.raises(Refused, match="is not known"):
        parse("conflict:a")


def test_a_history_is_one_of_the_source() -> None:
    """Of the places that rows get."""
    places = [row.place for row in rows(SEVERAL)]
    assert places == [Place(1, 0), Place(1, 1), Place(1, 2)]
