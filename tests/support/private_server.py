"""Servers of each flavor for tests: one to share, or one of a test's own that may be killed.

What must stay true: a server that is missing skips its tests visibly, and fails them in CI; a server is ended by its
process id.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from sandbox import binaries, servers
from sandbox.servers import RunningServer
from tests.support import in_memory
from tests.support.flow import wait_until
from vreplication.mysql.session import Session

VECTORS = (9, 0)
"""MySQL has them since then."""

TOLD_APART_SECONDS = 4


@contextmanager
def private_server(flavor: str, options: Mapping[str, object] | None = None) -> Iterator[RunningServer]:
    """A server in a temporary folder."""
    with in_memory.temporary("vreplication-") as folder:
        started = _start(flavor, Path(folder) / flavor, options)
        try:
            yield started
        finally:
            # Nobody reads its data any more: no clean end, which takes MySQL seconds.
            started.kill()


def kill(server: RunningServer) -> None:
    """kill -9, but not of a server that has just been started: lease.server_run tells runs apart by whole seconds.

    Taken for the same run, its connections would be ended by the ids of those that were lost.
    """
    with server.admin() as session:
        wait_until(lambda: _uptime(session) >= TOLD_APART_SECONDS, "the server's clock stands still")
    server.kill()


def _uptime(session: Session) -> int:
    return int(session.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1])


def _start(flavor: str, folder: Path, options: Mapping[str, object] | None) -> RunningServer:
    try:
        found = binaries.version(flavor)
    except binaries.ServerMissing as error:
        missing(str(error))
    if found[:2] < binaries.oldest(flavor):
        missing(f"{flavor} {'.'.join(map(str, found))} is older than what we test on ({binaries.oldest(flavor)})")
    return servers.start(flavor, folder, options=options)


@functools.cache
def is_older(flavor: str, than: tuple[int, int]) -> bool:
    """Of the server that tests start; what it lacks, they leave out (`make versions`)."""
    try:
        return binaries.version(flavor)[:2] < than
    except binaries.ServerMissing:
        return False


def any_definer(flavor: str) -> str:
    """The privilege to make a trigger in another's name."""
    if flavor == "mariadb":
        return "SET USER"
    return "SET_USER_ID" if is_older("mysql", (8, 2)) else "SET_ANY_DEFINER"


def forget_logs(flavor: str) -> str:
    """The statement that removes all binary logs, and forgets the GTIDs."""
    is_new = flavor == "mysql" and not is_older("mysql", (8, 2))
    return "RESET BINARY LOGS AND GTIDS" if is_new else "RESET MASTER"


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI that is a failure", pytrace=False)
    pytest.skip(reason)
