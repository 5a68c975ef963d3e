"""`make soak KILLS=30 SEED=1`: kill -9 as often as wanted, on both servers, each in a workflow of its own.

Prints a row a kill: what was killed and where, how it went on, how many rows were compared, whether every one of them
is what the application committed. Ends with 1 when one was not.

What must stay true: a row says "exact" only after the proof (tests/resume/live_setup.py); with one seed the same kills
are drawn; what fails leaves its logs behind, and says where.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "resume"))

import kills
from live_setup import make_live

from sandbox import binaries
from sandbox.databases import create_database
from sandbox.servers import RunningServer
from tests.support.private_server import private_server
from vreplication.pausepoints import VARIABLE

_HEAD = ("server", "seed", "kill", "victim", "phase", "where", "how it went on", "rows", "exact?")
_WIDTHS = (8, 6, 4, 12, 12, 30, 30, 6, 6)


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    print(f"make soak KILLS={given.kills} SEED={given.seed}: kills {given.begin} to {given.kills - 1}\n", flush=True)
    _row(_HEAD)
    _row(["-" * len(name) for name in _HEAD])
    bad = sum(_soak(flavor, given.seed, range(given.begin, given.kills)) for flavor in given.flavors.split(","))
    print(f"\n{bad} of them went wrong." if bad else "\nEvery one of them was exact.")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description="Kill -9 as often as wanted.")
    parser.add_argument("--kills", type=int, default=30, help="on each server")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000))
    parser.add_argument("--begin", type=int, default=0, help="number of the first kill: to go on, or to repeat one")
    parser.add_argument("--flavors", default=",".join(binaries.FLAVORS))
    return parser


def _soak(flavor: str, seed: int, numbers: Sequence[int]) -> int:
    """Returns how many went wrong."""
    with private_server(flavor) as server:
        return sum(not _one(server, seed, number) for number in numbers)


def _one(server: RunningServer, seed: int, number: int) -> bool:
    kill = kills.draw(seed, number)
    folder = Path(tempfile.mkdtemp(prefix=f"vreplication-soak-{server.flavor}-{number}-"))
    began = time.monotonic()
    try:
        outcome = _run(server, kill, folder)
    except (Exception, AssertionError):
        (folder / "failure.log").write_text(traceback.format_exc())
        _row([server.flavor, seed, number, kill.victim, "?", kill, f"see {folder}", "", "NO"])
        return False
    shutil.rmtree(folder)
    how = f"{outcome.how}, {time.monotonic() - began:.0f} s"
    _row([server.flavor, seed, number, kill.victim, outcome.phase, kill, how, outcome.rows, "yes"])
    return True


def _run(server: RunningServer, kill: kills.Kill, folder: Path) -> kills.Outcome:
    pauses = folder / "pauses"
    pauses.mkdir()
    os.environ[VARIABLE] = str(pauses)
    database = create_database(server)
    try:
        live = make_live(database, folder / "state", pauses)
        try:
            return kills.run(live, kill)
        finally:
            live.end()
    finally:
        if not server.is_alive():
            server.restart()
        database.drop()


def _row(cells: Sequence[object]) -> None:
    print("| " + " | ".join(f"{cell!s:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
