"""The old server of a move is gone for good: what is left is ended on the other one alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.flow import Ended
from tests.support.flow import begin as begin_ddl
from tests.support.move_cli import start as command
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, private_pair
from vreplication.errors import Refused
from vreplication.phases import Phase
from vreplication.state import workflows
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import lost_source

__all__ = ["quick"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick"), pytest.mark.either]
FLAVORS = pytest.mark.parametrize(("old", "new"), [("mysql", "mariadb"), ("mariadb", "mysql")])


@pytest.fixture
def pair(old: str, new: str) -> Iterator[Pair]:
    with private_pair(old, new, "shop") as made:
        yield made


def without_source(pair: Pair, folder: Path, *words: str) -> Ended:
    return command(folder, *words, "--source-lost", "--yes", source=pair.source, target=pair.target).finish()


def moved(pair: Pair, *, is_switched: bool) -> Move:
    """Its process has ended, at the gate or on the way back, and its source is gone."""
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    if is_switched:
        move.release()
        move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()
    for act in (lost_source.complete, lost_source.cancel):
        with pytest.raises(Refused, match="answers"):
            act(pair.target.url, pair.source.url, move.workflow, "ann")
        # By what it was not told, or is not let in to be told, nothing counts as lost.
        with pytest.raises(Refused, match="Without the URL"):
            act(pair.target.url, None, move.workflow, "ann")
        with pytest.raises(Refused, match="answers"):
            act(pair.target.url, replace(pair.source.url, password="wrong"), move.workflow, "ann")
    pair.source.server.kill()
    return move


@FLAVORS
def test_of_what_was_switched_the_target_is_free(pair: Pair, tmp_path: Path) -> None:
    """Without it an online DDL of its tables was refused for ever: the move has not ended."""
    move = moved(pair, is_switched=True)
    refused = without_source(pair, tmp_path, "cancel", move.workflow)
    assert (refused.code, "complete" in refused.err) == (2, True), refused
    assert begin_ddl(pair.target, "t", "ADD COLUMN z INT").result().event == "refused"
    ended = without_source(pair, tmp_path, "complete", move.workflow)
    assert (ended.code, workflows.load(pair.target.admin, move.workflow).phase) == (0, Phase.COMPLETE), ended
    assert begin_ddl(pair.target, "t", "ADD COLUMN z INT").result().event == "complete"


@FLAVORS
def test_of_what_was_not_switched_nothing_stays(pair: Pair, tmp_path: Path) -> None:
    move = moved(pair, is_switched=False)
    refused = without_source(pair, tmp_path, "complete", move.workflow)
    assert (refused.code, "cancel" in refused.err) == (2, True), refused
    ended = without_source(pair, tmp_path, "cancel", move.workflow)
    assert (ended.code, workflows.load(pair.target.admin, move.workflow).phase) == (0, Phase.CANCELLED), ended
    assert pair.target.admin.rows("SHOW TABLES") == []
