"""One run of a feed: from the progress record through the log into the topic, until something ends it.

Whatever goes wrong, the next run begins at the last committed progress, with a producer that fences this one: there is
no other way of going on, so none that is tested less.

Times: each transaction of the log gets the time that it says of itself, or the next microsecond where that would not
rise. Nothing but the log decides, so that a transaction that is read again gets the same one.

What must stay true: rows leave in the order of the log, those of one transaction under one time; Resolved(t) follows
only when all up to t was sent; the log is never acknowledged further than the progress says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from vreplication.binlog.events import Group, Heartbeat, Position, RowChange, Stopped
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import DEFINED, Following
from vreplication.changes.matcher import Held, Matcher
from vreplication.changes.sorter import DiskSorter
from vreplication.errors import Terminal, Transient
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.catalog import Tables
from vreplication.feed.dispatch import Dispatcher, Rule, Weights
from vreplication.feed.messages import Admin, Ddl, Format, Header, Kind, Place, Row
from vreplication.feed.producer import FeedProducer, Sent
from vreplication.feed.progress import Branch, End, Progress
from vreplication.mysql.server import Xid
from vreplication.pausepoints import reach

log = logging.getLogger(__name__)

_MOST_ROWS, _MOST_BYTES = 10_000, 8 << 20
_IDLE_SECONDS = 1.0
_METADATA_SECONDS = 30.0
_VISIBLE_SECONDS = 10.0
_MANY = 500
"""Rows for which the dispatcher asks the server at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """feed: its id. topic of its progress. commit_seconds: how often at the most. home: where the sorter's files go."""

    feed: str
    progress_topic: str
    rule: Rule
    format: Format
    commit_seconds: float = 0.2
    home: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """After a commit. rows: sent by this process; by_partition: of them, of each."""

    progress: Progress
    rows: int
    by_partition: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Hooks:
    """What the run asks and tells: check raises what ends it; wanted: how many partitions there shall be."""

    check: Callable[[], None] = lambda: None
    wanted: Callable[[], int | None] = lambda: None
    told: Callable[[Status], None] = lambda status: None
    is_ours: Callable[[], bool] = lambda: False
    """Whether the feed is known to be ours still, when Kafka says that somebody has taken over."""


_NOTHING = Place(0, -1)

OpenLog = Callable[[Position], Tailer]


@dataclass(slots=True)
class _Transaction:
    """The one that is being sent. first: its time; place: of the next row; is_fresh: no row has that time yet."""

    place: Place
    gtid: str
    commit: int
    is_fresh: bool = True


