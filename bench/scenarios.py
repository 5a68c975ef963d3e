"""What is measured side by side, as data: which contenders, on which table, under which writes; and what is wanted.

What must stay true: a figure has the name `scenario.contender.what`, and a ratio is made of two such figures of one
round on one server.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import table
from bench.report import Figure
from bench.tools import GH_OST, OURS, PT, SPIRIT

RATE = 800.0
"""Updates of one row each, a second."""
LARGEST_CHUNK = 65_535
"""Ours copies in no larger ones (docs/correctness.md): 100,000, 1,000,000 and no limit at all come to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """copy_only: until it could switch, then cancelled (ours alone). snapshot: another session holds one meanwhile."""

    name: str
    tool: str = OURS
    options: tuple[str, ...] = ()
    copy_only: bool = False
    snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """rows None: as many as are asked for. rate: of all writers together, 0 without them."""

    name: str
    sentence: str
    contenders: tuple[Contender, ...]
    shape: table.Shape = table.NARROW
    rows: int | None = None
    rate: float = 0.0


TOOLS = tuple(Contender(name=name, tool=name) for name in (OURS, GH_OST, SPIRIT, PT))
TWO = TOOLS[:2]


def _limits() -> tuple[Contender, ...]:
    sizes = (("1000", 1_000), ("10000", 10_000), ("largest", LARGEST_CHUNK))
    return tuple(
        Contender(
            name=f"{name}{'_snapshot' if snapshot else ''}",
            options=("--chunk-rows", str(rows)),
            copy_only=True,
            snapshot=snapshot,
        )
        for snapshot in (False, True)
        for name, rows in sizes
    )


SCENARIOS = {
    found.name: found
    for found in (
        Scenario(name="whole", sentence="no traffic", contenders=TOOLS),
        Scenario(name="load", sentence=f"{RATE:.0f} one-row updates a second", contenders=TOOLS, rate=RATE),
        Scenario(name="large", sentence="the seed's size, no traffic", contenders=TWO, rows=16_777_216),
        Scenario(name="wide", sentence="rows of 1 KB, two indexes", contenders=TWO, shape=table.WIDE, rows=1_000_000),
        Scenario(name="limits", sentence="chunk sizes", contenders=_limits()),
        Scenario(name="limits_load", sentence="chunk sizes, with updates", contenders=_limits(), rate=RATE),
        Scenario(name="converge", sentence="most writes a second at which it still comes to its end", contenders=TWO),
    )
}
USUAL = ("whole", "load", "wide", "limits", "limits_load", "converge")
"""Without the one that takes hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Wanted: at most this much; at least, where `at_least`."""

    over: str
    under: str
    sentence: str
    mysql: float | None = None
    mariadb: float | None = None
    at_least: bool = False

    @property
    def name(self) -> str:
        return f"{self.over} ÷ {self.under}"

    def figure(self) -> Figure:
        return Figure(
            name=self.name,
            sentence=self.sentence,
            unit="",
            mysql=self.mysql,
            mariadb=self.mariadb,
            at_least=self.at_least,
        )


def _of_limits() -> tuple[Ratio, ...]:
    wanted = {"1000": 1.3, "10000": 1.05}
    return tuple(
        Ratio(
            over=f"{scenario}.{size}{held}.copy",
            under=f"{scenario}.largest{held}.copy",
            sentence=f"LIMIT {int(size):,} ÷ largest, copy alone{told}{', a snapshot held' if held else ''}",
            mysql=most,
            mariadb=most,
        )
        for scenario, told in (("limits", ""), ("limits_load", f", {RATE:.0f} writes/s"))
        for held in ("", "_snapshot")
        for size, most in wanted.items()
    )


RATIOS = (
    Ratio(
        over="whole.ours.seconds",
        under="whole.gh-ost.seconds",
        sentence="whole, verified ÷ gh-ost, no traffic",
        mysql=0.70,
        mariadb=0.80,
    ),
    Ratio(
        over="large.ours.seconds",
        under="large.gh-ost.seconds",
        sentence="the same, 16,777,216 rows",
        mysql=0.62,
        mariadb=0.72,
    ),
    Ratio(
        over="whole.ours.seconds",
        under=f"whole.{PT}.seconds",
        sentence="whole ÷ pt-online-schema-change",
        mariadb=1.0,
    ),
    Ratio(
        over="whole.ours.seconds", under="whole.spirit.seconds", sentence="whole ÷ spirit, which verifies", mysql=0.8
    ),
    Ratio(
        over="load.ours.seconds",
        under="load.gh-ost.seconds",
        sentence=f"with {RATE:.0f} writes/s: whole ÷ gh-ost",
        mysql=0.9,
        mariadb=0.9,
    ),
    Ratio(
        over="load.ours.p99",
        under="load.gh-ost.p99",
        sentence="the writers' p99 ÷ during gh-ost",
        mysql=1.0,
        mariadb=1.0,
    ),
    Ratio(
        over="load.ours.verify",
        under="whole.ours.verify",
        sentence="verification with writers ÷ without",
        mysql=1.5,
        mariadb=1.5,
    ),
    Ratio(over="load.ours.copy", under="whole.ours.copy", sentence="copy with writers ÷ without"),
    *_of_limits(),
    Ratio(
        over="wide.ours.seconds",
        under="wide.gh-ost.seconds",
        sentence="rows of 1 KB, two secondary indexes: whole ÷ gh-ost",
        mysql=0.7,
        mariadb=0.8,
    ),
    Ratio(
        over="converge.ours.rate",
        under="converge.gh-ost.rate",
        sentence="most writes/s at which it comes to its end ÷ gh-ost's",
        mysql=2.0,
        mariadb=2.0,
        at_least=True,
    ),
)
