"""The old server of a move is closed behind the switch, as people do with a server that is not to be written to."""

from __future__ import annotations

import pytest

from tests.support.flow import settings, wait_until
from tests.support.moving import begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.engine import replicate
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


def waits_for(pair: Pair, workflow: str) -> str:
    found = snapshot.find(pair.target.admin, workflow)
    return (found and found.waiting_for) or ""
