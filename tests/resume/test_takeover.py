"""A driver that is stopped (SIGSTOP), taken over by the same command, and continued: it writes nothing any more.

Its heartbeat is made old by the test, so that nobody waits for ten seconds of silence.
"""

from __future__ import annotations

import os
import signal
import socket

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import Ended, let_go, paused_at, wait_until
from tests.support.run_ddl import Command, is_gone, replicates, wait_gone
from vreplication.mysql.session import connect
from vreplication.settings import SIDECAR

POINTS = (
    "prepare.tables_made",
    "copy.before_land",
    "verify.began",
    "workflow.gate_open",
    "cutover.locked",
    "cutover.sentry_dropped",
)


def journal(live: Live) -> list[str]:
    with connect(live.database.url) as session:
        return [str(e) for (e,) in session.rows(f"SELECT event FROM {SIDECAR}.journal WHERE workflow='{WORKFLOW}'")]


def go_on(stopped: Command) -> Ended:
    os.kill(stopped.pid, signal.SIGCONT)
    return stopped.finish()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_driver_is_taken_over_and_continued(live: Live, point: str) -> None:
    with paused_at(live.pauses, point):
        first = live.start()
        live.reached(point, first)
        old = replicates(first.pid)
        os.kill(first.pid, signal.SIGSTOP)
    live.silence()
    second = live.start()
    if point == "cutover.sentry_dropped":
        # The server has ended the lock of the stopped one, and so let its RENAME through.
        live.complete(second)
        ended = go_on(first)
    else:
        with paused_at(live.pauses, "workflow.verified"):
            live.reached("workflow.verified", second)
            ended = go_on(first)
        live.complete(second)
    assert ended.code == 1, (ended, live.log())
    wait_gone(old)
    assert "failed" not in journal(live)
    live.prove()


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
