"""Rows that go through a stand-in into a table with AUTO_INCREMENT: no write is lost when they change hands.

What must stay true: writes come at every step, and a kill at each of them; the outcome is what a plain ALTER makes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark, staged
from tests.support.flow import (
    altered_copy,
    begin,
    call,
    contents,
    definition,
    let_go,
    paused_at,
    wait_reached,
    wait_until,
)
from tests.support.run_ddl import start, wait_gone
from tests.support.run_ddl import wait_reached as wait_command
from vreplication import names
from vreplication.engine import job
from vreplication.errors import Transient
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import Spec
from vreplication.schema import stand_in
from vreplication.schema.introspect import counter_of, introspect
from vreplication.settings import SIDECAR
from vreplication.state import workflows
from vreplication.state.verdicts import Verdict
from vreplication.verify import beside
from vreplication.verify.verify import verify
from vreplication.workflows import operate, stages
from vreplication.workflows.online_ddl import standing_in, tasks
from vreplication.workflows.online_ddl.tasks import Stage
from vreplication.workflows.stages import Ended

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.only_on("mariadb")]

ALTER = "ADD COLUMN c INT NOT NULL DEFAULT 7, MODIFY v BIGINT"
ROWS = 120_000
"""Small tables have no stand-in."""
POINTS = ("stand_in.before_rename", "stand_in.renamed", "stand_in.exchanged", "stand_in.gone")
WORDS = ("online-ddl", "--table", "t", "--alter", ALTER, "--workflow", "w", "--yes", "--json", "--chunk-rows", "20000")

KEYS = {
    "id INT AUTO_INCREMENT PRIMARY KEY, v INT": True,
    "id BIGINT UNSIGNED AUTO_INCREMENT, a CHAR(3), KEY (a), PRIMARY KEY (id, a)": True,
    "a INT, `i d` INT AUTO_INCREMENT COMMENT 'it''s AUTO_INCREMENT', PRIMARY KEY (a, `i d`), KEY (`i d`)": True,
    "id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20) DEFAULT 'AUTO_INCREMENT', CHECK (v<>'AUTO_INCREMENT')": True,
    "id INT PRIMARY KEY, v INT": False,
    "id INT AUTO_INCREMENT PRIMARY KEY, v INT, UNIQUE KEY (v)": False,
    "id INT AUTO_INCREMENT PRIMARY KEY, v INT, w INT AS (v+1) VIRTUAL": False,
    "id INT AUTO_INCREMENT PRIMARY KEY, v TEXT, FULLTEXT KEY (v)": False,
    "id FLOAT AUTO_INCREMENT PRIMARY KEY, v INT": False,
    "id INT AUTO_INCREMENT PRIMARY KEY, v INT COMMENT '/*!50000 one*/'": True,
}


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT, KEY (v)) ENGINE=InnoDB")
        app.execute_raw(f"INSERT INTO t SELECT seq, seq FROM seq_1_to_{ROWS}")
        app.rows("ANALYZE TABLE t")
        yield app


@contextmanager
def writing(database: Database) -> Iterator[None]:
    """Of every kind, over all keys, until the block ends."""
    stop = threading.Event()

    def write() -> None:
        with connect(database.app_url) as app:
            turn = 0
            while not stop.wait(0.002):
                turn += 1
                key = turn * 37 % ROWS + 1
                app.execute_raw(f"UPDATE t SET v=v+{ROWS} WHERE id={key}")
                app.execute_raw(f"DELETE FROM t WHERE id={(key * 7) % ROWS + 1}")
                app.execute_raw(f"INSERT INTO t (v) VALUES ({turn})")
                app.execute_raw(f"REPLACE INTO t VALUES ({(key * 11) % ROWS + 1}, {turn})")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def check(app: Session, database: Database) -> None:
    """The table in use is what a plain ALTER makes of the original; nobody has written since the switch."""
    (retired,) = tables(app) - {"t"}
    assert "__vr_old_" in retired
    altered_copy(app, database, retired, ALTER, "plain")
    assert contents(app, "t") == contents(app, "plain")
    assert definition(app, "t") == definition(app, "plain")
    # What verification had to copy again was wrong before.
    assert database.admin.value(f"SELECT COUNT(*) FROM {SIDECAR}.journal WHERE event='mismatch'") == 0
    (next_one,) = {counter_of(app.rows(f"SHOW CREATE TABLE {name}")[0][1]) for name in (retired, "t")}
    app.execute_raw("INSERT INTO t (v) VALUES (0)")
    assert app.value("SELECT LAST_INSERT_ID()") == next_one


def tables(app: Session) -> set[str]:
    return {name for (name,) in app.rows("SHOW TABLES")}


def test_writes_at_every_step_are_in_the_new_table(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, *POINTS):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2)
        for number, point in enumerate(POINTS):
            wait_reached(pauses, point, run)
            # The same rows at each step: whatever is lost in between shows.
            app.execute_raw(f"UPDATE t SET v={number} WHERE id<=100")
            app.execute_raw(f"DELETE FROM t WHERE id={200 + number}")
            app.execute_raw(f"INSERT INTO t (v) VALUES ({number})")
            assert (names.stand_in("t", run.workflow) in tables(app)) == (number == 0)
            assert (names.stood_in("t", run.workflow) in tables(app)) == (number in (1, 2))
            let_go(pauses, point)
        assert run.result().event == "complete"
    check(app, database)


def test_killed_at_each_step_under_writers(app: Session, database: Database, tmp_path: Path, pauses: Path) -> None:
    with writing(database):
        for point in POINTS:
            with paused_at(pauses, point):
                command = start(database, tmp_path, (*WORDS, "--cutover", "manual"))
                wait_command(pauses, point, command)
                orphans = command.kill()
            wait_gone(orphans)
        command = start(database, tmp_path, (*WORDS, "--cutover", "manual"))
        wait_until(lambda: tables(app) == {"t", names.shadow_table("t")}, "the rows do not change hands")
    assert call(database, "release", "w").code == 0
    ended = command.finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    check(app, database)


def test_exchanged_once_more_by_who_was_stopped(app: Session, database: Database, tmp_path: Path, pauses: Path) -> None:
    with paused_at(pauses, "stand_in.exchanged"):
        command = start(database, tmp_path, WORDS)
        wait_command(pauses, "stand_in.exchanged", command)
        orphans = command.kill()
    wait_gone(orphans)
    stand_in.exchange(database.admin, database.name, names.stood_in("t", "w"), names.shadow_table("t"))
    ended = start(database, tmp_path, WORDS).finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    check(app, database)


def test_cancelled_in_the_middle_nothing_is_left(
    app: Session, database: Database, tmp_path: Path, pauses: Path
) -> None:
    for number, point in enumerate(("workflow.copied", *POINTS)):
        words = (*WORDS[:6], f"w{number}", *WORDS[7:])
        with paused_at(pauses, point):
            command = start(database, tmp_path, words)
            wait_command(pauses, point, command)
            assert tables(app) != {"t"}
            orphans = command.kill()
        wait_gone(orphans)
        assert call(database, "cancel", f"w{number}").code == 0
        assert tables(app) == {"t"}, point
    assert app.value("SELECT COUNT(*) FROM t") == ROWS


def restarted(database: Database) -> None:
    """As if the server had begun behind what was noted."""
    fields = "at=at - INTERVAL 10 YEAR, details=CONCAT(details,'0')"
    assert database.admin.execute(f"UPDATE {SIDECAR}.journal SET {fields} WHERE event='stand-in exchanged'") == 1


def test_a_server_that_was_restarted_in_between_ends_it(
    app: Session, database: Database, tmp_path: Path, pauses: Path
) -> None:
    with paused_at(pauses, "stand_in.exchanged"):
        command = start(database, tmp_path, WORDS)
        wait_command(pauses, "stand_in.exchanged", command)
        orphans = command.kill()
    wait_gone(orphans)
    restarted(database)
    ended = start(database, tmp_path, WORDS).finish()
    assert ended.code == 1, (ended.out[-3000:], ended.err[-3000:])
    assert "The server was restarted while" in ended.last["reason"]
    assert app.value("SELECT COUNT(*) FROM t") == ROWS
    assert call(database, "cancel", "w").code == 0
    assert tables(app) == {"t"}


def test_a_server_that_was_restarted_before_ends_nothing(
    app: Session, database: Database, tmp_path: Path, pauses: Path
) -> None:
    """The rows had not begun to change hands."""
    for point, happens in (("stand_in.before_rename", restarted), ("stand_in.exchanged", lambda database: None)):
        with paused_at(pauses, point):
            command = start(database, tmp_path, WORDS)
            wait_command(pauses, point, command)
            orphans = command.kill()
        wait_gone(orphans)
        happens(database)
    ended = start(database, tmp_path, WORDS).finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    check(app, database)


@pytest.mark.parametrize("columns", KEYS)
def test_which_tables_have_one(database: Database, columns: str) -> None:
    with connect(database.url) as session:
        session.execute_raw(f"CREATE TABLE n ({columns}) ENGINE=InnoDB")
        table = introspect(session, database.name, "n")
        assert stand_in.create(session, table, "other") is KEYS[columns]
        assert tables(session) == ({"n", "other"} if KEYS[columns] else {"n"})


@pytest.mark.parametrize(("more", "has_one"), [(0, True), (1, False)])
@pytest.mark.parametrize("keys", ["", ", KEY (v)"])
def test_with_few_cores_only_tables_with_further_indexes_have_one(
    database: Database, monkeypatch: pytest.MonkeyPatch, keys: str, more: int, has_one: bool
) -> None:
    """Without them rows are copied no faster so. more: cores that are wanted beyond those that the server has."""
    monkeypatch.setattr(stand_in, "LEAST_CORES", stand_in.LEAST_CORES + more)
    with connect(database.url) as session:
        session.execute_raw(f"CREATE TABLE n (id INT AUTO_INCREMENT PRIMARY KEY, v INT{keys}) ENGINE=InnoDB")
        session.execute_raw(f"INSERT INTO n SELECT seq, seq FROM seq_1_to_{ROWS}")
        session.rows("ANALYZE TABLE n")
        told = make_plan(session, Spec(table="n", alter="ADD COLUMN c INT", strategy="online")).checks
    (path,) = (check.sentence for check in told if check.name == "copy path")
    assert ("side by side" in path) is (has_one or bool(keys)), path


def test_rows_of_a_stand_in_raise_no_counter(database: Database) -> None:
    """InnoDB would lock the root page for each of them, which a stand-in is there to spare."""
    with connect(database.url) as session:
        session.execute_raw("CREATE TABLE n (id INT AUTO_INCREMENT PRIMARY KEY, v INT) ENGINE=InnoDB")
        assert stand_in.create(session, introspect(session, database.name, "n"), "other")
        session.execute_raw("INSERT INTO other VALUES (7,7)")
    where = f"name LIKE '{database.name}/%'"
    known = database.admin.rows(f"SELECT name, autoinc FROM information_schema.innodb_sys_tablestats WHERE {where}")
    assert {str(name).partition("#P#")[0]: counter for name, counter in known}[f"{database.name}/other"] == 0, known


@pytest.fixture
def copied(app: Session, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The flow in stages, all rows copied; and this server has not got what the hand-over did on another one."""
    monkeypatch.setattr(tasks, "SparkStart", local_spark.LocalStart)
    spec = Spec(table="t", alter=ALTER, workflow=staged.WORKFLOW, chunk_rows=20_000, copy_parallelism=2)
    stage = Stage(url=database.url, spec=spec, stop=threading.Event(), notify=lambda text: None)
    assert tasks.plan(stage) is not None
    tasks.prepare_tables(stage)
    replicate = staged.CatchUp(stage)
    with monkeypatch.context() as lost:
        lost.setattr(standing_in, "finish", lambda driver: None)
        tasks.copy(stage)
    assert names.stand_in("t", stage.workflow) in tables(app)
    yield stage
    stage.stop.set()
    replicate.end()


