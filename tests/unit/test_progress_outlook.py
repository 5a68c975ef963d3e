"""Points of the past put together, and what they say about an ETA; no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vreplication.phases import Phase
from vreplication.progress.outlook import eta_range, said_before
from vreplication.progress.snapshot import Snapshot
from vreplication.state.history import DAY, HOUR, MINUTE, SLOT_SECONDS, TEN_MINUTES, Point, thinned

NOW = 350_000_000
SPANS = st.integers(1, 40 * DAY)


def point(slot: int, rows: int = 0, **more: Any) -> Point:
    return Point(slot=slot, phase="copying", rows_copied=rows, **more)


def test_a_month_stays_at_some_thousand_points() -> None:
    kept: list[Point] = []
    for now in range(NOW, NOW + 30 * DAY, DAY):
        kept = thinned([*kept, *(point(slot) for slot in range(now - DAY, now))], now)
    assert len(kept) < 6_500
    assert [p.slot for p in kept if p.slot >= now - HOUR] == list(range(now - HOUR, now))


@given(st.lists(st.tuples(SPANS, st.none() | st.integers(0, 9), st.booleans()), max_size=60))
def test_the_worst_stays_and_nothing_changes_twice(drawn: list[tuple[int, int | None, bool]]) -> None:
    found = {NOW - ago: (lag, held) for ago, lag, held in drawn}
    points = [
        point(slot, slot, lag_seconds=lag, throttled="behind" if held else None)
        for slot, (lag, held) in sorted(found.items())
    ]
    once = thinned(points, NOW)
    assert thinned(once, NOW) == once
    assert [p.slot for p in once] == sorted({p.slot for p in once})
    lags = [p.lag_seconds for p in points if p.lag_seconds is not None]
    assert max((p.lag_seconds for p in once if p.lag_seconds is not None), default=None) == max(lags, default=None)
    assert any(p.throttled for p in once) == any(p.throttled for p in points)
    assert [p.rows_copied for p in once][-1:] == [p.rows_copied for p in points][-1:]


def test_older_points_are_put_together_by_the_minute_and_by_ten() -> None:
    start = (NOW - 2 * DAY) // TEN_MINUTES * TEN_MINUTES
    old = [point(start + n, rows=n, rows_per_second=float(n)) for n in range(TEN_MINUTES)]
    [one] = thinned(old, NOW)
    assert (one.slot, one.rows_copied, one.rows_per_second) == (start, TEN_MINUTES - 1, (TEN_MINUTES - 1) / 2)
    begin = (NOW - 2 * HOUR) // MINUTE * MINUTE
    assert [p.slot for p in thinned([point(begin + n) for n in range(2 * MINUTE)], NOW)] == [begin, begin + MINUTE]


def seen(**more: Any) -> Snapshot:
    given = {"rows_copied": 6_000, "rows_total": 12_000, "copy_eta_seconds": 600.0, "apply_eta_seconds": 0.0}
    return Snapshot(workflow="w", phase=Phase.COPYING, **(given | more))


def steady(rate: float, slots: int) -> list[Point]:
    return [point(NOW - n, round(6_000 - n * SLOT_SECONDS * rate)) for n in range(slots, -1, -1)]


def test_a_steady_copy_has_a_narrow_range() -> None:
    found = eta_range(seen(), steady(10, 130))
    assert found is not None
    assert [round(x) for x in found] == [600, 600]


def test_best_and_worst_minutes_make_the_range() -> None:
    """Ten rows a second for ten minutes, but five in the last one."""
    points = steady(10, 130)
    slow = [point(p.slot, p.rows_copied if p.slot <= NOW - MINUTE else points[-MINUTE - 1].rows_copied +
                  (p.slot - NOW + MINUTE) * 25) for p in points]  # fmt: skip
    low, high = eta_range(seen(rows_copied=slow[-1].rows_copied), slow) or (0, 0)
    assert round(high) == 1_260
    assert low == 600
    assert eta_range(seen(apply_eta_seconds=900.0), points) == (900.0, 900.0)


def test_no_range_where_nothing_is_known() -> None:
    assert eta_range(seen(), []) is None
    assert eta_range(seen(), steady(10, MINUTE - 3)) is None
    assert eta_range(seen(), steady(0, 130)) is None
    assert eta_range(seen(copy_eta_seconds=None), steady(10, 130)) is None


def test_what_was_said_ten_minutes_ago() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    points = [point(NOW - n, eta_at=at + timedelta(seconds=n)) for n in range(200, -1, -1)]
    said = said_before(points)
    assert said is not None
    assert (said.at, said.seconds_ago) == (at + timedelta(seconds=TEN_MINUTES), 600)
    young = said_before(points[-20:])
    assert young is not None
    assert young.seconds_ago == 19 * SLOT_SECONDS
    assert said_before(points[-5:]) is None
    assert said_before([]) is None
