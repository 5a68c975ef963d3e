"""Attempts at the cut-over: how many of them may fail, and how many may find rows that differ."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.cutover.outcome import Outcome
from vreplication.engine.recheck import Mismatch
from vreplication.errors import BadValue
from vreplication.workflows.online_ddl import cut_over
from vreplication.workflows.online_ddl.switching import Tried

BLOCKED = Tried(outcome=Outcome(is_switched=False, reason="connection 5 holds the table"))
SWITCHED = Tried(outcome=Outcome(is_switched=True, reason=""))


def switch(monkeypatch: pytest.MonkeyPatch, *attempts: Tried | Mismatch) -> int:
    """Attempts come to this, one after the other; how many were made."""
    coming: Iterator[Tried | Mismatch] = iter(attempts)
    numbers = []

    def attempt(at: object, again: object, number: int) -> Tried:
        numbers.append(number)
        found = next(coming)
        if isinstance(found, Mismatch):
            raise found
        return found

    for name in ("at_gate", "since_verified"):
        monkeypatch.setattr(cut_over, name, lambda *_, **__: SimpleNamespace(server=None, row=None, company=(1,)))
    for name in ("hold_at_gate", "is_level"):
        monkeypatch.setattr(cut_over, name, lambda *_, **__: True)
    monkeypatch.setattr(cut_over, "cut_over", attempt)
    monkeypatch.setattr(cut_over, "Ends", SimpleNamespace(on=lambda _: None))
    monkeypatch.setattr(cut_over.recheck, "vouches", lambda *_: True)
    monkeypatch.setattr(cut_over.retrying, "pause", lambda *_: None)
    driver: Any = SimpleNamespace(workflow="w", session=None, notify=lambda _: None)
    spark: Any = None
    cut_over.switch(driver, spark, is_manual=False)
    return len(numbers)


def test_attempts_that_were_blocked_are_not_counted_as_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is in use all night, and one row that differs in the morning: it is compared again."""
    assert switch(monkeypatch, *[BLOCKED] * 500, Mismatch("1 rows differ"), SWITCHED) == 502


def test_nothing_is_tried_when_the_window_has_closed_since_the_gate_was_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """While keys were compared, which takes minutes on a busy table: the switch came behind its window."""
    tried: list[object] = []
    company = SimpleNamespace(meet=lambda *_: tried.append(1))
    for is_open, attempts in ((True, 1), (False, 0)):
        tried.clear()
        at: Any = SimpleNamespace(
            driver=SimpleNamespace(workflow="w"), company=company, needs_release=True, is_released=lambda o=is_open: o
        )
        again: Any = None
        assert cut_over.cut_over(at, again, 1) is None
        assert len(tried) == attempts


def test_rows_that_differ_again_and_again_end_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadValue, match="keeps differing"):
        switch(monkeypatch, *[Mismatch("1 rows differ")] * 6)