def test_a_promoted_replica_lacks_the_hand_over(copied: Stage, app: Session, database: Database) -> None:
    tasks.verify(copied)
    tasks.enter_gate(copied)
    app.execute_raw("UPDATE t SET v=-1 WHERE id<=50")
    stages.release(copied, "tester")
    tasks.cut_over(copied)
    assert tasks.clean_up(copied).event == "complete"
    check(app, database)


def test_tables_are_not_switched_while_a_stand_in_has_the_rows(
    copied: Stage, app: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lost:
        lost.setattr(standing_in, "finish", lambda driver: None)
        tasks.verify(copied)
        tasks.enter_gate(copied)
        stages.release(copied, "tester")
        with pytest.raises(Ended, match="are still in"):
            tasks.cut_over(copied)
    assert app.value("SELECT COUNT(*) FROM t") == ROWS


SPOILS = {
    # Who of the two sees it first says so: the driver, or catch-up in the log.
    "stand_in.renamed": ("DROP TABLE {new}", ("doesn't exist", "DROP TABLE")),
    "stand_in.exchanged": ("INSERT INTO {stood_in} VALUES (1,1,1)", ("have rows, so somebody else",)),
}


@pytest.mark.parametrize("point", SPOILS)
def test_a_hand_over_that_somebody_spoils_ends(app: Session, database: Database, pauses: Path, point: str) -> None:
    sql, reasons = SPOILS[point]
    with paused_at(pauses, point):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2)
        wait_reached(pauses, point, run)
        app.execute_raw(sql.format(new=names.shadow_table("t"), stood_in=names.stood_in("t", run.workflow)))
    ended = run.result(30)
    assert ended.event == "failed"
    assert any(why in (ended.reason or "") for why in reasons), ended.reason
    assert call(database, "cancel", run.workflow).code == 0
    assert tables(app) == {"t"}


