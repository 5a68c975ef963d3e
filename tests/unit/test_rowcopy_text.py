"""Sizes of chunks, cutting of row text, and names of Spark masters: no server needed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.errors import BadValue
from vreplication.mysql.values import readable
from vreplication.rowcopy.job import SplitResult
from vreplication.rowcopy.paths import batches, statements
from vreplication.rowcopy.sizing import FIRST_ROWS, MIN_ROWS, Sizer, next_rows
from vreplication.settings import MAX_CHUNK_ROWS, Limits
from vreplication.spark.start import DAEMON, _local_properties, local_master


@pytest.mark.parametrize(
    ("master", "is_ours"),
    [("local", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("spark://host:7077", False)],
)
def test_whose_workers_are_forked_from_our_process(master: str, is_ours: bool) -> None:
    """A cluster's executors may have our files only when a task brings them along."""
    assert (DAEMON in _local_properties(master).values()) is is_ours


def test_size_at_most_doubles_and_falls_at_once() -> None:
    assert next_rows(1000, 1000, 10, 500) == 2000
    assert next_rows(1000, 1000, 400, 500) == 1187
    assert next_rows(1000, 1000, 500, 500) == 1000
    assert next_rows(10_000, 10_000, 5000, 500) == 1000
    assert next_rows(200, 200, 60_000, 500) == MIN_ROWS
    assert next_rows(60_000, 60_000, 1, 500) == MAX_CHUNK_ROWS


def test_short_chunk_does_not_enlarge_the_next() -> None:
    assert next_rows(1000, 3, 1, 500) == 1000
    assert next_rows(1000, 3, 5000, 500) == MIN_ROWS


@pytest.mark.parametrize(("cost", "expected"), [(0.01, 50_000), (0.1, 5_000), (1.0, 500)])
def test_size_settles_where_a_chunk_takes_its_time(cost: float, expected: int) -> None:
    sizer = Sizer(limits=Limits(chunk_millis=500))
    for _ in range(20):
        sizer.learn(sizer.rows, sizer.rows * cost)
    assert sizer.rows == pytest.approx(expected, rel=0.05)


def test_fixed_size_stays() -> None:
    sizer = Sizer(limits=Limits(chunk_rows=7))
    sizer.learn(7, 0.1)
    assert sizer.rows == 7
    assert Sizer(limits=Limits(chunk_rows=10**9)).rows == MAX_CHUNK_ROWS


def test_wide_rows_bound_the_size() -> None:
    sizer = Sizer(limits=Limits())
    sizer.learn(FIRST_ROWS, 1.0, at_most=300)
    assert sizer.rows == 300


ROWS = st.lists(st.text("ab(),'", min_size=1, max_size=30), min_size=1, max_size=30)


@given(ROWS, st.integers(1, 80))
def test_statements_lose_nothing_and_keep_their_limit(rows: list[str], limit: int) -> None:
    pieces = list(statements(",\n".join(rows), limit))
    assert [row for piece in pieces for row in piece.split(",\n")] == rows
    assert all(len(piece) <= limit or ",\n" not in piece for piece in pieces)


@given(ROWS, st.integers(1, 80), st.integers(80, 100))
def test_batches_lose_nothing_and_keep_their_limit(rows: list[str], limit: int, longest: int) -> None:
    found = list(batches(((row, str(i)) for i, row in enumerate(rows)), limit, longest))
    texts = [piece for piece in found if isinstance(piece, str)]
    assert [row for piece in texts for row in piece.split(",\n")] == rows
    assert all(len(piece) <= limit or ",\n" not in piece for piece in texts)


def test_row_that_fits_no_statement_comes_as_its_key_and_in_its_place() -> None:
    rows = [("(1)", "1"), (None, "2", "x"), (b"(3)", "3"), ("(" + "9" * 50 + ")", "4"), ("(5)", "5")]
    assert list(batches(rows, 20, 40)) == ["(1)", ("2", "x"), "(3)", ("4",), "(5)"]


def test_masters() -> None:
    assert local_master("local[*]", 3) == "local[64,4]"
    assert local_master("local[*]", 99) == "local[99,4]"
    assert local_master("local[8]", 3) == "local[8,4]"
    assert local_master("local", 3) == "local[1,4]"
    for master in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "local[2,1]"):
        assert local_master(master, 3) == master


def test_literals_for_people() -> None:
    assert readable("5") == "5"
    assert readable("_utf8mb4 X'c3a9'") == "'é'"
    assert readable("_latin1 X'E9'") == "'é'"
    assert readable("X'00ff'") == "X'00ff'"
    assert readable("_utf8mb4 X'ff'") == "_utf8mb4 X'ff'"


def test_results_cross_process_borders() -> None:
    result = SplitResult(number=3, error=BadValue("no", cure="mend"))
    copy = pickle.loads(pickle.dumps(result))
    assert (copy.number, type(copy.error), str(copy.error)) == (3, BadValue, "no mend")
