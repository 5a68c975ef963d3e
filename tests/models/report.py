"""Figures of a run as tables for docs/correctness.md: `python -m tests.models.report [--large]`.

What must stay true: lines of the removals hold nothing but what the models say, so that a test can look for them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

from tests.models.cases import REMOVALS, SCENARIOS, Removal, Rows, Scenario, explored

_IN_LOG, _VISIBLE = " (in the log)", "visible: "
_USUAL = (
    ("attempt 1 claims", "attempt 1 opens chunk 0", "attempt 1 SELECTs A=1", "attempt 1 INSERTs IGNORE A=1"),
    (
        "start: the log's position is read",
        "start: the marker is in the log",
        "visible: the start marker",
        "start: waits for nobody",
        "start: the range is {A}; catch-up starts",
        "attempt 1 claims",
        "catch-up: its fresh marker",
        "attempt 1 opens chunk 0",
    ),
    (
        "driver opens its sessions",
        "driver places the sentry",
        "driver locks the table",
        "driver writes the marker",
        "catch-up applies the marker and stands still",
        "driver finds the marker applied",
        "driver looks at its lease",
        "driver sends RENAME",
        "RENAME queues for its first lock",
        "driver sees RENAME waiting",
        "driver drops the sentry",
        "driver unlocks",
    ),
)
"""How things begin when nothing is wrong yet; the table says how far that goes."""


def compact(trace: Iterable[str]) -> str:
    """One line; what becomes visible at once is said once, and of what is as usual only the last step."""
    steps = list(trace)
    for place in range(len(steps) - 1, 0, -1):
        if steps[place].startswith(_VISIBLE) and steps[place - 1].endswith(_IN_LOG):
            steps[place - 1] = steps[place - 1].removesuffix(_IN_LOG)
            del steps[place]
    short = " · ".join(_without_usual(steps)).replace("application: ", "")
    return re.sub(r"attempt (\d)", r"a\1", short)


def _without_usual(steps: list[str]) -> list[str]:
    for usual in _USUAL:
        count = 0
        while count < min(len(usual), len(steps)) and steps[count] == usual[count]:
            count += 1
        if count > 1:
            return [f"… {steps[count - 1]}", *steps[count:]]
    return steps


def removals() -> list[str]:
    return [removal_line(removal) for removal in REMOVALS]


def removal_line(removal: Removal) -> str:
    found = explored(removal.bounds, *removal.rules)
    name = " + ".join(f"`{rule}`" for rule in removal.rules)
    if found.fault is None:
        return f"| {name} | none; {removal.instead} | – | {found.states:,} |"
    what = re.sub(r" \(State\(.*", "", found.fault.what)
    return f"| {name} | {compact(found.fault.trace)} → **{what}** | {len(found.fault.trace)} | {found.states:,} |"


def scenario_line(scenario: Scenario) -> str:
    found = explored(scenario.bounds)
    end = "none" if found.fault is None and found.is_whole else "**FOUND**"
    model = "rows" if isinstance(scenario.bounds, Rows) else "switch"
    return f"| {scenario.name} | {model} | {found.states:,} | {found.steps:,} | {found.depth} | {end} |"


def lines(*, is_large: bool) -> Iterator[str]:
    yield from ("| scenario | model | states | steps | depth | counterexamples |", "|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        if scenario.in_suite or is_large:
            yield scenario_line(scenario)
    yield from ("", "| taken out | shortest counterexample | steps | states |", "|---|---|---|---|")
    yield from map(removal_line, REMOVALS)


if __name__ == "__main__":
    for line in lines(is_large="--large" in sys.argv):
        print(line, flush=True)
