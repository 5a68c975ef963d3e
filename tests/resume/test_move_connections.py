"""Connections of a move of tables that are ended by a server (KILL): all of ours there, or one of them and no other, at
each point of copy, catch-up and both switches. The same run goes on, and no write that was accepted is missing.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from sandbox.databases import Database
from tests.support.flow import let_go, paused_at, pauses, wait_until
from tests.support.moving import ALL, Move, application, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.mysql.processes import processes
from vreplication.state import moves
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import switch

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.timeout(240), pytest.mark.either]

THERE = (
    "copy.after_open", "copy.before_land", "apply.before_flush", "verify.comparing", "switch.denying", "deny.locked",
    "deny.table_denied", "switch.denied", "switch.released", "switch.marked", "replicate.holding", "switch.applied",
    "switch.fenced", "switch.compared", "switch.before_decided", "switch.deciding", "switch.decided",
    "switch.before_opened",
    "switch.opened_at_home", "switch.opened", "switch.told", "switch.done",
)  # fmt: skip
BACK = THERE[THERE.index("switch.denying") :]
EVERY = "every"
MOST = (
    ("mysql-mariadb", "there", "copy.before_land", "source", EVERY),
    ("mariadb-mysql", "there", "apply.before_flush", "target", EVERY),
    ("mariadb-mysql", "there", "switch.marked", "source", EVERY),
    ("mysql-mariadb", "there", "switch.fenced", "target", EVERY),
    ("mysql-mariadb", "there", "switch.decided", "target", EVERY),
    ("mysql-mariadb", "back", "deny.table_denied", "target", EVERY),
    ("mariadb-mysql", "back", "switch.compared", "target", EVERY),
    ("mariadb-mysql", "back", "switch.decided", "source", EVERY),
)
"""Where it says most: direction, way, point, server, which of the connections there."""


def cases() -> list[ParameterSet]:
    """ALL: a connection alone, too; of more than there are the first ones come again."""
    chosen: list[tuple[str, str, str, str, str | int]] = list(MOST)
    if os.environ.get(ALL):
        ways = [("there", point) for point in THERE] + [("back", point) for point in BACK]
        places = list(product(ways, ("source", "target"), (EVERY, *range(7))))
        turns = ("mysql-mariadb", "mariadb-mysql")
        chosen = [(turns[i % 2], way, point, side, which) for i, ((way, point), side, which) in enumerate(places)]
    return [
        pytest.param(d, way, point, side, which, id=f"{d}-{way}-{point}-{side}-{which}")
        for d, way, point, side, which in chosen
    ]


def end_connections(database: Database, which: str | int) -> None:
    """At some points we have none there."""
    ids = sorted(number for number, process in processes(database.admin).items() if process.user == database.user)
    for number in ids if which == EVERY or not ids else [ids[int(which) % len(ids)]]:
        database.admin.kill(number)


def cut_at(move: Move, folder: Path, point: str, database: Database, which: str | int) -> None:
    """Whoever comes there stands still meanwhile."""

    def is_there() -> bool:
        assert move.is_going, move.result()
        return (folder / f"{point}.reached").exists()

    wait_until(is_there, f"nobody reached {point}: {move.said}")
    end_connections(database, which)
    let_go(folder, point)


@pytest.mark.parametrize(("pair", "way", "point", "side", "which"), cases(), indirect=["pair"])
def test_the_run_goes_on(
    pair: Pair, way: str, point: str, side: str, which: str | int, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "CUTOVER_RETRY_SECONDS", (0.0, 0.3))
    admin = pair.source.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci")
    admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(200)))
    database = pair.source if side == "source" else pair.target
    with application(pair) as app:
        with paused_at(pauses, *[point] if way == "there" else []):
            move = begin(pair, "t", chunk_rows=60)
            if way == "there":
                cut_at(move, pauses, point, database, which)
        move.reach(Side.TARGET, 2, app)
        if way == "back":
            with paused_at(pauses, point):
                move.ask(moves.REVERSE)
                cut_at(move, pauses, point, database, which)
            move.reach(Side.SOURCE, 3, app)
        app.end()
    app.check(pair.target.admin if way == "there" else pair.source.admin)
    move.check_right_at_once()
    move.stop.set()
    assert move.result().event == "interrupted", move.said
