"""From the command's start to the first copied row, where the newest binary log file is small, and where it is large.

    .venv/bin/python -m bench.start          # BENCH_MB (1000), BENCH_RUNS (5), BENCH_FLAVORS (mariadb,mysql)

Each run waits at a manual gate when its time has been taken, and is cancelled there. The large file is made of rows of
another table, written by statements of 10,000 rows; the servers give out GTIDs, and write both logs at each commit.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from dataclasses import dataclass

from bench import runs, table
from bench.__main__ import FOLDER, say
from sandbox import replicas, servers
from sandbox.databases import Database, create_database
from vreplication.mysql.session import Session

ROWS = 200_000
_ROW_BYTES = 200
_STATEMENT_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds since the command's start."""

    copying: float
    opened: float
    landed: float


def once(database: Database, session: Session, folder: runs.Path) -> Start:
    run = runs.held(database, session, folder)
    began = run.began
    return Start(copying=run.phases()["copying"] - began, opened=run.first - began, landed=run.landed - began)


def grow(session: Session, megabytes: int) -> None:
    """Write so much into the newest file, which is a new one."""
    session.execute_raw("CREATE TABLE IF NOT EXISTS other (v VARCHAR(255))")
    depth = "cte_max_recursion_depth" if _is_mysql(session) else "max_recursive_iterations"
    session.execute_raw(f"SET SESSION {depth}=1000000")
    numbers = f"WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i+1 FROM n WHERE i < {_STATEMENT_ROWS})"
    session.execute_raw("FLUSH BINARY LOGS")
    while newest(session)[1] < megabytes * 1_000_000:
        session.execute_raw(f"INSERT INTO other {numbers} SELECT REPEAT('x', {_ROW_BYTES}) FROM n")
    session.execute_raw("TRUNCATE other")


def newest(session: Session) -> tuple[str, int]:
    file, size, *_ = session.rows("SHOW BINARY LOGS")[-1]
    return str(file), int(size)


def _is_mysql(session: Session) -> bool:
    return "mariadb" not in str(session.value("SELECT VERSION()")).lower()


def measure(flavor: str, count: int, megabytes: int) -> None:
    folder = FOLDER / f"start-{flavor}"
    shutil.rmtree(folder, ignore_errors=True)
    options = {**table.options(flavor), **replicas.GTID_OPTIONS[flavor], "max-binlog-size": 1 << 30}
    server = servers.start(flavor, folder, options=options)
    try:
        database = create_database(server, "bench")
        with server.admin("bench") as session:
            table.fill(session, ROWS)
            for size in (0, megabytes):
                if size:
                    grow(session, size)
                tell(flavor, session, [once(database, session, folder) for _ in range(count)])
        database.close()
    finally:
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def tell(flavor: str, session: Session, found: list[Start]) -> None:
    file, size = newest(session)
    parts = {name: [getattr(start, name) for start in found] for name in ("copying", "opened", "landed")}
    words = ", ".join(f"{name} {statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})" for name, v in parts.items())
    print(f"{flavor}: {file} of {size / 1e6:,.0f} MB: {words}", flush=True)


def main() -> int:
    count, megabytes = int(os.environ.get("BENCH_RUNS") or 5), int(os.environ.get("BENCH_MB") or 1000)
    for flavor in (os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(","):
        say(f"{flavor}: {count} runs each")
        measure(flavor, count, megabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
