"""A driver that is stopped (SIGSTOP), taken over by the same command, and continued: it writes nothing any more.

Its heartbeat is made old by the test, so that nobody waits for ten seconds of silence.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import let_go, paused_at, wait_until
from tests.support.run_ddl import Command, is_gone, replicates, wait_gone
from vreplication.mysql.session import connect
from vreplication.settings import SIDECAR

pytestmark = pytest.mark.either

CHAINS = (
    ("prepare.tables_made", "verify.began", "cutover.locked"),
    ("copy.before_land", "workflow.gate_open", "cutover.sentry_dropped"),
)


def journal(live: Live) -> list[str]:
    with connect(live.database.url) as session:
        return [str(e) for (e,) in session.rows(f"SELECT event FROM {SIDECAR}.journal WHERE workflow='{WORKFLOW}'")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    command: Command
    catch_ups: list[int]


@pytest.mark.slow
@pytest.mark.parametrize("points", CHAINS, ids=" ".join)
@pytest.mark.in_turn
def test_stopped_drivers_are_taken_over_and_continued(live: Live, points: tuple[str, ...]) -> None:
    """Each takes over from the one before, which wakes up behind it, and is stopped itself."""
    first, *others = points
    stopped = stop_at(live, first)
    for point in others:
        stopped = stop_at(live, point, stopped)
    last = live.start()
    if points[-1] == "cutover.sentry_dropped":
        # The server has ended the lock of the stopped one, and so let its RENAME through.
        live.complete(last)
        wake(live, stopped)
    else:
        with paused_at(live.pauses, "workflow.verified"):
            live.reached("workflow.verified", last)
            wake(live, stopped)
        live.complete(last)
    assert "failed" not in journal(live)
    live.prove()


def stop_at(live: Live, point: str, before: Stopped | None = None) -> Stopped:
    """Stop a driver there, when the one before has been woken up; as if it had been silent for long."""
    with paused_at(live.pauses, point):
        command = live.start()
        live.reached(point, command)
        if before:
            wake(live, before)
        stopped = Stopped(command=command, catch_ups=replicates(command.pid))
        os.kill(command.pid, signal.SIGSTOP)
    live.silence()
    return stopped


def wake(live: Live, stopped: Stopped) -> None:
    """It finds out that it is not the driver any more."""
    os.kill(stopped.command.pid, signal.SIGCONT)
    ended = stopped.command.finish()
    assert ended.code == 1, (ended, live.log())
    wait_gone(stopped.catch_ups)


@pytest.mark.slow
def test_a_living_driver_is_not_taken_over(live: Live) -> None:
    with paused_at(live.pauses, "workflow.copied"):
        first = live.start()
        live.reached("workflow.copied", first)
        second = live.start().finish()
        assert second.code == 2
        assert f"being worked on by {socket.gethostname()}:{first.pid}" in second.last["reason"]
        assert "vreplication status" in second.last["reason"]
    live.complete(first)
    live.prove()


@pytest.mark.slow
def test_a_stopped_catch_up_is_replaced_when_its_driver_has_gone(live: Live) -> None:
    """It wakes up behind its successor, with a batch in its hands."""
    with paused_at(live.pauses, "apply.before_flush"):
        first = live.start()
        child = live.reached("apply.before_flush", first)
        os.kill(child, signal.SIGSTOP)
        let_go(live.pauses, "apply.before_flush")
        first.kill()
    try:
        live.silence()
        with paused_at(live.pauses, "workflow.verified"):
            second = live.start()
            live.reached("workflow.verified", second)
            assert not is_gone(child)
            os.kill(child, signal.SIGCONT)
            wait_until(lambda: is_gone(child), "the old catch-up goes on")
    finally:
        if not is_gone(child):
            os.kill(child, signal.SIGKILL)
    live.complete(second)
    live.prove()
