"""One dump of a server's log for all who follow it.

Who comes while it is read begins with a dump of its own, from its own place, and changes over where both are at the
same place of the same server's log: so one reader is enough however many tables there are, and a table that comes late,
or that has to begin again, holds up no other.

What must stay true: a follower gets every group from its place on, once each and in log order, whichever dump it came
by; what stops one follower stops no other; the dump ends with the last who follows it; a lost connection is told to all
of them, behind all that was read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from vreplication.binlog.events import Group, Position, Stopped
from vreplication.binlog.reader import Item
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import Following
from vreplication.changes.channel import Closed
from vreplication.changes.router import View
from vreplication.changes.stream import FIRST
from vreplication.errors import Terminal, VReplicationError

log = logging.getLogger(__name__)

NEAR_BYTES = 4 << 20
"""So near to each other in the log two dumps must be before one takes over from the other."""
_JOIN_SECONDS = 0.05
_END_SECONDS = 10.0

OpenLog = Callable[[Position], Tailer]
"""A dump from this place on that follows our own tables and none of the application's."""


def joined(open_log: OpenLog, start: Position, following: Following) -> Tailer:
    tailer = open_log(start)
    try:
        tailer.join(following)
    except BaseException:
        tailer.close()
        raise
    return tailer


class Sink(Protocol):
    """Where a follower takes its groups in; called by one thread at a time."""

    def put(self, group: Group) -> None:
        """Raises Closed when nothing more is wanted."""

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, for this reason."""


@dataclass(slots=True, kw_only=True)
class _Follower:
    """following: its tables. sink: where its groups go. place: from where on it gets them here; None: not yet."""

    following: Following
    view: View
    sink: Sink
    not_before: Position
    joined: threading.Event = field(default_factory=threading.Event)
    place: Position | None = None


@dataclass(slots=True)
class _Turn:
    """The transaction that is being read. is_alone: all of its rows are one follower's; None: not begun."""

    is_alone: bool | None = None


class SharedReader:
    """Reads while somebody follows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, _Follower] = {}
        self._waiting: dict[str, _Follower] = {}
        self._numbers: dict[str, int] = {}
        self._tailer: Tailer | None = None
        self._thread: threading.Thread | None = None

    def number(self, name: str) -> int:
        """Under which a follower's table is watched: always the same."""
        with self._lock:
            return self._numbers.setdefault(name, FIRST + len(self._numbers))

    def begin(self, start: Position, follower: _Follower, open_log: OpenLog) -> bool:
        """Read for this follower, the first, from `start` on. False: somebody is followed already."""
        with self._lock:
            if self._tailer is not None:
                return False
            tailer = joined(open_log, start, follower.following)
            self._take_in(follower, start)
            self._tailer = tailer
            self._thread = threading.Thread(target=self._read, args=(tailer,), name="reader", daemon=True)
            self._thread.start()
            return True

    def is_near(self, own: Tailer) -> bool:
        """True where a dump of a follower's own is about where this one is, on the same server."""
        with self._lock:
            tailer = self._tailer
        if tailer is None:
            return False
        here, there = own.read_position, tailer.read_position
        is_same = own.server == tailer.server and here.file == there.file
        return is_same and abs(there.offset - here.offset) <= NEAR_BYTES

    def change_over(self, own: Tailer, follower: _Follower, is_over: Callable[[], bool]) -> Position | None:
        """Take it in at a place that its own dump has not passed; returns that place.

        To be called between two items of its own dump. None: nobody reads any more, or `is_over`.
        """
        follower.not_before = own.read_position
        with self._lock:
            if self._tailer is None or self._tailer.server != own.server:
                return None
            self._waiting[follower.following.name] = follower
        while not follower.joined.wait(_JOIN_SECONDS):
            if is_over() or not self._is_waiting(follower):
                self.leave(follower.following.name)
                break
        return follower.place

    def _is_waiting(self, follower: _Follower) -> bool:
        with self._lock:
            name = follower.following.name
            return follower.joined.is_set() or (self._tailer is not None and self._waiting.get(name) is follower)

    def leave(self, name: str) -> None:
        """It follows no more. The last one's leaving ends the dump, and is waited for."""
        with self._lock:
            self._waiting.pop(name, None)
            self._followers.pop(name, None)
            tailer, thread = self._tailer, self._thread
            is_last = tailer is not None and not self._followers and not self._waiting
            if is_last:
                self._tailer = self._thread = None
        if is_last and tailer and thread:
            tailer.close()
            thread.join(_END_SECONDS)

    # The reading thread.

    def _read(self, tailer: Tailer) -> None:
        turn = _Turn()
        try:
            for item in tailer:
                self._hand_on(tailer, item, turn)
                self._take_in_waiting(tailer)
                if tailer is not self._tailer:
                    return
        except VReplicationError as error:
            self._fail(tailer, error)
        except Exception as error:  # a fault of ours must end the workflows, not leave them waiting
            log.exception("reading the log failed")
            self._fail(tailer, Terminal(f"Reading the log failed: {type(error).__name__}: {error}"))
        finally:
            tailer.close()

    def _hand_on(self, tailer: Tailer, item: Item, turn: _Turn) -> None:
        with self._lock:
            followers = list(self._followers.values()) if tailer is self._tailer else []
        if isinstance(item, Stopped):
            self._stop(tailer, item, followers)
        elif isinstance(item, Group):
            if turn.is_alone is None:
                # Nobody joins inside a transaction; who leaves has no say in how its parts are counted.
                turn.is_alone = len(tailer.names) == 1
            for follower in followers:
                self._give(tailer, follower, item if turn.is_alone else follower.view.of(item))
            if item.is_last:
                turn.is_alone = None

    def _give(self, tailer: Tailer, follower: _Follower, group: Group) -> None:
        """What goes wrong with one follower's queue is no other's affair."""
        try:
            follower.sink.put(group)
            return
        except Closed:
            error = None
        except VReplicationError as found:
            error = found
        except Exception as found:
            log.exception("what was read could not be handed on")
            error = Terminal(f"Catch-up's queue failed: {type(found).__name__}: {found}")
        tailer.leave(follower.following.name)
        self._forget(follower)
        if error is not None:
            follower.sink.fail(error)

    def _stop(self, tailer: Tailer, item: Stopped, followers: list[_Follower]) -> None:
        tailer.leave(item.name)
        for follower in followers:
            if follower.following.name == item.name:
                self._forget(follower)
                follower.sink.fail(item.error)

    def _forget(self, follower: _Follower) -> None:
        with self._lock:
            if self._followers.get(follower.following.name) is follower:
                del self._followers[follower.following.name]

    def _take_in_waiting(self, tailer: Tailer) -> None:
        """At a place between two groups that none of them has passed."""
        with self._lock:
            if tailer is not self._tailer:
                return
            for name in [name for name in tailer.names if name and name not in self._followers]:
                tailer.leave(name)
            if not self._waiting or not tailer.is_between:
                return
            here = tailer.read_position
            for name, follower in list(self._waiting.items()):
                if follower.not_before <= here:
                    del self._waiting[name]
                    tailer.join(follower.following)
                    self._take_in(follower, here)

    def _take_in(self, follower: _Follower, place: Position) -> None:
        follower.place = place
        self._followers[follower.following.name] = follower
        follower.joined.set()

    def _fail(self, tailer: Tailer, error: VReplicationError) -> None:
        """Nobody is followed any more; whoever comes next begins anew."""
        with self._lock:
            if tailer is not self._tailer:
                return
            followers = list(self._followers.values())
            self._followers.clear()
            self._waiting.clear()
            self._tailer = self._thread = None
        for follower in followers:
            follower.sink.fail(error)


