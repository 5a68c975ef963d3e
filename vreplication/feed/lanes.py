"""The topics of a feed as they are written: one, or that one and another for each table.

Each is a feed's topic by itself (docs/feed.md): numbers, generations, Resolved and Admin are its own. Where tables have
theirs, rows go to the table's, DDL to those of the tables that it names, and all DDL to the one of the address.

What must stay true: of two tables no rows go into one topic; what was recorded of a partition is replaced by what it
has now only when everything that stands in it behind the progress has been gone by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from confluent_kafka import Message

from vreplication.errors import Terminal
from vreplication.feed.messages import COUNTED, Kind, NotOurs, Place, Tags, read_tags
from vreplication.feed.progress import End, Progress, TableTopic

QUIET_SECONDS = 10.0
"""So often a topic gets Resolved into which nothing else goes."""
_ALL = 1 << 62
EVERYTHING = Place(_ALL, 0)
"""Behind all places."""
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")
# Kafka takes no longer name of a topic.
_LONGEST = 249

_NOWHERE = Place(0, 0)

Named = tuple[str, str]
"""A table: schema and name."""


def tags_of(message: Message) -> Tags:
    """Raises Terminal for a message that is no feed's."""
    try:
        return read_tags(message.headers())
    except NotOurs:
        raise Terminal(
            f"Somebody else writes into topic {message.topic()}: partition {message.partition()}, offset"
            f" {message.offset()} is no message of the feed.",
            cure="A feed needs a topic of its own: begin a new one there.",
        ) from None


class Sent:
    """What stands in a topic behind the progress: rows that are not sent again (P7), and where each partition ends.

    aligned: the highest number of an Align. Where retention or compaction has taken the first ones, what is before the
    first that is left was sent as well. What is sent ahead of its turn (ahead.py) is as what was found.
    """

    def __init__(self, ends: Sequence[End]) -> None:
        self.ends = list(ends)
        self.aligned = Place(0, 0)
        self._told = list(ends)
        """As the progress says it."""
        self._behind: dict[int, Place] = {}
        """The last place in each partition that is still to be gone by."""
        self._rows: dict[tuple[int, Place], int] = {}
        self._others: dict[tuple[int, str, int, Place], int] = {}
        self._cuts: dict[int, Place] = {}

    def missing(self, partition: int, tags: Tags) -> int:
        """How many numbers are left out in front of it; below 0: it repeats some."""
        return tags.n - self.ends[partition].n - (tags.kind in COUNTED)

    def take(self, partition: int, offset: int, tags: Tags) -> None:
        """In the order of its partition."""
        place = Place(tags.t, tags.seq)
        self._behind[partition] = max(self._behind.get(partition, _NOWHERE), _row_of(tags))
        missing = self.missing(partition, tags)
        if missing > 0:
            self._cuts[partition] = _first_left(tags)
        self.ends[partition] = End(offset=offset, n=tags.n)
        if tags.kind is Kind.ROW:
            # Retention may have taken the first parts of a value, and those were sent as well.
            before = tags.part[0] if missing > 0 and tags.part else 0
            self._rows[partition, place] = self._rows.get((partition, place), before) + 1
        elif tags.kind is Kind.ALIGN:
            self.aligned = max(self.aligned, place)
        elif tags.kind is not Kind.RESOLVED:
            key = (partition, tags.kind.value, tags.generation, place)
            self._others[key] = self._others.get(key, 0) + 1

    def go_ahead(self, partition: int, place: Place) -> None:
        """All of this partition up to this row was sent, whose turn is still to come. More may have been found."""
        # Not simply this place: an earlier run may have been further ahead, and its rows would come twice behind a
        # second crash.
        self._behind[partition] = max(self._behind.get(partition, _NOWHERE), place)
        self._cuts[partition] = Place(place.t, place.seq + 1)

    def is_before_cut(self, partition: int, place: Place) -> bool:
        """It was sent, whatever it is."""
        if not self._cuts:
            return False
        return place < self._cuts.get(partition, place)

    @property
    def latest(self) -> Place:
        """The last place that was found, and is still to be gone by."""
        return max(self._behind.values(), default=_NOWHERE)

    def told(self, reached: Place) -> tuple[End, ...]:
        """For the progress. Until all that stands in a partition has been gone by the next run has to find it, too."""
        # tails_kept: moved earlier, a second crash would find less than the first, and rows would be sent again.
        kept = {number: place for number, place in self._behind.items() if place > reached}
        before = self._told + [End()] * (len(self.ends) - len(self._told)) if kept else []
        self._told = [before[number] if number in kept else end for number, end in enumerate(self.ends)]
        self._behind = kept
        return tuple(self._told)

    @property
    def is_kept(self) -> bool:
        """Of some partition it is not told yet how it ends."""
        return bool(self._behind)

    @property
    def has_more(self) -> bool:
        """Something that is counted stands there."""
        return bool(self._rows or self._others or self._cuts)

    def rows(self, partition: int, place: Place) -> int:
        """How many messages of this row are there, or were."""
        if self._cuts and self.is_before_cut(partition, place):
            return _ALL
        return self._rows.get((partition, place), 0) if self._rows else 0

    def others(self, partition: int, kind: Kind, generation: int, place: Place) -> int:
        if self.is_before_cut(partition, place):
            return _ALL
        return self._others.get((partition, kind.value, generation, place), 0) if self._others else 0


