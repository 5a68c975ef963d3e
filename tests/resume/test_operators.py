"""What an operator does from another process: stop it, run it on, verify, pause, release; under live writes."""

from __future__ import annotations

import functools
import os
import signal

import pytest
from live_setup import WORKFLOW, Live

from tests.support import run_ddl
from tests.support.flow import Ended, paused_at, wait_until
from tests.support.run_ddl import Command, wait_gone
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import workflows

pytestmark = pytest.mark.either


def act(live: Live, *words: str) -> Command:
    return run_ddl.start(live.database, live.logs, (*words, "--json"))


def done(live: Live, *words: str) -> Ended:
    return act(live, *words, WORKFLOW).finish()


def is_stopping(live: Live, command: Command) -> bool:
    said = f" {command.pid} vreplication.cli.attend: asked to stop"
    return any(said in path.read_text() for path in live.log_files)


def phase(live: Live) -> Phase | None:
    with connect(live.database.url) as session:
        row = workflows.find(session, WORKFLOW)
    return row.phase if row else None


@pytest.mark.slow
@pytest.mark.in_turn("mysql")
def test_killed_then_run_on_by_its_id_alone(live: Live) -> None:
    """Everything but the URL is in the sidecar: the ALTER, the chunk's rows, that it is released by a person."""
    first = live.start("--cutover", "manual")
    wait_until(lambda: phase(live) is Phase.WAITING, "it does not get to the gate")
    wait_gone(first.kill())
    second = act(live, "resume", WORKFLOW)
    live.commands.append(second)
    wait_until(lambda: phase(live) is not Phase.WAITING or not second.is_going, "it does not begin again")
    wait_until(lambda: phase(live) is Phase.WAITING or not second.is_going, "it does not get to the gate again")

    assert done(live, "pause").last["event"] == "paused"
    verified = done(live, "verify")
    assert verified.code == 0, verified
    assert done(live, "release").last["event"] == "released"
    seen = done(live, "status").last
    assert (seen["phase"], seen["paused"]) == ("waiting", True)
    resumed = done(live, "resume")
    assert (resumed.code, resumed.last["event"]) == (0, "resumed")
    live.complete(second)
    live.prove()


@pytest.mark.slow
@pytest.mark.in_turn("mariadb")
@pytest.mark.seldom
def test_sigterm_ends_it_again_and_again_and_the_same_command_goes_on(live: Live) -> None:
    """In the order of the flow; each start goes on where the last one was ended."""
    for point in ("prepare.tables_made", "copy.before_land", "verify.began", "cutover.locked", "workflow.switched"):
        with paused_at(live.pauses, point):
            command = live.start(is_forked=False)
            assert live.reached(point, command) == command.pid
            os.kill(command.pid, signal.SIGTERM)
            # Or the cut-over may be done before the signal is heeded.
            wait_until(functools.partial(is_stopping, live, command), "the signal is not heeded")
        ended = command.finish()
        assert (ended.code, ended.last["event"]) == (130, "interrupted"), (point, ended.last, live.log())
        # The application is not held up by what was left.
        live.workload.wait_for(5)
    live.complete(live.start())
    live.prove()
