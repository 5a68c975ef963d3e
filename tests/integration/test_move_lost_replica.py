"""The source of a move that was not switched is gone for good, and another server is at its URL: a promoted replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import Database, create_database
from tests.support.moving import begin, quick
from tests.support.pairs import Pair, _pair_servers, pair, server_of
from vreplication import names
from vreplication.cutover import deny
from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.state import workflows
from vreplication.workflows.move_tables import lost_source, operate

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mysql-mysql", "mariadb-mariadb"], indirect=True),
]


@pytest.fixture
def promoted(pair: Pair) -> Iterator[Database]:
    server = server_of(pair.source.server.flavor, "target")
    made = create_database(server, pair.source.name, grants="move_source")
    for database in (pair.source, made):
        database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
        database.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    yield made
    made.drop()


def test_a_promoted_replica_takes_writes_again(pair: Pair, promoted: Database) -> None:
    """It had the triggers of a switch that its source did not survive, and no command took them away."""
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    move.stop.set()
    move.result()
    copied = f"{pair.target.name}.{names.shadow_table('t')}"
    pair.target.admin.rows(f"OPTIMIZE TABLE {copied}")
    with connect(promoted.url) as session:
        tables = [(promoted.name, "t")]
        deny.deny(session, tables, workflow=move.workflow, token="x", message="moved")
        deny.unlock(session)
    with pytest.raises(Refused, match="--source-lost"):
        operate.cancel(pair.target.url, promoted.url, move.workflow)
    ended = lost_source.cancel(pair.target.url, promoted.url, move.workflow, "ann")
    assert workflows.load(pair.target.admin, move.workflow).phase == "cancelled"
    # What it has not removed at home is named, too.
    assert f"{copied} on the target: stays" in (ended.reason or ""), ended
    assert f"{promoted.name}.t takes writes again" in (ended.reason or ""), ended
    with connect(promoted.app_url) as app:
        app.execute_raw("INSERT INTO t VALUES (3,3)")
