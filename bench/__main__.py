"""`python -m bench`: measure row copy, catch-up, verification and all around them; then whole runs beside the peers.

BENCH_ROWS (4194304), BENCH_RUNS (5), BENCH_FLAVORS (mariadb,mysql), BENCH_PATIENCE (seconds to wait for a quiet machine
before each step, 60), BENCH_SCENARIOS (of bench/scenarios.py; "none" for our own figures alone), BENCH_NAME (of results
that are kept, in bench/results/).

What must stay true: the servers and every process are ended here, whatever happens; nothing is measured that the
README beside this file does not explain.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import baselines, cpu, peers, runs, scenarios, table, tools
from bench.report import say
from bench.results import Result
from sandbox import binaries, servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from vreplication.mysql.session import Session

FOLDER = ROOT / ".sandbox" / "bench"
DRAINED_RANGES, DRAINED_ROWS = 260, 1_000
"""Transactions of the drain, and ids that each covers: the updated rows are a little fewer, for ids have gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    rows: int
    count: int
    flavors: tuple[str, ...]
    patience: float
    scenarios: tuple[str, ...]
    name: str


@dataclass(slots=True, kw_only=True)
class Bench:
    """All measurements on one server."""

    settings: Settings
    database: Database
    session: Session
    folder: Path
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        say(f"filling {table.NAME} with {self.settings.rows:,} rows")
        table.fill(self.session, self.settings.rows)
        for number in range(self.settings.count):
            say(f"{self.database.server.flavor}: run {number + 1} of {self.settings.count}")
            self._once()

    def _once(self) -> None:
        self._step("insert_select", lambda: baselines.insert_select(self.session))
        self._step("copy", self._whole)
        self._step("copy_10000", lambda: self._held("--chunk-rows", "10000").copy_seconds)
        self._step("copy_largest", self._held_and_drained)
        self._step("backlog_drain", self._backlog)
        baselines.drop(self.session)

    def _step(self, name: str, measure: Callable[[], float]) -> None:
        table.rest(self.session)
        table.warm(self.session)
        used = cpu.used(self.database.server.pid)
        busy, load = table.wait_until_quiet(self.settings.patience), table.load()
        seconds = measure()
        self._take(name, seconds)
        spent = cpu.between(used, cpu.used(self.database.server.pid))["server"]
        found = {"server_cpu": spent, "busy_before": round(busy, 2), "load_before": load}
        self.notes.append({"step": name, "seconds": seconds, **found})
        say(f"  {name:14} {seconds:8.2f} s   ({busy:.0%} busy, load {load:.1f}; server CPU {spent:.1f} s)")

    def _take(self, name: str, seconds: float) -> None:
        self.samples.setdefault(name, []).append(seconds)

    def _whole(self) -> float:
        run = runs.whole(self.database, self.session, self.folder)
        self._take("verify", run.verify_seconds())
        self._take("around", run.around_seconds())
        parts = {name: round(seconds, 2) for name, seconds in run.parts().items()}
        self._note(run, parts=parts, result=run.result)
        say(f"  {run.copy_path} path; verification {run.verify_seconds():.2f} s; around {parts}")
        return run.copy_seconds

    def _held(self, *options: str, **more: Any) -> runs.Run:
        run = runs.held(self.database, self.session, self.folder, *options, **more)
        self._note(run)
        return run

    def _note(self, run: runs.Run, **more: Any) -> None:
        used = run.copy_cpu()
        self.notes.append({"path": run.copy_path, "chunks": run.chunks, "copy_cpu": used, **more})
        say(f"  {run.chunks} chunks; CPU seconds while copying: {used}")

    def _held_and_drained(self) -> float:
        return self._held("--chunk-rows", "65535", at_gate=self._drain).copy_seconds

    def _backlog(self) -> float:
        ranges = drained(self.session, self.settings.rows)
        found = runs.backlog(self.database, self.session, self.folder, ranges)
        self._take("stood_still", found.stood_still)
        say(f"  {found.changes:,} changes behind; copying stood still for {found.stood_still:.2f} s")
        return found.drained

    def _drain(self, run: runs.Run) -> None:
        """The same rows by both ways, one after the other, each from rest."""
        ranges = drained(self.session, self.settings.rows)
        table.rest(self.session)
        drain = runs.drain(self.database, self.session, run, ranges)
        table.rest(self.session)
        replace = baselines.replace(self.database.user_url, self.session, ranges)
        self._take("drain", drain)
        self._take("replace", replace)
        say(f"  drain {drain:.2f} s, REPLACE {replace:.2f} s")


def drained(session: Session, rows: int) -> list[tuple[int, int]]:
    """Id ranges spread over the table that hold 260,000 rows, or a sixteenth of a small table."""
    count = max(1, min(DRAINED_RANGES, rows // (16 * DRAINED_ROWS)))
    found = []
    for i in range(count):
        first = session.value(f"SELECT id FROM {table.NAME} ORDER BY id LIMIT 1 OFFSET {i * rows // count}")
        last = session.value(
            f"SELECT id FROM {table.NAME} WHERE id >= {first} ORDER BY id LIMIT 1 OFFSET {DRAINED_ROWS - 1}"
        )
        found.append((int(first), int(last)))
    return found


def read_settings() -> Settings:
    return Settings(
        rows=int(os.environ.get("BENCH_ROWS") or 4_194_304),
        count=int(os.environ.get("BENCH_RUNS") or 5),
        flavors=tuple((os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(",")),
        patience=float(os.environ.get("BENCH_PATIENCE") or 60),
        scenarios=_scenarios(os.environ.get("BENCH_SCENARIOS") or ",".join(scenarios.USUAL)),
        name=os.environ.get("BENCH_NAME") or "",
    )


def measure(settings: Settings, flavor: str) -> Bench:
    folder = FOLDER / flavor
    shutil.rmtree(folder, ignore_errors=True)
    say(f"starting {flavor} {'.'.join(map(str, binaries.version(flavor)))}")
    server = servers.start(flavor, folder, options=table.options(flavor))
    try:
        database = create_database(server, "bench")
        with server.admin("bench") as session:
            bench = Bench(settings=settings, database=database, session=session, folder=folder)
            bench.run()
        database.close()
    finally:
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return bench


def _scenarios(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    if unknown := [name for name in names if name not in scenarios.SCENARIOS]:
        raise ValueError(f"unknown scenario {unknown[0]}; known: {', '.join(scenarios.SCENARIOS)}")
    return names


def all_of(settings: Settings) -> Result:
    """Our own figures first; what there is, is saved after each server and each run."""
    result = Result.of(settings.name, settings.rows, settings.count)
    asked = peers.Asked(
        scenarios=settings.scenarios,
        rows=settings.rows,
        runs=settings.count,
        flavors=settings.flavors,
        patience=settings.patience,
    )
    programs = peers.prepared(asked, result)
    for flavor in settings.flavors:
        bench = measure(settings, flavor)
        result.own[flavor] = {"samples": bench.samples, "notes": bench.notes}
        result.save()
    peers.compare(asked, result, programs)
    return result


def main() -> int:
    tools.begin()
    try:
        result = all_of(read_settings())
    except (ValueError, binaries.ServerMissing, servers.StartFailed) as error:
        say(f"bench: {error}")
        return 2
    print(result.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
