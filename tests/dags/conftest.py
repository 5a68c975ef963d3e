"""Fixture: the tests' Airflow, left by each test as it was found.

What must stay true: tests without it share one worker: each imports Airflow and makes its database in 10 CPU seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.deployment import Deployment
from tests.support.running_airflow import clear

_ELSEWHERE = ("xdist_group", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and not any(map(item.get_closest_marker, _ELSEWHERE)):
            item.add_marker(pytest.mark.xdist_group("dags"))


@pytest.fixture
def airflow(airflow: Deployment) -> Iterator[Deployment]:
    yield airflow
    clear(airflow)
