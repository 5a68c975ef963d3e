"""Points of the past put together, and what they say about an ETA; no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vreplication.progress.outlook import said_before
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
