"""`make demo`: change a large table under a live workload with vreplication, then prove the result.

What must stay true: the proof does not trust vreplication (sandbox.proof); the exit code is 0 only when the command
succeeded, the application saw no error, and the proof holds; the server is stopped at the end, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sandbox import binaries, orders, servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from sandbox.proof import Proof, keep_copy, prove
from sandbox.workload import Workload, WorkloadReport

TABLE = "orders"
COPY = "orders_at_start"
SCHEMA = "shop"
FOLDER = ROOT / ".sandbox" / "demo"
ROWS_VARIABLE = "VREPLICATION_DEMO_ROWS"
FLAVOR_VARIABLE = "VREPLICATION_DEMO_FLAVOR"
WRITES_PER_SECOND = 100
"""Transactions a second of each of the two writers: two cores are shared by the server, Spark and them."""
AFTER_SECONDS = 2.0
"""The application goes on writing to the new table for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to show, and where."""

    rows: int = 1_000_000
    flavor: str = "mariadb"
    folder: Path = FOLDER
    program: Sequence[str] = (str(ROOT / ".venv/bin/vreplication"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How it went."""

    exit_code: int
    seconds: float
    writes_meanwhile: int
    report: WorkloadReport
    proof: Proof | None

    @property
    def holds(self) -> bool:
        return self.exit_code == 0 and not self.report.errors and self.proof is not None and self.proof.holds


def main() -> int:
    """Exit 0 when the proof holds, 1 when not, 2 on bad input, 130 when interrupted."""
    console = Console(highlight=False)
    try:
        demo = read_settings()
        return 0 if run(demo, console).holds else 1
    except (ValueError, binaries.ServerMissing, servers.StartFailed) as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("demo: interrupted; the private server is stopped")
        return 130


def read_settings() -> Demo:
    """From the environment. Raises ValueError with a sentence."""
    rows, flavor = os.environ.get(ROWS_VARIABLE) or "1000000", os.environ.get(FLAVOR_VARIABLE) or "mariadb"
    if not rows.isdigit() or int(rows) < 1:
        raise ValueError(f"{ROWS_VARIABLE} must be a number of rows, not {rows!r}.")
    if flavor not in binaries.FLAVORS:
        raise ValueError(f"{FLAVOR_VARIABLE} must be one of {', '.join(binaries.FLAVORS)}, not {flavor!r}.")
    return Demo(rows=int(rows), flavor=flavor)


def run(demo: Demo, console: Console) -> Result:
    """Start a server, show the whole, stop the server."""
    _make_room(demo.folder)
    version = ".".join(map(str, binaries.version(demo.flavor)))
    console.print(f"Starting a private {demo.flavor} {version} under {_short(demo.folder)} …")
    server = servers.start(demo.flavor, demo.folder, options={"innodb-buffer-pool-size": "1G"})
    try:
        result = _show(demo, create_database(server, SCHEMA), console)
    finally:
        server.stop()
    if result.holds:
        # What failed stays, to be looked at.
        shutil.rmtree(demo.folder / "data")
    return result


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo left; raises ValueError when one is still running."""
    with_pid = folder / "pid"
    if with_pid.exists() and _runs_in(int(with_pid.read_text()), folder):
        raise ValueError(
            f"another demo runs in {_short(folder)} (server process {with_pid.read_text()}); end it first."
        )
    shutil.rmtree(folder, ignore_errors=True)


def _runs_in(pid: int, folder: Path) -> bool:
    """Process numbers are used again: it must also have been told of this folder."""
    try:
        return str(folder.resolve()).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _show(demo: Demo, database: Database, console: Console) -> Result:
    _fill(demo, database, console)
    console.print(f"Starting the application: 2 writers, {WRITES_PER_SECOND} transactions a second each, and a reader")
    workload = Workload(database.app_url, TABLE, rows=demo.rows, readers=1, rate=WRITES_PER_SECOND)
    with workload:
        workload.wait_for(10)
        exit_code, seconds, writes = _change(demo, database, workload, console)
        if exit_code == 0:
            time.sleep(AFTER_SECONDS)
    report = workload.stop()
    proof = None
    if exit_code == 0:
        console.print("\nComparing with a plain ALTER of what the application wrote …")
        proof = prove(database.admin, TABLE, COPY, orders.ALTER, workload.expected)
    database.close()
    result = Result(exit_code=exit_code, seconds=seconds, writes_meanwhile=writes, report=report, proof=proof)
    _print_result(result, console)
    return result


def _fill(demo: Demo, database: Database, console: Console) -> None:
    with console.status(f"Filling {SCHEMA}.{TABLE} …") as status:
        orders.create(database.admin, TABLE)
        orders.fill(
            database.admin, TABLE, demo.rows, lambda done: status.update(f"Filling … {done:,} of {demo.rows:,}")
        )
        status.update("Keeping a copy for the proof …")
        keep_copy(database.admin, TABLE, COPY)
        database.admin.rows(f"ANALYZE TABLE {TABLE}")
    console.print(f"Table {SCHEMA}.{TABLE} holds {demo.rows:,} rows")


def _change(demo: Demo, database: Database, workload: Workload, console: Console) -> tuple[int, float, int]:
    """Run vreplication with this terminal. Its exit code, seconds, and the writes committed meanwhile."""
    source = f"mysql+pymysql://{database.user}@{database.server.host}:{database.server.port}/{SCHEMA}"
    arguments = ["online-ddl", "--source", source, "--table", TABLE, "--alter", orders.ALTER, "--yes"]
    console.print(f'\n$ vreplication online-ddl --table {TABLE} --alter "{orders.ALTER}" --yes\n', markup=False)
    environment = {**os.environ, "VREPLICATION_PASSWORD": database.password}
    before, started = workload.report().writes, time.monotonic()
    process = subprocess.Popen([*demo.program, *arguments], env=environment)
    try:
        exit_code = process.wait()
    except KeyboardInterrupt:
        # The terminal has sent SIGINT to it as well; it stops cleanly by itself.
        process.wait()
        raise
    return exit_code, time.monotonic() - started, workload.report().writes - before


def _print_result(result: Result, console: Console) -> None:
    report, proof = result.report, result.proof
    console.print()
    if proof is not None:
        console.print(f"  rows                     {proof.altered.rows:>14,}   expected {proof.expected.rows:,}")
        console.print(f"  checksum, new table      {proof.altered.checksum}")
        console.print(f"  checksum, source + ALTER {proof.expected.checksum}")
    console.print(f"  writes made meanwhile    {result.writes_meanwhile:>14,}   in {result.seconds:.1f} s")
    console.print(f"  longest write stall      {report.longest_stall_ms:>11,.0f} ms")
    console.print(f"  reads that found a row   {report.reads:>14,}")
    for trouble in _troubles(result):
        console.print(f"  {trouble}", style="red", markup=False)
    verdict = "Proved: nothing lost, nothing invented." if result.holds else "NOT proved."
    console.print(f"\n{verdict}", style="bold green" if result.holds else "bold red")


def _troubles(result: Result) -> list[str]:
    found = [f"the application saw: {error}" for error in result.report.errors]
    if result.exit_code:
        found.append(f"vreplication ended with exit code {result.exit_code}")
    return [*found, *(result.proof.differences if result.proof else ())]


def _short(folder: Path) -> str:
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


if __name__ == "__main__":
    sys.exit(main())
