"""A feed as a whole: it is begun once, and then run again and again until it is told to end.

What must stay true: a run begins with the fence (P1), then reads the progress that is committed; whatever can pass by
itself is waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from vreplication.binlog import position as places
from vreplication.binlog.events import Position
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
from vreplication.feed.beginning import begin, prepare_topics
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.cascades import Cascades
from vreplication.feed.catalog import Tables
from vreplication.feed.dispatch import Dispatcher, Weights
from vreplication.feed.feed import Run
from vreplication.feed.large import Fit, pieced
from vreplication.feed.producer import FeedProducer
from vreplication.feed.progress import PROGRESS, Filled, Progress, decode
from vreplication.feed.reading import Source
from vreplication.feed.snapshot import Snapshot
from vreplication.feed.spoken import Asker
from vreplication.feed.terms import Feed, Hooks, Settings, Status
from vreplication.feed.topics import Missing
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError, connect, is_passing
from vreplication.mysql.url import SourceUrl

log = logging.getLogger(__name__)

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between runs that ended by what may pass."""
_TOLD_SECONDS = 5.0
"""What has passed by then is not told."""
# On a quiet source heartbeats are all that a log brings, and with one source a run has its turn to commit, to scale
# and to end with each of them.
_HEARTBEAT_SECONDS = 0.1
# A leader that is new knows of a topic within moments. With no time at all a broker's restart would end the feed;
# without an end it would wait for ever for what somebody has deleted.
LOST_SECONDS = 30.0
_LAYOUTS = 1 << 24
"""Numbers of layouts for each source."""


class _NoProgress(Transient):
    """The progress is not found where it was."""


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
    """Since when each run has found no progress, or no topic."""

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
            # It is Transient to whoever waits for a lease. Here another process works on the feed, and to begin again
            # would fence that one in Kafka, in turn with it.
            except LeaseHeld:
                raise
            except (Transient, Ambiguous, Superseded, SqlError) as error:
                if isinstance(error, Superseded) and not self.hooks.is_ours():
                    raise
                # Somebody has killed a statement.
                is_killed = isinstance(error, SqlError)
                if is_killed and not is_passing(error):
                    raise
                self._end_if_gone(error)
                log.warning("the feed begins again at its progress: %s", error)
                if self._commits:
                    failures, told = 0, ""
                if str(error) != told:
                    told = str(error)
                    words = f"{error}. Trying again." if is_killed else f"{error} Waiting for it."
                    self._tell(words, 0.0 if failures else _TOLD_SECONDS)
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
        # Whatever else it is, nobody has seen meanwhile whether what was missing is there again.
        if not isinstance(error, _NoProgress):
            self._missing_since = 0.0
        if not isinstance(error, Missing):
            self._gone_since = 0.0
            return
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
        producer.check, producer.waits, producer.dispatch = self.hooks.check, self.notify, str(feed.rule)
        with ExitStack() as stack:
            sessions = [stack.enter_context(connect(each.url, use_database=False)) for each in feed.sources]
            check_same(broker, feed, sessions, may_move=not self._has_sent)
            stack.callback(producer.close)
            # P1: fenced first, and the progress is read behind that. Read before, it could be overtaken by a commit of
            # the former process, and its rows would come twice.
            producer.open()
            progress = self._progress(broker, producer, sessions, topic)
            sources = [stack.enter_context(each) for each in _sources(feed, sessions, progress, self.hooks.warn)]
            # Looked at again behind the fence: until then another process may have gone on elsewhere.
            moved = _moved(feed, progress, sessions, may_move=not self._has_sent)
            self._follow(broker, producer, sources, progress, moved)

    def _progress(self, broker: Broker, producer: FeedProducer, sessions: Sequence[Session], topic: Topic) -> Progress:
        found = broker.last(self.feed.progress_topic)
        # Begun anew in an empty topic it would go on where it can, and readers would take the gap for nothing.
        if found is None and (self.feed.was_begun or self._is_begun):
            raise self._lost()
        begun = None if found else begin(self.feed, producer, sessions, topic, self.hooks.check)
        self._is_begun, self._missing_since = True, 0.0
        if begun is not None:
            return begun
        progress = decode(found or b"")
        # P7: what stands behind the progress is known again by partition and place, which follow from these rules. By
        # others its rows would be sent once more.
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
            return _NoProgress(f"{words}.")
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
    # The log may tell of a schema that is gone by now, the URL's own, too.
    opened = partial(connect, origin.url, use_database=False)
    catalog = partial(
        Tables,
        filter=origin.filter,
        connect=opened,
        is_asking=feed.is_snapshot or feed.rule.way == "conflict",
    )
    tables = catalog(first=number * _LAYOUTS)
    asker = Asker(opened, origin.filter, is_alone=len(feed.sources) == 1)
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
            spoken=asker.header,
        )
    finally:
        asker.close()
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


def end(feed: Feed, seconds: float = 60.0, check: Callable[[], None] = lambda: None) -> None:
    """Fence whoever sends, so that nothing comes any more; topics stay. Raises Transient after so long.

    check: asked while the broker is waited for; what it raises ends that.
    """
    # The size is of no use here: nothing is sent.
    producer = FeedProducer(feed.address, feed.id, 1_000_000)
    producer.check = check
    producer.open(seconds)
    producer.close()


def read_progress(address: Address, feed: str) -> Progress | None:
    found = Broker(address).last(PROGRESS + feed)
    return None if found is None else decode(found)
