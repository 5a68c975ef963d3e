"""Where consumers of a feed stand in its topic, on the server that they write to.

Any number of processes of a group may be at work, and any of them may be late: one that was taken for dead, whose
partition another one reads, wakes up and commits. So nothing that a process remembers counts; what counts is whether
the row of the partition is still what it began with.

What must stay true: an offset changes in the transaction of the rows that it tells of, and only from the value that
these were read behind; a generation, once begun, is never left backwards; a DDL's intent is committed before it is run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from vreplication.errors import Transient
from vreplication.mysql.session import DUPLICATE, Session, SqlError
from vreplication.settings import SIDECAR
from vreplication.state import layout, rows, sidecar

BEGINNING = -2
"""An offset: the first message that there is. librdkafka's own number for it."""


class Stand(StrEnum):
    """What a listener waits at."""

    NOWHERE = ""
    DDL = "ddl"
    ADMIN = "admin"
    ALIGN = "align"


class Key(NamedTuple):
    """Whose state it is."""

    consumer_group: str
    topic: str


class Align(NamedTuple):
    """The number of one: it stands before the row of that time and number (feed/conflicts.py)."""

    t: int
    number: int


NO_ALIGN = Align(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A row of feed_consumer."""

    mode: str
    topic_id: str
    generation: int
    partitions: int
    watermark: int
    ddl_done: int
    ddl_intent: int | None
    ddl_before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A row of feed_offset."""

    number: int
    next: int = BEGINNING
    n: int = 0
    resolved: int = 0
    generation: int = 0
    stand: Stand = Stand.NOWHERE
    stand_t: int = 0
    stand_count: int = 0
    aligned: Align = NO_ALIGN

    @property
    def begun_with(self) -> tuple[int, int, int]:
        """What must still be there when rows are committed."""
        return self.next, self.n, self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of one moment. offsets: of the partitions of the generation, in order."""

    group: Group
    offsets: tuple[Offset, ...]

    def all_at(self, stand: Stand) -> Offset | None:
        """What all of them wait at, if that is one and the same."""
        first = self.offsets[0]
        places = {(each.stand, each.stand_t, each.stand_count) for each in self.offsets}
        return first if first.stand is stand and len(places) == 1 else None

    @property
    def aligned(self) -> Align:
        """The last Align that all have reached."""
        return min(each.aligned for each in self.offsets)


class Elsewhere(Transient):
    """Another process has gone on from where this one began."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"Another consumer of group {key.consumer_group} has gone on in topic {key.topic}.")


def begin(session: Session, key: Key, mode: str, topic_id: str) -> None:
    """Unless the group has begun: it looks for the first generation in partition 0."""
    layout.complete(session)
    if rows.find(session, sidecar.feed_consumer, **key._asdict()) is not None:
        return
    nothing = {"generation": 0, "partitions": 1, "watermark": 0, "ddl_done": 0}
    try:
        with session.transaction():
            rows.add(session, sidecar.feed_consumer, **key._asdict(), mode=mode, topic_id=topic_id, **nothing)
            rows.add(session, sidecar.feed_offset, **key._asdict(), **_columns(Offset(number=0)))
    # Of two processes that begin at once the second finds the row of the first, which is as good.
    except SqlError as error:
        if error.code != DUPLICATE:
            raise


# As text: it is asked several times a second. One statement, so that all of it is of one moment.
_STATE = (
    "SELECT c.mode, c.topic_id, c.generation, c.partitions, c.watermark, c.ddl_done, c.ddl_intent, c.ddl_before,"
    " o.number, o.next_offset, o.n, o.resolved, o.generation, o.stand, o.stand_t, o.stand_count, o.aligned_epoch,"
    f" o.aligned_count FROM {SIDECAR}.feed_consumer c JOIN {SIDECAR}.feed_offset o"
    " ON o.consumer_group=c.consumer_group AND o.topic=c.topic AND o.number<c.partitions"
)
_LOAD = f"{_STATE} WHERE c.consumer_group=%s AND c.topic=%s ORDER BY o.number"
_ALL = f"{_STATE.replace('SELECT ', 'SELECT c.consumer_group, c.topic, ', 1)} ORDER BY 1, 2, o.number"


def load(session: Session, key: Key) -> State | None:
    """None: the group has not begun."""
    found = session.rows(_LOAD, key)
    if not found:
        return None
    return _state(found)


def read_all(session: Session) -> tuple[int, dict[Key, State]]:
    """The server's time in microseconds, and every group's state."""
    now = int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
    found: dict[Key, list[Sequence[Any]]] = {}
    for group, topic, *row in layout.look(session, lambda: session.rows(_ALL)) or ():
        found.setdefault(Key(str(group), str(topic)), []).append(row)
    return now, {key: _state(rows) for key, rows in found.items()}


def _state(found: Sequence[Sequence[Any]]) -> State:
    return State(group=_group(found[0]), offsets=tuple(_offset(row[8:]) for row in found))


def _group(row: Sequence[Any]) -> Group:
    mode, topic_id, generation, partitions, watermark, done, intent, before = row[:8]
    return Group(
        mode=str(mode),
        topic_id=str(topic_id),
        generation=int(generation),
        partitions=int(partitions),
        watermark=int(watermark),
        ddl_done=int(done),
        ddl_intent=None if intent is None else int(intent),
        ddl_before=before,
    )


def _offset(row: Sequence[Any]) -> Offset:
    number, following, n, resolved, generation, stand, t, count, align_t, aligned = row
    return Offset(
        number=int(number),
        next=int(following),
        n=int(n),
        resolved=int(resolved),
        generation=int(generation),
        stand=Stand(stand),
        stand_t=int(t),
        stand_count=int(count),
        aligned=Align(int(align_t), int(aligned)),
    )


def claim(session: Session, key: Key, begun: Collection[Offset]) -> None:
    """First of the transaction of some rows: nobody else goes on in these partitions before it ends.

    Raises Elsewhere where somebody has.
    """
    numbers = ",".join(str(each.number) for each in begun)
    sql = (
        f"SELECT number, next_offset, n, generation FROM {SIDECAR}.feed_offset"
        f" WHERE consumer_group=%s AND topic=%s AND number IN ({numbers}) ORDER BY number FOR UPDATE"
    )
    # In the order of the numbers, so that two processes of a group wait for each other and do not meet in a deadlock.
    there = {int(number): tuple(map(int, rest)) for number, *rest in session.rows(sql, key)}
    if any(there.get(each.number) != each.begun_with for each in begun):
        raise Elsewhere(key)


_MOVE = (
    f"UPDATE {SIDECAR}.feed_offset SET next_offset=%s, n=%s, resolved=%s, stand=%s, stand_t=%s, stand_count=%s,"
    " aligned_epoch=%s, aligned_count=%s"
    " WHERE consumer_group=%s AND topic=%s AND number=%s AND next_offset=%s AND n=%s AND generation=%s"
)


def move(session: Session, key: Key, begun: Offset, to: Offset) -> None:
    """In the transaction of the rows. The session counts found rows. Raises Elsewhere."""
    stand = (to.stand.value, to.stand_t, to.stand_count)
    values = (to.next, to.n, to.resolved, *stand, *to.aligned)
    # D1: in the rows' transaction and on condition of the old values. So a process that was taken for dead
    # and wakes up rolls its rows back, and no rebalance has to be trusted.
    if session.execute(_MOVE, (*values, *key, begun.number, *begun.begun_with)) != 1:
        raise Elsewhere(key)


def set_watermark(session: Session, key: Key, generation: int, t: int) -> None:
    """In the transaction of the rows up to then. Raises Elsewhere."""
    where = {**key._asdict(), "generation": generation}
    # By the generation: rows of one that has been left come again in the next, and are rolled back here. The session
    # counts found rows, so a time that stands there already is no lost row.
    if rows.change(session, sidecar.feed_consumer, where, watermark=t) != 1:
        raise Elsewhere(key)


def go_on(session: Session, key: Key, generation: int) -> None:
    """To the next generation, if all of this one stand at its Admin; done already is success.

    Whoever has read behind it has rows that come again, and finds another generation when he wants to commit them.
    """
    with session.transaction():
        # Each process finds by itself that all stand at the Admin: the second waits here, and finds the generation gone
        # by.
        _lock(session, key)
        state = load(session, key)
        at = state.all_at(Stand.ADMIN) if state else None
        if state is None or state.group.generation != generation or at is None:
            return
        # Rows behind the time of the Admin come once more, in the next generation.
        fields = {"generation": generation + 1, "partitions": at.stand_count, "watermark": at.stand_t}
        rows.change(session, sidecar.feed_consumer, key._asdict(), **fields)
        _begin_partitions(session, key, generation + 1, at)


def _begin_partitions(session: Session, key: Key, generation: int, at: Offset) -> None:
    """All that there ever were: who writes late from one that is not in use any more must find that out, too."""
    nowhere = {"stand": "", "stand_t": 0, "stand_count": 0}
    rows.change(session, sidecar.feed_offset, key._asdict(), generation=generation, resolved=at.stand_t, **nowhere)
    sql = f"SELECT number FROM {SIDECAR}.feed_offset WHERE consumer_group=%s AND topic=%s"
    there = {int(number) for (number,) in session.rows(sql, key)}
    for number in sorted(set(range(at.stand_count)) - there):
        new = Offset(number=number, generation=generation, resolved=at.stand_t)
        rows.add(session, sidecar.feed_offset, **key._asdict(), **_columns(new))


def _lock(session: Session, key: Key) -> None:
    sql = f"SELECT 1 FROM {SIDECAR}.feed_consumer WHERE consumer_group=%s AND topic=%s FOR UPDATE"
    session.rows(sql, key)
    # Those who are about to commit rows come first, or find another generation.
    session.rows(f"SELECT 1 FROM {SIDECAR}.feed_offset WHERE consumer_group=%s AND topic=%s FOR UPDATE", key)


def _columns(offset: Offset) -> dict[str, Any]:
    return {
        "number": offset.number,
        "next_offset": offset.next,
        "n": offset.n,
        "resolved": offset.resolved,
        "generation": offset.generation,
    }


def intend(session: Session, key: Key, group: Group, t: int, before: str) -> Group:
    """Note that a DDL is going to be run, and what its tables are before. Raises Elsewhere."""
    where = {**key._asdict(), "generation": group.generation, "ddl_done": group.ddl_done}
    if rows.change(session, sidecar.feed_consumer, where, ddl_intent=t, ddl_before=before) != 1:
        raise Elsewhere(key)
    return replace(group, ddl_intent=t, ddl_before=before)


def finish(session: Session, key: Key, group: Group) -> None:
    """The DDL that was intended has been run. Raises Elsewhere."""
    where = {**key._asdict(), "generation": group.generation, "ddl_intent": group.ddl_intent}
    fields = {"ddl_done": group.ddl_intent, "ddl_intent": None, "ddl_before": None}
    if rows.change(session, sidecar.feed_consumer, where, **fields) != 1:
        raise Elsewhere(key)
