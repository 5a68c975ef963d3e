"""What is measured of feeds alone: the consumer, a transaction of millions of rows, a server of 100,000 tables.

What must stay true: memory is all that the command has resident, with its children; files of the sorter are counted as
the process has them open.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import cpu, feed_site
from bench.feed_contenders import OURS, Job, Ours, cpu_of, environment, versions
from bench.feed_report import Results
from bench.feed_runs import Figures, Memory, Peak, Trickle, read_by
from bench.feed_site import NARROW, SCHEMA, Site
from bench.load import percentile
from bench.report import say
from sandbox import servers
from sandbox.databases import Database, create_database
from vreplication.mysql.quoting import ident

_MOST_SECONDS = 1_800.0
_CREATORS = 4
_LATENCY_SECONDS = 10.0


# The consumer.


def consume(site: Site, rows: int, results: Results) -> None:
    stretches = [site.stretch(f"consumed{each}", NARROW, rows, each) for each in (1_000, 1)]
    folder = site.folder / "target"
    target = servers.start(site.flavor, folder, options=feed_site.server_options(site.flavor))
    try:
        for stretch, each in zip(stretches, ("1,000 rows", "1 row"), strict=True):
            job = Job(name=f"c-{stretch.table}", table=stretch.table, partitions=4, interval=200, start=stretch.start)
            ours = Ours(site=site)
            with read_by(ours, site, job) as reader:
                reader.wait(lambda: reader.count >= rows, ours, job)
            for mode in ("row", "transaction"):
                with _target(target) as database:
                    figures = _drained(site, database, job, mode, rows)
                results.add(site.flavor, "consume", f"narrow, {each}, 4 partitions, {mode}", OURS, 1, figures)
        for mode in ("row", "transaction"):
            with _target(target) as database:
                figures = _followed(site, database, mode)
            results.add(site.flavor, "consume", f"from COMMIT to the target, {mode}", OURS, 1, figures)
    finally:
        target.stop()


@contextlib.contextmanager
def _target(server: servers.RunningServer) -> Iterator[Database]:
    database = create_database(server, SCHEMA, grants="move_target")
    try:
        yield database
    finally:
        database.drop_sidecar()
        database.drop()


@contextlib.contextmanager
def _consumer(site: Site, database: Database, topic: str, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    url = f"kafka://{site.cluster.bootstrap}/{topic}"
    with (site.folder / "consumer.log").open("ab") as out:
        command = [sys.executable, "-m", "vreplication", "consume", "--from", url, "--mode", mode, "--json"]
        where = environment(site, database, "TARGET")
        process = subprocess.Popen(command, env=where, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def _drained(site: Site, database: Database, job: Job, mode: str, rows: int) -> Figures:
    database.admin.execute_raw(f"CREATE TABLE {ident(job.table)} ({NARROW})")
    count = f"SELECT COUNT(*) FROM {ident(job.table)}"
    with _consumer(site, database, job.name, mode) as process:
        early = _until(lambda: int(database.admin.value(count)), 1, process)
        at, used = time.monotonic(), cpu_of(site, process.pid)
        _until(lambda: int(database.admin.value(count)), rows, process)
        took, spent = time.monotonic() - at, cpu_of(site, process.pid) - used
        resident = sum(cpu.resident(process.pid).values())
    left = max(rows - early, 1)
    return {
        "rows_per_second": left / took,
        "cpu_seconds_per_million": 1e6 * spent / left,
        "resident_mib": resident / (1 << 20),
    }


def _until(ask: object, least: int, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _MOST_SECONDS
    while (found := ask()) < least:  # type: ignore[operator]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the consumer does not come on")
        time.sleep(0.02)
    return int(found)


def _followed(site: Site, database: Database, mode: str) -> Figures:
    """Rows of a trickle, from COMMIT's answer on the source until they are read at the target."""
    table = f"followed_{mode}"
    site.make(table, NARROW)
    database.admin.execute_raw(f"CREATE TABLE {ident(table)} ({NARROW})")
    job = Job(name=f"c-{mode}", table=table, partitions=4, interval=200, start=site.place())
    seen: dict[int, float] = {}
    with read_by(Ours(site=site), site, job), _consumer(site, database, job.name, mode) as process:
        with Trickle(site, table) as trickle:
            until, has_come = 0.0, False
            while not until or time.monotonic() < until:
                _note(database, table, seen)
                if seen and not has_come:
                    has_come, until = True, time.monotonic() + _LATENCY_SECONDS
                if process.poll() is not None:
                    raise RuntimeError("the consumer has ended")
        deadline = time.monotonic() + 30
        while len(seen) < len(trickle.done) and time.monotonic() < deadline:
            _note(database, table, seen)
    since = until - _LATENCY_SECONDS + 2
    took = sorted(1000 * (seen[n] - at) for n, at in trickle.done.items() if n in seen and since <= at < until)
    return {"p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99)}


def _note(database: Database, table: str, seen: dict[int, float]) -> None:
    least = max(0, len(seen) - 500)
    found = database.admin.rows(f"SELECT id FROM {ident(table)} WHERE id > {least}")
    at = time.monotonic()
    for (number,) in found:
        seen.setdefault(int(number), at)
    time.sleep(0.005)


# What is large.


class Files(Peak):
    """Files of the sorter that a process has open at a time."""

    def __init__(self, pid: int, spool: Path) -> None:
        super().__init__(self._now)
        self._pid, self._spool = pid, str(spool)

    def _now(self) -> int:
        found = 0
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{self._pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found += os.readlink(each).startswith(self._spool)
        return found


def giant(flavor: str, folder: Path, rows: int, results: Results) -> None:
    """One transaction of so many rows, a trickle into another table beside it, whose rows may go ahead or may not."""
    site = feed_site.opened(flavor, folder, **{"max-binlog-cache-size": 16 << 30})
    try:
        results.machine = results.machine or feed_site.described(site, versions(flavor))
        for dispatch in ("index-value", "table"):
            figures = _giant(site, rows, dispatch)
            results.add(flavor, "giant", f"{rows:,} rows in one transaction, by {dispatch}", OURS, 1, figures)
    finally:
        site.close()


def _giant(site: Site, rows: int, dispatch: str) -> Figures:
    """By table each of the two has a partition of its own."""
    site.session.execute_raw("DROP TABLE IF EXISTS giant, small")
    site.make("giant", NARROW)
    site.make("small", NARROW)
    ours = Ours(site=site, tables=("giant", "small"), dispatch=dispatch)
    job = Job(name=f"giant-{dispatch}", table="giant", partitions=4, interval=200, start=site.place())
    with read_by(ours, site, job, keep=b'"small"') as reader, Trickle(site, "small", rate=20) as trickle:
        reader.wait(lambda: reader.count > 0, ours, job)
        with Memory(ours) as memory, Files(ours.process.pid, site.folder / "spool") as files:
            early, small, began = ours.cpu_seconds(), reader.count, time.monotonic()
            _write_giant(site, rows)
            written = time.monotonic()
            say(f"  written after {written - began:.1f} s")
            reader.wait(lambda: reader.count - small >= rows, ours, job, patience=600)
            level = time.monotonic()
            trickle.stop()
            reader.wait(lambda: reader.count >= rows + len(trickle.done), ours, job)
        used = ours.cpu_seconds() - early
    found = {number: at for at, number in reader.rows()}
    late = [found[number] - at for number, at in trickle.done.items() if number in found]
    return {
        "statement_seconds": written - began,
        "readable_after_seconds": level - written,
        "others_behind_at_most_seconds": max(late),
        "cpu_seconds_per_million": 1e6 * used / rows,
        "resident_mib": memory.mib,
        "sorter_files": float(files.peak),
    }


def _write_giant(site: Site, rows: int) -> None:
    number = "a.n + 1000 * b.n + 1000000 * c.n"
    text = f"LPAD({number}, 40, 'x')"
    site.session.execute_raw(
        f"INSERT INTO giant SELECT {number}, {text}, RIGHT({text}, 8) FROM numbers c, numbers b, numbers a"
        f" WHERE c.n <= {rows // 1_000_000} AND {number} < {rows}"
    )


def tables(flavor: str, folder: Path, count: int, results: Results) -> None:
    """A row into each of so many tables, one a transaction."""
    options = {"innodb-file-per-table": "OFF", "table-open-cache": 2_000, "innodb-flush-log-at-trx-commit": 0}
    site = feed_site.opened(flavor, folder, **options)
    try:
        results.machine = results.machine or feed_site.described(site, versions(flavor))
        began = time.monotonic()
        _create(site, count)
        say(f"  {flavor}: {count:,} tables made in {time.monotonic() - began:.0f} s")
        results.add(flavor, "tables", f"{count:,} tables, a row into each", OURS, 1, _tables(site, count))
    finally:
        site.close()


def _name(number: int) -> str:
    return f"t{number:06}"


def _create(site: Site, count: int) -> None:
    def make(numbers: Sequence[int]) -> None:
        with site.server.admin(SCHEMA, read_timeout=3_600) as session:
            session.execute_raw("SET SESSION sql_log_bin=0")
            for number in numbers:
                session.execute_raw(f"CREATE TABLE {_name(number)} ({NARROW})")

    with ThreadPoolExecutor(_CREATORS) as pool:
        list(pool.map(make, [range(first, count, _CREATORS) for first in range(_CREATORS)]))


def _tables(site: Site, count: int) -> Figures:
    ours = Ours(site=site, tables=("*",))
    job = Job(name="tables", table="numbers", partitions=4, interval=200, start=site.place())
    done: dict[int, float] = {}
    with read_by(ours, site, job) as reader:
        site.session.execute_raw(f"INSERT INTO {_name(0)} VALUES (0,'','')")
        reader.wait(lambda: reader.count > 0, ours, job)
        with Memory(ours) as memory, Files(ours.process.pid, site.folder / "spool") as files:
            early = ours.cpu_seconds()
            for number in range(1, count):
                site.session.execute_raw(f"INSERT INTO {_name(number)} VALUES ({number},'','')")
                done[number] = time.monotonic()
            written = time.monotonic()
            reader.wait(lambda: reader.count >= count, ours, job)
            level = time.monotonic()
        used = ours.cpu_seconds() - early
    found = {number: at for at, number in reader.rows()}
    return {
        "lag_at_most_seconds": max(found[number] - at for number, at in done.items()),
        "level_after_seconds": level - written,
        "written_per_second": (count - 1) / (max(done.values()) - min(done.values())),
        "cpu_seconds_per_million": 1e6 * used / count,
        "resident_mib": memory.mib,
        "sorter_files": float(files.peak),
    }
