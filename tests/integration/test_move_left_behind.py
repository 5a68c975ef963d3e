"""Tables that come to the source's schema after a move of all its tables was planned: they are not left there without a
word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.flow import contents, paused_at, pauses, wait_reached, wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.cutover.reasons import LEFT_BEHIND
from vreplication.state import held, journal, moves
from vreplication.state.moves import Decision, Side
from vreplication.workflows.move_tables import left_behind

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick", "soon"), pytest.mark.either]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "_LOOK_SECONDS", 0.1)


def fill(pair: Pair) -> None:
    for name in ("t", "stays"):
        pair.source.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY) COLLATE utf8mb4_general_ci")
        pair.source.admin.execute_raw(f"INSERT INTO {name} VALUES (1), (2)")
    pair.source.admin.execute_raw("CREATE VIEW seen AS SELECT * FROM t")


def makes(pair: Pair, name: str) -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY)")


def named(pair: Pair, move: Move) -> str:
    """What holds it because of such tables; '': nothing does."""
    noted = held.read(pair.target.admin, move.workflow).get((move.workflow, held.GATE), [])
    return "; ".join(str(each["sentence"]) for each in noted if each["code"] == LEFT_BEHIND)


def wait_held(pair: Pair, move: Move, name: str) -> None:
    wait_until(lambda: f".{name}" in named(pair, move), f"{name} does not hold it: {move.said}", 60)
    found = move.state()
    assert found is not None
    assert (found.serving, found.decision) == (Side.SOURCE, Decision.RUNNING)


def test_it_holds_the_switch_until_it_is_gone(pair: Pair, pauses: Path) -> None:
    """Also one that comes behind the last look at the gate. Excluded tables, views and our own names are none."""
    fill(pair)
    with paused_at(pauses, "workflow.gate_open"):
        move = begin(pair, all_tables=True, exclude=("stays",))
        wait_reached(pauses, "workflow.gate_open", move)
        makes(pair, "late")
        makes(pair, "late__vr_old_0a1b2c")
    wait_held(pair, move, "late")
    assert "late__vr" not in named(pair, move)
    assert any(words.startswith("switch not begun: ") and ".late " in words for words in move.said), move.said
    noted = [
        each["details"] for each in journal.read(pair.target.admin, move.workflow) if each["event"] == "left behind"
    ]
    assert noted == ["late"]
    pair.source.admin.execute_raw("DROP TABLE late")
    move.wait_serving(Side.TARGET, 2)
    assert contents(pair.target.admin, "t") == contents(pair.source.admin, "t")
    assert named(pair, move) == ""
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_only_a_release_that_was_given_behind_it_switches_without_it(pair: Pair, pauses: Path) -> None:
    """Whoever drives it then; a table that comes later needs another one, and so does the switch after the next."""
    fill(pair)
    with paused_at(pauses, "workflow.gate_open"):
        move = begin(pair, all_tables=True, exclude=("stays",), cutover="manual")
        move.wait_for_release()
        move.release()
        wait_reached(pauses, "workflow.gate_open", move)
        makes(pair, "late")
    wait_held(pair, move, "late")
    move.stop.set()
    assert move.result().event == "interrupted"
    move.start()
    wait_held(pair, move, "late")
    with paused_at(pauses, "workflow.gate_open"):
        move.release()
        wait_reached(pauses, "workflow.gate_open", move)
        makes(pair, "later")
    wait_held(pair, move, "later")
    assert ".late " not in named(pair, move)
    move.release()
    move.wait_serving(Side.TARGET, 2)
    assert not pair.target.admin.rows("SHOW TABLES LIKE 'late%'")
    move.ask(moves.REVERSE)
    move.wait_serving(Side.SOURCE, 3)
    wait_held(pair, move, "later")
    move.release()
    move.wait_serving(Side.TARGET, 4)
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"
