"""A move without a way back, to a server that writes no binary log: nothing of the switch needs one there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import create_database
from tests.support.flow import contents
from tests.support.moving import begin, quick
from tests.support.pairs import Pair, _pair_servers, server_of
from tests.support.private_server import private_server

__all__ = ["_pair_servers", "quick"]

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def unlogged(request: pytest.FixtureRequest, _pair_servers: None) -> Iterator[Pair]:
    source = create_database(server_of("mariadb", "source"), grants="move_source")
    with private_server(request.param, {"server-id": 213, "skip-log-bin": ""}) as server:
        yield Pair(source=source, target=create_database(server, grants="move_target"))
    source.drop()


def test_a_target_without_a_binary_log(unlogged: Pair) -> None:
    """It was planned, copied and verified, and failed at each switch: the way back had no place to begin at."""
    admin = unlogged.source.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT) COLLATE utf8mb4_general_ci")
    admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    before = contents(admin, "t")
    move = begin(unlogged, "t", reverse=False)
    assert move.result().event == "complete", move.said
    assert contents(unlogged.target.admin, "t") == before
