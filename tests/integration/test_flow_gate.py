"""Held at the gate: catch-up goes on, verification is repeated, and a release does not wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark
from tests.support.dag_runs import now_open, opens_soon
from tests.support.flow import Run, begin, let_go, paused_at, wait_reached, wait_until
from vreplication import names
from vreplication.engine import maintenance
from vreplication.errors import Refused, Transient
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.spec import Spec
from vreplication.progress import snapshot
from vreplication.spark.session import SparkAway
from vreplication.state import gate, journal, verdicts, workflows
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import comparing
from vreplication.workflows.online_ddl import run as online_ddl

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ROWS = 300
"""More than are repaired key by key when all of them are wrong."""


@pytest.fixture
def table(database: Database) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(ROWS)))


@pytest.fixture
def held(database: Database, table: None) -> Run:
    """A workflow that waits for its release, and verifies again every half second."""
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0.5 / 60)
    with connect(database.url) as session:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
    return run


def phase(session: Session, run: Run) -> Phase | None:
    row = workflows.find(session, run.workflow)
    return row.phase if row else None


def damage(database: Database, rows: int = 1) -> None:
    """As a fault of ours would: without a word in the log."""
    database.admin.execute_raw("SET sql_log_bin=0")
    database.admin.execute_raw(f"UPDATE t__vr_new SET a=-1 ORDER BY id LIMIT {rows}")
    database.admin.execute_raw("SET sql_log_bin=1")


def test_what_goes_wrong_while_it_waits_is_found_and_mended(held: Run, database: Database) -> None:
    damage(database)
    with connect(database.url) as session, connect(database.app_url) as app:
        wait_until(lambda: _events(session, held).count("mismatch") == 1, "it is not found")
        app.execute_raw(f"INSERT INTO t VALUES ({ROWS},{ROWS})")
        wait_until(lambda: _is_clean(session, held, ROWS + 1), "it is not verified again")
        wait_until(lambda: phase(session, held) is Phase.WAITING, "it does not wait on")
        operate.release(database.url, held.workflow, "ann")
        assert held.result().event == "complete"
        assert _is_right(app, ROWS + 1)


def test_what_is_wrong_is_mended_where_labels_are_the_key(database: Database) -> None:
    """And have other numbers in the new definition."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT, e ENUM('x','y') NOT NULL, a INT, PRIMARY KEY (e, id)) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO t VALUES (1,'x',1),(2,'x',2),(1,'y',3),(2,'y',4)")
    run = begin(database, "t", "MODIFY e ENUM('y','x') NOT NULL", cutover="manual", verify_every_minutes=0.5 / 60)
    with connect(database.url) as session, connect(database.app_url) as app:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
        damage(database, 3)
        wait_until(lambda: _events(session, run).count("mismatch") == 1, "it is not found")
        wait_until(lambda: _is_clean(session, run, 4), "it is not verified again")
        operate.release(database.url, run.workflow, "ann")
        assert run.result().event == "complete"
        assert app.rows("SELECT id, e, a FROM t ORDER BY a") == [(1, "x", 1), (2, "x", 2), (1, "y", 3), (2, "y", 4)]


def test_a_release_does_not_wait_for_a_verification_that_another_one_holds_up(
    database: Database, table: None, pauses: Path
) -> None:
    """One by hand whose process has been stopped, say: it keeps every other away."""
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0.5 / 60)
    with connect(database.url) as session, connect(database.url) as other:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
        assert other.value("SELECT GET_LOCK(%s, 30)", (f"vreplication.{names.suspect_table(run.workflow)}",)) == 1
        wait_until(lambda: phase(session, run) is Phase.VERIFYING, "it is not verified again")
        operate.release(database.url, run.workflow, "ann")
        assert run.result().event == "complete"


class AwayLater(local_spark.LocalStart):
    """It is there for copy and verification, and then no more."""

    asked = 0

    def context(self, check: Callable[[], None] = lambda: None) -> Any:
        AwayLater.asked += 1
        if AwayLater.asked > 2:
            raise SparkAway("Spark did not start: no memory.")
        return super().context()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_verification_at_the_gate_that_does_not_come_to_its_end(
    database: Database, table: None, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    """The one before counts, unless this one has found something wrong: that has to be seen right first."""
    known, calls = comparing.verify, [0]

    def later(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            return known(*given, **more)
        if is_wrong:
            more["repair"]([])
        raise Transient("Catch-up did not reach a marker in time.")

    monkeypatch.setattr(comparing, "verify", later)
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0.5 / 60)
    wait_until(lambda: calls[0] > 1, "it is not verified again")
    if is_wrong:
        assert run.result().event != "complete"
        return
    operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete"


class SlowLater(local_spark.LocalStart):
    """It is there for copy and verification; then it has no place to run in."""

    asked = 0

    def context(self, check: Callable[[], None] = lambda: None) -> Any:
        SlowLater.asked += 1
        while SlowLater.asked > 2:
            check()
            time.sleep(0.01)
        return super().context()


@pytest.mark.parametrize("start", [AwayLater, SlowLater])
def test_a_verified_workflow_does_not_need_spark_again(
    database: Database, table: None, monkeypatch: pytest.MonkeyPatch, start: type[Any]
) -> None:
    monkeypatch.setattr(online_ddl, "SparkStart", start)
    monkeypatch.setattr(start, "asked", 0)
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0.5 / 60)
    wait_until(lambda: start.asked > 2, "it is not verified again")
    with connect(database.url) as session:
        wanted = Phase.WAITING if start is AwayLater else Phase.VERIFYING
        wait_until(lambda: phase(session, run) is wanted, "it has ended")
    operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete", run.said