class Intake:
    """How the log comes to one follower: by the shared reader, after a dump of its own where that reads already."""

    def __init__(self, reader: SharedReader, following: Following, sink: Sink, open_log: OpenLog) -> None:
        self._reader, self._following, self._open_log = reader, following, open_log
        self._sink = _Gathering(sink)
        self._thread: threading.Thread | None = None
        self._own: Tailer | None = None
        self._is_closed = False

    def begin(self, start: Position) -> None:
        """Groups from `start` on go to the sink. Raises what opening a dump raises."""
        follower = self._follower(start)
        if self._reader.begin(start, follower, self._open_log):
            self._sink.open()
            return
        self._own = joined(self._open_log, start, self._following)
        self._thread = threading.Thread(target=self._read, args=(self._own,), name="own reader", daemon=True)
        self._thread.start()

    def _follower(self, place: Position) -> _Follower:
        view = View(self._following.name, frozenset(watch.number for watch in self._following.watches))
        return _Follower(following=self._following, view=view, sink=self._sink, not_before=place)

    def _read(self, own: Tailer) -> None:
        try:
            self._read_until_taken_over(own)
        except Closed:
            return
        except VReplicationError as error:
            self._sink.fail_own(error)
        except Exception as error:  # as in the shared reader
            log.exception("reading the log failed")
            self._sink.fail_own(Terminal(f"Reading the log failed: {type(error).__name__}: {error}"))
        finally:
            own.close()

    def _read_until_taken_over(self, own: Tailer) -> None:
        until: Position | None = None
        for item in own:
            if self._is_closed:
                return
            if isinstance(item, Stopped):
                raise item.error
            if isinstance(item, Group):
                if until is not None and until <= item.start:
                    # Between the two nothing stood but what is of no group: the shared reader brings this one.
                    break
                self._sink.put_own(item)
            if until is None and own.is_between and self._reader.is_near(own):
                until = self._reader.change_over(own, self._follower(own.read_position), lambda: self._is_closed)
            if until is not None and own.is_between and until <= own.read_position:
                break
        self._sink.open()

    def close(self) -> None:
        """Nothing more goes to the sink."""
        self._is_closed = True
        self._reader.leave(self._following.name)
        if self._own:
            self._own.close()
        if self._thread:
            self._thread.join(_END_SECONDS)


class _Gathering:
    """A sink that keeps what the shared reader brings until the own dump has come to where that began."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._kept: list[Group] = []
        self._error: BaseException | None = None
        self._is_open = False

    def put(self, group: Group) -> None:
        with self._lock:
            if not self._is_open:
                self._kept.append(group)
                return
        self._sink.put(group)

    def put_own(self, group: Group) -> None:
        """By the own dump."""
        self._sink.put(group)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if not self._is_open:
                self._error = error
                return
        self._sink.fail(error)

    def fail_own(self, error: BaseException) -> None:
        self._sink.fail(error)

    def open(self) -> None:
        """The own dump, if any, is level: what was kept, and from now on whatever comes."""
        with self._lock:
            for group in self._kept:
                self._sink.put(group)
            self._kept.clear()
            self._is_open = True
            error = self._error
        if error is not None:
            self._sink.fail(error)
