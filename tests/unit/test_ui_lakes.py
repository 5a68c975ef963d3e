"""What the page and Prometheus say of lakes, out of what runs have told of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vreplication.progress.metrics import exposition
from vreplication.ui import Run
from vreplication.ui.lakes import Lake, newest, samples, shown

NOW = 1_800_000_000.0
AHEAD = "times of the log are ahead of the clock"
TOLD = {
    "directory": "/data/lake", "topic": "shop", "waiting_for": None, "at": NOW - 2, "manifest": 7,
    "watermark_micros": int((NOW - 12) * 1e6), "generation": 2, "partitions": 4, "tables": 3, "files": 9,
    "changes": 12_345, "nbytes": 3 << 20,
}  # fmt: skip


def lake(state: str = "running", run: str = "r", **told: Any) -> Lake:
    return Lake(run=Run("lake", run), state=state, told={**TOLD, **told})


@pytest.mark.parametrize(
    ("found", "state", "tone", "lag", "expected"),
    [
        (lake(), "filled", "moving", "12 s", "Nothing: it goes on"),
        (lake(waiting_for="No broker answers."), "waits", "held", "12 s", "Nothing: it goes on"),
        (lake(at=NOW - 60), "no sign of life", "held", "not being filled", "Nothing: Airflow tries"),
        (lake(state="failed"), "failed", "failed", "not being filled", "Clear the task"),
        (lake(state="success"), "ended", "ended", "not being filled", "Nothing. To go on, clear"),
        (lake(watermark_micros=0), "filled", "moving", "not known yet", "Nothing: it goes on"),
        (lake(watermark_micros=2**51), "filled", "moving", f"not known: {AHEAD}", "Nothing: it goes on"),
        (lake(state="failed", watermark_micros=2**51), "failed", "failed", "not being filled", "Clear the task"),
    ],
)
def test_how_a_lake_stands(found: Lake, state: str, tone: str, lag: str, expected: str) -> None:
    said = shown(found, NOW)
    assert (said["state"], said["tone"], said["lag"]) == (state, tone, lag)
    assert said["expected"].startswith(expected)


def test_the_newest_run_of_a_directory_counts_and_one_that_has_told_nothing_is_not_there() -> None:
    others = [Lake(run=Run("lake", "new"), state="running"), lake(run="b"), lake(run="a", manifest=3)]
    found = newest([*others, lake(run="c", directory="/data/a")])
    assert [each.run.run_id for each in found] == ["c", "b"]
    page = shown(lake(run="manual__2026-11-25T00:00:00+00:00"), NOW)["page"]
    assert page == "runs/lake/manual__2026-11-25T00%3A00%3A00%2B00%3A00"


def test_what_is_not_known_has_no_sample() -> None:
    text = exposition(samples([lake(state="failed", files=None)], NOW))
    labels = 'directory="/data/lake",topic="shop"'
    assert f"vreplication_lake_up{{{labels}}} 0.0\n" in text
    (resolved,) = re.findall(f"vreplication_lake_resolved_timestamp_seconds{{{labels}}} (.*)", text)
    assert float(resolved) == NOW - 12
    assert "lake_files" not in text
