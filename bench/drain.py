"""How fast catch-up works off a backlog, for tables that people have, beside gh-ost.

    .venv/bin/python -m bench.drain      # BENCH_CHANGES (260000), BENCH_RUNS (3), BENCH_FLAVORS (mariadb,mysql),
                                         # BENCH_SHAPES (all), BENCH_SIZES (9000,1), BENCH_GHOST (path of gh-ost)

A workflow waits at its gate, gh-ost at its own. Catch-up is stopped, the rows are changed in transactions of so many
rows each, and it is let go; the stopwatch ends when the last change is there. For gh-ost that is a row that is changed
last: it applies in log order. Without a gh-ost its columns are left out, and that is said.

What must stay true: all tools drain the same changes of the same table on the same server, which is as durable as it
comes while they do; one after the other, each from rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import runs, table
from bench.__main__ import FOLDER, say
from bench.table import NAME
from sandbox import servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from sandbox.servers import RunningServer
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session
from vreplication.state import markers

_KEYS = "bench_keys"
_BATCHES = {"gh-ost": 10, "gh-ost, batch 1,000": 1_000}
"""gh-ost's --dml-batch-size: its default, and its largest."""
_LIMIT_SECONDS = 900.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table. fill: of each column, from a row `k` of the keys' table. change: what an UPDATE sets.

    last: sets and finds what the change before the last one left as it was.
    """

    name: str
    columns: str
    fill: str
    key: str
    change: str = "note=REVERSE(note)"
    last: str = "note='last of all'"
    options: tuple[str, ...] = ()


_NOTE = "note VARCHAR(60) NOT NULL"
_OF_NOTE = "LEFT(SHA2(k.n, 256), 40)"
SHAPES = (
    Shape(name="integer", columns=f"id BIGINT PRIMARY KEY, {_NOTE}", fill=f"k.n, {_OF_NOTE}", key="t.id=k.n"),
    Shape(
        name="tenant and email",
        columns=f"tenant INT, email VARCHAR(100), {_NOTE}, PRIMARY KEY (tenant, email)",
        fill=f"k.tenant, k.email, {_OF_NOTE}",
        key="t.tenant=k.tenant AND t.email=k.email",
    ),
    Shape(
        name="the same, every fourth key respelled",
        columns=f"tenant INT, email VARCHAR(100), {_NOTE}, PRIMARY KEY (tenant, email)",
        fill=f"k.tenant, k.email, {_OF_NOTE}",
        key="t.tenant=k.tenant AND t.email=k.email",
        change="note=REVERSE(t.note), t.email=IF(k.n % 4, t.email,"
        " IF(CAST(t.email AS BINARY)=LOWER(t.email), UPPER(t.email), LOWER(t.email)))",
    ),
    Shape(
        name="UUID, second unique key",
        columns=f"id VARCHAR(36) PRIMARY KEY, email VARCHAR(100) NOT NULL UNIQUE, {_NOTE}",
        fill=f"k.uuid, k.email, {_OF_NOTE}",
        key="t.id=k.uuid",
    ),
    Shape(
        name="wide",
        columns=f"id BIGINT PRIMARY KEY, {_NOTE}, "
        + ", ".join(
            f"i{i} INT NOT NULL, d{i} DATETIME NOT NULL, v{i} VARCHAR(120) NOT NULL, m{i} DECIMAL(12,2)"
            for i in range(9)
        )
        + ", a BIGINT, b BIGINT",
        fill=f"k.n, {_OF_NOTE}, "
        + ", ".join(f"k.n*{i}, '2026-01-02 03:04:05', REPEAT(LEFT(k.uuid, 30), 3), k.n/4" for i in range(9))
        + ", k.n, NULL",
        key="t.id=k.n",
    ),
    Shape(
        name="JSON",
        columns=f"id BIGINT PRIMARY KEY, {_NOTE}, doc JSON NOT NULL",
        fill=f"k.n, {_OF_NOTE}, JSON_OBJECT('id', k.n, 'email', k.email, 'tags', JSON_ARRAY('a', k.uuid, k.tenant),"
        " 'address', JSON_OBJECT('street', LEFT(k.uuid, 20), 'no', k.tenant, 'extra', REPEAT('x', 200)), 'ok', TRUE)",
        key="t.id=k.n",
        change="doc=JSON_SET(doc, '$.address.no', 7, '$.ok', FALSE, '$.id', RAND())",
    ),
    Shape(
        name="new unique key",
        columns=f"id BIGINT PRIMARY KEY, email VARCHAR(100) NOT NULL, {_NOTE}",
        fill=f"k.n, k.email, {_OF_NOTE}",
        key="t.id=k.n",
        options=("--alter", "ADD UNIQUE KEY one (email)"),
    ),
)


@dataclass(slots=True, kw_only=True)
class Bench:
    database: Database
    session: Session
    folder: Path
    changes: int
    count: int
    ghost: Path | None
    found: dict[tuple[str, int, str], list[float]] = field(default_factory=dict)

    def run(self, shapes: list[Shape], sizes: list[int]) -> None:
        self._make_keys()
        for shape in shapes:
            self._fill(shape)
            for _ in range(self.count):
                self._ours(shape, sizes)
                if self.ghost and not shape.options:
                    for name, batch in _BATCHES.items():
                        self._theirs(shape, sizes, name, batch)
            self.session.execute_raw(f"DROP TABLE {ident(NAME)}")

    def _make_keys(self) -> None:
        run = self.session.execute_raw
        run("SET SESSION sql_log_bin=0")
        digits = " UNION ALL ".join(f"SELECT {i} AS d" for i in range(10))
        join = ", ".join(f"({digits}) AS {name}" for name in "abcdef")
        run(
            f"CREATE TABLE {_KEYS} (n INT PRIMARY KEY, tenant INT NOT NULL, email VARCHAR(100) NOT NULL,"
            " uuid CHAR(36) NOT NULL)"
        )
        number = "a.d+10*b.d+100*c.d+1000*d.d+10000*e.d+100000*f.d"
        uuid = "CONCAT_WS('-', LEFT(h, 8), SUBSTR(h, 9, 4), SUBSTR(h, 13, 4), SUBSTR(h, 17, 4), SUBSTR(h, 21, 12))"
        run(
            f"INSERT INTO {_KEYS} SELECT n, n % 97, CONCAT(LEFT(h, 6), '.', n, '@example.com'), {uuid} FROM"
            f" (SELECT n, SHA2(n, 256) AS h FROM (SELECT {number} AS n FROM {join}) AS x WHERE n < {self.changes})"
            " AS y"
        )
        run("SET SESSION sql_log_bin=1")

    def _fill(self, shape: Shape) -> None:
        run = self.session.execute_raw
        run("SET SESSION sql_log_bin=0")
        run(f"DROP TABLE IF EXISTS {ident(NAME)}")
        run(f"CREATE TABLE {ident(NAME)} ({shape.columns}) ENGINE=InnoDB")
        run(f"INSERT INTO {ident(NAME)} SELECT {shape.fill} FROM {_KEYS} AS k")
        self.session.rows(f"ANALYZE TABLE {ident(NAME)}")
        run("DROP PROCEDURE IF EXISTS bench_change")
        run(
            "CREATE PROCEDURE bench_change(i INT, n INT) BEGIN WHILE i < n DO"
            f" UPDATE {_KEYS} AS k STRAIGHT_JOIN {ident(NAME)} AS t ON {shape.key} SET t.{shape.change} WHERE k.n=i;"
            " SET i = i + 1; END WHILE; END"
        )
        run("SET SESSION sql_log_bin=1")

    def _take(self, shape: Shape, size: int, who: str, seconds: float) -> None:
        self.found.setdefault((shape.name, size, who), []).append(seconds)
        say(f"  {shape.name}, {size} rows a transaction, {who}: {seconds:.2f} s")

    def _ours(self, shape: Shape, sizes: list[int]) -> None:
        def at_gate(run: runs.Run) -> None:
            pid = runs.replicate_pid(run.process.pid)
            for size in sizes:
                table.rest(self.session)
                with self._stopped(pid):
                    self._change(shape, size)
                    marker = markers.write(self.session, run.workflow)
                began = time.monotonic()
                markers.wait_applied(
                    self.session, run.workflow, marker, timeout_seconds=_LIMIT_SECONDS, poll_seconds=_POLL_SECONDS
                )
                self._take(shape, size, "ours", time.monotonic() - began)
                markers.remove(self.session, run.workflow, marker)

        runs.held(self.database, self.session, self.folder, *shape.options, at_gate=at_gate)

    def _theirs(self, shape: Shape, sizes: list[int], name: str, batch: int) -> None:
        with self._ghost_at_gate(batch) as pid:
            for size in sizes:
                table.rest(self.session)
                with self._stopped(pid):
                    self._change(shape, size)
                    on = f"{_KEYS} AS k STRAIGHT_JOIN {{}} AS t ON {shape.key}"
                    self.session.execute_raw(
                        f"UPDATE {on.format(ident(NAME))} SET t.note='{size} last' WHERE k.n={self.changes // 2}"
                    )
                began = time.monotonic()
                ask = f"SELECT t.note FROM {on.format(ident(f'_{NAME}_gho'))} WHERE k.n={self.changes // 2}"
                self._wait(lambda ask=ask, size=size: self.session.value(ask) == f"{size} last")  # type: ignore[misc]
                self._take(shape, size, name, time.monotonic() - began)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError("it does not come")
            time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _stopped(self, pid: int) -> Iterator[None]:
        """What is written meanwhile is not measured, and need not be durable."""
        settings = "innodb_flush_log_at_trx_commit", "sync_binlog"
        before = [self.session.value(f"SELECT @@global.{name}") for name in settings]
        os.kill(pid, signal.SIGSTOP)
        try:
            for name in settings:
                self.session.execute_raw(f"SET GLOBAL {name}=0")
            yield
        finally:
            for name, value in zip(settings, before, strict=True):
                self.session.execute_raw(f"SET GLOBAL {name}={value}")
            self.session.execute_raw("FLUSH ENGINE LOGS")
            os.kill(pid, signal.SIGCONT)

    def _change(self, shape: Shape, size: int) -> None:
        if size == 1:
            self.session.execute_raw(f"CALL bench_change(0, {self.changes})")
            return
        for low in range(0, self.changes, size):
            self.session.execute_raw(
                f"UPDATE {_KEYS} AS k STRAIGHT_JOIN {ident(NAME)} AS t ON {shape.key} SET t.{shape.change}"
                f" WHERE k.n >= {low} AND k.n < {low + size}"
            )

    @contextlib.contextmanager
    def _ghost_at_gate(self, batch: int) -> Iterator[int]:
        """gh-ost, its rows copied, that waits with the cut-over."""
        flag, end = self.folder / "postpone", self.folder / "end"
        flag.touch()
        server = self.database.server
        words = [
            *(str(self.ghost), "--host=127.0.0.1", f"--port={server.port}", f"--user={server.user}"),
            *(f"--password={server.password}", f"--database={self.database.name}", f"--table={NAME}"),
            *(f"--alter={runs.ALTER}", "--allow-on-master", "--initially-drop-ghost-table", "--chunk-size=10000"),
            *("--initially-drop-old-table", f"--dml-batch-size={batch}", "--execute", "--exact-rowcount"),
            *(f"--postpone-cut-over-flag-file={flag}", f"--panic-flag-file={end}", "--initially-drop-socket-file"),
            *(f"--serve-socket-file={self.folder / 'ghost.sock'}", "--assume-rbr", "--verbose"),
            *(["--skip-metadata-lock-check"] if server.is_mariadb else []),
        ]
        out = self.folder / "ghost.out"
        with out.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            self._wait(lambda: process.poll() is not None or b"postponing cut-over" in out.read_bytes())
            if process.poll() is not None:
                raise RuntimeError(f"gh-ost ended: {out.read_text()[-2000:]}")
            yield process.pid
        finally:
            process.kill()
            process.wait()
            for name in ("gho", "ghc", "del"):
                self.session.execute_raw(f"DROP TABLE IF EXISTS {ident(f'_{NAME}_{name}')}")


def find_ghost(flavor: str) -> Path | None:
    """BENCH_GHOST, or where the peers are built; for MariaDB it is another one."""
    named = os.environ.get("BENCH_GHOST")
    built = [ROOT / ".sandbox" / "peers" / name for name in (f"gh-ost-{flavor}", "gh-ost")]
    places = [Path(named)] if named else [*built, *_in_path()]
    return next((place for place in places if place.exists()), None)


def _in_path() -> list[Path]:
    found = shutil.which("gh-ost")
    return [Path(found)] if found else []


def report(found: dict[tuple[str, int, str], list[float]]) -> Iterator[str]:
    """A line a table and size: medians with their span, and what ours is of the others."""
    for shape, size in dict.fromkeys((shape, size) for shape, size, _ in found):
        ours = found[shape, size, "ours"]
        cells = [_said(ours)]
        for name in _BATCHES:
            theirs = found.get((shape, size, name))
            cells.append(
                f"{_said(theirs)} | {statistics.median(ours) / statistics.median(theirs):.2f}" if theirs else "– | –"
            )
        yield f"| {shape} | {size:,} | " + " | ".join(cells) + " |"


def _said(samples: list[float]) -> str:
    return f"{statistics.median(samples):.1f} s ({min(samples):.1f}–{max(samples):.1f})"


def measure(server: RunningServer, folder: Path, ghost: Path | None) -> Bench:
    names = (os.environ.get("BENCH_SHAPES") or ",".join(s.name.replace(",", "") for s in SHAPES)).split(",")
    sizes = [int(size) for size in (os.environ.get("BENCH_SIZES") or "9000,1").split(",")]
    database = create_database(server, "bench")
    with server.admin("bench", read_timeout=3600.0) as session:
        session.execute_raw("SET GLOBAL net_write_timeout=900")
        bench = Bench(
            database=database,
            session=session,
            folder=folder,
            changes=int(os.environ.get("BENCH_CHANGES") or 260_000),
            count=int(os.environ.get("BENCH_RUNS") or 3),
            ghost=ghost,
        )
        bench.run([s for s in SHAPES if s.name.replace(",", "") in names], sizes)
    database.close()
    return bench


def main() -> int:
    for flavor in (os.environ.get("BENCH_FLAVORS") or "mariadb,mysql").split(","):
        folder = FOLDER / f"drain-{flavor}"
        shutil.rmtree(folder, ignore_errors=True)
        server = servers.start(flavor, folder, options=table.options(flavor))
        try:
            ghost = find_ghost(flavor)
            say(f"gh-ost: {ghost or 'not found (BENCH_GHOST), left out'}")
            bench = measure(server, folder, ghost)
        finally:
            server.stop()
        print(
            f"{flavor}\n\n| table | rows a transaction | ours | gh-ost | ÷ | gh-ost, batch 1,000 | ÷ |\n|{'---|' * 7}"
        )
        print("\n".join(report(bench.found)), flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
