"""What a waiting command tells its user, and how often."""

from __future__ import annotations

from vreplication.engine.saying import REPEAT_SECONDS, Saying


def test_an_age_that_grows_is_no_news() -> None:
    said: list[str] = []
    clock = [0.0]
    saying = Saying(said.append, now=lambda: clock[0])
    for second in range(10):
        clock[0] = float(second)
        saying.say(f"waiting: connection 7 has run for {second}.5 s")
    assert said == ["waiting: connection 7 has run for 0.5 s"]
    saying.say("waiting: the workflow is paused")
    clock[0] += REPEAT_SECONDS
    saying.say("waiting: the workflow is paused")
    assert len(said) == 3
