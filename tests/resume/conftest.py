"""Fixtures of the crash tests: pause points, and a table under a live workload whose outcome can be proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_setup import Live, make_live

from sandbox.databases import Database
from tests.support.flow import pauses, quick
from tests.support.promoted import promoting

__all__ = ["pauses", "promoting", "quick"]


@pytest.fixture
def live(database: Database, tmp_path: Path, pauses: Path) -> Iterator[Live]:
    """A table that is being written to; what the test leaves running is ended."""
    made = make_live(database, tmp_path / "state", pauses)
    try:
        yield made
    finally:
        made.end()
