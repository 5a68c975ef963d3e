"""Tables that are switched together: a thread drives each, and at the cut-over one of these acts for all.

What must stay true: nothing is tried before all of them stand here at one moment; while one acts nobody else touches
his own driver; what one table fails by is told to that one, and the others end because of it and say so; what has been
switched is nobody's to undo.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from vreplication.engine.result import Result
from vreplication.errors import Cancelled, Terminal

M = TypeVar("M")
T = TypeVar("T")
_STAND_SECONDS = 0.5
"""So long one stands here before it looks again whether it may."""


class Together(Generic[M, T]):
    """M: what stands for a table while others act for it. T: what an attempt has come to for one table.

    tables: names by workflow. A table alone is together with itself.
    """

    def __init__(self, tables: Mapping[str, str], group: str = "") -> None:
        self._tables, self._group = dict(tables), group
        # By who acts it is taken again, in the checks that belong to an attempt.
        self._changed = threading.Condition(threading.RLock())
        self._order = list(tables)
        self._ready: set[str] = set()
        self._standing: dict[str, M] = {}
        self._ends: dict[str, T | Exception] = {}
        self._lost: Callable[[], Terminal] | None = None
        self._is_switched = False

    @classmethod
    def alone(cls, workflow: str) -> Together[M, T]:
        return cls({workflow: workflow})

    def __len__(self) -> int:
        return len(self._tables)

    # Before the cut-over.

    def tell(self, workflow: str, *, is_ready: bool) -> None:
        """Its own gate is open, or not any more."""
        with self._changed:
            (self._ready.add if is_ready else self._ready.discard)(workflow)

    def missing(self, workflow: str) -> tuple[str, ...]:
        """The other tables whose gates are not open."""
        with self._changed:
            return tuple(name for each, name in self._tables.items() if each not in {workflow, *self._ready})

    # The cut-over.

    def meet(
        self,
        workflow: str,
        member: M,
        act: Callable[[Sequence[M]], Mapping[str, T | Exception]],
        may_stay: Callable[[], bool],
    ) -> T | None:
        """What an attempt has come to for this table, or what it raised for it.

        act: of the last who comes, with all of them in the order in which they are to be locked. may_stay: asked now
        and then, while nobody acts; False ends it with None.
        """
        while True:
            with self._changed:
                self._standing[workflow] = member
                if len(self._standing) == len(self._tables):
                    self._act(act)
                self._changed.wait_for(lambda: workflow in self._ends, _STAND_SECONDS)
                if workflow in self._ends:
                    return self._end(workflow)
                # Before it looks: whoever acts for all uses the drivers of those that stand here.
                del self._standing[workflow]
            if not may_stay():
                return None

    def _act(self, act: Callable[[Sequence[M]], Mapping[str, T | Exception]]) -> None:
        """The others wait meanwhile: they cannot go on before this has let go."""
        self._ends.update(act([self._standing[each] for each in self._order]))
        self._standing.clear()
        self._changed.notify_all()

    def _end(self, workflow: str) -> T:
        found = self._ends.pop(workflow)
        if isinstance(found, Exception):
            self._ready.discard(workflow)
            raise found
        return found

    def lock_first(self, workflow: str) -> None:
        """Next time: who made this one wait may have been waiting itself, for one that was locked before."""
        self._order.sort(key=lambda each: each != workflow)

    def note_switched(self) -> None:
        with self._changed:
            self._is_switched = True

    # When one of them ends.

    def note_end(self, result: Result) -> None:
        """A table that ends without having been switched ends the others."""
        with self._changed:
            if self._is_switched or self._lost or result.event in ("complete", "interrupted"):
                return
            self._lost = self._why(result)

    def _why(self, result: Result) -> Callable[[], Terminal]:
        table = self._tables[result.workflow]
        none = f"so none of the tables of workflow {self._group} is switched"
        if result.event == "cancelled":
            return lambda: Cancelled(f"{table} was cancelled, {none}.")
        return lambda: Terminal(f"The migration of {table} failed, {none}: {result.reason or 'no reason is known.'}")

    def check(self) -> None:
        """Raises when another one has ended: Cancelled, or Terminal."""
        if self._lost is not None and not self._is_switched:
            raise self._lost()
