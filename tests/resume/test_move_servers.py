"""kill -9 of either server while tables move, at the copy, in catch-up and in the switch: the same run goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from sandbox.databases import create_database
from tests.support.flow import paused_at, pauses, wait_reached, wait_until
from tests.support.moving import ALL, begin, quick
from tests.support.pairs import Pair
from tests.support.private_server import kill, private_server
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import moves
from vreplication.state.moves import Side

__all__ = ["pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
POINTS = ("copy.after_select", "apply.before_flush", "switch.marked", "switch.decided")
CASES = list(product(POINTS, ("source", "target")))
if not os.environ.get(ALL):
    CASES = CASES[::3]
OPTIONS = {"log-bin-trust-function-creators": "ON", "sync-binlog": 1, "innodb-flush-log-at-trx-commit": 1}


@pytest.fixture(scope="module")
def frail(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two servers that may be killed; as durable as they come. To MariaDB unless it is asked for otherwise."""
    gtids = {"mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"}, "mariadb": {}}
    source, target = getattr(request, "param", ("mysql", "mariadb"))
    with (
        private_server(source, {**OPTIONS, "server-id": 201, **gtids[source]}) as one,
        private_server(target, {**OPTIONS, "server-id": 202, **gtids[target]}) as other,
    ):
        yield Pair(source=create_database(one), target=create_database(other))


def _is_reached(folder: Path, point: str, admin: Session) -> bool:
    """Catch-up wants something to apply."""
    if point.startswith("apply"):
        admin.execute_raw("UPDATE t SET n=n+1 WHERE id=3")
    return (folder / f"{point}.reached").exists()


@pytest.mark.parametrize(("point", "victim"), CASES)
def test_a_server_that_is_killed_and_comes_back(frail: Pair, point: str, victim: str, pauses: Path) -> None:
    admin = frail.source.reconnect()
    admin.execute_raw("DROP TABLE IF EXISTS t")
    frail.target.reconnect().execute_raw("DROP TABLE IF EXISTS t")
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci")
    admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(500)))
    server = (frail.source if victim == "source" else frail.target).server
    with paused_at(pauses, point):
        move = begin(frail, "t")
        wait_until(lambda: _is_reached(pauses, point, admin), f"nobody reached {point}: {move.said}")
        if not point.startswith("switch"):
            admin.execute_raw("UPDATE t SET n=-n WHERE id % 7 = 0")
            admin.execute_raw("DELETE FROM t WHERE id % 11 = 0")
        expected = admin.rows("SELECT id, n, v FROM t ORDER BY id")
        kill(server)
        server.restart()
    frail.source.reconnect()
    frail.target.reconnect()
    move.wait_serving(Side.TARGET, 2, 180)
    assert frail.target.admin.rows("SELECT id, n, v FROM t ORDER BY id") == expected
    move.ask(moves.COMPLETE)
    assert move.result(180).event == "complete", move.said


@pytest.mark.parametrize("frail", [("mysql", "mariadb"), ("mariadb", "mysql")], indirect=True, ids="-".join)
@pytest.mark.parametrize("deny", ["fail", "wait"])
@pytest.mark.parametrize("point", ["switch.denied", "switch.compared"])
def test_a_source_is_open_while_the_target_is_away(frail: Pair, point: str, deny: str, pauses: Path) -> None:
    """Nothing was decided. Its writes were denied until the target came back, however long that took."""
    admin = frail.source.reconnect()
    admin.execute_raw("DROP TABLE IF EXISTS t")
    frail.target.reconnect().execute_raw("DROP TABLE IF EXISTS t")
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL) COLLATE utf8mb4_general_ci")
    admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    with paused_at(pauses, point):
        move = begin(frail, "t", deny=deny)
        wait_until(lambda: (pauses / f"{point}.reached").exists(), f"nobody reached {point}: {move.said}")
        kill(frail.target.server)
    with connect(frail.source.app_url) as app:
        wait_until(lambda: _writes(app), "writes are denied while the target is away", 30)
    frail.target.server.restart()
    frail.target.reconnect()
    move.wait_serving(Side.TARGET, 2, 180)
    assert frail.target.admin.rows("SELECT id, n FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    move.ask(moves.COMPLETE)
    assert move.result(180).event == "complete", move.said


@pytest.mark.parametrize("frail", [("mysql", "mariadb"), ("mariadb", "mysql")], indirect=True, ids="-".join)
def test_a_source_that_starts_again_before_the_attempt_is_compared(frail: Pair, pauses: Path) -> None:
    """What it had and its log had lost stayed behind without a word: nothing was connected to it in that moment."""
    admin = frail.source.reconnect()
    admin.execute_raw("DROP TABLE IF EXISTS t")
    frail.target.reconnect().execute_raw("DROP TABLE IF EXISTS t")
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL) COLLATE utf8mb4_general_ci")
    admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    with paused_at(pauses, "switch.denying"):
        move = begin(frail, "t")
        wait_reached(pauses, "switch.denying", move)
        admin.execute_raw("SET SESSION sql_log_bin=0")
        admin.execute_raw("INSERT INTO t VALUES (3,3)")
        kill(frail.source.server)
        frail.source.server.restart()
        # So that nothing else holds the attempt.
        move.catch_up()
    frail.source.reconnect()
    move.wait_serving(Side.TARGET, 2, 180)
    assert frail.target.admin.rows("SELECT id, n FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    move.ask(moves.COMPLETE)
    assert move.result(180).event == "complete", move.said


def _writes(app: Session) -> bool:
    try:
        return app.execute("INSERT INTO t VALUES (3,3)") == 1
    except SqlError:
        return False
