"""`--triggers preserve`: each write fires once, on the old table or on the new one, and what is made is what was."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cutover_setup import Background, attempt, prepare, waiting_for_lock

from sandbox.databases import Database
from tests.support import triggered
from tests.support.flow import Run, begin, paused_at, settings, wait_reached, wait_until
from tests.support.private_server import any_definer
from tests.support.triggered import ALTER
from vreplication import names
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.spec import spec_of
from vreplication.schema import triggers
from vreplication.state import workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


@pytest.fixture
def trusted(database: Database) -> Iterator[None]:
    """What a user of sql/grants/ needs for it."""
    right = any_definer(database.server.flavor)
    database.admin.execute_raw(f"GRANT {right} ON *.* TO '{database.user}'@'%'")
    with settings(database, {"log_bin_trust_function_creators": 1}):
        yield


def lose_every_connection(database: Database) -> None:
    for process in processes(database.admin).values():
        if process.user == database.user:
            database.admin.kill(process.id)


@pytest.mark.usefixtures("trusted")
def test_each_write_fires_once_on_the_way_there_and_back(database: Database, pauses: Path) -> None:
    """An attempt loses its lock while the new table has a trigger: writes go on, and catch-up with them."""
    triggered.fill(database)
    before = triggered.on(database)
    with triggered.writing(database):
        with paused_at(pauses, "cutover.trigger_made"):
            run = begin(database, "t", ALTER, triggers="preserve", revert_window="1d")
            wait_reached(pauses, "cutover.trigger_made", run)
            assert len(triggered.on(database, names.shadow_table("t"))) == 1
            lose_every_connection(database)
            told = database.admin.value("SELECT COUNT(*) FROM told")
            wait_until(lambda: database.admin.value("SELECT COUNT(*) FROM told") > told + 20, "writes do not go on")
        result = run.result()
        assert result.event == "complete", result
        after = triggered.on(database)
        assert triggered.on(database, triggered.retired(database)) == ()
        kept = _kept_level(database, run.workflow)
        assert operate.revert(database.url, run.workflow, "test", threading.Event(), kept.said.append) is None
        assert kept.result().event == "complete", kept.result()
    triggered.prove(database)
    with connect(database.app_url) as busy:
        # With what the triggers of the dropped table use nobody is held up, and nobody holds it up.
        busy.execute_raw("BEGIN")
        busy.execute_raw("INSERT INTO fired (what,id) VALUES ('open',0)")
        assert operate.cleanup(database.url, run.workflow, "test")
    assert [each.name for each in after] == [f"{each.name}__vr" for each in before]
    assert all(new.is_as(old) for new, old in zip(after, before, strict=True))
    assert triggered.on(database) == before


def _kept_level(database: Database, workflow: str) -> Run:
    back = names.way_back(workflow)
    with connect(database.url) as session:
        kept = Run(spec_of(workflows.load(session, back).spec)).start(database.url)
        wait_until(lambda: workflows.load(session, back).phase is Phase.WAITING, f"it does not wait: {kept.said}")
    return kept


@pytest.mark.usefixtures("trusted")
def test_names_do_not_run_out_where_every_original_is_kept(database: Database) -> None:
    """As after a dozen changes, each old table with its triggers; what one had that is gone is taken again."""
    with connect(database.url) as session:
        session.execute_raw("CREATE TABLE t0 (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
        session.execute_raw("CREATE TRIGGER x BEFORE INSERT ON t0 FOR EACH ROW SET NEW.a=1")
        session.execute_raw("CREATE TRIGGER x__vr BEFORE UPDATE ON t0 FOR EACH ROW SET NEW.a=2")
        given = [_carried_on(session, database, n) for n in range(12)]
        taken = sorted(name for each in given for name in each)
        assert taken == sorted(f"x__vr{n}" for n in range(2, 26))
        session.execute_raw("DROP TABLE t4")
        assert _carried_on(session, database, 12) == given[3]


def _carried_on(session: Session, database: Database, number: int) -> list[str]:
    """Names of what is made on a further table, as the last one has it."""
    old, new = f"t{number}", f"t{number + 1}"
    session.execute_raw(f"CREATE TABLE {new} LIKE {old}")
    wanted = triggers.read(session, database.name, old)
    made = list(triggers.make(session, database.name, new, wanted))
    triggers.compare(session, database.name, new, wanted)
    return [each.name for each in made]


@pytest.mark.usefixtures("trusted")
def test_who_is_in_the_way_of_triggers_is_named(database: Database, pauses: Path) -> None:
    """LOCK TABLES takes along what they use; a DROP TRIGGER that waits would be served by the old table alone."""
    ready = prepare(database)
    ready.row = dataclasses.replace(ready.row, spec={"triggers": "preserve"})
    with ready.session, connect(database.app_url) as app, connect(database.app_url) as other:
        app.execute_raw("CREATE TABLE notes (id INT PRIMARY KEY) ENGINE=InnoDB")
        app.execute_raw("CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW INSERT INTO `notes` VALUES (NEW.id)")
        other.execute_raw("BEGIN")
        other.execute_raw("INSERT INTO notes VALUES (7)")
        assert [each.connection_id for each in attempt(ready).blockers] == [other.id]
        other.execute_raw("ROLLBACK")
        with paused_at(pauses, "cutover.after_barrier"):
            trying = Background(lambda: attempt(ready, deadline_seconds=60.0))
            wait_until((pauses / "cutover.after_barrier.reached").exists, "it is not locked")
            dropping = Background(lambda: other.execute_raw("DROP TRIGGER note"))
            wait_until(lambda: waiting_for_lock(ready.session, other.id), "DROP does not wait")
        outcome = trying.result()
        # MySQL's RENAME wants the names of triggers, too, and so its detector of deadlocks ends the attempt.
        is_named = f"A trigger would be dropped of the old table alone: connection {other.id} " in outcome.reason
        assert (outcome.is_switched, is_named or "(1213)" in outcome.reason) == (False, True), outcome
        dropping.result()
    assert triggered.on(database) == ()


def refused(database: Database, alter: str = ALTER, **more: str) -> str:
    result = begin(database, "t", alter, **more).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    with connect(database.url) as session:
        assert session.rows("SHOW TABLES LIKE 't\\_\\_%'") == []
    return str(result.reason)


def test_what_cannot_be_carried_over_is_refused_by_name(database: Database, trusted: None) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT) ENGINE=InnoDB")
        app.execute_raw("CREATE TRIGGER one BEFORE INSERT ON t FOR EACH ROW SET NEW.b=NEW.`A`")
    assert "one" in refused(database, "ADD COLUMN z INT")
    assert "column a," in refused(database, "RENAME COLUMN a TO c", triggers="preserve")
    with settings(database, {"log_bin_trust_function_creators": 0}):
        assert "log_bin_trust_function_creators" in refused(database, triggers="preserve")
    database.admin.execute_raw(f"DROP TRIGGER {database.name}.one")
    # Its column is seen at prepare alone, when the server is asked.
    database.admin.execute_raw(f"ALTER TABLE {database.name}.t PARTITION BY KEY () PARTITIONS 2")
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TRIGGER two BEFORE INSERT ON t FOR EACH ROW SET NEW.b=NEW.a")
        app.execute_raw("SET SESSION character_set_client=gbk")
        app.execute_raw("CREATE TRIGGER three BEFORE UPDATE ON t FOR EACH ROW SET @x='é'".encode("gbk"))
    assert "gbk" in refused(database, "ADD COLUMN z INT", triggers="preserve")
    with connect(database.app_url) as app:
        app.execute_raw("DROP TRIGGER three")
        app.execute_raw("CREATE TRIGGER three BEFORE UPDATE ON t FOR EACH ROW SET NEW.b=1")
    assert "b" in refused(database, "DROP COLUMN b", triggers="preserve")


def test_a_trigger_of_somebody_elses_on_the_new_table_does_not_go_live(database: Database, pauses: Path) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN x INT")
        wait_reached(pauses, "workflow.copied", run)
        shadow = names.shadow_table("t")
        database.admin.execute_raw(f"CREATE TRIGGER theirs BEFORE INSERT ON `{shadow}` FOR EACH ROW SET NEW.v=0")
    result = run.result()
    assert (result.event, "theirs" in (result.reason or "")) == ("failed", True), result
    assert triggered.on(database) == ()


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        ("CREATE TRIGGER late BEFORE INSERT ON t FOR EACH ROW SET NEW.v=7", "has triggers by now (late)"),
        ("CREATE TABLE child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES t (id))", ".child by now"),
    ],
    ids=["trigger", "foreign-key"],
)
def test_what_no_log_tells_of_is_not_left_behind(database: Database, pauses: Path, hidden: str, words: str) -> None:
    """Made with sql_log_bin=0, server by server: it would stay with the retired table."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT) ENGINE=InnoDB")
    with paused_at(pauses, "workflow.gate_open"):
        run = begin(database, "t", "ADD COLUMN x INT")
        wait_reached(pauses, "workflow.gate_open", run)
        with database.server.admin(database.name) as unlogged:
            unlogged.execute_raw("SET SESSION sql_log_bin=0")
            unlogged.execute_raw(hidden)
    result = run.result()
    assert (result.event, words in (result.reason or "")) == ("failed", True), result
    with connect(database.url) as session:
        assert "`x`" not in str(session.row("SHOW CREATE TABLE t"))


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("trusted")
def test_a_trigger_of_a_role_stays_the_roles(database: Database) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    role = database.name
    database.admin.execute_raw(f"CREATE ROLE {role}")
    database.admin.execute_raw(f"CREATE DEFINER={role} TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET NEW.v=7")
    result = begin(database, "t", ALTER.partition(",")[0], triggers="preserve").result()
    database.admin.execute_raw(f"DROP ROLE {role}")
    assert (result.event, [each.definer for each in triggered.on(database)]) == ("complete", [f"{role}@"]), result