@dataclass(slots=True, kw_only=True)
class Run:
    """Between two errors. weights: of the source's collations."""

    settings: Settings
    broker: Broker
    producer: FeedProducer
    tables: Tables
    weights: Weights
    open_log: OpenLog
    hooks: Hooks
    progress: Progress
    _dispatcher: Dispatcher = field(init=False)
    _matcher: Matcher = field(init=False)
    _sorter: DiskSorter = field(init=False)
    _open: _Transaction | None = None
    _done: Place = _NOTHING
    _last: Place | None = None
    """The last row of the open transaction that was sent."""
    _assigned: int = 0
    _whole: int = 0
    _position: str = ""
    _sent_rows: int = 0
    _by_partition: list[int] = field(default_factory=list)
    _committed_at: float = 0.0
    _looked_at: float = 0.0

    def go(self) -> None:
        """Until `hooks.check` or an error ends it. Raises Transient, Ambiguous, Terminal."""
        self._begin()
        try:
            if self.progress.intent is not None:
                self._scale_on(self.progress.intent)
            self._follow()
        finally:
            self._sorter.remove()

    def _begin(self) -> None:
        """What stands in the topic behind the progress is found, and not sent again (P7)."""
        progress = self.progress
        there = check_topic(self.broker, progress, self.hooks.wanted()).partitions
        ends = (*progress.ends, *[End()] * (min(there, progress.intent or 0) - len(progress.ends)))
        sent = Sent(ends)
        sent.take(self.broker.behind(progress.topic, self._starts(progress.topic, ends)))
        self.producer.begin_from(progress, sent)
        self._dispatcher = Dispatcher(self.settings.rule, progress.partitions, self.weights)
        self._assigned = self._whole = progress.assigned
        self._position = progress.position
        self._done = Place(*progress.inside) if progress.inside else _NOTHING
        self._by_partition = [0] * len(ends)
        self._committed_at = self._looked_at = time.monotonic()
        self._sorter = DiskSorter(self.settings.home)
        self._matcher = Matcher(is_strict=True, sorter=self._sorter)

    def _starts(self, topic: str, ends: Sequence[End]) -> dict[int, int]:
        found = {}
        for number, end in enumerate(ends):
            low, high = self._bounds(topic, number, end)
            if end.offset >= high:
                self._check_open(topic, number, end)
                raise Terminal(
                    f"Partition {number} of {topic} ends at {high}, before what the feed has written.",
                    cure="The topic lost messages or was made anew: begin a new feed into another topic.",
                )
            found[number] = max(low, end.offset + 1)
        return found

    def _check_open(self, topic: str, number: int, end: End) -> None:
        _, written = self.broker.bounds(topic, number, is_committed=False)
        if end.offset < written:
            raise Transient(f"A transaction of somebody else in partition {number} of {topic} is open.")

    def _bounds(self, topic: str, number: int, end: End) -> tuple[int, int]:
        """What was committed a moment ago becomes readable a moment later."""
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while True:
            low, high = self.broker.bounds(topic, number)
            if end.offset < high or time.monotonic() > deadline:
                return low, high
            time.sleep(0.02)

    # The log.

    def _follow(self) -> None:
        position = Position.parse(self._position)
        again = Position.parse(self.progress.again_from) if self.progress.again_from else None
        start = self._matcher.restore([_held(branch) for branch in self.progress.branches], position, again)
        tailer = self.open_log(start)
        with tailer:
            tailer.join(Following(name=self.settings.feed, catalog=self.tables))
            for item in tailer:
                self._take(item)
                self._pause()

    def _take(self, item: Group | Heartbeat | Stopped) -> None:
        if isinstance(item, Stopped):
            raise item.error
        if isinstance(item, Group):
            for group in self._matcher.feed(item):
                self._send(group)

    def _pause(self) -> None:
        """Between two items of the log."""
        self.hooks.check()
        self.producer.poll()
        now = time.monotonic()
        if self._is_due(now):
            self._commit()
        if self._open is None:
            self._look_at_topic(now)
            self._scale()

    def _is_due(self, now: float) -> bool:
        since = now - self._committed_at
        if self.producer.rows:
            return since >= self.settings.commit_seconds
        return since >= _IDLE_SECONDS and self._whole > self.progress.assigned

    # Rows.

    def _send(self, group: Group) -> None:
        """A transaction, or a part of one."""
        open_one = self._open or self._new(group)
        self._open = open_one
        for some in _slices(group.items):
            self._send_some(open_one, some)
        if group.is_last:
            self._whole = self._assigned
            self._open = self._last = None
            self._position = group.end.saved

    def _new(self, group: Group) -> _Transaction:
        gtid = _gtid_text(group)
        return _Transaction(self._next(group.time_micros), gtid, group.time_micros)

    def _next(self, micros: int) -> Place:
        self._assigned = max(self._assigned + 1, micros)
        return Place(self._assigned, 0)

    def _send_some(self, transaction: _Transaction, changes: list[RowChange]) -> None:
        rows: list[Row] = []
        for change in changes:
            if change.table == DEFINED:
                self._send_rows(rows)
                rows = []
                self._define(transaction, change.after)
            elif change.table >= 0:
                rows.append(self._row(transaction, change))
        self._send_rows(rows)

    def _row(self, transaction: _Transaction, change: RowChange) -> Row:
        place = transaction.place
        transaction.place, transaction.is_fresh = Place(place.t, place.seq + 1), False
        return Row(
            layout=self.tables.layout(change.table),
            place=place,
            before=change.before,
            after=change.after,
            gtid=transaction.gtid,
            source=self.progress.source,
            commit=transaction.commit,
        )

    def _send_rows(self, rows: list[Row]) -> None:
        rows = [row for row in rows if row.place > self._done]
        self._dispatcher.prepare(rows)
        for row in rows:
            self._send_row(row)
            self._last = row.place
            if self.producer.rows >= _MOST_ROWS or self.producer.nbytes >= _MOST_BYTES:
                self._commit()

    def _send_row(self, row: Row) -> None:
        tags = self._tags(row.gtid)
        for partition, each in self._placed(row):
            self.producer.row(partition, each.place, self.settings.format.row(each), tags)
            self._sent_rows += 1
            self._by_partition[partition] += 1

    def _placed(self, row: Row) -> Iterator[tuple[int, Row]]:
        """An UPDATE that leaves its partition is a DELETE there and an INSERT here (P9)."""
        of, t = self._dispatcher.of, row.place.t
        before = None if row.before is None else of(row.layout, row.before, t)
        after = None if row.after is None else of(row.layout, row.after, t)
        if before is None or after is None or before == after:
            yield (after if before is None else before) or 0, row
        else:
            yield before, replace(row, after=None)
            yield after, replace(row, before=None)

    def _tags(self, gtid: str) -> list[Header]:
        return [("vr-source", self.progress.source.encode()), ("vr-gtid", gtid.encode())]

    def _define(self, transaction: _Transaction, said: dict[str, Any]) -> None:
        """DDL has a time of its own, behind the rows before it (P8)."""
        if not transaction.is_fresh:
            transaction.place = self._next(transaction.commit)
        place = transaction.place
        ddl = Ddl(
            place=place,
            schema=said["schema"],
            sql=said["sql"],
            verb=said["verb"],
            what=said["what"],
            tables=tuple((schema, table) for schema, table in said["tables"]),
            gtid=transaction.gtid,
            source=self.progress.source,
            commit=transaction.commit,
        )
        if place > self._done:
            self.producer.broadcast(Kind.DDL, place, self.settings.format.ddl(ddl), self._tags(ddl.gtid))
            self.tables.redefined(ddl.tables)
            self._last = place
        transaction.place, transaction.is_fresh = self._next(transaction.commit), True

    # The end of a Kafka transaction.

    def _commit(self, **changed: Any) -> None:
        self.hooks.check()
        reach("feed.commit")
        resolved = max(self._whole, self.progress.resolved)
        self.producer.resolved(resolved, self.settings.format.resolved(resolved))
        self.producer.flush()
        fields = {
            "position": self._position,
            # Read again only on the way to the first place behind it.
            "again_from": self.progress.again_from if self._position == self.progress.position else None,
            "assigned": self._whole,
            "resolved": resolved,
            "inside": self._inside(),
            "branches": tuple(_branch(held) for held in self._matcher.held()),
            # Until all that was found behind the progress has been reached, the next run has to find it, too.
            "ends": self.producer.ends if self._assigned >= self.producer.latest else self.progress.ends,
            **changed,
        }
        made = _changed(self.progress, fields)
        self.producer.commit(self.settings.progress_topic, made)
        self.progress = made
        self._committed_at = time.monotonic()
        self.hooks.told(
            Status(progress=made, rows=self._sent_rows, by_partition=tuple(self._by_partition[: made.partitions]))
        )

    def _inside(self) -> tuple[int, int] | None:
        """The last row that was sent of a transaction of which not all were."""
        if self._open is not None and self._last is not None:
            return self._last.t, self._last.seq
        return (self._done.t, self._done.seq) if self._is_half_sent else None

    @property
    def _is_half_sent(self) -> bool:
        """Of the transaction that comes, or is being read, an earlier run has sent rows, and this one none yet."""
        return self._done.t > self._whole

    # Partitions that grow and shrink (E).

    def _scale(self) -> None:
        wanted = self.hooks.wanted()
        if wanted is None or wanted == self.progress.partitions:
            return
        if self._is_half_sent or self._assigned < self.producer.latest:
            return
        self._check_topic()
        self._commit()
        reach("feed.scale.resolved")
        self._commit(intent=wanted)
        reach("feed.scale.intent")
        self._scale_on(wanted)

    def _scale_on(self, wanted: int) -> None:
        """From where the intent is saved there is only the way forward."""
        self.broker.grow(self.progress.topic, wanted)
        reach("feed.scale.grown")
        generation = self.progress.generation + 1
        admin = Admin(t=self._whole, partitions=wanted, generation=generation)
        message = self.settings.format.admin(admin)
        self.producer.admin(Place(self._whole, 0), message, partitions=wanted, generation=generation)
        self._by_partition += [0] * (wanted - len(self._by_partition))
        self._dispatcher.partitions = wanted
        self._commit(partitions=wanted, generation=generation, intent=None)
        reach("feed.scale.done")

    def _look_at_topic(self, now: float) -> None:
        if now - self._looked_at >= _METADATA_SECONDS:
            self._looked_at = now
            self._check_topic()

    def _check_topic(self) -> None:
        check_topic(self.broker, self.progress, self.hooks.wanted())


