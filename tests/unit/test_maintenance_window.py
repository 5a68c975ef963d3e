"""What a maintenance window does about the release, as time goes on."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from vreplication.engine import maintenance
from vreplication.engine.maintenance import Step
from vreplication.errors import Refused
from vreplication.planning.spec import Spec, make_spec
from vreplication.planning.window import Window

TEXT = "Sat 02:00-04:00 UTC"
WINDOW, BY = Window.parse(TEXT), maintenance.named(TEXT)
BEFORE, OPEN, AFTER = (datetime(2026, 11, 21, hour, 30, tzinfo=UTC) for hour in (1, 3, 4))
NEXT = datetime(2026, 11, 28, 2, 0, tzinfo=UTC)


def test_released_while_it_is_open_taken_back_when_it_is_closed_and_released_again() -> None:
    told: list[Step] = []
    by: str | None = None
    for moment in (BEFORE, OPEN, OPEN, AFTER, AFTER, NEXT):
        step = maintenance.due(WINDOW, moment, by, is_paused=False)
        by = {Step.RELEASE: BY, Step.WITHDRAW: None}.get(step, by)
        told.append(step)
    assert told == [Step.NONE, Step.RELEASE, Step.NONE, Step.WITHDRAW, Step.NONE, Step.RELEASE]


@pytest.mark.parametrize("moment", [BEFORE, OPEN, AFTER])
def test_a_persons_release_stays(moment: datetime) -> None:
    assert maintenance.due(WINDOW, moment, "ann (Airflow)", is_paused=False) is Step.NONE


def test_a_paused_workflow_is_not_released_and_what_was_is_taken_back() -> None:
    assert maintenance.due(WINDOW, OPEN, None, is_paused=True) is Step.NONE
    assert maintenance.due(WINDOW, AFTER, BY, is_paused=True) is Step.WITHDRAW


def test_a_window_of_another_text_is_one_too() -> None:
    """The run was triggered again with another window: the old one's release is worth no more than its own."""
    assert maintenance.due(WINDOW, AFTER, maintenance.named("Sun 01:00-02:00 UTC"), is_paused=False) is Step.WITHDRAW


def test_a_spec_has_a_window_and_older_ones_have_none() -> None:
    known = {"table": "t", "alter": "ENGINE=InnoDB"}
    asked = make_spec(**known, cutover="manual", cutover_window=TEXT)
    assert Spec.model_validate(asked.model_dump(mode="json")) == asked
    assert (Spec.model_validate(known).cutover_window, Spec.model_validate(known).needs_release) == (None, False)
    assert make_spec(**known, cutover_window=TEXT).needs_release
    with pytest.raises(Refused, match="is no window"):
        make_spec(**known, cutover_window="Someday")
