"""What an application does while its tables move, drawn: in the end both servers have every row, byte for byte, and
each transaction is there once that was committed, and no other.

Tiny chunks beside the writers, batches of many transactions, connections that are lost, branches that are prepared
before a switch and end around it, and the way back under the same load.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import histories
from tests.support.flow import paused_at, pauses, wait_reached, wait_until
from tests.support.histories import Branch, Writers
from tests.support.moving import Move, begin, quick, route_of
from tests.support.oracle import settings
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.apply import rounds
from vreplication.cutover import deny
from vreplication.mysql.processes import processes
from vreplication.mysql.session import connect
from vreplication.state import moves
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import run, switch

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.timeout(300)]

ROUNDS = "VREPLICATION_MOVE_HISTORIES"
"""How many histories each direction has, each from a seed of its own."""
SEED = "VREPLICATION_MOVE_SEED"
"""Of the first history, as a run has printed it."""


def seeds() -> list[int]:
    given = os.environ.get(SEED)
    first = int(given) if given else secrets.randbelow(1 << 32)
    return [first + i for i in range(int(os.environ.get(ROUNDS, "1")))]


def lose_connections(pair: Pair, side: Side) -> None:
    """All of ours on one server, as a network does it."""
    database = pair.source if side is Side.SOURCE else pair.target
    for (number,) in database.admin.rows(
        "SELECT id FROM information_schema.processlist WHERE user=%s", (database.user,)
    ):
        database.admin.kill(int(number))


def settled(pair: Pair, move: Move) -> None:
    """Nobody writes: the stream brings the last change, and both sides are the same."""
    found = [""]

    def is_same() -> bool:
        assert move.is_going, move.result()
        found[0] = histories.difference(pair)
        return not found[0]

    try:
        wait_until(is_same, "they differ", 30.0, 0.1)
    except AssertionError:
        raise AssertionError(f"{found[0]} {move.said}") from None


def check_committed(pair: Pair, side: Side, writers: Writers) -> None:
    admin = (pair.source if side is Side.SOURCE else pair.target).admin
    assert {int(n) for (n,) in admin.rows("SELECT n FROM done")} == writers.committed


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: "")
def test_every_committed_transaction_is_there_once(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"{SEED}={seed}")
    monkeypatch.setattr(rounds, "_WORTH_SHARING", 1)
    monkeypatch.setattr(switch, "CUTOVER_RETRY_SECONDS", (0.0, 0.3))
    draw = random.Random(seed)
    histories.create(pair, draw)
    writers = Writers(pair, seed)
    with odd_servers(pair, draw):
        move_there_and_back(pair, pauses, draw, writers)


@contextlib.contextmanager
def odd_servers(pair: Pair, draw: random.Random) -> Iterator[None]:
    """Their own time zones and SQL modes are no matter, and need not be the same."""
    with contextlib.ExitStack() as stack:
        for database in (pair.source, pair.target):
            stack.enter_context(settings(database, **histories.odd_settings(draw, database.server.flavor)))
        yield


def move_there_and_back(pair: Pair, pauses: Path, draw: random.Random, writers: Writers) -> None:
    writers.play(30)
    move = beside_the_copy(pair, pauses, writers, draw)
    in_one_batch(pair, pauses, move, writers, draw)
    move.wait_for_release()
    around_the_switch(move, Side.SOURCE, writers, draw, move.release)
    settled(pair, move)
    check_committed(pair, Side.TARGET, writers)
    in_one_batch(pair, pauses, move, writers, draw)
    settled(pair, move)
    around_the_switch(move, Side.TARGET, writers, draw, functools.partial(move.ask, moves.REVERSE))
    writers.play(10)
    settled(pair, move)
    check_committed(pair, Side.SOURCE, writers)
    move.check_right_at_once()
    move.stop.set()
    move.result()
    assert run.cancel(route_of(pair), move.workflow).event == "cancelled"
    assert {str(name) for (name,) in pair.source.admin.rows("SHOW TABLES")} == set(histories.TABLES)
    assert (
        deny.denied_tables(pair.source.admin, [(pair.source.name, t) for t in histories.TABLES], workflow=move.workflow)
        == set()
    )


def beside_the_copy(pair: Pair, pauses: Path, writers: Writers, draw: random.Random) -> Move:
    """A chunk of each table has been read when the application changes its rows, and catch-up is there first."""
    options = {"deny": draw.choice(("fail", "wait")), "chunk_rows": draw.choice((3, 20)), "copy_parallelism": 2}
    with paused_at(pauses, "copy.after_select"):
        move = begin(pair, *histories.TABLES, cutover="manual", apply_parallelism=draw.randint(1, 4), **options)
        wait_reached(pauses, "copy.after_select", move)
        writers.play(30)
        move.catch_up()
    writers.play(30)
    return move


def in_one_batch(pair: Pair, pauses: Path, move: Move, writers: Writers, draw: random.Random) -> None:
    """Catch-up stands still and many transactions come; then its connections are lost, before or behind the rows."""
    with paused_at(pauses, "apply.before_flush"):
        # Some of them change nothing.
        while not (pauses / "apply.before_flush.reached").exists():
            assert move.is_going, move.result()
            writers.play(1)
        writers.play(25)
        lose_connections(pair, draw.choice(list(Side)))
    with writers.playing(15):
        pass


def around_the_switch(move: Move, side: Side, writers: Writers, draw: random.Random, ask: Callable[[], None]) -> None:
    """A branch is prepared when the switch is asked for: it is not begun, or given up, until the branch has ended.

    side: the one that takes writes. Its connection may be gone by then.
    """
    database = move.pair.source if side is Side.SOURCE else move.pair.target
    is_kept, is_left, number = draw.random() < 0.5, draw.random() < 0.5, 5 + len(writers.around)
    said = len(move.said)
    with connect(database.app_url) as session, writers.playing(40):
        branch = Branch(session, f"{database.name}-around-{number}")
        branch.prepare([f"REPLACE INTO words (k,w) VALUES ('{number}',1)", f"INSERT INTO done VALUES ({number},'y')"])
        if is_left:
            session.close()
            branch = Branch(database.admin, branch.name)
            wait_until(lambda: session.id not in processes(database.admin), "its connection stays")
        ask()
        wait_until(lambda: is_held_up(move, said), "nobody waits for the branch")
        writers.around[number] = branch.end(is_kept)
        move.wait_serving(side.other, 2 if side is Side.SOURCE else 3)


def is_held_up(move: Move, said: int) -> bool:
    assert move.is_going, move.result()
    return any("switch not done" in words or "prepared XA" in words for words in move.said[said:])
