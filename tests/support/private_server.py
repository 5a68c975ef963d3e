"""Servers of each flavor for tests: one to share, or one of a test's own that may be killed.

What must stay true: a server that is missing skips its tests visibly, and fails them in CI; a server is ended by its
process id.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from sandbox import binaries, servers
from sandbox.servers import RunningServer


@contextmanager
def private_server(flavor: str, options: Mapping[str, object] | None = None) -> Iterator[RunningServer]:
    """A server in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="vreplication-") as folder:
        started = _start(flavor, Path(folder) / flavor, options)
        try:
            yield started
        finally:
            started.stop()


def _start(flavor: str, folder: Path, options: Mapping[str, object] | None) -> RunningServer:
    try:
        found = binaries.version(flavor)
    except binaries.ServerMissing as error:
        missing(str(error))
    if found[:2] < binaries.OLDEST[flavor]:
        missing(f"{flavor} {'.'.join(map(str, found))} is older than what we test on ({binaries.OLDEST[flavor]})")
    return servers.start(flavor, folder, options=options)


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI that is a failure", pytrace=False)
    pytest.skip(reason)
