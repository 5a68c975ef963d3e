"""What is explored of the changefeed: scenarios with all rules, and each rule taken out.

`python -m tests.models.feed_cases [--large]` tells the states of each and the traces.

What must stay true: every rule of both models is here, either with a counterexample that its absence must have, or as
one that is not needed alone, together with what does its work then. Numbers are those of the design: P, C, D, E its
paragraphs, S and R the configurations that were explored before it was written.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.models import feed_align, feed_world
from tests.models.explorer import Explorer, Found
from tests.models.feed import FeedModel
from tests.models.feed_align import AlignModel
from tests.models.rows_world import without

Feed, Align = feed_world.Bounds, feed_align.Bounds
Bounds = Feed | Align


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """least: states that there are at the least, so that the model cannot become empty. rules: those that are not
    there, and need not be."""

    number: str
    name: str
    bounds: Bounds
    least: int
    rules: tuple[str, ...] = ()
    in_suite: bool = True

    @property
    def id(self) -> str:
        return f"{self.number} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rules taken out. instead: what keeps the promise without them; then nothing is wrong."""

    number: str
    rules: tuple[str, ...]
    bounds: Bounds
    instead: str = ""

    @property
    def id(self) -> str:
        return f"{self.number} {' + '.join(self.rules)}"


AB, B = ("A", "B"), ("B",)
TWO_VALUES = (None, "a", "b")
TWO = (AB, B)
THREE = (AB, B, AB)
DDLS = (AB, ("D",), AB)
PARTS = (("A",), AB, B)
"""The second one may be giant."""
BEHIND = (("B", "C"), AB, ("A",))
"""The first one may be giant: of two partitions it has nothing for the one of A."""
MOVES = (("A",), ("AB",), ("A",))
"""A becomes B, and comes again."""
FIVE = (AB, ("B", "C"), ("A", "B", "C"))


def late(**values: Any) -> Feed:
    return Feed(**{"lates": 1, "is_fine": True, "counts": (1, 2), **values})


def loose(**values: Any) -> Feed:
    return Feed(**{"is_loose": True, "source": TWO, **values})


def scenario(number: str, name: str, bounds: Bounds, least: int, rules: str = "") -> Scenario:
    return Scenario(number=number, name=name, bounds=bounds, least=least, rules=tuple(rules.split()))


def large(number: str, name: str, bounds: Bounds, least: int, rules: str = "") -> Scenario:
    taken = tuple(rules.split())
    return Scenario(number=number, name=name, bounds=bounds, least=least, rules=taken, in_suite=False)


def ahead(**values: Any) -> Feed:
    return Feed(**{"counts": (2,), "source": BEHIND, "giant": 1, "ahead": 3, **values})


CRASHES = {"crashes": 1, "has_zombie": True}

