"""Runs the comparison of spans on Spark, so many at a time as the limits say, on any master.

Each submitting thread sends a small batch of spans as a Spark job of one task, about a second of work: so progress
is seen, a new span (the rest of an open end) finds its place, and stopping takes a moment.

What must stay true: the connections' URLs, which hold the passwords, travel inside the task's closure and in no Spark
property; results are handed over in the calling thread; a span whose connection was lost is compared again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import is_passing
from vreplication.pausepoints import reach
from vreplication.settings import WORK_SECONDS, Pace
from vreplication.spark.jobs import Jobs, first_line, heed_signal
from vreplication.verify.ranges import Span

if TYPE_CHECKING:
    from pyspark import SparkContext

Work = Callable[[Ends, Span], Any]

_BATCH_SECONDS = 1.0
_FIRST_BATCH, _MAX_BATCH = 8, 32
_ATTEMPTS = 3
_MOST_REST_SECONDS = 4.0


class Answer(NamedTuple):
    span: Span
    result: Any
    error: VReplicationError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What runs on an executor: errors of ours come back as values, for Spark would wrap them in text."""

    route: Route
    work: Work

    def __call__(self, spans: list[Span]) -> list[Answer]:
        found: list[Answer] = []
        try:
            with self.route.open(read_timeout=WORK_SECONDS) as ends:
                for span in spans:
                    reach("verify.comparing")
                    found.append(Answer(span, self.work(ends, span), None))
        except VReplicationError as error:
            # Those behind it in the batch were not read: they share its error, and are given out again with it where
            # that may help.
            found += [Answer(span, None, error) for span in spans[len(found) :]]
        return found


def run_all(
    spark: SparkContext,
    route: Route,
    work: Work,
    spans: Iterable[Span],
    on_result: Callable[[Any], list[Span]],
    *,
    parallelism: int,
    check: Callable[[], None],
    pace: Callable[[], Pace | None] = lambda: None,
) -> None:
    """Run `work` over the spans; `on_result` gets each result and may give more spans. `check` may raise to stop.

    pace: what the server bears at the moment: fewer than `parallelism` then, or with a rest behind each batch.
    """
    jobs, batch = Jobs(context=spark, purpose="verification"), Batch(route=route, work=work)
    _Crew(jobs, batch, deque(spans), max(1, parallelism), pace).run(on_result, check)


@dataclass(slots=True)
class _Crew:
    """The submitting threads and what they share."""

    jobs: Jobs
    batch: Batch
    waiting: deque[Span]
    parallelism: int
    pace: Callable[[], Pace | None] = lambda: None
    answers: SimpleQueue[list[Answer] | BaseException] = field(default_factory=SimpleQueue)
    attempts: dict[Span, int] = field(default_factory=dict)
    busy: int = 0
    turn: threading.Condition = field(default_factory=threading.Condition)

    def run(self, on_result: Callable[[Any], list[Span]], check: Callable[[], None]) -> None:
        threads = self._start()
        try:
            while not self._is_done():
                check()
                self._take(on_result, check)
        finally:
            self.jobs.stop(threads)

    def _is_done(self) -> bool:
        with self.turn:
            return not self.waiting and not self.busy and self.answers.empty()

    def _take(self, on_result: Callable[[Any], list[Span]], check: Callable[[], None]) -> None:
        """Wait a moment for answers and hand them over."""
        try:
            found = self.answers.get(timeout=0.2)
        except Empty:
            return
        if isinstance(found, BaseException):
            heed_signal(found, check, self.jobs.jvm)
            raise _unwrapped(found)
        more = [span for answer in found for span in self._one(answer, on_result)]
        with self.turn:
            # Both in one step: in between a thread would find nothing waiting and nobody at work, and end.
            self.waiting.extend(more)
            self.busy -= 1
            self.turn.notify_all()

    def _one(self, answer: Answer, on_result: Callable[[Any], list[Span]]) -> list[Span]:
        if answer.error is None:
            return on_result(answer.result)
        count = self.attempts[answer.span] = self.attempts.get(answer.span, 0) + 1
        # A statement that somebody has killed (KILL QUERY) is no lost connection, and passes as one does.
        is_over = isinstance(answer.error, Transient) or is_passing(answer.error)
        if not is_over or count >= _ATTEMPTS:
            raise answer.error
        return [answer.span]

    def _start(self) -> list[Any]:
        return [self.jobs.start(self._submit, seat) for seat in range(1, self.parallelism + 1)]

    def _submit(self, seat: int) -> None:
        """Body of a submitting thread: one batch after the other, each about as long as `_BATCH_SECONDS`."""
        try:
            self._submit_batches(seat)
        except Exception as error:
            # Its batch stays counted as busy: without this `run` would wait for it for ever.
            self.answers.put(error)

    def _submit_batches(self, seat: int) -> None:
        size = _FIRST_BATCH
        while self._is_wanted(seat) and (spans := self._next(size)):
            started = time.monotonic()
            (found,) = self.jobs.collect(self.batch, [spans])
            self.answers.put(found)
            factor = _BATCH_SECONDS / max(time.monotonic() - started, 0.01)
            size = max(1, min(int(len(spans) * factor), 2 * size, _MAX_BATCH))
            self._rest(time.monotonic() - started)

    def _is_wanted(self, seat: int) -> bool:
        """Wait while fewer are wanted, or none: what holds it is let go by whoever has asked for it."""
        while (pace := self.pace()) is not None and not self._is_over() and (pace.is_held or seat > pace.tasks):
            self.jobs.stopping.wait(0.1)
        return not self.jobs.stopping.is_set()

    def _is_over(self) -> bool:
        with self.turn:
            return self.jobs.stopping.is_set() or not (self.waiting or self.busy)

    def _rest(self, seconds: float) -> None:
        pace = self.pace()
        if pace is not None and not self._is_over():
            self.jobs.stopping.wait(min(seconds * pace.rest, _MOST_REST_SECONDS))

    def _next(self, size: int) -> list[Span]:
        """The next spans, fewer towards the end so that all threads end together; none when all is done."""
        with self.turn:
            while not self.waiting and self.busy and not self.jobs.stopping.is_set():
                self.turn.wait(0.2)
            if self.jobs.stopping.is_set() or not self.waiting:
                return []
            size = max(1, min(size, -(-len(self.waiting) // self.parallelism)))
            self.busy += 1
            return [self.waiting.popleft() for _ in range(size)]


def _unwrapped(error: BaseException) -> VReplicationError:
    if isinstance(error, VReplicationError):
        return error
    return Transient(f"Spark could not run the verification: {first_line(error)}")
