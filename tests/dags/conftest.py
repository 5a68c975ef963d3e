"""Fixture: a real Airflow for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.deployment import Deployment
from tests.support.running_airflow import running


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Started once a module: an idle scheduler takes a tenth of a core from all the other tests."""
    with running(tmp_path_factory.mktemp("airflow")) as found:
        yield found
