"""Two backfills of one table at one time: what overlaps excludes one another, and an older run changes nothing late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from backfill_setup import DAY, Case
from rowcopy_setup import wait_until

from sandbox.databases import Database
from tests.support.local_spark import LocalSpark
from vreplication.backfill import places
from vreplication.backfill.places import PlaceLost
from vreplication.backfill.run import Result, run
from vreplication.backfill.upsert import Upsert
from vreplication.errors import Interrupted, LeaseHeld
from vreplication.mysql.processes import processes
from vreplication.spark import jobs

OLD = "INSERT INTO s VALUES (1,'old','2026-03-01 10:00'),(2,'old','2026-03-01 11:00'),(3,'old','2026-03-02 10:00')"
HOUR = timedelta(hours=1)


@pytest.fixture
def case(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(places, "PATIENCE_SECONDS", 0.0)
    with closing(Case(source=database, target=database)) as made:
        made.write(OLD)
        yield made


class Slow:
    """A run of the day whose slice stands still between its read and its write."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.stop = case, threading.Event()
        self.here, self.go = threading.Event(), threading.Event()
        self.task: threading.Thread | None = None
        real = Upsert._insert

        def insert(upsert: Upsert, *args: object) -> object:
            if self.task is None:
                self.task = threading.current_thread()
                self.here.set()
                assert self.go.wait(60)
            return real(upsert, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Upsert, "_insert", insert)

    @contextmanager
    def running(self) -> Iterator[Future[Result]]:
        job, (reader, writer) = self.case.job(), (self.case.reader, self.case.writer)
        with ThreadPoolExecutor() as pool:
            try:
                found = pool.submit(run, job, reader, writer, *DAY, spark=LocalSpark(), stop=self.stop)
                assert self.here.wait(60)
                yield found
            finally:
                self.go.set()

    def finish(self) -> None:
        """The executor goes on, whatever became of its run."""
        self.go.set()
        assert self.task is not None
        self.task.join(60)
        assert not self.task.is_alive()


@pytest.fixture
def slow(case: Case, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(jobs, "STOP_SECONDS", 0.0)
    return Slow(case, monkeypatch)


def test_an_older_run_that_was_cut_off_changes_nothing_behind_a_newer_one(case: Case, slow: Slow) -> None:
    """Airflow has cleared its task; its executor is still at work."""
    with slow.running() as first:
        slow.stop.set()
        with pytest.raises(Interrupted, match="Interrupted") as caught:
            first.result(60)
        assert str(caught.value).endswith("What this run wrote has not been compared.")
        case.write("UPDATE s SET v='new'")
        assert case.run().verified
        slow.finish()
    assert [row[:2] for row in case.rows()] == [(1, "new"), (2, "new")]


@pytest.mark.parametrize(("beat", "words"), [(60.0, "has lost its lock on the interval"), (0.05, "interval is gone: ")])
def test_a_run_that_lost_its_session_commits_nothing_and_may_be_tried_again(
    case: Case, slow: Slow, monkeypatch: pytest.MonkeyPatch, beat: float, words: str
) -> None:
    """The server ended it, or the run stood still for minutes: another run may have begun."""
    admin = case.target.admin
    monkeypatch.setattr(places, "_BEAT_SECONDS", beat)
    with slow.running() as first:
        table = places._Table(session=admin, name=f"{case.target.name}.t")
        (holder,) = table._holders([table._place(0)])
        assert holder
        admin.execute_raw(f"KILL {holder}")
        wait_until(lambda: holder not in processes(admin))
        if beat > 1:
            slow.finish()
        with pytest.raises(PlaceLost, match=words) as caught:
            first.result(60)
        slow.finish()
    assert str(caught.value).endswith("What this run wrote has not been compared.")
    assert case.rows() == []
    assert case.run().verified


@pytest.mark.parametrize(
    ("start", "end"),
    [(DAY[0], DAY[1]), (DAY[0] - HOUR, DAY[0] + timedelta(microseconds=1)), (DAY[0] + HOUR, DAY[0] + 2 * HOUR)],
    ids=["the same", "the first moment", "within"],
)
def test_an_interval_that_overlaps_is_refused_by_name(case: Case, slow: Slow, start: datetime, end: datetime) -> None:
    with slow.running() as first:
        with pytest.raises(LeaseHeld, match=r"in use on .*t, by the backfill of connection .*, which writes 2026-03"):
            case.run(start, end)
        slow.finish()
        assert first.result(60).verified
    assert case.run(start, end).verified


def test_another_time_column_overlaps_always(case: Case, slow: Slow) -> None:
    for table in ("s", "t"):
        case.source.admin.execute_raw(f"ALTER TABLE {table} ADD seen DATETIME DEFAULT '2020-01-01'")
    with slow.running(), pytest.raises(LeaseHeld):
        case.run(DAY[1], DAY[1] + HOUR, time_column="seen")


def test_intervals_side_by_side_do_not_wait(case: Case, slow: Slow) -> None:
    with slow.running() as first:
        assert case.run(DAY[0] - HOUR, DAY[0]).verified
        assert case.run(DAY[1], DAY[1] + 24 * HOUR).inserted == 1
        slow.finish()
        assert first.result(60).inserted == 2


def test_the_next_one_waits(case: Case, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE_SECONDS", 60.0)
    told: list[str] = []

    def let_go(text: str) -> None:
        told.append(text)
        slow.go.set()

    with slow.running() as first:
        again = run(case.job(), case.reader, case.writer, *DAY, spark=LocalSpark(), notify=let_go)
        assert (first.result(60).inserted, again.unchanged) == (2, 2)
    assert told[0].startswith("j: waiting for the backfill of connection ")


class KeptOn(LocalSpark):
    """An executor is lost with a slice that it still works on, and the slice is given to another one."""

    def __init__(self, slow: Slow) -> None:
        self.slow, self.jobs = slow, 0

    def parallelize(self, items: Sequence[Any], _: int = 1) -> Any:
        self.jobs += 1
        return _Kept(super().parallelize(items), self)


@dataclass
class _Kept:
    rdd: Any
    spark: KeptOn

    def map(self, function: Callable[[Any], Any]) -> Any:
        slow = self.spark.slow
        if self.spark.jobs == 1:
            threading.Thread(target=self.rdd.map, args=(function,)).start()
            assert slow.here.wait(60)
            slow.case.write("UPDATE s SET v='new'")
        found = self.rdd.map(function)
        if self.spark.jobs == 2:
            slow.finish()
        return found


def test_a_slice_that_a_lost_executor_has_kept_changes_nothing_behind_the_comparison(case: Case, slow: Slow) -> None:
    assert case.run(spark=KeptOn(slow)).verified
    assert [row[:2] for row in case.rows()] == [(1, "new"), (2, "new")]