def test_a_table_of_its_name_that_is_somebody_elses(app: Session, database: Database) -> None:
    theirs = names.stand_in("t", "w")
    app.execute_raw(f"CREATE TABLE {theirs} LIKE t")
    run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2, workflow="w")
    assert run.result().event == "complete"
    assert app.value(f"SELECT COUNT(*) FROM {theirs}") == 0
    app.execute_raw(f"DROP TABLE {theirs}")
    check(app, database)


@pytest.mark.parametrize("sql", ["DROP TABLE {}", "TRUNCATE {}"])
def test_a_stand_in_that_somebody_takes_away_ends_it(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """All rows were in it, and what has been compared there is not looked at again."""
    monkeypatch.setattr(beside, "LEAST_ROWS", 1)
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2)
        wait_reached(pauses, "workflow.copied", run)
        app.execute_raw(sql.format(names.stand_in("t", run.workflow)))
        app.execute_raw("UPDATE t SET v=-1 WHERE id<=50")
    ended = run.result()
    assert ended.event == "failed", ended
    assert app.value("SELECT COUNT(*) FROM t") == ROWS
    assert call(database, "cancel", run.workflow).code == 0
    assert tables(app) == {"t"}


def test_renamed_while_catch_up_reads_its_definition(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again at this very moment, with what was the name a statement ago."""
    with paused_at(pauses, "stand_in.renamed"):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2)
        wait_reached(pauses, "stand_in.renamed", run)
        with connect(database.url) as session, monkeypatch.context() as before:
            row = workflows.load(session, run.workflow)
            answers, asked = iter([row.stand_in]), job.written_to
            before.setattr(job, "written_to", lambda *its: next(answers, None) or asked(*its))
            # As which catch-up waits for as long as it takes (engine/replicate.py).
            with pytest.raises(LockWait):
                job.load(session, run.workflow)
    assert run.result().event == "complete"


def test_rows_that_change_hands_while_a_person_has_them_compared(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paused_at(pauses, *POINTS):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2)
        wait_reached(pauses, POINTS[0], run)

        def compare(*its: Any, **more: Any) -> Verdict:
            for point, following in itertools.pairwise(POINTS):
                let_go(pauses, point)
                wait_reached(pauses, following, run)
            return verify(*its, **more)

        monkeypatch.setattr(operate, "verify_rows", compare)
        with pytest.raises(Transient, match=r"went from .*__vr_tmp_.* to t__vr_new meanwhile"):
            operate.verify(database.url, run.workflow, "", threading.Event())
    assert run.result().event == "complete"


def test_catch_up_that_was_away_begins_again(app: Session, database: Database, pauses: Path) -> None:
    """It stands in the middle of a batch when the names change, and meets a table that is no longer there."""
    with paused_at(pauses, "stand_in.before_rename"):
        run = begin(database, "t", ALTER, chunk_rows=20_000, copy_parallelism=2, cutover="manual")
        wait_reached(pauses, "stand_in.before_rename", run)
        with paused_at(pauses, "apply.before_flush"):
            app.execute_raw("UPDATE t SET v=-1 WHERE id<=50")
            wait_reached(pauses, "apply.before_flush", run)
            let_go(pauses, "stand_in.before_rename")
            wait_until(lambda: not any("__vr_tmp_" in n or "__vr_out_" in n for n in tables(app)), "not handed over")
    assert call(database, "release", run.workflow).code == 0
    assert run.result().event == "complete"
    assert app.value("SELECT COUNT(*) FROM t WHERE v=-1") == 50
    check(app, database)


def test_prepared_again_without_one_it_goes_on(app: Session, database: Database, tmp_path: Path, pauses: Path) -> None:
    """The preparation was cut short with a stand-in, and by the time that it begins again the table is small."""
    with paused_at(pauses, "prepare.tables_made"):
        command = start(database, tmp_path, WORDS)
        wait_command(pauses, "prepare.tables_made", command)
        assert names.stand_in("t", "w") in tables(app)
        orphans = command.kill()
    wait_gone(orphans)
    app.execute_raw("DELETE FROM t WHERE id>100")
    app.rows("OPTIMIZE TABLE t")
    ended = start(database, tmp_path, WORDS).finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    check(app, database)
