"""What is not there for a while is gone; what was missing for two moments, with something else between them, is not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import Terminal, Transient
from vreplication.feed import running
from vreplication.feed.running import Service
from vreplication.feed.topics import Missing

Said = Callable[[Service], Exception]
SAID: dict[str, Said] = {
    "topic": lambda service: Missing("shop"),
    "progress": lambda service: service._lost(),
    "away": lambda service: Transient("The broker does not answer."),
}


def run(monkeypatch: pytest.MonkeyPatch, *told: tuple[int, str]) -> None:
    """Runs of a feed that end so, each at its second; the one behind them ends well."""
    clock, left = SimpleNamespace(monotonic=lambda: clock.now, now=0.0), list(told)

    def run_once(service: Service) -> None:
        if left:
            clock.now, what = left.pop(0)
            raise SAID[what](service)

    monkeypatch.setattr(running, "time", clock)
    monkeypatch.setattr(running, "_PAUSES", (0.0,))
    monkeypatch.setattr(Service, "_run_once", run_once)
    feed: Any = SimpleNamespace(progress_topic="p")
    Service(feed=feed).run()
    assert left == []


@pytest.mark.parametrize("what", ["topic", "progress"])
def test_what_was_missing_before_and_after_an_outage_is_not_gone(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    run(monkeypatch, (100, what), (101, "away"), (140, what))


@pytest.mark.parametrize("what", ["topic", "progress"])
def test_what_stays_away_is_gone(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with pytest.raises(Terminal):
        run(monkeypatch, (100, "away"), (101, what), (120, what), (132, what))
