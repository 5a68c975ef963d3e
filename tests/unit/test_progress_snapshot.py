"""A snapshot's own sums: the overall ETA, its age, the keys of its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from vreplication.phases import Phase
from vreplication.progress.snapshot import STALE_SECONDS, Snapshot

KEYS = [
    "event", "workflow", "phase", "paused", "percent", "rows_copied", "rows_total", "rows_total_exact",
    "copy_eta_seconds", "apply_eta_seconds", "eta_seconds", "lag_seconds", "backlog", "converging", "throttled",
    "shadow_table",
]  # fmt: skip


def snapshot(phase: Phase = Phase.COPYING, **fields: Any) -> Snapshot:
    return Snapshot(workflow="t-1", phase=phase, **fields)


def test_json_has_the_promised_keys_and_unknown_is_null() -> None:
    line = snapshot(Phase.PLANNING).as_json()
    assert list(line) == KEYS
    known = {"event": "progress", "workflow": "t-1", "phase": "planning", "paused": False}
    known |= {"rows_copied": 0, "rows_total_exact": False}
    assert line == dict.fromkeys(KEYS) | known


def test_status_json_adds_and_never_changes() -> None:
    one = snapshot(percent=12.5, lag_seconds=0.5)
    assert one.as_json().items() <= one.as_status_json().items()


@pytest.mark.parametrize(
    ("phase", "fields", "eta"),
    [
        (Phase.COPYING, {"copy_eta_seconds": 60.0, "apply_eta_seconds": 5.0}, 60.0),
        (Phase.COPYING, {"copy_eta_seconds": 6.0, "apply_eta_seconds": 50.0}, 50.0),
        (Phase.COPYING, {"copy_eta_seconds": 60.0}, None),
        (Phase.COPYING, {"apply_eta_seconds": 60.0}, None),
        (Phase.COPYING, {"copy_eta_seconds": 60.0, "apply_eta_seconds": 5.0, "is_paused": True}, None),
        (Phase.CATCHING_UP, {"apply_eta_seconds": 5.0}, 5.0),
        (Phase.VERIFYING, {"apply_eta_seconds": 0.0, "copy_eta_seconds": 0.0}, None),
        (Phase.FAILED, {"apply_eta_seconds": 0.0, "copy_eta_seconds": 0.0}, None),
        (Phase.COMPLETE, {}, 0.0),
    ],
)
def test_eta_is_the_longer_part_and_unknown_when_a_part_is(phase: Phase, fields: Any, eta: float | None) -> None:
    assert snapshot(phase, **fields).eta_seconds == eta


def test_an_old_snapshot_forgets_what_was_about_then() -> None:
    fresh = snapshot(lag_seconds=0.4, backlog=3, converging=True, rows_copied=7, updated_seconds_ago=0.5)
    assert fresh.aged(1.0).lag_seconds == 0.4
    old = fresh.aged(STALE_SECONDS + 1)
    assert (old.lag_seconds, old.backlog, old.converging, old.rows_copied) == (None, None, None, 7)
    assert old.updated_seconds_ago == pytest.approx(STALE_SECONDS + 1.5)
    assert old.is_silent


def test_an_ended_workflow_is_never_silent_nor_ages() -> None:
    ended = snapshot(Phase.COMPLETE, updated_seconds_ago=1e6)
    assert not ended.is_silent
    assert ended.aged(100) is ended