SCENARIOS = (
    scenario("S1", "row mode, 1-2-1, crash and zombie", Feed(**CRASHES), 25_000),
    scenario("S1", "the same, records one by one", Feed(**CRASHES, is_fine=True), 70_000),
    scenario("S1", "the consumer reads meanwhile", Feed(counts=(1, 2), crashes=1, is_concurrent=True), 1_200),
    scenario("S2", "transaction mode, 1-2-1, crash and zombie", Feed(**CRASHES, by_transaction=True), 25_000),
    scenario("S3", "DDL, 1-2-1, crash and zombie", Feed(**CRASHES, source=DDLS), 25_000),
    scenario("S4", "transaction mode, DDL, two crashes", Feed(crashes=2, source=DDLS, by_transaction=True), 1_500),
    scenario("S5", "2-3-2, three keys, crash and zombie", Feed(**CRASHES, source=FIVE, counts=(2, 3, 2)), 25_000),
    scenario("S5", "2-1-2, an idle partition comes again", Feed(crashes=1, counts=(2, 1, 2)), 1_000),
    scenario("S6", "giant, crash and zombie", Feed(**CRASHES, giant=2, source=PARTS), 15_000),
    scenario("S7", "giant, transaction mode", Feed(crashes=1, giant=1, by_transaction=True), 700),
    scenario("P6", "ahead of a giant, crash and zombie", ahead(**CRASHES), 20_000),
    scenario("P6", "ahead of a giant, the consumer reads meanwhile", ahead(crashes=1, is_concurrent=True), 1_700),
    scenario(
        "P6", "ahead of a giant, transaction mode, 2-1", ahead(counts=(2, 1), crashes=1, by_transaction=True), 900
    ),
    scenario("P6", "ahead of a giant, aborts, late EndTxn", ahead(aborts=1, lates=1, is_fine=True), 15_000),
    scenario("P6", "the same, crash, 2-1", ahead(counts=(2, 1), crashes=1, lates=1, is_fine=True), 25_000),
    scenario("S8", "hung consumer", Feed(crashes=1, hangs=1), 1_500),
    scenario("S8", "hung consumer, transaction mode", Feed(crashes=1, hangs=1, by_transaction=True), 1_300),
    scenario("S16", "somebody adds partitions", Feed(counts=(1, 2), outsiders=1), 400),
    scenario("3", "the broker loses a record", Feed(counts=(1, 2), losses=1), 700),
    scenario("P9", "the partition key changes", Feed(crashes=1, source=MOVES), 1_000),
    scenario("S17", "late EndTxn, 1-2-1, crash", late(counts=(1, 2, 1), crashes=1), 20_000),
    scenario("S17", "late EndTxn, aborts, crash", late(aborts=1, crashes=1), 30_000),
    scenario("S18", "late EndTxn, transaction mode", late(counts=(1, 2, 1), crashes=1, by_transaction=True), 20_000),
    scenario("S19", "late EndTxn, DDL, 1-2", late(crashes=1, source=DDLS), 9_000),
    scenario("S17", "late EndTxn, giant", late(crashes=1, giant=2, source=PARTS), 3_000),
    scenario("S9", "no Kafka transactions, crash", loose(counts=(2,), crashes=1), 3_000, "fence"),
    scenario("S9", "the same, all sent again", loose(counts=(2,), crashes=1), 5_000, "fence tails_skipped"),
    scenario("S10", "the same, zombie", loose(counts=(1,), has_zombie=True), 35_000, "fence"),
    scenario("S12", "the same, DDL", loose(counts=(1,), crashes=1, source=(AB, ("D",), B)), 3_000, "fence"),
    scenario("S13", "the same, 1-2, fenced", loose(counts=(1, 2), crashes=1), 10_000),
    scenario("S14", "the same, 1-2-1, fenced", loose(crashes=1, source=(AB,)), 1_700),
    scenario("S15", "the same, 2-1, transaction mode", loose(counts=(2, 1), crashes=1, by_transaction=True), 6_000),
    scenario("C", "Align, all lists of 3 transactions", Align(), 900),
    scenario("C", "Align, a run dies at any time", Align(has_crash=True, values=TWO_VALUES), 100_000),
    large("S1", "the consumer reads meanwhile, 1-2-1", Feed(**CRASHES, is_concurrent=True), 150_000),
    large("S5", "2-3-2, one by one", Feed(**CRASHES, source=FIVE, counts=(2, 3, 2), is_fine=True), 100_000),
    large("S17", "late EndTxn, zombie, 1-2-1", late(counts=(1, 2, 1), has_zombie=True), 250_000),
    large("S17", "late EndTxn twice, crash, 2-1-2", late(counts=(2, 1, 2), crashes=1, lates=2), 100_000),
    large("S10", "zombie, two partitions", loose(counts=(2,), has_zombie=True, batch=1), 400_000, "fence"),
    large("S12", "DDL, two partitions", loose(counts=(2,), crashes=1, source=(AB, ("D",), B)), 50_000, "fence"),
    large("C", "Align, all lists of 4, two values", Align(length=4, has_crash=True, values=TWO_VALUES), 500_000),
)


def needed(number: str, rules: str, bounds: Bounds) -> Removal:
    return Removal(number=number, rules=tuple(rules.split()), bounds=bounds)


