"""The slices of a backfill on Spark: so many tasks at a time as the job says, on any master.

What must stay true: the connections' URLs, which hold passwords, travel inside the task's closure and in no Spark
property; an error of ours comes out as that very error; a slice is one transaction, which is
committed only while its run has its place, and one that lost its connection or a lock is done again whole, which is
harmless; when `run_slices` returns or raises, its jobs have been told to stop.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vreplication.backfill.compare import Comparer, Found
from vreplication.backfill.conflict import Conflicts
from vreplication.backfill.places import Fence, PlaceLost
from vreplication.backfill.rows import read_row, row_sql
from vreplication.backfill.slices import Slice, source_from
from vreplication.backfill.tables import Tables
from vreplication.backfill.upsert import Upsert
from vreplication.errors import Ambiguous, Transient, VReplicationError
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.jobs import Jobs, first_line, heed_signal

_ATTEMPTS = 3
_LOCK_ATTEMPTS = 8
_open = functools.partial(connect, read_timeout=TABLE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one slice."""

    slice: Slice
    found: Found
    error: VReplicationError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What runs on an executor. Errors of ours come back as values, for Spark would wrap them in text."""

    source: SourceUrl
    target: SourceUrl
    tables: Tables
    act: Literal["copy", "compare"]
    is_mirror: bool
    batch_rows: int
    fence: Fence

    def __call__(self, slices: Sequence[Slice]) -> list[Answer]:
        answers: list[Answer] = []
        for part in slices:
            answers.append(self._answer(part))
            # `run_slices` raises the first error, so more slices of this hand would be work for nothing.
            if answers[-1].error is not None:
                break
        return answers

    def _answer(self, part: Slice) -> Answer:
        for attempt in itertools.count(1):
            try:
                return Answer(slice=part, found=self._do(part))
            # Elsewhere an Ambiguous is never retried; a slice whose COMMIT was not answered is, because writing it
            # again comes to the same rows.
            except (Transient, Ambiguous) as error:
                is_lock = isinstance(error, LockWait)
                # A lost place does not come back, and each further attempt would be rolled back as well. Slices that
                # met in a lock are healthy, and one of them gets through each time, so they are tried more often than a
                # server that is away.
                if isinstance(error, PlaceLost) or attempt >= (_LOCK_ATTEMPTS if is_lock else _ATTEMPTS):
                    return Answer(slice=part, found=Found(), error=error)
                # Not all at once again: two slices may have been in each other's way.
                time.sleep(random.uniform(0.5, 1) * (0.05 * 2**attempt if is_lock else 0.2 * attempt))
            except VReplicationError as error:
                return Answer(slice=part, found=Found(), error=error)
        raise AssertionError

    def _do(self, part: Slice) -> Found:
        """A slice is one transaction of the target: whatever ends it takes back all of it."""
        with _open(self.source) as source, _open(self.target) as target, target.transaction():
            found = self._copy(source, target, part) if self.act == "copy" else self._compare(source, target, part)
            # As the last statement, when all rows are locked: a run that begins behind this look waits for them
            # (docs/backfill.md).
            self.fence.check(target)
            return found

    def _compare(self, source: Session, target: Session, part: Slice) -> Found:
        return Comparer(
            source=source, target=target, tables=self.tables, slice=part,
            is_mirror=self.is_mirror, batch_rows=self.batch_rows,
        ).run()  # fmt: skip

    def _copy(self, source: Session, target: Session, part: Slice) -> Found:
        upsert = Upsert(session=target, tables=self.tables, batch_rows=self.batch_rows, blocked=[])
        sql = f"SELECT {row_sql(self.tables)} {source_from(self.tables)} WHERE {part.source_sql(self.tables)}"
        counts = upsert.write(map(read_row, source.stream(sql)))
        settled, _ = Conflicts(source=source, target=target, tables=self.tables).settle(upsert)
        return Found(counts=counts + settled)


def run_slices(
    spark: Any, task: Task, slices: Sequence[Slice], parallelism: int, check: Callable[[], None]
) -> list[Answer]:
    """Do `task` on every slice. `check` is called in this thread and may raise to stop. Raises the first error."""
    if not slices:
        return []
    # Dealt like cards, so that a crowded hour does not fall to one task alone; as many tasks as may run at a time.
    hands = [list(slices[i::parallelism]) for i in range(min(parallelism, len(slices)))]
    answers = _Run(Jobs(context=spark, purpose="backfill"), task, hands).run(check)
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return answers


@dataclass(slots=True)
class _Run:
    """One Spark job in a thread of its own, so that ours stays free to look up."""

    jobs: Jobs
    task: Task
    hands: list[list[Slice]]
    answers: list[Answer] = field(default_factory=list)
    error: Exception | None = None

    def run(self, check: Callable[[], None]) -> list[Answer]:
        thread = self.jobs.start(self._submit)
        try:
            while thread.is_alive():
                check()
                thread.join(0.1)
        finally:
            self.jobs.stop([thread])
        if self.error is not None:
            heed_signal(self.error, check, self.jobs.jvm)
            raise _ours(self.error)
        return self.answers

    def _submit(self) -> None:
        try:
            self.answers = [answer for hand in self.jobs.collect(self.task, self.hands) for answer in hand]
        except Exception as error:
            self.error = error


def _ours(error: Exception) -> VReplicationError:
    if isinstance(error, VReplicationError):
        return error
    # A JVM that was killed for its memory, or a cluster that went away: doing it again may help, and is harmless.
    return Transient(f"Spark could not run the backfill: {first_line(error)}")
