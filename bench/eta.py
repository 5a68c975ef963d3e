"""`python -m bench.eta`: what the ETAs that a run tells are worth, without and with writers, on both servers.

Each second the workflow is looked at as `status --json` does. Of the samples from a tenth of the run on is told how
many have an ETA within a fifth of the whole time, and how many have none. Each case is run twice: at first, and once
the server has seen every case.

BENCH_ROWS (3145728), BENCH_FLAVORS (mariadb,mysql), BENCH_WRITES (400 a second by 4 writers).

What must stay true: the true end is the workflow's own, by the server's clock; a second without an answer counts as one
without an ETA.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import runs, table
from sandbox import servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from vreplication.errors import VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.progress import snapshot
from vreplication.settings import SIDECAR

FOLDER = ROOT / ".sandbox" / "bench-eta"
RESULTS = ROOT / "bench" / "results"
TOLERANCE = 0.2
FROM_SHARE = 0.1
WRITERS = 4
CASES = (("quiet", "first"), ("busy", "first"), ("quiet", "again"), ("busy", "again"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Shares of the samples."""

    samples: int
    good: float
    unknown: float
    held: float
    """Of those with a range: the truth was in it."""


@dataclass(slots=True)
class Watch:
    """The samples of one run: seconds since the command's start, and what `status --json` says then."""

    began: float
    samples: list[tuple[float, dict[str, Any] | None]] = field(default_factory=list)

    def look(self, session: Session, workflow: str) -> None:
        at = time.time() - self.began
        try:
            seen = snapshot.find(session, workflow)
        except VReplicationError:
            seen = None
        self.samples.append((at, None if seen is None else seen.as_status_json()))


def worth(samples: Sequence[tuple[float, dict[str, Any] | None]], whole: float) -> Worth:
    """Of the samples (seconds since the start, what was said)."""
    late = [(whole - at, said or {}) for at, said in samples if FROM_SHARE * whole <= at < whole]
    known = [(left, said) for left, said in late if said.get("eta_seconds") is not None]
    good = sum(abs(said["eta_seconds"] - left) <= TOLERANCE * whole for left, said in known)
    ranged = [(left, said) for left, said in known if said.get("eta_low_seconds") is not None]
    held = sum(said["eta_low_seconds"] - 1 <= left <= said["eta_high_seconds"] + 1 for left, said in ranged)
    count = max(len(late), 1)
    return Worth(
        samples=len(late),
        good=good / count,
        unknown=1 - len(known) / count,
        held=held / max(len(ranged), 1),
    )


@contextlib.contextmanager
def writing(database: Database, rows: int, rate: float) -> Iterator[None]:
    """One-row updates of keys drawn at random, at this many a second in all."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_write, args=(database, rows, rate / WRITERS, stop), daemon=True)
        for _ in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def _write(database: Database, rows: int, rate: float, stop: threading.Event) -> None:
    chance, due = random.Random(), time.monotonic()
    sql = f"UPDATE {ident(table.NAME)} SET sig=%s WHERE id=%s"
    with connect(database.app_url) as session:
        while not stop.is_set():
            session.execute(sql, (f"{chance.getrandbits(160):040x}", chance.randrange(1, rows)))
            due = max(due + 1 / rate, time.monotonic() - 1)
            stop.wait(max(0.0, due - time.monotonic()))


def watched(database: Database, session: Session, folder: Path) -> tuple[runs.Run, Watch, float]:
    """A run to its end with a look each second, and how long it took."""
    with runs.started(database, folder) as run:
        watch = Watch(run.began)
        with connect(database.url) as ours:
            while run.process.poll() is None:
                watch.look(ours, run.workflow)
                time.sleep(max(0.05, run.began + len(watch.samples) - time.time()))
        runs.read_result(run)
    if run.result.get("event") != "complete":
        raise RuntimeError(f"the run did not complete: {run.result}")
    ended = f"SELECT UNIX_TIMESTAMP(ended_at) FROM {SIDECAR}.workflow WHERE id=%s"
    return run, watch, float(session.value(ended, (run.workflow,))) - run.began


def measure(flavor: str, rows: int, rate: float, keep: Callable[[str, dict[str, Any]], None]) -> None:
    """`keep` gets each case as soon as it is there."""
    folder = FOLDER / flavor
    shutil.rmtree(folder, ignore_errors=True)
    server = servers.start(flavor, folder, options=table.options(flavor))
    try:
        database = create_database(server, "bench")
        with server.admin("bench") as session:
            table.fill(session, rows)
            for name, when in CASES:
                keep(f"{name} {when}", _case(database, session, folder, name, when, rows, rate))
        database.close()
    finally:
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _case(
    database: Database, session: Session, folder: Path, name: str, when: str, rows: int, rate: float
) -> dict[str, Any]:
    table.rest(session)
    with writing(database, rows, rate) if name == "busy" else contextlib.nullcontext():
        run, watch, whole = watched(database, session, folder)
    runs.switch_back(session, run)
    _say(database.server.flavor, f"{name}, {when}", worth(watch.samples, whole), whole)
    phases = {phase: round(at - run.began, 2) for phase, at in run.phases().items()}
    return {"whole": whole, "phases": phases, "samples": watch.samples}


def _say(flavor: str, name: str, found: Worth, whole: float) -> None:
    print(
        f"{flavor:8} {name:14} {whole:6.1f} s  {found.samples:4} samples  within 20 %: {found.good:4.0%}  "
        f"null: {found.unknown:4.0%}  in its range: {found.held:4.0%}",
        flush=True,
    )


def main() -> int:
    rows = int(os.environ.get("BENCH_ROWS") or 3_145_728)
    rate = float(os.environ.get("BENCH_WRITES") or 400)
    flavors = (os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(",")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / ".gitignore").write_text("*\n")
    path = RESULTS / f"eta-{time.strftime('%Y%m%d-%H%M%S')}.json"
    found: dict[str, Any] = {"rows": rows, "writes": rate, **{flavor: {} for flavor in flavors}}

    def keep(flavor: str, name: str, case: dict[str, Any]) -> None:
        found[flavor][name] = case
        path.write_text(json.dumps(found))

    for flavor in flavors:
        measure(flavor, rows, rate, functools.partial(keep, flavor))
    print(f"all samples: {path.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
