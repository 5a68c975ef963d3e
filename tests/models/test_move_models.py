"""Moving tables between two servers in all interleavings: with every rule nothing is lost, without one that is needed
something is.

Larger bounds: `make models`. What is modelled and what is not: docs/correctness.md.
"""

from __future__ import annotations

import os
import re
from types import ModuleType

import pytest

from tests.models import move_copy_model, move_switch_model
from tests.models.explorer import name_of, never
from tests.models.move_cases import (
    FINER,
    ONLY_MARKER,
    REMOVALS,
    SAFE_ALONE,
    SCENARIOS,
    VARIANTS,
    Copy,
    Removal,
    Scenario,
    explored,
    rules_of,
    scenario_line,
)
from tests.models.test_models import PAGE, is_there
from tests.support.every_case import is_left_out

IS_LARGE = os.environ.get("VREPLICATION_MODELS") == "large"
CHOSEN = [s for s in SCENARIOS if s.in_suite or IS_LARGE]
NEEDED = [r for r in REMOVALS if not r.instead]
SPARE = [r for r in REMOVALS if r.instead]
MODULES = (move_copy_model, move_switch_model)

# One worker: what one test has explored another one asks for.
pytestmark = pytest.mark.xdist_group("move_models")


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.name)
def test_with_all_rules_nothing_is_lost(scenario: Scenario) -> None:
    found = explored(scenario.bounds)
    print(f"{found.states:,} states, {found.steps:,} steps, {found.depth} deep, {found.seconds:.1f} s")
    assert found.fault is None, f"{scenario.name}\n{found.fault}"
    assert found.is_whole


@pytest.mark.parametrize("removal", NEEDED, ids=lambda r: r.name)
def test_without_it_something_is_wrong(removal: Removal) -> None:
    found = explored(removal.bounds, *removal.rules)
    assert found.fault is not None, f"nothing goes wrong without {removal.name}"
    print(f"without {removal.name}: {found.states:,} states\n{found.fault}")


@pytest.mark.seldom
@pytest.mark.parametrize("removal", SPARE, ids=lambda r: r.name)
def test_another_rule_does_its_work(removal: Removal) -> None:
    """Within the bounds nothing is wrong without it alone."""
    for bounds in (removal.bounds, removal.larger) if IS_LARGE and removal.larger else (removal.bounds,):
        found = explored(bounds, *removal.rules)
        print(f"{found.states:,} states, {found.seconds:.1f} s")
        assert found.fault is None, f"without {removal.name}:\n{found.fault}"
        assert found.is_whole


def test_every_rule_is_tried_alone_and_no_other_is_safe_to_lose() -> None:
    for variant in (*VARIANTS, ""):
        tried = [r for r in REMOVALS if getattr(r.bounds, "variant", "") == variant]
        assert {r.rules[0] for r in tried if len(r.rules) == 1} == rules_of(variant)
    assert {r.rules[0] for r in SPARE} == SAFE_ALONE | FINER | ONLY_MARKER


def test_every_action_happens() -> None:
    for module in MODULES:
        is_copy = module is move_copy_model
        chosen = [s for s in SCENARIOS if s.in_suite and isinstance(s.bounds, Copy) == is_copy]
        # First what this run explores anyway.
        chosen.sort(key=lambda s: is_left_out(test_with_all_rules_nothing_is_lost, s.name))
        assert never(module.ACTIONS, (explored(s.bounds) for s in chosen)) == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_actions_say_what_they_stand_for(module: ModuleType) -> None:
    told = module.__doc__ or ""
    named = {word for line in re.findall(r"^    (\w+(?:, \w+)*) ", told, re.M) for word in line.split(", ")}
    named |= {word for line in re.findall(r"; (\w+(?:, \w+)*): ", told) for word in line.split(", ")}
    assert {name_of(a) for a in module.ACTIONS} - named == set()
    found = re.findall(r"`(\w+\.[\w.]+)`", told)
    assert [name for name in found if not is_there(f"vreplication.{name}")] == []


def test_the_page_shows_what_was_found() -> None:
    """What this run leaves out `make every` compares."""
    page = PAGE.read_text()
    chosen = [s for s in SCENARIOS if s.in_suite and not is_left_out(test_with_all_rules_nothing_is_lost, s.name)]
    missing = [line for s in chosen if (line := scenario_line(s)) not in page]
    assert missing == [], "`python -m tests.models.move_cases` writes the rows anew"
