"""A feed as a whole: it is begun once, and then run again and again until it is told to end.

What must stay true: a run begins with the fence (P1), then reads the progress that is committed; a feed is begun by one
Kafka transaction, Admin(1) with the first progress, or it has not begun; whatever can pass by itself is waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from vreplication.binlog import position as places
from vreplication.binlog.events import Position
from vreplication.binlog.gtids import MariadbGtids, MysqlGtids
from vreplication.binlog.tailer import Tailer
from vreplication.errors import (
    Ambiguous,
    LeaseHeld,
    Refused,
    SourceChanged,
    Superseded,
    Terminal,
    Transient,
    VReplicationError,
)
from vreplication.feed import failover
from vreplication.feed.address import Address
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.cascades import Cascades
from vreplication.feed.catalog import Filter, Tables
from vreplication.feed.dispatch import Dispatcher, Rule, Weights
from vreplication.feed.feed import Run
from vreplication.feed.lanes import EVERYTHING, Lanes, lanes_of
from vreplication.feed.large import PARTS, Fit, Policy, pieced
from vreplication.feed.messages import Admin, Format, Place
from vreplication.feed.producer import FeedProducer
from vreplication.feed.progress import End, Filled, Followed, Progress, decode
from vreplication.feed.reading import Source
from vreplication.feed.snapshot import Snapshot
from vreplication.feed.terms import Hooks, Settings, Status
from vreplication.feed.topics import Missing, followed, holds, make_lanes, unfit
from vreplication.mysql.server import identity_of, is_mariadb, prepared_branches
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import MATCHER_BUDGET_BYTES

log = logging.getLogger(__name__)

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
_TOLD_SECONDS = 5.0
"""Seconds between runs that ended by what may pass."""
_HEARTBEAT_SECONDS = 0.1
LOST_SECONDS = 30.0


_LAYOUTS = 1 << 24
"""Numbers of layouts for each source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A server whose log the feed follows. filter: which tables of it; format: names the server in its messages."""

    url: SourceUrl
    filter: Filter
    format: Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """id: its transactional.id, too. sources: their order stays, for it decides the times of rows.

    start: now, earliest, or GTIDs (of one source). partitions None: as many as there are, or 1.
    """

    id: str
    sources: tuple[Origin, ...]
    address: Address
    rule: Rule
    home: Path
    partitions: int | None = None
    start: str = "now"
    commit_seconds: float = 0.2
    gap_seconds: float = 0.0
    xa_wait_seconds: float = 60.0
    budget_bytes: int = MATCHER_BUDGET_BYTES
    """What open transactions of all sources may take in memory."""
    is_snapshot: bool = False
    """Rows that are there at the start are sent, too."""
    is_each: bool = False
    """Each table has a topic of its own, named behind that of the address."""
    was_begun: bool = False
    """It has sent something before, whatever Kafka says."""
    are_cascades_ignored: bool = False
    """What foreign keys do and the server does not log may be missing."""
    large: Policy = PARTS
    most_bytes: int | None = None
    """Of a message, where that is less than the topic takes."""

    @property
    def progress_topic(self) -> str:
        return f"_vreplication.{self.id}"

    @property
    def rules(self) -> str:
        """What may not change while the feed lives, for a replay has to give the same."""
        own = ("topic-per-table",) if self.is_each else ()
        return " ".join(map(str, (self.format.name, self.rule, *(each.filter for each in self.sources), *own)))

    @property
    def format(self) -> Format:
        """Of what is said of no source."""
        return self.sources[0].format


@dataclass(slots=True, kw_only=True)
class Service:
    """hooks.check is asked several times a second. notify: is told once what is waited for, and when it goes on."""

    feed: Feed
    hooks: Hooks = field(default_factory=Hooks)
    notify: Callable[[str], None] = lambda text: None
    stop: threading.Event = field(default_factory=threading.Event)
    _commits: int = 0
    """Of the run under way."""
    _told: Callable[[Status], None] = lambda status: None
    _telling: threading.Timer = field(default_factory=lambda: threading.Timer(0.0, lambda: None))
    _is_begun: bool = False
    _has_sent: bool = False
    """This process has, from the servers that it was given."""
    _missing_since: float = 0.0
    _gone_since: float = 0.0

    def run(self) -> None:
        """Until hooks.check raises, or what cannot pass by itself. Raises Terminal."""
        inner, self.hooks = self.hooks, replace(self.hooks, told=self._note)
        self._told = inner.told
        try:
            self._run()
        finally:
            self._telling.cancel()

    def _run(self) -> None:
        failures, told = 0, ""
        while True:
            self.hooks.check()
            self._commits = 0
            try:
                self._run_once()
            except LeaseHeld:
                raise
            except (Transient, Ambiguous, Superseded) as error:
                if isinstance(error, Superseded) and not self.hooks.is_ours():
                    raise
                self._end_if_gone(error)
                log.warning("the feed begins again at its progress: %s", error)
                if self._commits:
                    failures, told = 0, ""
                if str(error) != told:
                    told = str(error)
                    self._tell(f"{error} Waiting for it.", 0.0 if failures else _TOLD_SECONDS)
                self.stop.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1
            else:
                return

    def _tell(self, text: str, seconds: float) -> None:
        """What passes within so many seconds is not worth a word; a broker that is frozen lets one call last longer."""
        self._telling.cancel()
        if not seconds:
            self.notify(text)
            return
        self._telling = threading.Timer(seconds, self.notify, (text,))
        self._telling.daemon = True
        self._telling.start()

    def _end_if_gone(self, error: VReplicationError) -> None:
        """A topic that stays away does not come back. Raises Terminal."""
        if isinstance(error, Missing):
            self._gone_since = self._gone_since or time.monotonic()
            if time.monotonic() - self._gone_since > LOST_SECONDS:
                raise Terminal(
                    f"Topic {error.name} was deleted: what it held is gone.",
                    cure="Begin a new feed into another topic.",
                ) from None

    def _note(self, status: Status) -> None:
        self._commits += 1
        self._has_sent = True
        self._telling.cancel()
        self._gone_since = 0.0
        self._told(status)

    def _run_once(self) -> None:
        feed = self.feed
        broker = Broker(feed.address)
        topic = prepare_topics(broker, feed)
        producer = FeedProducer(feed.address, feed.id, min(topic.most_bytes, feed.most_bytes or topic.most_bytes))
        producer.check, producer.waits = self.hooks.check, self.notify
        with ExitStack() as stack:
            sessions = [stack.enter_context(connect(each.url)) for each in feed.sources]
            check_same(broker, feed, sessions, may_move=not self._has_sent)
            stack.callback(producer.close)
            producer.open()
            progress = self._progress(broker, producer, sessions, topic)
            sources = [stack.enter_context(each) for each in _sources(feed, sessions, progress, self.hooks.warn)]
            # Looked at again behind the fence: until then another process may have gone on elsewhere.
            moved = _moved(feed, progress, sessions, may_move=not self._has_sent)
            self._follow(broker, producer, sources, progress, moved)

    def _progress(self, broker: Broker, producer: FeedProducer, sessions: Sequence[Session], topic: Topic) -> Progress:
        found = broker.last(self.feed.progress_topic)
        if found is None and (self.feed.was_begun or self._is_begun):
            raise self._lost()
        begun = None if found else begin(self.feed, producer, sessions, topic, self.hooks.check)
        self._is_begun, self._missing_since = True, 0.0
        if begun is not None:
            return begun
        progress = decode(found or b"")
        if progress.rules != self.feed.rules:
            raise Refused(
                f"Feed {self.feed.id} was begun with other tables, columns, topics, protocol or dispatch.",
                cure="Begin another feed, into another topic.",
            )
        return pieced(progress, self.feed.large, producer.piece)

    def _lost(self) -> VReplicationError:
        """A leader that is new may show a little less for a moment."""
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        words = f"Topic {self.feed.progress_topic} holds no progress of the feed any more"
        if now - self._missing_since < LOST_SECONDS:
            return Transient(f"{words}.")
        return Terminal(
            f"{words}: what was sent is not known.", cure="Begin a new feed, with another id and into another topic."
        )

    def _follow(
        self,
        broker: Broker,
        producer: FeedProducer,
        sources: Sequence[Source],
        progress: Progress,
        moved: Progress | None,
    ) -> None:
        feed = self.feed
        settings = Settings(
            feed=feed.id,
            progress_topic=feed.progress_topic,
            format=feed.format,
            commit_seconds=feed.commit_seconds,
            gap_seconds=feed.gap_seconds,
            fit=Fit(policy=feed.large, piece=progress.piece, feed=feed.id, topic=feed.address.topic),
            is_each=feed.is_each,
        )
        run = Run(
            settings=settings,
            broker=broker,
            producer=producer,
            sources=sources,
            hooks=self.hooks,
            progress=progress,
            moved=moved,
        )
        run.go()


def _sources(
    feed: Feed, sessions: Sequence[Session], progress: Progress, warn: Callable[[str], None]
) -> Iterator[AbstractContextManager[Source]]:
    for number, (session, at) in enumerate(zip(sessions, progress.sources, strict=True)):
        yield _source(feed, session, number, at.filled, warn)


@contextmanager
def _source(
    feed: Feed, session: Session, number: int, filled: Filled | None, warn: Callable[[str], None]
) -> Iterator[Source]:
    origin = feed.sources[number]
    catalog = partial(
        Tables,
        filter=origin.filter,
        connect=lambda: connect(origin.url),
        is_asking=feed.is_snapshot or feed.rule.way == "conflict",
    )
    tables = catalog(first=number * _LAYOUTS)
    is_folded = bool(int(session.value("SELECT @@lower_case_table_names")))
    cascades = Cascades(
        session=session,
        filter=origin.filter,
        feed=feed.id,
        is_ignored=feed.are_cascades_ignored,
        is_folded=is_folded,
        warn=warn,
    )
    try:
        yield Source(
            number=number,
            count=len(feed.sources),
            tables=tables,
            # Layouts of both have different numbers, by which formats know them.
            tables_ahead=lambda: catalog(first=(len(feed.sources) + number) * _LAYOUTS),
            dispatcher=Dispatcher(feed.rule, 1, Weights(session), warn),
            format=origin.format,
            open_log=lambda start: _open_log(origin.url, session, start),
            home=feed.home / str(number),
            budget_bytes=feed.budget_bytes // len(feed.sources),
            snapshot=Snapshot(origin.url, feed.id, tables, filled) if filled and not filled.is_done else None,
            is_folded=is_folded,
            check_ddl=cascades.check,
        )
    finally:
        tables.close()


def _open_log(url: SourceUrl, session: Session, start: Position) -> Tailer:
    if not places.exists(session, start):
        raise SourceChanged(
            f"The source does not hold its binary log from {start} on any more.",
            cure="What was changed since is lost to the feed: begin another one, into another topic.",
        )
    return Tailer(
        url,
        start,
        [],
        server_id=places.draw_server_id(session),
        is_mariadb=is_mariadb(session),
        heartbeat_seconds=_HEARTBEAT_SECONDS,
    )


def check_same(broker: Broker, feed: Feed, sessions: Sequence[Session], *, may_move: bool = True) -> None:
    """Before anybody is fenced: what the progress of this id tells of is this feed. Raises Refused.

    may_move: the sources are those of the progress, or may go on in their places.
    """
    found = broker.last(feed.progress_topic)
    if found is None:
        return
    progress = decode(found)
    if progress.topic != feed.address.topic:
        raise Refused(
            f"Feed {feed.id} sends to topic {progress.topic}, not {feed.address.topic}.",
            cure="Give the new one another --workflow id.",
        )
    _moved(feed, progress, sessions, may_move=may_move)


def _moved(feed: Feed, progress: Progress, sessions: Sequence[Session], *, may_move: bool) -> Progress | None:
    """As `failover.moved`. Who has sent from the former server does not take the feed back there. Raises Refused."""
    found = failover.moved(progress, sessions)
    if found is not None and not may_move:
        raise Refused(
            f"Feed {feed.id} has gone on with another server than this process reads.",
            cure="Nothing is to be done: this process has stopped.",
        )
    return found


def prepare_topics(broker: Broker, feed: Feed) -> Topic:
    """Make what is missing. Raises Refused where the topic is another feed's, or of no use."""
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


def end(feed: Feed, seconds: float = 60.0, check: Callable[[], None] = lambda: None) -> None:
    """Fence whoever sends, so that nothing comes any more; topics stay. Raises Transient after so long.

    check: asked while the broker is waited for; what it raises ends that.
    """
    producer = FeedProducer(feed.address, feed.id, 1_000_000)
    producer.check = check
    producer.open(seconds)
    producer.close()


def read_progress(address: Address, feed: str) -> Progress | None:
    found = Broker(address).last(f"_vreplication.{feed}")
    return None if found is None else decode(found)
