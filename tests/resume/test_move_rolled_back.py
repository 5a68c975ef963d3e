"""A server of a move that comes back as it was a while ago: a crash of its machine with logs that were not flushed, or
a snapshot that was restored.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from sandbox.servers import RunningServer
from tests.support.flow import wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import private_pair
from tests.support.private_server import kill
from vreplication.mysql.session import connect
from vreplication.state import moves
from vreplication.state.moves import Side

__all__ = ["quick"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick"), pytest.mark.timeout(300), pytest.mark.either]
FLAVORS = pytest.mark.parametrize(("old", "new"), [("mysql", "mariadb"), ("mariadb", "mysql")])


@pytest.fixture
def move(old: str, new: str) -> Iterator[Move]:
    """The target serves, and the way back is open."""
    with private_pair(old, new) as pair:
        pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
        pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        moved = begin(pair, "t")
        moved.wait_serving(Side.TARGET, 2)
        yield moved
        moved.stop.set()
        moved.result()


def keep(database: Database) -> None:
    kill(database.server)
    kept = _data(database.server).with_name("kept")
    shutil.copytree(_data(database.server), kept, ignore=shutil.ignore_patterns("*.sock*"))
    database.server.restart()
    database.reconnect()


def come_back(database: Database) -> None:
    """As it was kept."""
    kill(database.server)
    shutil.rmtree(_data(database.server))
    _data(database.server).with_name("kept").rename(_data(database.server))
    database.server.restart()
    database.reconnect()


def _data(server: RunningServer):  # type: ignore[no-untyped-def]
    assert server.folder is not None
    return server.folder / "data"


def rows(database: Database) -> list[tuple[object, ...]]:
    return database.admin.rows("SELECT id, n FROM t ORDER BY id")


def wait_level(move: Move) -> None:
    pair = move.pair
    wait_until(lambda: rows(pair.source) == rows(pair.target), f"the old server is not level: {move.said}", 60)


@FLAVORS
def test_the_old_server_gets_again_what_it_has_lost(move: Move) -> None:
    """They were missing there for good, and the way back was closed. One is of a branch that was prepared before."""
    source, target = move.pair.source, move.pair.target
    with connect(target.app_url) as branch:
        for each in ("XA START 'b'", "INSERT INTO t VALUES (10,10)", "XA END 'b'", "XA PREPARE 'b'"):
            branch.execute_raw(each)
        target.admin.execute_raw("UPDATE t SET n=20 WHERE id=2")
        wait_level(move)
        keep(source)
        branch.execute_raw("XA COMMIT 'b'")
    target.admin.execute_raw("DELETE FROM t WHERE id=1")
    target.admin.execute_raw("INSERT INTO t VALUES (4,4)")
    wait_level(move)
    come_back(source)
    wait_level(move)
    move.ask(moves.REVERSE)
    move.wait_serving(Side.SOURCE, 3)
    assert rows(source) == [(2, 20), (3, 3), (4, 4), (10, 10)]


@FLAVORS
def test_what_the_new_server_has_lost_is_not_told_as_somebodys_write(move: Move) -> None:
    """And what is advised opens the way back again."""
    source, target = move.pair.source, move.pair.target
    keep(target)
    target.admin.execute_raw("INSERT INTO t VALUES (4,4)")
    target.admin.execute_raw("UPDATE t SET n=20 WHERE id=2")
    wait_level(move)
    come_back(target)
    move.ask(moves.REVERSE)
    failed = move.result()
    assert failed.event == "failed", failed
    assert "Since they were equal the target started again" in (failed.reason or ""), failed
    for each in ("INSERT INTO t VALUES (4,0)", "DELETE FROM t WHERE id=4", "UPDATE t SET n=0 WHERE id=2"):
        target.admin.execute_raw(each)
    target.admin.execute_raw("UPDATE t SET n=2 WHERE id=2")
    move.start()
    move.wait_serving(Side.SOURCE, 3)
    assert rows(source) == [(1, 1), (2, 2), (3, 3)]
