"""One dump of a server's log for all who follow it.

Who comes while it is read begins with a dump of its own, from its own place, and changes over where both are at the
same place of the same server's log: so one reader is enough however many tables there are, and a table that comes late,
or that has to begin again, holds up no other.

What must stay true: a follower gets every group from its place on, once each and in log order, whichever dump it came
by; what stops one follower stops no other; the dump ends with the last who follows it; a lost connection is told to all
of them, behind all that was read.
"""

from __future__ import annotations

import contextlib
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
from vreplication.clock import SYSTEM
from vreplication.errors import Terminal, Transient, VReplicationError

log = logging.getLogger(__name__)

NEAR_BYTES = 4 << 20
"""So near to each other in the log two dumps must be before one takes over from the other."""
_JOIN_SECONDS = 0.05
_PATIENCE_SECONDS = 5.0
"""A dump that is not read for a minute is ended by the server."""
# What may wait in memory for a follower that changes over; with more it is let go, and comes again by its own dump.
_KEPT_BYTES = 64 << 20
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

    def has_room(self, nbytes: int) -> bool:
        """False while `put` would have to wait."""

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, for this reason."""


@dataclass(slots=True, kw_only=True)
class _Follower:
    """following: its tables. sink: where its groups go. place: from where on it gets them here; None: not yet."""

    following: Following
    view: View
    sink: _Gathering
    not_before: Position
    joined: threading.Event = field(default_factory=threading.Event)
    place: Position | None = None


@dataclass(slots=True)
class _Turn:
    """The transaction that is being read. is_alone: all of its rows are one follower's, as of when it began.

    Nobody joins inside a transaction; who leaves inside has no say in whose its rows are.
    """

    is_alone: bool = True


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
            # Under the lock, so that who comes meanwhile finds a reader and opens no second one.
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
        # Offsets of two files say nothing of how much log lies between them.
        is_same = tailer.is_between and own.server == tailer.server and here.file == there.file
        return is_same and abs(there.offset - here.offset) <= NEAR_BYTES

    def change_over(self, own: Tailer, follower: _Follower, is_over: Callable[[], bool]) -> Position | None:
        """Take it in at a place that its own dump has not passed; returns that place.

        To be called between two items of its own dump. None: nobody reads any more, or `is_over`.
        """
        follower.not_before = own.read_position
        with self._lock:
            # Asked again: since `is_near` the dump may have ended, and another one begun, on a server that was promoted
            # meanwhile.
            if self._tailer is None or self._tailer.server != own.server:
                return None
            self._waiting[follower.following.name] = follower
        until = SYSTEM.monotonic() + _PATIENCE_SECONDS
        while not follower.joined.wait(_JOIN_SECONDS):
            if is_over() or not self._is_waiting(follower) or SYSTEM.monotonic() > until:
                # It may have been taken in at this moment: it is let go all the same.
                self.leave(follower.following.name)
                return None
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
        # Not under the lock, which the reading thread takes to hand on what it has read.
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
                if tailer.is_between:
                    turn.is_alone = len(tailer.names) == 1
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
            # A copy, and the lock is free again: `put` may wait for room, and whoever wants to join or leave would wait
            # with it.
            followers = list(self._followers.values()) if tailer is self._tailer else []
        if isinstance(item, Stopped):
            self._stop(tailer, item, followers)
        elif isinstance(item, Group):
            for follower in followers:
                # Where all rows are one follower's they need not be looked at one by one.
                group = item if turn.is_alone else follower.view.of(item)
                self._give(tailer, follower, group, is_waited_for=len(followers) == 1)

    def _give(self, tailer: Tailer, follower: _Follower, group: Group, *, is_waited_for: bool) -> None:
        """What goes wrong with one queue is no other's affair; who has no room comes again by its own dump."""
        try:
            # Alone it may wait; with others beside it a full queue would hold up all of them.
            if not follower.sink.has_room(group.nbytes, is_waited_for=is_waited_for):
                raise Transient("What waits to be applied is more than there is room for.")
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
            # Who has left since. No other thread tells the tailer: it is not made for that.
            for name in [name for name in tailer.names if name and name not in self._followers]:
                tailer.leave(name)
            # Nobody joins inside a transaction: its first rows have not been decoded for him.
            if not self._waiting or not tailer.is_between:
                return
            here = tailer.read_position
            for name, follower in list(self._waiting.items()):
                if _has_come(here, follower.not_before):
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
        # Not under the lock: a sink that is just being opened keeps us waiting here, and whoever leaves would wait as
        # well.
        for follower in followers:
            follower.sink.fail(error)


