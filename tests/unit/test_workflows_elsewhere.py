"""Catch-up that another process looks after, as a stage watches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace

import pytest

from vreplication.engine import child
from vreplication.engine.child import CatchUpAway, Elsewhere
from vreplication.mysql.session import ConnectionLost
from vreplication.mysql.url import SourceUrl

URL = SourceUrl(host="h", port=1, user="u", password="p", database="d")
PATIENCE = 6.0


class Source:
    """A server at a time of ours: there or away, with or without catch-up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.is_there, self.is_alive = 100.0, True, True
        self.failure: dict[str, object] | None = None
        monkeypatch.setattr(child, "SYSTEM", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(child, "connect", self.connect)
        monkeypatch.setattr(child.lease, "is_alive", lambda *_: self.is_alive)
        monkeypatch.setattr(child.journal, "latest", lambda *_: self.failure)
        monkeypatch.setattr(child.lease, "taken_at", lambda *_: datetime(2026, 11, 4, 12))

    @contextmanager
    def connect(self, url: SourceUrl) -> Iterator[None]:
        if not self.is_there:
            self.now += 0.5
            raise ConnectionLost("The connection to the server was lost.")
        yield

    def watched(self, catch_up: Elsewhere, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            catch_up.keep_alive()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    return Source(monkeypatch)


def test_it_has_all_its_time_again_when_the_server_is_back(source: Source) -> None:
    catch_up = Elsewhere(URL, "w", PATIENCE)
    source.is_there = source.is_alive = False
    source.watched(catch_up, 60)
    source.is_there = True
    source.watched(catch_up, int(PATIENCE))
    with pytest.raises(CatchUpAway):
        source.watched(catch_up, 2)


def test_it_is_given_up_where_the_server_answers(source: Source) -> None:
    catch_up = Elsewhere(URL, "w", PATIENCE)
    source.watched(catch_up, 60)
    source.is_alive = False
    source.watched(catch_up, int(PATIENCE) - 1)
    with pytest.raises(CatchUpAway):
        source.watched(catch_up, 3)


@pytest.mark.parametrize(("hour", "is_told"), [(11, False), (13, True)])
def test_a_failure_is_told_that_came_after_catch_up_began(source: Source, hour: int, is_told: bool) -> None:
    """One from before is over: somebody has caught up since."""
    source.failure = {"at": datetime(2026, 11, 4, hour), "details": "the disk was full"}
    source.is_alive = False
    with pytest.raises(CatchUpAway) as caught:
        source.watched(Elsewhere(URL, "w", PATIENCE), 9)
    assert ("the disk was full" in str(caught.value)) is is_told


def test_a_server_that_is_away_does_not_keep_us_from_ending(source: Source) -> None:
    source.is_there = False
    Elsewhere(URL, "w", PATIENCE).end()
