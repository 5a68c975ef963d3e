"""The flow cut into stages that know nothing of one another but the workflow's id, as a scheduler runs them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support import staged
from tests.support.flow import contents, paused_at, purge_logs, wait_reached, wait_until
from tests.support.oracle import application, plain_alter, settings
from tests.support.staged import BUSY_SECONDS, MISSED_SECONDS, WORKFLOW, Called, CatchUp
from vreplication.engine import child, maintenance
from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import journal, lease, progress, verdicts, workflows
from vreplication.verify import since
from vreplication.workflows import operate, stages
from vreplication.workflows.online_ddl import tasks
from vreplication.workflows.online_ddl.tasks import Stage
from vreplication.workflows.stages import Ended

pytestmark = pytest.mark.either


@pytest.fixture
def stage(database: Database, quick: None, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return staged.make(database, monkeypatch)


@pytest.fixture
def replicate(stage: Stage) -> Iterator[CatchUp]:
    """Prepared, and caught up from here on."""
    assert tasks.plan(stage) is not None
    tasks.prepare_tables(stage)
    found = CatchUp(stage)
    yield found
    stage.stop.set()
    found.end()


def test_all_stages_one_after_the_other(stage: Stage, replicate: CatchUp, database: Database) -> None:
    tasks.copy(stage)
    tasks.verify(stage)
    tasks.enter_gate(stage)
    with connect(database.url) as session:
        assert workflows.load(session, WORKFLOW).phase is Phase.WAITING
        assert progress.read(session, WORKFLOW)["percent"] == 100
    with connect(database.app_url) as app:
        app.execute_raw("INSERT INTO t (v) VALUES ('late')")
    stages.release(stage, "tester")
    assert replicate.end() is None
    tasks.cut_over(stage)
    result = tasks.clean_up(stage)
    assert (result.event, result.rows_copied) == ("complete", 5)
    assert tasks.clean_up(stage) == result
    # Another try of it, where its worker died and somebody switched by `resume`: it failed the run.
    tasks.catch_up(stage)
    with connect(database.app_url) as app:
        assert contents(app, "t")[-1] == (6, b"late".hex().upper(), 7)
    with connect(database.url) as session:
        verdict = verdicts.load(session, WORKFLOW)
    assert verdict is not None
    assert verdict.mismatches == 0


def test_a_gate_that_was_passed_without_a_release_is_none(
    stage: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler's task that somebody marks as success: the switch waits for the release all the same."""
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    held = replace(stage, spec=stage.spec.model_copy(update={"cutover": "manual"}))
    tasks.plan(held)
    tasks.prepare_tables(held)
    found = CatchUp(held)
    for act in (tasks.copy, tasks.verify, tasks.enter_gate):
        act(held)
    found.stage.stop.set()
    found.end()
    again = replace(held, stop=threading.Event())
    switching = Called(tasks.cut_over, again)
    with connect(database.url) as session:
        wait_until(lambda: "release" in str(progress.read(session, WORKFLOW)["waiting_for"]), "it waits for no release")
        assert not workflows.load(session, WORKFLOW).is_cut
    stages.release(again, "tester")
    assert switching.end(120) is None
    assert tasks.clean_up(again).event == "complete"


