"""Housekeeping on real servers: what goes, what stays, and that a running workflow beside it is left alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, let_go, paused_at, wait_reached
from vreplication import masking, names
from vreplication.cli import main, options
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.scheduler import housekeeping
from vreplication.settings import SIDECAR
from vreplication.state import history, journal, layout, lease, leftovers, workflows

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        for table in ("t", "u"):
            session.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
            session.execute_raw(f"INSERT INTO {table} VALUES " + ",".join(f"({i},{i})" for i in range(1, 101)))
        yield session


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        yield opened


def complete(database: Database, session: Session, workflow: str, days: int, table: str = "t") -> str:
    """An online DDL that ended so many days ago; returns the original's name."""
    assert begin(database, table, "ENGINE=InnoDB", workflow=workflow).result().event == "complete"
    sql = f"UPDATE {SIDECAR}.workflow SET ended_at = NOW(6) - INTERVAL %s DAY WHERE id=%s"
    session.execute(sql, (days, workflow))
    return workflows.load(session, workflow).retired_table


def tables(session: Session) -> set[str]:
    return {str(name) for (name,) in session.rows("SHOW TABLES")}


def found(session: Session, **more: int) -> list[tuple[str, str | None]]:
    return [(item.kind, item.workflow) for item in housekeeping.find(session, **more)]


def tidy(session: Session, **more: int) -> list[str]:
    """Remove all that may go; returns why something stayed."""
    return [reason for _, reason in housekeeping.remove_all(session, housekeeping.find(session, **more), "ann")]


def events(session: Session, workflow: str) -> list[tuple[str, str]]:
    return [(e["event"], e["actor"]) for e in journal.read(session, workflow)]


def test_an_original_goes_after_its_time(app: Session, session: Session, database: Database) -> None:
    old, young = complete(database, session, "old", 8), complete(database, session, "young", 6, "u")
    assert found(session) == [("retired table", "old")]
    assert {old, young} <= tables(app)
    assert tidy(session) == []
    assert (old in tables(app), young in tables(app)) == (False, True)
    assert events(session, "old")[-1] == ("dropped", "ann")
    assert found(session) == []
    assert found(session, retired_days=5) == [("retired table", "young")]


def test_another_table_under_the_originals_name_stays(app: Session, session: Session, database: Database) -> None:
    name = complete(database, session, "w", 8)
    [item] = housekeeping.find(session)
    app.execute_raw(f"DROP TABLE {name}")
    app.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    assert housekeeping.find(session) == []
    assert not housekeeping.remove(session, item, "ann")
    assert name in tables(app)
    assert ("dropped", "ann") not in events(session, "w")


def test_an_original_goes_behind_a_failover(app: Session, session: Session, database: Database) -> None:
    """It has another number there, so it was never listed again. Another table of its name stays all the same."""
    name = complete(database, session, "w", 8)
    session.execute_raw(f"UPDATE {SIDECAR}.workflow SET server_identity='another'")
    session.execute_raw(f"UPDATE {SIDECAR}.workflow_table SET source_identity='7/7', shadow_identity='8/8'")
    app.execute_raw(f"ALTER TABLE {name} ADD b INT")
    assert found(session) == []
    app.execute_raw(f"ALTER TABLE {name} DROP b")
    assert found(session) == [("retired table", "w")]
    assert tidy(session) == []
    assert name not in tables(app)


def test_an_original_that_somebody_reads_stays_and_the_rest_goes(
    app: Session, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vreplication.cutover.sentry.DROP_WAIT_SECONDS", 1)
    first, second = complete(database, session, "first", 9), complete(database, session, "second", 8, "u")
    with app.transaction():
        app.rows(f"SELECT * FROM {first}")
        [reason] = tidy(session)
    assert "ock wait timeout" in reason
    assert (first in tables(app), second in tables(app)) == (True, False)
    assert tidy(session) == []
    assert first not in tables(app)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.COPYING])
def test_what_may_go_on_keeps_all_that_is_its_own(
    app: Session, session: Session, database: Database, phase: Phase
) -> None:
    """A failed one may be resumed: only `cancel` removes what it made. The stand-in may have the only copied rows."""
    name = complete(database, session, "w", 8)
    session.execute(f"UPDATE {SIDECAR}.workflow SET phase=%s WHERE id='w'", (str(phase),))
    session.execute(f"UPDATE {SIDECAR}.journal SET at = at - INTERVAL 100 DAY")
    for own in ("t__vr_new", names.stand_in("t", "w"), names.stood_in("t", "w")):
        app.execute_raw(f"CREATE TABLE {own} (id INT PRIMARY KEY)")
    assert found(session) == []
    assert name in tables(app)


def test_orphaned_shadow_tables_go(app: Session, session: Session, database: Database) -> None:
    """One whose workflow is gone, one beside a workflow that was cancelled, none of a name that is not ours."""
    complete(database, session, "w", 0)
    session.execute(f"UPDATE {SIDECAR}.workflow SET phase='cancelled' WHERE id='w'")
    gone = ["gone__vr_new", "t__vr_new", names.stood_in("t", "w"), names.stand_in("t", "w")]
    for name in (*gone, "t__vr_newer", "__vr_new_t", "gone__vr_old_abcdef", "t__vr_tmp_12345g"):
        app.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    before = tables(app)
    assert [item.what for item in housekeeping.find(session)] == [f"{database.name}.{name}" for name in gone]
    assert tidy(session) == []
    assert before - tables(app) == set(gone)


