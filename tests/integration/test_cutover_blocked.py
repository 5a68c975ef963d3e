"""Who is in the way of a cut-over is named, and nobody waits for longer than the deadline."""

from __future__ import annotations

import threading

import pytest
from cutover_setup import Background, Ready, app, attempt, is_there, nothing, ready, timed, until, waiting_for_lock

from vreplication.errors import BadValue, Transient
from vreplication.mysql.session import Session, connect

__all__ = ["app", "ready"]


def test_a_reader_of_the_shadow_cannot_hold_the_writers_for_longer(ready: Ready, app: Session) -> None:
    app.execute_raw("BEGIN")
    app.rows(f"SELECT * FROM {ready.row.shadow_table}")
    running = Background(lambda: attempt(ready, deadline_seconds=1.5, barrier=nothing))
    with connect(ready.database.app_url) as writer:
        until(lambda: len(ready.announced) > 0 and waiting_for_lock(ready.session, ready.ids[1]))
        assert timed(lambda: writer.execute_raw("INSERT INTO t (v) VALUES (1)")) < 2.0
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
    writing = Background(lambda: timed(lambda: app.execute_raw("INSERT INTO t (v) VALUES (1)")))
    stall = writing.result()
    assert running.is_running
    released.set()
    outcome = running.result()
    assert not outcome.is_switched
    assert "deadline of 1.5 s" in outcome.reason
    assert stall < 2.0
    assert ready.is_untouched()


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


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


def _prepare_branch(ready: Ready, table: str, *, is_detached: bool) -> Session:
    session = connect(ready.database.app_url)
    session.execute_raw("XA START 'g1-blocker'")
    session.execute_raw(f"INSERT INTO {table} (id) VALUES (100)")
    session.execute_raw("XA END 'g1-blocker'")
    session.execute_raw("XA PREPARE 'g1-blocker'")
    if is_detached:
        session.close()
        until(lambda: not is_there(ready, session.id))
        return ready.database.admin
    return session


def _finish_branch(ready: Ready, session: Session) -> None:
    session.execute_raw("XA ROLLBACK 'g1-blocker'")
    if session is not ready.database.admin:
        session.close()
