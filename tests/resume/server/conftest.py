"""A server that the tests of this folder may kill, in the place of the shared one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox import binaries
from sandbox.servers import RunningServer
from tests.support.private_server import private_server


@pytest.fixture(scope="session", params=binaries.FLAVORS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with private_server(request.param, {"innodb-buffer-pool-size": "64M"}) as started:
        yield started
