"""kill -9 of the database server under a living command, which waits until the server is back and goes on."""

from __future__ import annotations

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import paused_at, wait_until
from vreplication.mysql.session import connect
from vreplication.state import verdicts

pytestmark = pytest.mark.either

# Other points, other victims: test_kill.py here, and `make soak` all of them.
CHAINS = (
    ("copy.before_land", "workflow.gate_open", "cutover.rename_pending", "workflow.switched"),
    ("workflow.copied", "cutover.locked", "cutover.after_unlock", "workflow.complete"),
    ("verify.began", "workflow.verified", "cutover.sentry_dropped", "workflow.cleaned"),
)
"""Each point once; within a chain in the order of the flow."""
VERIFIED_AGAIN = (
    "workflow.gate_open",
    "cutover.locked",
    "cutover.rename_pending",
    "cutover.sentry_dropped",
    "cutover.after_unlock",
    "workflow.switched",
)
"""Whoever stands there has verified since the server was last killed, which was before the tables were switched."""


def kill_at(live: Live, point: str) -> None:
    """The server dies while the command stands there, is missed, and comes back."""
    with paused_at(live.pauses, point):
        live.reached(point, live.commands[-1])
        # Not at one look: a look may take the server's start for a second later than it was, and be too strict.
        wait_until(lambda: point not in VERIFIED_AGAIN or is_verified(live), f"it is not verified at {point}")
        missed = live.times_missed()
        live.kill_server()
    live.wait_lost(missed)
    live.restart_server()


def is_verified(live: Live) -> bool:
    with connect(live.database.url) as session:
        return verdicts.is_of_this_run(session, WORKFLOW)


@pytest.mark.slow
@pytest.mark.parametrize("points", CHAINS, ids=" ".join)
@pytest.mark.in_turn
def test_server_killed_again_and_again(live: Live, points: tuple[str, ...]) -> None:
    """The same process goes on; what it had verified it verifies again, unless the tables were switched by then."""
    command = live.start()
    for point in points:
        kill_at(live, point)
    live.complete(command)
    live.prove()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["prepare.tables_made", "prepare.done"])
@pytest.mark.in_turn
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
