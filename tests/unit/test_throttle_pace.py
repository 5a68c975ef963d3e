"""The pace beside writers, against a server that is a formula: latency rises with how hard we work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.settings import LEAST_EFFORT, Pace
from vreplication.throttle.pace import LEAST_SECONDS, Pacer, spared

WRITERS = 800.0


def run(pacer: Pacer, seconds: int, cost: float, *, base: float = 0.010, others: float = WRITERS) -> list[Pace]:
    """Each task that works adds `cost` seconds to every commit."""
    found: list[Pace] = []
    pace = Pace(effort=pacer.share * 2, tasks=2, chunk_millis=100)
    for second in range(seconds):
        for quarter in range(4):
            pacer.took(second + quarter / 4, base + cost * pace.effort, is_working=True)
        pace = pacer.decide(second + 1, others, tasks=2, chunk_millis=500)
        found.append(pace)
    return found


def idle(pacer: Pacer, base: float = 0.010) -> Pacer:
    for i in range(20):
        pacer.took(i / 4 - 10, base, is_working=False)
    return pacer


def test_latency_settles_within_the_factor() -> None:
    found = run(idle(Pacer(factor=1.5)), 120, cost=0.010)
    late = [0.010 + 0.010 * pace.effort for pace in found[60:]]
    assert max(late) <= 0.015 * 1.2
    assert sum(late) / len(late) >= 0.013


def test_a_server_that_bears_it_is_used_whole() -> None:
    assert run(idle(Pacer(factor=1.5)), 60, cost=0.001)[-1].effort == 2.0


def test_a_stumble_of_the_server_is_soon_forgotten() -> None:
    """Ten seconds of a disk that is busy with something else, on a server that bears all of us."""
    pacer = idle(Pacer(factor=1.5), 0.001)
    run(pacer, 10, cost=0.0001, base=0.030)
    assert pacer.share == LEAST_EFFORT
    assert run(pacer, 20, cost=0.0001, base=0.001)[-1].effort == 2.0


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_server_that_answers_late_and_all_at_once_is_not_overrun(lag: int) -> None:
    """Up to half of what we could do costs nothing, beyond that commits are ten times as slow, a moment later."""
    pacer, shares, found = idle(Pacer(factor=1.5)), [0.0] * (lag + 1), []
    for second in range(120):
        slow = shares[-1 - lag] > 0.5
        for quarter in range(4):
            pacer.took(second + quarter / 4, 0.1 if slow else 0.010, is_working=True)
        pacer.decide(second + 1, WRITERS, tasks=2, chunk_millis=500)
        shares.append(pacer.share)
        found.append(slow)
    assert sum(found[30:]) <= 0.35 * len(found[30:])
    assert max(shares[30:]) <= 0.65
    assert sum(shares[30:]) / len(shares[30:]) >= 0.2


def test_nobody_else_writes_so_nobody_waits() -> None:
    found = run(idle(Pacer(factor=1.5)), 10, cost=1.0, others=0.0)
    assert set(found) == {Pace(effort=2.0, tasks=2, chunk_millis=500)}


def test_chunks_are_short_beside_writers_from_the_first_second() -> None:
    assert idle(Pacer(factor=1.5)).decide(0.0, WRITERS, tasks=2, chunk_millis=500).chunk_millis <= 100


def test_factor_0_holds_nothing_back() -> None:
    assert run(idle(Pacer(factor=0)), 10, cost=1.0)[-1] == Pace(effort=2.0, tasks=2, chunk_millis=500)


def test_quick_commits_are_no_reason() -> None:
    base = LEAST_SECONDS / 20
    assert run(idle(Pacer(factor=1.5), base), 60, cost=LEAST_SECONDS / 4, base=base)[-1].effort == 2.0


def test_what_is_slow_without_us_becomes_the_base() -> None:
    """The application itself has become busier: we do not creep for the rest of the day."""
    pacer = idle(Pacer(factor=1.5))
    found = run(pacer, 240, cost=0.001, base=0.050)
    assert min(pace.effort for pace in found) == pytest.approx(2 * LEAST_EFFORT)
    assert found[-1].effort == 2.0
    assert pacer.base == pytest.approx(0.050, rel=0.1)


def test_an_idle_time_renews_the_base() -> None:
    pacer = idle(Pacer(factor=2.0), 0.050)
    for i in range(40):
        pacer.took(100 + i / 4, 0.010, is_working=False)
    assert pacer.bound == pytest.approx(0.020)


@given(st.lists(st.floats(0, 60), min_size=1), st.floats(0, 1e6), st.integers(1, 64), st.integers(10, 60_000))
def test_it_always_gets_on_and_never_beyond_what_is_allowed(
    probes: list[float], others: float, tasks: int, millis: int
) -> None:
    pacer = idle(Pacer(factor=1.5))
    for second, seconds in enumerate(probes):
        pacer.took(second, seconds, is_working=True)
        pace = pacer.decide(second, others, tasks=tasks, chunk_millis=millis)
        assert 0 < pace.effort <= tasks
        assert 0 < pace.chunk_millis <= millis
        assert 1 <= pace.tasks <= tasks
        assert pace.tasks / (1 + pace.rest) == pytest.approx(min(pace.effort, pace.tasks))
        assert pace.tasks >= pace.effort - 0.21


@pytest.mark.parametrize(
    ("effort", "ratio", "rest"),
    [(2.0, 0.0, 0.0), (2.0, 0.5, 0.5), (2.0, 3.0, 3.0), (0.5, 0.0, 3.0), (0.5, 1.0, 3.0)],
)
def test_nice_ratio_is_the_least_rest_for_each_second_of_work(effort: float, ratio: float, rest: float) -> None:
    """Where the pace rests for longer already it stays; chunks and tasks are the same."""
    found = spared(Pace(effort=effort, tasks=2, chunk_millis=70), ratio, is_held=True)
    assert found.rest == pytest.approx(rest)
    assert (found.tasks, found.chunk_millis, found.is_held) == (2, 70, True)
