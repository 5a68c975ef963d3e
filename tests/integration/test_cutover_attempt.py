"""The cut-over on real servers: nothing lost, nobody sees a gap, and whatever dies the table is one or the other."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cutover_setup import WORKFLOW, Background, Points, Ready, attempt, nothing, prepare, until, waiting_for_lock

from sandbox.databases import Database
from vreplication.cutover import rename, sentry
from vreplication.cutover.decide import decide, settle
from vreplication.cutover.finish import analyze, drop_table
from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import comment, create_sentry, remove_sentry
from vreplication.engine.driver import Driver
from vreplication.errors import BadValue, SourceChanged, Superseded, Terminal, Transient
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import ConnectionLost, LockWait, Session, connect
from vreplication.pausepoints import VARIABLE
from vreplication.settings import SIDECAR
from vreplication.state import journal, verdicts, workflows
from vreplication.state.verdicts import Verdict
from vreplication.workflows.online_ddl import failover, switching

_CHILD = """
import pickle, sys
from vreplication.cutover.attempt import CutOver
cut_over = CutOver(*pickle.load(sys.stdin.buffer), deadline_seconds=2.0)
print(cut_over.attempt(barrier=lambda seconds: None, check_locked=lambda part, locker: None).is_switched)
"""
RUNS = 20
WRITERS = 4


@pytest.fixture
def ready(database: Database) -> Iterator[Ready]:
    made = prepare(database)
    yield made
    made.session.close()


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Points(tmp_path)


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        yield session


def test_the_new_table_takes_the_name(ready: Ready) -> None:
    analyze(ready.session, ready.database.name, ready.row.shadow_table)
    outcome = attempt(ready)
    assert outcome.is_switched, outcome.reason
    assert ready.is_switched()
    assert ready.tables() == {"t", ready.row.retired_table}
    assert ready.session.rows("SELECT * FROM t ORDER BY id") == [(1, 10, 7), (2, 20, 7), (3, 30, 7)]
    assert 0 < outcome.lock_millis <= outcome.total_millis < 3000
    assert len(ready.announced[0]) == 4
    assert ready.announced[-1] == ()
    assert decide(ready.session, ready.row) == settle(ready.session, ready.row) == "switched"
    assert ready.row.retired_table in ready.tables()


def test_nothing_is_decided_on_another_server(ready: Ready) -> None:
    """Two servers number their tables alike, so the same identity there means nothing."""
    for about in (decide, settle):
        with pytest.raises(SourceChanged, match="on another server"):
            about(ready.session, dataclasses.replace(ready.row, server_identity="another"))
    here = identity(inspect(ready.session))
    assert decide(ready.session, dataclasses.replace(ready.row, server_identity=here)) == "not switched"


def test_who_is_killed_while_it_moves_has_not_moved(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new server is noted together with all that follows from it: whoever finds it noted looks no further."""
    session, write = ready.session, journal.write
    counts = Verdict(verdict=verdicts.CLEAN, rows_compared=3, mismatches=0, repaired=0, hot_keys=(), details="")
    verdicts.save(session, WORKFLOW, counts)
    workflows.set_fields(session, WORKFLOW, server_identity="another", rows_total=3)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        failover.adopt(session, workflows.load(session, WORKFLOW))
    monkeypatch.setattr(journal, "write", write)
    for _ in range(2):
        failover.adopt(session, workflows.load(session, WORKFLOW))
    here = identity(inspect(session))
    assert workflows.load(session, WORKFLOW).server_identity == here
    assert verdicts.load(session, WORKFLOW) is None
    moved = [each["details"] for each in journal.read(session, WORKFLOW) if each["event"] == journal.MOVED]
    assert moved == [f"from server another to {here}"]


