"""A feed's topics at the broker: made, looked at, and what stands in them behind the progress.

A topic of a table is made before the first message of it, and recorded while it is empty; so whatever a later run finds
in it is the feed's.

What must stay true: nobody but the feed changes its topics, or it stops; one that holds something is never taken up.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from vreplication.errors import Terminal, Transient
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.catalog import SYSTEM, Filter
from vreplication.feed.dispatch import MOST_PARTITIONS
from vreplication.feed.lanes import Lane, Lanes, Named, Sent, check_names, tags_of, topic_name
from vreplication.feed.messages import Ddl, Encoded, Row, Tags
from vreplication.feed.progress import End, Progress
from vreplication.mysql.session import Session

KEYLESS = ("open", "canal-json")
"""Protocols whose messages have no key that lasts."""
_VISIBLE_SECONDS = 10.0


VERSIONED = "SYSTEM VERSIONED"
"""What MariaDB calls a table that keeps its rows of before."""


def followed(session: Session, wanted: Filter, kinds: Sequence[str] = ("BASE TABLE", VERSIONED)) -> Iterator[Named]:
    """Tables that are there now and go into the feed."""
    marks, types = (",".join(["%s"] * len(each)) for each in (SYSTEM, kinds))
    found = session.rows(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE IN ({types})"
        f" AND TABLE_SCHEMA NOT IN ({marks}) ORDER BY 1, 2",
        (*kinds, *sorted(SYSTEM)),
    )
    return ((str(schema), str(table)) for schema, table in found if wanted.has(str(schema), str(table)))


def versioned(session: Session, wanted: Filter) -> str:
    """'' or why the rows that are there cannot be sent, in words: what they were before is not told by reading them."""
    found = next(followed(session, wanted, (VERSIONED,)), None)
    return f"Table {'.'.join(found)} is system-versioned: its rows of before cannot be read" if found else ""


# Topics of tables.


def unfit(prefix: str, tables: Collection[Named], partitions: int) -> str:
    """'' or why there cannot be a topic for each, in words."""
    if (1 + len(tables)) * partitions > MOST_PARTITIONS:
        return (
            f"{len(tables):,} tables with {partitions} partitions each, and those of {prefix}, are more than"
            f" {MOST_PARTITIONS:,} partitions."
        )
    return check_names(prefix, tables)


def open_lanes(
    broker: Broker, progress: Progress, lanes: Lanes, tables: Sequence[Named], protocol: str, since: int
) -> list[Lane]:
    """Topics for tables that came, of which nothing is recorded yet. Raises Terminal, Transient."""
    count = progress.partitions
    if words := unfit(progress.topic, [*lanes.by_table, *tables], count):
        raise Terminal(words, cure="Begin a feed that leaves tables out (--exclude).")
    made = make_lanes(broker, progress.topic, tables, protocol, partitions=count, since=since)
    for lane in made:
        lane.before = progress.generation - 1
    return made


def make_lanes(
    broker: Broker, prefix: str, tables: Sequence[Named], protocol: str, *, partitions: int, since: int
) -> list[Lane]:
    """Topics for these tables: made, or there already and empty. Raises Terminal, Transient."""
    named = {topic_name(prefix, *table): table for table in tables}
    there = broker.look(list(named))
    main = broker.find(prefix) if there else None
    for name in there:
        if words := unusable(broker, broker.find(name), main, protocol):
            raise Terminal(words, cure="Delete that topic, or leave its table out of a new feed.")
    broker.create_all([name for name in named if name not in there], partitions)
    if there:
        # Many partitions are made in several requests, and a run that was killed between them has left fewer.
        broker.grow(list(there), partitions)
    seen = broker.look(list(named))
    if missing := named.keys() - seen.keys():
        raise Transient(f"Topic {min(missing)} is not there yet.")
    return [
        Lane(
            name=name,
            id=seen[name].id,
            sent=Sent([End()] * max(partitions, seen[name].partitions)),
            table=table,
            since=since,
            partitions=partitions,
        )
        for name, table in named.items()
    ]


def unusable(broker: Broker, found: Topic | None, main: Topic | None, protocol: str) -> str:
    """'' or why rows of a table cannot go into this topic, in words. main: the one of the address, if it is there."""
    if found is None:
        return ""
    if holds(broker, found):
        return f"Topic {found.name} holds messages already, and none of them are this feed's."
    if found.is_compacted and protocol in KEYLESS:
        return f"Topic {found.name} is compacted; messages of {protocol} have no key that lasts."
    # Messages are cut, or refused, by what the topic of the address takes, whichever topic they go to (large.py).
    if main is not None and found.most_bytes < main.most_bytes:
        return f"Topic {found.name} takes less than topic {main.name} in one message (max.message.bytes)."
    return ""


def holds(broker: Broker, topic: Topic) -> bool:
    """Anything that is committed."""
    # What was aborted does not count, though it takes offsets: a beginning that was killed leaves some, and the same
    # command begins once more.
    bounds = broker.bounds_of((topic.name, number) for number in range(topic.partitions))
    starts = {each: low for each, (low, high) in bounds.items() if high > low}
    return any(True for _ in broker.behind_each(starts))


def keyed(broker: Broker, lane: Lane, of: Row | Ddl, messages: Sequence[Encoded]) -> Sequence[Encoded]:
    """A compacted topic takes nothing without a key, and of DDL the statement has one. Raises Terminal of a row."""
    if all(message.key is not None for message in messages):
        return messages
    if lane.is_compacted is None:
        found = broker.find(lane.name)
        lane.is_compacted = found is not None and found.is_compacted
    if isinstance(of, Row) and lane.is_compacted:
        raise Terminal(
            f"Table {of.layout.name} has no key, and topic {lane.name} is compacted: it takes no message without one.",
            cure="Set the topic's cleanup.policy to delete, and resume the feed.",
        )
    return [message for message in messages if message.key is not None] if lane.is_compacted else messages


# What nobody else may change.


class Missing(Transient):
    """A topic is not there; a leader that is new may say so for a moment."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Topic {name} is not there.")
        self.name = name


