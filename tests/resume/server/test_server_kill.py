"""kill -9 of the database server under a living command, which waits until the server is back and goes on."""

from __future__ import annotations

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import paused_at
from vreplication.mysql.session import connect
from vreplication.state import verdicts

# Other points, other victims: test_kill.py here, and `make soak` all of them.
RIDDEN_OUT = (
    "copy.before_land",
    "workflow.copied",
    "workflow.verified",
    "workflow.gate_open",
    "cutover.locked",
    "cutover.rename_pending",
    "cutover.sentry_dropped",
    "cutover.after_unlock",
    "workflow.switched",
    "workflow.cleaned",
    "workflow.complete",
)
SWITCHED = (
    "cutover.sentry_dropped",
    "cutover.after_unlock",
    "workflow.switched",
    "workflow.cleaned",
    "workflow.complete",
)
"""From the first of these on the RENAME may be through when the server dies."""


def kill_at(live: Live, point: str) -> None:
    """The server dies while the command stands there, is missed, and comes back."""
    with paused_at(live.pauses, point):
        live.reached(point, live.commands[-1])
        live.kill_server()
    live.wait_lost()
    live.restart_server()


@pytest.mark.slow
@pytest.mark.parametrize("point", RIDDEN_OUT)
def test_server_killed(live: Live, point: str) -> None:
    """The same process goes on; what it had verified it verifies again, unless the tables were switched by then."""
    command = live.start()
    kill_at(live, point)
    live.complete(command)
    live.prove()
    with connect(live.database.url) as session:
        assert point in SWITCHED or verdicts.is_of_this_run(session, WORKFLOW)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["prepare.tables_made", "prepare.done"])
def test_server_killed_while_preparing(live: Live, point: str) -> None:
    """Nothing is lost yet that could be gone on with: the command ends, and the same command goes on."""
    command = live.start()
    kill_at(live, point)
    ended = command.finish()
    if ended.code:
        assert ended.code == 1, ended
        assert "--workflow crash" in ended.last["resume_command"]
        live.complete(live.start())
    live.prove()
