"""A new unique key that rows break: with every rule the tables are right in the end, without any one they are not.

Larger bounds: `make models`. `python -m tests.models.test_dedup` writes the tables of docs/design/duplicates.md anew.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from tests.models import dedup_model
from tests.models.dedup_model import ACTIONS, Bounds, DedupModel, Rules
from tests.models.explorer import Found, explore
from tests.models.test_models import is_there

IS_LARGE = os.environ.get("VREPLICATION_MODELS") == "large"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "duplicates.md"

pytestmark = pytest.mark.xdist_group("dedup_models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    bounds: Bounds
    in_suite: bool = True


SCENARIOS = (
    Scenario(name="two rows of a value", bounds=Bounds(writes=2, gives_up=True)),
    Scenario(name="a crash", bounds=Bounds(writes=2, crashes=1)),
    Scenario(name="values that are NULL", bounds=Bounds(writes=2, has_null=True)),
    Scenario(name="three rows", bounds=Bounds(keys=3, writes=2, starts=((1, 1, 1), (1, 2, 1)))),
    Scenario(name="keys change", bounds=Bounds(keys=3, writes=2, key_changes=True, starts=((1, 1, 0),))),
    Scenario(name="three changes", bounds=Bounds(writes=3), in_suite=False),
    Scenario(name="three changes, two crashes", bounds=Bounds(writes=3, crashes=2, batch=3), in_suite=False),
    Scenario(
        name="three rows, three changes",
        bounds=Bounds(keys=3, writes=3, key_changes=True, has_null=True, starts=((1, 1, 0),)),
        in_suite=False,
    ),
)
CHOSEN = [s for s in SCENARIOS if s.in_suite or IS_LARGE]
RULES = tuple(f.name for f in fields(Rules))
WITH_CRASH = {"fenced", "removed_with_rows"}


@functools.cache
def explored(bounds: Bounds, *without: str) -> Found:
    return explore(DedupModel(bounds, Rules(**dict.fromkeys(without, False))))


def bounds_of(rule: str) -> Bounds:
    return Bounds(writes=2, crashes=int(rule in WITH_CRASH))


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.name)
def test_with_all_rules_the_tables_are_right(scenario: Scenario) -> None:
    found = explored(scenario.bounds)
    print(f"{found.states:,} states, {found.steps:,} steps, {found.depth} deep, {found.seconds:.1f} s")
    assert found.fault is None, f"{scenario.name}\n{found.fault}"
    assert found.is_whole


@pytest.mark.parametrize("rule", RULES)
def test_without_it_they_are_not(rule: str) -> None:
    fault = explored(bounds_of(rule), rule).fault
    assert fault is not None, f"nothing goes wrong without {rule}"
    assert "nothing can happen" not in fault.what
    print(f"without {rule}:\n{fault}")


def test_every_action_happens() -> None:
    fired = set().union(*(explored(s.bounds).fired for s in SCENARIOS if s.in_suite))
    # Of processes that a rule does away with.
    assert set(ACTIONS) - fired == {"begin_fill", "read_early", "settle_late"}


def test_what_actions_stand_for_is_there() -> None:
    told = dedup_model.__doc__ or ""
    found = re.findall(r"`(\w+\.[\w.]+)`", told)
    assert [name for name in found if not is_there(f"vreplication.{name}")] == []
    assert [name for name in ACTIONS if not re.search(rf"\b{name}\b", told)] == []


def test_the_page_shows_what_was_found() -> None:
    page = PAGE.read_text()
    missing = [line for line in lines() if line not in page]
    assert missing == [], "`python -m tests.models.test_dedup` writes the tables anew"


def lines() -> list[str]:
    found = ["| scenario | states | steps | counterexamples |", "|---|---|---|---|"]
    for scenario in SCENARIOS:
        if scenario.in_suite:
            each = explored(scenario.bounds)
            end = "none" if each.fault is None and each.is_whole else "**FOUND**"
            found.append(f"| {scenario.name} | {each.states:,} | {each.steps:,} | {end} |")
    found += ["", "| taken out | shortest counterexample |", "|---|---|"]
    for rule in RULES:
        fault = explored(bounds_of(rule), rule).fault
        assert fault is not None
        found.append(f"| `{rule}` | {' · '.join(fault.trace)} → **{fault.what}** |")
    return found


if __name__ == "__main__":
    print("\n".join(lines()))
