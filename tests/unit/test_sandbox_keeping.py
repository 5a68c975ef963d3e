"""Which component of Airflow is started again, when, and when no more."""

from __future__ import annotations

from sandbox.keeping import PAUSES, QUIET_SECONDS, Keeper


class Fragile:
    """A component that ends as soon as it has been started, until `is_well`."""

    def __init__(self) -> None:
        self.starts = 0
        self.is_well = False

    def ended(self) -> dict[str, int]:
        return {} if self.is_well else {"scheduler": 1}

    def restart(self, component: str) -> None:
        assert component == "scheduler"
        self.starts += 1


def watched(kept: Fragile, keeper: Keeper, begin: float, seconds: float) -> None:
    for half in range(int(seconds * 2)):
        keeper.look(begin + half / 2)


def test_one_that_ends_is_started_after_a_pause_and_given_up_in_the_end() -> None:
    kept, told = Fragile(), list[str]()
    keeper = Keeper(kept, told.append)
    watched(kept, keeper, 0.0, PAUSES[0])
    assert kept.starts == 0
    watched(kept, keeper, PAUSES[0], 1.0)
    assert kept.starts == 1
    watched(kept, keeper, PAUSES[0] + 1.0, sum(PAUSES) + 100.0)
    assert kept.starts == len(PAUSES)
    assert [line for line in told if "given up" in line] == [told[-1]]


def test_what_ended_long_ago_does_not_count() -> None:
    kept, told = Fragile(), list[str]()
    keeper = Keeper(kept, told.append)
    for number in range(2 * len(PAUSES)):
        begin, kept.is_well = number * 2 * QUIET_SECONDS, False
        watched(kept, keeper, begin, PAUSES[0] + 1.0)
        kept.is_well = True
        keeper.look(begin + PAUSES[0] + 2.0)
    assert kept.starts == 2 * len(PAUSES)
