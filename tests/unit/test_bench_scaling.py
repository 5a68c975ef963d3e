"""The model of how the copy scales: three limits, of which the narrowest counts."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scaling import Costs, Measured, fitted, table_of

COSTS = Costs(alone=8.0, cpu=6.0, log=1.0, reader=0.2, turn=0.0)


def copied(tasks: int, seconds: float, **more: Any) -> Measured:
    shown = {"server_cpu": 4.0, "tool_cpu": 2.0, "others": 0.0, "log_bytes": 100_000_000, **more}
    return Measured(name=str(tasks), tasks=tasks, seconds=seconds, **shown)


@pytest.mark.parametrize(
    ("tasks", "cores", "seconds", "limit"),
    [
        pytest.param(1, 4, 8.0, "tasks", id="one task has cores to spare"),
        pytest.param(4, 2, 3.0, "cores", id="four tasks and two cores"),
        pytest.param(64, 64, 1.0, "log", id="the log is written by one"),
    ],
)
def test_the_narrowest_limit_counts(tasks: int, cores: float, seconds: float, limit: str) -> None:
    assert COSTS.seconds(1_000_000, tasks, cores) == pytest.approx(seconds)
    assert COSTS.limit(tasks, cores) == limit


def test_it_is_fitted_to_one_task_alone() -> None:
    measured = [copied(1, 9.0), copied(1, 8.0), copied(2, 1.0, server_cpu=50.0)]
    found = fitted(measured, 1_000_000, bandwidth=1e8, reader_rate=5e6, insert=1.9)
    assert found == Costs(alone=8.0, cpu=6.0, log=1.0, reader=0.2, turn=1.9)


def test_a_prediction_stands_beside_its_error() -> None:
    measured = {"costs": vars_of(COSTS), "measured": [vars_of(copied(2, 5.0, others=1.0))]}
    text = table_of({"rows": 1_000_000, "mysql": measured}, "mysql", 2)
    assert "| 2 | 1.0 | 5.0 s | 6.0 s | +20% | cores |" in text


def vars_of(found: Costs | Measured) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}
