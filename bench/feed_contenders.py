"""Who is measured: `vreplication changefeed`, and Debezium in a Kafka Connect worker, with exactly-once or without.

Ours is the command as a user runs it. Debezium has its defaults, JSON without schemas, and `poll.interval.ms`, by which
it closes a batch (and with exactly-once commits it), at what is our commit interval.

What must stay true: each begins at the place that it is told, in topics that are new; a signal goes to one process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import cpu
from bench.feed_site import SCHEMA, Place, Site
from sandbox import kafka_jars
from sandbox.connect import HEAP, Worker, connector
from sandbox.databases import Database
from sandbox.install import ROOT

OURS, ONCE, OFTEN = "vreplication", "debezium, exactly once", "debezium, at least once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """name: of topics and workflow, used once. interval: milliseconds, 0: what each has by default."""

    name: str
    table: str
    partitions: int
    interval: int
    start: Place


class Contender(Protocol):
    name: str

    def topic(self, job: Job) -> str: ...

    def begin(self, job: Job) -> None:
        """Read from the job's place on; returns at once."""

    def end(self, job: Job) -> None: ...

    def kill(self) -> None:
        """kill -9, and started again at once."""

    def cpu_seconds(self) -> float: ...

    def resident(self) -> int: ...

    def trouble(self, job: Job) -> str:
        """Why it does not go on; empty where it does."""

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Ours:
    site: Site
    tables: Sequence[str] = ()
    """Others than the job's."""
    dispatch: str = "index-value"
    name: str = OURS
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _command: list[str] = field(default_factory=list)

    def topic(self, job: Job) -> str:
        return job.name

    def begin(self, job: Job) -> None:
        sink = f"kafka://{self.site.cluster.bootstrap}/{self.topic(job)}"
        self._command = [
            *(sys.executable, "-m", "vreplication", "changefeed", "--sink", sink, "--workflow", job.name),
            *(word for table in self.tables or (job.table,) for word in ("--tables", f"{SCHEMA}.{table}")),
            *(("--commit-interval", str(job.interval)) if job.interval else ()),
            *("--dispatch", self.dispatch),
            *("--partitions", str(job.partitions), "--start", job.start.gtids, "--yes", "--json"),
        ]
        self._launch()

    def _launch(self) -> None:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                env=environment(self.site, self.site.database, "SOURCE"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def _log(self) -> Path:
        return self.site.folder / "ours.log"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def end(self, job: Job) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._launch()

    def cpu_seconds(self) -> float:
        return cpu_of(self.site, self.process.pid)

    def resident(self) -> int:
        return sum(cpu.resident(self.process.pid).values())

    def trouble(self, job: Job) -> str:
        return "" if self.process.poll() is None else self._log.read_text(errors="replace")[-1000:]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)


@dataclass(slots=True, kw_only=True)
class Debezium:
    """One worker for all jobs of a round, started for the first."""

    site: Site
    exactly_once: bool
    heap: Sequence[str] = HEAP
    _worker: Worker | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return ONCE if self.exactly_once else OFTEN

    def topic(self, job: Job) -> str:
        return f"{job.name}.{SCHEMA}.{job.table}"

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            folder = self.site.folder / f"connect-{time.monotonic_ns()}"
            bootstrap = self.site.cluster.bootstrap
            self._worker = Worker(
                folder=folder, bootstrap=bootstrap, exactly_once=self.exactly_once, heap=self.heap
            )  # fmt: skip
            self._worker.start()
        return self._worker

    def begin(self, job: Job) -> None:
        self.worker.create(job.name, self._config(job), state="STOPPED")
        place = {"file": job.start.file, "pos": job.start.offset, "gtids": job.start.gtids}
        self.worker.set_offset(job.name, job.name, place)
        self.worker.resume(job.name)

    def _config(self, job: Job) -> dict[str, str]:
        once = {"exactly.once.support": "required"} if self.exactly_once else {}
        return connector(
            self.site.server,
            self.site.cluster.bootstrap,
            job.name,
            **{
                "table.include.list": f"{SCHEMA}.{job.table}",
                # Its tables are looked up at the start, and the log is read from the offset that was set.
                "snapshot.mode": "recovery",
                **({"poll.interval.ms": str(job.interval)} if job.interval else {}),
                **once,
            },
        )

    def end(self, job: Job) -> None:
        self.worker.delete(job.name)

    def kill(self) -> None:
        self.worker.kill()
        self.worker.launch()

    def cpu_seconds(self) -> float:
        return cpu_of(self.site, self.worker.pid)

    def resident(self) -> int:
        return sum(cpu.resident(self.worker.pid).values())

    def trouble(self, job: Job) -> str:
        try:
            return self.worker.failure(job.name)[-1000:]
        except OSError as error:
            return str(error)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def environment(site: Site, database: Database, side: str) -> dict[str, str]:
    """side: SOURCE or TARGET; unencrypted, as Debezium is."""
    url = database.url
    word = "VREPLICATION_PASSWORD" if side == "SOURCE" else "VREPLICATION_TARGET_PASSWORD"
    return {
        **os.environ,
        f"VREPLICATION_{side}": f"mysql+pymysql{str(url).removeprefix('mysql')}?ssl_disabled=true",
        word: url.password,
        "XDG_STATE_HOME": str(site.folder / "state"),
        "VREPLICATION_SPOOL": str(site.folder / "spool"),
        "PYTHONPATH": str(ROOT),
    }


def cpu_of(site: Site, pid: int) -> float:
    return sum(seconds for role, seconds in cpu.used(site.server.pid, pid).items() if role != "server")


def versions(flavor: str) -> dict[str, str]:
    return {"Kafka": kafka_jars.KAFKA, "Debezium": kafka_jars.DEBEZIUM[flavor]}
