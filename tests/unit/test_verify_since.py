"""Rounds before the cut-over: when what is left is small enough to begin it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vreplication.verify.since import LOCKED_KEYS, is_small

ROUND_SECONDS, KEY_SECONDS = 0.5, 80e-6
"""Two markers; reading a key on both sides (MySQL, two cores, measured)."""


def rounds_until_small(rate: float, waiting: float) -> tuple[int, float]:
    """How many rounds it takes beside so many writes a second, and what is left then."""
    before: int | None = None
    for number in range(1, 31):
        waiting = rate * (ROUND_SECONDS + KEY_SECONDS * waiting)
        if is_small(int(waiting), before, LOCKED_KEYS):
            return number, waiting
        before = int(waiting)
    return 31, waiting


@given(st.floats(0, 5_500), st.floats(0, 100_000))
def test_a_busy_table_comes_to_its_cut_over(rate: float, waiting: float) -> None:
    """With room under the lock for what is written during half a second more."""
    number, left = rounds_until_small(rate, waiting)
    assert number <= 30
    assert left + rate / 2 <= LOCKED_KEYS


def test_rounds_go_on_while_they_become_shorter() -> None:
    assert not is_small(4_000, None, LOCKED_KEYS)
    assert not is_small(2_500, 4_000, LOCKED_KEYS)
    assert is_small(1_900, 2_500, LOCKED_KEYS)
    assert is_small(4_000, 4_100, LOCKED_KEYS)
    assert not is_small(LOCKED_KEYS // 2 + 1, LOCKED_KEYS // 2, LOCKED_KEYS)
    assert not is_small(1_900, 1_900, 1_000)
