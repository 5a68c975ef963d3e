"""A change feed beside Debezium: the same stretches of one server's log, into one broker, one after the other.

    .venv/bin/python -m bench.feed               # --only throughput,latency,kills,xa,consume,giant,tables
                                                 # --flavors mysql,mariadb  --rounds 2  --rows 200000  --kills 20

Contenders alternate, in another order each round; a ratio is made of two runs of one round.

What must stay true: what has been measured is written before the next run begins; a run that failed is listed with its
reason and counts for nothing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench import feed_alone, feed_runs, feed_site, tools
from bench.feed_contenders import OFTEN, Contender, Debezium, Job, Ours, versions
from bench.feed_reader import Stuck
from bench.feed_report import Results
from bench.feed_runs import Cell, Figures
from bench.feed_site import NARROW, WIDE, Site, Stretch
from bench.report import say
from sandbox import connect
from sandbox.install import ROOT

FOLDER = ROOT / ".sandbox" / "bench-feed"
BESIDE = ("throughput", "latency", "kills", "xa")
ALONE = ("consume", "giant", "tables")
_KINDS = {
    "narrow, 1,000 rows": (NARROW, 1_000),
    "narrow, 1 row": (NARROW, 1),
    "wide, 1,000 rows": (WIDE, 1_000),
    "wide, 1 row": (WIDE, 1),
}
_BASE = "narrow, 1,000 rows"
THROUGHPUT = (
    *(Cell(kind=kind) for kind in _KINDS),
    *(Cell(kind=_BASE, partitions=count) for count in (1, 16)),
    *(Cell(kind=_BASE, interval=interval) for interval in (50, 1_000)),
)
LATENCY = (
    *(Cell(interval=interval) for interval in (0, 50, 200, 1_000)),
    *(Cell(partitions=count) for count in (1, 16)),
)
_numbers = itertools.count(1)


def _contenders(site: Site, number: int, asked: argparse.Namespace) -> list[Contender]:
    heap = (f"-Xms{min(256, asked.heap)}M", f"-Xmx{asked.heap}M")
    found: list[Contender] = [Ours(site=site)]
    if not asked.ours:
        found += [Debezium(site=site, exactly_once=once, heap=heap) for once in (True, False)]
    return found if number % 2 else found[::-1]


def _job(cell: Cell, start: feed_site.Place, table: str = "") -> Job:
    number = next(_numbers)
    name = f"f{number:03}"
    return Job(
        name=name, table=table or name, partitions=cell.partitions, interval=cell.interval, start=start
    )  # fmt: skip


def _is_asked(contender: Contender, cell: Cell) -> bool:
    """At-least-once is measured at the base only."""
    return contender.name != OFTEN or cell in (Cell(kind=_BASE), Cell(kind="narrow, 1 row"), Cell(interval=0))


def _throughput(site: Site, asked: argparse.Namespace) -> Callable[[Contender], Iterator[tuple[str, Figures]]]:
    stretches: dict[str, Stretch] = {}
    for number, (kind, (columns, each)) in enumerate(_KINDS.items()):
        # What is wide is large.
        rows = asked.rows // 2 if columns == WIDE or each == 1 else asked.rows
        stretches[kind] = site.stretch(f"stretch{number}", columns, rows, each)
        say(f"  {site.flavor}: {rows:,} rows in the log, {kind} a transaction")

    # A broker that has just started is slow, and would be so for whoever comes first.
    warm = stretches[_BASE]
    feed_runs.throughput(Ours(site=site), site, _job(Cell(kind=_BASE), warm.start, warm.table), warm)

    def measure(contender: Contender) -> Iterator[tuple[str, Figures]]:
        for cell in THROUGHPUT:
            if _is_asked(contender, cell):
                stretch = stretches[cell.kind]
                yield from _tried(
                    str(cell),
                    contender,
                    lambda cell=cell, stretch=stretch: feed_runs.throughput(
                        contender, site, _job(cell, stretch.start, stretch.table), stretch
                    ),
                )

    return measure


def _latency(site: Site, asked: argparse.Namespace) -> Callable[[Contender], Iterator[tuple[str, Figures]]]:
    def measure(contender: Contender) -> Iterator[tuple[str, Figures]]:
        for cell in LATENCY:
            if _is_asked(contender, cell):
                yield from _tried(
                    str(cell),
                    contender,
                    lambda cell=cell: feed_runs.latency(contender, site, _job(cell, site.place()), asked.seconds),
                )

    return measure


def _kills(site: Site, asked: argparse.Namespace) -> Callable[[Contender], Iterator[tuple[str, Figures]]]:
    def measure(contender: Contender) -> Iterator[tuple[str, Figures]]:
        draw = random.Random(asked.seed)
        yield from _tried(
            f"{asked.kills} kills",
            contender,
            lambda: feed_runs.kills(contender, site, _job(Cell(), site.place()), asked.kills, draw),
        )

    return measure


def _xa(site: Site, asked: argparse.Namespace) -> Callable[[Contender], Iterator[tuple[str, Figures]]]:
    def measure(contender: Contender) -> Iterator[tuple[str, Figures]]:
        if contender.name != OFTEN:
            yield from _tried(
                "40 branches, 20 rolled back",
                contender,
                lambda: feed_runs.branches(contender, site, _job(Cell(), site.place()), 40),
            )

    return measure


def _tried(cell: str, contender: Contender, measure: Callable[[], Figures]) -> Iterator[tuple[str, Figures]]:
    try:
        yield cell, measure()
    except (Stuck, RuntimeError, OSError) as error:
        say(f"  failed: {error}")
        yield f"{cell}: {str(error)[-600:]}", {}


_MEASURES = {"throughput": _throughput, "latency": _latency, "kills": _kills, "xa": _xa}
_ONE_ROUND = ("kills", "xa")


def _beside(site: Site, asked: argparse.Namespace, results: Results) -> None:
    for scenario in (name for name in BESIDE if name in asked.only):
        measure = _MEASURES[scenario](site, asked)
        for number in range(1, 2 if scenario in _ONE_ROUND else asked.rounds + 1):
            for contender in _contenders(site, number, asked):
                try:
                    for cell, figures in measure(contender):
                        results.add(site.flavor, scenario, cell, contender.name, number, figures)
                finally:
                    contender.close()


@contextmanager
def _site(flavor: str) -> Iterator[Site]:
    site = feed_site.opened(flavor, FOLDER / flavor)
    try:
        yield site
    finally:
        site.close()


def measure(flavor: str, asked: argparse.Namespace, results: Results) -> None:
    if set(asked.only) & {*BESIDE, "consume"}:
        with _site(flavor) as site:
            results.machine = results.machine or feed_site.described(site, versions(flavor))
            _beside(site, asked, results)
            if "consume" in asked.only:
                feed_alone.consume(site, asked.rows, results)
    if "giant" in asked.only:
        feed_alone.giant(flavor, FOLDER / flavor, asked.giant, results)
    if "tables" in asked.only:
        feed_alone.tables(flavor, FOLDER / flavor, asked.tables, results)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.feed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join((*BESIDE, "consume")), help="or all")
    parser.add_argument("--flavors", default="mysql")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--rows", type=int, default=200_000, help="of a stretch; wide ones and one-row transactions half as many"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement of latency")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--giant", type=int, default=5_000_000, help="rows of the giant transaction")
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--heap", type=int, default=2_048, help="MiB that the JVM of Kafka Connect may take at most")
    parser.add_argument("--ours", action="store_true", help="without Debezium")
    parser.add_argument("--name", default="", help="keep the results in bench/results/NAME")
    asked = parser.parse_args(arguments)
    asked.only = [*BESIDE, *ALONE] if asked.only == "all" else asked.only.split(",")
    if unknown := set(asked.only) - {*BESIDE, *ALONE}:
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    tools.begin()
    flavors = asked.flavors.split(",")
    if not asked.ours and set(asked.only) & set(BESIDE):
        connect.prepare(flavors)
    results = Results(
        name=asked.name, options={key: getattr(asked, key) for key in ("rows", "rounds", "heap", "kills")}
    )
    for flavor in flavors:
        measure(flavor, asked, results)
    print(results.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