def test_no_write_is_lost_and_no_reader_sees_a_gap(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Writers and readers never stop; what the lock's holder saw is all that the retired table ever holds."""
    queued = 0
    longest = 0.0
    for run in range(RUNS):
        ready = prepare(database, f"t{run}", f"wf-{run}")
        with _traffic(database, f"t{run}") as traffic:
            traffic.wait_for_writes(8)
            under_lock: list[set[int]] = []

            def barrier(_: float, traffic: _Traffic = traffic, ready: Ready = ready) -> None:
                until(lambda: traffic.waiting(ready.session) == WRITERS)

            def look(locker: Session, table: str = f"t{run}", seen: list[set[int]] = under_lock) -> None:
                seen.append(_ids(locker, table))

            outcome = attempt(ready, barrier=barrier, check_locked=look)
            assert outcome.is_switched, outcome.reason
            longest = max(longest, outcome.total_millis)
            traffic.wait_for_writes(8)
        retired, new = _ids(ready.session, ready.row.retired_table), _ids(ready.session, f"t{run}")
        assert retired == under_lock[0]
        assert traffic.acknowledged <= retired | new
        assert traffic.errors == []
        queued += WRITERS
        ready.session.close()
    with capsys.disabled():
        print(f" [{database.server.flavor}: {RUNS} switches, {queued} queued writes, longest {longest:.0f} ms]", end="")


@pytest.mark.parametrize("point", ["before_lock", "locked", "after_barrier", "rename_pending"])
def test_locker_killed_before_the_sentry_goes(ready: Ready, points: Points, point: str, app: Session) -> None:
    with _held(ready, points, point) as running:
        ready.database.admin.kill(ready.ids[0])
        until(lambda: not _is_there(ready, ready.ids[0]))
    outcome = running.result()
    assert not outcome.is_switched
    assert ready.is_untouched()
    assert app.execute_raw("INSERT INTO t (v) VALUES (1)") == 1
    assert attempt(ready).is_switched


@pytest.mark.parametrize("point", ["sentry_dropped", "after_unlock", "after_rename"])
def test_locker_killed_after_the_sentry_is_gone(ready: Ready, points: Points, point: str) -> None:
    with _held(ready, points, point) as running:
        ready.database.admin.kill(ready.ids[0])
        until(ready.is_switched)
    assert running.result().is_switched
    assert ready.is_switched()


@pytest.mark.parametrize("point", ["before_lock", "locked", "after_barrier", "rename_pending", "sentry_dropped"])
def test_renamer_killed(ready: Ready, points: Points, point: str, app: Session) -> None:
    with _held(ready, points, point) as running:
        ready.database.admin.kill(ready.ids[1])
        until(lambda: not _is_there(ready, ready.ids[1]))
    outcome = running.result()
    assert not outcome.is_switched
    assert ready.is_untouched()
    assert app.execute_raw("INSERT INTO t (v) VALUES (1)") == 1
    assert attempt(ready).is_switched


@pytest.mark.parametrize("point", ["locked", "rename_pending", "sentry_dropped"])
def test_every_connection_killed(ready: Ready, points: Points, point: str, app: Session) -> None:
    """What a takeover does: whatever comes of it, our answer and the server's are the same."""
    with _held(ready, points, point) as running:
        for number in ready.ids:
            ready.database.admin.kill(number)
        until(lambda: not any(_is_there(ready, n) for n in ready.ids))
    outcome = running.result()
    assert outcome.is_switched == ready.is_switched()
    assert outcome.is_switched or ready.is_untouched()
    assert app.execute_raw("INSERT INTO t (v) VALUES (1)") == 1


@pytest.mark.parametrize("is_executed", [True, False])
def test_the_answer_to_rename_is_lost(ready: Ready, monkeypatch: pytest.MonkeyPatch, is_executed: bool) -> None:
    original = rename.Rename._run

    def run(self: rename.Rename) -> None:
        if is_executed:
            original(self)
        self._renamer.abort()
        self._error = ConnectionLost("lost")

    monkeypatch.setattr(rename.Rename, "_run", run)
    outcome = attempt(ready)
    assert outcome.is_switched == is_executed
    assert ready.is_switched() if is_executed else ready.is_untouched()


def test_a_rename_that_was_never_answered_is_ended_first(
    ready: Ready, points: Points, app: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is cut while it waits for somebody who uses the shadow: it may not come true after our answer."""
    sent: list[rename.Rename] = []
    original = rename.Rename.send
    monkeypatch.setattr(rename.Rename, "send", lambda self, seconds: (sent.append(self), original(self, seconds))[1])
    app.execute_raw("BEGIN")
    app.rows(f"SELECT * FROM {ready.row.shadow_table}")
    running = _start(ready, points, "after_unlock")
    until(lambda: waiting_for_lock(ready.session, ready.ids[1]))
    sent[0]._renamer._connection._sock.shutdown(socket.SHUT_RDWR)
    points.let_go("cutover.after_unlock")
    outcome = running.result()
    app.rollback()
    assert not outcome.is_switched
    until(lambda: not _is_there(ready, ready.announced[0][1]))
    assert ready.is_untouched()


def test_a_reader_of_the_shadow_cannot_hold_the_writers_for_longer(ready: Ready, app: Session) -> None:
    app.execute_raw("BEGIN")
    app.rows(f"SELECT * FROM {ready.row.shadow_table}")
    running = Background(lambda: attempt(ready, deadline_seconds=1.5, barrier=nothing))
    with connect(ready.database.app_url) as writer:
        until(lambda: len(ready.announced) > 0 and waiting_for_lock(ready.session, ready.ids[1]))
        assert _timed(lambda: writer.execute_raw("INSERT INTO t (v) VALUES (1)")) < 2.0
    outcome = running.result()
    assert not outcome.is_switched
    assert outcome.reason.startswith("The deadline of 1.5 s passed.")
    assert f"KILL {app.id}" in outcome.reason
    assert ready.is_untouched()


def test_open_transaction_is_named(ready: Ready, app: Session) -> None:
    app.execute_raw("BEGIN")
    app.rows("SELECT * FROM t")
    outcome = attempt(ready)
    assert not outcome.is_switched
    assert app.id in [b.connection_id for b in outcome.blockers]
    assert f"connection {app.id} ({ready.database.app_user}@" in outcome.reason
    assert f"KILL {app.id}" in outcome.reason
    assert ready.is_untouched()
    app.rollback()
    assert attempt(ready).is_switched


def test_running_statement_is_named(ready: Ready, app: Session) -> None:
    slow = Background(lambda: app.rows("SELECT id, SLEEP(60) FROM t"))
    until(lambda: bool(ready.session.row("SELECT 1 FROM information_schema.processlist WHERE state='User sleep'")))
    outcome = attempt(ready)
    ready.database.admin.kill(app.id)
    assert [b.statement for b in outcome.blockers if b.connection_id == app.id] == ["SELECT id, SLEEP(60) FROM t"]
    assert "SLEEP(60)" in outcome.reason
    assert ready.is_untouched()
    with pytest.raises(Exception, match=r"lost|interrupted|kill"):
        slow.result()


def test_writers_wait_no_longer_than_the_deadline(ready: Ready, app: Session) -> None:
    """A barrier that hangs: the lock is gone at the deadline, before anybody in this process has noticed."""
    is_locked, released = threading.Event(), threading.Event()

    def barrier(_: float) -> None:
        is_locked.set()
        _wait(released)

    running = Background(lambda: attempt(ready, deadline_seconds=1.5, barrier=barrier))
    _wait(is_locked)
    writing = Background(lambda: _timed(lambda: app.execute_raw("INSERT INTO t (v) VALUES (1)")))
    stall = writing.result()
    assert running.is_running
    released.set()
    outcome = running.result()
    assert not outcome.is_switched
    assert "deadline of 1.5 s" in outcome.reason
    assert stall < 2.0
    assert ready.is_untouched()


def test_writers_go_on_when_our_process_is_stopped(ready: Ready, points: Points, app: Session) -> None:
    """SIGSTOP in the middle of it: the server ends the silent sessions, and we learn that nothing happened."""
    points.hold("cutover.after_barrier")
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdin is not None
        child.stdin.write(pickle.dumps((ready.database.url, ready.server, (ready.part,))))
        child.stdin.close()
        points.wait("cutover.after_barrier")
        child.send_signal(signal.SIGSTOP)
        assert _timed(lambda: app.execute_raw("INSERT INTO t (v) VALUES (1)")) < 6
        assert not ready.is_switched()
        points.let_go("cutover.after_barrier")
        child.send_signal(signal.SIGCONT)
        assert child.stdout is not None
        assert child.stdout.read() == b"False\n"
        assert ready.is_untouched()
    finally:
        child.kill()
        child.wait()


def test_barrier_is_told_what_is_left(ready: Ready) -> None:
    told: list[float] = []
    assert attempt(ready, barrier=told.append).is_switched
    assert 1.5 < told[0] <= 2.5


def test_transient_barrier_ends_the_attempt(ready: Ready, app: Session) -> None:
    def late(_: float) -> None:
        raise Transient("Catch-up did not reach the marker.")

    outcome = attempt(ready, barrier=late)
    assert not outcome.is_switched
    assert outcome.reason == "Catch-up did not reach the marker."
    assert 0 < outcome.lock_millis < 2000
    assert ready.is_untouched()
    assert app.execute_raw("INSERT INTO t (v) VALUES (1)") == 1


def test_terminal_check_is_raised_with_the_lock_gone(ready: Ready, app: Session) -> None:
    def differs(locker: Session) -> None:
        assert locker.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
        raise BadValue("Key 2 differs.")

    with pytest.raises(BadValue, match="Key 2"):
        attempt(ready, check_locked=differs)
    assert ready.is_untouched()
    assert app.execute_raw("INSERT INTO t (v) VALUES (1)") == 1


@pytest.mark.parametrize("is_detached", [False, True])
def test_prepared_branch_on_the_table_is_named(ready: Ready, is_detached: bool) -> None:
    branch = _prepare_branch(ready, "t", is_detached=is_detached)
    outcome = attempt(ready)
    assert not outcome.is_switched
    assert ("'g1-blocker'" if ready.server.is_mariadb else "X'67312d626c6f636b6572'") in outcome.reason
    assert ready.is_untouched()
    _finish_branch(ready, branch)
    assert attempt(ready).is_switched


@pytest.mark.parametrize("is_detached", [False, True])
def test_prepared_branch_on_another_table_is_no_matter(ready: Ready, is_detached: bool, app: Session) -> None:
    app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    branch = _prepare_branch(ready, "other", is_detached=is_detached)
    outcome = attempt(ready)
    assert outcome.is_switched, outcome.reason
    _finish_branch(ready, branch)


def test_auto_increment_is_carried_over(ready: Ready, app: Session) -> None:
    app.execute_raw("INSERT INTO t (id, v) VALUES (500, 1)")
    app.execute_raw("DELETE FROM t WHERE id = 500")
    assert attempt(ready).is_switched
    app.execute_raw("INSERT INTO t (v) VALUES (1)")
    assert app.value("SELECT MAX(id) FROM t") == 501
    assert ready.is_switched()


def test_a_higher_counter_of_the_shadow_stays(ready: Ready, app: Session) -> None:
    ready.session.execute_raw(f"ALTER TABLE {ready.row.shadow_table} AUTO_INCREMENT=900")
    assert attempt(ready).is_switched
    app.execute_raw("INSERT INTO t (v) VALUES (1)")
    assert app.value("SELECT MAX(id) FROM t") == 900


def test_views_and_grants_go_by_name(ready: Ready, app: Session) -> None:
    admin, schema = ready.database.admin, ready.database.name
    reader = f"rd{schema[-8:]}"
    app.execute_raw("CREATE VIEW vw AS SELECT id, v FROM t")
    admin.execute_raw(f"CREATE USER {reader}@'%' IDENTIFIED BY 'pw-reader-1'")
    try:
        admin.execute_raw(f"GRANT SELECT ON `{schema}`.t TO {reader}@'%'")
        admin.execute_raw(f"GRANT SELECT ON `{schema}`.vw TO {reader}@'%'")
        if not ready.server.is_mariadb:
            admin.execute_raw(f"GRANT SESSION_VARIABLES_ADMIN ON *.* TO {reader}@'%'")
        assert attempt(ready).is_switched
        with connect(ready.database.server.url(schema, user=reader, password="pw-reader-1")) as session:
            assert session.value("SELECT SUM(added) FROM t") == 21
            assert session.value("SELECT SUM(v) FROM vw") == 60
            with pytest.raises(Terminal, match="denied"):
                session.rows(f"SELECT * FROM {ready.row.retired_table}")
    finally:
        admin.execute_raw(f"DROP USER {reader}@'%'")


def test_left_over_sentry_is_cleared(ready: Ready) -> None:
    create_sentry(ready.session, ready.database.name, ready.row.retired_table, ready.row.id)
    assert settle(ready.session, ready.row) == "not switched"
    assert ready.is_untouched()
    create_sentry(ready.session, ready.database.name, ready.row.retired_table, ready.row.id)
    assert attempt(ready).is_switched


def test_nobody_takes_over_while_a_sentry_is_removed(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has taken over may have placed one of the same name, for a RENAME that is under way."""
    was_taken_over: list[bool] = []

    def late(*args: Any) -> bool:
        was_taken_over.append(is_taken_over(ready))
        return remove_sentry(*args)

    def barrier(seconds: float) -> None:
        monkeypatch.setattr(sentry, "remove_sentry", late)
        raise Transient("not now")

    assert not attempt(ready, barrier=barrier).is_switched
    assert was_taken_over == [False]
    assert ready.is_untouched()


def test_a_superseded_driver_writes_no_marker(ready: Ready) -> None:
    """The living driver's catch-up would stand still at it, and nobody would take it back."""
    ready.database.admin.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1")
    superseded = SimpleNamespace(workflow=WORKFLOW, lease=ready.lease, check=lambda: None)
    with connect(ready.database.url) as other, pytest.raises(Superseded):
        switching.mark(other, cast("Driver", superseded))
    assert ready.session.rows(f"SELECT kind FROM {SIDECAR}.marker") == []


def is_taken_over(ready: Ready) -> bool:
    with connect(ready.database.url, lock_wait_seconds=1) as other:
        try:
            return other.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1") > 0
        except LockWait:
            return False


@pytest.mark.parametrize("kind", ["foreign", "other workflow", "not empty"])
def test_what_is_not_an_empty_sentry_of_ours_stays(ready: Ready, kind: str) -> None:
    name = ready.row.retired_table
    words = {"foreign": "mine", "other workflow": comment("wf-2"), "not empty": comment(ready.row.id)}[kind]
    ready.session.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY) COMMENT='{words}'")
    if kind == "not empty":
        ready.session.execute_raw(f"INSERT INTO {name} VALUES (1)")
    assert settle(ready.session, ready.row) == "not switched"
    assert not remove_sentry(ready.session, ready.database.name, name, ready.row.id)
    with pytest.raises(Terminal, match="is not ours"):
        attempt(ready)
    assert name in ready.tables()


def test_superseded_driver_does_not_rename(ready: Ready, points: Points) -> None:
    running = _start(ready, points, "after_barrier")
    ready.database.admin.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1")
    points.let_go("cutover.after_barrier")
    with pytest.raises(Superseded):
        running.result()
    # Who is superseded may have to leave its sentry to the successor, which settles before anything else.
    assert settle(ready.session, ready.row) == "not switched"
    assert ready.is_untouched()
    with pytest.raises(Superseded):
        attempt(ready)


@pytest.mark.parametrize("statement", ["ALTER TABLE t FORCE", "TRUNCATE TABLE t__vr_new", "DROP TABLE t__vr_new"])
def test_replaced_table_is_seen_under_the_lock(ready: Ready, statement: str, app: Session) -> None:
    app.execute_raw(statement)
    with pytest.raises(SourceChanged):
        attempt(ready)
    assert {"t"} <= ready.tables()
    if "vr_new" in statement:
        assert ready.is_untouched()


def test_names_that_sort_before_the_table_are_refused(ready: Ready) -> None:
    for wrong in ({"shadow_table": "_t_new"}, {"retired_table": "_t_old"}):
        other = dataclasses.replace(ready, row=dataclasses.replace(ready.row, **wrong))
        with pytest.raises(Terminal, match="do not sort after"):
            other.cut_over()


def test_long_and_odd_name(database: Database) -> None:
    ready = prepare(database, "ü`#%" + "~" * 10 + "x" * 50)
    outcome = attempt(ready)
    assert outcome.is_switched, outcome.reason
    assert ready.is_switched()
    ready.session.close()


def test_rename_waits_on_the_table_itself(ready: Ready, points: Points) -> None:
    if ready.server.is_mariadb:
        pytest.skip("MariaDB does not show who waits for which metadata lock")
    sql = (
        "SELECT object_name FROM performance_schema.metadata_locks m JOIN performance_schema.threads t "
        "ON t.thread_id = m.owner_thread_id WHERE t.processlist_id=%s AND object_type='TABLE' AND lock_status='PENDING'"
    )
    running = _start(ready, points, "rename_pending")
    assert ready.session.rows(sql, (ready.ids[1],)) == [("t",)]
    points.let_go("cutover.rename_pending")
    assert running.result().is_switched


def test_a_table_is_dropped_only_by_its_identity(ready: Ready) -> None:
    assert attempt(ready).is_switched
    schema, name, mariadb = ready.database.name, ready.row.retired_table, ready.server.is_mariadb
    assert ready.row.source_identity is not None
    assert ready.row.shadow_identity is not None
    assert not drop_table(ready.session, schema, name, ready.row.shadow_identity, is_mariadb=mariadb)
    assert not drop_table(ready.session, schema, "t", ready.row.source_identity, is_mariadb=mariadb)
    assert drop_table(ready.session, schema, name, ready.row.source_identity, is_mariadb=mariadb)
    assert not drop_table(ready.session, schema, name, ready.row.source_identity, is_mariadb=mariadb)
    assert ready.tables() == {"t"}
    assert table_identity(ready.session, schema, "t", mariadb) == ready.row.shadow_identity


# -- hands ---


class _held:
    """An attempt that stands at a pause point while the block runs."""

    def __init__(self, ready: Ready, points: Points, point: str) -> None:
        self.points, self.name = points, f"cutover.{point}"
        self.running = _start(ready, points, point)

    def __enter__(self) -> Background:
        return self.running

    def __exit__(self, *_: object) -> None:
        self.points.let_go(self.name)


def _start(ready: Ready, points: Points, point: str) -> Background:
    points.hold(f"cutover.{point}")
    running = Background(lambda: attempt(ready))
    points.wait(f"cutover.{point}")
    return running


def _is_there(ready: Ready, connection_id: int) -> bool:
    sql = "SELECT 1 FROM information_schema.processlist WHERE id=%s"
    return ready.database.admin.row(sql, (connection_id,)) is not None


def _ids(session: Session, table: str) -> set[int]:
    return {int(r[0]) for r in session.rows(f"SELECT id FROM {table}")}


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


class _Traffic:
    """Writers that insert and readers that count, until the block is left."""

    def __init__(self, database: Database, table: str) -> None:
        self.errors: list[str] = []
        self.acknowledged: set[int] = set()
        self.reads = 0
        self._table = table
        self._over = threading.Event()
        self._sessions = [connect(database.app_url) for _ in range(WRITERS + 2)]
        calls = [self._write] * WRITERS + [self._read] * 2
        self._threads = [
            threading.Thread(target=self._loop, args=pair, daemon=True)
            for pair in zip(calls, self._sessions, strict=True)
        ]

    def __enter__(self) -> _Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread, session in zip(self._threads, self._sessions, strict=True):
            thread.join(20)
            session.close()

    def wait_for_writes(self, count: int) -> None:
        seen, reads = len(self.acknowledged), self.reads
        until(lambda: bool(self.errors) or (len(self.acknowledged) >= seen + count and self.reads > reads))

    def waiting(self, session: Session) -> int:
        return sum(waiting_for_lock(session, s.id) for s in self._sessions[:WRITERS])

    def _loop(self, call: Callable[[Session], None], session: Session) -> None:
        while not self._over.is_set():
            try:
                call(session)
            except Exception as error:
                self.errors.append(str(error))
                return

    def _write(self, session: Session) -> None:
        session.execute_raw(f"INSERT INTO {self._table} (v) VALUES (1)")
        self.acknowledged.add(int(session._connection.insert_id()))

    def _read(self, session: Session) -> None:
        session.rows(f"SELECT COUNT(*) FROM {self._table}")
        self.reads += 1


def _traffic(database: Database, table: str) -> _Traffic:
    return _Traffic(database, table)


def _prepare_branch(ready: Ready, table: str, *, is_detached: bool) -> Session:
    session = connect(ready.database.app_url)
    session.execute_raw("XA START 'g1-blocker'")
    session.execute_raw(f"INSERT INTO {table} (id) VALUES (100)")
    session.execute_raw("XA END 'g1-blocker'")
    session.execute_raw("XA PREPARE 'g1-blocker'")
    if is_detached:
        session.close()
        until(lambda: not _is_there(ready, session.id))
        return ready.database.admin
    return session


def _finish_branch(ready: Ready, session: Session) -> None:
    session.execute_raw("XA ROLLBACK 'g1-blocker'")
    if session is not ready.database.admin:
        session.close()
