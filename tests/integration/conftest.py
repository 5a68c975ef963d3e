"""Fixtures for tests that start Spark or hold our processes at pause points.

What must stay true: one Spark session serves all tests of a run, and it is stopped at the end; the process of the lakes
is one, too, and ends with the last test that needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rowcopy_setup import Held

from tests.support.flow import patient, pauses, quick
from tests.support.lakes import LakeServer, lake_server
from tests.support.order import is_last
from tests.support.pairs import _pair_servers, pair
from vreplication import pausepoints

__all__ = ["_pair_servers", "pair", "patient", "pauses", "quick"]

_LAKES = contextlib.ExitStack()
_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local Spark session with two slots."""
    from vreplication.spark.start import spark_context

    session = spark_context("local[*]", 2, "vreplication tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lakes() -> Iterator[LakeServer]:
    """What fills and reads every lake: a module's own would be a JVM and a Spark more, and one more on each server."""
    yield _LAKES.enter_context(lake_server())
    _LAKES.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Its JVM does not stand beside the tests that come behind."""
    yield
    if is_last(item, _needs_lakes):
        _LAKES.close()


def _needs_lakes(item: pytest.Item) -> bool:
    return item.path.parent == _HERE and "lakes" in getattr(item, "fixturenames", ())


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Pause points that this test holds."""
    folder = tmp_path / "pause"
    folder.mkdir()
    monkeypatch.setenv(pausepoints.VARIABLE, str(folder))
    return Held(folder)
