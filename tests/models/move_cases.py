"""What is explored of tables that move between two servers: scenarios with all rules, and each rule taken out.

`python -m tests.models.move_cases [--large]` writes the scenarios' rows of the table in docs/correctness.md.

What must stay true: every rule of both models is here, in each variant that has it, either with a counterexample that
its absence must have, or as one that is safe to lose alone, together with what does its work then.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from tests.models import move_copy_world, move_switch_world
from tests.models.explorer import Explorer, Found
from tests.models.move_copy_model import CopyModel
from tests.models.move_copy_world import MARKER, MARKER_ONLY, POSITION, POSITION_ONLY
from tests.models.move_switch_model import MoveSwitchModel
from tests.models.rows_world import without

Copy, Switch = move_copy_world.Bounds, move_switch_world.Bounds
Bounds = Copy | Switch
VARIANTS = (MARKER, POSITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All rules: nothing may be wrong. in_suite: small enough for the tests of every day."""

    name: str
    bounds: Bounds
    in_suite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rules taken out. instead: what keeps the promise without them; then nothing is wrong, nor within `larger`."""

    rules: tuple[str, ...]
    bounds: Bounds
    instead: str = ""
    larger: Bounds | None = None

    @property
    def name(self) -> str:
        model = self.bounds.variant if isinstance(self.bounds, Copy) else "switch"
        return f"{model}: {' + '.join(self.rules)}"


def bounds(variant: str, **values: Any) -> Copy:
    """crashes: where the checkpoint may be late, it is (only "marker": "position" needs it with the rows)."""
    is_lazy = variant == MARKER and bool(values.get("crashes")) and not values.get("workers")
    return Copy(variant=variant, **{"attempts": 1, "is_lazy": is_lazy, **values})


KEYS = {"starts": ((1, 0),), "ranges": (0b11,)}
"""Two keys in one chunk."""
SIDE = {"starts": ((1, 0),), "ranges": (0b01, 0b10), "key_changes": False}
"""Two chunks side by side."""

COPY_CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("two attempts", {"attempts": 2}),
    ("two keys", KEYS),
    ("two chunks side by side", {**SIDE, "writes": 1}),
    ("catch-up crashes", {"crashes": 1}),
    ("catch-up crashes, two attempts", {"crashes": 1, "attempts": 2, "writes": 1}),
    ("a stopped catch-up wakes up", {"crashes": 1, "has_stale": True}),
    ("several workers, a crash", {**KEYS, "crashes": 1, "workers": True}),
)
COPY_LARGE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("three attempts, three writes", {"attempts": 3, "writes": 3}),
    ("two keys, two attempts", {**KEYS, "attempts": 2}),
    ("two keys, three writes", {**KEYS, "writes": 3}),
    ("two chunks, two writes", {**SIDE}),
    ("two crashes", {"crashes": 2}),
    ("a crash, two attempts, two writes", {"crashes": 1, "attempts": 2}),
    ("a stopped catch-up, two attempts", {"crashes": 1, "has_stale": True, "attempts": 2, "writes": 1}),
    ("several workers, a crash, two attempts", {**KEYS, "crashes": 1, "workers": True, "attempts": 2}),
)
SWITCH_CASES: tuple[tuple[str, Switch], ...] = (
    ("two tables", Switch(tables=2)),
    ("there and back", Switch(rounds=2)),
    ("two attempts, a lost session", Switch(tries=2, losses=1)),
    ("a branch, there and back", Switch(writes=1, rounds=2, has_branch=True)),
    ("the stream crashes, two attempts", Switch(tries=2, crashes=1)),
    ("there and back, the stream crashes", Switch(rounds=2, crashes=1)),
    ("another driver, the first comes back", Switch(writes=1, drivers=2, runs=2)),
    ("another driver, a lost session", Switch(writes=0, drivers=2, losses=1)),
    ("another driver, a branch", Switch(writes=0, drivers=2, has_branch=True)),
    ("another driver, there and back", Switch(writes=1, drivers=2, rounds=2)),
    ("home is away, a lost session, two attempts", Switch(tries=2, losses=1, outages=1)),
    ("home is away, another driver", Switch(writes=1, drivers=2, outages=1)),
)
SWITCH_LARGE: tuple[tuple[str, Switch], ...] = (
    ("a lost session, a crash, there and back", Switch(rounds=2, tries=2, losses=1, crashes=1)),
    ("another driver, a crash, there and back", Switch(writes=2, rounds=2, drivers=2, crashes=1)),
    ("another driver, a lost session, there and back", Switch(writes=1, rounds=2, drivers=2, losses=1)),
    ("another driver, a lost session, a branch", Switch(writes=0, drivers=2, losses=1, has_branch=True)),
    ("home is away twice, a crash, there and back", Switch(rounds=2, tries=2, crashes=1, outages=2)),
    ("home is away, another driver, there and back", Switch(writes=1, rounds=2, drivers=2, outages=1)),
    ("home is away, another driver, a branch", Switch(writes=0, drivers=2, outages=1, has_branch=True)),
    ("three drivers", Switch(writes=1, drivers=3)),
    ("two tables, a crash, there and back", Switch(tables=2, rounds=2, crashes=1)),
)
SCENARIOS = (
    *(Scenario(name=f"copy, {v}: {name}", bounds=bounds(v, **b)) for v in VARIANTS for name, b in COPY_CASES),
    *(Scenario(name=f"switch: {name}", bounds=b) for name, b in SWITCH_CASES),
    *(
        Scenario(name=f"copy, {v}: {name}", bounds=bounds(v, **b), in_suite=False)
        for v in VARIANTS
        for name, b in COPY_LARGE
    ),
    *(Scenario(name=f"switch: {name}", bounds=b, in_suite=False) for name, b in SWITCH_LARGE),
)

# -- copy: rules taken out --------------------------------------------------------------------------------------------

TWO: dict[str, Any] = {"attempts": 2}
CRASH: dict[str, Any] = {"crashes": 1}
STALE: dict[str, Any] = {"crashes": 1, "has_stale": True}
COPY_NEEDED: dict[str, dict[str, Any]] = {
    "opened_first": {},
    "ledger_before_marker": CRASH,
    "marker_returned": {},
    "ordered_commits": {},
    "checkpoint_locked": {},
    "ledger_read_behind_lock": {},
    "end_noted": {**KEYS, "workers": True},
    "position_contained": {},
    "tombstones": {},
    "tombstones_of_old_keys": KEYS,
    "tombstones_cleared": {},
    "tombstones_durable": CRASH,
    "tombstones_with_rows": {},
    "tombstones_never_reset": TWO,
    "pruned_behind_oldest": {**SIDE, "writes": 1},
    "fence_attempt + fence_open": TWO,
    "fence_open + attempts_numbered": TWO,
    "fence_locks": TWO,
    "bump_spares_landed + matched_by_ledger": TWO,
    "rows_before_landed": {},
    "polled_fresh": {},
    "deleted_behind_poll": {},
    "deleted_in_stream": {},
    "locking_writes": {},
    "matched_with_deletes": CRASH,
    "matched_ignored": TWO,
    "checkpoint_behind_rows": CRASH,
    "checkpoint_with_rows": {},
    "applier_lease": STALE,
    "applier_lease_locks": STALE,
}
COPY_SPARE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fence_attempt": ("`fence_open`, and tombstones that nothing resets", TWO, {**TWO, **CRASH}),
    "fence_open": ("`attempts_numbered`", TWO, {**TWO, **CRASH}),
    "attempts_numbered": ("`fence_open`", TWO, {**TWO, **CRASH}),
    "bump_spares_landed": ("`matched_by_ledger`: it is open again", TWO, {**TWO, **CRASH}),
    "landed_with_rows": ("`tombstones_never_reset`", TWO, {**TWO, **CRASH}),
    "locking_deletes": ("a tombstone is noted all the same, and landed is read when it is committed", TWO, CRASH),
    "matched_by_ledger": ("`bump_spares_landed`: matched is for ever", TWO, {**TWO, **CRASH}),
    "checkpoint_with_rows": ("marker: what is applied again does no harm (R14)", CRASH, {**TWO, **CRASH}),
}

# -- switch: rules taken out ------------------------------------------------------------------------------------------

BRANCH = Switch(writes=0, has_branch=True)
LOST_BRANCH = Switch(writes=0, losses=1, has_branch=True)
DRIVERS = Switch(writes=1, drivers=2)
DRIVERS_LOSS = Switch(writes=0, drivers=2, losses=1)
SWITCH_NEEDED: dict[str, Switch] = {
    "intent_first": Switch(writes=0, drivers=2),
    "table_lock + branches_looked_at": BRANCH,
    "created_by_holder + branches_looked_at": LOST_BRANCH,
    "marker_behind_deny": Switch(),
    "marker_applied": Switch(),
    "barrier_whole": Switch(tables=2, writes=1),
    "looked_again": Switch(crashes=1),
    "fenced + looked_again": Switch(crashes=1),
    "fenced + own_skipped": Switch(),
    "noted_before_open": Switch(),
    "decided_before_open": DRIVERS,
    "dropped_before_running": Switch(),
    "kept_once_asked": Switch(outages=1),
    "hook_repeated": Switch(),
    "forward_only": Switch(),
    "starts_at_noted": Switch(rounds=2, crashes=1),
    "exempt": Switch(),
    "connections_ended": DRIVERS,
    "ended_on_source": DRIVERS,
    "list_is_newest": replace(DRIVERS, runs=2),
    "lost_ended": Switch(writes=1, tries=2, losses=1),
}
SWITCH_SPARE: dict[str, tuple[str, Switch, Switch]] = {
    "table_lock": ("`branches_looked_at`", BRANCH, replace(DRIVERS_LOSS, has_branch=True)),
    "branches_looked_at": ("`table_lock`", BRANCH, replace(DRIVERS_LOSS, has_branch=True)),
    "created_by_holder": ("`branches_looked_at`", LOST_BRANCH, replace(DRIVERS_LOSS, has_branch=True)),
    "fenced": ("`looked_again` and `own_skipped`", Switch(crashes=1), Switch(rounds=2, crashes=2)),
    "own_skipped": ("`fenced`", Switch(rounds=2, crashes=1), Switch(rounds=2, crashes=2)),
    "decide_conditional": ("`connections_ended`", DRIVERS, replace(DRIVERS, rounds=2)),
    "abort_conditional": ("`connections_ended`", DRIVERS, replace(DRIVERS, losses=1)),
    "abort_noted": ("who goes on from denying begins with the lock", DRIVERS, replace(DRIVERS, losses=1)),
}

SAFE_ALONE = frozenset(
    ("fence_attempt", "fence_open", "bump_spares_landed", "decide_conditional", "abort_conditional", "own_skipped")
)
"""What the design lists as safe to lose alone: each is a second line behind another rule."""
FINER = frozenset(
    (
        "attempts_numbered",
        "landed_with_rows",
        "locking_deletes",
        "matched_by_ledger",
        "table_lock",
        "branches_looked_at",
        "created_by_holder",
        "fenced",
        "abort_noted",
    )
)
"""Safe alone, too: parts of one rule of the design, or rules that these models have beside it."""
ONLY_MARKER = frozenset(("checkpoint_with_rows",))
"""Safe alone in that variant only."""


def variants_of(rules: tuple[str, ...]) -> tuple[str, ...]:
    """Those that have all of the rules."""
    if MARKER_ONLY & set(rules):
        return (MARKER,)
    return (POSITION,) if POSITION_ONLY & set(rules) else VARIANTS


def copy_removals() -> list[Removal]:
    found = []
    for name, b in COPY_NEEDED.items():
        rules = tuple(name.split(" + "))
        kept = variants_of(rules) if name not in ONLY_MARKER else (POSITION,)
        found += [Removal(rules=rules, bounds=bounds(v, **b)) for v in kept]
    for rule, (instead, b, larger) in COPY_SPARE.items():
        kept = variants_of((rule,)) if rule not in ONLY_MARKER else (MARKER,)
        for v in kept:
            more = bounds(v, **larger)
            found.append(Removal(rules=(rule,), bounds=bounds(v, **b), instead=instead, larger=more))
    return found


def switch_removals() -> list[Removal]:
    found = [Removal(rules=tuple(name.split(" + ")), bounds=b) for name, b in SWITCH_NEEDED.items()]
    for rule, (instead, b, larger) in SWITCH_SPARE.items():
        found.append(Removal(rules=(rule,), bounds=b, instead=instead, larger=larger))
    return found


REMOVALS = (*copy_removals(), *switch_removals())


def rules_of(variant: str) -> set[str]:
    """Of a variant of the copy, or of the switch ("")."""
    if not variant:
        return {f.name for f in fields(move_switch_world.Rules)}
    foreign = POSITION_ONLY if variant == MARKER else MARKER_ONLY
    return {f.name for f in fields(move_copy_world.Rules)} - foreign


def model_of(bounds: Bounds, *removed: str) -> Any:
    if isinstance(bounds, Copy):
        return CopyModel(bounds, without(move_copy_world.Rules(), *removed))
    return MoveSwitchModel(bounds, without(move_switch_world.Rules(), *removed))


@cache
def explored(bounds: Bounds, *removed: str) -> Found:
    """It is a fault, too, when from some state no end can be reached any more."""
    model = model_of(bounds, *removed)
    explorer: Explorer[Any] = Explorer(model, keeps_steps=True)
    found = explorer.run()
    if found.fault is None:
        return replace(found, fault=explorer.first_without(model.is_end))
    return found


def scenario_line(scenario: Scenario) -> str:
    """A row of the table in docs/correctness.md."""
    found = explored(scenario.bounds)
    end = "none" if found.fault is None and found.is_whole else "**FOUND**"
    model = "move, copy" if isinstance(scenario.bounds, Copy) else "move, switch"
    name = scenario.name.partition(", ")[2] if model == "move, copy" else scenario.name.partition(": ")[2]
    return f"| {name} | {model} | {found.states:,} | {found.steps:,} | {found.depth} | {end} |"


if __name__ == "__main__":
    for chosen in SCENARIOS:
        if chosen.in_suite or "--large" in sys.argv:
            print(scenario_line(chosen), flush=True)
