"""The protocol in all interleavings: with every rule nothing is lost, and without any one that is needed something is.

Larger bounds: `make models`. What is modelled and what is not: docs/correctness.md.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from tests.models import (
    report,
    rows_application,
    rows_catch_up,
    rows_model,
    rows_prepare,
    rows_rules,
    rows_tasks,
    switch_model,
    switch_rules,
)
from tests.models.cases import CHUNK_PROTOCOL, REMOVALS, SCENARIOS, Removal, Scenario, explored
from tests.models.explorer import name_of, never
from tests.support.every_case import is_left_out

IS_LARGE = os.environ.get("VREPLICATION_MODELS") == "large"
CHOSEN = [s for s in SCENARIOS if s.in_suite or IS_LARGE]
NEEDED = [r for r in REMOVALS if not r.instead]
SPARE = [r for r in REMOVALS if r.instead]
MODULES = (rows_application, rows_prepare, rows_tasks, rows_catch_up, switch_model)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "correctness.md"

# One worker: what one test has explored another one asks for.
pytestmark = pytest.mark.xdist_group("models")


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.name)
def test_with_all_rules_nothing_is_lost(scenario: Scenario) -> None:
    found = explored(scenario.bounds)
    print(f"{found.states:,} states, {found.steps:,} steps, {found.depth} deep, {found.seconds:.1f} s")
    assert found.fault is None, f"{scenario.name}\n{found.fault}"
    assert found.is_whole


@pytest.mark.parametrize("removal", NEEDED, ids=lambda r: r.name)
def test_without_it_something_is_lost(removal: Removal) -> None:
    fault = explored(removal.bounds, *removal.rules).fault
    assert fault is not None, f"nothing goes wrong without {removal.name}"
    print(f"without {removal.name}:\n{fault}")


@pytest.mark.parametrize("number", CHUNK_PROTOCOL)
def test_without_any_whole_rule_of_the_chunk_protocol_something_is_lost(number: int) -> None:
    removal = CHUNK_PROTOCOL[number]
    fault = explored(removal.bounds, *removal.rules).fault
    assert fault is not None, f"nothing goes wrong without rule {number}"
    print(f"without rule {number}:\n{fault}")


@pytest.mark.seldom
@pytest.mark.parametrize("removal", SPARE, ids=lambda r: r.name)
def test_another_rule_does_its_work(removal: Removal) -> None:
    """Within the bounds nothing is lost without it alone."""
    for bounds in (removal.bounds, removal.larger) if IS_LARGE else (removal.bounds,):
        found = explored(bounds, *removal.rules)
        print(f"{found.states:,} states")
        assert found.fault is None, f"without {removal.name}:\n{found.fault}"
        assert found.is_whole


def test_every_rule_is_tried_alone() -> None:
    for model, rules in (("rows", rows_rules.Rules), ("switch", switch_rules.Rules)):
        alone = {r.rules[0] for r in REMOVALS if r.model == model and len(r.rules) == 1}
        assert {f.name for f in fields(rules)} == alone


def test_every_action_happens() -> None:
    """A model in which something never happens says nothing about it."""
    chosen = [s for s in SCENARIOS if s.in_suite]
    # First what this run explores anyway.
    chosen.sort(key=lambda s: is_left_out(test_with_all_rules_nothing_is_lost, s.name))
    every = (*rows_model.ACTIONS, *switch_model.ACTIONS)
    assert never(every, (explored(s.bounds) for s in chosen)) == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_what_actions_stand_for_is_there(module: ModuleType) -> None:
    """Whoever renames a function of the protocol is led to the model of it."""
    assert module.__doc__ is not None
    found = re.findall(r"`(\w+\.[\w.]+)`", module.__doc__)
    assert [name for name in found if not is_there(f"vreplication.{name}")] == []


def is_there(name: str) -> bool:
    path, attributes = name, []
    while True:
        try:
            value: object = importlib.import_module(path)
        except ModuleNotFoundError:
            path, _, last = path.rpartition(".")
            attributes.insert(0, last)
        else:
            return functools.reduce(lambda found, part: getattr(found, part, None), attributes, value) is not None


def test_every_action_says_what_it_stands_for() -> None:
    told = "\n".join(module.__doc__ or "" for module in MODULES)
    named = {word for line in re.findall(r"^    (\w+(?:, \w+)*) ", told, re.M) for word in line.split(", ")}
    named |= set(re.findall(r"; (\w+): ", told))
    assert {name_of(a) for a in (*rows_model.ACTIONS, *switch_model.ACTIONS)} - named == set()


def test_the_page_shows_what_was_found() -> None:
    page = PAGE.read_text()
    missing = [line for line in report.lines(is_large=False) if line not in page]
    assert len(missing) == 0, f"{missing[0]}\nand others: `python -m tests.models.report` writes the tables anew"
