"""A feed's beginning: its topics, the place in each log, and Admin(1) with the first progress.

What must stay true: a feed is begun by one Kafka transaction, or it has not begun; nothing is sent into a topic that
holds messages of others; a branch that is prepared at the beginning is read whole, or the feed does not begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from vreplication.binlog import position as places
from vreplication.binlog.events import Position
from vreplication.binlog.gtids import MariadbGtids, MysqlGtids
from vreplication.errors import Refused, Transient
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.lanes import EVERYTHING, Lanes, lanes_of
from vreplication.feed.messages import Admin, Place
from vreplication.feed.producer import FeedProducer
from vreplication.feed.progress import End, Filled, Followed, Progress
from vreplication.feed.terms import Feed
from vreplication.feed.topics import followed, holds, make_lanes, unfit
from vreplication.mysql.server import identity_of, is_mariadb, prepared_branches
from vreplication.mysql.session import Session


def prepare_topics(broker: Broker, feed: Feed) -> Topic:
    """Make what is missing. Raises Refused where the topic is another feed's, or of no use."""
    # Only closed segments are compacted, so one is closed each hour, whatever its size.
    broker.create(
        feed.progress_topic, 1, cleanup_policy="compact", segment_ms="3600000", min_cleanable_dirty_ratio="0.1"
    )
    _check_compacted(broker, feed)
    found = broker.find(feed.address.topic)
    if found is None:
        broker.create(feed.address.topic, feed.partitions or 1)
        found = broker.find(feed.address.topic)
    if found is None:
        raise Transient(f"Topic {feed.address.topic} is not there yet.")
    if found.is_compacted and feed.format.name == "open":
        raise Refused(
            f"Topic {found.name} is compacted, and messages of the protocol open have keys of their own.",
            cure="Use a topic with cleanup.policy=delete.",
        )
    return found


def _check_compacted(broker: Broker, feed: Feed) -> None:
    """Somebody else, or a broker by itself, may have made it. Raises Refused."""
    found = broker.find(feed.progress_topic)
    if found is not None and (found.is_cut or not found.is_compacted):
        raise Refused(
            f"Topic {feed.progress_topic} has delete in its cleanup.policy: the feed's progress would be lost in time.",
            cure="Set its cleanup.policy to compact alone.",
        )


def begin(
    feed: Feed, producer: FeedProducer, sessions: Sequence[Session], topic: Topic, check: Callable[[], None]
) -> Progress:
    """Generation 1, in one transaction with the first progress."""
    broker = Broker(feed.address)
    _check_empty(broker, topic)
    if feed.partitions not in (None, topic.partitions):
        raise Refused(
            f"Topic {topic.name} has {topic.partitions} partitions, not {feed.partitions}.",
            cure=f"Leave out --partitions, or scale later: `vreplication scale {feed.id} --partitions N`.",
        )
    sources = tuple(_begun(feed, session, check) for session in sessions)
    progress = Progress(
        feed=feed.id,
        sources=sources,
        # The least of all sources: each of them may still have a row behind it.
        resolved=min(each.assigned for each in sources),
        topic=topic.name,
        topic_id=topic.id,
        partitions=topic.partitions,
        ends=(End(),) * topic.partitions,
        rules=feed.rules,
        piece=producer.piece,
    )
    lanes = lanes_of(progress, is_each=feed.is_each)
    if feed.is_each:
        _add_topics(broker, feed, sessions, lanes, progress)
    return _first(feed, producer, progress, lanes)


def _add_topics(broker: Broker, feed: Feed, sessions: Sequence[Session], lanes: Lanes, progress: Progress) -> None:
    """Of all tables that are there. Raises Refused."""
    pairs = zip(sessions, feed.sources, strict=True)
    tables = list(dict.fromkeys(table for session, origin in pairs for table in followed(session, origin.filter)))
    if words := unfit(progress.topic, tables, progress.partitions):
        raise Refused(words, cure="Leave tables out (--exclude), or use one topic for all.")
    prefix, count, since = progress.topic, progress.partitions, progress.resolved
    for lane in make_lanes(broker, prefix, tables, feed.format.name, partitions=count, since=since):
        lanes.add(lane)


