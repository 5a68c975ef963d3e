"""The changefeed in all interleavings: with every rule nothing is lost, twice or half; without one it is.

Larger bounds: `make models`. What is modelled: feed.py; what is explored: feed_cases.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from types import ModuleType

import pytest

from tests.models import feed, feed_align, feed_broker, feed_consumer, feed_producer, feed_world
from tests.models.explorer import name_of, never
from tests.models.feed_cases import NEVER_ALONE, REMOVALS, SCENARIOS, Feed, Removal, Scenario, explored
from tests.support.every_case import is_left_out

IS_LARGE = os.environ.get("VREPLICATION_MODELS") == "large"
CHOSEN = [s for s in SCENARIOS if s.in_suite or IS_LARGE]
NEEDED = [r for r in REMOVALS if not r.instead]
SPARE = [r for r in REMOVALS if r.instead]

# One worker: what one test has explored another one asks for.
pytestmark = pytest.mark.xdist_group("feed_models")


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.id)
def test_with_all_rules_nothing_is_wrong(scenario: Scenario) -> None:
    found = explored(scenario.bounds, *scenario.rules)
    print(f"{found.states:,} states, {found.steps:,} steps, {found.depth} deep, {found.seconds:.1f} s")
    assert found.fault is None, f"{scenario.id}\n{found.fault}"
    assert found.is_whole
    assert found.states >= scenario.least


@pytest.mark.parametrize("removal", NEEDED, ids=lambda r: r.id)
def test_without_it_something_is_wrong(removal: Removal) -> None:
    found = explored(removal.bounds, *removal.rules)
    assert found.fault is not None, f"nothing goes wrong without {removal.id}"
    print(f"without {removal.id}: {found.states:,} states\n{found.fault}")


@pytest.mark.parametrize("removal", NEEDED, ids=lambda r: r.id)
def test_with_it_nothing_is_wrong_there(removal: Removal) -> None:
    """Else a trace would say nothing about the rule."""
    found = explored(removal.bounds)
    assert found.fault is None, f"with {removal.id}:\n{found.fault}"
    assert found.is_whole


@pytest.mark.seldom
@pytest.mark.skipif(not IS_LARGE, reason="of a rule that is spare: `make models`")
@pytest.mark.parametrize("removal", SPARE, ids=lambda r: r.id)
def test_another_rule_does_its_work(removal: Removal) -> None:
    """Within the bounds nothing is wrong without it."""
    found = explored(removal.bounds, *removal.rules)
    print(f"{found.states:,} states, {found.seconds:.1f} s")
    assert found.fault is None, f"without {removal.id}:\n{found.fault}"
    assert found.is_whole


def test_every_rule_is_taken_out() -> None:
    every = {f.name for rules in (feed_world.Rules, feed_align.Rules) for f in fields(rules)}
    alone = {r.rules[0] for r in NEEDED if len(r.rules) == 1}
    assert {name for r in REMOVALS for name in r.rules} == every
    assert every - alone == NEVER_ALONE


def test_every_action_happens() -> None:
    """A model in which something never happens says nothing about it."""
    chosen = [s for s in SCENARIOS if s.in_suite and isinstance(s.bounds, Feed)]
    ordinary = [s for s in chosen if not is_left_out(test_with_all_rules_nothing_is_wrong, s.id)]
    # First what this run explores anyway, of the removals' bounds with all rules.
    cases = [(s.bounds, *s.rules) for s in ordinary]
    cases += [(r.bounds,) for r in NEEDED if isinstance(r.bounds, Feed)]
    cases += [(s.bounds, *s.rules) for s in chosen]
    assert never(feed.ACTIONS, (explored(*case) for case in cases)) == set()


@pytest.mark.parametrize("module", [feed_producer, feed_consumer], ids=lambda m: m.__name__.rpartition(".")[2])
def test_actions_say_what_they_stand_for(module: ModuleType) -> None:
    told = module.__doc__ or ""
    named = set(re.findall(r"^    (\w+) ", told, re.M)) | set(re.findall(r"; (\w+): ", told))
    its = {name_of(a) for a in feed.ACTIONS if a.__module__ == module.__name__}
    assert its - named == set()


def test_what_a_partition_may_hold_is_looked_at() -> None:
    """Each of the checks finds something that only it finds, in one of the traces."""
    chosen = [r for r in NEEDED if not is_left_out(test_without_it_something_is_wrong, r.id)]
    faults = [explored(r.bounds, *r.rules).fault for r in chosen]
    told = "\n".join(fault.what for fault in faults if fault)
    for check in ("1.1:", "2.2, 2.3:", "n:", "prefix:", "once:", "lost:", "row order:", "the checkpoint goes back"):
        assert check in told
    assert feed_broker.__doc__
