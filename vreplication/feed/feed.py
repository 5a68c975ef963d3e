"""One run of a feed: from the progress record through the logs into the topic, until something ends it.

Whatever goes wrong, the next run begins at the last committed progress, with a producer that fences this one: there is
no other way of going on, so none that is tested less.

What must stay true: rows leave in the order of their times (reading.py, merge.py); Resolved(t) follows only when all up
to t was sent; no source's log is acknowledged further than the progress says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.errors import Terminal
from vreplication.feed.ahead import GIANT_ROWS, Ahead, Elsewhere, begin
from vreplication.feed.broker import Broker
from vreplication.feed.conflicts import Conflicts
from vreplication.feed.due import Due
from vreplication.feed.future import Future
from vreplication.feed.lanes import Lane, Lanes, Named, lanes_of, tags_of
from vreplication.feed.merge import Merge
from vreplication.feed.messages import MOVED, Admin, Ddl, Encoded, Header, Kind, Place, Row
from vreplication.feed.producer import FeedProducer
from vreplication.feed.progress import End, Progress
from vreplication.feed.reading import Piece, Reading, Source
from vreplication.feed.said import ddl_of, rows_of
from vreplication.feed.sending import Sending, changed
from vreplication.feed.terms import Hooks, Settings, Status
from vreplication.feed.topics import KEYLESS, await_closed, check_held, check_topics, find_tails, keyed, open_lanes
from vreplication.pausepoints import reach

log = logging.getLogger(__name__)

# P2: the most of one Kafka transaction. Who reads what is committed gets none of it before its end.
_MOST_ROWS, _MOST_BYTES = 10_000, 8 << 20
# How soon partitions that somebody else adds are noticed: the count that the feed goes by keeps rows right till then.
_METADATA_SECONDS = 30.0
_PAUSE_SECONDS, _WAIT_SECONDS = 0.001, 0.1
_SLOW_SECONDS = 1.0
_NOTHING, _ALL = -1, 1 << 62
"""Numbers of rows in a transaction: before the first, behind the last."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Between two errors. sources: in the order of the progress. moved: that, with servers that are others now."""

    settings: Settings
    broker: Broker
    producer: FeedProducer
    sources: Sequence[Source]
    hooks: Hooks
    progress: Progress
    moved: Progress | None = None
    _stream: Reading | Merge = field(init=False)
    _sending: list[Sending] = field(init=False)
    _lanes: Lanes = field(init=False)
    _conflicts: Conflicts | None = None
    _reached: Place = field(init=False)
    """The last place that was gone by, whether it was sent now or stood there."""
    _is_resolved: bool = False
    """All topics have had a Resolved of this run."""
    _sent_rows: int = 0
    _by_partition: list[int] = field(default_factory=list)
    _due: Due = field(init=False)
    _looked_at: float = 0.0
    _paused_at: float = 0.0
    _future: Future = field(init=False)
    _ahead: Ahead | None = None
    """From a giant transaction on until all that was sent ahead of it has been gone by."""

    def go(self) -> None:
        """Until `hooks.check` or an error ends it. Raises Transient, Ambiguous, Terminal."""
        self._begin()
        try:
            if self.progress.intent is not None:  # first of all: some partitions may have the Admin already
                self._scale_on(self.progress.intent)
            self._follow()
        finally:
            if self._ahead is not None:
                self._ahead.close()
            self._stream.close()
            # The next run reads it from the log again, from its progress on.
            self._stream.remove()

    def _begin(self) -> None:
        """What stands in the topic behind the progress is found, and not sent again (P7)."""
        progress = self.progress
        self._lanes = lanes = lanes_of(progress, is_each=self.settings.is_each)
        there = check_topics(self.broker, progress, lanes, self.hooks.wanted())
        for lane in lanes:
            # Partitions that a killed scaling has made count, too: an Admin may stand there already.
            more = min(there[lane.name], progress.intent or 0) - len(lane.sent.ends)
            lane.sent.ends += [End()] * more
        # Before anything is written: a partition that has lost its end could be as long as before by then.
        check_held(self.broker, lanes)
        # Before tails are read: a reader of what is committed sees nothing behind a transaction that is open.
        self._close_open()
        find_tails(self.broker, lanes, is_scaling=progress.intent is not None)
        self.producer.begin_from(progress, lanes)
        if self.moved is not None:
            self.progress = progress = self._move(self.moved)
        self._reached = Place(progress.resolved, _ALL)
        self._use(progress.partitions)
        first = self.sources[0].dispatcher
        self._conflicts = Conflicts(first.weights, lanes.main.sent.aligned) if first.rule.way == "conflict" else None
        self._sending = [
            Sending(source, at, Place(*at.inside) if at.inside else Place(0, _NOTHING))
            for source, at in zip(self.sources, progress.sources, strict=True)
        ]
        self._future = Future(sendings=self._sending, warn=self.hooks.warn)
        self._by_partition = [0] * len(lanes.main.sent.ends)
        self._looked_at = time.monotonic()
        self._due = Due(commit_seconds=self.settings.commit_seconds, gap_seconds=self.settings.gap_seconds)
        self._due.plan(self._looked_at)
        readings = [Reading(self.settings.feed, each.source, each.at) for each in self._sending]
        self._stream = readings[0] if len(readings) == 1 else Merge(readings)
        # Topics that a killed run has recorded and not begun: a reader waits for their Admin.
        self._begin_topics([lane for lane in lanes if lane.begins])

    def _move(self, moved: Progress) -> Progress:
        """The switch to another server: nothing but the progress that says so, in a transaction of its own.

        Rows behind the progress have times that the other log need not give them. Raises Terminal.
        """
        if self._lanes.has_more:
            raise Terminal(
                f"Topic {moved.topic} holds changes of which its feed's progress says nothing (a commit was late), and"
                " the former server alone gives them the same times.",
                cure="Start that server once more, and the feed with it; or begin another feed into another topic.",
            )
        # A Resolved may stand there.
        least, before = self._lanes.latest.t, {each.source for each in self.progress.sources}
        sources = tuple(
            each if each.source in before else changed(each, {"assigned": max(each.assigned, least)})
            for each in moved.sources
        )
        made: Progress = changed(moved, {"sources": sources})
        reach("feed.moving")
        self.producer.commit(self.settings.progress_topic, made)
        reach("feed.moved")
        return made

    def _close_open(self) -> None:
        """Committed, whatever became of its transaction: of that the progress tells, and what is behind it is found.

        Left open it would be ended by what this run sends: committed beside the same rows again, or aborted when the
        progress says that it was sent.
        """
        if found := self.broker.open_ones(self._lanes.numbered):
            messages = self.broker.behind_each(found, is_committed=False)
            last = {(str(message.topic()), message.partition() or 0): tags_of(message) for message in messages}
            t = self.progress.resolved
            self.producer.close_open(last, t, self.settings.format.resolved(t))
            await_closed(self.broker, self._lanes)

    def _use(self, partitions: int) -> None:
        for source in self.sources:
            source.dispatcher.partitions = partitions

    # Topics of tables.

    def _open_topics(self, tables: Iterable[Named]) -> None:
        """For those that have none yet. They are recorded first, so that it is known whose they are."""
        if not (new := self._lanes.unknown(tables)):
            return
        # Everything that comes into them is behind this time.
        since = max(self._whole, self.progress.resolved)
        made = open_lanes(self.broker, self.progress, self._lanes, new, self.settings.format.name, since)
        reach("feed.topic.made")
        self._commit(opened=made)
        reach("feed.topic.noted")
        for lane in made:
            self._lanes.add(lane)
            self.producer.add(lane)
        self._begin_topics(made)

    def _begin_topics(self, lanes: Sequence[Lane]) -> None:
        """With Admin(1); of a partition that has it already nothing is sent."""
        if lanes:
            self.producer.know(lanes, self.progress.partitions)
        for lane in lanes:
            self._begin_generation(lane, lane.since, lane.partitions, lane.generation)

    def _begin_generation(self, lane: Lane, t: int, partitions: int, generation: int) -> None:
        message = self.settings.format.admin(Admin(t=t, partitions=partitions, generation=generation))
        self.producer.admin(lane, Place(t, 0), message, partitions=partitions, generation=generation)

    # The logs.

    def _follow(self) -> None:
        self._stream.open()
        for piece in self._stream.pieces():
            if piece is None:
                self._pause()
            else:
                self._send(self._sending[piece.source], piece)
            if self._ahead is not None:
                self._go_ahead(self._ahead)

    def _pause(self) -> None:
        """Between two items of the log, but for those that come close behind each other."""
        now = time.monotonic()
        # Not by the interval alone: beside 200 transactions a second half of the rows are readable within 27 ms, and
        # within 114 by that.
        if self.producer.rows and self._is_early():
            self._commit()
        elif now - self._paused_at < _PAUSE_SECONDS:
            return
        self._paused_at = now
        self.hooks.check()
        self.producer.poll()
        self._future.look(self._stream)
        if self._is_due(now):
            self._commit()
        # Neither within a transaction: a large one is sent to its end in one generation.
        if not any(each.is_open for each in self._sending):
            self._look_at_topic(now)
            self._scale()
        reading = self._stream
        if self._ahead is None and isinstance(reading, Reading) and reading.waiting_rows >= GIANT_ROWS:
            self._ahead = begin(self.settings.feed, self._sending[0], reading, is_each=self._lanes.is_each)

    def _is_early(self) -> bool:
        """Nothing more is there to be sent, nor comes while commits have to wait for one another."""
        while (wait := self._due.early_at - time.monotonic()) > 0:
            if not self._stream.is_drained(min(wait, _WAIT_SECONDS)):
                return False
            self.hooks.check()
        return self._stream.is_drained(0)

    def _is_due(self, now: float) -> bool:
        if self.producer.rows:
            return now >= self._due.rows_at
        # Without news no commit: each costs a record of progress and a mark in every partition that has part in it.
        has_news = self._whole > self.progress.resolved or (self._ahead is not None and self._ahead.has_news)
        return now >= self._due.idle_at and has_news

    @property
    def _whole(self) -> int:
        """All of all sources up to this time has been sent."""
        return min(self._whole_of(each) for each in self._sending)

    def _whole_of(self, sending: Sending) -> int:
        if sending.is_open:
            return sending.assigned
        # What waits for the other sources is this source's next, so all before that was sent. By its last transaction
        # alone Resolved of all would stand still at it.
        return max(sending.assigned, self._stream.next_head(sending.source.number) - 1)

    # What does not wait for a giant transaction.

    def _go_ahead(self, ahead: Ahead) -> None:
        (sending,) = self._sending
        for piece in ahead.pieces(self._lanes, sending.source):
            if not self._send_ahead(sending, ahead, piece):
                ahead.close()
        is_over = isinstance(self._stream, Reading) and not self._stream.waiting_rows
        if is_over and not sending.is_open and self._whole >= ahead.resolved:
            ahead.close()
            self._ahead = None

    def _send_ahead(self, sending: Sending, ahead: Ahead, piece: Piece) -> bool:
        """False: it holds rows of a table that has no topic yet."""
        rows = rows_of(sending, piece, ahead.layout)
        if self._lanes.is_each and self._lanes.unknown((row.layout.schema, row.layout.table) for row in rows):
            return False
        sending.source.dispatcher.prepare(rows)
        tags = sending.tags(piece)
        for row in rows:
            self._send_row(sending, row, tags, ahead.elsewhere)
            self._commit_if_large()
        if piece.mark is not None:
            ahead.resolved = piece.mark.t
        return True

    # Rows.

    def _send(self, sending: Sending, piece: Piece) -> None:
        sending.take(piece)
        self._future.meet(piece)
        if piece.is_ddl:
            self._send_ddl(sending, piece)
        elif piece.changes:
            self._send_rows(sending, piece)
        if (mark := piece.mark) is not None:
            was_filling = mark.filled is not None and self._is_filling
            sending.end(mark)
            # The first reader goes on behind it, and what was sent ahead is met as if it had been found.
            if self._ahead is not None:
                self._ahead.close()
            if was_filling and not self._is_filling:
                # Never the place of an Admin that begins a generation, which would then count as sent.
                self._send_filled(Place(piece.t, piece.seq + len(piece.changes) + 1))
            self._reached = Place(mark.t, _ALL)

    @property
    def _is_filling(self) -> bool:
        """Rows that were there before are still to come."""
        return any(each.at.filled is not None and not each.at.filled.is_done for each in self._sending)

    def _send_filled(self, place: Place) -> None:
        """From here on the topic says all of the tables. Once more where the run is killed before it is committed."""
        for lane in self._lanes:
            said = Admin(t=place.t, partitions=lane.partitions, generation=lane.generation, snapshot="done")
            tags = [("vr-snapshot", said.snapshot.encode())]
            self.producer.broadcast(lane, Kind.ADMIN, place, [self.settings.format.admin(said)], tags)

    def _send_rows(self, sending: Sending, piece: Piece) -> None:
        rows = rows_of(sending, piece, sending.source.tables.layout)
        # Of a transaction that was sent in part all rows are read again (P2); those up to here stand in the topic.
        if piece.t <= sending.done.t:
            rows = [row for row in rows if row.place > sending.done]
        if self._lanes.is_each:
            self._open_topics((row.layout.schema, row.layout.table) for row in rows)
        sending.source.dispatcher.prepare(rows)
        if self._conflicts is not None:
            self._conflicts.prepare(rows)
        tags = sending.tags(piece)
        for row in rows:
            self._send_row(sending, row, tags)
            sending.last = self._reached = row.place
            self._commit_if_large()

    def _commit_if_large(self) -> None:
        if self.producer.rows >= _MOST_ROWS or self.producer.nbytes >= _MOST_BYTES:
            self._commit()

    def _send_row(self, sending: Sending, row: Row, tags: Sequence[Header], elsewhere: Elsewhere | None = None) -> None:
        """elsewhere: ahead of its turn, where it goes there."""
        lane, source = self._lanes.of_row(row.layout.schema, row.layout.table), sending.source
        places = source.dispatcher.placed(row)
        if source.dispatcher.gives_up(row, is_split=len(places) > 1):
            tags = (*tags, MOVED)
        for partition, each in places:
            if elsewhere is not None and partition not in elsewhere.get(lane.name, ()):
                continue
            self._align(partition, each)  # also of a row that is there already: its values count for those behind it
            if lane.sent.is_before_cut(partition, each.place):
                continue
            format = source.format
            messages = self._keyed(lane, row, self.settings.fit.row(format, each, format.row(each)))
            self.producer.row(lane, partition, each.place, messages, tags)
            self._sent_rows += 1
            self._by_partition[partition] += 1
            if elsewhere is not None:
                lane.sent.go_ahead(partition, each.place)

    def _keyed(self, lane: Lane, of: Row | Ddl, messages: Sequence[Encoded]) -> Sequence[Encoded]:
        return messages if self.settings.format.name in KEYLESS else keyed(self.broker, lane, of, messages)

    def _align(self, partition: int, row: Row) -> None:
        number = self._conflicts.meet(partition, row) if self._conflicts is not None else None
        if number is not None:
            self.producer.align(self._lanes.main, number, self.settings.format.align(number))

    def _pass_barrier(self) -> None:
        if self._conflicts is not None:
            self._conflicts.pass_barrier()

    def _send_ddl(self, sending: Sending, piece: Piece) -> None:
        ddl = ddl_of(sending, piece)
        place = ddl.place
        if place > sending.done:
            # Before it is sent: a feed that ends here meets the statement again when it is resumed, and does not pass
            # it over.
            sending.source.check_ddl(ddl)
            messages, tags = self.settings.fit.ddl(sending.source.format, ddl), sending.tags(piece)
            for lane in self._lanes_of(sending, ddl):
                self.producer.broadcast(lane, Kind.DDL, place, self._keyed(lane, ddl, messages), tags)
            self._pass_barrier()
            sending.last = self._reached = place

    def _lanes_of(self, sending: Sending, ddl: Ddl) -> list[Lane]:
        """A table that is gone, or never was, gets no topic."""
        has, names = sending.source.tables.filter.has, list(ddl.tables)
        if sending.source.is_folded:
            names = [(schema.lower(), table.lower()) for schema, table in names]
        if self._lanes.is_each and ddl.verb != "DROP":
            self._open_topics(each for each in names if each[1] and has(*each))
        return self._lanes.of_ddl(names)

    # The end of a Kafka transaction.

    def _commit(self, *, opened: Sequence[Lane] = (), **more: Any) -> None:
        """opened: topics that are recorded with it and hold nothing yet."""
        began = time.monotonic()
        # All pieces of a large transaction come without a pause between them: whether the feed is to end is asked here.
        self.hooks.check()
        reach("feed.commit")
        # Never below what the progress says: of its time a run that has just begun knows nothing.
        resolved = max(self._whole, self.progress.resolved)
        self._resolve(resolved)
        # P3: the progress is produced when all of this is acknowledged, so that nothing commits it without the rows.
        self.producer.flush()
        fields = {
            "sources": tuple(each.told for each in self._sending),
            "resolved": resolved,
            "ends": self._lanes.main.sent.told(self._reached),
            "topics": (*self._lanes.recorded(self._reached), *(lane.record(self._reached) for lane in opened)),
            **more,
        }
        made = changed(self.progress, fields)
        asked = time.monotonic()
        self.producer.commit(self.settings.progress_topic, made)
        if time.monotonic() - asked > _SLOW_SECONDS:
            # The broker's coordinator may have moved, and left its mark out somewhere.
            await_closed(self.broker, self._lanes)
        self.progress = made
        self._due.plan(began)
        self.hooks.told(
            Status(
                progress=made,
                rows=self._sent_rows,
                by_partition=tuple(self._by_partition[: made.partitions]),
                held=self._future.held,
            )
        )

    def _resolve(self, t: int) -> None:
        now, is_first = time.monotonic(), not self._is_resolved
        message = self.settings.format.resolved(t)
        for lane in self._lanes.resolvable(now):
            self._resolve_lane(lane, t, message)
        if is_first:
            self._lanes.spread(now)
        self._is_resolved = True

    def _resolve_lane(self, lane: Lane, t: int, message: Encoded) -> None:
        ahead = self._ahead
        apart = ahead.elsewhere.get(lane.name) if ahead is not None and ahead.elsewhere else None
        if ahead is None or not apart or ahead.resolved <= t:
            self.producer.resolved(lane, t, message)
            return
        self.producer.resolved(lane, t, message, sorted(set(range(lane.partitions)) - apart))
        ahead.said = ahead.resolved
        self.producer.resolved(lane, ahead.resolved, self.settings.format.resolved(ahead.resolved), sorted(apart))

    # Partitions that grow and shrink (E).

    def _scale(self) -> None:
        wanted = self.hooks.wanted()
        if wanted is None or wanted == self.progress.partitions:
            return
        # What is sent ahead goes by the partitions of now, whether it has begun or not.
        is_ahead = self._ahead is not None or self._reached < self._lanes.latest
        if is_ahead or any(each.is_half_sent for each in self._sending):
            return
        # Before the intent is saved partitions that somebody else has added can still be refused.
        self._check_topic()
        # By itself, before the intent: Resolved of all that was sent is what both generations meet at.
        self._commit()
        reach("feed.scale.resolved")
        self._commit(intent=wanted)
        reach("feed.scale.intent")
        self._scale_on(wanted)

    def _scale_on(self, wanted: int) -> None:
        """From where the intent is saved there is only the way forward."""
        self.broker.grow([lane.name for lane in self._lanes], wanted)
        reach("feed.scale.grown")
        # Everything that was sent is up to this time, and everything that comes is behind it.
        t, both = self.progress.resolved, max(self.progress.partitions, wanted)
        self.producer.know(list(self._lanes), both)
        for lane in self._lanes:
            self._begin_generation(lane, t, wanted, lane.generation + 1)
        self._by_partition += [0] * (wanted - len(self._by_partition))
        self._use(wanted)
        self._pass_barrier()
        # In one transaction with the Admins (E4). Where a late EndTxn commits some of them alone, the intent is still
        # there, and the next run sends the rest.
        self._commit(partitions=wanted, generation=self.progress.generation + 1, intent=None)
        reach("feed.scale.done")

    def _look_at_topic(self, now: float) -> None:
        if now - self._looked_at >= _METADATA_SECONDS:
            self._looked_at = now
            self._check_topic()

    def _check_topic(self) -> None:
        check_topics(self.broker, self.progress, self._lanes, self.hooks.wanted())
