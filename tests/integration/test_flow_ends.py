"""How workflows end other than well: failures with the source untouched, cancel, interrupt, pause, resume."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, begin, contents, definition, let_go, paused_at, purge_logs, wait_reached, wait_until
from vreplication import names, settings
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec
from vreplication.settings import SIDECAR
from vreplication.state import gate, journal, lease, workflows
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import run as online_ddl

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b INT) ENGINE=InnoDB CHARACTER SET utf8mb4"


@pytest.fixture
def app(database: Database) -> Session:
    session = connect(database.app_url)
    session.execute_raw(TABLE)
    session.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},'v{i}',{i})" for i in range(1, 101)))
    return session


def ours(app: Session) -> list[str]:
    """Tables of ours in the application's schema."""
    return [name for (name,) in app.rows("SHOW TABLES") if names.is_ours(name)]


# -- what is only in the way ------------------------------------------------------------------------------------------


def test_a_lock_in_the_drivers_way_is_waited_for(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a former driver that was stopped, say: its locks go when the server ends its connections."""
    monkeypatch.setattr(settings, "LOCK_WAIT_SECONDS", 1)
    with connect(database.url) as other, paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN c INT")
        wait_reached(pauses, "workflow.copied", run)
        with other.transaction():
            other.rows(f"SELECT 1 FROM {SIDECAR}.workflow FOR UPDATE")
            let_go(pauses, "workflow.copied")
            wait_until(lambda: any("Lock wait timeout" in line for line in run.said), "it does not meet the lock")
    assert run.result().event == "complete"
    assert [r[-1] for r in app.rows("SELECT * FROM t WHERE id < 3")] == [None, None]


# -- exit 1: the source stays as it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alter", "bad", "column"),
    [
        ("MODIFY a VARCHAR(4)", "INSERT INTO t VALUES (500,'too long',1)", "'a'"),
        ("MODIFY b TINYINT", "INSERT INTO t VALUES (500,'x',1000)", "'b'"),
        ("MODIFY b INT NOT NULL", "INSERT INTO t VALUES (500,'x',NULL)", "'b'"),
        ("MODIFY a ENUM('v1','v2') CHARACTER SET latin1", "INSERT INTO t VALUES (500,'v3',1)", "'a'"),
    ],
)
@pytest.mark.parametrize("way", ["copy", "changelog"])
@pytest.mark.in_turn
def test_a_value_that_does_not_fit_fails_the_workflow(
    app: Session, database: Database, pauses: Path, alter: str, bad: str, column: str, way: str
) -> None:
    """The same value, met by the copy or in the log: the same end."""
    if "ENUM" in alter:
        app.execute_raw("DELETE FROM t WHERE id > 2")
    if way == "copy":
        app.execute_raw(bad)
        before = contents(app, "t")
        result = begin(database, "t", alter).result()
    else:
        with paused_at(pauses, "workflow.copied"):
            run = begin(database, "t", alter)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw(bad)
            before = contents(app, "t")
        result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert column in (result.reason or "")
    assert "500" in (result.reason or "")
    assert contents(app, "t") == before
    assert [left.command for left in result.leftovers] == [f"vreplication cancel {result.workflow}"] * 2
    assert operate.cancel(database.url, result.workflow, "test").event == "cancelled"
    assert ours(app) == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN c INT",
        "TRUNCATE TABLE t",
        "CREATE INDEX i ON t (b)",
        "RENAME TABLE t TO elsewhere",
        "OPTIMIZE TABLE t",
    ],
)
def test_ddl_on_the_source_ends_the_workflow(app: Session, database: Database, pauses: Path, statement: str) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        app.execute_raw(statement)
        after = contents(app, "elsewhere" if "RENAME" in statement else "t")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    # Told by the log as soon as it is read, and not by the cut-over.
    assert (result.reason or "").startswith(f"The binary log shows {statement.split(' ')[0]}"), result.reason
    assert f"{database.name}.t " in (result.reason or "")
    assert contents(app, "elsewhere" if "RENAME" in statement else "t") == after
    # The table may be another one to InnoDB by now; what we made goes all the same.
    assert operate.cancel(database.url, result.workflow, "test").event == "cancelled"
    assert ours(app) == []
    assert "RENAME" in statement or app.row("SHOW COLUMNS FROM t LIKE 'z'") is None


@pytest.mark.parametrize("change", ["UPDATE t SET b = b + 1", "DELETE FROM v", "DELETE FROM x"])
def test_a_change_as_a_statement_ends_the_workflow_at_the_gate(app: Session, database: Database, change: str) -> None:
    """On the table, through a view, through a trigger: the log tells the statement, and no row."""
    app.execute_raw("CREATE VIEW v AS SELECT * FROM t")
    app.execute_raw("CREATE TABLE x (id INT PRIMARY KEY)")
    app.execute_raw("INSERT INTO x VALUES (1),(2)")
    database.admin.execute_raw("CREATE TRIGGER g AFTER DELETE ON x FOR EACH ROW DELETE FROM t WHERE id = OLD.id")
    before = definition(app, "t")
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
    with connect(database.url) as session:
        wait_until(lambda: phase(session, run) is Phase.WAITING, "it does not get to the gate")
    with database.server.admin(database.name) as writer:
        writer.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        writer.execute_raw("SET SESSION binlog_format=STATEMENT")
        writer.execute_raw(change)
    after = contents(app, "t")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert f"a change written as a statement ({change.split()[0]})" in (result.reason or "")
    assert f"{database.name}.t " in (result.reason or "")
    assert "binlog_format=ROW" in (result.reason or "")
    assert (definition(app, "t"), contents(app, "t")) == (before, after)
    assert operate.cancel(database.url, result.workflow, "test").event == "cancelled"
    assert ours(app) == []


def phase(session: Session, run: Run) -> Phase | None:
    row = workflows.find(session, run.workflow)
    return row.phase if row else None


def test_ddl_on_another_table_passes(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
        app.execute_raw("ALTER TABLE other ADD COLUMN t INT")
        app.execute_raw("ANALYZE TABLE t")
        app.execute_raw("DROP TABLE other")
    assert run.result().event == "complete"


# -- operators ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["workflow.copied", "workflow.gate_open", "cutover.locked"])
def test_cancel_of_a_live_workflow_removes_what_we_made(
    app: Session, database: Database, pauses: Path, point: str
) -> None:
    """Also where the driver reads what is asked for only behind the cut-over: each half second."""
    before = definition(app, "t")
    with paused_at(pauses, point):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, point, run)
        with connect(database.url) as session:
            workflows.request_cancel(session, run.workflow)
    result = run.result()
    assert (result.event, result.exit_code) == ("cancelled", 3)
    assert ours(app) == []
    assert definition(app, "t") == before
    with connect(database.url) as session:
        assert workflows.load(session, run.workflow).phase is Phase.CANCELLED
        assert session.rows(f"SHOW TABLES FROM {SIDECAR} LIKE 'tombstone%'") == []


def interrupted_at(database: Database, pauses: Path, point: str, alter: str) -> Run:
    """One that was stopped there, and has said so."""
    with paused_at(pauses, point):
        run = begin(database, "t", alter)
        wait_reached(pauses, point, run)
        run.stop.set()
    result = run.result()
    assert (result.event, result.exit_code) == ("interrupted", 130)
    return run


def test_an_interrupt_stops_and_the_same_command_goes_on(app: Session, database: Database, pauses: Path) -> None:
    run = interrupted_at(database, pauses, "workflow.copied", "ADD COLUMN z INT NOT NULL DEFAULT 7")
    result = run.result()
    assert result.resume_command == f"vreplication resume {run.workflow}"
    app.execute_raw("UPDATE t SET a='meanwhile' WHERE id=1")
    app.execute_raw("DELETE FROM t WHERE id=2")
    again = begin(database, "t", "ADD COLUMN z INT NOT NULL DEFAULT 7", workflow=run.workflow).result()
    assert again.event == "complete", again
    assert app.row("SELECT a, z FROM t WHERE id=1") == ("meanwhile", 7)
    assert app.value("SELECT COUNT(*) FROM t") == 99


@pytest.mark.parametrize("when", ["before", "while planning"])
def test_an_interrupt_before_anything_is_made_makes_nothing(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    database.drop_sidecar()
    run = Run(Spec(table="t", alter="ADD COLUMN z INT", workflow="t-interrupted"))

    def planned(session: Session, spec: Spec) -> Plan:
        assert when == "while planning"
        run.stop.set()
        return make_plan(session, spec)

    monkeypatch.setattr(online_ddl, "make_plan", planned)
    schemas = database.admin.rows("SHOW DATABASES")
    if when == "before":
        run.stop.set()
    result = run.start(database.url).result()
    assert (result.event, result.exit_code, result.resume_command) == ("interrupted", 130, None)
    assert ours(app) == []
    assert database.admin.rows("SHOW DATABASES") == schemas
    with connect(database.url) as session:
        assert workflows.find(session, run.workflow) is None


def test_an_interrupt_between_the_steps_of_a_preparation(app: Session, database: Database, pauses: Path) -> None:
    run = interrupted_at(database, pauses, "prepare.tables_made", "ADD COLUMN z INT")
    with connect(database.url) as session:
        assert workflows.load(session, run.workflow).start_position is None
        assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.split WHERE workflow=%s", (run.workflow,)) == 0
    again = begin(database, "t", "ADD COLUMN z INT", workflow=run.workflow).result()
    assert again.event == "complete", again


def test_a_workflow_is_not_gone_on_with_under_another_alter(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        run.stop.set()
    run.result()
    other = begin(database, "t", "ADD COLUMN y INT", workflow=run.workflow).result()
    assert (other.event, other.exit_code) == ("refused", 2)
    assert "another table or ALTER" in (other.reason or "")


def test_a_second_driver_is_told_who_holds_the_lease(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        second = begin(database, "t", "ADD COLUMN z INT", workflow=run.workflow).result()
        assert second.exit_code == 2
        assert lease.me() in (second.reason or "")
    assert run.result().event == "complete"


def test_a_release_before_the_gate_is_remembered(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_reached(pauses, "workflow.copied", run)
        operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete"


def test_pause_holds_the_cutover_until_resume(app: Session, database: Database, pauses: Path) -> None:
    # A pause holds verification as well: asked for any earlier it may hold that.
    with paused_at(pauses, "workflow.verified"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.verified", run)
        operate.pause(database.url, run.workflow, "ann")
    wait_until(lambda: any("paused" in line for line in run.said), f"it does not say so: {run.said}")
    snapshot = operate.status(database.url, run.workflow)
    assert (snapshot.phase, snapshot.is_paused) == (Phase.WAITING, True)
    assert operate.resume(database.url, run.workflow, "ann", run.stop, print) is None
    assert run.result().event == "complete"


def test_pause_stops_the_copy(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "copy.before_open"):
        run = begin(database, "t", "ADD COLUMN z INT", chunk_rows=10, copy_parallelism=1)
        wait_reached(pauses, "copy.before_open", run)
        operate.pause(database.url, run.workflow, "ann")
    with connect(database.url) as session:
        assert gate.read(session, run.workflow).reason == "paused by the operator"
        assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.chunk") == 0
    operate.resume(database.url, run.workflow, "ann", run.stop, print)
    assert run.result().event == "complete"
    let_go(pauses, "copy.before_open")


def test_cancel_without_a_driver_removes_what_we_made(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        run.stop.set()
    run.result()
    assert operate.cancel(database.url, run.workflow, "ann").event == "cancelled"
    assert ours(app) == []
    again = begin(database, "t", "ADD COLUMN z INT").result()
    assert again.event == "complete"


def test_retired_drop_leaves_nothing(app: Session, database: Database) -> None:
    result = begin(database, "t", "ADD COLUMN z INT", retired="drop").result()
    assert (result.event, result.retired_table) == ("complete", None)
    assert ours(app) == []


def test_cleanup_leaves_a_table_that_is_not_the_original_any_more(app: Session, database: Database) -> None:
    run = begin(database, "t", "ADD COLUMN z INT")
    retired = run.result().retired_table
    app.execute_raw(f"TRUNCATE TABLE {retired}")
    with pytest.raises(Refused, match="rebuilt or replaced"):
        operate.cleanup(database.url, run.workflow, "tester")
    assert ours(app) == [retired]
    with connect(database.url) as session:
        assert "dropped" not in [entry["event"] for entry in journal.read(session, run.workflow)]


@pytest.mark.usefixtures("patient")
def test_a_cancel_in_the_instant_of_the_switch_comes_too_late(app: Session, database: Database, pauses: Path) -> None:
    """The heartbeat has read it when the tables are switched already: that is a good end."""
    beats: set[object] = set()
    with paused_at(pauses, "cutover.sentry_dropped"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "cutover.sentry_dropped", run)
        with connect(database.url) as session:
            workflows.request_cancel(session, run.workflow)
            sql = f"SELECT at FROM {SIDECAR}.heartbeat WHERE workflow=%s AND role='driver'"
            # Between two beats the operator's requests are read.
            wait_until(lambda: beats.add(session.value(sql, (run.workflow,))) or len(beats) > 2, "it does not beat")
    assert run.result().event == "complete", run.result()


def test_a_view_and_the_counter_live_on(app: Session, database: Database) -> None:
    app.execute_raw("CREATE TABLE c (id INT AUTO_INCREMENT PRIMARY KEY, a INT) ENGINE=InnoDB")
    app.execute_raw("INSERT INTO c (a) VALUES (1),(2),(3)")
    app.execute_raw("DELETE FROM c WHERE id=3")
    app.execute_raw("CREATE VIEW seen AS SELECT a FROM c")
    assert begin(database, "c", "ADD COLUMN z INT").result().event == "complete"
    app.execute_raw("INSERT INTO c (a) VALUES (4)")
    assert app.rows("SELECT id, a FROM c ORDER BY id") == [(1, 1), (2, 2), (4, 4)]
    assert len(app.rows("SELECT * FROM seen")) == 3


def test_an_event_goes_on_writing_through_the_switch(app: Session, database: Database) -> None:
    was_on = database.admin.value("SELECT @@GLOBAL.event_scheduler")
    database.admin.execute_raw("SET GLOBAL event_scheduler=ON")
    app.execute_raw("CREATE TABLE c (id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME(6)) ENGINE=InnoDB")
    app.execute_raw("CREATE EVENT beat ON SCHEDULE EVERY 1 SECOND DO INSERT INTO c (at) VALUES (NOW(6))")

    def beats() -> int:
        return int(app.value("SELECT COUNT(*) FROM c"))

    try:
        wait_until(lambda: beats() > 0, "the event does not write")
        assert begin(database, "c", "ADD COLUMN z INT NOT NULL DEFAULT 7").result().event == "complete"
        before = beats()
        wait_until(lambda: beats() > before, "the event does not go on")
    finally:
        app.execute_raw("DROP EVENT beat")
        database.admin.execute_raw(f"SET GLOBAL event_scheduler={was_on}")
    assert app.rows("SELECT MIN(z), MAX(z), COUNT(*) = MAX(id) FROM c") == [(7, 7, 1)]


def test_a_procedure_that_uses_the_table_lives_on(app: Session, database: Database) -> None:
    """One session has called it before, and has what the server keeps of it.

    In that one MariaDB 10.11 goes on giving the old columns for `*`, as after a plain ALTER TABLE (measured).
    """
    app.execute_raw("CREATE PROCEDURE put (IN i INT) BEGIN INSERT INTO t (id, a) VALUES (i, 'put'); END")
    app.execute_raw("CREATE PROCEDURE see (IN i INT) BEGIN SELECT * FROM t WHERE id=i; END")
    app.rows("CALL put(200)")
    assert app.rows("CALL see(200)") == [(200, "put", None)]
    assert begin(database, "t", "ADD COLUMN z INT NOT NULL DEFAULT 7").result().event == "complete"
    app.rows("CALL put(201)")
    assert app.rows("CALL see(201)")[0][:2] == (201, "put")
    with connect(database.app_url) as fresh:
        fresh.rows("CALL put(202)")
        assert fresh.rows("CALL see(202)") == [(202, "put", None, 7)]
    assert app.rows("SELECT id, z FROM t WHERE a='put' ORDER BY id") == [(200, 7), (201, 7), (202, 7)]


def test_a_binlog_purged_while_stopped_is_a_clear_refusal(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        run.stop.set()
    run.result()
    purge_logs(database)
    again = begin(database, "t", "ADD COLUMN z INT", workflow=run.workflow).result()
    assert again.exit_code == 1, again
    for said in ("purged", "changes since then cannot be applied", "vreplication cancel"):
        assert said in (again.reason or "")
    assert operate.cancel(database.url, run.workflow, "ann").event == "cancelled"


def test_a_failed_workflow_may_go_on_when_its_cause_is_mended(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        with connect(database.url) as session:
            workflows.move(session, run.workflow, Phase.FAILED, "the disk was full")
    assert (run.result().exit_code, run.result().reason) == (1, "the disk was full")
    again = operate.resume(database.url, run.workflow, "ann", run.stop, print)
    assert again is not None
    assert again.event == "complete", again


PHASES = {
    "copying": "copy.before_open",
    "catching up": "workflow.catching_up",
    "verified": "workflow.verified",
    "waiting": "workflow.verified",
    "before the attempt": "workflow.gate_open",
    "before the lock": "cutover.before_lock",
    "under the lock": "cutover.locked",
}


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("phase", PHASES)
def test_commit_order_switched_off_ends_the_workflow(
    app: Session, database: Database, pauses: Path, patient: None, phase: str
) -> None:
    """In every phase: the tables are not switched, however soon the cut-over would have come."""
    with paused_at(pauses, PHASES[phase]), contextlib.ExitStack() as undo:
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual" if phase == "waiting" else "auto")
        wait_reached(pauses, PHASES[phase], run)
        if phase == "waiting":
            let_go(pauses, PHASES[phase])
            wait_until(lambda: phase_of(database, run.workflow) is Phase.WAITING, "it does not come to wait")
        database.admin.execute_raw("SET GLOBAL binlog_order_commits=OFF")
        undo.callback(database.admin.execute_raw, "SET GLOBAL binlog_order_commits=ON")
        let_go(pauses, PHASES[phase])
        result = run.result()
    assert result.event == "failed", run.said
    assert "binlog_order_commits" in (result.reason or "")
    assert "z" not in [column for (column, *_) in app.rows("SHOW COLUMNS FROM t")]


def phase_of(database: Database, workflow: str) -> Phase:
    with connect(database.url) as session:
        return workflows.load(session, workflow).phase


def test_a_driver_that_ends_while_it_is_looked_for_has_cancelled(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It carries the cancel out and lets go: who asked must not take what has ended for what nobody works on."""
    is_alive, looks = lease.is_alive, list[bool]()

    def after_its_end(session: Session, workflow: str, role: str) -> bool:
        looks.append(True)
        if len(looks) == 1:
            let_go(pauses, "workflow.copied")
            assert run.result().event == "cancelled"
        return is_alive(session, workflow, role)

    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        monkeypatch.setattr(lease, "is_alive", after_its_end)
        result = operate.cancel(database.url, run.workflow, "ann")
    assert (result.event, len(looks), ours(app)) == ("cancelled", 1, [])
    with connect(database.url) as session:
        told = [each["actor"] for each in journal.read(session, run.workflow) if each["event"] == "cancelled"]
    assert len(told) == 1
