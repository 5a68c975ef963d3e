"""A snapshot's own sums: the overall ETA, its age, the keys of its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from vreplication.phases import Phase
from vreplication.progress import snapshot as snapshots
from vreplication.progress.snapshot import STALE_SECONDS, Snapshot

KEYS = [
    "event", "workflow", "phase", "paused", "percent", "rows_copied", "rows_total", "rows_total_exact",
    "copy_eta_seconds", "apply_eta_seconds", "eta_seconds", "eta_low_seconds", "eta_high_seconds", "eta_of",
    "eta_reason", "lag_seconds", "backlog", "converging", "throttled", "throttle_reasons",
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
        (Phase.PREPARING, {"foretold_seconds": 60.0, "eta_of": Phase.COMPLETE}, 60.0),
        (Phase.COPYING, {"foretold_seconds": 60.0, "eta_of": Phase.WAITING}, 60.0),
        (Phase.COPYING, {"foretold_seconds": 60.0, "is_paused": True}, None),
        (Phase.COPYING, {"copy_eta_seconds": 60.0, "apply_eta_seconds": 5.0}, None),
        (Phase.VERIFYING, {"foretold_seconds": 3.0, "eta_of": Phase.COMPLETE}, 3.0),
        (Phase.WAITING, {"foretold_seconds": 3.0, "eta_of": Phase.COMPLETE}, 3.0),
        (Phase.WAITING, {"eta_of": Phase.WAITING}, 0.0),
        (Phase.WAITING, {"eta_of": Phase.COMPLETE}, None),
        (Phase.FAILED, {"foretold_seconds": 3.0}, None),
        (Phase.COMPLETE, {}, 0.0),
    ],
)
def test_eta_is_of_the_end_or_of_the_gate(phase: Phase, fields: Any, eta: float | None) -> None:
    assert snapshot(phase, **fields).eta_seconds == eta


def test_an_eta_counts_down_and_goes_when_it_is_old() -> None:
    fresh = snapshot(foretold_seconds=4.0, eta_low_seconds=1.0, eta_high_seconds=9.0, updated_seconds_ago=0.5)
    later = fresh.aged(3.0)
    assert (later.eta_seconds, later.eta_low_seconds, later.eta_high_seconds) == (1.0, 0.0, 6.0)
    assert fresh.aged(4.5).eta_seconds == 0.0
    old = fresh.aged(STALE_SECONDS + 1)
    assert (old.eta_seconds, old.eta_low_seconds, old.eta_high_seconds) == (None, None, None)


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


@pytest.mark.parametrize(
    ("phase", "said", "throttled", "behind"),
    [
        (Phase.COPYING, "by --max-load: A is 2, more than 1", "by --max-load: A is 2, more than 1", None),
        (Phase.VERIFYING, "by --max-load: A is 2, more than 1", "by --max-load: A is 2, more than 1", None),
        (Phase.VERIFYING, "apply lag 9.0 s", None, "lag 9.0 s"),
        (Phase.WAITING, "by --max-load: A is 2, more than 1", None, None),
    ],
)
def test_what_holds_back_is_named_where_it_does(
    phase: Phase, said: str, throttled: str | None, behind: str | None
) -> None:
    row = dict.fromkeys((*snapshots._OF_CATCH_UP, "converging")) | {"throttled": said}
    found = snapshots._of_catch_up(row, phase, is_fresh=True)
    assert (found["throttled"], found["behind"]) == (throttled, behind)
