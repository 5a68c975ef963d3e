"""What an ordinary run leaves to `make every`, for tests that would do it again in another way.

What must stay true: with VREPLICATION_EVERY_CASE=1 nothing is left out.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

VARIABLE = "VREPLICATION_EVERY_CASE"
_TESTS = Path(__file__).parents[1]
SELDOM = frozenset((_TESTS / "seldom.txt").read_text().splitlines())
"""Ids of single cases that are as seldom as what is marked so."""


def is_every() -> bool:
    return bool(os.environ.get(VARIABLE))


def is_left_out(test: Callable[..., object], case: str) -> bool:
    """True for a case that is listed, unless every one is wanted. case: its id."""
    file = Path(inspect.getfile(test)).relative_to(_TESTS.parent).as_posix()
    return not is_every() and f"{file}::{getattr(test, '__name__', '')}[{case}]" in SELDOM


def examples(ordinary: int, every: int) -> int:
    """How many cases of a property are drawn."""
    return every if is_every() else ordinary
