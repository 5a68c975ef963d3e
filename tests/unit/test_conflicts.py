"""Rows that conflict under a new unique key: for how long they are copied again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import BadValue
from vreplication.workflows.online_ddl import conflicts

KEY = SimpleNamespace(key="1", bound=None)


def resolve(monkeypatch: pytest.MonkeyPatch, rounds: int, seconds: float) -> int:
    """So many rounds have conflicts, and each takes so long; how many were copied again."""
    now, done = [0.0], [0]

    def copy_again(_: object) -> None:
        now[0] += seconds
        done[0] += 1

    monkeypatch.setattr(conflicts, "SYSTEM", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(conflicts, "since", SimpleNamespace(add_dirty=lambda *_: None))
    found = SimpleNamespace(some=lambda *_: [KEY] if done[0] < rounds else [], forget=lambda *_: None)
    monkeypatch.setattr(conflicts, "dirty", found)
    monkeypatch.setattr(conflicts, "_refuse_duplicates", lambda *_: None)
    none: Any = SimpleNamespace(
        session=None, workflow="w", mapping=None, report=lambda **_: None, notify=lambda _: None
    )
    conflicts.resolve(none, none, copy_again)
    return done[0]


def test_conflicts_that_never_end_end_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadValue, match="keep conflicting"):
        resolve(monkeypatch, rounds=10_000, seconds=1.0)


def test_a_round_that_waits_for_a_person_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused for a night."""
    assert resolve(monkeypatch, rounds=2, seconds=36_000.0) == 2
