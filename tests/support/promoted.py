"""Two servers, one of them the other's replica, for tests in which the source dies and the replica is promoted.

What must stay true: a pair is started once a flavor, and all that need it run in one worker; after a failover the dead
server is back as the replica of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox import replicas, servers
from sandbox.servers import RunningServer


@dataclass(slots=True)
class Promoting:
    """A failover changes their parts."""

    source: RunningServer
    replica: RunningServer

    def fail_over(self) -> None:
        """Nothing is lost: the replica has all when the source dies. The dead one comes back as the replica."""
        replicas.wait_level(self.source, self.replica)
        self.source.kill()
        replicas.promote(self.replica)
        dead, self.source = self.source, self.replica
        self.replica = dead.restart()
        replicas.follow(self.replica, self.source)


@pytest.fixture(
    scope="module", params=[pytest.param(f, marks=pytest.mark.xdist_group(f"pair-{f}")) for f in ("mariadb", "mysql")]
)
def promoting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Promoting]:
    flavor, folder = str(request.param), tmp_path_factory.mktemp("pair")
    source = servers.start(flavor, folder / "one", options={**replicas.GTID_OPTIONS[flavor], "server-id": 1})
    started = [source]
    try:
        started.append(replicas.start_replica(source, folder / "two"))
        yield Promoting(*started)
    finally:
        for server in started:
            server.kill()
