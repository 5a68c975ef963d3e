"""What both ways of consuming have in common: the listeners of this process, and what all listeners wait for together.

A listener that stops says so in the target; whoever sees all of them standing there does what is to be done then: runs
the DDL, begins the next generation. It is done once whoever does it, and all find it done when they look.

What must stay true: when somebody else has gone on (`Elsewhere`), all that is in memory is forgotten and read again
from what is stored.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vreplication.clock import SYSTEM
from vreplication.errors import Refused, Terminal, Transient, VReplicationError
from vreplication.feed.address import Address
from vreplication.feed.broker import Broker
from vreplication.feed.claims import Fetcher
from vreplication.feed.consume import definitions
from vreplication.feed.consume.asking import Asking
from vreplication.feed.consume.client import Client
from vreplication.feed.consume.listener import Ddl, Listener, check_dispatch
from vreplication.feed.consume.rows import Target
from vreplication.feed.consume.waiting import Memory
from vreplication.feed.failover import Successors
from vreplication.feed.messages import NotOurs, read_tags
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.settings import WORK_SECONDS
from vreplication.state import feed_members, feed_offsets, lease
from vreplication.state.feed_offsets import Elsewhere, Key, Stand, State

SAVE_SECONDS = 1.0
"""How often a place is saved to which no row has led."""
_IDLE_SECONDS = 30
"""A process that stands still keeps its locks for so long; one that lives asks more often."""
_LOCK_SECONDS = 20
_LOOK_SECONDS, _LOOK_STANDING_SECONDS, _TOPIC_SECONDS = 1.0, 0.1, 30.0
# With a look each 0.1 s and nothing kept at an Align 6 to 10 a second were passed; so it is 45 to 64 (4 partitions).
_LOOK_ALIGNING_SECONDS = 0.005
"""Others are mostly as far; where they are not, each look waits twice as long as the one before."""


@dataclass(slots=True)
class _Running:
    """A DDL under way on a connection of its own, so that this process goes on showing signs of life."""

    target: SourceUrl
    key: Key
    ddl: Ddl
    successors: Successors = dict
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A process that ends meanwhile is like one that crashes: the next one looks what has happened.
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            definitions.run(self.target, self.key, self.ddl, self.successors)
        except TimeoutError as error:
            self.error = Terminal(str(error))
        except BaseException as error:  # the main thread ends by it, whatever it is; else it would try for ever
            self.error = error


class Reading:
    """Between `open` and `close`. Not thread-safe."""

    mode = ""
    aligns = False

    def __init__(self, address: Address, url: SourceUrl, group: str, notify: Callable[[str], None]) -> None:
        self.address, self.url = address, url
        self.key = Key(group, address.topic)
        self.notify = notify
        self.fetcher, self.asking = Fetcher(), Asking()
        """Where values are that are not in their messages."""
        self.check: Callable[[], None] = lambda: None
        """Raises what ends it; asked within a long step."""
        self.listeners: dict[int, Listener] = {}
        self.memory = Memory()
        self._generation = -1
        self._held: set[int] = set()
        self._running: _Running | None = None
        self._looked_at = self._topic_looked_at = self._beaten_at = 0.0
        self._aligning = _LOOK_ALIGNING_SECONDS
        self.has_read = False
        """Something has come, so that what was away is back."""

    # Beginning.

    def open(self) -> None:
        """Raises Transient, Terminal."""
        self.broker = Broker(self.address)
        topic_id = self._topic_id()
        # Before the group is noted on the target, where it would keep this mode for good.
        if self.aligns:
            check_dispatch(self.address.topic, self._told_dispatch())
        self.session = self._connect()
        self.target = Target(self.session, self.asking, self.check)
        feed_offsets.begin(self.session, self.key, self.mode, topic_id)
        # Behind `begin`, which leaves a group as it is that has begun: of another topic, say, or in another mode.
        self._check(topic_id)
        feed_members.forget(self.session, self.key)
        self.beat()
        self.client = Client(self.address, self.key.consumer_group, told=self.notify, is_alone=not self.aligns)

    def _connect(self) -> Session:
        session = connect(
            self.url,
            read_timeout=WORK_SECONDS,
            lock_wait_seconds=_LOCK_SECONDS,
            idle_seconds=_IDLE_SECONDS,
            # An offset is moved where its row is as it was: an UPDATE counts what it has found, changed or not.
            found_rows=True,
        )
        # The source has checked them, row by row, and other tables of theirs may be in other partitions.
        session.execute_raw("SET SESSION foreign_key_checks=0")
        return session

    def beat(self, *, is_going: bool = True) -> None:
        """So that people see that somebody is at work."""
        now = time.monotonic()
        if is_going and now - self._beaten_at < feed_members.BEAT_SECONDS:
            return
        self._beaten_at = now
        # Signs of life are for people alone; without them rows are applied all the same.
        with contextlib.suppress(VReplicationError):
            feed_members.beat(self.session, self.key, lease.me(), is_going=is_going)

    def close(self) -> None:
        for each in (getattr(self, "client", None), getattr(self, "session", None), self.asking):
            # `open` may have failed before there were any.
            if each is not None:
                each.close()

    def _topic_id(self) -> str:
        found = self.broker.find(self.address.topic)
        if found is None:
            # Waited for: a consumer may be started before the feed, which makes the topic.
            raise Transient(f"There is no topic {self.address.topic}.")
        if found.is_compacted:
            raise Refused(
                f"Topic {self.address.topic} is compacted, so it does not hold every change.",
                cure="Feed it into a topic with cleanup.policy=delete.",
            )
        self._topic_looked_at = time.monotonic()
        return found.id

    def _told_dispatch(self) -> str:
        """By the first message, where that is there and one of a feed; each later Admin tells it, too."""
        topic = self.address.topic
        first = next(self.broker.behind(topic, {0: self.broker.bounds(topic, 0)[0]}), None)
        # Such a message ends the consumer when it is read, and is named by its offset then.
        with contextlib.suppress(NotOurs):
            return read_tags(first.headers()).dispatch if first is not None else ""
        return ""

    def _check(self, topic_id: str) -> None:
        group = self.state().group
        if group.topic_id != topic_id:
            raise Terminal(
                f"Topic {self.address.topic} is not the one that group {self.key.consumer_group} has read so far:"
                " it was deleted and made again.",
                cure="Begin again with a copy, a new feed and a new group.",
            )
        if group.mode != self.mode:
            raise Refused(
                f"Group {self.key.consumer_group} reads topic {self.address.topic} in mode {group.mode}.",
                cure=f"Use --mode {group.mode}, or another group and another target.",
            )

    def state(self) -> State:
        found = feed_offsets.load(self.session, self.key)
        if found is None:
            raise Terminal(f"The state of group {self.key.consumer_group} is not there any more.")
        return found

    def begin(self, numbers: Iterable[int] | None = None) -> None:
        """Forget everything, and read on from what is stored. numbers: partitions of this process; None: all."""
        state = self.state()
        group = state.group
        wanted = range(group.partitions) if numbers is None else set(numbers)
        self._clear()
        for offset in state.offsets:
            if offset.number in wanted:
                self.listeners[offset.number] = Listener(
                    self.key.topic,
                    offset,
                    generation=group.generation,
                    ddl_done=group.ddl_done,
                    memory=self.memory,
                    aligns=self.aligns,
                    fetch=self.fetcher.get,
                )
        self._generation = group.generation
        self.begun(state)
        if numbers is None or wanted:
            self.client.assign((each.number, each.position) for each in self.listeners.values())

    def _clear(self) -> None:
        for listener in self.listeners.values():
            # All queues count in one memory: what is not given back there would be taken as in use for ever.
            listener.queue.clear()
        self.listeners, self._held = {}, set()
        self.target.forget()

    # Reading on.

    def step(self) -> None:
        """Some messages, and what follows from them. Raises Transient, Ambiguous, Terminal."""
        try:
            self._read()
            self.apply()
            self._hold()
            self._look_if_due()
        except Elsewhere:
            self.begin_again()

    def _read(self) -> None:
        messages = self.client.read(self._standing_seconds)
        if messages:
            self.has_read = True
            reach("consume.read")
        for message in messages:
            listener = self.listeners.get(message.partition() or 0)
            if listener is not None:
                listener.take(message)

    def _hold(self) -> None:
        """Of partitions whose listener waits, or has enough, nothing more is read."""
        now = {number for number, listener in self.listeners.items() if listener.is_full or self.has_enough(listener)}
        if more := sorted(now - self._held):
            self.client.hold(more)
        for number in sorted(self._held - now):
            self.client.go_on(number, self.listeners[number].following)
        self._held = now

    # What all wait for.

    def _look_if_due(self) -> None:
        now = time.monotonic()
        is_standing = any(listener.stop for listener in self.listeners.values())
        if now - self._looked_at >= (self._standing_seconds if is_standing else _LOOK_SECONDS):
            self._looked_at = now
            self._aligning = min(2 * self._aligning, _LOOK_STANDING_SECONDS)
            self._look()
        # While the broker is away the client waits by itself; a question would fail, and begin the reading anew.
        if now - self._topic_looked_at >= _TOPIC_SECONDS and not self.client.is_away:
            self._check(self._topic_id())

    @property
    def _standing_seconds(self) -> float:
        """An Align is passed as soon as others have come to it; a DDL and an Admin come seldom."""
        stops = (listener.stop for listener in self.listeners.values())
        if any(stop is not None and stop.stand is Stand.ALIGN for stop in stops):
            return self._aligning
        self._aligning = _LOOK_ALIGNING_SECONDS
        return _LOOK_STANDING_SECONDS

    def _look(self) -> None:
        state = self.state()
        # Another process has begun the next one; what was read here behind the time of its Admin comes again there.
        if state.group.generation != self._generation:
            raise Elsewhere(self.key)
        for listener in self.listeners.values():
            # Only once its place is saved: by that the other processes count it as standing there.
            if listener.stop is not None and listener.stored.stand is listener.stop.stand:
                self._look_at(state, listener)

    def _look_at(self, state: State, listener: Listener) -> None:
        stop = listener.stop
        assert stop is not None
        if stop.ddl is not None:
            if state.group.ddl_done >= stop.t:
                self._pass(listener)
            elif (at := state.all_at(Stand.DDL)) is not None and at.stand_t == stop.t:
                self._run(stop.ddl)
        elif stop.stand is Stand.ADMIN and state.all_at(Stand.ADMIN) is not None:
            # Not passed as a DDL is: the next generation may have other partitions, each begun from what is stored.
            feed_offsets.go_on(self.session, self.key, self._generation)
            raise Elsewhere(self.key)
        elif stop.stand is Stand.ALIGN and state.aligned >= stop.align:
            self._pass(listener)

    def _pass(self, listener: Listener) -> None:
        is_ddl = listener.stop is not None and listener.stop.ddl is not None
        listener.go_on()
        if is_ddl:
            # At an Align tables are what they were, and which of them are one table on the target stays known.
            self.target.forget()
        self._aligning = _LOOK_ALIGNING_SECONDS

    def _run(self, ddl: Ddl) -> None:
        """Begin it, or look whether it has ended; that it is done is seen in the state."""
        if self._running is None:
            self._running = _Running(self.url, self.key, ddl, self.asking.successors)
        elif not self._running.thread.is_alive():
            error, self._running = self._running.error, None
            if error is not None:
                raise error

    # What either way does by itself.

    def begun(self, state: State) -> None:
        """The listeners are new."""

    def begin_again(self) -> None:
        raise NotImplementedError

    def apply(self) -> None:
        """Rows that may be."""
        raise NotImplementedError

    def has_enough(self, listener: Listener) -> bool:
        """Others have to come first."""
        return False

    def wait(self, seconds: float) -> None:
        SYSTEM.sleep(seconds)
