"""Copying before Spark has started: begun here, gone on with there, nothing twice."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from rowcopy_setup import PATHS, WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from tests.support import local_spark
from tests.support.flow import Run, wait_until
from vreplication.errors import Interrupted, Superseded, Transient
from vreplication.mysql.session import connect
from vreplication.planning.spec import Spec
from vreplication.rowcopy import ahead
from vreplication.settings import SIDECAR
from vreplication.state import ledger
from vreplication.workflows.online_ddl import run as online_ddl

FILL = (
    "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i, i FROM n",
)


@pytest.fixture
def case(database: Database) -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "ADD KEY (v)", FILL)


class Coming:
    """Spark is there when so many times somebody has asked."""

    def __init__(self, asked: int) -> None:
        self._left = asked

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0


def copy_ahead(case: CopyCase, path: str, asked: int, check: Any = lambda: None) -> None:
    job = case.job(path, chunk_rows=100)
    with case.gate_kept_open():
        ahead.copy_ahead(case.route, case.driver, case.mapping, job, is_over=Coming(asked), check=check)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asked", [0, 1, 4, 9, 1_000_000])
def test_another_goes_on_where_it_was_left(case: CopyCase, path: str, asked: int) -> None:
    splits = case.cut(4)
    copy_ahead(case, path, asked)
    found = ledger.totals(case.session, WORKFLOW)
    assert (found.rows_copied == 0) is (asked < 2)
    assert found.rows_copied <= 250, "the bulk is Spark's"
    assert asked < 1_000_000 or found.rows_copied == 250
    for split in splits:
        assert all(chunk.state != ledger.OPEN for chunk in case.chunks(split.number))
        assert case.copy(split.number, path, chunk_rows=100).error is None
    case.assert_same()
    totals = ledger.totals(case.session, WORKFLOW)
    # No row was read twice.
    assert (totals.rows_copied, totals.splits_done) == (1000, len(splits))
    assert not case.session.value(f"SELECT COALESCE(SUM(swallowed),0) FROM {SIDECAR}.chunk")


def test_it_can_be_stopped(case: CopyCase) -> None:
    case.cut(4)

    def check() -> None:
        raise Interrupted("Interrupted.")

    with pytest.raises(Interrupted):
        copy_ahead(case, "server", 1_000_000, check)


def test_what_may_succeed_later_is_left_to_spark(case: CopyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.cut(4)

    def fail(*_: Any, **__: Any) -> None:
        raise Transient("The server is away.")

    monkeypatch.setattr(ahead, "copy_split", fail)
    copy_ahead(case, "server", 1_000_000)


def test_who_was_taken_over_copies_nothing(case: CopyCase) -> None:
    case.cut(4)
    case.session.execute(f"UPDATE {SIDECAR}.lease SET token=token+1 WHERE workflow=%s AND role='driver'", (WORKFLOW,))
    with pytest.raises(Superseded):
        copy_ahead(case, "server", 1_000_000)
    assert case.rows(case.shadow) == []


class SlowStart(local_spark.LocalStart):
    """It is there once half of the table is."""

    half = threading.Event()

    def is_starting(self) -> bool:
        return not self.half.is_set()


@pytest.mark.usefixtures("quick")
def test_rows_come_before_spark(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        app.execute_raw(FILL[0])
    monkeypatch.setattr(ahead, "LEAST_ROWS", 1000)
    monkeypatch.setattr(SlowStart, "half", threading.Event())
    monkeypatch.setattr(online_ddl, "SparkStart", SlowStart)
    run = Run(Spec(table="t", alter="ADD KEY (v)", workflow="ahead", chunk_rows=50)).start(database.url)
    sql = f"SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow='ahead' AND landed_at IS NOT NULL"
    wait_until(lambda: int(database.admin.value(sql)) >= 10, "nothing is copied")
    SlowStart.half.set()
    assert run.result().event == "complete", run.said
    assert database.admin.value("SELECT SUM(v) FROM t") == 500_500
