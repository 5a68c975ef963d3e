"""When a feed commits early: soon enough for the interval that was asked for, and with time for the log in between."""

from __future__ import annotations

import pytest

from vreplication.feed import due
from vreplication.feed.due import Due


@pytest.mark.parametrize(
    ("interval", "commit", "gap"),
    [
        pytest.param(0.2, 0.01, 0.03, id="a quarter of the time"),
        pytest.param(0.2, 0.03, 0.09, id="of slow commits too"),
        pytest.param(0.05, 0.01, 0.01, id="half of it where the interval is short"),
        pytest.param(0.05, 0.02, 0.02, id="the same of slow ones"),
    ],
)
def test_an_early_commit_waits_by_the_interval(
    interval: float, commit: float, gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(due.time, "monotonic", lambda: now)
    found = Due(commit_seconds=interval, gap_seconds=0.0)
    for _ in range(100):
        now += 1
        found.plan(now - commit)
    assert found.early_at - now == pytest.approx(gap, rel=0.01)
