"""The explorer itself, on models of a few states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.models.explorer import Explorer, explore, never


@dataclass(frozen=True)
class Counter:
    """Counts to `top`, by one or two; some number may be wrong, and above `point` there is no way back."""

    top: int = 5
    bad: int | None = None
    ends: tuple[int, ...] = (5,)

    @property
    def actions(self) -> tuple[object, ...]:
        return (self.one, self.two)

    def one(self, n: int) -> Iterator[tuple[str, int]]:
        if n < self.top:
            yield "one", n + 1

    def two(self, n: int) -> Iterator[tuple[str, int]]:
        if n + 2 <= self.top:
            yield "two", n + 2

    def initial(self) -> list[int]:
        return [0]

    def wrong(self, n: int) -> str | None:
        return f"{n} is bad" if n == self.bad else None

    def is_end(self, n: int) -> bool:
        return n in self.ends


def test_every_state_is_visited_once() -> None:
    found = explore(Counter())
    assert (found.states, found.steps, found.depth, found.is_whole) == (6, 9, 3, True)
    assert found.fired == {"one", "two"}
    assert found.fault is None


def test_what_never_happens_is_told() -> None:
    model = Counter(top=1, ends=(1,))
    assert never(model.actions, iter([explore(model)])) == {"two"}
    explorations = iter([explore(model), explore(Counter()), explore(model)])
    assert never(model.actions, explorations) == set()
    assert len(list(explorations)) == 1, "not looked at"


def test_the_shortest_way_is_told() -> None:
    found = explore(Counter(bad=4))
    assert found.fault is not None
    assert found.fault.trace == ("two", "two")
    assert str(found.fault).endswith("→ 4 is bad")
    assert not found.is_whole


def test_a_wrong_beginning_is_told() -> None:
    found = explore(Counter(bad=0))
    assert found.fault is not None
    assert found.fault.trace == ()


def test_a_state_without_a_way_on_must_be_an_end() -> None:
    found = explore(Counter(ends=()))
    assert found.fault is not None
    assert found.fault.trace == ("one", "two", "two")
    assert "nothing can happen" in found.fault.what


def test_what_was_left_out_is_not_called_whole() -> None:
    found = explore(Counter(top=50, ends=(50,)), limit=10)
    assert not found.is_whole
    assert found.fault is None


def test_the_way_to_where_a_goal_is_out_of_reach() -> None:
    explorer = Explorer(Counter(), keeps_steps=True)
    explorer.run()
    fault = explorer.first_without(lambda n: n == 4)
    assert fault is not None
    assert fault.trace == ("one", "two", "two")
    assert explorer.first_without(lambda n: n == 5) is None
