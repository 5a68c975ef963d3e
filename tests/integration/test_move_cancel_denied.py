"""A move is cancelled while a switch that has failed cannot open the source, for somebody has read the table."""

from __future__ import annotations

import pytest

from tests.support.moving import begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.cutover import deny
from vreplication.mysql.session import connect
from vreplication.settings import SIDECAR
from vreplication.state import moves
from vreplication.workflows.move_tables import ending, operate

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True),
]


def test_it_is_not_said_to_be_cancelled(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Cancelled by the operator` was all it said; writes stayed denied, and the move was there as before."""
    monkeypatch.setattr(ending, "_TRIES", 1)
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1)")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    move.stop.set()
    move.result()
    with connect(pair.source.url) as session:
        deny.deny(session, [(pair.source.name, "t")], workflow=move.workflow, token="x", message="moved")
    given_up = (str(moves.Decision.ABORTING), move.workflow)
    pair.target.admin.execute(f"UPDATE {SIDECAR}.move SET decision=%s WHERE workflow=%s", given_up)
    with connect(pair.source.app_url) as reader:
        reader.execute_raw("BEGIN")
        reader.rows("SELECT * FROM t")
        failed = operate.cancel(pair.target.url, pair.source.url, move.workflow)
        assert (failed.event, f"connection {reader.id}" in (failed.reason or "")) == ("failed", True), failed
        assert failed.exit_code == 1
        reader.execute_raw("COMMIT")
        reader.execute_raw("SELECT 1")
    assert operate.cancel(pair.target.url, pair.source.url, move.workflow).event == "cancelled"
    with connect(pair.source.app_url) as app:
        app.execute_raw("INSERT INTO t VALUES (2,2)")
