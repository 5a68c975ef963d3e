"""What it costs to note every key that catch-up writes, and to compare those keys again.

    .venv/bin/python -m bench.recheck        # BENCH_ROWS (1000000), BENCH_RUNS (3), BENCH_FLAVORS (mariadb,mysql)

A workflow waits at its gate. The same rows are updated again and again and drained: with keys being noted, then (the
collection made void, catch-up started anew) without. Between two drains the keys are compared, which is timed as well.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

from bench import runs, table
from bench.__main__ import FOLDER, drained, say
from sandbox import servers
from sandbox.databases import Database, create_database
from vreplication.mysql.session import Session, connect
from vreplication.progress import snapshot
from vreplication.state import since

_LIMIT_SECONDS = 300.0


def once(database: Database, session: Session, folder: Path, rows: int, count: int) -> str:
    noted: list[float] = []
    compared: list[float] = []
    plain: list[float] = []
    ranges = drained(session, rows)

    def at_gate(run: runs.Run) -> None:
        runs.drain(database, session, run, ranges)
        _until_compared(database, run.workflow)
        for _ in range(count):
            table.rest(session)
            noted.append(runs.drain(database, session, run, ranges))
            compared.append(_until_compared(database, run.workflow))
        with connect(database.url) as ours:
            since.make_void(ours, run.workflow)
        os.kill(runs.replicate_pid(run.process.pid), signal.SIGKILL)
        time.sleep(5)
        for _ in range(count):
            table.rest(session)
            plain.append(runs.drain(database, session, run, ranges))

    runs.held(database, session, folder, "--verify-every", "0", at_gate=at_gate)
    one, other = statistics.median(noted), statistics.median(plain)
    return (
        f"drain with keys noted {one:.2f} s ({_span(noted)}), without {other:.2f} s ({_span(plain)}), "
        f"ratio {one / other:.2f}; compared again in {statistics.median(compared):.2f} s ({_span(compared)})"
    )


def _span(found: list[float]) -> str:
    return f"{min(found):.2f}–{max(found):.2f}"


def _until_compared(database: Database, workflow: str) -> float:
    """Seconds until few keys are left; the driver begins by itself when there are many."""
    began = time.monotonic()
    with connect(database.url) as ours:
        while time.monotonic() - began < _LIMIT_SECONDS:
            keys = snapshot.read(ours, workflow).keys_since
            if keys is not None and keys <= 2_000 and time.monotonic() - began > 2:
                return time.monotonic() - began
            time.sleep(0.05)
    raise RuntimeError("the keys are not compared")


def main() -> None:
    rows, count = int(os.environ.get("BENCH_ROWS") or 1_000_000), int(os.environ.get("BENCH_RUNS") or 3)
    for flavor in (os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(","):
        folder = FOLDER / f"recheck-{flavor}"
        shutil.rmtree(folder, ignore_errors=True)
        server = servers.start(flavor, folder, options=table.options(flavor))
        try:
            database = create_database(server, "bench")
            with server.admin("bench", read_timeout=3600.0) as session:
                table.fill(session, rows)
                say(f"{flavor}: {once(database, session, folder, rows, count)}")
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
