"""Verification without a server: how the key space is cut, what differs, and how the spans are handed out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from vreplication.errors import Interrupted, Terminal, Transient
from vreplication.schema.checksum import Checksum, RowHash
from vreplication.schema.model import Column, ColumnPair, Table, TableMapping
from vreplication.state.ledger import Chunk, KeyRange, Split
from vreplication.verify import ranges, scan, spark_job
from vreplication.verify.ranges import EVERYTHING, Span


@pytest.fixture(autouse=True)
def _without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark keeps that of a test before, and asks for a context there when a thread begins."""
    monkeypatch.setattr(SparkContext, "_gateway", None)


def key_range(lower: int, upper: int) -> KeyRange:
    return KeyRange(lower=(str(lower),), upper=(str(upper),), has_lower=lower == 0)


def chunk(split: int, ordinal: int) -> Chunk:
    lower = 100 * split + 10 * ordinal
    bounds = key_range(lower, lower + 10)
    return Chunk(split=split, ordinal=ordinal, attempt=1, state="matched", range=bounds, rows_copied=40_000)


def mapping(width: int = 100) -> TableMapping:
    column = Column(name="id", ordinal=1, data_type="int", column_type="int", is_nullable=False)
    table = Table(
        schema="s", name="t", engine="InnoDB", columns=(column,), keys=(), create_sql="", estimated_rows=1000,
        data_bytes=1000 * width,
    )  # fmt: skip
    pair = ColumnPair(source=column, target=column)
    return TableMapping(
        source=table, target=table, pairs=(pair,), key=(pair,), source_index="PRIMARY", target_index="PRIMARY"
    )


def cut(monkeypatch: pytest.MonkeyPatch, splits: list[Split], chunks: list[Chunk]) -> list[Span]:
    monkeypatch.setattr(ranges.ledger, "splits", lambda session, workflow: splits)
    monkeypatch.setattr(ranges.ledger, "chunks", lambda session, workflow: chunks)
    return ranges.spans(None, "wf", mapping())  # type: ignore[arg-type]


