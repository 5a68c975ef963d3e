"""The listener of a partition: what its messages mean, from a stored offset on.

It follows from what is stored and from the partition alone, so it can be forgotten at any time and made anew. It says
how far the rows that wait may be applied, and what is to be stored then; it stops at a DDL, an Admin or an Align until
somebody lets it pass.

What must stay true: each counted message is the one behind the last, or was applied before, or the listener says what
is lost; what is stored never passes a row that waits, nor the last Resolved as long as its time is not reached: after a
crash all of it is read again. What the producer would never send ends the consumer with one sentence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Message

from vreplication.errors import Refused, Terminal
from vreplication.feed.claims import Fetcher
from vreplication.feed.consume.waiting import Memory, Queue, Waiting
from vreplication.feed.formats import open as open_format
from vreplication.feed.messages import Kind, NotOurs, Tags, read_tags
from vreplication.feed.spoken import Spoken
from vreplication.feed.spoken import read as read_spoken
from vreplication.state.feed_offsets import NO_ALIGN, Align, Offset, Stand

_AGAIN = "Begin a new feed into another topic, with a new group."
_MOST_AHEAD_BYTES, _MESSAGE_BYTES = 4 << 20, 500
"""That are kept while a listener stands at an Align, so that nothing has to be fetched again when it goes on."""
# Resolved and Align carry the last number and take none (docs/feed.md): one that is lost leaves no gap.
_COUNTED = frozenset({Kind.ROW, Kind.DDL, Kind.ADMIN})


class Ddl(NamedTuple):
    """A statement, the schema of its session, and what else that decided. gtid: its name in its source's log.

    source: the server; '' where that is not told.
    """

    t: int
    schema: str
    sql: str
    spoken: Spoken = Spoken()
    gtid: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The message that the listener waits at. t: its time; n: its number, n_before: of the one before it.

    offset: its own (of its first part), end: the one behind it. What it says stands in one of the last three.
    """

    stand: Stand
    t: int
    offset: int
    end: int
    n_before: int
    n: int
    ddl: Ddl | None = None
    count: int = 0
    align: Align = NO_ALIGN

    @property
    def due(self) -> int:
        """All rows up to this time come before it; -1: all that were read."""
        # A DDL has a time of its own; that of an Admin is the last one of its generation, and rows may have it.
        return {Stand.DDL: self.t - 1, Stand.ADMIN: self.t}.get(self.stand, -1)


class _Resolved(NamedTuple):
    """The last one that was read of those with the highest time."""

    t: int
    offset: int
    n: int


@dataclass(slots=True)
class _Parts:
    """A message that came in parts, as far as they are here."""

    t: int
    kind: Kind
    offset: int
    n_before: int
    of: int
    pieces: list[bytes] = field(default_factory=list)