def _begun(feed: Feed, session: Session, check: Callable[[], None]) -> Followed:
    again_from, position = _start(feed, session, check)
    return Followed(
        source=identity_of(session),
        position=position.saved,
        again_from=again_from.saved if again_from else None,
        # A log that is read from an earlier place has times before now, and they may not be raised to it.
        assigned=_now_micros(session) if feed.start == "now" else 1,
        filled=Filled() if feed.is_snapshot else None,
    )


def _now_micros(session: Session) -> int:
    return int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))


def _first(feed: Feed, producer: FeedProducer, progress: Progress, lanes: Lanes) -> Progress:
    t, count = progress.resolved, progress.partitions
    admin = feed.format.admin(Admin(t=t, partitions=count, generation=1))
    producer.begin_from(progress, lanes)
    producer.know(list(lanes), count)
    for lane in lanes:
        producer.admin(lane, Place(t, 0), admin, partitions=count, generation=1)
        producer.resolved(lane, t, feed.format.resolved(t))
    # Progress comes last, when all else is acknowledged (producer.py).
    producer.flush()
    fields = {"ends": tuple(lanes.main.sent.ends), "topics": lanes.recorded(EVERYTHING)}
    begun = msgspec.structs.replace(progress, **fields)
    producer.commit(feed.progress_topic, begun)
    return begun


def _check_empty(broker: Broker, topic: Topic) -> None:
    """What is in it is another feed's, or somebody's. Raises Refused."""
    if holds(broker, topic):
        raise Refused(
            f"Topic {topic.name} holds messages already, and none of them are this feed's.",
            cure="Name a new topic, or an empty one.",
        )


def _start(feed: Feed, session: Session, check: Callable[[], None]) -> tuple[Position | None, Position]:
    """From where the log is read, and from where it is sent.

    A branch that was prepared before the second place and commits behind it is read whole: it was either prepared
    behind the first one, or would be listed in between.
    """
    mariadb = is_mariadb(session)
    if feed.start == "earliest":
        return None, _oldest(session, mariadb)
    if feed.start != "now":
        return None, _named(session, feed.start, mariadb)
    first = _here(session, mariadb)
    _wait_for_branches(session, mariadb, feed.xa_wait_seconds, check)
    return first, _here(session, mariadb)


def _oldest(session: Session, mariadb: bool) -> Position:
    found = places.retention(session).oldest
    if mariadb or str(session.value("SELECT @@global.gtid_mode")) != "ON":
        return found
    # What was purged counts as read; asked for it the server would refuse the dump (1236).
    purged = "".join(str(session.value("SELECT @@global.gtid_purged")).split())
    return Position.parse(f"{found} {purged}".strip())


def _here(session: Session, mariadb: bool) -> Position:
    """Without a transaction of ours in between: what is counted late is read again, and was sent by nobody."""
    return places.begin(session, mariadb)


def _named(session: Session, text: str, mariadb: bool) -> Position:
    """Raises Refused for what is no set of GTIDs of this flavor."""
    try:
        found = Position.parse(f"{places.current(session, mariadb)} {''.join(text.split())}")
        kind = MariadbGtids if mariadb else MysqlGtids
        if not isinstance(found.gtids, kind) or Position.parse(found.saved).gtids != found.gtids:
            raise ValueError("not of this server's kind")
        if isinstance(found.gtids, MysqlGtids):
            list(map(UUID, (source.partition(":")[0] for source in found.gtids.ranges)))
    except ValueError as error:
        raise Refused(f"--start {text!r} is no set of GTIDs ({error}).", cure="Use now, earliest, or GTIDs.") from None
    return found


def _wait_for_branches(session: Session, mariadb: bool, seconds: float, check: Callable[[], None]) -> None:
    waited = 0.0
    while found := prepared_branches(session, is_mariadb=mariadb):
        if waited >= seconds:
            raise Refused(
                f"{len(found)} XA transactions are prepared; their rows would be in no message.",
                cure="Commit or roll back the ones that XA RECOVER lists, or give --xa-wait more time.",
            )
        check()
        time.sleep(0.25)
        waited += 0.25