def check_topics(broker: Broker, progress: Progress, lanes: Lanes, wanted: int | None = None) -> Mapping[str, int]:
    """How many partitions each has. Raises Terminal, Missing.

    wanted: partitions that the operator asks for.
    """
    seen = broker.look([lane.name for lane in lanes])
    for lane in lanes:
        found = seen.get(lane.name)
        if found is None:
            raise Missing(lane.name)
        # By the id: under the same name it looks as it did, and is empty.
        if found.id != lane.id:
            raise Terminal(
                f"Topic {lane.name} was deleted and made again: what it held is gone.",
                cure="Begin a new feed into another topic.",
            )
        # Fewer are not asked for: Kafka removes none.
        if found.partitions > max(len(lane.sent.ends), progress.intent or 0, wanted or 0):
            raise Terminal(
                f"Topic {lane.name} has {found.partitions} partitions, the feed uses {progress.partitions}:"
                " somebody else has added some.",
                cure=f"Run `vreplication scale {progress.feed} --partitions {found.partitions}`.",
            )
    return {name: each.partitions for name, each in seen.items()}


# What stands behind the progress.

_Partition = tuple[str, int]
_ANEW = "The topic lost messages or was made anew: begin a new feed into another topic."
_OTHER = "What was sent is not known: begin a new feed into another topic."


def check_held(broker: Broker, lanes: Lanes) -> None:
    """Each partition is as long as the progress says, before anything is written into it. Raises Terminal.

    What was written a moment ago may be seen a moment later, where the leader is new.
    """
    deadline, ends = time.monotonic() + _VISIBLE_SECONDS, _ends(lanes)
    while ends:
        # To what is written: one transaction that was left open hides all behind it from who reads what is committed.
        found = broker.bounds_of(ends, is_committed=False)
        ends = {each: end for each, end in ends.items() if end.offset >= found[each][1]}
        if ends and time.monotonic() > deadline:
            topic, number = min(ends)
            words = (
                f"Partition {number} of {topic} ends at {found[topic, number][1]}, before what the feed has written."
            )
            raise Terminal(words, cure=_ANEW)
        if ends:
            time.sleep(0.02)


def await_closed(broker: Broker, lanes: Lanes) -> None:
    """No transaction is open in any partition. Raises Transient."""
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while found := broker.open_ones(lanes.numbered):
        if time.monotonic() > deadline:
            topic, number = min(found)
            raise Transient(f"A transaction in partition {number} of {topic} is open, and not this feed's.")
        time.sleep(0.05)


