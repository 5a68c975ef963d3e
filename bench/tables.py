"""Many tables by one command, beside as many runs of gh-ost in a row.

    .venv/bin/python -m bench.tables --tables 64 --rows 100000 --runs 1 --flavors mariadb,mysql

Each tool rebuilds all tables and drops the originals; the stopwatch is around the command, or around all the runs.

What must stay true: both have the same tables on the same server, which is as durable as it comes, one after the other,
each from rest, in another order each round; after each the tables hold what they held before.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from bench import machine, runs, table, tools
from bench.report import say
from bench.tools import GH_OST, OURS, Site
from sandbox import peers, servers
from sandbox.databases import create_database
from sandbox.install import ROOT

FOLDER = ROOT / ".sandbox" / "bench-tables"
_LIMIT_SECONDS = 1_800.0


def _names(count: int) -> list[str]:
    return [f"t{number:03}" for number in range(1, count + 1)]


def _shape(name: str) -> table.Shape:
    return dataclasses.replace(table.NARROW, name=name)


def _ours(site: Site, names: Sequence[str], options: Sequence[str]) -> float:
    words = [word for name in names for word in ("--table", name)]
    command = [sys.executable, "-m", "vreplication", "online-ddl", *words, "--alter", runs.ALTER]
    environment = {
        **os.environ,
        "VREPLICATION_SOURCE": str(site.database.user_url),
        "VREPLICATION_PASSWORD": site.database.url.password,
        "XDG_STATE_HOME": str(site.folder),
    }
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--retired", "drop", "--yes", "--json", *options],
        env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the run did not complete: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - began


def _theirs(site: Site, names: Sequence[str]) -> float:
    began = time.monotonic()
    for name in names:
        site.table = name
        if failed := tools.theirs(site, GH_OST, (), _LIMIT_SECONDS).failed:
            raise RuntimeError(f"gh-ost failed: {failed}")
    return time.monotonic() - began


def _measure(flavor: str, asked: argparse.Namespace) -> dict[str, list[float]]:
    folder, names = FOLDER / flavor, _names(asked.tables)
    shutil.rmtree(folder, ignore_errors=True)
    server = servers.start(flavor, folder, options=table.options(flavor))
    found: dict[str, list[float]] = {OURS: [], GH_OST: []}
    try:
        database = create_database(server, "bench")
        with server.admin("bench", read_timeout=3_600) as session:
            programs = {name: one.path for name, one in peers.prepare().items() if one.path}
            site = Site(database=database, session=session, folder=folder, table=names[0], programs=programs)
            for name in names:
                table.fill(session, asked.rows, _shape(name))
            content = [table.content(session, _shape(name)) for name in names]
            for number in range(asked.runs):
                for tool in (OURS, GH_OST) if number % 2 == 0 else (GH_OST, OURS):
                    if tool != OURS and (tool not in programs or asked.ours):
                        continue
                    table.rest(session)
                    with machine.alone(asked.patience):
                        seconds = _ours(site, names, asked.options.split()) if tool == OURS else _theirs(site, names)
                    if [table.content(session, _shape(name)) for name in names] != content:
                        raise RuntimeError(f"after {tool} the tables hold something else")
                    found[tool].append(seconds)
                    say(f"  {flavor}, {len(names)} tables, {tool}: {seconds:.1f} s")
        database.close()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=64)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--flavors", default="mariadb,mysql")
    parser.add_argument("--options", default="", help="further options of ours")
    parser.add_argument("--ours", action="store_true", help="without gh-ost")
    parser.add_argument("--patience", type=float, default=60.0)
    asked = parser.parse_args(arguments)
    tools.begin()
    for flavor in asked.flavors.split(","):
        found = _measure(flavor, asked)
        medians = {tool: statistics.median(seconds) for tool, seconds in found.items() if seconds}
        ratio = f", ours ÷ gh-ost {medians[OURS] / medians[GH_OST]:.2f}" if GH_OST in medians else ""
        print(f"{flavor}: " + ", ".join(f"{tool} {seconds:.1f} s" for tool, seconds in medians.items()) + ratio)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
