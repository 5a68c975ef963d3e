"""Sessions, answers and drivers that are lost in a cut-over: the table is one or the other, and we know which."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from cutover_setup import (
    WORKFLOW,
    Background,
    Points,
    Ready,
    app,
    attempt,
    is_there,
    points,
    ready,
    start,
    timed,
    until,
    waiting_for_lock,
)

from vreplication.cutover import rename
from vreplication.cutover.decide import settle
from vreplication.cutover.outcome import Lookup
from vreplication.cutover.sessions import Sessions
from vreplication.engine.driver import Driver
from vreplication.errors import Superseded
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.settings import SIDECAR
from vreplication.workflows.online_ddl import switching

__all__ = ["app", "points", "ready"]

_CHILD = """
import pickle, sys
from vreplication.cutover.attempt import CutOver
cut_over = CutOver(*pickle.load(sys.stdin.buffer), deadline_seconds=2.0)
print(cut_over.attempt(barrier=lambda seconds: None, check_locked=lambda part, locker: None).is_switched)
"""


@pytest.mark.parametrize("point", ["before_lock", "locked", "after_barrier", "rename_pending"])
def test_locker_killed_before_the_sentry_goes(ready: Ready, points: Points, point: str, app: Session) -> None:
    with _held(ready, points, point) as running:
        ready.database.admin.kill(ready.ids[0])
        until(lambda: not is_there(ready, ready.ids[0]))
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
        until(lambda: not is_there(ready, ready.ids[1]))
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
        until(lambda: not any(is_there(ready, n) for n in ready.ids))
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
    running = start(ready, points, "after_unlock")
    until(lambda: waiting_for_lock(ready.session, ready.ids[1]))
    sent[0]._renamer._connection._sock.shutdown(socket.SHUT_RDWR)
    points.let_go("cutover.after_unlock")
    outcome = running.result()
    app.rollback()
    assert not outcome.is_switched
    until(lambda: not is_there(ready, ready.announced[0][1]))
    assert ready.is_untouched()


def test_who_has_a_number_that_was_ours_on_the_run_before_is_left_alone(ready: Ready, app: Session) -> None:
    """A server that is started again counts its connections anew."""
    lost = SimpleNamespace(id=app.id)
    lookup = Lookup(
        url=ready.database.url,
        server=ready.server,
        rows=[ready.row],
        sessions=cast("Sessions", SimpleNamespace(renamer=lost, makers=(lost,))),
        rename=cast("rename.Rename", SimpleNamespace(is_unanswered=True)),
        sentries=(),
    )
    assert not lookup.decided()
    assert app.is_alive()


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
        assert timed(lambda: app.execute_raw("INSERT INTO t (v) VALUES (1)")) < 6
        assert not ready.is_switched()
        points.let_go("cutover.after_barrier")
        child.send_signal(signal.SIGCONT)
        assert child.stdout is not None
        assert child.stdout.read() == b"False\n"
        assert ready.is_untouched()
    finally:
        child.kill()
        child.wait()


def test_a_superseded_driver_writes_no_marker(ready: Ready) -> None:
    """The living driver's catch-up would stand still at it, and nobody would take it back."""
    ready.database.admin.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1")
    superseded = SimpleNamespace(workflow=WORKFLOW, lease=ready.lease, check=lambda: None)
    with connect(ready.database.url) as other, pytest.raises(Superseded):
        switching.mark(other, cast("Driver", superseded))
    assert ready.session.rows(f"SELECT kind FROM {SIDECAR}.marker") == []


def test_superseded_driver_does_not_rename(ready: Ready, points: Points) -> None:
    running = start(ready, points, "after_barrier")
    ready.database.admin.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1")
    points.let_go("cutover.after_barrier")
    with pytest.raises(Superseded):
        running.result()
    # Who is superseded may have to leave its sentry to the successor, which settles before anything else.
    assert settle(ready.session, ready.row) == "not switched"
    assert ready.is_untouched()
    with pytest.raises(Superseded):
        attempt(ready)


class _held:
    """An attempt that stands at a pause point while the block runs."""

    def __init__(self, ready: Ready, points: Points, point: str) -> None:
        self.points, self.name = points, f"cutover.{point}"
        self.running = start(ready, points, point)

    def __enter__(self) -> Background:
        return self.running

    def __exit__(self, *_: object) -> None:
        self.points.let_go(self.name)
