"""A move is completed while somebody has read a table of the old server in a transaction that is still open."""

from __future__ import annotations

import pytest

from tests.support.flow import wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.mysql.session import connect
from vreplication.progress import snapshot
from vreplication.state import moves
from vreplication.state.moves import Side

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True),
]


def waits_for(move: Move) -> str:
    found = snapshot.find(move.pair.target.admin, move.workflow)
    return (found and found.waiting_for) or ""


def test_it_is_named_and_others_go_on_reading(pair: Pair) -> None:
    """RENAME waited for it for five minutes without a word, and everybody who read that table queued behind RENAME."""
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1)")
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with connect(pair.source.app_url) as reader:
        reader.execute_raw("BEGIN")
        reader.rows("SELECT * FROM t")
        move.ask(moves.COMPLETE)
        wait_until(lambda: f"connection {reader.id}" in waits_for(move), f"it does not say so: {move.said}", 20.0)
        with connect(pair.source.app_url, read_timeout=5.0) as other:
            assert other.rows("SELECT id FROM t") == [(1,)]
        reader.execute_raw("COMMIT")
    assert move.result().event == "complete"
    assert len(pair.source.admin.rows("SHOW TABLES")) == 1