def test_the_servers_zone_is_another_one_behind_the_verification(
    database: Database, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage asks for it. Rows that were converted by the former zone are those of a plain ALTER of now, too."""
    # Of a large table next to nothing of what has been verified is looked at again.
    monkeypatch.setattr(since, "_SAMPLES", 0)
    alter = "MODIFY at DATETIME NOT NULL"
    made = staged.make(database, monkeypatch)
    stage = replace(made, spec=made.spec.model_copy(update={"table": "z", "alter": alter}))
    with settings(database, time_zone="+09:00"):
        with application(database) as app:
            app.execute_raw("CREATE TABLE z (id INT PRIMARY KEY, at TIMESTAMP NOT NULL)")
            app.execute_raw("INSERT INTO z VALUES (1,'2024-03-01 05:00:00'),(2,'2024-03-01 23:00:00')")
        assert tasks.plan(stage) is not None
        tasks.prepare_tables(stage)
        replicate = CatchUp(stage)
        for act in (tasks.copy, tasks.verify, tasks.enter_gate):
            act(stage)
        database.admin.execute_raw("SET GLOBAL time_zone='-05:00'")
        with application(database) as app:
            app.execute_raw("INSERT INTO z VALUES (3,'2024-03-01 05:00:00')")
        stages.release(stage, "tester")
        assert replicate.end() is None
        tasks.cut_over(stage)
        result = tasks.clean_up(stage)
        with application(database) as app:
            found = contents(app, "z")
            assert plain_alter(app, str(result.retired_table), alter) is None
            assert found == contents(app, str(result.retired_table))


def test_catch_up_is_stopped_while_somebody_else_holds_its_lease(
    stage: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.plan(stage)
    tasks.prepare_tables(stage)
    begun = staged.wait_begun(monkeypatch)
    with connect(database.url) as other:
        lease.acquire(other, WORKFLOW, lease.REPLICATE)
        waiting = Called(tasks.catch_up, stage)
        assert begun.wait(30)
        stage.stop.set()
        # The lease would be free after 10 s.
        ended = waiting.end(5)
    assert ended is not None
    assert ended.may_retry


def test_every_stage_may_be_called_again(stage: Stage, replicate: CatchUp, database: Database) -> None:
    """As a scheduler does when it is told to clear a task."""
    for _ in range(2):
        assert tasks.plan(stage) is None
        tasks.prepare_tables(stage)
        tasks.copy(stage)
        tasks.verify(stage)
        tasks.enter_gate(stage)
    stages.release(stage, "tester")
    stages.release(stage, "somebody else")
    assert replicate.end() is None
    tasks.cut_over(stage)
    tasks.cut_over(stage)
    assert tasks.clean_up(stage).event == "complete"


def test_a_server_started_since_the_verification_is_verified_again(
    stage: Stage, replicate: CatchUp, database: Database
) -> None:
    """It may have come back without the end of its log, and within the second."""
    tasks.copy(stage)
    tasks.verify(stage)
    tasks.enter_gate(stage)
    stages.release(stage, "tester")
    assert replicate.end() is None
    with connect(database.url) as session:
        assert verdicts.is_of_this_run(session, WORKFLOW)
        # As if the server, which runs for minutes, had been started a moment ago.
        session.execute_raw(f"UPDATE {SIDECAR}.verification SET finished_at = finished_at - INTERVAL 1 YEAR")
        assert not verdicts.is_of_this_run(session, WORKFLOW)
        # Verified, killed and started in one second.
        session.execute_raw(f"UPDATE {SIDECAR}.verification SET finished_at = FROM_UNIXTIME({started_at(session)}+0.9)")
        assert not verdicts.is_of_this_run(session, WORKFLOW)
        tasks.cut_over(stage)
        assert verdicts.is_of_this_run(session, WORKFLOW)
    assert tasks.clean_up(stage).event == "complete"


@pytest.mark.in_turn("mariadb")
def test_verify_gives_up_without_catch_up(
    stage: Stage, replicate: CatchUp, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    tasks.copy(stage)
    stage.stop.set()
    assert replicate.end() is not None
    stage.stop.clear()
    gone = time.monotonic()
    with pytest.raises(Ended, match="has not run") as caught:
        tasks.verify(stage)
    assert time.monotonic() - gone < MISSED_SECONDS + BUSY_SECONDS
    told = re.search(r"for (\d+) seconds", str(caught.value))
    assert told
    assert int(told[1]) <= MISSED_SECONDS
    assert caught.value.may_retry
    again = CatchUp(stage)
    monkeypatch.setattr(tasks, "CATCH_UP_SECONDS", 30.0)
    tasks.verify(stage)
    operate.cancel(database.url, WORKFLOW, by="tester")
    assert again.end() is not None
    with connect(database.url) as session:
        assert workflows.load(session, WORKFLOW).phase is Phase.CANCELLED
        wait_until(lambda: not lease.is_alive(session, WORKFLOW, lease.REPLICATE), "it holds its lease")


def test_a_stage_without_catch_up_tells_why_it_ended(
    stage: Stage, replicate: CatchUp, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    """It failed between two stages, when nobody but itself could tell; going on takes the reason out of the row."""
    tasks.copy(stage)
    database.admin.execute_raw("SET SESSION binlog_format=STATEMENT")
    database.admin.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    database.admin.execute_raw("UPDATE t SET v='x'")
    ended = replicate.end()
    assert ended is not None
    monkeypatch.setattr(tasks, "CATCH_UP_SECONDS", 0.5)
    monkeypatch.setattr(child, "_LOOK_SECONDS", 0.1)
    with pytest.raises(Ended, match=r"has not run for \d+ seconds. The workflow had failed at 20.* UTC: ") as caught:
        tasks.verify(stage)
    assert str(ended) in str(caught.value)
    assert caught.value.lacks_catch_up
    with connect(database.url) as session:
        assert [e["details"] for e in journal.read(session, WORKFLOW) if e["event"] == "failed"] == [str(ended)]


@pytest.mark.only_on("mysql")
def test_commit_order_that_is_switched_off_ends_catch_up(stage: Stage, replicate: CatchUp, database: Database) -> None:
    with connect(database.url) as session:
        wait_until(lambda: lease.is_alive(session, WORKFLOW, lease.REPLICATE), "it does not begin")
    database.admin.execute_raw("SET GLOBAL binlog_order_commits=OFF")
    try:
        ended = replicate.end()
    finally:
        database.admin.execute_raw("SET GLOBAL binlog_order_commits=ON")
    assert ended is not None
    assert "binlog_order_commits" in str(ended)


def test_copy_gives_its_place_up_while_catch_up_is_away(
    stage: Stage, replicate: CatchUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.stop.set()
    replicate.end()
    stage.stop.clear()
    monkeypatch.setattr(tasks, "COPY_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(child, "_LOOK_SECONDS", 0.1)
    with pytest.raises(Ended, match="has not run") as caught:
        tasks.copy(stage)
    assert caught.value.lacks_catch_up
    again = CatchUp(stage)
    monkeypatch.setattr(tasks, "COPY_PATIENCE_SECONDS", 30.0)
    tasks.copy(stage)
    stage.stop.set()
    assert again.end() is not None


def test_a_failed_workflow_goes_on_when_catch_up_and_copy_are_called_again(
    stage: Stage, replicate: CatchUp, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a beat comes before the statement that reopens it has been carried out."""
    tasks.copy(stage)
    with connect(database.url) as session:
        workflows.move(session, WORKFLOW, Phase.FAILED, "the disk was full")
    ended = replicate.end()
    assert ended is not None
    assert not ended.may_retry
    reopen = workflows.reopen
    monkeypatch.setattr(workflows, "reopen", lambda *given: (time.sleep(1.0), reopen(*given)))
    again = CatchUp(stage)
    assert again.goes_on_for(1.5), "it does not wait for the copy to begin again"
    tasks.copy(stage)
    tasks.verify(stage)
    stage.stop.set()
    assert again.end() is not None


def test_catch_up_of_a_failed_workflow_that_nobody_goes_on_with(
    stage: Stage, replicate: CatchUp, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database.url) as session:
        # Earlier it would wait for half a minute for somebody to go on.
        wait_until(lambda: lease.is_alive(session, WORKFLOW, lease.REPLICATE), "it does not begin")
        workflows.move(session, WORKFLOW, Phase.FAILED, "the disk was full")
    replicate.end()
    monkeypatch.setattr(stages, "REOPEN_SECONDS", 0.3)
    with pytest.raises(Ended, match="the disk was full"):
        tasks.catch_up(stage)


def test_a_purged_log_is_a_clear_end_of_every_stage(stage: Stage, replicate: CatchUp, database: Database) -> None:
    stage.stop.set()
    replicate.end()
    stage.stop.clear()
    purge_logs(database)
    for call in (tasks.catch_up, tasks.prepare_tables):
        with pytest.raises(Ended, match="has been purged") as caught:
            call(stage)
        assert not caught.value.may_retry
    with connect(database.url) as session:
        row = workflows.load(session, WORKFLOW)
        assert (row.phase, "purged" in str(row.reason)) == (Phase.FAILED, True)
    assert operate.cancel(database.url, WORKFLOW, by="tester").event == "cancelled"


def test_stages_go_on_on_another_server(stage: Stage, replicate: CatchUp, database: Database) -> None:
    """As after a failover: other table identities, and nothing that was verified before counts."""
    tasks.copy(stage)
    tasks.verify(stage)
    stage.stop.set()
    assert replicate.end() is not None
    stage.stop.clear()
    with connect(database.url) as session:
        identities = {"server_identity": "another", "source_identity": "1", "shadow_identity": "2"}
        workflows.set_fields(session, WORKFLOW, **identities)
    again = CatchUp(stage)
    tasks.enter_gate(stage)
    with connect(database.url) as session:
        assert verdicts.load(session, WORKFLOW) is None
    with connect(database.app_url) as app:
        app.execute_raw("INSERT INTO t (v) VALUES ('late')")
    stages.release(stage, "tester")
    assert again.end() is None
    tasks.cut_over(stage)
    assert tasks.clean_up(stage).event == "complete"
    with connect(database.url) as session:
        verdict = verdicts.load(session, WORKFLOW)
    assert verdict is not None
    assert (verdict.verdict, verdict.mismatches) == (verdicts.CLEAN, 0)


def test_a_refusal_touches_nothing_and_is_not_tried_again(stage: Stage, database: Database) -> None:
    wrong = Stage(
        url=stage.url,
        spec=stage.spec.model_copy(update={"alter": "ADD nonsense"}),
        stop=stage.stop,
        notify=stage.notify,
    )
    for call in (tasks.plan, tasks.prepare_tables):
        with pytest.raises(Ended) as caught:
            call(wrong)
        assert not caught.value.may_retry
        assert caught.value.result.event == "refused"
    with connect(database.app_url) as app:
        assert app.rows("SHOW TABLES") == [("t",)]


def test_the_switch_keeps_to_the_window(
    stage: Stage, replicate: CatchUp, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was released in the window, and came to switch after it: it waits for the next one, caught up."""
    window, moment = "Sat 02:00-04:00 UTC", [datetime(2026, 11, 23, 12, 0, tzinfo=UTC)]
    monkeypatch.setattr(maintenance, "now", lambda: moment[0])
    stage = replace(stage, spec=stage.spec.model_copy(update={"cutover": "manual", "cutover_window": window}))
    tasks.copy(stage)
    tasks.verify(stage)
    tasks.enter_gate(stage)
    stages.release(stage, maintenance.named(window))
    assert replicate.end() is None
    switching = Called(tasks.cut_over, stage)
    with connect(database.url) as session, connect(database.app_url) as app:
        wait_until(lambda: "release withdrawn" in events(session), "the release stays")
        app.execute_raw("INSERT INTO t (v) VALUES ('late')")
        wait_until(lambda: app.value("SELECT COUNT(*) FROM t__vr_new") == 6, "catch-up does not go on")
        wait_until(lambda: window in str(waiting_for(session)), "nobody is told what it waits for")
        assert workflows.load(session, WORKFLOW).phase is Phase.WAITING
        moment[0] = datetime(2026, 11, 28, 2, 0, tzinfo=UTC)
        assert switching.end() is None
        assert contents(app, "t")[-1] == (6, b"late".hex().upper(), 7)
        about = [event for event in events(session) if event in ("released", "release withdrawn", "switched")]
    assert about == ["released", "release withdrawn", "released", "switched"]


def test_a_persons_release_counts_outside_the_window(
    stage: Stage, replicate: CatchUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "now", lambda: datetime(2026, 11, 23, 12, 0, tzinfo=UTC))
    stage = replace(stage, spec=stage.spec.model_copy(update={"cutover_window": "Sat 02:00-04:00 UTC"}))
    tasks.copy(stage)
    tasks.verify(stage)
    tasks.enter_gate(stage)
    stages.release(stage, "ann")
    assert replicate.end() is None
    assert Called(tasks.cut_over, stage).end() is None


def events(session: Session) -> list[str]:
    return [entry["event"] for entry in journal.read(session, WORKFLOW)]


def waiting_for(session: Session) -> object:
    return session.value(f"SELECT waiting_for FROM {SIDECAR}.progress WHERE workflow='{WORKFLOW}'")


def test_a_repair_that_was_cut_short_is_gone_on_with(
    stage: Stage, replicate: CatchUp, database: Database, pauses: Path
) -> None:
    """Verification copies a range again and is stopped in the middle of it; called again, it ends."""
    tasks.copy(stage)
    database.admin.execute_raw(f"UPDATE {database.name}.t__vr_new SET v='spoilt' WHERE id=3")
    stopped = replace(stage, stop=threading.Event())
    with paused_at(pauses, "copy.after_open"):
        first = Called(tasks.verify, stopped)
        wait_reached(pauses, "copy.after_open")
        stopped.stop.set()
    assert isinstance(first.end(), Ended)
    assert Called(tasks.verify, stage).end() is None
    tasks.enter_gate(stage)
    stages.release(stage, "tester")
    assert replicate.end() is None
    assert Called(tasks.cut_over, stage).end() is None
