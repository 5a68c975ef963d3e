"""What the demo that moves tables (sandbox/demo_move.py) met, each as small as it could be made."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import pytest

from tests.support.flow import paused_at, pauses, wait_reached, wait_until
from tests.support.moving import Move, application, begin, quick, route_of
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.engine.child import StreamProcess
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.state import moves
from vreplication.state.moves import Decision, Side
from vreplication.ui import acts
from vreplication.workflows.move_tables import operate, run
from vreplication.workflows.move_tables.spec import make_move_spec

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True),
]


def fill(pair: Pair, rows: int = 300) -> None:
    for name in ("t", "u"):
        pair.source.admin.execute_raw(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci"
        )
        values = ",".join(f"({i},{i},'v{i}')" for i in range(rows))
        pair.source.admin.execute_raw(f"INSERT INTO {name} VALUES {values}")


def said(move: Move) -> str | None:
    found = snapshot.find(move.pair.target.admin, move.workflow)
    return found and found.waiting_for


def test_what_was_switched_back_waits_for_a_release(pair: Pair) -> None:
    """`vreplication reverse` waits for that phase, and people read what there is to wait for."""
    fill(pair)
    with application(pair) as app:
        move = begin(pair, "t")
        move.reach(Side.TARGET, 2, app)
        move.ask(moves.REVERSE)
        move.reach(Side.SOURCE, 3, app)
        wait_until(lambda: "release" in (said(move) or ""), f"it waits for something else: {said(move)}")
        found = snapshot.find(pair.target.admin, move.workflow)
        move.stop.set()
        move.result()
    assert found is not None
    assert found.phase is Phase.WAITING


def test_a_cancel_behind_the_decision_is_not_kept_for_the_way_back(pair: Pair, pauses: Path) -> None:
    """On the page, which does not wait for it; after `reverse` it would take the target's tables away."""
    fill(pair)
    with application(pair) as app:
        with paused_at(pauses, "switch.decided"):
            move = begin(pair, "t")
            wait_reached(pauses, "switch.decided", move)
            acts.cancel(pair.target.url, move.workflow, "ann", pair.source.url)
        move.reach(Side.TARGET, 2, app)
        move.ask(moves.REVERSE)
        move.reach(Side.SOURCE, 3, app)
        wait_until(lambda: "release" in (said(move) or ""), f"it waits for something else: {said(move)}")
        move.stop.set()
        assert move.result().event == "interrupted"


def test_progress_counts_the_rows_of_all_tables(pair: Pair, pauses: Path) -> None:
    fill(pair)
    with paused_at(pauses, "copy.after_open"):
        move = begin(pair, "t", "u")
        wait_until(lambda: (pauses / "copy.after_open.reached").exists(), "nobody copies")
        wait_until(lambda: planned(move) > 450, f"it counts {planned(move)}")
    move.stop.set()
    move.result()


def planned(move: Move) -> int:
    """Written with a beat of the driver, some time after the copy has begun."""
    found = snapshot.find(move.pair.target.admin, move.workflow)
    return (found and found.rows_total) or 0


def test_catch_up_that_a_switch_has_ended_is_not_started_again(pair: Pair) -> None:
    """Each switch counted as a death of catch-up and a start too many: at the third within 50 s the workflow failed,
    between `opened` and the hook."""
    fill(pair)
    stop, workflow = threading.Event(), f"m-{secrets.token_hex(4)}"
    child = StreamProcess(route_of(pair), workflow, 1)
    spec = make_move_spec(tables=("t",), workflow=workflow, on_switch="sleep 2")
    moved = threading.Thread(
        target=lambda: run.run(
            spec, route_of(pair), stop=stop, notify=lambda text: None, make_child=lambda *given: child
        ),
        daemon=True,
    )
    with application(pair):
        moved.start()
        wait_until(lambda: _number(pair, workflow) == 2, "it is not switched")
        wait_until(lambda: len(child._started) >= 2, "the stream of the way back does not begin")
        stop.set()
        moved.join(60)
    assert len(child._started) == 2


def _number(pair: Pair, workflow: str) -> int:
    found = moves.find(pair.target.admin, workflow)
    return found.number if found else 0


def test_an_end_between_opened_and_the_hook_says_who_serves(pair: Pair) -> None:
    """The source serves nobody any more, and the application has not been told."""
    fill(pair)
    move = begin(pair, "t", on_switch="sleep 60")
    wait_until(lambda: _decision(move) is Decision.OPENED, f"it is not switched: {move.said}")
    move.stop.set()
    result = move.result()
    assert result.event == "interrupted"
    assert "target serves from now on" in (result.reason or ""), result
    # The same command goes on with the hook.
    move.start()
    wait_until(lambda: any("calling the hook" in words for words in move.said), "the hook is not called")
    move.stop.set()
    move.result()


def test_a_hook_that_cannot_say_yes_is_replaced(pair: Pair) -> None:
    """What it began with held on: the target served, and the move could neither go on nor be ended."""
    fill(pair)
    move = begin(pair, "t", on_switch="false")
    wait_until(lambda: _decision(move) is Decision.OPENED, f"it is not switched: {move.said}")
    move.stop.set()
    move.result()
    move.spec = move.spec.model_copy(update={"on_switch": "true"})
    assert operate.check_begin(move.spec, route_of(pair)) == ""
    move.start()
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()


def _decision(move: Move) -> Decision | None:
    found = move.state()
    return found.decision if found else None
