"""A server of a move is closed: the old one behind the switch, or either of them for a moment."""

from __future__ import annotations

import pytest

from tests.support.flow import settings, wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.cutover import deny
from vreplication.engine import replicate
from vreplication.errors import Transient
from vreplication.mysql.session import connect
from vreplication.progress import snapshot
from vreplication.state import moves
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import switch

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True),
]


def test_it_is_waited_for_by_name(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back failed with the server's bare error 1290."""
    monkeypatch.setattr(replicate, "_RETRY_SECONDS", (0.1,))
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1)")
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with settings(pair.source, {"read_only": "ON"}):
        with connect(pair.target.app_url) as app:
            app.execute_raw("INSERT INTO t VALUES (2,2)")
        wait_until(lambda: "read_only=OFF" in waits_for(pair, move.workflow), f"it does not say so: {move.said}")
        move.stop.set()
        assert move.result().event == "interrupted"
        ended = move.start().result()
        assert (ended.event, "read_only=OFF" in (ended.reason or "")) == ("interrupted", True), ended
    move.start()
    wait_until(lambda: pair.source.admin.value("SELECT COUNT(*) FROM t") == 2, f"it does not go on: {move.said}")
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("closed", ["source", "target"])
def test_either_is_waited_for_before_the_switch(pair: Pair, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed with the server's bare error 1290."""
    monkeypatch.setattr(replicate, "_RETRY_SECONDS", (0.1,))
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1)")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    with settings(pair.source if closed == "source" else pair.target, {"read_only": "ON"}):
        wait_until(lambda: is_told(pair, move, f"The {closed} is read-only"), f"it does not say so: {move.said}")
        move.stop.set()
        assert move.result().event == "interrupted"
        ended = move.start().result()
        assert f"The {closed} is read-only" in (ended.reason or ""), ended
        assert ended.resume_command, ended
    move.start()
    move.wait_for_release()
    with settings(pair.source if closed == "source" else pair.target, {"read_only": "ON"}):
        wait_until(lambda: is_told(pair, move, f"The {closed} is read-only"), f"it does not say so: {move.said}")
    move.release()
    move.wait_serving(Side.TARGET, 2)
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete", move.said


def is_told(pair: Pair, move: Move, words: str) -> bool:
    assert move.is_going, move.result()
    return words in waits_for(pair, move.workflow) or any(words in each for each in move.said[-1:])


def test_one_closed_before_the_triggers_are_dropped_is_open_again_when_it_can_be(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move ended, and its triggers denied writes until somebody resumed it."""
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    genuine, closed = deny.allow, []

    def allow(*given: object, **more: object) -> None:
        # Behind the claim on the source, which says by itself that it is read-only.
        if "former" in more and not closed:
            closed.append(pair.source.admin.execute_raw("SET GLOBAL read_only=ON"))
        genuine(*given, **more)  # type: ignore[arg-type]

    def lost(*_: object) -> None:
        raise Transient("a fault between the lock and the decision")

    monkeypatch.setattr(deny, "allow", allow)
    monkeypatch.setattr(switch, "_start_back", lost)
    move = begin(pair, "t", deny="fail")
    try:
        wait_until(lambda: is_told(pair, move, "The source is read-only"), f"it does not say so: {move.said}")
        monkeypatch.undo()
    finally:
        pair.source.admin.execute_raw("SET GLOBAL read_only=OFF")
    move.wait_serving(Side.TARGET, 2)
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete", move.said


def waits_for(pair: Pair, workflow: str) -> str:
    found = snapshot.find(pair.target.admin, workflow)
    return (found and found.waiting_for) or ""
