"""How often catch-up begins again, with nobody but itself to look at: what is lost, and what somebody holds."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.changes.watermark import Watermark
from vreplication.engine import replicate
from vreplication.engine.catch_up import Setting, Stop
from vreplication.errors import Transient
from vreplication.mysql.session import LockWait

ROUNDS = 4 * replicate._PATIENCE
STREAM: Any = SimpleNamespace(route=SimpleNamespace(is_across=False))


class _Impatient(Stop):
    def wait(self, seconds: float) -> bool:
        return self.is_set()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the workflow was ended."""
    reasons: list[str] = []
    monkeypatch.setattr(replicate, "_take_lease", lambda of, stop: (None, Watermark()))
    monkeypatch.setattr(replicate, "_give_back", lambda of, ours: None)
    monkeypatch.setattr(replicate, "_note_failure", lambda of, ours, error: reasons.append(str(error)))
    return reasons


def _rounds(monkeypatch: pytest.MonkeyPatch, error: Transient) -> Stop:
    stop, left = _Impatient(threading.Event()), iter(range(ROUNDS))

    def run_round(*_: Any) -> None:
        if next(left, None) is None:
            stop.asked.set()
        raise error

    monkeypatch.setattr(replicate, "run_round", run_round)
    return stop


def test_keys_that_are_being_put_back_are_waited_for(monkeypatch: pytest.MonkeyPatch, noted: list[str]) -> None:
    """Of a killed attempt, with a relative that is in use for hours: the workflow was ended after minutes."""
    stop = _rounds(monkeypatch, LockWait("t__vr_new has foreign keys, so nothing is written to it now."))
    replicate._replicate(STREAM, stop, Setting())
    assert noted == []


def test_what_is_lost_again_and_again_ends_it(monkeypatch: pytest.MonkeyPatch, noted: list[str]) -> None:
    stop = _rounds(monkeypatch, Transient("The connection was lost."))
    with pytest.raises(Transient):
        replicate._replicate(STREAM, stop, Setting())
    assert noted == ["The connection was lost."]
