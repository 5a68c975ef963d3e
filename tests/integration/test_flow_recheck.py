"""Between the verification and the cut-over: what catch-up does wrong is found, however late, and after any crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, ThreadChild, begin, let_go, paused_at, wait_reached, wait_until
from tests.support.oracle import wait_at_gate
from vreplication.apply import writer
from vreplication.apply.batch import Step
from vreplication.apply.since import SinceKeys
from vreplication.apply.writer import Marks, Target
from vreplication.binlog.events import RowChange
from vreplication.changes.watermark import Watermark
from vreplication.engine import recheck, replicate
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.progress import snapshot
from vreplication.schema.checksum import RowHash, Side
from vreplication.state import journal, since, verdicts
from vreplication.state.lease import Lease
from vreplication.verify import hot
from vreplication.verify import since as rounds
from vreplication.verify.rounds import read_keys
from vreplication.verify.since import SinceRounds
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ROWS = 300


@pytest.fixture
def run(database: Database) -> Run:
    """A workflow at the gate: copied, verified, level."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9)) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n},'x')" for n in range(ROWS)))
    found = begin(database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0)
    wait_at_gate(database, found)
    return found


@pytest.fixture(autouse=True)
def _without_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would find what the keys are to find."""
    monkeypatch.setattr(rounds, "_SAMPLES", 0)


def write(database: Database, *statements: str) -> None:
    with connect(database.app_url) as app:
        for statement in statements:
            app.execute_raw(statement)


def applied(database: Database, run: Run, keys: int) -> None:
    """Until catch-up has written so many keys since the verification."""

    def is_there() -> bool:
        return (snapshot.read(session, run.workflow).keys_since or 0) >= keys

    with connect(database.url) as session:
        wait_until(is_there, "the keys are not noted")


def damage(database: Database, sql: str) -> None:
    """As a fault of catch-up's would: without a word in the log."""
    database.admin.execute_raw("SET sql_log_bin=0")
    assert database.admin.execute_raw(sql) > 0
    database.admin.execute_raw("SET sql_log_bin=1")


def released(database: Database, run: Run) -> None:
    operate.release(database.url, run.workflow, "test")


def released_and_written_to(database: Database, run: Run, pauses: Path, statement: str) -> None:
    """The application writes behind the last round, before the cut-over has its lock."""
    with paused_at(pauses, "cutover.before_lock"):
        released(database, run)
        wait_reached(pauses, "cutover.before_lock", run)
        write(database, statement)
        let_go(pauses, "cutover.before_lock")


def events(database: Database, run: Run) -> list[str]:
    with connect(database.url) as session:
        return [entry["event"] for entry in journal.read(session, run.workflow)]