def spare(number: str, rules: str, bounds: Bounds, instead: str) -> Removal:
    return Removal(number=number, rules=tuple(rules.split()), bounds=bounds, instead=instead)


ONE = Feed(counts=(2,))
WHOLE = Feed(counts=(2,), by_transaction=True)
SCALED = Feed(counts=(1, 2), crashes=1)
BACK = Feed(counts=(2, 1), crashes=1)
DDL = Feed(counts=(2,), source=DDLS)
ABORTS = late(counts=(2,), aborts=1)
NOTICED = late(aborts=1, is_noticed=True)
LOSS = Feed(counts=(2,), losses=1)
SEED = loose(counts=(1, 2), crashes=1)
ZOMBIE = loose(counts=(1, 2), has_zombie=True, source=(AB,), batch=1)
LONE = loose(counts=(2, 1), crashes=1, source=(AB,))
GIANT = Feed(counts=(1, 2), giant=2, source=PARTS, crashes=1)

REMOVALS = (
    needed("P1 R1", "fence", Feed(counts=(2,), has_zombie=True)),
    needed("P1", "fence_first", Feed(counts=(2,), has_zombie=True)),
    spare("P2 R2", "progress_inside", Feed(crashes=1), "`tails_skipped`: what is there is found"),
    needed("P2 R2", "progress_inside tails_skipped", Feed(crashes=1)),
    needed("P3 R30", "progress_behind_flush", late()),
    spare("P3 R30", "progress_behind_flush", NOTICED, "`reborn_after_slow`, if no second EndTxn stays unnoticed"),
    needed("P3 R30, P4", "progress_behind_flush reborn_after_slow", NOTICED),
    needed("P3 R22", "progress_behind_flush", SEED),
    needed("R23", "fence progress_leased", loose(counts=(1,), has_zombie=True)),
    spare("R23", "progress_leased", loose(counts=(1,), has_zombie=True), "`fence`"),
    needed("P4", "reborn_after_abort", ABORTS),
    spare("P4", "reborn_after_slow", NOTICED, "`progress_behind_flush`, `verified` and `tails_awaited`"),
    needed("P4", "verified", ABORTS),
    spare("P4", "verified", NOTICED, "`reborn_after_slow`, if no second EndTxn stays unnoticed"),
    needed("P5 R20", "in_order", SEED),
    needed("P6", "order_of_log", Feed(counts=(1,))),
    needed("P7", "tails_skipped", late()),
    needed("P7", "tails_kept", late(crashes=1)),
    needed("P7 R29", "tails_awaited", late(counts=(2, 1), crashes=1)),
    needed("P7 R24", "tails_awaited tails_skipped", SEED),
    needed("P7", "tails_kept", ahead(crashes=1)),
    needed("P6", "ahead_elsewhere", ahead()),
    needed("P6", "ahead_noted", ahead()),
    needed("P7", "ahead_found_kept", ahead(crashes=2)),
    needed("P6", "ahead_resolved_apart", ahead()),
    needed("P8 R21", "resolved_behind_rows", SEED),
    needed("2.4 R7", "resolved_to_all", ONE),
    needed("P9 R10", "resolved_behind_giant", Feed(counts=(2,), giant=2, source=PARTS, by_transaction=True)),
    needed("P8 R8", "ddl_to_all", DDL),
    needed("P8 R9", "ddl_to_all ddl_awaits_all", DDL),
    needed("P9", "key_changes_split", Feed(counts=(2,), source=MOVES)),
    needed("4 R3", "pinned", Feed(counts=(1, 2), source=TWO, outsiders=1)),
    spare("E1", "resolved_before_admin", SEED, "`admin_resolves`"),
    needed("E1", "resolved_before_admin admin_resolves", SEED),
    needed("E4 R4", "admin_sent", SCALED),
    needed("E4 R5", "admin_to_old", BACK),
    spare("E4 R6", "admin_to_new", Feed(crashes=1, counts=(2, 1, 2)), "each message tells its generation"),
    needed("E2 R31", "intent", late(crashes=1)),
    needed("P9 R11", "not_in_giant", GIANT),
    needed("D1 R24", "read_committed", BACK),
    spare("D1 S9", "read_committed", Feed(counts=(2,), **CRASHES, is_fine=True), "n, as long as nothing is scaled"),
    needed("D1 R14", "saved_with_rows", ONE),
    needed("D1 R15", "compared", Feed(counts=(2,), hangs=1)),
    needed("D2 R16", "least_resolved", WHOLE),
    needed("3 R17", "numbers_compared", ONE),
    needed("3", "gaps_stop", LOSS),
    needed("A", "resolved_carries_n", LOSS),
    needed("D3 R18", "applied_stored", WHOLE),
    needed("D3 R19", "offset_waits", late(counts=(2,))),
    spare("D3 R19", "offset_waits tails_skipped", loose(counts=(2,), crashes=1), "the producer sends them again"),
    needed("D3", "resolved_waits", late(counts=(2,), source=(AB, AB, B), by_transaction=True)),
    needed("D4", "rows_before_ddl", DDL),
    needed("D4 R12", "ddl_awaits_all", DDL),
    needed("D4", "ddl_looked_up", DDL),
    spare("D5 R27", "older_ignored", SEED, "`fence` and `tails_awaited`: there are none"),
    spare("D5 R26", "fence", ZOMBIE, "`older_ignored`, in so small a case"),
    needed("D5 R27", "fence older_ignored", ZOMBIE),
    needed("E R13", "admin_awaits_all", Feed(counts=(2, 1))),
    needed("E", "admin_resolves", Feed(counts=(1, 2), losses=1)),
    spare("E R28", "waiting_dropped", SEED, "`tails_awaited`: none wait that come again"),
    spare("E R25", "watermark_set", SEED, "`tails_awaited`: it is not above"),
    spare("E R25", "tails_awaited tails_skipped", LONE, "`watermark_set`, in so small a case"),
    needed("E R25", "tails_awaited tails_skipped watermark_set", LONE),
    needed("C", "align_sent", Align()),
    needed("C", "align_to_all", Align()),
    needed("C", "align_awaited", Align()),
    needed("C", "later_counts", Align(has_crash=True)),
    needed("C", "by_place", Align(has_crash=True)),
    needed("C", "tail_superseded", Align(has_crash=True, values=TWO_VALUES)),
    needed("C", "tail_counts", Align(has_crash=True)),
    needed("C", "before_images", Align(values=TWO_VALUES)),
    needed("C", "after_images", Align()),
    needed("C", "collation", Align()),
    needed("C", "align_at_start", Align(has_crash=True)),
)

