"""Fixtures for tests that start Spark or hold our processes at pause points.

What must stay true: one Spark session serves all tests of a run, and it is stopped at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rowcopy_setup import Held

from tests.support.flow import patient, pauses, quick
from tests.support.lakes import lakes
from tests.support.pairs import _pair_servers, pair
from vreplication import pausepoints

__all__ = ["_pair_servers", "lakes", "pair", "patient", "pauses", "quick"]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local Spark session with two slots."""
    from vreplication.spark.start import spark_context

    session = spark_context("local[*]", 2, "vreplication tests")
    yield session
    session.stop()


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Pause points that this test holds."""
    folder = tmp_path / "pause"
    folder.mkdir()
    monkeypatch.setenv(pausepoints.VARIABLE, str(folder))
    return Held(folder)
