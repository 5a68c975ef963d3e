"""What an ordinary run leaves out, and that nothing is left out where every case is wanted."""

from __future__ import annotations

import pytest

from tests.support import every_case

LISTED = "tests/unit/test_every_case.py::test_what_is_listed_is_left_out[a, b]"


def test_what_is_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_case, "SELDOM", frozenset([LISTED]))
    monkeypatch.delenv(every_case.VARIABLE, raising=False)
    assert every_case.is_left_out(test_what_is_listed_is_left_out, "a, b")
    assert not every_case.is_left_out(test_what_is_listed_is_left_out, "a")
    assert every_case.examples(1, 2) == 1


def test_nothing_is_where_every_case_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_case, "SELDOM", frozenset([LISTED]))
    monkeypatch.setenv(every_case.VARIABLE, "1")
    assert not every_case.is_left_out(test_what_is_listed_is_left_out, "a, b")
    assert every_case.examples(1, 2) == 2