def find_tails(broker: Broker, lanes: Lanes, *, is_scaling: bool) -> None:
    """It is not sent again (P7). Raises Terminal, Transient.

    The last message that the progress tells of is read, too, unless retention has taken it: a topic that lost its end
    may be as long again by now. is_scaling: another generation may have begun.
    """
    by_name, bounds = {lane.name: lane for lane in lanes}, _bounds(broker, _ends(lanes))
    tails = _Tails(broker, _ends(lanes), bounds, is_scaling)
    for message in broker.behind_each(tails.starts):
        each, tags = (str(message.topic()), message.partition() or 0), tags_of(message)
        if not tails.is_recorded(each, message.offset() or 0, tags):
            tails.check(each, by_name[each[0]], tags)
            by_name[each[0]].sent.take(each[1], message.offset() or 0, tags)
    tails.check_recorded()


def _ends(lanes: Lanes) -> dict[_Partition, End]:
    return {(lane.name, number): end for lane in lanes for number, end in enumerate(lane.sent.ends)}


class _Tails:
    """What may stand in the partitions. starts: where reading begins."""

    def __init__(
        self, broker: Broker, ends: Mapping[_Partition, End], bounds: Mapping[_Partition, tuple[int, int]], ahead: bool
    ) -> None:
        self._broker, self._ahead = broker, ahead
        found = {each: max(low, ends[each].offset) for each, (low, _) in bounds.items()}
        self.starts = {each: start for each, start in found.items() if start < bounds[each][1]}
        self._recorded = {each: ends[each] for each, start in found.items() if start == ends[each].offset}
        self._cut = {each for each, start in found.items() if start > ends[each].offset + 1}
        """Their first messages are gone, and the numbers of these."""
        self._compacted: dict[str, bool] = {}

    def is_recorded(self, each: _Partition, offset: int, tags: Tags) -> bool:
        """It is the last one that the progress tells of."""
        end = self._recorded.pop(each, None)
        if end is None or (offset, tags.n) == (end.offset, end.n):
            return end is not None
        self._check_lost(each, end)
        return offset == end.offset

    def check_recorded(self) -> None:
        """Those that were not met."""
        for each, end in self._recorded.items():
            self._check_lost(each, end)

    def _check_lost(self, each: _Partition, end: End) -> None:
        topic, number = each
        if not self._is_compacted(topic):
            words = f"Partition {number} of {topic} does not hold what the feed has written last"
            raise Terminal(f"{words} (offset {end.offset}, number {end.n}).", cure=_ANEW)

    def check(self, each: _Partition, lane: Lane, tags: Tags) -> None:
        """Number and generation of what stands behind that."""
        (topic, number), last, missing = each, lane.sent.ends[each[1]].n, lane.sent.missing(each[1], tags)
        if missing < 0:
            raise Terminal(f"Partition {number} of {topic} holds number {tags.n} behind {last}.", cure=_OTHER)
        if missing > 0 and each not in self._cut and not self._is_compacted(topic):
            words = f"Messages of partition {number} of {topic} are missing: behind number {last} comes {tags.n}."
            raise Terminal(words, cure=_ANEW)
        self._cut.discard(each)
        if tags.generation > lane.generation + self._ahead:
            words = f"Partition {number} of {topic} is of generation {tags.generation}, and the feed's progress of"
            raise Terminal(f"{words} {lane.generation}: the progress was set back.", cure=_OTHER)

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            found = self._broker.find(topic)
            self._compacted[topic] = found is not None and found.is_compacted
        return self._compacted[topic]


def _bounds(broker: Broker, ends: Mapping[_Partition, End]) -> dict[_Partition, tuple[int, int]]:
    """What was committed a moment ago becomes readable a moment later. Raises Transient."""
    deadline = time.monotonic() + _VISIBLE_SECONDS
    found = broker.bounds_of(ends)
    while late := [each for each, end in ends.items() if end.offset >= found[each][1]]:
        if time.monotonic() > deadline:
            topic, number = late[0]
            raise Transient(f"A transaction of somebody else in partition {number} of {topic} is open.")
        time.sleep(0.02)
        found |= broker.bounds_of(late)
    return found
