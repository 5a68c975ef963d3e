"""`--revert-window`: after the cut-over the original is kept level, and can be switched back to.

What must stay true: whatever was written since the cut-over is in the original afterwards, as far as it has a place for
it; a row that nobody changed is what it was before the migration.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, begin, call, paused_at, wait_reached, wait_until
from tests.support.revertible import ALTER, fill, make, rows_of, told, writing, written
from vreplication import names
from vreplication.cutover.emptying import empty
from vreplication.cutover.identity import table_identity
from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import Spec, make_spec, spec_of
from vreplication.scheduler import housekeeping
from vreplication.settings import SIDECAR
from vreplication.state import progress, workflows
from vreplication.workflows import blocking, operate
from vreplication.workflows.online_ddl import reverting, tasks
from vreplication.workflows.online_ddl.tasks import Stage

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


def migrated(database: Database, alter: str = ALTER, window: str = "24h", **more: str) -> Run:
    run = begin(database, "t", alter, revert_window=window, **more)
    result = run.result()
    assert result.event == "complete", result
    return run


def resumed(database: Database, workflow: str) -> Run:
    """Keep the original level, in a thread."""
    with connect(database.url) as session:
        spec = spec_of(workflows.load(session, names.way_back(workflow)).spec)
    return Run(spec).start(database.url)


def wait_for_phase(database: Database, run: Run, phase: Phase) -> None:
    def is_there() -> bool:
        assert run.is_going, run.result()
        return workflows.load(session, run.workflow).phase is phase

    with connect(database.url) as session:
        wait_until(is_there, f"it does not come to {phase}: {run.said}")


def exchange(database: Database, one: int, other: int) -> None:
    """Two rows exchange what is unique."""
    make(database, f"UPDATE t SET u=NULL WHERE id={one}", f"UPDATE t SET u={one} WHERE id={other}")
    make(database, f"UPDATE t SET u={other} WHERE id={one}")


def test_nothing_is_lost_and_unchanged_rows_are_what_they_were(database: Database) -> None:
    fill(database)
    before = rows_of(database)
    with writing(database):
        run = migrated(database)
        assert any("has no place in the original" in each for each in run.said), "what the plan warns of"
        # Nobody follows the log by now.
        make(
            database,
            "UPDATE t SET amount=-amount, note='x' WHERE id BETWEEN 1001 AND 1010",
            "DELETE FROM t WHERE id=1100",
        )
        make(database, "UPDATE t SET id=2000 WHERE id=1099", "INSERT INTO t (id,u,amount) VALUES (3000,3000,5)")
        make(database, "INSERT INTO t (id) VALUES (9000)", "DELETE FROM t WHERE id=9000")
        exchange(database, 1050, 1051)
        kept = resumed(database, run.workflow)
        wait_for_phase(database, kept, Phase.WAITING)
        exchange(database, 1060, 1061)
        assert operate.revert(database.url, run.workflow, "test", threading.Event(), kept.said.append) is None
        assert kept.result().event == "complete", kept.result()
    after = rows_of(database)
    changed = {
        **{key: (key, -key, str(key)) for key in range(1001, 1011)},
        **{key: (key ^ 1, key, str(key)) for key in (1050, 1051, 1060, 1061)},
        2000: (1099, 1099, "new"),
        3000: (3000, 5, "new"),
    }
    expected = {key: row for key, row in before.items() if key not in (1099, 1100)} | changed
    assert {key: row for key, row in after.items() if key > 1000} == expected
    assert written(database) == told(database)
    with connect(database.url) as session:
        new = workflows.load(session, kept.workflow).retired_table
        assert session.value(f"SELECT note FROM {new} WHERE id=1001") == "x"
    # The workflow itself stays complete: what serves now has to be said.
    assert "reverted: the original serves again" in call(database, "status").out
    assert "Original  serves again" in (told_of_it := call(database, "status", run.workflow).out), told_of_it
    assert call(database, "status", run.workflow, "--json").last["way_back"] == "complete"
    make(database, "INSERT INTO t () VALUES ()")
    assert max(rows_of(database)) == 9001
    assert operate.cleanup(database.url, run.workflow, "test") == [f"{database.name}.{new}"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE {0}.t SET u=5000000000 WHERE id=1001", "(1001)"),
        ("ALTER TABLE {0}.t ADD COLUMN later INT", "ALTER TABLE"),
    ],
)
def test_what_cannot_be_taken_back_ends_the_window(database: Database, statement: str, words: str) -> None:
    """The new table stays in service; the cause is named, and the original goes with `cleanup`."""
    fill(database)
    run = migrated(database)
    kept = resumed(database, run.workflow)
    wait_for_phase(database, kept, Phase.WAITING)
    database.admin.execute_raw(statement.format(database.name))
    result = kept.result()
    assert (result.event, words in str(result.reason)) == ("failed", True), result
    assert "cannot be reverted any more" in str(result.reason)
    with pytest.raises(Refused, match="cannot be reverted"):
        operate.check_revert(database.url, run.workflow)
    with connect(database.url) as session:
        assert session.value("SELECT COUNT(amount) FROM t") == 100
    assert operate.cleanup(database.url, run.workflow, "test")
    with connect(database.url) as session:
        assert len(session.rows("SHOW TABLES LIKE 't\\_\\_%'")) == 0
        assert session.value("SELECT COUNT(amount) FROM t") == 100


def test_after_the_window_the_original_is_emptied_and_dropped(database: Database, pauses: Path) -> None:
    """Cut off in between it can never be reverted to: half of its rows are gone."""
    fill(database)
    run = migrated(database)
    back = names.way_back(run.workflow)
    kept = resumed(database, run.workflow)
    wait_for_phase(database, kept, Phase.WAITING)
    with connect(database.url) as session, paused_at(pauses, "revert.emptying"):
        spec = workflows.load(session, back).spec
        workflows.set_spec(session, back, {**spec, "until": "2000-01-01T00:00:00"})
        kept.stop.set()
        assert kept.result().event == "interrupted"
        over = resumed(database, run.workflow)
        wait_reached(pauses, "revert.emptying", over)
        with pytest.raises(Refused, match="window to revert is over"):
            operate.revert(database.url, run.workflow, "test", threading.Event(), print)
        over.stop.set()
    assert (over.result().event, over.result().exit_code) == ("cancelled", 0)
    assert operate.cleanup(database.url, run.workflow, "test")
    with connect(database.url) as session:
        assert len(session.rows("SHOW TABLES LIKE 't\\_\\_%'")) == 0
        assert session.value("SELECT COUNT(amount) FROM t") == 100


def test_a_revert_that_comes_as_its_time_ends_is_not_passed_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While catch-up was being ended, which may take seconds: the person was told that it goes, and it was dropped."""
    fill(database)
    run, close = migrated(database), reverting.close
    back = names.way_back(run.workflow)

    def late(*args: Any, **more: Any) -> None:
        operate.revert(database.url, run.workflow, "test", threading.Event(), print)
        close(*args, **more)

    with connect(database.url) as session:
        spec = workflows.load(session, back).spec
        workflows.set_spec(session, back, {**spec, "until": "2000-01-01T00:00:00"})
        with monkeypatch.context() as patched:
            patched.setattr(reverting, "close", late)
            over = resumed(database, run.workflow).result()
        assert (over.event, over.resume_command) == ("failed", f"vreplication resume {back}")
        assert resumed(database, run.workflow).result().event == "complete"
        assert session.value("SELECT COUNT(gone) FROM t") == 100