def _is_clean(session: Session, run: Run, rows: int) -> bool:
    verdict, seen = verdicts.load(session, run.workflow), snapshot.read(session, run.workflow)
    assert verdict is not None
    assert seen.verified_seconds_ago is not None
    return (verdict.mismatches, verdict.rows_compared) == (0, rows) and seen.verified_seconds_ago < 10


def _is_right(app: Session, rows: int) -> bool:
    return app.row("SELECT COUNT(*), SUM(a = id) FROM t") == (rows, rows)


def _events(session: Session, run: Run) -> list[str]:
    return [entry["event"] for entry in journal.read(session, run.workflow)]


def test_a_release_ends_a_verification_that_is_under_way(held: Run, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "verify.began"):
        wait_reached(pauses, "verify.began", held)
        with connect(database.url) as session:
            assert phase(session, held) is Phase.VERIFYING
            before = verdicts.load(session, held.workflow)
        operate.release(database.url, held.workflow, "ann")
    assert held.result().event == "complete"
    assert any("verification interrupted" in line for line in held.said)
    with connect(database.url) as session:
        assert verdicts.load(session, held.workflow) == before


def test_rows_that_differ_are_mended_whoever_waits(
    held: Run, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release only ends a verification that has found nothing."""
    monkeypatch.setattr(comparing, "_ASK_SECONDS", 0.0)
    with paused_at(pauses, "verify.began"):
        wait_reached(pauses, "verify.began", held)
        damage(database, ROWS)
        with paused_at(pauses, "copy.after_open"):
            let_go(pauses, "verify.began")
            wait_reached(pauses, "copy.after_open", held)
            operate.release(database.url, held.workflow, "ann")
    with connect(database.app_url) as app, connect(database.url) as session:
        wait_until(lambda: not held.is_going, "it does not end")
        assert _is_right(app, ROWS)
        assert "mismatch" in _events(session, held)


def test_a_hot_row_that_differs_under_the_lock_is_copied_again(database: Database, pauses: Path, table: None) -> None:
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0)
    with connect(database.url) as session, connect(database.app_url) as app:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
        verdict = verdicts.load(session, run.workflow)
        assert verdict is not None
        # As if the first row had changed too often to be compared under live writes.
        verdicts.save(session, run.workflow, replace(verdict, hot_keys=(("0",),)))
        with paused_at(pauses, "cutover.after_barrier"):
            operate.release(database.url, run.workflow, "ann")
            wait_reached(pauses, "cutover.after_barrier", run)
            damage(database)
        wait_until(lambda: not run.is_going, "it does not end")
        assert any("differ under the lock" in line and "comparing them again" in line for line in run.said), run.said
        assert phase(session, run) is Phase.COMPLETE
        assert _is_right(app, ROWS)


def test_a_row_that_never_rests(database: Database, table: None) -> None:
    """Verified under the lock at last, if not before; no write of it is lost."""
    stop, written = threading.Event(), []

    def write() -> None:
        with connect(database.app_url) as app:
            while not stop.is_set():
                written.append(app.execute_raw("UPDATE t SET a=a+1 WHERE id=1"))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    run = begin(database, "t", "ADD COLUMN z INT")
    try:
        result = run.result()
    finally:
        stop.set()
        writer.join(60)
    assert result.event == "complete", (result, run.said)
    with connect(database.app_url) as app:
        assert app.value("SELECT a FROM t WHERE id=1") == 1 + len(written)
        assert written == [1] * len(written)


def test_a_rejection_cancels_in_the_name_of_who_gave_it(held: Run, database: Database) -> None:
    operate.reject(database.url, held.workflow, "bob")
    assert held.result().event == "cancelled"
    with connect(database.url) as session, connect(database.app_url) as app:
        told = [(e["event"], e["actor"]) for e in journal.read(session, held.workflow)]
        assert ("rejected", "bob") in told
        assert ("cancel requested", "bob") in told
        assert app.rows("SHOW TABLES") == [("t",)]
    with pytest.raises(Refused, match="has ended"):
        operate.release_once(database.url, held.workflow, "ann")


def test_who_was_first_has_released_it_and_a_rejection_comes_too_late(held: Run, database: Database) -> None:
    operate.release_once(database.url, held.workflow, "ann")
    assert held.result().event == "complete"
    operate.release_once(database.url, held.workflow, "bob")
    with connect(database.url) as session:
        assert [e["actor"] for e in journal.read(session, held.workflow) if e["event"] == "released"] == ["ann"]
    with pytest.raises(Refused, match="cannot be cancelled"):
        operate.reject(database.url, held.workflow, "bob")
    with connect(database.url) as session:
        assert "rejected" not in _events(session, held)


@pytest.mark.in_turn("mysql")
def test_an_open_window_releases_and_a_closed_one_holds(database: Database, table: None) -> None:
    """Of the command itself, with nobody else who watches the clock."""
    closed, _ = opens_soon()
    run = begin(database, "t", "ADD COLUMN z INT", cutover_window=closed)
    with connect(database.url) as session:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
        assert gate.released_by(session, run.workflow) is None
        operate.release(database.url, run.workflow, "ann")
        assert run.result().event == "complete"
        run = begin(database, "t", "ADD COLUMN y INT", cutover_window=(window := now_open()))
        assert run.result().event == "complete"
        actors = {entry["actor"] for entry in journal.read(session, run.workflow) if entry["event"] == "released"}
    assert actors == {maintenance.named(window)}


def test_a_pause_that_comes_behind_the_gate_holds_the_switch(database: Database, table: None, pauses: Path) -> None:
    """Between the last look at the gate and the lock, which may be seconds where writes have to be compared."""
    with paused_at(pauses, "workflow.gate_open"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.gate_open", run)
        operate.pause(database.url, run.workflow, "ann")
        let_go(pauses, "workflow.gate_open")
        with connect(database.url) as session:
            wait_until(lambda: "paused" in waits_for(session, run), "it does not say that it is paused")
            assert not workflows.load(session, run.workflow).is_cut
            workflows.set_paused(session, run.workflow, False)
    assert run.result().event == "complete"


def waits_for(session: Session, run: Run) -> str:
    found = snapshot.find(session, run.workflow)
    return (found and found.waiting_for) or ""


def test_what_a_window_has_released_waits_for_a_person_without_it(
    database: Database, table: None, pauses: Path
) -> None:
    """Stopped, and gone on with `--cutover manual`."""
    with paused_at(pauses, "workflow.gate_open"):
        first = begin(database, "t", "ADD COLUMN z INT", cutover_window=now_open())
        wait_reached(pauses, "workflow.gate_open", first)
        first.stop.set()
    assert first.result().event == "interrupted"
    spec = replace_spec(first, cutover="manual", cutover_window=None)
    again = Run(spec).start(database.url)
    with connect(database.url) as session:
        wait_until(lambda: phase(session, again) is Phase.WAITING, "it does not get to the gate")
        wait_until(lambda: "release" in waits_for(session, again), "it does not wait for its release")
        assert gate.released_by(session, again.workflow) is None
    operate.release(database.url, again.workflow, "ann")
    assert again.result().event == "complete"


def replace_spec(run: Run, **more: Any) -> Spec:
    return run.spec.model_copy(update={"workflow": run.workflow, **more})


def test_a_new_table_that_was_rebuilt_is_named_by_the_cancel_that_leaves_it(held: Run, database: Database) -> None:
    """By a nightly mysqlcheck, say. It was said that all had been removed, and the copy stayed."""
    database.admin.rows("OPTIMIZE NO_WRITE_TO_BINLOG TABLE t__vr_new")
    result = operate.cancel(database.url, held.workflow, "ann")
    assert f"{database.name}.t__vr_new: stays" in (result.reason or ""), result
    assert held.result().event == "cancelled"
    assert database.admin.value("SELECT COUNT(*) FROM t__vr_new") == ROWS


def test_the_same_command_may_waive_what_holds_it(database: Database, table: None, pauses: Path) -> None:
    """As the runbook says; the option was passed over, and it waited on. `resume` goes on by it, too."""
    with connect(database.app_url) as reader:
        reader.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with paused_at(pauses, "copy.after_open"):
            first = begin(database, "t", "ADD COLUMN z INT")
            wait_reached(pauses, "copy.after_open", first)
            reader.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        with connect(database.url) as session:
            wait_until(lambda: "snapshot" in waits_for(session, first), "it does not wait for the snapshot")
            first.stop.set()
            assert first.ended().event == "interrupted"
            again = Run(replace_spec(first, ignore_old_snapshots=True)).start(database.url)
            assert again.result(30).event == "complete", again.said
            assert workflows.load(session, first.workflow).spec["ignore_old_snapshots"]
            assert "options changed" in _events(session, first)
