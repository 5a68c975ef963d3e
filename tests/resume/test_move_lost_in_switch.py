"""The old server of a move is gone for good, and with it whoever drove the move, in the middle of a switch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flow import call, let_go, paused_at, pauses, wait_until
from tests.support.moving import route_of
from tests.support.pairs import Pair, private_pair
from tests.support.run_move import start
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import moves, workflows
from vreplication.state.moves import Decision, Side

__all__ = ["pauses"]

pytestmark = [pytest.mark.slow, pytest.mark.either]
FLAVORS = pytest.mark.parametrize(("old", "new"), [("mysql", "mariadb"), ("mariadb", "mysql")])


@pytest.fixture
def pair(old: str, new: str) -> Iterator[Pair]:
    with private_pair(old, new, "shop") as made:
        made.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
        made.source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
        yield made


def serves_target(pair: Pair, workflow: str) -> bool:
    found = moves.find(pair.target.admin, workflow)
    return found is not None and found.serving is Side.TARGET and found.decision is Decision.RUNNING


def lose(pair: Pair, folder: Path, point: str, *, is_back: bool) -> str:
    """The driver stands at the point; then it is gone, and the old server, too."""
    workflow = f"l-{secrets.token_hex(4)}"
    with paused_at(folder, *[point] * (not is_back)):
        process = start(route_of(pair), {"tables": ["t"], "workflow": workflow}, folder)
        if is_back:
            wait_until(lambda: serves_target(pair, workflow), "it is not switched")
            (folder / f"{point}.reached").unlink(missing_ok=True)
            (folder / point).touch()
            moves.ask(pair.target.admin, workflow, moves.REVERSE, "a test")
        wait_until(lambda: (folder / f"{point}.reached").exists(), f"nobody reached {point}")
        process.kill()
        process.communicate()
        let_go(folder, point)
    pair.source.server.kill()
    return workflow


def complete(pair: Pair, workflow: str) -> None:
    """Once its catch-up has seen that its driver is gone."""

    def is_done() -> bool:
        ended = call(pair.target, "complete", workflow, "--source-lost", "--yes")
        assert ended.code == 0 or "is still running" in ended.err, ended
        return ended.code == 0

    wait_until(is_done, "catch-up does not end")
    assert workflows.load(pair.target.admin, workflow).phase is Phase.COMPLETE


def check_writes(pair: Pair) -> None:
    with connect(pair.target.app_url) as app:
        app.execute_raw("INSERT INTO t VALUES (3,3)")
        assert app.rows("SELECT id, n FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]


@FLAVORS
def test_the_target_takes_writes_where_a_switch_back_was_cut_short(pair: Pair, pauses: Path) -> None:
    """Writes on the only server that is left were denied for good, by a workflow that was complete."""
    workflow = lose(pair, pauses, "switch.released", is_back=True)
    complete(pair, workflow)
    check_writes(pair)


@FLAVORS
@pytest.mark.parametrize("point", ["switch.decided", "switch.opened"])
def test_a_switch_that_was_decided_comes_to_its_end(pair: Pair, pauses: Path, point: str) -> None:
    """To go on took the source, and to end it was refused: the tables had no names, or the move had no end."""
    workflow = lose(pair, pauses, point, is_back=False)
    refused = call(pair.target, "cancel", workflow, "--source-lost", "--yes")
    assert (refused.code, "complete" in refused.err) == (2, True), refused
    complete(pair, workflow)
    check_writes(pair)


@FLAVORS
def test_behind_the_decision_of_a_switch_back_a_person_is_told(pair: Pair, pauses: Path) -> None:
    """The old server may have taken writes that the target has not."""
    workflow = lose(pair, pauses, "switch.before_opened", is_back=True)
    for word in ("complete", "cancel"):
        refused = call(pair.target, word, workflow, "--source-lost", "--yes")
        assert (refused.code, "may have taken writes" in refused.err) == (2, True), refused
