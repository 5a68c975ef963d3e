"""The row copy as Spark jobs: one task a few splits, so many at a time as the limits say, or as is asked for meanwhile.

What must stay true: the route, which holds passwords, travels inside the task's closure and in no Spark property;
nothing is speculated; an error of ours that is raised on an executor comes out here as that very error; several tables
may be copied at a time, each by a call of its own; when `run_copy` returns or raises, no task of it is left running
that could not be fenced off.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vreplication.errors import Terminal, Transient, VReplicationError
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import ConnectionLost, Silent, connect
from vreplication.rowcopy.chunker import Terms, copy_split
from vreplication.rowcopy.job import CopyJob, SplitResult
from vreplication.schema.model import TableMapping
from vreplication.settings import MOST_PARALLELISM, Pace, Tuning
from vreplication.spark.jobs import Jobs, first_line, heed_signal, text_of
from vreplication.spark.start import MAX_FAILURES
from vreplication.state import ledger
from vreplication.state.lease import Lease

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

JOB_SECONDS = 60.0
"""A task gives back the splits that it has not begun after this long, so that there is work for one more."""


def slots(spark: SparkContext) -> int | None:
    """Tasks that a local master runs at a time. None: a cluster's come and go, and what has none waits for one."""
    return int(spark.defaultParallelism) if re.match(r"local(\[|$)", str(spark.master)) else None


def run_copy(
    spark: SparkContext,
    route: Route,
    lease: Lease,
    mapping: TableMapping,
    job: CopyJob,
    *,
    on_tick: Callable[[], None],
    asked: Callable[[], Tuning] = Tuning,
    pace: Callable[[], Pace | None] = lambda: None,
    tick_seconds: float = 0.5,
    compare: Callable[[Ends, int], None] | None = None,
) -> None:
    """Copy every split that is not done. `on_tick` is called in this thread and may raise to stop the copy.

    `asked`, `pace`: what the operator asks for at the moment, and what the server bears; looked at with each tick.
    compare: what tasks do between two chunks; travels to them.
    """
    with connect(route.home) as session:
        numbers = [s.number for s in ledger.splits(session, job.table) if not s.is_done]
    task = _Task(route=route, lease=lease, mapping=mapping, job=job, compare=compare)
    most = slots(spark) or MOST_PARALLELISM

    def wanted() -> int:
        return min(job.limits.tuned(asked()).paced(pace()).copy_parallelism, most)

    _Crew(Jobs(context=spark, purpose=f"copy-{job.table}"), task, numbers, wanted).run(on_tick, tick_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What runs on an executor."""

    route: Route
    lease: Lease
    mapping: TableMapping
    job: CopyJob
    compare: Callable[[Ends, int], None] | None = None

    def __call__(self, given: tuple[int, Sequence[int]]) -> list[SplitResult]:
        """Copy these splits one after the other, up to the first that is not done, or until it is time to give back."""
        seat, numbers = given
        results: list[SplitResult] = []
        began = time.monotonic()
        for number in numbers:
            results.append(self._copy(number, seat))
            # Not done: it has failed, which ends the copy, or this seat is one too many, and the next split would be
            # left as well.
            if not results[-1].is_done or time.monotonic() - began > JOB_SECONDS:
                break
        return results

    def _copy(self, number: int, seat: int) -> SplitResult:
        terms = Terms(seat=seat, compare=self.compare) if self.compare else Terms(seat=seat)
        return copy_split(self.route, self.lease, self.mapping, self.job, number, terms)


@dataclass(slots=True)
class _Crew:
    """A Spark job for a few splits, submitted by as many threads as may run at a time: so it holds on any master.

    Each thread has a seat, from 1; one beyond what is wanted now goes, and comes back when more are wanted.
    """

    jobs: Jobs
    task: _Task
    numbers: list[int]
    wanted: Callable[[], int]
    seats: dict[int, threading.Thread] = field(default_factory=dict)
    parallelism: int = 1
    taking: threading.Lock = field(default_factory=threading.Lock)
    errors: list[BaseException] = field(default_factory=list)

    def run(self, on_tick: Callable[[], None], tick_seconds: float) -> None:
        try:
            self._wait(on_tick, tick_seconds)
            if self.errors:
                self._fail(on_tick)
        except BaseException:
            # Who does not stop in time is fenced off by the next attempt.
            self.jobs.stop(self.seats.values())
            raise

    def _fail(self, on_tick: Callable[[], None]) -> None:
        heed_signal(self.errors[0], on_tick, self.jobs.jvm)
        raise _unwrapped(self.errors[0])

    def _wait(self, on_tick: Callable[[], None], tick_seconds: float) -> None:
        ticked = -tick_seconds
        while not self.errors:
            if time.monotonic() - ticked >= tick_seconds:
                on_tick()
                self._seat()
                ticked = time.monotonic()
            alive = [thread for thread in self.seats.values() if thread.is_alive()]
            if not alive and not self.numbers:
                return
            if alive:
                alive[0].join(0.05)
            else:
                self.jobs.stopping.wait(0.05)

    def _seat(self) -> None:
        """As many threads as are wanted now, as long as there is work for them."""
        self.parallelism = max(1, self.wanted())
        free = [n for n in range(1, self.parallelism + 1) if n not in self.seats or not self.seats[n].is_alive()]
        for seat in free[: len(self.numbers)]:
            self.seats[seat] = self.jobs.start(self._submit, seat)

    def _submit(self, seat: int) -> None:
        """Body of a submitting thread: some splits after the others."""
        try:
            while not self.jobs.stopping.is_set() and seat <= self.parallelism and (taken := self._take()):
                if self._run(seat, taken):
                    return
        except BaseException as error:
            self.errors.append(error)
            self.jobs.stopping.set()

    def _take(self) -> list[int]:
        """The next splits: half of this thread's share of what is left, so that the last jobs are short.

        A job costs Spark about 0.1 s, in which its slot copies nothing (guided self-scheduling: Polychronopoulos and
        Kuck, 1987).
        """
        with self.taking:
            count = -(-len(self.numbers) // (2 * self.parallelism))
            taken, self.numbers = self.numbers[:count], self.numbers[count:]
        return taken

    def _run(self, seat: int, numbers: list[int]) -> bool:
        """What is not done is given back. True: a split was left halfway, because this seat is one too many."""
        (results,) = self.jobs.collect(self.task, [(seat, numbers)])
        for result in results:
            if result.error is not None:
                raise result.error
            how = "is copied" if result.is_done else "is left to others"
            log.info("split %d %s: %d rows in %d chunks", result.number, how, result.rows_copied, result.chunks)
        done = {result.number for result in results if result.is_done}
        with self.taking:
            self.numbers = [*(number for number in numbers if number not in done), *self.numbers]
        return len(done) < len(results)


def _unwrapped(error: BaseException) -> BaseException:
    """Spark wraps what a task raises in text; ours are named in it."""
    if isinstance(error, VReplicationError) or not isinstance(error, Exception):
        return error
    text = text_of(error)
    found = re.search(r"vreplication\.(?:errors|mysql\.session)\.(\w+): (.*)", text)
    if found:
        # A lost connection stays one, for which the driver waits until the server is back. What ends a split for good
        # comes in its result, so whatever was raised of ours may be done again.
        kind = ConnectionLost if found[1] in (ConnectionLost.__name__, Silent.__name__) else Transient
        return kind(f"The copy failed {MAX_FAILURES} times: {found[2].strip()}")
    return Terminal(f"Spark could not run the copy: {first_line(error)}")
