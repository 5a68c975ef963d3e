"""Moving a table between two servers of one flavor, beside a dump that is piped into the other server.

    .venv/bin/python -m bench.move --rows 4194304 --runs 1 --flavors mariadb,mysql

Ours is the whole command: planned, copied, verified, switched and completed, with both servers as durable as they come.
Beside it `mariadb-dump … | mariadb` (`mysqldump … | mysql`), and one connection's SELECT with multi-row INSERTs on
another one; neither follows changes nor verifies anything.

What must stay true: all begin from rest with the table in the source's buffer pool; after each the target holds the
source's rows; which tool goes first changes each round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import machine, table, tools
from bench.report import say
from bench.table import NARROW
from sandbox import binaries, servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect

FOLDER = ROOT / ".sandbox" / "bench-move"
OURS, DUMP, INSERTS = "ours", "dump", "inserts"
_LIMIT_SECONDS = 3_600.0
_ROWS_A_STATEMENT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """The servers, each with its schema."""

    source: Database
    target: Database
    folder: Path


def _ours(two: Two) -> None:
    command = [sys.executable, "-m", "vreplication", "move-tables", "--table", NARROW.name, "--no-reverse"]
    environment = {
        **os.environ,
        "VREPLICATION_SOURCE": str(two.source.url),
        "VREPLICATION_PASSWORD": two.source.url.password,
        "VREPLICATION_TARGET": str(two.target.url),
        "VREPLICATION_TARGET_PASSWORD": two.target.url.password,
        "XDG_STATE_HOME": str(two.folder),
    }
    done = subprocess.run(
        [*command, "--yes", "--json"],
        env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the move did not complete: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _dump(two: Two) -> None:
    names = ("mariadb-dump", "mariadb") if two.source.server.flavor == "mariadb" else ("mysqldump", "mysql")
    dump, client = (binaries.client_command(two.source.server.flavor, name) for name in names)
    # Of a MySQL with GTIDs it would want to set those of the target, too.
    options = ["--single-transaction", "--quick", *(["--set-gtid-purged=OFF"] if names[0] == "mysqldump" else [])]
    out = [*dump, *_login(two.source), *options, two.source.name, NARROW.name]
    with subprocess.Popen(out, stdout=subprocess.PIPE) as dumping:
        loading = subprocess.run([*client, *_login(two.target), two.target.name], stdin=dumping.stdout, check=False)
    if dumping.returncode or loading.returncode:
        raise RuntimeError(f"the dump ended with {dumping.returncode}, the client with {loading.returncode}")


def _login(database: Database) -> list[str]:
    path = database.server.folder / "client.cnf" if database.server.folder else Path("client.cnf")
    server = database.server
    path.touch(mode=0o600)
    path.write_text(
        f"[client]\nuser={server.user}\npassword={server.password}\nhost={server.host}\nport={server.port}\n"
    )
    return [f"--defaults-file={path}"]


def _inserts(two: Two) -> None:
    with connect(two.source.url, read_timeout=3_600) as source, connect(two.target.url, read_timeout=3_600) as target:
        target.execute_raw(table.CREATE.format(name=ident(NARROW.name)))
        waiting: list[str] = []
        for id, sig, c in source.stream(f"SELECT id, sig, c FROM {ident(NARROW.name)}"):
            waiting.append(f"({id},'{sig}','{c}')")
            if len(waiting) == _ROWS_A_STATEMENT:
                target.execute_raw(f"INSERT INTO {ident(NARROW.name)} VALUES {','.join(waiting)}")
                waiting.clear()
        if waiting:
            target.execute_raw(f"INSERT INTO {ident(NARROW.name)} VALUES {','.join(waiting)}")


WAYS: dict[str, Callable[[Two], None]] = {OURS: _ours, DUMP: _dump, INSERTS: _inserts}


def _measure(flavor: str, asked: argparse.Namespace) -> dict[str, list[float]]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    options = {**table.options(flavor), "log-bin-trust-function-creators": "ON"}
    running = [
        servers.start(flavor, FOLDER / f"{flavor}-{role}", options={**options, "server-id": number})
        for number, role in enumerate(("source", "target"), start=301)
    ]
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        two = Two(
            source=create_database(running[0], "bench", grants="move_source"),
            target=create_database(running[1], "bench", grants="move_target"),
            folder=FOLDER,
        )
        with running[0].admin("bench", read_timeout=3_600) as source, running[1].admin("bench") as target:
            table.fill(source, asked.rows, NARROW)
            content = table.content(source, NARROW)
            for number in range(asked.runs):
                ways = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
                for way in ways:
                    found[way].append(_one(way, two, source, target, asked.patience))
                    if table.content(target, NARROW) != content:
                        raise RuntimeError(f"after {way} the target holds something else")
                    _begin_again(source, target)
    finally:
        for server in running:
            server.stop()
        shutil.rmtree(FOLDER, ignore_errors=True)
    return found


def _one(way: str, two: Two, source: Session, target: Session, patience: float) -> float:
    table.rest(source)
    table.rest(target)
    with machine.alone(patience):
        began = time.monotonic()
        WAYS[way](two)
        seconds = time.monotonic() - began
    say(f"  {two.source.server.flavor}, {way}: {seconds:.1f} s")
    return seconds


def _begin_again(source: Session, target: Session) -> None:
    """The target without the table, the source with it: a move has left it under its retired name."""
    target.execute_raw(f"DROP TABLE {ident(NARROW.name)}")
    for (name,) in source.rows("SHOW TABLES"):
        if str(name) != NARROW.name:
            source.execute_raw(f"RENAME TABLE {ident(str(name))} TO {ident(NARROW.name)}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.move", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_194_304)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--flavors", default="mariadb,mysql")
    parser.add_argument("--patience", type=float, default=60.0)
    asked = parser.parse_args(arguments)
    tools.begin()
    for flavor in asked.flavors.split(","):
        medians = {way: statistics.median(seconds) for way, seconds in _measure(flavor, asked).items()}
        shown = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in medians.items())
        ratios = ", ".join(f"ours ÷ {way} {medians[OURS] / medians[way]:.2f}" for way in (DUMP, INSERTS))
        print(f"{flavor}: {shown}; {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