def test_spans_tile_the_key_space(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = [Split(number=i, range=key_range(100 * i, 100 * i + 100), estimated_rows=0) for i in range(3)]
    repair = Split(number=1_000_000, range=key_range(5, 7), estimated_rows=0)
    chunks = [chunk(s, o) for s in range(3) for o in range(10)]
    found = cut(monkeypatch, [*splits, repair], chunks)
    assert found[0].lower is None
    assert found[-1].upper is None
    assert all(one.upper == other.lower for one, other in pairwise(found))
    assert len({span.upper for span in found}) == len(found)
    assert ("300",) in {span.upper for span in found}
    assert len(found) == 2 + 3 * 5


def test_without_a_ledger_everything_is_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut(monkeypatch, [], []) == [EVERYTHING]


def test_split_without_chunks_is_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cut(monkeypatch, [Split(number=0, range=key_range(0, 9), estimated_rows=0)], [])
    assert [(s.lower, s.upper) for s in found] == [(None, ("0",)), (("0",), ("9",)), (("9",), None)]


@pytest.mark.parametrize(("width", "rows"), [(10, 100_000), (10_000, 6_710), (10_000_000, 2_000)])
def test_wide_rows_make_short_spans(width: int, rows: int) -> None:
    assert ranges.span_rows(mapping(width)) == rows


def test_buckets_that_differ() -> None:
    one = {1: Checksum(rows=2, folded=7), 2: Checksum(rows=1, folded=8), 3: Checksum(rows=5, folded=1)}
    other = {1: Checksum(rows=2, folded=7), 2: Checksum(rows=1, folded=9), 4: Checksum(rows=6, folded=1)}
    assert scan.differing(one, other) == {2: 1, 3: 5, 4: 6}
    assert scan.choose({2: 1, 3: 5, 4: 6}, 6) == ([2, 3], 6)
    assert scan.choose({2: 9}, 6) == ([2], 0)
    assert scan.choose({}, 6) == ([], 0)


def test_unequal_keys_of_both_sides() -> None:
    def row(name: str, value: str, key: str) -> RowHash:
        return RowHash(ident=name, value=value, key=key)

    ours = [row("a", "1", "_latin1 X'61'"), row("b", "1", "2"), row("c", "1", "3")]
    theirs = [row("a", "2", "_utf8mb4 X'61'"), row("b", "1", "2"), row("d", "1", "4")]
    assert scan.unequal_keys(ours, theirs) == ["_latin1 X'61'", "_utf8mb4 X'61'", "3", "4"]


def test_checksums_of_ranges_add_up() -> None:
    assert Checksum(rows=1, folded=5) + Checksum(rows=2, folded=3) == Checksum(rows=3, folded=6)


class FakeSpark:
    """Runs a job in the thread that submits it."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self._turn = threading.Lock()

    def setJobGroup(self, group: str, description: str) -> None:
        assert "secret" not in group + description

    def cancelJobGroup(self, group: str) -> None:
        pass

    def parallelize(self, batches: list[Any], slices: int) -> FakeSpark:
        self._batches = threading.local()
        self._batches.found = batches
        return self

    def map(self, work: Callable[[Any], Any]) -> FakeJob:
        return FakeJob(self, work, self._batches.found)


class FakeJob:
    def __init__(self, spark: FakeSpark, work: Callable[[Any], Any], batches: list[Any]) -> None:
        self.spark, self.work, self.batches = spark, work, batches

    def collect(self) -> list[Any]:
        with self.spark._turn:
            self.spark.running += 1
            self.spark.most = max(self.spark.most, self.spark.running)
        try:
            return [self.work(batch) for batch in self.batches]
        finally:
            with self.spark._turn:
                self.spark.running -= 1


class NoRoute:
    """To no server; its password is seen nowhere."""

    password = "secret"

    @contextmanager
    def open(self, **_: object) -> Iterator[None]:
        yield None


SPANS = [Span(lower=(str(i),), upper=(str(i + 1),)) for i in range(20)]


def run(
    work: Callable[[Any, Span], Any],
    *,
    more: Callable[[Any], list[Span]] = lambda result: [],
    check: Callable[[], None] = lambda: None,
) -> list[Any]:
    found: list[Any] = []

    def take(result: Any) -> list[Span]:
        found.append(result)
        return more(result)

    spark = FakeSpark()
    spark_job.run_all(spark, NoRoute(), work, SPANS, take, parallelism=2, check=check)  # type: ignore[arg-type]
    assert spark.most <= 2
    return found


def test_every_span_is_answered_once() -> None:
    found = run(lambda ends, span: span)
    assert sorted(found, key=lambda s: int(s.lower[0])) == SPANS


def test_results_may_ask_for_more() -> None:
    extra = Span(lower=("99",), upper=None)
    found = run(lambda ends, span: span, more=lambda span: [extra] if span == SPANS[19] else [])
    assert found.count(extra) == 1
    assert len(found) == 21


def test_lost_connection_is_tried_again(tmp_path: Path) -> None:
    # Where each task, which has a copy of all that it is given, writes down its own.
    lost = tmp_path / "lost"
    lost.touch()

    def work(ends: Any, span: Span) -> Span:
        if span == SPANS[3] and len(lost.read_text()) < 2:
            lost.write_text(lost.read_text() + "x")
            raise Transient("lost")
        return span

    assert set(run(work)) == set(SPANS)
    assert lost.read_text() == "xx"


@pytest.mark.parametrize("kind", [Transient, Terminal])
def test_lasting_error_comes_out(kind: type[Exception]) -> None:
    def work(ends: Any, span: Span) -> Span:
        if span == SPANS[3]:
            raise kind("no")
        return span

    with pytest.raises(kind, match="no"):
        run(work)


def test_check_stops_the_run() -> None:
    def check() -> None:
        raise Interrupted("stop")

    with pytest.raises(Interrupted):
        run(lambda ends, span: span, check=check)
