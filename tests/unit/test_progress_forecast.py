"""Forecasts: what holds for any run, what is right for runs whose end is known, and recorded runs told again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.eta import worth
from tests.support import replayed
from vreplication.phases import Phase
from vreplication.progress.estimate import total_rows
from vreplication.progress.forecast import Forecast, Outlook, Table
from vreplication.progress.paces import Case, Part, expected, units
from vreplication.progress.snapshot import Snapshot
from vreplication.state.forecasts import Pace

ROWS = 6_000_000
TABLE = Table(name="s.t", rows=ROWS, row_bytes=100.0)
LOSING = "writes come faster than they are applied"


def seen(phase: Phase, **more: Any) -> Snapshot:
    return Snapshot(workflow="w", phase=phase, rows_total=ROWS, **more)


def steady(pace: int = 100_000) -> Iterator[tuple[float, Snapshot]]:
    """1 s of preparing, 4 of starting, rows at one pace, verified at four times that, 2 s at the gate, 1 to switch."""
    yield 0.0, seen(Phase.PREPARING)
    for second in range(1, 5):
        yield second, seen(Phase.COPYING)
    copied, verified = ROWS // pace, ROWS // (4 * pace)
    for second in range(copied):
        yield 5 + second, seen(Phase.COPYING, rows_copied=pace * (second + 1), applied_per_second=0.0)
    for second in range(verified):
        done = 4 * pace * second
        yield 5 + copied + second, seen(Phase.VERIFYING, rows_copied=ROWS, verify_rows=done, applied_per_second=0.0)
    end = 5 + copied + verified
    for second in range(2):
        yield end + second, seen(Phase.WAITING, rows_copied=ROWS, applied_per_second=0.0)
    yield end + 2, seen(Phase.CUTTING_OVER, rows_copied=ROWS, applied_per_second=0.0)
    yield end + 3, seen(Phase.COMPLETE, rows_copied=ROWS)


def told(run: Iterator[tuple[float, Snapshot]], past: list[Pace], of: Phase = Phase.COMPLETE) -> tuple[
    list[tuple[float, Snapshot, Outlook]], list[Pace]
]:  # fmt: skip
    forecast = Forecast(past, TABLE)
    found = [(at, look, forecast.observe(at, look, of)) for at, look in run]
    return found, forecast.finished[::-1]


_FIGURE = st.none() | st.floats(0, 1e12)
_LOOKS = st.tuples(
    st.floats(0, 3600),
    st.sampled_from(list(Phase)),
    st.fixed_dictionaries(
        {
            "rows_copied": st.integers(0, 10**12),
            "rows_total": st.none() | st.integers(0, 10**12),
            "verify_rows": st.none() | st.integers(0, 10**12),
            "applied_per_second": _FIGURE,
            "lag_seconds": _FIGURE,
            "apply_eta_seconds": _FIGURE,
            "converging": st.none() | st.booleans(),
            "throttled": st.none() | st.just("apply lag 9.0 s"),
            "waiting_for": st.none() | st.just("connection 8"),
            "is_paused": st.booleans(),
        }
    ),
)
_PACES = st.builds(
    Pace,
    part=st.sampled_from([str(part) for part in Part]),
    source_name=st.sampled_from(["s.t", "s.u"]),
    units=st.floats(0, 1e12),
    seconds=st.floats(0, 1e7),
    write_rate=_FIGURE,
)


@given(st.lists(_LOOKS, max_size=40), st.lists(_PACES, max_size=20), st.sampled_from([Phase.COMPLETE, Phase.WAITING]))
def test_an_eta_is_finite_and_in_its_range_or_has_a_reason(looks: list[Any], past: list[Pace], of: Phase) -> None:
    forecast, now = Forecast(past, TABLE), 0.0
    for seconds, phase, fields in looks:
        now += seconds
        found = forecast.observe(now, Snapshot(workflow="w", phase=phase, **fields), of)
        assert found.of is of
        if found.eta_seconds is None:
            assert found.reason or phase in (Phase.FAILED, Phase.CANCELLED)
            continue
        assert math.isfinite(found.eta_seconds)
        if found.low_seconds is not None and found.high_seconds is not None:
            assert 0 <= found.low_seconds <= found.eta_seconds <= found.high_seconds
            assert math.isfinite(found.high_seconds)
    for pace in forecast.finished:
        assert pace.seconds >= 0
        assert math.isfinite(pace.units)


@pytest.mark.parametrize("pace", [50_000, 100_000, 300_000])
def test_a_run_like_one_before_is_foretold_from_its_first_second(pace: int) -> None:
    found, past = told(steady(pace), [])
    whole = found[-1][0]
    found, _ = told(steady(pace), past)
    errors = [abs(outlook.eta_seconds - (whole - at)) for at, _, outlook in found if outlook.eta_seconds is not None]
    assert len(errors) == len(found)
    assert max(errors) < 0.1 * whole


def test_an_eta_falls_as_time_passes_at_one_pace() -> None:
    _, past = told(steady(), [])
    found, _ = told(steady(), past)
    etas = [outlook.eta_seconds or 0.0 for _, _, outlook in found]
    assert all(later <= sooner + 1.0 for sooner, later in pairwise(etas))
    assert etas[-1] == 0.0


def test_without_a_past_the_own_pace_soon_tells() -> None:
    found, _ = told(steady(), [])
    whole = found[-1][0]
    late = [(whole - at, outlook) for at, _, outlook in found if at > 0.3 * whole]
    assert all(abs((outlook.eta_seconds or 0.0) - left) < 0.2 * whole for left, outlook in late)


def test_what_is_compared_beside_the_copy_is_not_expected_behind_it() -> None:
    plain, beside = Forecast([], Table(name="t", rows=ROWS)), Forecast([], Table(name="t", rows=ROWS))
    for second in range(1, 21):
        look = seen(Phase.COPYING, rows_copied=50_000 * second)
        whole = plain.observe(second, look, Phase.COMPLETE)
        less = beside.observe(second, look, Phase.COMPLETE, compared=max(0, 50_000 * (second - 2)))
    assert (whole.eta_seconds or 0.0) - (less.eta_seconds or 0.0) > 5.0


def test_the_first_range_is_wide_and_narrows() -> None:
    found, past = told(steady(), [])
    again, _ = told(steady(), past)

    def width(outlook: Outlook) -> float:
        return ((outlook.high_seconds or 0.0) - (outlook.low_seconds or 0.0)) / (outlook.eta_seconds or 1.0)

    assert width(found[2][2]) > 1.5 * width(again[2][2])
    assert width(found[2][2]) > 1.5 * width(found[40][2])


def test_up_to_the_gate_the_rest_does_not_count() -> None:
    _, past = told(steady(), [])
    whole, _ = told(steady(), past)
    gate, _ = told(steady(), past, Phase.WAITING)
    differing = {
        round((a.eta_seconds or 0.0) - (b.eta_seconds or 0.0))
        for (_, look, a), (_, _, b) in zip(whole, gate, strict=True)
        if look.phase in (Phase.PREPARING, Phase.COPYING, Phase.VERIFYING)
    }
    assert differing == {3}
    assert {b.eta_seconds for _, look, b in gate if look.phase is Phase.WAITING} == {0.0}


def copying(forecast: Forecast, seconds: range, **more: Any) -> Outlook:
    for second in seconds:
        found = forecast.observe(
            second, seen(Phase.COPYING, **({"rows_copied": 50_000 * second} | more)), Phase.COMPLETE
        )
    return found


def test_a_pause_says_so_and_counts_for_nothing() -> None:
    forecast = Forecast([], TABLE)
    before = copying(forecast, range(40))
    paused = copying(forecast, range(40, 400), is_paused=True, rows_copied=1_950_000)
    assert (paused.eta_seconds, paused.reason) == (None, "paused")
    after = forecast.observe(400, seen(Phase.COPYING, rows_copied=1_950_000), Phase.COMPLETE)
    assert after.eta_seconds == pytest.approx(before.eta_seconds, rel=0.05)


def test_what_does_not_converge_has_no_eta_and_says_why() -> None:
    forecast = Forecast([], TABLE)
    copying(forecast, range(40))
    stalled = {"rows_copied": 1_950_000, "throttled": "apply lag 9.0 s", "lag_seconds": 9.0}
    moment = copying(forecast, range(40, 50), **stalled, converging=False)
    assert moment.eta_seconds is not None
    for_good = copying(forecast, range(50, 90), **stalled, converging=False)
    assert (for_good.eta_seconds, for_good.reason) == (None, LOSING)
    reading = copying(forecast, range(90, 91), **stalled)
    assert (reading.eta_seconds, reading.reason) == (None, "how much there is to apply is not known yet")
    gaining = copying(forecast, range(91, 92), **stalled, converging=True, apply_eta_seconds=500.0)
    assert gaining.eta_seconds is not None
    assert gaining.eta_seconds > 500


def test_what_holds_the_gate_is_waited_for() -> None:
    forecast = Forecast([], TABLE)
    for second in range(20):
        look = seen(Phase.WAITING, rows_copied=ROWS, waiting_for="connection 8")
        found = forecast.observe(second, look, Phase.COMPLETE)
    assert (found.eta_seconds, found.reason) == (None, "waiting: connection 8")
    forecast.enter(Phase.CUTTING_OVER, 20)
    assert forecast.finished == [], "how long a lock was waited for says nothing about another run"


def test_what_is_alike_counts_most() -> None:
    def pace(name: str, rate: float, seconds: float, rows: int = ROWS) -> Pace:
        return Pace(part="verifying", source_name=name, units=units(rows, 100.0), seconds=seconds, write_rate=rate)

    past = [pace("s.u", 0.0, 90.0), pace("s.t", 400.0, 60.0), pace("s.t", 0.0, 12.0)]

    def whole(name: str, rate: float) -> float:
        case = Case(source_name=name, units=units(ROWS, 100.0), write_rate=rate)
        return expected(past, Part.VERIFYING, case).seconds * case.units

    assert whole("s.t", 380.0) == pytest.approx(60.0, rel=0.2)
    assert whole("s.u", 0.0) > whole("s.t", 0.0)
    assert expected([], Part.VERIFYING, Case(source_name="s.t", units=1.0)).spread >= 0.7


def test_a_tiny_run_says_little_of_a_large_table() -> None:
    """Ten thousand rows in two seconds, which is what a copy costs without any."""
    tiny = [
        Pace(part=part, source_name="t", units=units(10_000, 100.0), seconds=2.0) for part in ("copying", "verifying")
    ]
    large = Table(name="s.large", rows=ROWS, row_bytes=100.0)
    first, taught = (Forecast(past, large).observe(0.0, seen(Phase.PREPARING), Phase.COMPLETE) for past in ([], tiny))
    assert first.eta_seconds is not None
    assert taught.eta_seconds is not None
    assert taught.eta_seconds < 2 * first.eta_seconds


def test_a_row_total_is_mended_by_what_was_walked() -> None:
    assert total_rows(None, 5, 0.5) is None
    assert total_rows(1_000, 0, 0.0) == 1_000
    assert total_rows(1_000, 2_000, 1.0) == 2_000
    assert total_rows(1_000, 1_000, 0.5) == pytest.approx(1_917, abs=2)
    assert total_rows(1_000, 100, 0.1) == 1_000


def test_a_wrong_total_is_no_reason_for_silence() -> None:
    forecast = Forecast([], replace(TABLE, rows=1_000))
    for second in range(1, 60):
        look = Snapshot(workflow="w", phase=Phase.COPYING, rows_total=1_000, rows_copied=50_000 * second)
        assert forecast.observe(second, look, Phase.COMPLETE).eta_seconds is not None


RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize(("server", "good"), [("mariadb", 0.9), ("mysql", 0.8)])
def test_recorded_runs_are_foretold(server: str, good: float) -> None:
    """Without and with writers, by what the same server did before: `python -m bench.eta`, 3 and 2 million rows.

    Other work on that machine made one run half as long again as the one before, and on MySQL more than that.
    """
    past: list[Pace] = []
    found = []
    for run in replayed.load(RECORDED / f"eta_{server}.json"):
        said, finished = replayed.replay(run, past)
        past, each = finished + past, worth(said, run.whole)
        assert each.unknown <= 0.05, (run.name, each)
        assert each.good > 0.6, (run.name, each)
        found += [each] if run.name.endswith("again") else []
    assert sum(each.good * each.samples for each in found) >= good * sum(each.samples for each in found)
