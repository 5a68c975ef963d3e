"""A server that comes back without its last commits: what a switch has decided by then has not been forgotten, nor the
rows that it went by.

MariaDB writes a second of commits to no file with innodb_flush_log_at_trx_commit=0, so that a kill -9 is as bad as a
crash of the machine is with 2; MySQL writes them into the system's memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database, create_database
from tests.support import in_memory
from tests.support.flow import let_go, paused_at, pauses, wait_reached, wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, private_pair
from tests.support.private_server import kill, private_server
from vreplication.cutover import deny
from vreplication.state import moves
from vreplication.state.moves import Side

__all__ = ["pauses", "quick"]

pytestmark = pytest.mark.usefixtures("quick")
TRUSTED = {"log-bin-trust-function-creators": "ON"}
FORGETFUL = {"innodb-flush-log-at-trx-commit": 0, "innodb-flush-log-at-timeout": 2700}


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """On a disk: in memory MariaDB's log is the file itself."""
    monkeypatch.setattr(in_memory, "_is_plenty", lambda: False)
    with private_pair("mysql", "mariadb", target=FORGETFUL) as pair:
        admin = pair.source.admin
        admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40)) COLLATE utf8mb4_general_ci")
        admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},'v{i}')" for i in range(100)))
        for each in (pair.source, pair.target):
            # What is verified within two seconds of a server's start does not count, and would be verified again.
            wait_until(lambda each=each: uptime(each) > 3, "it does not run")
        yield pair


def uptime(database: Database) -> int:
    return int(database.admin.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1])


@pytest.fixture
def forgetful_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(in_memory, "_is_plenty", lambda: False)
    with (
        private_server("mariadb", {**TRUSTED, **FORGETFUL, "server-id": 211}) as one,
        private_server("mysql", {**TRUSTED, "server-id": 212}) as other,
    ):
        pair = Pair(source=create_database(one, grants="move_source"), target=create_database(other))
        pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
        yield pair


def crash(pair: Pair) -> None:
    kill(pair.target.server)
    pair.target.server.restart()
    pair.target.reconnect()


def denied(pair: Pair, move: Move) -> list[bool]:
    """On the source, on the target."""
    sides = (pair.source, pair.target)
    return [bool(deny.standing(each.admin, (each.name, "t"), workflow=move.workflow)) for each in sides]


def test_a_source_that_was_opened_again_goes_on(forgetful: Pair, pauses: Path) -> None:
    """Catch-up would write over what it has accepted, and the target be opened, too."""
    pair = forgetful
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    pair.target.admin.execute_raw("UPDATE t SET v='by the target' WHERE id=5")
    with paused_at(pauses, "switch.before_opened"):
        move.ask(moves.REVERSE)
        wait_reached(pauses, "switch.before_opened", move)
        pair.source.admin.execute_raw("UPDATE t SET v='by the source' WHERE id=5")
        crash(pair)
    move.wait_serving(Side.SOURCE, 3)
    assert denied(pair, move) == [False, True]
    assert pair.source.admin.value("SELECT v FROM t WHERE id=5") == "by the source"
    move.stop.set()
    move.result()


def test_writes_are_not_denied_while_all_is_verified_again(forgetful: Pair, pauses: Path) -> None:
    pair = forgetful
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    with paused_at(pauses, "switch.denied", "workflow.verified"):
        move.release()
        wait_reached(pauses, "switch.denied", move)
        crash(pair)
        let_go(pauses, "switch.denied")
        wait_reached(pauses, "workflow.verified", move)
        assert denied(pair, move) == [False, False]
    move.stop.set()
    move.result()


@pytest.mark.parametrize("point", ["switch.before_decided", "switch.decided"])
def test_a_source_that_serves_again_keeps_the_rows_of_the_way_back(
    forgetful_source: Pair, pauses: Path, point: str
) -> None:
    """Its crash was not noticed, or came too late to be: it served without them, and nothing compared."""
    source, target = forgetful_source.source, forgetful_source.target
    move = begin(forgetful_source, "t")
    move.wait_serving(Side.TARGET, 2)
    target.admin.execute_raw("UPDATE t SET v=10 WHERE id=1")
    with paused_at(pauses, point):
        move.ask(moves.REVERSE)
        wait_reached(pauses, point, move)
        kill(source.server)
        source.server.restart()
        source.reconnect()
    move.wait_serving(Side.SOURCE, 3)
    assert source.admin.rows("SELECT * FROM t ORDER BY id") == [(1, 10), (2, 2)]
    move.stop.set()
    move.result()
