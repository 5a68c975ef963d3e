"""Writers with a fixed timetable, in a process of their own, and what each of their updates took.

What must stay true: an update's time counts from when it was due, not from when it was sent: a server that stands
still for a second makes the updates late that were due meanwhile, and they count as late. So do those that were due and
had not been sent at the end. The rows that were written are compared with what was written, at the end.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl

WRITERS = 4
_IDS = 100_000
_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """due, done: by time.monotonic(), in no order. lost: rows that do not hold what was last written to them."""

    due: array[float]
    done: array[float]
    retries: int
    errors: tuple[str, ...]
    lost: int

    def between(self, first: float, last: float) -> list[float]:
        """Milliseconds of the updates that were due in this span, in order of size."""
        both = zip(self.due, self.done, strict=True)
        return sorted(1000 * (done - due) for due, done in both if first <= due < last)


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Load:
    """`rate` updates of one row a second, all writers together; None: each as fast as the server answers."""

    def __init__(self, url: SourceUrl, name: str, *, rate: float | None, writers: int = WRITERS) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, url, name, rate, writers), daemon=True)

    def start(self) -> Load:
        """Returns when the writers write."""
        self._process.start()
        self._ours.recv()
        return self

    def stop(self) -> Written:
        self._ours.send(None)
        try:
            found: Written = self._ours.recv()
        finally:
            self._process.join(60)
        return found

    def end(self) -> None:
        """However it stands."""
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(10)

    def __enter__(self) -> Load:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Ids of its own, so that it knows what its rows hold."""

    url: SourceUrl
    name: str
    ids: list[int]
    offset: float
    interval: float | None
    due: array[float] = field(default_factory=lambda: array("d"))
    done: array[float] = field(default_factory=lambda: array("d"))
    last: dict[int, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    retries: int = 0
    errors: list[str] = field(default_factory=list)

    def run(self, began: float, stop: threading.Event) -> None:
        """A connection that is lost is opened again; the timetable does not wait for it."""
        chance = random.Random(self.offset)
        number = 0
        while not stop.is_set() and len(self.errors) < _MAX_ERRORS:
            try:
                with connect(self.url, lock_wait_seconds=50) as session:
                    while not stop.wait(max((due := self._due(began, number)) - time.monotonic(), 0.0)):
                        number += 1
                        self._write(session, due, chance)
            except VReplicationError as error:
                self.errors.append(str(error)[:200])
                stop.wait(0.05 if isinstance(error, Transient) else 0.2)
        self._give_up(began, number)

    def _give_up(self, began: float, number: int) -> None:
        """What was due and was never sent took this long at least."""
        now = time.monotonic()
        while self.interval is not None and (due := self._due(began, number)) < now:
            self.due.append(due)
            self.done.append(now)
            number += 1

    def _due(self, began: float, number: int) -> float:
        return time.monotonic() if self.interval is None else began + self.offset + number * self.interval

    def _write(self, session: Session, due: float, chance: random.Random) -> None:
        key, value = chance.choice(self.ids), f"{chance.getrandbits(160):040x}"
        self.unsure.add(key)
        while True:
            try:
                session.execute_raw(f"UPDATE {ident(self.name)} SET sig='{value}' WHERE id={key}")
                break
            except LockWait:
                self.retries += 1
        self.unsure.discard(key)
        self.last[key] = value
        self.due.append(due)
        self.done.append(time.monotonic())

    def lost(self, session: Session) -> int:
        """Of the rows whose last update was answered, how many hold something else."""
        keys = [key for key in self.last if key not in self.unsure]
        found: dict[int, str] = {}
        for first in range(0, len(keys), 2_000):
            some = ",".join(map(str, keys[first : first + 2_000]))
            found |= dict(session.rows(f"SELECT id, sig FROM {ident(self.name)} WHERE id IN ({some})"))
        return sum(found.get(key) != self.last[key] for key in keys)


def _main(pipe: Connection[Any, Any], url: SourceUrl, name: str, rate: float | None, count: int) -> None:
    with connect(url) as session:
        ids = _sample(session, name)
        writers = [_made(url, name, ids[n::count], rate, count, n) for n in range(count)]
        stop, began = threading.Event(), time.monotonic()
        threads = [threading.Thread(target=writer.run, args=(began, stop), daemon=True) for writer in writers]
        for thread in threads:
            thread.start()
        pipe.send(None)
        pipe.recv()
        stop.set()
        for thread in threads:
            thread.join()
    with connect(url) as session:
        pipe.send(_all(writers, session))


def _sample(session: Session, name: str) -> list[int]:
    """Ids spread over the whole table, in no order."""
    most = int(session.value(f"SELECT MAX(id) FROM {ident(name)}"))
    rows = session.rows(f"SELECT id FROM {ident(name)} WHERE id % {max(most // _IDS, 1)} = 0")
    ids = [int(key) for (key,) in rows]
    random.Random(1).shuffle(ids)
    return ids


def _made(url: SourceUrl, name: str, ids: list[int], rate: float | None, count: int, number: int) -> _Writer:
    interval = None if rate is None else count / rate
    return _Writer(url=url, name=name, ids=ids, offset=number / (rate or count), interval=interval)


def _all(writers: Sequence[_Writer], session: Session) -> Written:
    due, done = array("d"), array("d")
    for writer in writers:
        due.extend(writer.due)
        done.extend(writer.done)
    return Written(
        due=due,
        done=done,
        retries=sum(writer.retries for writer in writers),
        errors=tuple(error for writer in writers for error in writer.errors),
        lost=sum(writer.lost(session) for writer in writers),
    )