def _row_of(tags: Tags) -> Place:
    """The row that a message is, or that it stands before."""
    # An Align has twice the number of its row, or one more (conflicts.py).
    return Place(tags.t, {Kind.ROW: tags.seq, Kind.ALIGN: tags.seq // 2}.get(tags.kind, 0))


def _first_left(tags: Tags) -> Place:
    """All before this place, of the same partition, was sent before this message."""
    if tags.kind is Kind.RESOLVED:
        return Place(tags.t + 1, 0)
    return Place(tags.t, tags.seq) if tags.kind is Kind.DDL else _row_of(tags)


@dataclass(slots=True, kw_only=True)
class Lane:
    """A topic. table None: that of the address. partitions, generation: in use, and as this topic counts.

    before: generations of the feed that it has not had. since: time of its first Admin.
    """

    name: str
    id: str
    sent: Sent
    table: Named | None = None
    before: int = 0
    since: int = 0
    partitions: int = 0
    generation: int = 1
    recorded: TableTopic | None = None
    is_changed: bool = False
    """Something was sent since it was recorded."""
    is_compacted: bool | None = None
    """None: not asked yet, which a message without a key does."""
    last: int = 0
    """Time of the last row or DDL that was sent, and below of the last Resolved, and when that was."""
    resolved: int = -1
    resolved_at: float = float("-inf")

    @property
    def begins(self) -> bool:
        """Some partition in use has no Admin yet."""
        # An Admin is counted, so a partition that has one is not at 0.
        return any(end.n == 0 for end in self.sent.ends[: self.partitions])

    def record(self, reached: Place) -> TableTopic:
        if self.table is None:
            raise ValueError("the topic of the address is recorded in the progress itself")
        # Of thousands of topics few get something in one commit; what is said of the others is the same again.
        if self.recorded is None or self.is_changed or self.sent.is_kept:
            ends = tuple(chain.from_iterable((end.offset, end.n) for end in self.sent.told(reached)))
            self.recorded = TableTopic(*self.table, self.id, self.before, self.since, ends)
            self.is_changed = False
        return self.recorded


def main_lane(progress: Progress) -> Lane:
    return Lane(
        name=progress.topic,
        id=progress.topic_id,
        sent=Sent(progress.ends),
        partitions=progress.partitions,
        generation=progress.generation,
    )


def table_lane(progress: Progress, of: TableTopic) -> Lane:
    ends = [End(offset=offset, n=n) for offset, n in zip(of.ends[::2], of.ends[1::2], strict=True)]
    return Lane(
        name=topic_name(progress.topic, of.schema, of.table),
        id=of.id,
        sent=Sent(ends),
        table=(of.schema, of.table),
        before=of.before,
        since=of.since,
        partitions=progress.partitions,
        generation=progress.generation - of.before,
        recorded=of,
    )


@dataclass(slots=True, kw_only=True)
class Lanes:
    """All of a feed's. is_each: tables have their own."""

    main: Lane
    is_each: bool = False
    by_table: dict[Named, Lane] = field(default_factory=dict)
    _names: dict[str, Named] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Lane]:
        yield self.main
        yield from self.by_table.values()

    def __len__(self) -> int:
        return 1 + len(self.by_table)

    @property
    def latest(self) -> Place:
        """The last one that an earlier producer has sent, as far as it was found."""
        return max(lane.sent.latest for lane in self)

    @property
    def has_more(self) -> bool:
        """Rows, DDL or Admins were found that an earlier producer has sent, and its progress does not tell of."""
        return any(lane.sent.has_more for lane in self)

    @property
    def partitions(self) -> int:
        return sum(len(lane.sent.ends) for lane in self)

    @property
    def numbered(self) -> list[tuple[str, int]]:
        """All partitions: topic and number."""
        return [(lane.name, number) for lane in self for number in range(len(lane.sent.ends))]

    def add(self, lane: Lane) -> None:
        assert lane.table is not None
        self.by_table[lane.table] = lane

    def unknown(self, tables: Iterable[Named]) -> list[Named]:
        return [table for table in dict.fromkeys(tables) if table not in self.by_table]

    def of_row(self, schema: str, table: str) -> Lane:
        return self.by_table[schema, table] if self.is_each else self.main

    def of_ddl(self, tables: Sequence[Named]) -> list[Lane]:
        """That of the address first. Of a schema: those of its tables; where the text cannot be read, all."""
        if not self.is_each:
            return [self.main]
        if not tables:
            return list(self)
        schemas = {schema for schema, table in tables if not table}
        return [self.main, *(lane for key, lane in self.by_table.items() if key[0] in schemas or key in tables)]

    def resolvable(self, now: float) -> list[Lane]:
        """Those that get Resolved with a commit now."""
        # The topic of the address always: it says how far the feed is.
        return [
            lane
            for lane in self
            if lane.table is None or lane.last > lane.resolved or now - lane.resolved_at >= QUIET_SECONDS
        ]

    def spread(self, now: float) -> None:
        """They all have been told Resolved at once: not again."""
        for number, lane in enumerate(self):
            # Spread over the time, or thousands of topics would be told in one transaction again.
            lane.resolved_at = now - QUIET_SECONDS * number / len(self)

    def recorded(self, reached: Place) -> tuple[TableTopic, ...]:
        """reached: the last place that was gone by."""
        return tuple(lane.record(reached) for lane in self.by_table.values())


def lanes_of(progress: Progress, *, is_each: bool) -> Lanes:
    found = Lanes(main=main_lane(progress), is_each=is_each)
    for each in progress.topics:
        found.add(table_lane(progress, each))
    return found


# Names.


def topic_name(prefix: str, schema: str, table: str) -> str:
    """As Debezium names it."""
    return _FOREIGN.sub("_", f"{prefix}.{schema}.{table}")


def check_names(prefix: str, tables: Iterable[Named]) -> str:
    """'' or why they cannot all have a topic, in words. Kafka takes a dot and an underscore for the same."""
    known: dict[str, Named] = {}
    for schema, table in tables:
        name = topic_name(prefix, schema, table)
        if len(name) > _LONGEST:
            return f"Topic {name} of table {schema}.{table} would have a name of more than {_LONGEST} characters."
        other = known.setdefault(name.replace(".", "_"), (schema, table))
        if other != (schema, table):
            return f"Tables {'.'.join(other)} and {schema}.{table} would have one topic ({name})."
    return ""
