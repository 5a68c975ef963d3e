"""Messages that a receiver refuses: what waits for them, and how often they are sent, by a clock that is set."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.engine import webhooks
from vreplication.engine.webhooks import Deliverer

MINUTE = 60.0


class _Journal:
    """Entries that are open, as the sidecar has them."""

    def __init__(self) -> None:
        self.open: list[int] = []

    def pending(self, _: object, __: object, limit: int, behind: int) -> list[Any]:
        return [SimpleNamespace(id=id) for id in self.open if id > behind][:limit]

    def note(self, _: object, __: object, id: int) -> None:
        self.open.remove(id)

    def begin(self, *_: object) -> str:
        return "source"

    def is_ours(self, *_: object) -> bool:
        return True

    def put_together(self, *_: object) -> None: ...

    def count_pending(self, *_: object) -> int:
        return len(self.open)


class _Sending(Deliverer):
    """A sender whose clock goes on by its pauses alone; `answers`: what the receiver says to an entry, else it takes
    it.
    """

    def __init__(self, journal: _Journal) -> None:
        hook: Any = SimpleNamespace(key="k", host="h")
        super().__init__(hook, None)  # type: ignore[arg-type]
        self.journal, self.answers, self.now = journal, dict[int, int](), 0.0
        self.posts: list[tuple[float, int]] = []
        self._since = 0

    def _post(self, source: str, entry: Any) -> int | None:
        self.posts.append((self.now, entry.id))
        return self.answers.get(entry.id)

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._round(None, "source")  # type: ignore[arg-type]
            self.now += self._pause()

    def times_of(self, id: int) -> list[float]:
        return [at for at, posted in self.posts if posted == id]


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> _Sending:
    journal = _Journal()
    made = _Sending(journal)
    monkeypatch.setattr(webhooks, "webhooks", journal)
    monkeypatch.setattr(webhooks, "SYSTEM", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_one_that_is_refused_slows_no_other(sending: _Sending) -> None:
    """Sent an hour later than it, one took up to a minute to arrive."""
    sending.answers[1] = 400
    sending.journal.open = [1]
    sending.run_for(60 * MINUTE)
    sending.journal.open.append(2)
    written = sending.now
    sending.run_for(MINUTE)
    assert sending.times_of(2) == [written]
    assert sending._pause() == webhooks._PERIOD_SECONDS


def test_what_is_refused_is_tried_again_ever_more_seldom(sending: _Sending) -> None:
    sending.answers[1] = 422
    sending.journal.open = [1]
    sending.run_for(10 * MINUTE)
    times = sending.times_of(1)
    assert times[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert {later - earlier for earlier, later in pairwise(times[7:])} == {60}
    del sending.answers[1]
    sending.run_for(MINUTE)
    assert sending.journal.open == []


def test_one_that_is_refused_does_not_hold_up_the_end(sending: _Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command took its whole five seconds, for as long as such an entry was open."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        sending.now += seconds

    monkeypatch.setattr(webhooks, "time", SimpleNamespace(sleep=sleep))
    sending.answers[1] = 400
    sending.journal.open = [1, 2]
    sending._until = webhooks.END_SECONDS
    sending._closing.set()
    sending._deliver_until_closed(None)  # type: ignore[arg-type]
    assert (slept, sending.posts, sending.journal.open) == ([], [(0, 1), (0, 2)], [1])


def test_a_receiver_that_is_away_is_asked_ever_more_seldom(sending: _Sending) -> None:
    """Also where it has refused one before; and what was refused is not forgotten."""
    sending.answers.update({1: 400, 2: 503})
    sending.journal.open = [1, 2, 3]
    sending.run_for(10 * MINUTE)
    assert len(sending.times_of(2)) < 20
    assert sending.times_of(3) == []
    sending.answers.clear()
    sending.run_for(2 * MINUTE)
    assert sending.journal.open == []


def test_one_that_refuses_all_is_not_asked_for_them_each_second(sending: _Sending) -> None:
    """As one does that knows no such message at all: they would be read from the server again and again."""
    many = range(1, 5 * webhooks._AT_ONCE)
    sending.answers.update(dict.fromkeys(many, 400))
    sending.journal.open = list(many)
    sending.run_for(10 * MINUTE)
    assert sending._pause() == webhooks._LONGEST_PAUSE_SECONDS
