"""Starts a component of Airflow again that has ended by itself.

What must stay true: what it had started ends before it starts again; one that ends again and again is given up, and
that is told once; a pause is waited for between two looks, so that nobody who wants an end has to wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

PAUSES = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Before each start; after the last one it is given up."""
QUIET_SECONDS = 600.0
"""After so long what happened before does not count."""


class Kept(Protocol):
    def ended(self) -> dict[str, int]:
        """Component and exit code of each that has ended by itself."""

    def restart(self, component: str) -> None: ...


@dataclass(slots=True)
class Keeper:
    """tell: one line for the log."""

    kept: Kept
    tell: Callable[[str], None]
    _starts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _due: dict[str, float] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)

    def look(self, at: float) -> None:
        """at: now, by a clock that never goes back."""
        for component, code in self.kept.ended().items():
            if component not in self._given_up:
                self._look_at(component, code, at)

    def _look_at(self, component: str, code: int, at: float) -> None:
        if component not in self._due:
            self._plan(component, code, at)
        elif at >= self._due[component]:
            del self._due[component]
            self._starts[component].append(at)
            self.tell(f"{component} is started again")
            self.kept.restart(component)

    def _plan(self, component: str, code: int, at: float) -> None:
        recent = [start for start in self._starts[component] if at - start < QUIET_SECONDS]
        self._starts[component] = recent
        if len(recent) >= len(PAUSES):
            self._given_up.add(component)
            self.tell(f"{component} ended with {code} for the {len(recent) + 1}th time; it is given up")
            return
        self._due[component] = at + PAUSES[len(recent)]
        self.tell(f"{component} ended with {code}; it is started again in {PAUSES[len(recent)]:.0f} seconds")
