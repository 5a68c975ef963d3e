"""The old server of a move is gone for good, and with it whoever drove the move, in the middle of a switch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flow import Ended, let_go, paused_at, pauses, wait_until
from tests.support.move_cli import start as command
from tests.support.moving import route_of
from tests.support.pairs import Pair, private_pair
from tests.support.run_move import start
from vreplication.cutover import deny
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


def without_source(pair: Pair, folder: Path, *words: str) -> Ended:
    return command(folder, *words, "--source-lost", "--yes", source=pair.source, target=pair.target).finish()


def complete(pair: Pair, folder: Path, workflow: str, *more: str) -> None:
    """Once its catch-up has seen that its driver is gone."""

    def is_done() -> bool:
        ended = without_source(pair, folder, "complete", workflow, *more)
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
    complete(pair, pauses, workflow)
    check_writes(pair)


@FLAVORS
@pytest.mark.parametrize("point", ["switch.decided", "switch.opened"])
def test_a_switch_that_was_decided_comes_to_its_end(pair: Pair, pauses: Path, point: str) -> None:
    """To go on took the source, and to end it was refused: the tables had no names, or the move had no end."""
    workflow = lose(pair, pauses, point, is_back=False)
    refused = without_source(pair, pauses, "cancel", workflow)
    assert (refused.code, "complete" in refused.err) == (2, True), refused
    complete(pair, pauses, workflow)
    check_writes(pair)


@FLAVORS
def test_behind_the_decision_of_a_switch_back_a_person_decides(pair: Pair, pauses: Path) -> None:
    """The old server may have taken writes that the target has not. What no command ended held the target's tables."""
    workflow = lose(pair, pauses, "switch.before_opened", is_back=True)
    for word in ("complete", "cancel"):
        refused = without_source(pair, pauses, word, workflow)
        assert (refused.code, "may have taken writes" in refused.err) == (2, True), refused
    complete(pair, pauses, workflow, "--accept-lost-writes")
    check_writes(pair)


@FLAVORS
def test_behind_a_switch_back_the_rows_that_are_left_can_be_kept(pair: Pair, pauses: Path) -> None:
    """The only end that there was dropped them, also where somebody had opened the target's tables by hand."""
    workflow = lose(pair, pauses, "switch.done", is_back=True)
    refused = without_source(pair, pauses, "complete", workflow)
    assert (refused.code, "may have taken writes" in refused.err) == (2, True), refused
    deny.allow(pair.target.admin, [(pair.target.name, "t")], workflow=workflow)
    refused = without_source(pair, pauses, "cancel", workflow)
    assert (refused.code, "takes writes again" in refused.err) == (2, True), refused
    complete(pair, pauses, workflow, "--accept-lost-writes")
    check_writes(pair)
