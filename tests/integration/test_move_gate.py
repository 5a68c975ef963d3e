"""What comes to a move between the last look at its gate and the decision of the switch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import let_go, paused_at, pauses, settings, wait_reached, wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.engine import recheck
from vreplication.engine.recheck import Mismatch
from vreplication.errors import Transient
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.progress import snapshot
from vreplication.state import lease, moves, verdicts, workflows
from vreplication.state.moves import Side
from vreplication.workflows import operate
from vreplication.workflows.move_tables import repeated, steps, switch

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True),
]


@pytest.fixture(autouse=True)
def _filled(pair: Pair) -> None:
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")


def waits_for(move: Move) -> str:
    found = snapshot.find(move.pair.target.admin, move.workflow)
    return (found and found.waiting_for) or ""


@pytest.mark.parametrize("point", ["workflow.gate_open", "switch.compared"])
def test_a_pause_holds_the_switch(pair: Pair, pauses: Path, point: str) -> None:
    """It was answered, and the tables were switched all the same."""
    with paused_at(pauses, point):
        move = begin(pair, "t")
        wait_reached(pauses, point, move)
        operate.pause(pair.target.url, move.workflow, "ann")
        let_go(pauses, point)
        wait_until(lambda: "paused" in waits_for(move), f"it does not say that it is paused: {move.said}")
    found = move.state()
    assert found is not None
    assert found.serving is Side.SOURCE
    with connect(pair.source.app_url) as app:
        wait_until(lambda: move.state().decision is moves.Decision.RUNNING, "it is not given up")  # type: ignore[union-attr]
        app.execute_raw("INSERT INTO t VALUES (3,3)")
    workflows.set_paused(pair.target.admin, move.workflow, False)
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()


def test_who_completes_in_the_place_of_a_way_back_is_not_switched_back(pair: Pair, pauses: Path) -> None:
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with paused_at(pauses, "switch.compared"):
        move.ask(moves.REVERSE)
        wait_reached(pauses, "switch.compared", move)
        move.ask(moves.COMPLETE)
    assert move.result().event == "complete", move.said
    with connect(pair.target.app_url) as app:
        app.execute_raw("INSERT INTO t VALUES (3,3)")


def test_attempts_that_were_blocked_are_not_counted_as_differences(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first row that differed under the lock, behind a few of those, it failed as if rows kept differing."""
    monkeypatch.setattr(switch, "_MISMATCHES", 1)
    monkeypatch.setattr(switch, "CUTOVER_RETRY_SECONDS", (0.1,))
    monkeypatch.setattr(
        recheck, "compare_locked", failing(Transient("blocked"), Transient("blocked"), Mismatch("differ"))
    )
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()


@pytest.mark.parametrize("deny", ["fail", "wait"])
def test_a_target_that_takes_no_writes_leaves_the_source_open(pair: Pair, pauses: Path, deny: str) -> None:
    """Nothing was decided. Both took no writes until somebody had made the target writable, and gone on."""
    with settings(pair.target, {"read_only": "OFF"}):
        with paused_at(pauses, "switch.denied"):
            move = begin(pair, "t", deny=deny)
            wait_reached(pauses, "switch.denied", move)
            pair.target.admin.execute_raw("SET GLOBAL read_only=ON")
        wait_until(
            lambda: any("The target is read-only" in each for each in move.said), f"it does not say so: {move.said}"
        )
        with connect(pair.source.app_url) as app:
            app.execute_raw("INSERT INTO t VALUES (3,3)")
    move.wait_serving(Side.TARGET, 2)
    assert pair.target.admin.value("SELECT COUNT(*) FROM t") == 3
    move.stop.set()
    move.result()


def test_a_ddl_statement_is_seen_whatever_the_number_of_its_connection(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has one of that number on the target. Behind the decision it ran on the old table alone."""
    monkeypatch.setattr(switch, "DEADLINE_SECONDS", 60.0)
    ahead = number_of_next(pair.source) + 100
    while number_of_next(pair.target) < ahead:
        pass
    with contextlib.ExitStack() as opened, ThreadPoolExecutor() as beside:
        with paused_at(pauses, "switch.applied"):
            move = begin(pair, "t")
            wait_reached(pauses, "switch.applied", move)
            driver = lease.holder_of(pair.target.admin, move.workflow, lease.DRIVER)
            assert driver is not None
            # Numbers are given in a row: those that are not it are let go, for the server takes so many at a time.
            while (number := number_of_next(pair.source)) + 1 not in driver.connections:
                assert number < max(driver.connections)
            app = opened.enter_context(connect(pair.source.app_url))
            assert app.id in driver.connections
            emptied = beside.submit(app.execute_raw, "TRUNCATE TABLE t")
            wait_until(lambda: is_waiting(pair, app), "it does not wait")
        emptied.result()
    wait_until(lambda: not move.is_going or move.state().number == 2, "neither ended nor switched")  # type: ignore[union-attr]
    assert not move.is_going, "it was switched with the rows of before"
    ended = move.result()
    assert ended.event == "failed", ended
    assert "TRUNCATE" in (ended.reason or ""), ended


def number_of_next(database: Database) -> int:
    with connect(database.app_url) as session:
        return session.id


def is_waiting(pair: Pair, app: Session) -> bool:
    return "metadata lock" in processes(pair.source.admin)[app.id].state


def failing(*errors: Exception) -> Callable[..., int]:
    """With these first, then as ever."""
    left, compare = list(errors), recheck.compare_locked

    def compared(*given: object, **more: object) -> int:
        if left:
            raise left.pop(0)
        return compare(*given, **more)  # type: ignore[arg-type]

    return compared


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_verification_at_the_gate_that_does_not_come_to_its_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    """It ended the move. The one before counts, unless this one has found something wrong."""
    known, counted = steps.verify, list[bool]()

    def second_fails(*given: Any, **more: Any) -> Any:
        with connect(pair.target.url) as home:
            counted.append(verdicts.load(home, more["workflow"]) is not None)
        if len(counted) != 2:
            return known(*given, **more)
        if is_wrong:
            more["repair"]([])
        raise Transient("In 3 ranges too many rows change too often to be compared.")

    monkeypatch.setattr(steps, "verify", second_fails)
    monkeypatch.setattr(steps, "_RETRY_SECONDS", 0.1)
    move = begin(pair, "t", cutover="manual", verify_every_minutes=0.5 / 60)
    wait_until(lambda: len(counted) > 2 or not move.is_going, "it is not verified again")
    assert counted[:3] == [False, True, not is_wrong]
    move.release()
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()


def test_a_release_does_not_wait_for_the_end_of_a_repeated_verification(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large table that may be hours; what was found before counts."""
    known, counted = steps.verify, list[str]()

    def second_goes_on(*given: Any, **more: Any) -> Any:
        counted.append(more["workflow"])
        while len(counted) == 2:
            given[3].check()
            given[3].on_tick(1)
        return known(*given, **more)

    monkeypatch.setattr(steps, "verify", second_goes_on)
    monkeypatch.setattr(repeated, "_ASK_SECONDS", 0.1)
    move = begin(pair, "t", cutover="manual", verify_every_minutes=0.5 / 60)
    wait_until(lambda: len(counted) == 2, "it is not verified again")
    move.release()
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()