def check_topic(broker: Broker, progress: Progress, wanted: int | None = None) -> Topic:
    """Nobody but the feed changes its topic. Raises Terminal, and Transient where it is not there.

    wanted: partitions that the operator asks for.
    """
    found = broker.find(progress.topic)
    if found is None:
        raise Transient(f"Topic {progress.topic} is not there.")
    if found.id != progress.topic_id:
        raise Terminal(
            f"Topic {progress.topic} was deleted and made again: what it held is gone.",
            cure="Begin a new feed into another topic.",
        )
    most = max(len(progress.ends), progress.intent or 0, wanted or 0)
    if found.partitions > most:
        raise Terminal(
            f"Topic {progress.topic} has {found.partitions} partitions, the feed uses {progress.partitions}:"
            " somebody else has added some.",
            cure=f"Run `vreplication scale {progress.feed} --partitions {found.partitions}`.",
        )
    return found


def _changed(progress: Progress, fields: dict[str, Any]) -> Progress:
    return msgspec.structs.replace(progress, **fields)


def _gtid_text(group: Group) -> str:
    if group.gtid is None:
        return str(group.start)
    name = group.gtid
    return "-".join(map(str, name)) if len(name) == 3 else ":".join(map(str, name))


def _slices(items: Any) -> Iterator[list[RowChange]]:
    for at in range(0, len(items), _MANY):
        yield list(items[at : at + _MANY])


def _branch(held: Held) -> Branch:
    format_id, gtrid, bqual = held.xid
    return Branch(format_id=format_id, gtrid=gtrid.hex(), bqual=bqual.hex(), start=held.start.saved, rows=held.rows)


def _held(branch: Branch) -> Held:
    """Its rows are read again, if there were any."""
    return Held(
        xid=Xid(branch.format_id, bytes.fromhex(branch.gtrid), bytes.fromhex(branch.bqual)),
        start=Position.parse(branch.start),
        changes=0,
        rows=branch.rows,
        place=None,
        fragments=(),
    )


def first_progress(
    feed: str, source: str, topic: Any, *, position: str, again_from: str | None, assigned: int, rules: str
) -> Progress:
    """Of a feed that begins: nothing has been sent."""
    return Progress(
        feed=feed,
        source=source,
        position=position,
        again_from=again_from,
        assigned=assigned,
        topic=topic.name,
        topic_id=topic.id,
        partitions=topic.partitions,
        ends=(End(),) * topic.partitions,
        rules=rules,
    )
