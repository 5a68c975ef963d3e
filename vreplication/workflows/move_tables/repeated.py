"""Of a verification that is repeated at the gate: whether it is still wanted.

What must stay true: one is cut short only while the verification before it counts, and before anything was found wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vreplication.clock import SYSTEM

_ASK_SECONDS = 1.0


class Enough(Exception):
    """It need not come to its end: the verification before it counts."""


@dataclass(slots=True, kw_only=True)
class Asking:
    """Of one table. may_end: the verification before it counts."""

    is_enough: Callable[[], bool]
    may_end: bool
    asked: float = 0.0

    def ask(self) -> None:
        """Raises Enough, and what `is_enough` raises."""
        if not self.may_end or SYSTEM.monotonic() - self.asked < _ASK_SECONDS:
            return
        self.asked = SYSTEM.monotonic()
        if self.is_enough():
            raise Enough
