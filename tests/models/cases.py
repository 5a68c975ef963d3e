"""What is explored: scenarios with all rules, and for each rule the bounds in which its absence is tried.

What must stay true: every rule of both models is here, either with a counterexample that its absence must have, or as
one that is not needed alone, together with the rule that does its work; figures are exact, for nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests.models import rows_rules, rows_world, switch_rules, switch_world
from tests.models.explorer import Explorer, Found
from tests.models.rows_model import RowsModel
from tests.models.rows_world import without
from tests.models.switch_model import SwitchModel

Rows, Switch = rows_world.Bounds, switch_world.Bounds
Bounds = Rows | Switch

ONE = {"starts": ((1,),), "ranges": (1,), "key_changes": False}
"""One key."""
CHAIN = {"splits": ((0, 1),), "ranges": (0b01, 0b10)}
"""Two chunks of one split, the second opened by the commit that lands the first."""
SPLITS = {"splits": ((0,), (1,)), "ranges": (0b01, 0b10)}
"""Two chunks of two splits, copied side by side."""
UNIQUE = {"starts": ((1, 2), (1, 0)), "attempts": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All rules: nothing may be lost. in_suite: small enough for the tests of every day."""

    name: str
    bounds: Bounds
    in_suite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rules taken out. instead: what keeps the promise without them; then nothing must be lost, nor within `larger`."""

    rules: tuple[str, ...]
    bounds: Bounds
    instead: str = ""
    larger: Bounds | None = None

    @property
    def name(self) -> str:
        return " + ".join(self.rules)

    @property
    def model(self) -> str:
        return "rows" if isinstance(self.bounds, Rows) else "switch"


def scenario(name: str, bounds: Bounds, *, in_suite: bool = True) -> Scenario:
    return Scenario(name=name, bounds=bounds, in_suite=in_suite)


def large(name: str, bounds: Bounds) -> Scenario:
    return Scenario(name=name, bounds=bounds, in_suite=False)


SCENARIOS = (
    scenario("two attempts at a chunk", Rows(writes=2)),
    scenario("two chunks of a split", Rows(**CHAIN, attempts=1, writes=2)),
    scenario("two splits side by side", Rows(**SPLITS, attempts=1, writes=1)),
    scenario("catch-up crashes", Rows(attempts=1, writes=2, crashes=1)),
    scenario("catch-up crashes, two attempts", Rows(**ONE, writes=1, crashes=1)),
    scenario("a stopped catch-up wakes up", Rows(**ONE, attempts=1, writes=2, crashes=1, has_stale=True)),
    scenario("several workers, a crash", Rows(attempts=1, writes=1, crashes=1, workers=True)),
    scenario("preparation", Rows(attempts=1, writes=2, prepares=True, starts=((1, 0), (0, 0)))),
    scenario("preparation, a branch before", Rows(attempts=1, writes=1, prepares=True, branches_before=1)),
    scenario(
        "preparation, a branch before and one during, a crash",
        Rows(attempts=1, writes=0, prepares=True, branches_before=1, branches=1, crashes=1, key_changes=False),
    ),
    scenario("a branch, MariaDB", Rows(attempts=1, writes=1, branches=1, is_mariadb=True, key_changes=False)),
    scenario("a branch, a crash", Rows(**ONE, attempts=1, writes=1, branches=1, crashes=1)),
    scenario("the same unique key, two chunks", Rows(**CHAIN, **UNIQUE, writes=2, unique="same")),
    scenario("the same unique key, several workers", Rows(**UNIQUE, writes=2, unique="same", workers=True)),
    scenario("a new unique key", Rows(**UNIQUE, writes=2, unique="added", rounds=1)),
    scenario(
        "a new unique key, several workers, a crash",
        Rows(starts=((1, 2),), attempts=1, writes=1, unique="added", rounds=1, workers=True, crashes=1),
    ),
    scenario("a repair, another driver", Rows(attempts=1, writes=1, repairs=True)),
    scenario("begun again under the same id", Rows(**ONE, attempts=1, writes=2, begins_again=True)),
    scenario("the cut-over", Switch(runs=2)),
    scenario("the cut-over, lost sessions", Switch(runs=2, losses=2)),
    scenario("the cut-over, a branch, MariaDB", Switch(writers=1, has_branch=True)),
    scenario("the cut-over, a branch, MySQL", Switch(writers=1, has_branch=True, is_mariadb=False)),
    scenario(
        "the cut-over, catch-up crashes, a branch of other tables",
        Switch(writers=1, crashes=2, losses=1, has_foreign=True, earlier=2),
    ),
    scenario("the cut-over, another driver", Switch(writers=1, has_takeover=True)),
    scenario("the cut-over, another driver, a kill -9", Switch(writers=0, has_takeover=True, deaths=1, losses=1)),
    large("three attempts at a chunk", Rows(attempts=3, writes=2)),
    large("two attempts, three writes", Rows(attempts=2, writes=3)),
    large("two chunks of a split, two attempts", Rows(**CHAIN, attempts=2, writes=2)),
    large("two splits, two writes", Rows(**SPLITS, attempts=1, writes=2)),
    large("a branch, two writes, a crash", Rows(**ONE, attempts=1, writes=2, branches=1, crashes=1)),
    large("a stopped catch-up, three writes", Rows(**ONE, attempts=1, writes=3, crashes=1, has_stale=True)),
    large("two crashes", Rows(attempts=1, writes=2, crashes=2)),
    large("two attempts and a crash", Rows(attempts=2, writes=2, crashes=1)),
    large("two chunks, two attempts and a crash", Rows(**CHAIN, attempts=2, writes=1, crashes=1)),
    large("a stopped catch-up, two keys", Rows(attempts=1, writes=3, crashes=1, has_stale=True)),
    large("several workers, two writes, a crash", Rows(attempts=1, writes=2, crashes=1, workers=True)),
    large("a branch, two writes, MariaDB", Rows(attempts=1, writes=2, branches=1, is_mariadb=True)),
    large("two branches, MariaDB", Rows(attempts=1, writes=0, branches=2, is_mariadb=True)),
    large("a branch, a crash, two keys", Rows(attempts=1, writes=1, branches=1, crashes=1)),
    large("a branch, two attempts, a crash, MariaDB", Rows(**ONE, writes=1, branches=1, crashes=1, is_mariadb=True)),
    large("the same unique key, two splits", Rows(**SPLITS, **UNIQUE, writes=2, unique="same")),
    large("the same unique key, a crash", Rows(**UNIQUE, writes=2, unique="same", workers=True, crashes=1)),
    large("a new unique key, three writes", Rows(**UNIQUE, writes=3, unique="added", rounds=1)),
    large(
        "a new unique key, large batches",
        Rows(**UNIQUE, writes=3, unique="added", rounds=1, key_changes=False, batch=3),
    ),
    large(
        "a new unique key, several workers",
        Rows(**UNIQUE, writes=2, unique="added", rounds=1, workers=True),
    ),
    large(
        "a new unique key, several workers, two writes, a crash",
        Rows(**UNIQUE, writes=2, unique="added", rounds=1, workers=True, crashes=1),
    ),
    large("a new unique key, two chunks", Rows(**CHAIN, **UNIQUE, writes=2, unique="added", rounds=2)),
    large("a repair, two attempts", Rows(attempts=2, writes=1, repairs=True)),
    large("begun again, two keys", Rows(attempts=1, writes=2, begins_again=True)),
    large("the cut-over, another driver, two attempts", Switch(runs=2, writers=1, has_takeover=True)),
    large("the cut-over, another driver, losses", Switch(runs=2, writers=1, has_takeover=True, losses=1, deaths=1)),
    large("the cut-over, another driver, a branch", Switch(writers=1, has_takeover=True, has_branch=True, losses=1)),
    large("the cut-over, another driver, catch-up crashes", Switch(writers=1, has_takeover=True, crashes=1, deaths=1)),
)


def removal(rules: str, bounds: Bounds) -> Removal:
    return Removal(rules=tuple(rules.split(" + ")), bounds=bounds)


def spare(rule: str, instead: str, bounds: Bounds, larger: Bounds) -> Removal:
    return Removal(rules=(rule,), bounds=bounds, instead=instead, larger=larger)


SMALL = Rows(**ONE, attempts=1, writes=2)
TWO_ATTEMPTS = Rows(**ONE, writes=2)
TWO_AND_CRASH = Rows(**ONE, writes=2, crashes=1)
CRASH = Rows(**ONE, attempts=1, writes=1, crashes=1)
STALE = Rows(**ONE, attempts=1, writes=2, crashes=1, has_stale=True)
START = Rows(attempts=1, writes=1, prepares=True)
BRANCH = Rows(**ONE, attempts=1, writes=0, branches=1)
BRANCH_CRASH = Rows(**ONE, attempts=1, writes=0, branches=1, crashes=1)
BEFORE = Rows(**ONE, attempts=1, writes=0, branches_before=1, prepares=True)
SAME = Rows(starts=((1, 0),), attempts=1, writes=2, unique="same", workers=True)
ADDED = Rows(starts=((1, 0),), attempts=1, writes=2, unique="added", rounds=1)
THREE = Rows(starts=((1, 0),), attempts=1, writes=3, unique="added", rounds=1, key_changes=False, batch=1)
REPAIR = Rows(**ONE, attempts=1, writes=1, repairs=True)
AGAIN = Rows(**ONE, attempts=1, writes=1, begins_again=True)
LOSS = Switch(runs=1, writers=1, losses=1)
SWITCH_BRANCH = Switch(writers=1, has_branch=True, has_takeover=True, losses=1)
TAKEOVER = Switch(runs=2, writers=1, has_takeover=True)

REMOVALS = (
    removal("opened_before_read", SMALL),
    removal("opened_has_returned", SMALL),
    removal("ordered_commits", SMALL),
    removal("branches_awaited", Rows(**ONE, attempts=1, writes=0, branches=1, is_mariadb=True)),
    removal("copy_without_limit", Rows(attempts=1, writes=1, starts=((0, 1),))),
    removal("start_marker", START),
    removal("range_behind_marker", START),
    removal("tombstones", SMALL),
    removal("tombstones_of_old_keys", Rows(attempts=1, writes=1)),
    removal("tombstones_cleared", SMALL),
    removal("tombstones_durable", CRASH),
    removal("tombstones_with_rows", CRASH),
    spare("tombstones_never_reset", "`fence_attempt`, on one server", TWO_ATTEMPTS, TWO_AND_CRASH),
    removal("tombstones_never_reset + fence_attempt", TWO_ATTEMPTS),
    removal("tombstones_never_reset + landed_with_rows", TWO_ATTEMPTS),
    removal("pruned_behind_oldest", Rows(**SPLITS, attempts=1, writes=1, key_changes=False)),
    removal("rows_before_landed", SMALL),
    spare("landed_with_rows", "`tombstones_never_reset`", Rows(**ONE, writes=1, crashes=1), TWO_AND_CRASH),
    removal("landed_in_stream", SMALL),
    removal("locking_deletes", SMALL),
    removal("matched_with_deletes", CRASH),
    spare("fence_attempt", "`fence_open` and `tombstones_never_reset`", TWO_ATTEMPTS, TWO_AND_CRASH),
    spare("fence_open", "`claim_bumps`: no attempt has another's number", TWO_ATTEMPTS, TWO_AND_CRASH),
    spare("claim_bumps", "`fence_open`", TWO_ATTEMPTS, TWO_AND_CRASH),
    removal("fence_attempt + fence_open", TWO_ATTEMPTS),
    removal("fence_open + claim_bumps", TWO_ATTEMPTS),
    removal("fence_locks", TWO_ATTEMPTS),
    spare(
        "claim_spares_landed",
        "on one server the claim is in the log and opens the chunk again",
        TWO_ATTEMPTS,
        TWO_AND_CRASH,
    ),
    removal("landing_lease", AGAIN),
    removal("opening_lease", AGAIN),
    removal("not_cleaned", SMALL),
    removal("cleared_before_opened", REPAIR),
    removal("clearing_lease", REPAIR),
    removal("checkpoint_behind_rows", CRASH),
    removal("checkpoint_in_order", CRASH),
    removal("branches_remembered", BRANCH_CRASH),
    removal("branches_remembered + unknown_refused", BRANCH_CRASH),
    removal(
        "nothing_applied_twice",
        Rows(attempts=1, writes=0, prepares=True, branches_before=1, branches=1, crashes=1, key_changes=False),
    ),
    removal("applier_lease", STALE),
    removal("applier_lease_locks", STALE),
    removal("rows_held", BRANCH),
    removal("branches_ended_at_start", BEFORE),
    spare(
        "unknown_refused",
        "`branches_ended_at_start`",
        BEFORE,
        Rows(attempts=1, writes=1, branches_before=1, branches=1, prepares=True, key_changes=False),
    ),
    removal("branches_ended_at_start + unknown_refused", BEFORE),
    removal("full_barrier", SAME),
    removal("nothing_dropped", Rows(**CHAIN, starts=((1, 0),), attempts=1, writes=2, unique="same")),
    removal("pushed_out_noted", ADDED),
    removal("gate_copied", Rows(**CHAIN, attempts=1, writes=0, starts=((1, 1),))),
    spare("gate_matched", "`marker_applied`: the barrier comes behind every landed", CRASH, TWO_AND_CRASH),
    removal("gate_dirty", ADDED),
    removal("dirty_under_lock", ADDED),
    removal("pushed_out_tombstoned", THREE),
    removal("forgets_older", THREE),
    removal("lock_before_marker", LOSS),
    removal("marker_applied", LOSS),
    spare("branches_looked_at", "`table_lock`", Switch(writers=0, has_branch=True), SWITCH_BRANCH),
    spare("table_lock", "`branches_looked_at`", Switch(writers=0, has_branch=True), SWITCH_BRANCH),
    removal("branches_looked_at + table_lock", Switch(writers=0, has_branch=True)),
    spare(
        "holds",
        "nobody writes under the lock",
        Switch(writers=1, losses=1, crashes=1, has_foreign=True, earlier=1),
        Switch(runs=2, writers=2, losses=1, crashes=1, has_foreign=True, earlier=1),
    ),
    removal("sentry", LOSS),
    removal("rename_seen", LOSS),
    removal("dropped_by_holder", LOSS),
    removal("names_sort_after", LOSS),
    removal("looked_up", LOSS),
    removal("rename_gone", LOSS),
    removal("connections_ended", Switch(writers=1, has_takeover=True)),
    removal("list_is_newest", TAKEOVER),
    spare("lease_checked", "`connections_ended` and `list_is_newest`", Switch(writers=0, has_takeover=True), TAKEOVER),
    spare("lease_locked", "`connections_ended` and `list_is_newest`", Switch(writers=0, has_takeover=True), TAKEOVER),
    removal("removed_under_lease", Switch(writers=1, has_takeover=True)),
    removal("marker_fenced", Switch(writers=0, has_takeover=True)),
    removal("nothing_applied_twice", Switch(writers=0, crashes=1, has_foreign=True, earlier=2)),
)

CHUNK_PROTOCOL = {
    1: removal("opened_before_read + opened_has_returned", SMALL),
    2: removal("tombstones + tombstones_of_old_keys + tombstones_cleared + tombstones_with_rows", SMALL),
    3: removal("landed_with_rows + fence_attempt + fence_open + fence_locks", TWO_ATTEMPTS),
    4: removal("landed_in_stream + locking_deletes", SMALL),
    5: removal("checkpoint_behind_rows + tombstones_durable + branches_remembered", CRASH),
    6: removal("not_cleaned + cleared_before_opened", REPAIR),
}
"""The numbered rules of docs/correctness.md, and which of their parts are taken out together."""


def model_of(bounds: Bounds, *removed: str) -> Any:
    if isinstance(bounds, Rows):
        return RowsModel(bounds, without(rows_rules.Rules(), *removed))
    return SwitchModel(bounds, without(switch_rules.Rules(), *removed))


@cache
def explored(bounds: Bounds, *removed: str) -> Found:
    """Of the cut-over it is a fault, too, when catch-up comes to stand still for good."""
    explorer: Explorer[Any] = Explorer(model_of(bounds, *removed), keeps_steps=isinstance(bounds, Switch))
    found = explorer.run()
    if found.fault is None and isinstance(bounds, Switch):
        return replace(found, fault=explorer.first_without(lambda s: s.is_switched or not s.holding))
    return found