FAULTS = {
    "an insert that is lost": ("INSERT INTO t VALUES (1000,1,'new')", "DELETE FROM t__vr_new WHERE id=1000"),
    "an update that is lost": ("UPDATE t SET a=-1 WHERE id=7", "UPDATE t__vr_new SET a=7 WHERE id=7"),
    "a delete that is lost": ("DELETE FROM t WHERE id=8", "INSERT INTO t__vr_new VALUES (8,8,'x',NULL)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_catch_up_after_the_verification_is_found(database: Database, run: Run, fault: str) -> None:
    change, planted = FAULTS[fault]
    write(database, change)
    applied(database, run, 1)
    damage(database, planted)
    released(database, run)
    result = run.result()
    assert result.event == "complete"
    assert "mismatch" in events(database, run)
    with connect(database.app_url) as app:
        retired = result.retired_table
        assert app.rows("SELECT id,a,b FROM t ORDER BY id") == app.rows(f"SELECT * FROM `{retired}` ORDER BY id")


def test_a_fault_between_the_last_round_and_the_lock_is_found(database: Database, run: Run, pauses: Path) -> None:
    with paused_at(pauses, "cutover.after_barrier"):
        with paused_at(pauses, "cutover.before_lock"):
            released(database, run)
            wait_reached(pauses, "cutover.before_lock", run)
            write(database, "UPDATE t SET a=-1 WHERE id=7")
        wait_reached(pauses, "cutover.after_barrier", run)
        damage(database, "UPDATE t__vr_new SET a=7 WHERE id=7")
    assert run.result(180).event == "complete"
    assert any("1 rows differ under the lock; keys: (7)" in line for line in run.said), run.said
    with connect(database.app_url) as app:
        assert app.value("SELECT a FROM t WHERE id=7") == -1


def test_a_fault_that_comes_back_ends_the_workflow(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catch-up loses each write of one row, and so does copying again: the source stays as it is."""
    # Also in one that is made anew, as after a lock wait.
    lost = property(lambda self: lambda ranges: None, lambda self, value: None)
    monkeypatch.setattr(recheck.Recheck, "copy_again", lost)
    genuine = writer.write_steps

    def lossy(session: Session, target: Target, steps: list[Step], marks: Marks) -> None:
        genuine(session, target, [step for step in steps if step.keys != ["7"]], marks)

    monkeypatch.setattr(writer, "write_steps", lossy)
    write(database, "UPDATE t SET a=-1 WHERE id=7")
    applied(database, run, 1)
    released(database, run)
    run._thread.join(120)  # type: ignore[union-attr]
    assert run._result is not None
    assert (run._result.event, "(7)" in str(run._result.reason)) == ("failed", True), run._result
    with connect(database.app_url) as app:
        assert app.row("SELECT COUNT(*), SUM(a=-1) FROM t") == (ROWS, 1)


def test_keys_outlive_catch_up_that_is_killed(database: Database, run: Run, pauses: Path) -> None:
    """What was only in memory is read again from the log: from where keys were last saved, to the checkpoint."""
    write(database, "UPDATE t SET a=-1 WHERE id=7", "DELETE FROM t WHERE id=9")
    applied(database, run, 2)
    damage(database, "UPDATE t__vr_new SET a=7 WHERE id=7")
    with connect(database.url) as session:
        assert since.count(session, run.workflow) == 0, "they are in the sidecar already: nothing is tried here"
        kill_catch_up(session)
        wait_until(lambda: since_is_known(session, run), "catch-up does not come back")
    applied(database, run, 2)
    released(database, run)
    assert run.result().event == "complete"
    assert "mismatch" in events(database, run)
    with connect(database.app_url) as app:
        assert app.row("SELECT SUM(id=9), SUM(id=7 AND a=-1) FROM t") == (0, 1)


def test_keys_outlive_a_stop_while_the_log_is_read_again(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, and stopped by a signal on the way back to the checkpoint: what was not read again is not known yet."""
    write(database, *(f"UPDATE t SET a=-1 WHERE id={n}" for n in range(20)))
    applied(database, run, 20)
    damage(database, "UPDATE t__vr_new SET a=19 WHERE id=19")
    stops: list[threading.Event] = []
    ended = threading.Event()
    note, catch_up = SinceKeys.note_items, replicate.run_round

    def note_and_stop(keys: SinceKeys, items: Iterable[RowChange]) -> None:
        note(keys, items)
        if keys.keys and not stops[0].is_set():
            stops[0].set()

    def watched(url: SourceUrl, right: Lease, watermark: Watermark, stop: replicate.Stop, is_alone: bool) -> None:
        stops.append(stop.asked)
        catch_up(url, right, watermark, stop, is_alone)
        ended.set()

    with monkeypatch.context() as patched, connect(database.url) as session:
        patched.setattr(SinceKeys, "note_items", note_and_stop)
        patched.setattr(replicate, "run_round", watched)
        kill_catch_up(session)
        wait_until(ended.is_set, "nothing is read again, or it does not stop")
    again = ThreadChild(database.url, run.workflow)
    again.start()
    try:
        applied(database, run, 20)
        released(database, run)
        assert run.result().event == "complete"
        assert "mismatch" in events(database, run)
    finally:
        again.end()


def kill_catch_up(session: Session) -> None:
    """Its connections: the round ends at once, without a last word, and another begins from the checkpoint."""
    rows = session.rows("SELECT connections FROM _vreplication.heartbeat WHERE role='replicate'")
    for (ids,) in rows:
        for connection in str(ids).strip("[]() ").split(","):
            if connection.strip():
                session.kill(int(connection))


def since_is_known(session: Session, run: Run) -> bool:
    found = since.load(session, run.workflow)
    return found is not None and found.vouches


def test_what_is_not_known_any_more_is_verified_anew(database: Database, run: Run) -> None:
    with connect(database.url) as session:
        before = verdicts.load(session, run.workflow)
        since.make_void(session, run.workflow)
        damage(database, "UPDATE t__vr_new SET a=-5 WHERE id=5")
        released(database, run)
        wait_until(lambda: not run.is_going, "it does not end")
        after = verdicts.load(session, run.workflow)
    assert before is not None
    assert after is not None
    assert (before.mismatches, after.mismatches) == (0, 1)


def test_many_keys_are_compared_while_it_waits(database: Database, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "MANY_KEYS", 100)
    write(database, "UPDATE t SET a=a+1000")
    with connect(database.url) as session:
        wait_until(lambda: (snapshot.read(session, run.workflow).keys_since or 0) > 100, "they are not noted")
        wait_until(lambda: snapshot.read(session, run.workflow).keys_since == 0, "they are not compared")
    released(database, run)
    assert run.result().event == "complete"


def test_keys_that_are_written_faster_than_compared_keep_it_at_the_gate(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recheck, "MANY_KEYS", 50)
    monkeypatch.setattr(rounds, "FEW_KEYS", 10)
    monkeypatch.setattr(rounds, "LOCKED_KEYS", 20)
    monkeypatch.setattr(rounds, "_MAX_ROUNDS", 2)
    stop = threading.Event()

    def keep_writing() -> None:
        with connect(database.app_url) as app:
            while not stop.is_set():
                app.execute_raw("UPDATE t SET a=a+1")

    writer_thread = threading.Thread(target=keep_writing)
    writer_thread.start()
    try:
        wait_until(lambda: not run.is_going or any("faster than" in line for line in run.said), "it is never too busy")
    finally:
        stop.set()
        writer_thread.join()
    assert run.is_going, run._result
    released(database, run)
    assert run.result().event == "complete"


def test_duplicates_under_a_new_unique_key_are_called_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that gave way to another one differs, and is no fault of catch-up's: it is copied again at the gate."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, u INT) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
    run = begin(database, "t", "ADD UNIQUE (u)", cutover="manual", verify_every_minutes=0)
    wait_at_gate(database, run)
    write(database, "UPDATE t SET u=-u")
    applied(database, run, 3)
    compare = SinceRounds.compare

    def compare_behind_a_duplicate(self: SinceRounds, beside: Sequence[str] = ()) -> rounds.Round:
        write(database, "UPDATE t SET u=-1 WHERE id=2")
        return compare(self, beside)

    monkeypatch.setattr(SinceRounds, "compare", compare_behind_a_duplicate)
    released(database, run)
    result = run.result()
    assert (result.event, "holds duplicates" in str(result.reason)) == ("failed", True), result
    assert "mismatch" not in events(database, run)


def test_too_many_keys_for_the_lock_give_the_attempt_up(
    database: Database, run: Run, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOCKED_KEYS", 100)
    released_and_written_to(database, run, pauses, "UPDATE t SET a=a+1000")
    assert run.result(180).event == "complete"
    assert any("more than 100 rows were written" in line for line in run.said), run.said
    with connect(database.app_url) as app:
        assert app.value("SELECT COUNT(*) FROM t WHERE a >= 1000") == ROWS


def test_what_a_busy_table_writes_until_the_lock_is_compared_under_it(
    database: Database, run: Run, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a round may leave, for the application goes on until the lock is taken."""
    monkeypatch.setattr(rounds, "FEW_KEYS", 20)
    released_and_written_to(database, run, pauses, "UPDATE t SET a=a+1000")
    result = run.result()
    assert result.event == "complete"
    assert not any("cut-over not done" in line for line in run.said), run.said
    with connect(database.url) as session:
        told = [entry["details"] for entry in journal.read(session, run.workflow) if entry["event"] == "switched"]
    assert told == [f"{ROWS} keys compared under the lock"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_session_that_is_lost_under_the_lock_costs_the_attempt_alone(
    database: Database, run: Run, pauses: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Both sides are read at once there: the one that fails must neither hold the other up nor pass for equal."""
    lost: list[int] = []

    def read_and_lose(session: Session, of: Side, keys: Sequence[str], *more: Callable[[], bool]) -> list[RowHash]:
        is_this = (of.table == "t") == (side == "source")
        if is_this and not lost:
            lost.append(session.id)
            database.admin.execute_raw(f"KILL {session.id}")
        return read_keys(session, of, keys, *more)

    monkeypatch.setattr(hot, "read_keys", read_and_lose)
    released_and_written_to(database, run, pauses, "UPDATE t SET a=-1 WHERE id=7")
    result = run.result()
    assert (result.event, len(lost)) == ("complete", 1), result
    assert any("cut-over not done" in line for line in run.said), run.said
    with connect(database.app_url) as app:
        assert app.value("SELECT a FROM t WHERE id=7") == -1