def test_a_table_made_anew_under_a_listed_name_stays(app: Session, session: Session) -> None:
    layout.install(session)
    app.execute_raw("CREATE TABLE t__vr_new (id INT PRIMARY KEY)")
    [item] = housekeeping.find(session)
    app.execute_raw("DROP TABLE t__vr_new")
    app.execute_raw("CREATE TABLE t__vr_new (id INT PRIMARY KEY)")
    assert not housekeeping.remove(session, item, "ann")
    assert not housekeeping.remove(session, replace(item, table="nothing__vr_new"), "ann")
    assert "t__vr_new" in tables(app)


def test_a_lease_without_a_workflow_goes_unless_somebody_is_alive(session: Session, database: Database) -> None:
    layout.install(session)
    with connect(database.url) as other:
        lease.acquire(other, "gone", lease.DRIVER)
        session.execute(f"UPDATE {SIDECAR}.lease SET taken_at = taken_at - INTERVAL 2 HOUR")
        assert found(session) == []
    session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 2 HOUR")
    [item] = housekeeping.find(session)
    assert (item.kind, item.workflow) == ("lease", "gone")
    with connect(database.url) as other:
        again = lease.acquire(other, "gone", lease.REPLICATE)
        assert not housekeeping.remove(session, item, "ann")
        lease.release(other, again)
    assert housekeeping.remove(session, item, "ann")
    assert session.rows(f"SELECT * FROM {SIDECAR}.lease") == []


def test_old_rows_go_but_for_those_of_a_workflow_that_goes_on(
    app: Session, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_ROWS", 2)
    for workflow in ("over", "on"):
        complete(database, session, workflow, 0, "t" if workflow == "over" else "u")
    session.execute(f"UPDATE {SIDECAR}.workflow SET phase='copying' WHERE id='on'")
    session.execute(f"DELETE FROM {SIDECAR}.history")
    for workflow in ("over", "on", "gone"):
        for _ in range(5):
            journal.write(session, workflow, "old", actor="x")
        for days in range(85, 95):
            history.add(session, workflow, eta_seconds=None, phase="copying", rows_copied=1)
            slots = days * history.DAY
            session.execute(f"UPDATE {SIDECAR}.history SET slot = slot - {slots} ORDER BY slot DESC LIMIT 1")
    session.execute(f"UPDATE {SIDECAR}.journal SET at = at - INTERVAL 91 DAY WHERE event='old'")
    items = housekeeping.find(session)
    assert [(item.kind, item.what) for item in items] == [
        ("journal", "10 journal rows"),
        ("history", "10 points of the charts"),
    ]
    assert tidy(session) == []
    assert {w: len(history.read(session, w)) for w in ("on", "gone")} == {"on": 10, "gone": 5}
    assert session.rows(f"SELECT workflow, COUNT(*) FROM {SIDECAR}.journal WHERE event='old' GROUP BY 1") == [("on", 5)]
    assert events(session, "over") != []


@pytest.mark.in_turn("mysql")
def test_a_running_workflow_beside_it_is_left_alone(
    app: Session, session: Session, database: Database, pauses: Path
) -> None:
    """On a table that had an online DDL before, with everything else as old as it can be; it then completes."""
    old = complete(database, session, "old", 8)
    app.execute_raw("CREATE TABLE gone__vr_new (id INT PRIMARY KEY)")
    with paused_at(pauses, "workflow.copied", "workflow.switched"):
        run = begin(database, "t", "ADD b INT", workflow="running")
        wait_reached(pauses, "workflow.copied", run)
        for table, column in (("journal", "at"), ("lease", "taken_at"), ("workflow", "updated_at")):
            session.execute(f"UPDATE {SIDECAR}.{table} SET {column} = {column} - INTERVAL 365 DAY")
        session.execute(f"UPDATE {SIDECAR}.history SET slot = slot - {365 * history.DAY}")
        kinds = found(session, retired_days=0)
        assert kinds == [("retired table", "old"), ("shadow table", None), ("journal", None), ("history", None)]
        assert tidy(session, retired_days=0) == []
        assert ("prepared", lease.me()) in events(session, "running")
        assert history.read(session, "running")
        app.execute_raw("INSERT INTO t VALUES (1000, 1)")
        let_go(pauses, "workflow.copied")
        wait_reached(pauses, "workflow.switched", run)
        assert tidy(session, retired_days=0) == []
    assert run.result().event == "complete"
    assert old not in tables(app)
    retired = workflows.load(session, "running").retired_table
    assert {"t", retired} <= tables(app)
    assert app.value("SELECT COUNT(*) FROM t") == 101


def test_no_sidecar_is_nothing(database: Database, session: Session) -> None:
    database.drop_sidecar()
    assert housekeeping.find(session) == []
    assert not layout.exists(session)


@pytest.fixture
def command(database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    def call(*words: str) -> tuple[int, list[str]]:
        monkeypatch.setenv(options.SOURCE, str(database.url))
        monkeypatch.setenv(options.PASSWORD, database.url.password)
        code = main.run(["housekeeping", *words])
        return code, capsys.readouterr().out.splitlines()

    yield call
    masking.forget()


def test_the_command_lists_and_only_with_yes_removes(
    app: Session, session: Session, database: Database, command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = complete(database, session, "w", 3)
    assert command() == (0, ["Nothing is left over."])
    code, [first, last] = command("--older-than", "2")
    assert (code, first.startswith(f"retired table {database.name}.{name}: the original of workflow w")) == (0, True)
    assert last == "Nothing was removed; do so with: vreplication housekeeping --yes"
    assert name in tables(app)
    with caplog.at_level(logging.INFO, "vreplication"):
        code, lines = command("--older-than", "2", "--yes", "--json")
    found, ended = map(json.loads, lines)
    assert (found["event"], found["kind"], found["workflow"]) == ("found", "retired table", "w")
    assert ended == {"event": "housekeeping", "found": 1, "removed": 1, "left": []}
    assert any(record.message.startswith(f"removing retired table {database.name}.{name}") for record in caplog.records)
    assert name not in tables(app)
