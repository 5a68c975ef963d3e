"""One transaction that changes 5,000,000 rows while a workflow waits at its gate: memory, time, and the exact result.

    .venv/bin/python -m bench.giant          # BENCH_ROWS (5000000), BENCH_FLAVORS (mariadb,mysql)

Memory is what the command and all its children but the JVM have resident, pages that they share counted once, looked at
ten times a second. "behind" is
how long the reader took to come to where the server's log stood, for looks taken each half second behind the giant
transaction, under a trickle of small ones.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

from bench import cpu, runs, table
from bench.__main__ import FOLDER, say
from sandbox import servers
from sandbox.databases import Database, create_database
from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.state import gate, progress

_SUM = "SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('|', id, sig, c)) * (CRC32(id) | 1)) FROM {}"


class Memory:
    """The most that a process and its children had resident at a time, without the JVM."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = 0
        self.parts: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            found = cpu.resident(self._pid)
            found.pop("jvm", None)
            if sum(found.values()) > self.peak:
                self.peak, self.parts = sum(found.values()), found

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def once(database: Database, session: Session, folder: Path, rows: int) -> str:
    with runs.started(database, folder, "--cutover", "manual") as run:
        runs.follow(run, session, database.server.pid, until=lambda phase: phase == "waiting")
        memory = Memory(run.process.pid)
        began = time.monotonic()
        session.execute_raw(f"UPDATE {ident(table.NAME)} SET sig=REVERSE(sig)")
        written = time.monotonic() - began
        behind, level = _until_level(database, run.workflow, written)
        with connect(database.url) as ours:
            gate.release(ours, run.workflow, "bench")
        runs.follow(run, session, database.server.pid, until=lambda phase: False)
        memory.end()
    runs.read_result(run)
    if run.result.get("event") != "complete":
        raise RuntimeError(f"the run did not complete: {run.result}")
    return (
        f"{rows:,} rows in one transaction ({written:.1f} s); level after {level:.1f} s; "
        f"behind at most {behind:.1f} s; "
        f"{memory.peak >> 20} MiB { ({k: v >> 20 for k, v in memory.parts.items()}) }; "
        f"{'exact' if _is_exact(session, run) else 'NOT EXACT'}"
    )


def _until_level(database: Database, workflow: str, written: float) -> tuple[float, float]:
    """Longest time that the reader was behind, and seconds until all is applied."""
    began = time.monotonic()
    looks: list[tuple[float, Position]] = []
    worst, has_read = 0.0, False
    with connect(database.url) as ours, connect(database.app_url) as app:
        giant = position.current(ours, database.server.is_mariadb)
        while time.monotonic() - began < 1800:
            app.execute_raw(f"UPDATE {ident(table.NAME)} SET c=REVERSE(c) WHERE id=1")
            looks.append((time.monotonic(), position.current(ours, database.server.is_mariadb)))
            time.sleep(0.5)
            found = progress.read(ours, workflow)
            read = Position.parse(str(found["read_position"]))
            if not has_read and read >= giant:
                has_read, looks = True, looks[-1:]
                say(f"  the giant transaction has been read after {time.monotonic() - began:.1f} s")
            while has_read and looks and looks[0][1] <= read:
                worst = max(worst, time.monotonic() - looks.pop(0)[0])
            if has_read and found["backlog"] is not None and found["backlog"] < 100 and (found["lag_seconds"] or 9) < 1:
                return worst, time.monotonic() - began
    raise RuntimeError(f"not level: {found}")


def _is_exact(session: Session, run: runs.Run) -> bool:
    sums = [session.row(_SUM.format(ident(name))) for name in (table.NAME, run.result["retired_table"])]
    return sums[0] == sums[1]


def main() -> None:
    rows = int(os.environ.get("BENCH_ROWS") or 5_000_000)
    for flavor in (os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(","):
        folder = FOLDER / f"giant-{flavor}"
        shutil.rmtree(folder, ignore_errors=True)
        server = servers.start(flavor, folder, options=table.options(flavor))
        try:
            database = create_database(server, "bench")
            with server.admin("bench", read_timeout=3600.0) as session:
                table.fill(session, rows)
                say(f"{flavor}: {once(database, session, folder, rows)}")
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
