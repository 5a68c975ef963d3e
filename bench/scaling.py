"""How the copy scales with its tasks: `python -m bench.scaling`. What comes of it stands in docs/scaling.md.

What must stay true: the model is fitted to what one task needs and to what the server alone can do, never to the
measurements that it predicts; what others used of the machine meanwhile is measured, and told to the model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import baselines, cluster, decode, machine, table, tools
from bench.report import say
from bench.tools import Site
from sandbox import servers
from sandbox.databases import create_database
from sandbox.install import ROOT

FOLDER = ROOT / ".sandbox" / "bench-scaling"
TASKS = (1, 2, 4)
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One copy, seconds; others: cores that everybody else used meanwhile. log_bytes: of both logs of the server."""

    name: str
    tasks: int
    seconds: float
    server_cpu: float
    tool_cpu: float
    others: float
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Microseconds a row. alone: what one task takes, its waits included. cpu: of everybody who works on the copy.

    log, reader, turn: what can be done once at a time only: writing both logs, reading them, and inserting, where the
    server lets one insert at a time (0 where it does not).
    """

    alone: float
    cpu: float
    log: float
    reader: float
    turn: float

    def seconds(self, rows: int, tasks: int, cores: float) -> float:
        """The slowest of three: the tasks' own time, shared out; all CPU time, shared out; what is done one by one."""
        return rows / 1e6 * max(self.alone / tasks, self.cpu / cores, self.log, self.reader, self.turn)

    def limit(self, tasks: int, cores: float) -> str:
        """Which of them it is."""
        parts = {"tasks": self.alone / tasks, "cores": self.cpu / cores}
        parts |= {"log": self.log, "reader": self.reader, "turns": self.turn}
        return max(parts, key=lambda name: parts[name])


def fitted(measured: Sequence[Measured], rows: int, *, bandwidth: float, reader_rate: float, insert: float) -> Costs:
    """Of the copies by one task alone. bandwidth: bytes a second; insert: seconds of one plain statement, 0: no turns.

    The least time is the one that others disturbed least; CPU time they hardly change.
    """
    ones = [one for one in measured if one.tasks == 1]
    each = 1e6 / rows
    return Costs(
        alone=min(one.seconds for one in ones) * each,
        cpu=statistics.median(one.server_cpu + one.tool_cpu for one in ones) * each,
        log=statistics.median(one.log_bytes for one in ones) * each / bandwidth,
        reader=1e6 / reader_rate,
        turn=insert * each,
    )


def table_of(found: Mapping[str, Any], flavor: str, cores: int) -> str:
    """Markdown: what was measured, what the model says to it, and by how much that is wrong."""
    costs, rows = Costs(**found[flavor]["costs"]), found["rows"]
    lines = ["| tasks | cores left | measured | model | error | limit |", "|---" * 6 + "|"]
    for one in (Measured(**each) for each in found[flavor]["measured"]):
        left = max(cores - one.others, 0.1)
        said = costs.seconds(rows, one.tasks, left)
        shown = f"{one.seconds:.1f} s | {said:.1f} s | {said / one.seconds - 1:+.0%} | {costs.limit(one.tasks, left)}"
        lines.append(f"| {one.name} | {left:.1f} | {shown} |")
    return "\n".join(lines)


def copies(site: Site, runs: int, patience: float) -> Iterator[Measured]:
    """Each number of tasks in turn, then the cluster."""
    for _ in range(runs):
        for tasks in TASKS:
            yield _copied(site, f"{tasks}", tasks, ("--copy-parallelism", str(tasks)), patience)
        with cluster.started(site.folder / "spark", WORKERS) as found:
            words = ("--copy-parallelism", str(WORKERS), "--spark-master", found.master)
            yield _copied(site, f"{WORKERS} workers", WORKERS, words, patience, found.workers)


def _copied(
    site: Site, name: str, tasks: int, options: tuple[str, ...], patience: float, helpers: tuple[int, ...] = ()
) -> Measured:
    with machine.alone(patience):
        table.rest(site.session)
        table.warm(site.session)
        before = _log_bytes(site)
        outcome = tools.copied(site, options, 900.0, helpers)
        written = _log_bytes(site) - before
    if outcome.failed:
        raise RuntimeError(outcome.failed)
    found = outcome.figures
    return Measured(
        name=name,
        tasks=tasks,
        seconds=round(found["copy"], 3),
        server_cpu=found["copy_server_cpu"],
        tool_cpu=found["copy_tool_cpu"],
        others=round(found["copy_others_cpu"] / found["copy"], 2),
        log_bytes=written,
    )


def _log_bytes(site: Site) -> int:
    status = site.session.row("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")
    files = site.session.rows("SHOW BINARY LOGS")
    return int(status[1] if status else 0) + sum(int(row[1]) for row in files)


def measure(flavor: str, rows: int, runs: int, patience: float) -> tuple[list[Measured], float]:
    """The copies, and the seconds of one plain statement."""
    folder = FOLDER / flavor
    shutil.rmtree(folder, ignore_errors=True)
    server = servers.start(flavor, folder, options=table.options(flavor))
    try:
        database = create_database(server, "bench")
        with server.admin("bench", read_timeout=3_600) as session:
            table.fill(session, rows)
            site = Site(database=database, session=session, folder=folder, table=table.NAME, programs={})
            statements = [_statement(site, patience) for _ in range(runs)]
            return [_told(flavor, one) for one in copies(site, runs, patience)], min(statements)
    finally:
        with contextlib.suppress(Exception):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _statement(site: Site, patience: float) -> float:
    with machine.alone(patience):
        table.rest(site.session)
        table.warm(site.session)
        seconds = baselines.insert_select(site.session)
    baselines.drop(site.session)
    return seconds


def _told(flavor: str, one: Measured) -> Measured:
    say(f"{flavor}: {one}")
    return one


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_194_304)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--flavors", default="mariadb,mysql")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--file", type=Path, default=FOLDER.with_suffix(".json"))
    given = parser.parse_args(arguments)
    tools.begin()
    FOLDER.mkdir(parents=True, exist_ok=True)
    about = machine.described(FOLDER, (), {})
    found: dict[str, Any] = {"rows": given.rows, "machine": about, "reader_rows_per_second": decode.skipping()}
    bandwidth = about["log_mib_per_second"] * (1 << 20)
    for flavor in given.flavors.split(","):
        measured, insert = measure(flavor, given.rows, given.runs, given.patience)
        costs = fitted(
            measured,
            given.rows,
            bandwidth=bandwidth,
            reader_rate=found["reader_rows_per_second"],
            insert=insert if flavor == "mariadb" else 0.0,
        )
        found[flavor] = {"measured": [asdict(one) for one in measured], "insert": insert, "costs": asdict(costs)}
        given.file.write_text(json.dumps(found, indent=1))
        print(f"\n{flavor}: {costs}\n\n{table_of(found, flavor, about['cores'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
