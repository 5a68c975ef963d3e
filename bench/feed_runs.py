"""What is measured of a feed beside Debezium: throughput, latency, restarts and duplicates, XA.

What must stay true: figures of one run are of one contender that reads alone; what lies before its first row can be
read (the start of a process, of a JVM, of a connector) is in no throughput and in no CPU time, but in the restart.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from bench.feed_contenders import Contender, Job
from bench.feed_reader import Reader, ids
from bench.feed_site import NARROW, Site, Stretch
from bench.load import percentile
from vreplication.mysql.quoting import ident

RATE = 200
"""Transactions a second while latency is measured, and kills."""
_WARM_SECONDS, _QUIET_SECONDS = 3.0, 5.0
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """kind: of the stretch, or none for latency. interval: milliseconds; 0: what each has by default."""

    kind: str = ""
    partitions: int = 4
    interval: int = 200

    def __str__(self) -> str:
        interval = f"{self.interval} ms" if self.interval else "defaults"
        return f"{f'{self.kind}, ' if self.kind else ''}{self.partitions} partitions, {interval}"


class Peak:
    """The most that a figure came to, looked at twice a second."""

    def __init__(self, look: Callable[[], int]) -> None:
        self.peak = 0
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.peak = max(self.peak, self._look())


class Memory(Peak):
    """What a contender has resident."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(contender.resident)

    @property
    def mib(self) -> float:
        return self.peak / (1 << 20)


@contextlib.contextmanager
def read_by(contender: Contender, site: Site, job: Job, *, keep: bytes = b"") -> Iterator[Reader]:
    """It reads from the job's place on, and somebody reads what it sends. keep: as of the Reader."""
    topic = contender.topic(job)
    site.cluster.create_topic(topic, job.partitions)
    with Reader(site, topic, job.partitions, keep) as reader:
        contender.begin(job)
        try:
            yield reader
        finally:
            contender.end(job)


def throughput(contender: Contender, site: Site, job: Job, stretch: Stretch) -> Figures:
    """Between the first and the last row of a stretch that lies in the log."""
    with read_by(contender, site, job) as reader, Memory(contender) as memory:
        reader.wait(lambda: reader.count > 0, contender, job)
        early = contender.cpu_seconds()
        at_early = reader.count
        reader.wait(lambda: reader.count >= stretch.rows, contender, job)
        used = contender.cpu_seconds() - early
    if len(reader.copies()) != stretch.rows:
        raise RuntimeError(f"{contender.name}: {len(reader.copies())} rows of {stretch.rows}")
    (first, values), (last, _) = reader.batches[0], reader.batches[-1]
    # Of few batches nothing can be told.
    if len(reader.batches) < 4 or stretch.rows - at_early < stretch.rows / 3:
        raise RuntimeError(f"{contender.name}: too few rows to be measured")
    return {
        "rows_per_second": (stretch.rows - len(values)) / (last - first),
        "cpu_seconds_per_million": 1e6 * used / (stretch.rows - at_early),
        "resident_mib": memory.mib,
    }


@dataclass(slots=True)
class Trickle:
    """One row a transaction, by a timetable. done: by id, when its COMMIT was answered."""

    site: Site
    table: str
    rate: float = RATE
    done: dict[int, float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Trickle:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(30)

    def _write(self) -> None:
        with self.site.server.admin(self.site.database.name) as session:
            began, number = time.monotonic(), 1
            while not self._over.is_set():
                self._over.wait(max(0.0, began + number / self.rate - time.monotonic()))
                session.execute_raw(f"INSERT INTO {ident(self.table)} VALUES ({number},'x','y')")
                self.done[number] = time.monotonic()
                number += 1


def latency(contender: Contender, site: Site, job: Job, seconds: float) -> Figures:
    """From COMMIT's answer until it can be read, once all runs smoothly."""
    site.make(job.table, NARROW)
    with read_by(contender, site, job) as reader, Memory(contender) as memory, Trickle(site, job.table) as trickle:
        reader.wait(lambda: reader.count > 0, contender, job)
        time.sleep(_WARM_SECONDS)
        since, early = time.monotonic(), contender.cpu_seconds()
        time.sleep(seconds)
        used = contender.cpu_seconds() - early
        trickle.stop()
        # Not reader.count: the table's CREATE is a message, too.
        reader.wait(lambda: len(reader.copies()) >= len(trickle.done), contender, job)
    found = {number: at for at, number in reader.rows()}
    took = sorted(1000 * (found[n] - at) for n, at in trickle.done.items() if since <= at < since + seconds)
    return {
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "resident_mib": memory.mib,
        "cpu_share": used / seconds,
    }


def kills(contender: Contender, site: Site, job: Job, count: int, draw: random.Random) -> Figures:
    """kill -9 at any moment, started again at once; rows are written all the while."""
    site.make(job.table, NARROW)
    restarts = []
    with read_by(contender, site, job) as reader, Trickle(site, job.table) as trickle:
        reader.wait(lambda: reader.count > 0, contender, job)
        for _ in range(count):
            time.sleep(draw.uniform(0.2, 1.5))
            at = time.monotonic()
            written = len(trickle.done)
            contender.kill()
            _wait_past(reader, contender, job, written)
            restarts.append(time.monotonic() - at)
        trickle.stop()
        _wait_past(reader, contender, job, len(trickle.done) - 1)
        time.sleep(_QUIET_SECONDS)
    copies = reader.copies()
    return {
        "duplicates": float(sum(copies.values()) - len(copies)),
        "lost": float(len(trickle.done.keys() - copies.keys())),
        "rows": float(len(trickle.done)),
        "restart_p50_seconds": percentile(sorted(restarts), 0.5),
        "restart_most_seconds": max(restarts),
    }


def _wait_past(reader: Reader, contender: Contender, job: Job, number: int) -> None:
    """Until a row behind this one can be read: they come in order in each partition, and all are looked at."""
    looked = 0
    latest = 0

    def has_come() -> bool:
        nonlocal looked, latest
        while looked < len(reader.batches):
            _, values = reader.batches[looked]
            latest = max([latest, *(n for n in map(ids, values) if n is not None)])
            looked += 1
        return latest > number

    reader.wait(has_come, contender, job)


def branches(contender: Contender, site: Site, job: Job, count: int) -> Figures:
    """XA branches, every other one rolled back once it was prepared; behind them a row that tells that all was read."""
    site.make(job.table, NARROW)
    with read_by(contender, site, job) as reader:
        _prepare(site, job.table, count)
        site.session.execute_raw(f"INSERT INTO {ident(job.table)} VALUES (999999999,'end','')")
        _wait_past(reader, contender, job, 999_999_998)
        time.sleep(2)
    copies = reader.copies()
    rolled_back = [number for number in copies if number < 999_999_999 and number % 2]
    committed = [number for number in copies if number < 999_999_999 and not number % 2]
    return {
        "rolled_back_sent": float(len(rolled_back)),
        "committed_lost": float(count - count // 2 - len(committed)),
        "duplicates": float(sum(copies.values()) - len(copies)),
    }


def _prepare(site: Site, table: str, count: int) -> None:
    with site.server.admin(site.database.name) as session:
        for number in range(count):
            session.execute_raw(f"XA START 'b{number}'")
            session.execute_raw(f"INSERT INTO {ident(table)} VALUES ({number},'xa','')")
            session.execute_raw(f"XA END 'b{number}'")
            session.execute_raw(f"XA PREPARE 'b{number}'")
            session.execute_raw(f"XA {'ROLLBACK' if number % 2 else 'COMMIT'} 'b{number}'")