def _has_come(here: Position, to: Position) -> bool:
    """True where nothing that stands before `to` is still to come.

    A dump by GTID leaves out what was read before, wherever it stands: then the offset alone says nothing.
    """
    return to <= here and to.is_within(here)


class Intake:
    """How the log comes to one follower: by the shared reader, after a dump of its own where that reads already."""

    def __init__(self, reader: SharedReader, following: Following, sink: Sink, open_log: OpenLog) -> None:
        self._reader, self._following, self._open_log, self._sink = reader, following, open_log, sink
        self._shared: _Gathering | None = None
        self._thread: threading.Thread | None = None
        self._own: Tailer | None = None
        self._is_closed = False

    def begin(self, start: Position) -> None:
        """Groups from `start` on go to the sink. Raises what opening a dump raises."""
        follower = self._follower(start)
        if self._reader.begin(start, follower, self._open_log):
            with contextlib.suppress(Closed):
                follower.sink.open()
            return
        self._own = joined(self._open_log, start, self._following)
        self._thread = threading.Thread(target=self._read, args=(self._own,), name="own reader", daemon=True)
        self._thread.start()

    def _follower(self, place: Position) -> _Follower:
        """Each time with a gathering of its own: what comes late to the one before is lost there."""
        self._shared = _Gathering(self._sink)
        view = View(self._following.name, frozenset(watch.number for watch in self._following.watches))
        return _Follower(following=self._following, view=view, sink=self._shared, not_before=place)

    def _read(self, own: Tailer) -> None:
        try:
            self._read_until_taken_over(own)
        except Closed:
            return
        except VReplicationError as error:
            self._sink.fail(error)
        except Exception as error:  # as in the shared reader
            log.exception("reading the log failed")
            self._sink.fail(Terminal(f"Reading the log failed: {type(error).__name__}: {error}"))
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
                # Between the last one and this may stand what is of no group: the shared reader brings this one.
                until, is_level = self._compared(item.start, until)
                if is_level:
                    break
                self._sink.put(item)
            if not own.is_between:
                continue
            if until is None and self._reader.is_near(own):
                until = self._reader.change_over(own, self._follower(own.read_position), lambda: self._is_closed)
            until, is_level = self._compared(own.read_position, until)
            if is_level:
                break
        if until is not None and self._shared is not None:
            self._shared.open()

    def _compared(self, here: Position, until: Position | None) -> tuple[Position | None, bool]:
        """Up to where the own dump is to be read, if that is settled, and whether it has come to just there."""
        if until is None or not _has_come(here, until):
            return until, False
        if until.gtids is None or here.is_within(until):
            return until, True
        # What the shared reader will bring yet has come by this dump already, among what that one had left out.
        self._let_go()
        return None, False

    def _let_go(self) -> None:
        self._reader.leave(self._following.name)
        if self._shared:
            self._shared.close()

    def close(self) -> None:
        """Nothing more goes to the sink."""
        self._is_closed = True
        self._let_go()
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
        self._nbytes = 0
        self._error: BaseException | None = None
        self._is_open = self._is_closed = False

    def has_room(self, nbytes: int, *, is_waited_for: bool) -> bool:
        """is_waited_for: `put` may wait; until it is open it does not, and without a bound all of the log came here."""
        if not self._is_open:
            return self._nbytes <= _KEPT_BYTES
        return is_waited_for or self._sink.has_room(nbytes)

    def put(self, group: Group) -> None:
        """Raises Closed. Whoever closes waits for one that is under way."""
        with self._lock:
            if self._is_closed:
                raise Closed
            if self._is_open:
                self._sink.put(group)
            else:
                self._kept.append(group)
                self._nbytes += group.nbytes

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self._is_open and not self._is_closed:
                self._sink.fail(error)
            # Kept where it is not open yet: it is told behind all that was read before it (`open`).
            self._error = error

    def open(self) -> None:
        """The own dump, if any, is level: what was kept, and from now on whatever comes."""
        with self._lock:
            if self._is_closed:
                return
            self._is_open = True
            for group in self._kept:
                self._sink.put(group)
            self._kept.clear()
            if self._error is not None:
                self._sink.fail(self._error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._kept.clear()
