"""Estimates: bounds that hold for any history, and figures that are right for histories whose answer is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.progress.estimate import ApplyEstimate, ApplyFigures, CopyEstimate, Rate

_STEPS = st.lists(
    st.tuples(st.floats(0, 3600), st.integers(0, 10**9), st.none() | st.integers(0, 10**12), st.booleans()),
    min_size=1,
    max_size=40,
)
_SAMPLES = st.lists(
    st.tuples(st.floats(0, 120), st.none() | st.floats(0, 1e9), st.none() | st.integers(0, 10**12)), max_size=60
)


def _is_time(seconds: float | None) -> bool:
    return seconds is None or (math.isfinite(seconds) and seconds >= 0)


@given(_STEPS)
def test_copy_figures_stay_in_bounds(steps: list[tuple[float, int, int | None, bool]]) -> None:
    estimate, now, rows, before = CopyEstimate(), 0.0, 0, 0.0
    for seconds, more, total, throttled in steps:
        now, rows = now + seconds, rows + more
        figures = estimate.observe(now, rows_copied=rows, rows_total=total, is_throttled=throttled)
        assert _is_time(figures.copy_eta_seconds)
        assert _is_time(figures.rows_per_second)
        assert (figures.percent is None) == (total is None)
        if figures.percent is not None:
            assert before <= figures.percent <= 99.9
            before = figures.percent
    done = estimate.observe(now, rows_copied=rows, rows_total=None, is_matched=True)
    assert (done.percent, done.copy_eta_seconds) == (100.0, 0.0)


@given(_SAMPLES)
def test_apply_figures_stay_in_bounds(samples: list[tuple[float, float | None, int | None]]) -> None:
    estimate, now = ApplyEstimate(), 0.0
    for seconds, lag, backlog in samples:
        now += seconds
        figures = estimate.observe(now, lag_seconds=lag, backlog=backlog)
        assert _is_time(figures.apply_eta_seconds)
        assert figures.apply_eta_seconds is None or figures.converging
        assert lag is not None or figures.converging is None


@given(st.floats(1, 1e6), st.floats(0.1, 10), st.integers(21, 300))
def test_steady_rate_is_found(rate: float, period: float, ticks: int) -> None:
    found = Rate()
    for tick in range(ticks + 1):
        found.observe(1e6 + tick * period, rate * tick * period)
    assert found.per_second == pytest.approx(rate, rel=1e-3)


def test_rate_follows_a_change_with_its_half_life() -> None:
    rate, total = Rate(half_life_seconds=120), 0
    for second in range(3600):
        rate.observe(second, total)
        total += 100
    for second in range(3600, 3720):
        rate.observe(second, total)
        total += 300
    assert rate.per_second == pytest.approx(200, rel=0.02)


def test_throttled_time_does_not_slow_the_estimate() -> None:
    estimate = CopyEstimate()
    for second in range(11):
        estimate.observe(second, rows_copied=100 * second, rows_total=10_000)
    for second in range(11, 600):
        held = estimate.observe(second, rows_copied=1000, rows_total=10_000, is_throttled=True)
    assert held.rows_per_second == pytest.approx(100)
    assert held.copy_eta_seconds == pytest.approx(90)


def test_a_stall_that_nothing_excuses_slows_the_estimate() -> None:
    estimate = CopyEstimate()
    for second in range(11):
        estimate.observe(second, rows_copied=100 * second, rows_total=10_000)
    for second in range(11, 131):
        held = estimate.observe(second, rows_copied=1000, rows_total=10_000)
    assert held.rows_per_second is not None
    assert held.rows_per_second < 10


def test_resumed_copy_does_not_count_old_rows_as_speed() -> None:
    estimate = CopyEstimate()
    estimate.observe(0, rows_copied=1_000_000, rows_total=2_000_000)
    figures = estimate.observe(10, rows_copied=1_001_000, rows_total=2_000_000)
    assert figures.rows_per_second == pytest.approx(100)


def test_no_eta_before_a_basis_and_none_past_the_estimated_total() -> None:
    estimate = CopyEstimate()
    assert estimate.observe(0, rows_copied=0, rows_total=100).copy_eta_seconds is None
    assert estimate.observe(1, rows_copied=50, rows_total=100).copy_eta_seconds is None
    assert estimate.observe(4, rows_copied=80, rows_total=100).copy_eta_seconds == pytest.approx(1, rel=0.01)
    assert estimate.observe(5, rows_copied=120, rows_total=100).copy_eta_seconds is None


def test_empty_table_is_not_done_before_it_is_matched() -> None:
    assert CopyEstimate().observe(0, rows_copied=0, rows_total=0).percent == 99.9


def test_percent_keeps_when_the_total_grows() -> None:
    estimate = CopyEstimate()
    assert estimate.observe(0, rows_copied=50, rows_total=100).percent == 50
    assert estimate.observe(1, rows_copied=60, rows_total=200).percent == 50


def _lags(*lags: float, backlog: int = 0) -> ApplyEstimate:
    estimate = ApplyEstimate()
    for second, lag in enumerate(lags):
        estimate.observe(second, lag_seconds=lag, backlog=backlog)
    return estimate


def test_shrinking_lag_converges_with_an_eta() -> None:
    figures = _lags(*[100 - 2 * s for s in range(20)]).observe(20, lag_seconds=60, backlog=0)
    assert figures.converging is True
    assert figures.apply_eta_seconds == pytest.approx(30)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_lag_that_does_not_shrink_does_not_converge(slope: float) -> None:
    figures = _lags(*[100 + slope * s for s in range(20)]).observe(20, lag_seconds=100 + slope * 20, backlog=0)
    assert (figures.converging, figures.apply_eta_seconds) == (False, None)


def test_one_look_says_nothing_unless_level() -> None:
    assert ApplyEstimate().observe(0, lag_seconds=50, backlog=0).converging is None
    assert ApplyEstimate().observe(0, lag_seconds=0.2, backlog=10).apply_eta_seconds == 0.0


def test_a_growing_backlog_counts_although_the_lag_is_small() -> None:
    estimate = ApplyEstimate()
    for second in range(20):
        figures = estimate.observe(second, lag_seconds=0.5, backlog=5_000 + 100 * second)
    assert figures.converging is False


def test_the_slower_of_lag_and_backlog_decides() -> None:
    estimate = ApplyEstimate()
    for second in range(20):
        figures = estimate.observe(second, lag_seconds=40 - second, backlog=100_000 - 100 * second)
    assert figures.apply_eta_seconds == pytest.approx((100_000 - 1_900) / 100)


def inside(lag: float, rates: list[int], backlog: int = 5_000_000) -> tuple[ApplyEstimate, ApplyFigures, int]:
    """A giant transaction that is being applied: each second so many changes fewer wait (or more)."""
    estimate = ApplyEstimate()
    for second, rate in enumerate(rates):
        backlog -= rate
        figures = estimate.observe(second, lag_seconds=lag + second, backlog=backlog, is_inside=True)
    return estimate, figures, backlog


def test_the_eta_contains_a_giant_transaction() -> None:
    """The lag grows by a second a second all the while."""
    _, figures, backlog = inside(3.0, [20_000] * 60)
    assert figures.converging is True
    assert figures.apply_eta_seconds == pytest.approx(backlog / 20_000)
    _, figures, backlog = inside(3.0, [20_000] * 12, backlog=240_500)
    assert figures.apply_eta_seconds == pytest.approx(500 / 20_000)


@pytest.mark.parametrize("rate", [0, -100])
def test_a_giant_transaction_that_does_not_get_less_does_not_converge(rate: int) -> None:
    """More is written meanwhile than is applied of it, or nothing is applied."""
    _, figures, _ = inside(3.0, [rate] * 60)
    assert (figures.converging, figures.apply_eta_seconds) == (False, None)


def test_while_a_giant_transaction_is_read_nobody_knows() -> None:
    """Its rows wait in growing number, and how many come is not known: that is not writes faster than we are."""
    estimate = ApplyEstimate()
    for second in range(30):
        figures = estimate.observe(second, lag_seconds=3.0 + second, backlog=20_000 * second, is_reading=True)
        assert (figures.converging, figures.apply_eta_seconds) == (None, None)
    for second in range(30, 60):
        backlog = 600_000 - 10_000 * (second - 30)
        figures = estimate.observe(second, lag_seconds=3.0 + second, backlog=backlog, is_inside=True)
    assert (figures.converging, figures.apply_eta_seconds) == (True, pytest.approx(backlog / 10_000))


def test_behind_a_giant_transaction_its_growing_lag_is_forgotten() -> None:
    estimate, *_ = inside(3.0, [20_000] * 60)
    for second in range(60, 66):
        figures = estimate.observe(second, lag_seconds=40 - 2 * (second - 60), backlog=0)
    assert figures.converging is True
    assert figures.apply_eta_seconds == pytest.approx(15)


def test_unknown_lag_forgets_what_was_before() -> None:
    estimate = _lags(*[100.0 - s for s in range(20)])
    estimate.observe(20, lag_seconds=None, backlog=None)
    assert estimate.observe(21, lag_seconds=50, backlog=0).converging is None
