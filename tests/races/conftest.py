"""Fixtures of the forced races: pause points, a flow without a JVM, and a small table that a test writes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from race_setup import Race

from sandbox.databases import Database
from tests.support.flow import patient, pauses, quick
from vreplication.mysql.session import connect

__all__ = ["patient", "pauses", "quick"]


@pytest.fixture
def race(quick: None, database: Database, pauses: Path) -> Iterator[Race]:
    """The application's connection beside a run that the test holds where it wants."""
    with connect(database.app_url) as app:
        made = Race(database=database, pauses=pauses, app=app)
        yield made
        made.end()
