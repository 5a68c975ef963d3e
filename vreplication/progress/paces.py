"""What earlier workflows of a server say about how long a part of this one will take.

What must stay true: pure; of what lies in the past that counts most which is alike (the same table, as many writes, as
many rows) and late; where there is nothing, a guess stands in, and says by its spread that it is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from vreplication.phases import Phase
from vreplication.state.forecasts import Pace


class Part(StrEnum):
    """What a workflow goes through, in this order."""

    PREPARING = "preparing"
    STARTING = "starting"
    """Catch-up and Spark begin; up to the first rows."""
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    VERIFYING = "verifying"
    EXAMINING = "examining"
    """All rows are compared; those that differed are looked at again."""
    GATE = "gate"
    """Statistics, and the readings of the gate."""
    SWITCHING = "switching"
    """Attempts at the cut-over, and the clean-up."""


LINEAR = frozenset({Part.COPYING, Part.VERIFYING})
"""They take so long a unit; the others take their time whatever the table's size."""
# Under writers never seen before the start was foretold by the guess, although it had been measured.
_WITHOUT_WRITES = frozenset({Part.PREPARING, Part.STARTING})
_BYTES_A_ROW = 200.0
"""A row costs as much as so many of its bytes do."""
_SAME_TABLE, _OLDER = 4.0, 0.8
_LEAST_SPREAD, _LEAST_SECONDS = 0.2, 0.05
_LEAST_A_UNIT = 1e-12
# The second is the greater one, so that what was measured under quite other writes still counts for more than a guess.
_GUESS_WEIGHT, _LEAST_ALIKE = 0.02, 0.03
_LONG_GATE_SECONDS = 5.0
_SHORT_SECONDS = 10.0
"""A run of so long counts a quarter; of ten times that, four fifths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """seconds: of the part, or of a unit of it. spread: of its logarithm; 0.7 is half or twice."""

    seconds: float
    spread: float


_FIRST = {
    Part.PREPARING: Guess(seconds=0.7, spread=0.7),
    Part.STARTING: Guess(seconds=4.0, spread=0.7),
    Part.COPYING: Guess(seconds=2.2e-6, spread=0.7),
    Part.CATCHING_UP: Guess(seconds=0.2, spread=0.7),
    Part.VERIFYING: Guess(seconds=5e-7, spread=0.7),
    Part.EXAMINING: Guess(seconds=0.2, spread=0.9),
    Part.GATE: Guess(seconds=0.9, spread=0.7),
    Part.SWITCHING: Guess(seconds=0.3, spread=0.7),
}
"""Of a server that has done nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is to be done. write_rate: changes a second that are applied beside it; None: not known."""

    source_name: str
    units: float
    write_rate: float | None = None


def units(rows: float, row_bytes: float) -> float:
    return rows * (1.0 + row_bytes / _BYTES_A_ROW)


def part_of(phase: Phase) -> Part | None:
    """With which part a phase begins."""
    return {
        Phase.PLANNING: Part.PREPARING,
        Phase.PREPARING: Part.PREPARING,
        Phase.COPYING: Part.STARTING,
        Phase.CATCHING_UP: Part.CATCHING_UP,
        Phase.VERIFYING: Part.VERIFYING,
        Phase.WAITING: Part.GATE,
        Phase.CUTTING_OVER: Part.SWITCHING,
    }.get(phase)


def expected(past: Sequence[Pace], part: Part, case: Case, first: Guess | None = None) -> Guess:
    """Newest first. `first`: what stands in where the past says nothing."""
    first = first or _FIRST[part]
    known = list(_weighed(past, part, case))
    total = sum(weight for weight, _ in known)
    mean = sum(weight * value for weight, value in known) + _GUESS_WEIGHT * math.log(first.seconds)
    mean /= total + _GUESS_WEIGHT
    differing = sum(weight * (value - mean) ** 2 for weight, value in known) / (total + _GUESS_WEIGHT)
    spread = math.sqrt(differing + _LEAST_SPREAD**2 + first.spread**2 / (1.0 + 10.0 * total))
    # Means of logarithms: half as long and twice as long are equally wrong, and one slow run does not drown ten.
    return Guess(seconds=math.exp(mean), spread=min(spread, 1.5))


def _weighed(past: Sequence[Pace], part: Part, case: Case) -> Iterator[tuple[float, float]]:
    """How much each counts, and the logarithm of its seconds."""
    found = [pace for pace in past if pace.part == part and pace.seconds > 0 and pace.units > 0]
    for age, pace in enumerate(found):
        weight = _SAME_TABLE if pace.source_name == case.source_name else 1.0
        weight *= _OLDER**age
        if part not in _WITHOUT_WRITES:
            weight *= _alike_writes(pace.write_rate, case.write_rate)
        if part in LINEAR:
            # What a short run took is mostly what a run costs whatever its size.
            weight *= _alike(pace.units, case.units, 2.0) * (pace.seconds / (pace.seconds + _SHORT_SECONDS)) ** 2
        yield weight, math.log(_seconds(pace, part, case))


def _seconds(pace: Pace, part: Part, case: Case) -> float:
    if part in LINEAR:
        return max(pace.seconds / pace.units, _LEAST_A_UNIT)
    longer = max(0.0, pace.seconds - _LONG_GATE_SECONDS) if part is Part.GATE else 0.0
    # What takes long there are histograms, which read the table.
    return max(pace.seconds + longer * (case.units / pace.units - 1.0), _LEAST_SECONDS)


def _alike_writes(one: float | None, other: float | None) -> float:
    # With 30 a second on either side: none and a few writes are alike, however large their ratio is.
    return 1.0 if one is None or other is None else _alike(one + 30.0, other + 30.0, 1 / 3)


def _alike(one: float, other: float, width: float) -> float:
    """1 for the same; a half where they are exp(width) times apart. What is quite unlike still beats a guess."""
    return max(1.0 / (1.0 + (math.log(max(one, 1.0) / max(other, 1.0)) / width) ** 2), _LEAST_ALIKE)