NEVER_ALONE = frozenset(
    (
        "progress_inside",
        "progress_leased",
        "reborn_after_slow",
        "resolved_before_admin",
        "admin_to_new",
        "older_ignored",
        "waiting_dropped",
        "watermark_set",
    )
)
"""Harmless when lost alone, in all that was tried."""


def model_of(bounds: Bounds, *removed: str) -> Any:
    if isinstance(bounds, Align):
        return AlignModel(bounds, without(feed_align.Rules(), *removed))
    return FeedModel(bounds, without(feed_world.Rules(), *removed))


@cache
def explored(bounds: Bounds, *removed: str) -> Found:
    """Each step uses something up, so a run that does not end well ends in a state without a step."""
    explorer: Explorer[Any] = Explorer(model_of(bounds, *removed))
    return explorer.run()


def lines(*, is_large: bool) -> list[str]:
    found = []
    for one in (s for s in SCENARIOS if s.in_suite or is_large):
        f = explored(one.bounds, *one.rules)
        found.append(f"{one.id}: {f.states:,} states, {f.seconds:.1f} s, {f.fault or 'nothing wrong'}")
    for removal in REMOVALS:
        f = explored(removal.bounds, *removal.rules)
        found.append(f"without {removal.id}: {f.states:,} states, {f.seconds:.1f} s\n{f.fault or removal.instead}")
    return found


if __name__ == "__main__":
    print("\n".join(lines(is_large="--large" in sys.argv)))
