"""Whole runs beside the peers, alternating: `python -m bench.peers --scenario whole,load --rows N --runs N`.

What must stay true: nothing is kept of a run that did not end well but the reason; every tool begins with a table at
rest in the buffer pool, in another order each round; after each run the table must hold what it held before.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cpu, load, machine, table, tools
from bench.report import say
from bench.results import Result
from bench.scenarios import SCENARIOS, USUAL, Contender, Scenario
from bench.tools import OURS, Outcome, Site
from sandbox import binaries, peers, servers
from sandbox.databases import create_database
from sandbox.install import ROOT
from vreplication.mysql.session import connect
from vreplication.settings import LONG_IDLE_SECONDS

FOLDER = ROOT / ".sandbox" / "bench-peers"
_ALONE_SECONDS, _SETTLE_SECONDS = 15.0, 2.0
_LIMIT_SECONDS = 1_800.0
_CONVERGE_ROWS, _CONVERGE_LIMIT, _CONVERGE_WRITERS, _CONVERGE_STEPS = 262_144, 90.0, 8, 4
_CONVERGE_LEAST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    scenarios: tuple[str, ...]
    rows: int
    runs: int
    flavors: tuple[str, ...]
    patience: float = 60.0
    contenders: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Bench:
    """All scenarios on one server."""

    asked: Asked
    site: Site
    records: list[dict[str, Any]] = field(default_factory=list)
    _filled: tuple[str, int] = ("", 0)
    _content: tuple[int, int] = (0, 0)

    def run(self) -> Iterator[None]:
        """Stops after each measured run, so that what there is can be saved."""
        for name in self.asked.scenarios:
            scenario = SCENARIOS[name]
            self._fill(scenario)
            yield from self._converge(scenario) if name == "converge" else self._rounds(scenario)

    def _fill(self, scenario: Scenario) -> None:
        """A table that is there in this size is used again."""
        rows = scenario.rows or (_CONVERGE_ROWS if scenario.name == "converge" else self.asked.rows)
        if self._filled == (scenario.shape.name, rows):
            return
        say(f"{self.site.flavor}: filling {scenario.shape.name} with {rows:,} rows")
        for shape in (table.NARROW, table.WIDE):
            self.site.session.execute_raw(f"DROP TABLE IF EXISTS {shape.name}")
        table.fill(self.site.session, rows, scenario.shape)
        self._filled, self.site.table = (scenario.shape.name, rows), scenario.shape.name
        self._content = table.content(self.site.session, scenario.shape)

    def _rounds(self, scenario: Scenario) -> Iterator[None]:
        contenders = [one for one in scenario.contenders if self._takes_part(one)]
        for number in range(self.asked.runs):
            turn = number % max(len(contenders), 1)
            for contender in contenders[turn:] + contenders[:turn]:
                self._keep(scenario, contender, number, self._measured(scenario, contender))
                yield

    def _takes_part(self, contender: Contender) -> bool:
        is_here = contender.tool == OURS or contender.tool in self.site.programs
        is_wanted = not self.asked.contenders or contender.name in self.asked.contenders
        return is_here and is_wanted and self.site.flavor in tools.FLAVORS[contender.tool]

    def _measured(self, scenario: Scenario, contender: Contender) -> Outcome:
        with machine.alone(self.asked.patience) as is_alone:
            self._rest()
            busy = table.wait_until_quiet(0 if is_alone else self.asked.patience)
            with self._snapshot(contender):
                if scenario.rate:
                    outcome, written = self._under_load(scenario, contender)
                else:
                    outcome, written = self._run(contender), None
        outcome.figures |= {"seconds": outcome.seconds, "busy_before": busy, "alone": float(is_alone)}
        self._check(scenario, outcome, written)
        return outcome

    def _rest(self) -> None:
        self.site.session.rows(f"ANALYZE TABLE {self.site.table}")
        table.rest(self.site.session)
        table.warm(self.site.session, self.site.table)

    @contextlib.contextmanager
    def _snapshot(self, contender: Contender) -> Iterator[None]:
        """An old read view, as a dump has it."""
        if not contender.snapshot:
            yield
            return
        with connect(self.site.database.app_url, idle_seconds=LONG_IDLE_SECONDS) as session:
            session.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            session.value(f"SELECT MAX(id) FROM {self.site.table}")
            yield

    def _run(self, contender: Contender, limit: float = _LIMIT_SECONDS) -> Outcome:
        """With what it costs in CPU time, which says something on a busy machine too."""
        server = self.site.database.server.pid
        used, ended, all_of_it = cpu.used(server), cpu.of_ended_children(), cpu.of_machine()
        with machine.Slowness() as slowness:
            if contender.copy_only:
                outcome = tools.copied(self.site, contender.options, limit)
            else:
                outcome = tools.run(self.site, contender.tool, contender.options, limit)
        outcome.figures["slowness"] = slowness.figure()
        outcome.figures["server_cpu"] = cpu.between(used, cpu.used(server))["server"]
        outcome.figures.setdefault("tool_cpu", cpu.of_ended_children() - ended)
        others = cpu.of_machine() - all_of_it - outcome.figures["server_cpu"] - outcome.figures["tool_cpu"]
        outcome.figures["others"] = max(others, 0.0) / outcome.seconds
        return outcome

    def _under_load(self, scenario: Scenario, contender: Contender) -> tuple[Outcome, load.Written]:
        with load.Load(self.site.database.app_url, self.site.table, rate=scenario.rate) as writers:
            time.sleep(_SETTLE_SECONDS)
            before = time.monotonic()
            time.sleep(_ALONE_SECONDS)
            outcome = self._run(contender)
            written = writers.stop()
        outcome.figures |= latencies(written, outcome, before)
        return outcome, written

    def _check(self, scenario: Scenario, outcome: Outcome, written: load.Written | None) -> None:
        """Without writers the content is the same; with them the number of rows, and what they wrote."""
        found = table.content(self.site.session, scenario.shape)
        if written and (written.lost or written.errors):
            lost = f"{written.lost} rows do not hold what was last written to them"
            told = [*([lost] if written.lost else ()), *written.errors[:2]]
            outcome.failed = outcome.failed or "; ".join(told)
        if found[0] != self._content[0] or (written is None and found != self._content):
            outcome.failed = outcome.failed or f"the table holds {found} instead of {self._content}"
        self._content = found

    def _keep(self, scenario: Scenario, contender: Contender, number: int, outcome: Outcome) -> None:
        figures = {name: round(value, 3) for name, value in outcome.figures.items()}
        one = {"scenario": scenario.name, "contender": contender.name, "round": number, "failed": outcome.failed}
        self.records.append({**one, "figures": figures})
        say(f"  {scenario.name:12} {contender.name:24} {outcome.failed or ''} {figures}")

    def _converge(self, scenario: Scenario) -> Iterator[None]:
        """The most updates a second that are really made while the tool comes to its end, halving what is unknown."""
        for contender in filter(self._takes_part, scenario.contenders):
            most = self._most()
            low, high, best, rate = _CONVERGE_LEAST, most, 0.0, most
            for _ in range(1 + _CONVERGE_STEPS):
                outcome = self._attempt(scenario, contender, rate)
                low, high = (low, rate) if outcome.failed else (rate, high)
                best = best if outcome.failed else max(best, outcome.figures["rate"])
                if low >= high:
                    break
                rate = (low * high) ** 0.5
                yield
            self._keep(scenario, contender, 0, Outcome(began=0, ended=0, figures={"rate": best, "most": most}))
            yield

    def _most(self) -> float:
        """Updates a second that the writers reach with nothing beside them."""
        with machine.alone(self.asked.patience), self._writers(None) as writers:
            began = time.monotonic()
            time.sleep(5.0)
            ended = time.monotonic()
            written = writers.stop()
        return len(written.between(began, ended)) / (ended - began)

    def _writers(self, rate: float | None) -> load.Load:
        return load.Load(self.site.database.app_url, self.site.table, rate=rate, writers=_CONVERGE_WRITERS)

    def _attempt(self, scenario: Scenario, contender: Contender, rate: float) -> Outcome:
        with machine.alone(self.asked.patience):
            self._rest()
            with self._writers(rate) as writers:
                outcome = self._run(contender, _CONVERGE_LIMIT)
                written = writers.stop()
        outcome.figures["rate"] = latencies(written, outcome, outcome.began)["rate"]
        self._check(scenario, outcome, written)
        made = f"{outcome.figures['rate']:.0f} made in {outcome.seconds:.1f} s"
        say(f"  converge     {contender.name:24} {rate:.0f}/s asked for, {made} {outcome.failed}")
        return outcome


def latencies(written: load.Written, outcome: Outcome, before: float) -> dict[str, float]:
    """Milliseconds of the updates that were due while the tool ran, and of those before it."""
    alone, during = written.between(before, outcome.began), written.between(outcome.began, outcome.ended)
    made = sum(outcome.began <= done < outcome.ended for done in written.done)
    return {
        "alone_p50": load.percentile(alone, 0.5),
        "alone_p99": load.percentile(alone, 0.99),
        "p50": load.percentile(during, 0.5),
        "p99": load.percentile(during, 0.99),
        "longest": during[-1] if during else 0.0,
        "rate": made / outcome.seconds,
        "retries": float(written.retries),
    }


def measure(asked: Asked, flavor: str, programs: dict[str, Path]) -> Iterator[list[dict[str, Any]]]:
    """Everything on one server; gives all records after each run."""
    folder = FOLDER / flavor
    shutil.rmtree(folder, ignore_errors=True)
    server = servers.start(flavor, folder, options=table.options(flavor))
    try:
        database = create_database(server, "bench")
        with server.admin("bench", read_timeout=3_600) as session:
            site = Site(database=database, session=session, folder=folder, table=table.NAME, programs=programs)
            bench = Bench(asked=asked, site=site)
            for _ in bench.run():
                yield bench.records
        database.close()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def prepared(asked: Asked, result: Result) -> dict[str, Path]:
    """The peers that there are; says who is missing, and why, and what all is measured on."""
    found = peers.prepare() if asked.scenarios else {}
    result.missing = {name: one.reason for name, one in found.items() if one.path is None}
    for name, reason in result.missing.items():
        say(f"bench: without {name}: {reason}")
    FOLDER.parent.mkdir(exist_ok=True)
    versions = {name: one.version for name, one in found.items() if one.path}
    result.machine = machine.described(FOLDER.parent, asked.flavors, versions)
    return {name: one.path for name, one in found.items() if one.path}


def compare(asked: Asked, result: Result, programs: dict[str, Path]) -> None:
    """All scenarios on all servers, written down after each run."""
    for flavor in asked.flavors if asked.scenarios else ():
        say(f"{flavor} {'.'.join(map(str, binaries.version(flavor)))}: {', '.join(asked.scenarios)}")
        earlier = result.records.get(flavor, [])
        for records in measure(asked, flavor, programs):
            result.records[flavor] = earlier + records
            result.save()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default=",".join(USUAL), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--contender", default="", help="only these")
    parser.add_argument("--rows", type=int, default=4_194_304)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--flavors", default="mariadb,mysql")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine before each")
    parser.add_argument("--name", default="", help="of results that are kept; runs are added to them")
    given = parser.parse_args(arguments)
    tools.begin()
    scenarios = tuple(given.scenario.split(","))
    if unknown := [name for name in scenarios if name not in SCENARIOS]:
        parser.error(f"unknown scenario {unknown[0]}; known: {', '.join(SCENARIOS)}")
    asked = Asked(
        scenarios=scenarios,
        rows=given.rows,
        runs=given.runs,
        flavors=tuple(given.flavors.split(",")),
        patience=given.patience,
        contenders=tuple(filter(None, given.contender.split(","))),
    )
    result = Result.of(given.name, asked.rows, asked.runs)
    try:
        compare(asked, result, prepared(asked, result))
    except (binaries.ServerMissing, servers.StartFailed) as error:
        say(f"bench: {error}")
        return 2
    print(result.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
