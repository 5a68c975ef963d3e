"""Visits every state that a model can reach, breadth first, and says the shortest way to a state that is wrong.

What must stay true: states are hashable values and equal only if their futures are; nothing is drawn by chance; `whole`
is said only when no state was left out. A state from which nothing can happen must be an end that the model knows, for
a model that stands still proves nothing.
"""

from __future__ import annotations

import contextlib
import gc
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
Step = tuple[str, S]
"""What happens, in words, and the state after it."""


class Model(Protocol[S]):
    """Actors' actions, each a function from a state to the steps it allows there."""

    @property
    def actions(self) -> Sequence[Callable[[S], Iterable[Step[S]]]]: ...

    def initial(self) -> Iterable[S]: ...

    def wrong(self, state: S) -> str | None:
        """What is wrong with a state, in words."""

    def is_end(self, state: S) -> bool:
        """True where nothing more has to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"   → {self.what}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an exploration came to. fired: the actions that happened at least once."""

    states: int
    steps: int
    depth: int
    seconds: float
    is_whole: bool
    fault: Fault | None
    fired: frozenset[str]


def name_of(action: Callable[..., object]) -> str:
    return str(getattr(getattr(action, "func", action), "__name__", action))


def never(actions: Iterable[Callable[..., object]], explorations: Iterable[Found]) -> set[str]:
    """Which of the actions happen in none of them. No more of these are looked at than are needed."""
    left = {name_of(action) for action in actions}
    for found in explorations:
        left -= found.fired
        if not left:
            break
    return left


class Explorer(Generic[S]):
    """One exploration. `limit`: the most states to keep; None: all there are."""

    def __init__(self, model: Model[S], limit: int | None = None, keeps_steps: bool = False) -> None:
        self._model, self._limit = model, limit
        self._numbers: dict[S, int] = {}
        self._came, self._by = array("q"), array("q")
        self._words: dict[str, int] = {}
        self._fired: set[str] = set()
        self._steps = 0
        self._edges: tuple[array[int], array[int]] | None = (array("q"), array("q")) if keeps_steps else None

    def run(self) -> Found:
        with _no_collecting():
            return self._run()

    def _run(self) -> Found:
        began, depth = time.monotonic(), 0
        fault = self._first_fault(states := self._fresh(self._model.initial()))
        while states and fault is None and not self._is_full:
            states, stuck = self._layer(states)
            fault = self._first_fault(states) or stuck
            depth += bool(states)
        return Found(
            states=len(self._numbers),
            steps=self._steps,
            depth=depth,
            seconds=time.monotonic() - began,
            is_whole=fault is None and not states,
            fault=fault,
            fired=frozenset(self._fired),
        )

    @property
    def _is_full(self) -> bool:
        return self._limit is not None and len(self._numbers) >= self._limit

    def _fresh(self, states: Iterable[S]) -> list[S]:
        return [s for s in states if self._note(s, -1, "")]

    def _note(self, state: S, came: int, words: str) -> bool:
        """True for a state not seen before."""
        number = len(self._numbers)
        if self._numbers.setdefault(state, number) != number:
            return False
        self._came.append(came)
        self._by.append(self._words.setdefault(words, len(self._words)))
        return True

    def _layer(self, states: list[S]) -> tuple[list[S], Fault | None]:
        """All states one step further, and the first of these that has none though it is no end."""
        found: list[S] = []
        stuck: Fault | None = None
        for state in states:
            number = self._numbers[state]
            before = self._steps
            for words, after in self._out_of(state):
                self._steps += 1
                if self._note(after, number, words):
                    found.append(after)
                if self._edges is not None:
                    self._edges[0].append(number)
                    self._edges[1].append(self._numbers[after])
            if self._steps == before and stuck is None and not self._model.is_end(state):
                stuck = Fault(what=f"nothing can happen any more ({state})", trace=self._trace(number))
        return found, stuck

    def _out_of(self, state: S) -> Iterator[Step[S]]:
        for action in self._model.actions:
            has_fired = False
            for step in action(state):
                has_fired = True
                yield step
            if has_fired:
                self._fired.add(name_of(action))

    def _first_fault(self, states: list[S]) -> Fault | None:
        for state in states:
            if what := self._model.wrong(state):
                return Fault(what=what, trace=self._trace(self._numbers[state]))
        return None

    def _trace(self, number: int) -> tuple[str, ...]:
        words, steps = list(self._words), []
        while self._came[number] >= 0:
            steps.append(words[self._by[number]])
            number = self._came[number]
        return tuple(reversed(steps))

    def first_without(self, is_goal: Callable[[S], bool]) -> Fault | None:
        """After `run`: the shortest way to a state from which no goal can be reached any more."""
        assert self._edges is not None
        left = self._without(is_goal)
        if not left:
            return None
        return Fault(what="from here it never ends well", trace=self._trace(min(left)))

    def _without(self, is_goal: Callable[[S], bool]) -> set[int]:
        assert self._edges is not None
        before: dict[int, list[int]] = {}
        for source, to in zip(*self._edges, strict=True):
            before.setdefault(to, []).append(source)
        open_ = [n for s, n in self._numbers.items() if is_goal(s)]
        left = set(range(len(self._numbers))) - set(open_)
        while open_:
            for number in before.get(open_.pop(), ()):
                if number in left:
                    left.discard(number)
                    open_.append(number)
        return left


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """States hold no cycles, and looking for some takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def explore(model: Model[S], limit: int | None = None) -> Found:
    return Explorer(model, limit).run()
