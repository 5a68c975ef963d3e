"""One interval of one job: check, wait, cut, copy, compare and repair until nothing differs, report.

What must stay true: nothing is written before all checks have passed; only rows of the interval are touched on the
target; doing it again, or beside another interval, comes to the same rows; two runs whose intervals overlap never write
at one time (places.py); `verified` is said only of an interval of which a whole comparison, made after the last write,
found no difference.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from vreplication.backfill.compare import Found
from vreplication.backfill.interval import Walls, walls
from vreplication.backfill.job import Job
from vreplication.backfill.lateness import Waiter
from vreplication.backfill.places import Place, placed
from vreplication.backfill.slices import Slice, cut, source_from
from vreplication.backfill.spark_job import Task, run_slices
from vreplication.backfill.tables import (
    Tables,
    check_generated,
    check_zone,
    pair_tables,
    read_table,
    soft_pairs,
    time_index,
)
from vreplication.backfill.upsert import Counts
from vreplication.clock import check_for
from vreplication.errors import Interrupted, Refused, Transient, VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import SIGNAL_SECONDS, TABLE_SECONDS
from vreplication.spark.start import end_context, spark_context

ROUNDS = 5
"""Comparisons at most. Each repairs what it found, and the next one has to find nothing."""
_PAUSE_SECONDS = 0.5
_UNCOMPARED = "What this run wrote has not been compared."
# Without an index on the time column each COUNT and checksum reads a whole table, longer than a statement has by
# default.
_open = functools.partial(connect, read_timeout=TABLE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of an interval. extra_rows: rows of the target alone, which stay when the job does not mirror."""

    job: str
    start: datetime
    end: datetime
    rows_read: int
    inserted: int
    updated: int
    unchanged: int
    deleted: int
    null_time_rows: int
    extra_rows: int
    verified: bool
    differing: int = 0
    example: str = ""
    blocked: str = ""

    @property
    def reason(self) -> str:
        """Why it is not verified."""
        if self.verified:
            return ""
        why = f"{self.blocked}; backfill that row's own interval, or delete it on the target"
        return (
            f"{self.differing} rows still differ after {ROUNDS} comparisons (one has the key {self.example}): "
            f"{why if self.blocked else 'they are being changed all the time'}."
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a JSON line and for XCom."""
        return {
            "job": self.job,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "rows_read": self.rows_read,
            "inserted": self.inserted,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "deleted": self.deleted,
            "null_time_rows": self.null_time_rows,
            "extra_rows": self.extra_rows,
            "verified": self.verified,
            "reason": self.reason or None,
        }


def run(
    job: Job,
    source_url: SourceUrl,
    target_url: SourceUrl,
    start: datetime,
    end: datetime,
    *,
    spark: Any = None,
    stop: threading.Event | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Result:
    """Copy or refresh [start, end). `spark`: a session to use; without one a session is made and ended here.

    Raises Refused before anything is written; Interrupted when `stop` is set.
    """
    stop = stop or threading.Event()
    # What is refused is refused before the wait; in it the tables may change, and the target's session would be idle.
    with _open(source_url) as source, _open(target_url) as target:
        _span(job, check(job, source, target), start, end)
    with _open(source_url) as source:
        Waiter(session=source, job=job, end=end, pause=functools.partial(_sleep, stop), notify=notify).run()
    with _open(source_url) as source, _open(target_url) as target:
        tables = check(job, source, target)
        span = _span(job, tables, start, end)
        # An interval inside the second coming of an hour has no wall times of its own: its low and high are the same.
        slices = [] if span.is_empty else cut(source, tables, span)
        missing = null_rows(source, tables)
    interval = _Interval(
        job=job, start=start, end=end, urls=(source_url, target_url), tables=tables, slices=slices,
        null_time_rows=missing, stop=stop, notify=notify,
    )  # fmt: skip
    return interval.run(spark, span) if slices else interval.empty()


def _span(job: Job, tables: Tables, start: datetime, end: datetime) -> Walls:
    # Our sessions are in UTC, and a TIMESTAMP is compared in the session's zone, whatever the job says of its
    # DATETIMEs.
    return walls(start, end, "UTC" if tables.time.source.data_type == "timestamp" else job.time_zone)


def _sleep(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise Interrupted("Interrupted; nothing was written.")


def _start_spark(job: Job, check: Callable[[], None]) -> Any:
    try:
        return spark_context(job.spark_master, job.parallelism, f"vreplication backfill {job.name}")
    except Exception as error:
        # A signal ends the JVM as well, whose failure may be here before the signal is.
        check_for(check, SIGNAL_SECONDS)
        words = str(error).strip().splitlines() or [""]
        # The cluster's master, or this machine's memory, may be there again soon.
        raise Transient(
            f"Spark did not start: {type(error).__name__}: {words[0]}",
            cure="Look at the job's spark_master and at the Java installation.",
        ) from None


def check(job: Job, source: Session, target: Session) -> Tables:
    """Read both tables and pair them. Raises Refused."""
    servers = (inspect(source), inspect(target))
    ours, theirs = read_table(source, job.table, "source"), read_table(target, job.written_table, "target")
    # Some servers tell spellings of a name apart and some do not: to refuse one job too many is harmless.
    is_same_table = (ours.schema.lower(), ours.name.lower()) == (theirs.schema.lower(), theirs.name.lower())
    if is_same_table and _identity(servers[0]) == _identity(servers[1]):
        raise Refused("Source and target are the same table.", cure="Name another target_table or connection.")
    mapping = pair_tables(ours, theirs, job.time_column)
    check_generated(ours, theirs, servers)
    check_zone(theirs, servers[1])
    time_pair = next(p for p in mapping.pairs if p.source.name.lower() == job.time_column.lower())
    return Tables(
        mapping=mapping,
        time=time_pair,
        source_index=time_index(source, ours, time_pair.source.name),
        target_index=time_index(target, theirs, time_pair.target.name),
        soft=soft_pairs(mapping, servers),
        # The target's: it takes the statements. A row that is beyond the source's own limit comes as NULL
        # (rows.Row.text).
        packet=int(servers[1].setting("max_allowed_packet") or 1 << 20),
    )


def _identity(server: Server) -> tuple[str | None, ...]:
    """Alike for two connections to one server, by whatever host name."""
    # MariaDB has no server_uuid: there the other four have to do.
    return tuple(server.setting(name) for name in ("server_uuid", "hostname", "port", "datadir", "server_id"))


def null_rows(source: Session, tables: Tables) -> int:
    """Rows of the whole source table that are in no interval."""
    column = tables.time.source
    # In a NOT NULL DATE or DATETIME IS NULL finds 0000-00-00 on both servers: to ask would count rows that have a time.
    if not column.is_nullable:
        return 0
    return int(source.value(f"SELECT COUNT(*) {source_from(tables)} WHERE {ident(column.name)} IS NULL"))


@dataclass(slots=True, kw_only=True)
class _Interval:
    """What a run knows, and what it has counted so far."""

    job: Job
    start: datetime
    end: datetime
    urls: tuple[SourceUrl, SourceUrl]
    tables: Tables
    slices: list[Slice]
    null_time_rows: int
    stop: threading.Event
    notify: Callable[[str], None]
    counts: Counts = field(default_factory=Counts)
    place: Place = field(init=False)

    def empty(self) -> Result:
        return self._result(Found())

    def run(self, spark: Any, span: Walls) -> Result:
        """In a place of its own, with the session that is given or one that is ended here."""
        pause, notify = functools.partial(_sleep, self.stop), lambda text: self.notify(f"{self.job.name}: {text}")
        with placed(self.urls[1], self.tables, span, pause, notify) as self.place:
            # The place comes before Spark: a run that waits for another one's interval holds no JVM for those minutes.
            if spark is not None:
                return self._work(spark)
            session = _start_spark(self.job, self.check)
            try:
                return self._work(session)
            finally:
                end_context(session)

    def _work(self, spark: Any) -> Result:
        try:
            self._report("copying", len(self.slices))
            copied = run_slices(spark, self._task("copy"), self.slices, self.job.parallelism, self.check)
            self.counts = sum((answer.found.counts for answer in copied), Counts())
            return self._result(self._compare(spark))
        except VReplicationError as error:
            error.cure = f"{error.cure} {_UNCOMPARED}".strip()
            raise

    def _compare(self, spark: Any) -> Found:
        """Compare, and repair, the slices that may differ until none does."""
        extra, left = {}, self.slices
        found = Found()
        for number in range(ROUNDS):
            self._pause(number)
            self._report("comparing", len(left))
            answers = run_slices(spark, self._task("compare"), left, self.job.parallelism, self.check)
            found = sum((answer.found for answer in answers), Found())
            self.counts += found.counts
            # By slice: one that is compared again would otherwise count its extra rows a second time.
            extra.update({answer.slice: answer.found.extra for answer in answers})
            left = [answer.slice for answer in answers if answer.found.differing]
            if not left:
                break
        return replace(found, extra=sum(extra.values()), counts=Counts())

    def _pause(self, number: int) -> None:
        # What the first comparison repairs was mostly written while it was copied, and is looked at again at once. What
        # still differs then is being written all the time: growing pauses let it come to rest before the last round
        # fails the run.
        if number > 1 and self.stop.wait(_PAUSE_SECONDS * number):
            self.check()

    def _report(self, act: str, slices: int) -> None:
        if slices:
            self.notify(f"{self.job.name}: {act} {slices} slice{'s' if slices != 1 else ''}")

    def _task(self, act: Any) -> Task:
        return Task(
            source=self.urls[0],
            target=self.urls[1],
            tables=self.tables,
            act=act,
            is_mirror=self.job.mirror,
            batch_rows=self.job.batch_rows,
            # A step of its own for each job: a slice of the copy that a lost executor still holds can then not be
            # committed behind the comparison that said "verified".
            fence=self.place.next_step(),
        )

    def check(self) -> None:
        if self.stop.is_set():
            raise Interrupted("Interrupted.", cure="Run the same command again.")
        self.place.check()

    def _result(self, found: Found) -> Result:
        return Result(
            job=self.job.name,
            start=self.start,
            end=self.end,
            rows_read=self.counts.read,
            inserted=self.counts.inserted,
            updated=self.counts.updated,
            unchanged=self.counts.unchanged,
            deleted=self.counts.deleted,
            null_time_rows=self.null_time_rows,
            extra_rows=found.extra,
            verified=not found.differing,
            differing=found.differing,
            example=found.example,
            blocked=found.blocked,
        )
