"""The row copy as Spark jobs: one task a few splits, so many at a time as the limits say.

What must stay true: the connection's URL, which holds the password, travels inside the task's closure and in no Spark
property; nothing is speculated; an error of ours that is raised on an executor comes out here as that very error; when
`run_copy` returns or raises, no task of it is left running that could not be fenced off.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vreplication.errors import Terminal, Transient, VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.rowcopy.chunker import copy_split
from vreplication.rowcopy.job import CopyJob, SplitResult
from vreplication.schema.model import TableMapping
from vreplication.state import ledger
from vreplication.state.lease import Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

MAX_FAILURES = 4
"""Attempts at a task, the first included."""
STOP_SECONDS = 15.0
_PROPERTIES = {
    "spark.ui.enabled": "false",
    # The JVM only hands tasks to Python workers: its optimizing compiler and parallel collector would take the cores
    # that the servers need, and starting took 11 s instead of 8 beside other work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.task.maxFailures": str(MAX_FAILURES),
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker inside a statement does not notice that its task was killed; Spark ends it after this long.
    "spark.python.task.killTimeout": "500ms",
}


def spark_session(master: str, parallelism: int, app_name: str) -> SparkSession:
    """A session for `run_copy`. A local master gets as many slots as are used and binds to this machine alone."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master(local_master(master, parallelism)).appName(app_name)
    for name, value in {**_PROPERTIES, **_local_properties(master)}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def warm_up(spark: SparkSession, parallelism: int) -> None:
    """Start Spark's Python workers and have them import what a copying task needs, before there is anything to copy."""
    # What is wrong with the cluster will be said by the copy, in its own words.
    with contextlib.suppress(Exception):
        spark.sparkContext.parallelize(range(parallelism), parallelism).map(_imported).collect()


def _imported(number: int) -> int:
    """Whoever unpickles this function has imported this module."""
    return number


def local_master(master: str, parallelism: int) -> str:
    """local[*] with the slots that are used, and with retries, which a plain local[n] does not do."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if not found:
        return master
    slots = parallelism if found[1] == "*" else int(found[1] or 1)
    return f"local[{max(1, slots)},{MAX_FAILURES}]"


def _local_properties(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return {}
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def run_copy(
    spark: SparkSession,
    url: SourceUrl,
    lease: Lease,
    mapping: TableMapping,
    job: CopyJob,
    *,
    on_tick: Callable[[], None],
    tick_seconds: float = 0.5,
) -> None:
    """Copy every split that is not done. `on_tick` is called in this thread and may raise to stop the copy."""
    with connect(url) as session:
        numbers = [s.number for s in ledger.splits(session, job.workflow) if not s.is_done]
    task = _Task(url=url, lease=lease, mapping=mapping, job=job)
    _Jobs(spark.sparkContext, task, numbers, job.limits.copy_parallelism).run(on_tick, tick_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What runs on an executor."""

    url: SourceUrl
    lease: Lease
    mapping: TableMapping
    job: CopyJob

    def __call__(self, numbers: Sequence[int]) -> list[SplitResult]:
        """Copy these splits one after the other, up to the first that fails for good."""
        results: list[SplitResult] = []
        for number in numbers:
            results.append(copy_split(self.url, self.lease, self.mapping, self.job, number))
            if results[-1].error is not None:
                break
        return results


@dataclass(slots=True)
class _Jobs:
    """A Spark job for a few splits, submitted by as many threads as may run at a time: so it holds on any master."""

    context: Any
    task: _Task
    numbers: list[int]
    parallelism: int
    group: str = field(default_factory=lambda: f"copy-{secrets.token_hex(4)}")
    taking: threading.Lock = field(default_factory=threading.Lock)
    errors: list[BaseException] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, on_tick: Callable[[], None], tick_seconds: float) -> None:
        threads = self._start()
        try:
            self._wait(threads, on_tick, tick_seconds)
        except BaseException:
            self._stop(threads)
            raise
        if self.errors:
            self._stop(threads)
            raise self.errors[0]

    def _start(self) -> list[threading.Thread]:
        from pyspark import InheritableThread

        count = min(self.parallelism, len(self.numbers))
        threads: list[Any] = [InheritableThread(target=self._submit, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def _wait(self, threads: list[threading.Thread], on_tick: Callable[[], None], tick_seconds: float) -> None:
        on_tick()
        ticked = time.monotonic()
        while (alive := [t for t in threads if t.is_alive()]) and not self.errors:
            alive[0].join(0.05)
            if time.monotonic() - ticked >= tick_seconds:
                on_tick()
                ticked = time.monotonic()

    def _submit(self) -> None:
        """Body of a submitting thread: some splits after the others."""
        # Interrupting the JVM's task thread would leave the Python worker to itself; killTimeout ends both.
        self.context.setJobGroup(self.group, "vreplication row copy")
        while not self.stopping.is_set() and (taken := self._take()):
            try:
                self._run(taken)
            except BaseException as error:
                self.errors.append(_unwrapped(error))
                self.stopping.set()

    def _take(self) -> list[int]:
        """The next splits: half of this thread's share of what is left, so that the last jobs are short.

        A job costs Spark about 0.1 s, in which its slot copies nothing (guided self-scheduling: Polychronopoulos and
        Kuck, 1987).
        """
        with self.taking:
            count = -(-len(self.numbers) // (2 * self.parallelism))
            taken, self.numbers = self.numbers[:count], self.numbers[count:]
        return taken

    def _run(self, numbers: list[int]) -> None:
        (results,) = self.context.parallelize([numbers], 1).map(self.task).collect()
        for result in results:
            if result.error is not None:
                raise result.error
            log.info("split %d is copied: %d rows in %d chunks", result.number, result.rows_copied, result.chunks)

    def _stop(self, threads: list[threading.Thread]) -> None:
        """Cancel what runs and wait for it; who does not stop in time is fenced off by the next attempt."""
        self.stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                # Again and again: a job may have been submitted just behind the last cancelling.
                with contextlib.suppress(Exception):
                    self.context.cancelJobGroup(self.group)
                thread.join(0.2)


def _unwrapped(error: BaseException) -> BaseException:
    """Spark wraps what a task raises in text; ours are named in it."""
    if isinstance(error, VReplicationError) or not isinstance(error, Exception):
        return error
    text = str(error)
    found = re.search(r"vreplication\.(?:errors|mysql\.session)\.(\w+): (.*)", text)
    if found:
        return Transient(f"The copy failed {MAX_FAILURES} times: {found[2].strip()}")
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return Terminal(f"Spark could not run the copy: {first.strip()}")