class Listener:
    """Of one partition, in one generation. aligns: it stops at an Align. fetch: a value that is in a file."""

    def __init__(
        self,
        topic: str,
        stored: Offset,
        *,
        generation: int,
        ddl_done: int,
        memory: Memory,
        aligns: bool,
        fetch: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.topic, self.number = topic, stored.number
        self.stored = stored
        self.position = stored.next
        """Of the next message to be read."""
        self.queue = Queue(memory)
        self.stop: Stop | None = None
        self._generation, self._ddl_done, self._aligns = generation, ddl_done, aligns
        self._fetch = fetch or Fetcher().get
        self._n, self._resolved = stored.n, stored.resolved
        self._last_t = 0
        self._last_resolved = _Resolved(0, 0, 0)
        self._parts: _Parts | None = None
        self._ahead: deque[Message] = deque()
        self._ahead_bytes = 0

    # Reading.

    def take(self, message: Message) -> None:
        """Raises Terminal. What comes while it is stopped is kept at an Align, or will be read again."""
        offset = _known(message.offset())
        if self.stop is not None:
            self._keep(message, offset)
            return
        if offset < self.position:
            return
        tags = self._tags(message)
        self.position = offset + 1
        if tags.snapshot and tags.generation == self._generation:
            self._pass_by(tags, offset)
        elif tags.kind is Kind.ADMIN and tags.generation <= self._generation:
            # Behind rows of older generations, which are not looked at: their numbers are passed with it.
            self._n = max(self._n, tags.n)
        elif tags.generation < self._generation:
            # D5: of an older generation nothing counts any more.
            return
        elif self._is_new(tags, offset):
            self._act(tags, offset, message)

    def _pass_by(self, tags: Tags, offset: int) -> None:
        """What is counted and asks for nothing."""
        if tags.n > self._n + 1:
            raise self._wrong(offset, f"has message {tags.n} where {self._n + 1} was to come: what is between is lost")
        self._n = max(self._n, tags.n)

    def _keep(self, message: Message, offset: int) -> None:
        if not self.is_full and offset >= self.following:
            self._ahead.append(message)
            self._ahead_bytes += _size(message)

    @property
    def is_full(self) -> bool:
        """It stands, and what comes now will be read again."""
        if self.stop is None:
            return False
        return self.stop.stand is not Stand.ALIGN or self._ahead_bytes >= _MOST_AHEAD_BYTES

    @property
    def following(self) -> int:
        """Offset of the message that has to come next."""
        return _known(self._ahead[-1].offset()) + 1 if self._ahead else self.position

    def _tags(self, message: Message) -> Tags:
        try:
            return read_tags(message.headers())
        except NotOurs as error:
            raise self._wrong(_known(message.offset()), f"holds {error}") from None

    def _is_new(self, tags: Tags, offset: int) -> bool:
        """False: it was applied before."""
        self._check_generation(tags, offset)
        is_counted = tags.kind in _COUNTED
        # D3: compared with what was applied, not with what was received: after a crash the rows that only waited come
        # again, and have to count as new.
        if is_counted and tags.n <= self._n and tags.kind is not Kind.ADMIN:
            return False
        if tags.n > self._n + is_counted:
            expected = self._n + is_counted
            raise self._wrong(offset, f"has message {tags.n} where {expected} was to come: what is between is lost")
        return True

    def _check_generation(self, tags: Tags, offset: int) -> None:
        is_admin = tags.kind is Kind.ADMIN
        # An Admin says the generation that it begins; a new group stands at none, and the first Admin has to come.
        if tags.generation == self._generation + is_admin:
            return
        if self._generation == 0:
            raise self._wrong(offset, "does not begin with the first generation: its head is gone")
        raise self._wrong(
            offset, f"goes to generation {tags.generation} behind {self._generation}: what is between is lost"
        )

    def _act(self, tags: Tags, offset: int, message: Message) -> None:
        if tags.kind is Kind.RESOLVED:
            self._resolve(tags, offset)
        elif tags.kind is Kind.ALIGN:
            self._align(tags, offset, message)
        elif tags.kind is Kind.ADMIN:
            # At each Admin, too: a consumer may have been there before the feed, with no first message to look at.
            if self._aligns:
                check_dispatch(self.topic, tags.dispatch)
            _, count, _ = open_format.read_admin(message.value())
            self.stop = self._stop(tags, Stand.ADMIN, offset, offset, count=count)
        else:
            self._check_key_only(tags, offset)
            self._check_moved(tags, offset)
            n_before, self._n = self._n, tags.n
            value = self._fetch(tags.claim) if tags.claim else message.value() or b""
            whole = self._whole(tags, offset, n_before, value)
            if whole is not None:
                self._act_on_whole(tags, *whole, message)

    def _check_key_only(self, tags: Tags, offset: int) -> None:
        """The source has gone on by now, so that nothing it says is of this transaction."""
        if tags.is_key_only and not self._aligns:
            raise Refused(
                f"Partition {self.number} of topic {self.topic} at offset {offset} has the key of a row alone, which"
                " cannot be read in mode transaction.",
                cure="Use --mode row with --source, or begin a feed with --max-message claim-check.",
            )

    def _check_moved(self, tags: Tags, offset: int) -> None:
        """A row of its key may come in another partition, and no order holds between the two: it might be lost."""
        if tags.is_moved and self._aligns:
            raise Refused(
                f"Partition {self.number} of topic {self.topic} at offset {offset} has a row that gives up its key, or"
                " its partition, which does not go by the key alone: in row mode it is not known what comes first"
                " where another partition has that key, too.",
                cure="Begin again with a copy and another group, in --mode transaction, or with a feed by another"
                " --dispatch or by columns of each key.",
            )

    def _whole(self, tags: Tags, offset: int, n_before: int, value: bytes) -> tuple[int, int, bytes] | None:
        """Its first offset, the number before it, its value; None: parts of it are still to come."""
        if tags.part is None and self._parts is None:
            return offset, n_before, value
        number, of = tags.part or (0, 0)
        parts = self._parts or _Parts(tags.t, tags.kind, offset, n_before, of)
        # Also a whole message (0 of 0) between two parts: the feed sends no other row or DDL there.
        if (tags.t, tags.kind, of, number) != (parts.t, parts.kind, parts.of, len(parts.pieces)):
            raise self._wrong(offset, "has parts of a message that do not follow each other")
        parts.pieces.append(value)
        self._parts = parts if len(parts.pieces) < parts.of else None
        return None if self._parts else (parts.offset, parts.n_before, b"".join(parts.pieces))

    def _act_on_whole(self, tags: Tags, first: int, n_before: int, value: bytes, message: Message) -> None:
        offset = _known(message.offset())
        self._check_order(tags, offset)
        if tags.kind is Kind.ROW:
            # Looked at without being parsed: rows wait as bytes, and are parsed when they are written.
            is_write = not value.startswith(b'{"delete"')
            self.queue.add(Waiting(tags.t, tags.seq, is_write, first, n_before, _bytes(message.key()), value))
            self._last_t = tags.t
        elif tags.t > self._ddl_done:
            # It is passed later, and its number with it.
            self._n = n_before
            spoken = read_spoken(tags.session)
            named, said = {"gtid": tags.gtid, "source": tags.source}, open_format.read_ddl(message.key(), value)
            ddl = Ddl(tags.t, *said, spoken=spoken, **named)
            self.stop = self._stop(tags, Stand.DDL, first, offset, ddl=ddl)

    def _stop(self, tags: Tags, stand: Stand, first: int, last: int, **said: Any) -> Stop:
        return Stop(stand=stand, t=tags.t, offset=first, end=last + 1, n_before=self._n, n=tags.n, **said)

    def _check_order(self, tags: Tags, offset: int) -> None:
        """Rows come in the order of the log, and none behind the Resolved that said that there is none."""
        # Rows of a transaction share a time; a DDL has one of its own (P8).
        floor = max(self._resolved, self._last_t - (tags.kind is Kind.ROW))
        if tags.t <= floor and not (tags.kind is Kind.DDL and tags.t <= self._ddl_done):
            raise self._wrong(
                offset, f"has a {tags.kind.value} of {tags.t} behind what says that all up to {floor} came"
            )

    def _resolve(self, tags: Tags, offset: int) -> None:
        # Of an earlier time one may stand between two parts, as the end of a Kafka transaction may.
        if self._parts is not None and self._parts.t <= tags.t:
            raise self._wrong(offset, f"resolves {tags.t} before the last part of a message of then")
        # Behind a crash of the feed a lower one may follow (docs/feed.md): the highest counts.
        self._resolved = max(self._resolved, tags.t)
        if tags.t >= self._last_resolved.t:
            self._last_resolved = _Resolved(tags.t, offset, self._n)

    def _align(self, tags: Tags, offset: int, message: Message) -> None:
        if self._aligns:
            self.stop = self._stop(tags, Stand.ALIGN, offset, offset, align=_read_align(message.value()))

    def _wrong(self, offset: int, what: str) -> Terminal:
        return Terminal(f"Partition {self.number} of topic {self.topic} at offset {offset} {what}.", cure=_AGAIN)

    # Applying.

    @property
    def reached(self) -> int:
        """All rows up to this time are here."""
        return max(self._resolved, self.stop.due) if self.stop else self._resolved

    @property
    def limit(self) -> float:
        """As `reached`, where rows need not wait for those of other partitions: all that stand before an Align."""
        # Their Resolved may stand behind the Align, which is not passed before they are applied: waiting for it would
        # never end.
        return math.inf if self.stop is not None and self.stop.stand is Stand.ALIGN else self.reached

    def offset(self, upto: int) -> Offset:
        """What is to be stored when all rows up to this time have left the queue and are applied."""
        resolved = max(self.stored.resolved, upto)
        following, n = self._place(resolved)
        found = replace(self.stored, next=following, n=n, resolved=resolved, stand=Stand.NOWHERE)
        # Said too early, others would count it as standing there, and run the DDL before rows that still wait here.
        if self.stop is None or upto < self.stop.due:
            return found
        stop = self.stop
        aligned = max(found.aligned, stop.align)
        return replace(found, stand=stop.stand, stand_t=stop.t, stand_count=stop.count, aligned=aligned)

    def part_way(self) -> Offset:
        """As `offset`, where rows that may be applied still wait."""
        head, resolved = self.queue.head, self.stored.resolved
        # At a stop rows may go that are later than the last Resolved. Once all up to its time have gone it is passed:
        # else it would be read again, and those rows with it.
        if head is not None and head.t > self._resolved:
            resolved = max(resolved, self._resolved)
        following, n = self._place(resolved)
        return replace(self.stored, next=following, n=n, resolved=resolved, stand=Stand.NOWHERE)

    def _place(self, resolved: int) -> tuple[int, int]:
        """The oldest message that must be read again after a crash, and the number of the one before it."""
        head, last = self.queue.head, self._last_resolved
        # The stop, too: the text of a DDL is stored nowhere, and whoever comes next reads it again.
        found = [(self.stop.offset, self.stop.n_before) if self.stop else (self.position, self._n)]
        found += [(waits.offset, waits.n_before) for waits in (head, self._parts) if waits is not None]
        # resolved_waits: passed, nobody would say again that all up to this time is here, and its rows would wait for
        # ever.
        if last.t > resolved:
            found.append((last.offset, last.n))
        return min(found)

    def go_on(self) -> None:
        """Pass what it stands at, and read what is kept. The group has run a DDL, or has been aligned."""
        assert self.stop is not None
        stop, self.stop = self.stop, None
        if stop.stand is Stand.DDL:
            self._ddl_done = max(self._ddl_done, stop.t)
        self._n, self.position = stop.n, stop.end
        while self._ahead and self.stop is None:
            message = self._ahead.popleft()
            self._ahead_bytes -= _size(message)
            self.take(message)


def check_dispatch(topic: str, dispatch: str) -> None:
    """In mode row. '' where the feed does not tell. Raises Refused."""
    if dispatch == "ts":
        raise Refused(
            f"The feed of topic {topic} sends rows by their commit time: `ts` in row mode would bring changes of a row"
            " out of their order.",
            cure="Use --mode transaction, or begin a feed with another --dispatch.",
        )


class _Said(msgspec.Struct):
    align: tuple[int, int]


def _read_align(value: Any) -> Align:
    try:
        return Align(*msgspec.json.decode(value or b"", type=_Said).align)
    except msgspec.DecodeError as error:
        raise Terminal(f"An Align of the feed cannot be read ({error}).") from None


def _known(offset: int | None) -> int:
    assert offset is not None
    return offset


def _size(message: Message) -> int:
    return len(message) + _MESSAGE_BYTES


def _bytes(key: Any) -> bytes:
    return key.encode() if isinstance(key, str) else key or b""
