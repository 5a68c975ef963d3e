"""The row copy as Spark jobs: locally, cancelled, and failing.

On a cluster: test_spark_cluster.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from rowcopy_setup import PATHS, WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from tests.support.flow import wait_until
from vreplication.errors import BadValue, Interrupted, Superseded
from vreplication.rowcopy.spark_job import run_copy
from vreplication.settings import SIDECAR
from vreplication.state import ledger

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILL = (
    "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i, i FROM n",
    *(f"INSERT INTO t SELECT id + {1000 << k}, v FROM t" for k in range(4)),
)


def case_of(database: Database, alter: str = "ADD KEY (v)") -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", alter, FILL)


def run(spark: Any, case: CopyCase, path: str = "server", on_tick: Any = None, **limits: Any) -> None:
    with case.gate_kept_open():
        run_copy(
            spark, case.route, case.driver, case.mapping, case.job(path, **limits),
            on_tick=on_tick or (lambda: None), tick_seconds=0.05,
        )  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_all_splits_are_copied(spark: Any, database: Database, path: str) -> None:
    case = case_of(database)
    ticks: list[None] = []
    assert len(case.cut(8)) == 8
    run(spark, case, path, on_tick=lambda: ticks.append(None), chunk_rows=700)
    case.assert_same()
    assert ticks
    totals = ledger.totals(case.session, WORKFLOW)
    assert totals.splits == totals.splits_done == 8
    assert totals.rows_copied == 16_000
    assert case.database.url.password not in repr(spark.getConf().getAll())


def test_only_as_many_tasks_as_allowed_run_at_a_time(spark: Any, database: Database) -> None:
    case = case_of(database)
    case.cut(4)
    at_once: list[int] = []

    def look() -> None:
        at_once.append(len(spark.statusTracker().getActiveJobsIds()))

    run(spark, case, chunk_rows=100, on_tick=look, copy_parallelism=1)
    case.assert_same()
    assert max(at_once) == 1


def test_done_splits_are_left_alone(spark: Any, database: Database) -> None:
    case = case_of(database)
    case.cut(4)
    assert case.copy(2).error is None
    run(spark, case)
    case.assert_same()
    assert [s.attempt for s in ledger.splits(case.session, WORKFLOW)] == [1, 1, 1, 1]


def test_error_of_an_executor_keeps_its_class(spark: Any, database: Database) -> None:
    case = case_of(database, "MODIFY v TINYINT")
    case.cut(4)
    with pytest.raises(BadValue, match="id=128: Out of range value for column 'v'"):
        run(spark, case, copy_parallelism=1)


def test_superseded_driver(spark: Any, database: Database) -> None:
    case = case_of(database)
    case.cut(2)
    case.session.execute(f"UPDATE {SIDECAR}.lease SET token=token+1 WHERE role='driver'")
    with pytest.raises(Superseded):
        run(spark, case)


def test_interrupt_ends_the_jobs_and_the_next_run_goes_on(spark: Any, database: Database) -> None:
    """One split cannot be done meanwhile: the application holds the place of its last row."""
    case = case_of(database)
    case.cut(4)

    def interrupt() -> None:
        if ledger.totals(case.session, WORKFLOW).chunks_landed >= 3:
            raise Interrupted("SIGINT")

    with case.app.transaction():
        case.app.execute_raw(f"INSERT INTO {case.shadow} SELECT * FROM t ORDER BY id DESC LIMIT 1")
        with pytest.raises(Interrupted):
            run(spark, case, on_tick=interrupt, chunk_rows=100)
        # Spark notes the end of a job behind the job's own answer.
        wait_until(lambda: spark.statusTracker().getActiveJobsIds() == [], "a job goes on")
        assert ledger.totals(case.session, WORKFLOW).splits_done < 4
        case.app.execute_raw(f"DELETE FROM {case.shadow} ORDER BY id DESC LIMIT 1")
    run(spark, case)
    case.assert_same()
