"""Two servers at a time, for tests of what goes from one to the other: a schema of its own on each.

What must stay true: our users have what sql/grants/move_*.sql grants, and no more; a server is started when the first
test asks for it, once a worker, and ended with the run; the source and the target are never one server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.private_server import private_server

FOLLOW = {
    True: ("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'", "SLAVE", "RESET SLAVE ALL"),
    False: (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1, SOURCE_USER='x'",
        "REPLICA",
        "RESET REPLICA ALL",
    ),
}
"""By whether it is MariaDB: become a replica of a server that is not there; its word in statements; be one no more."""
DIRECTIONS = ("mysql-mariadb", "mariadb-mysql", "mysql-mysql", "mariadb-mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A schema on the source and one on the target, each with its users."""

    source: Database
    target: Database

    @property
    def is_one_flavor(self) -> bool:
        return self.source.server.flavor == self.target.server.flavor


_RUNNING = contextlib.ExitStack()
_SERVERS: dict[tuple[str, str], RunningServer] = {}


def server_of(flavor: str, role: str) -> RunningServer:
    """The one server of this flavor that is a source, or a target."""
    key = (flavor, role)
    if key not in _SERVERS:
        # Without it both servers want SUPER for the triggers that deny writes.
        options = {"server-id": 101 if role == "source" else 102, "log-bin-trust-function-creators": "ON"}
        _SERVERS[key] = _RUNNING.enter_context(private_server(flavor, options))
    return _SERVERS[key]


@pytest.fixture(scope="session")
def _pair_servers() -> Iterator[None]:
    yield
    _RUNNING.close()
    _SERVERS.clear()


@contextlib.contextmanager
def private_pair(old: str, new: str, name: str = "", **options: dict[str, object]) -> Iterator[Pair]:
    """Two servers of these flavors, for a test that kills one. options: further ones of `source` or `target`."""
    trusted = {"log-bin-trust-function-creators": "ON"}
    with (
        private_server(old, {**trusted, "server-id": 211, **options.get("source", {})}) as one,
        private_server(new, {**trusted, "server-id": 212, **options.get("target", {})}) as other,
    ):
        yield Pair(source=create_database(one, name), target=create_database(other, name))


@pytest.fixture(params=DIRECTIONS)
def pair(request: pytest.FixtureRequest, _pair_servers: None) -> Iterator[Pair]:
    """In each direction in turn; `@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)` picks one."""
    source, target = request.param.split("-")
    made = Pair(
        source=create_database(server_of(source, "source"), grants="move_source"),
        target=create_database(server_of(target, "target"), grants="move_target"),
    )
    try:
        yield made
    finally:
        made.source.drop()
        made.target.drop()


def twin(database: Database, *statements: str) -> Iterator[Database]:
    """Body of a fixture beside `_pair_servers`: a second server of the flavor, where a feed's changes go.

    statements: run on both.
    """
    made = create_database(server_of(database.server.flavor, "target"), database.name)
    for each in (database, made):
        for statement in statements:
            each.admin.execute_raw(statement)
    yield made
    made.drop()