def test_a_task_keeps_it_level_until_somebody_reverts(database: Database) -> None:
    """As Airflow calls it, behind the end of the migration."""
    fill(database)
    run = migrated(database)
    stage = Stage.at({"source": database.url}, run.spec, threading.Event(), run.said.append)
    with connect(database.url) as session, connect(database.app_url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        kept, back = pool.submit(tasks.keep_level, stage), names.way_back(run.workflow)
        wait_until(lambda: workflows.load(session, back).phase is Phase.WAITING, f"it does not wait: {run.said}")
        assert blocking.read(session, back).others
        assert operate.revert(database.url, run.workflow, "test", threading.Event(), run.said.append) is None
        # To that one the original is not level.
        try:
            wait_until(lambda: "snapshot" in (progress.read(session, back)["waiting_for"] or ""), "nobody waits")
        except AssertionError:
            stage.stop.set()
            raise
        reader.close()
        assert kept.result(60)
        assert session.value("SELECT COUNT(gone) FROM t") == 100
        assert tasks.keep_level(stage)
        with pytest.raises(Refused, match="has been reverted"):
            operate.check_revert(database.url, run.workflow)
        other = Stage.at({"source": database.url}, make_spec(table="t", alter="x", workflow="other"), stage.stop, print)
        assert not tasks.keep_level(other)


def test_housekeeping_ends_a_window_that_nobody_drives(database: Database) -> None:
    """Before its time the original stays, however old the migration is."""
    fill(database)
    run = migrated(database)
    back = names.way_back(run.workflow)
    with connect(database.url) as session:
        session.execute(f"UPDATE {SIDECAR}.workflow SET ended_at=NOW(6) - INTERVAL 30 DAY WHERE id=%s", (run.workflow,))
        assert [item.kind for item in housekeeping.find(session) if item.workflow in (run.workflow, back)] == []
        spec = workflows.load(session, back).spec
        workflows.set_spec(session, back, {**spec, "until": "2000-01-01T00:00:00"})
        found = housekeeping.find(session)
        assert [(item.kind, item.workflow) for item in found] == [(housekeeping.WINDOW, back)]
        assert housekeeping.remove_all(session, found, "test") == []
        assert len(session.rows("SHOW TABLES LIKE 't\\_\\_%'")) == 0


REFUSED = [
    ("a INT NOT NULL", "DROP COLUMN a", "NOT NULL without a default"),
    ("a INT, UNIQUE KEY k (a)", "DROP KEY k", "unique key k"),
    ("a DATETIME(6)", "MODIFY a DATETIME", "does not keep each value"),
    ("a VARCHAR(9)", "MODIFY a INT", "does not keep each value"),
    ("a DECIMAL(9,3)", "MODIFY a DECIMAL(9,1)", "does not keep each value"),
    ("a DOUBLE", "MODIFY a FLOAT", "does not keep each value"),
    ("a VARCHAR(9)", "MODIFY a CHAR(9)", "does not keep each value"),
    ("a BINARY(3)", "MODIFY a BINARY(5)", "does not keep each value"),
]


def test_what_could_not_be_reverted_is_refused_before_anything_is_copied(database: Database) -> None:
    found = []
    for number, (column, alter, _) in enumerate(REFUSED):
        make(database, f"CREATE TABLE r{number} (id INT PRIMARY KEY, x INT, {column})")
        spec = Spec(table=f"r{number}", alter=alter, workflow=f"r{number}", revert_window="2h")
        with connect(database.url) as session:
            found.append(" ".join(check.sentence for check in make_plan(session, spec).refusals))
    assert [words for (_, _, words), sentence in zip(REFUSED, found, strict=True) if words not in sentence] == []
    make(database, "CREATE TABLE w (id INT PRIMARY KEY, a DATETIME, b INT)")
    spec = Spec(table="w", alter="MODIFY a DATETIME(6), ADD c INT", workflow="w", revert_window="2h")
    with connect(database.url) as session:
        (sentence,) = (check.sentence for check in make_plan(session, spec).checks if check.name == "revert")
    assert "into c has no place" in sentence
    assert "What a has beyond datetime" in sentence


def test_an_original_without_a_key_that_ranges_are_read_of_is_emptied(database: Database) -> None:
    """One that an earlier release took, say: its rows were in the way of housekeeping for good."""
    with connect(database.url) as session:
        session.execute_raw("CREATE TABLE k (a INT)")
        session.execute_raw(f"INSERT INTO k VALUES {','.join(f'({i})' for i in range(1_200))}")
        is_mariadb = database.server.is_mariadb
        identity = table_identity(session, database.name, "k", is_mariadb)
        assert identity
        assert empty(session, database.name, "k", identity, is_mariadb=is_mariadb)
        assert session.value("SELECT COUNT(*) FROM k") == 0
