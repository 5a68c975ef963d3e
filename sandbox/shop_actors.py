"""The actors of sandbox.shop_workload: what each has, readers, and one who was not told where to write.

What must stay true: every accepted transaction is noted with who took it, and when; whatever an application must never
see is an error; a thread that dies is one too.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sandbox import shop
from sandbox.shop import Key, Order, Row
from vreplication.errors import VReplicationError
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

if TYPE_CHECKING:
    from sandbox.shop_workload import Workload

READ_ONLY, NO_TABLE = 1290, 1146
MAX_ERRORS = 20
SOURCE, TARGET = "source", "target"
Memory = dict[tuple[str, Key], Row | None]


class Missing(Exception):
    """A statement met other rows than were committed: something was lost or invented."""


class Accepted(NamedTuple):
    """A transaction that `side` has committed. sent, returned: of its COMMIT, by time.monotonic()."""

    side: str
    sent: float
    returned: float
    who: str


class Told:
    """Where writes go, by the file that the hook writes."""

    def __init__(self, file: Path, places: Mapping[str, SourceUrl]) -> None:
        self._file, self.places = file, dict(places)
        self._seen: tuple[int, int] | None = None
        self._side = SOURCE

    def write(self, side: str) -> None:
        """As the hook does."""
        place = self.places[side]
        self._file.write_text(json.dumps({"host": place.host, "port": place.port}))

    @property
    def side(self) -> str:
        found = os.stat(self._file)
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            to = json.loads(self._file.read_text())
            at = {(place.host, place.port): side for side, place in self.places.items()}
            self._side, self._seen = at[to["host"], to["port"]], seen
        return self._side


@dataclass(slots=True)
class Tally:
    """Of one thread; read by others, written by it alone."""

    accepted: list[Accepted] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    reads: int = 0
    longest_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


class Actor(threading.Thread):
    """A thread of the application."""

    def __init__(self, name: str, seed: int, work: Workload) -> None:
        super().__init__(name=name, daemon=True)
        self.tally = Tally()
        self._work, self._chance = work, random.Random(f"{seed}-{name}")
        self._sessions: dict[str, Session] = {}
        self.is_resting = threading.Event()

    def run(self) -> None:
        try:
            while not self._work.stopping.is_set() and len(self.tally.errors) < MAX_ERRORS:
                self._rest()
                self._step()
        except Exception as error:
            # A thread that dies unheard would look like a workload without errors.
            self.tally.errors.append(f"{self.name} died: {error!r}")
        finally:
            self.is_resting.set()
            for session in self._sessions.values():
                session.close()

    def _rest(self) -> None:
        """As long as writers are held."""

    def _step(self) -> None:
        raise NotImplementedError

    def _at(self, side: str) -> Session:
        if side not in self._sessions:
            self._sessions[side] = connect(self._work.told.places[side], found_rows=True)
        return self._sessions[side]

    def _drop(self, side: str) -> None:
        if session := self._sessions.pop(side, None):
            session.close()

    def _wait(self, seconds: float) -> None:
        self._work.stopping.wait(seconds)

    def _wrong(self, error: Exception) -> None:
        self.tally.errors.append(f"{self.name}: {error}")


class Writing(Actor):
    """One that writes, and rests when writers are held."""

    def __init__(self, name: str, seed: int, work: Workload) -> None:
        super().__init__(name, seed, work)
        self.memory: Memory = {}
        self.serial = 0

    def _rest(self) -> None:
        if self._work.held.is_set():
            self.is_resting.set()
            while self._work.held.is_set() and not self._work.stopping.is_set():
                self._wait(0.01)
            self.is_resting.clear()
            self._rested()

    def _rested(self) -> None:
        """Nobody waits for what was not begun."""

    def _note(self, side: str, sent: float) -> None:
        self.tally.accepted.append(Accepted(side, sent, time.monotonic(), self.name))


def write(session: Session, sql: str, values: Sequence[object]) -> None:
    if (touched := session.execute(sql, tuple(values))) != 1:
        raise Missing(f"{sql.partition(' ')[0]} touched {touched} rows instead of 1: {sql} {tuple(values)!r}")


def marks(values: Sequence[object]) -> str:
    return ",".join(["%s"] * len(values))


class Knocker(Writing):
    """Places an order on either server in turn, and asks nobody which of them takes orders."""

    def __init__(self, seed: int, work: Workload) -> None:
        super().__init__("knocker", seed, work)
        self._is_at_target = False

    def _step(self) -> None:
        self._is_at_target = not self._is_at_target
        side = TARGET if self._is_at_target else SOURCE
        row = self._draw()
        try:
            session = self._at(side)
            sent = time.monotonic()
            write(session, f"INSERT INTO orders ({','.join(Order._fields[1:])}) VALUES ({marks(row[1:])})", row[1:])
            self._note(side, sent)
            self.serial += 1
            id = int(session.value("SELECT LAST_INSERT_ID()"))
            self.memory["orders", (id,)] = row._replace(id=id)
        except SqlError as error:
            self.tally.refused[error.code] += 1
            if error.code not in (READ_ONLY, NO_TABLE):
                self._wrong(error)
        except LockWait:
            pass
        except (VReplicationError, Missing) as error:
            self._drop(side)
            self._wrong(error)
        self._wait(0.02)

    def _draw(self) -> Order:
        when = datetime(2026, 1, 1) + timedelta(seconds=self.serial)
        return Order(0, f"K{self.serial}", 1, "new", 0, Decimal(0), self.serial, when)


class Reader(Actor):
    """Looks where it is told to whether all of an order is there, and whether what nobody writes stays as it is."""

    def __init__(self, number: int, seed: int, work: Workload) -> None:
        super().__init__(f"reader-{number}", seed, work)

    def _step(self) -> None:
        side = self._work.told.side
        began = time.monotonic()
        try:
            wrong = self._look(self._at(side))
        except LockWait:
            return
        except VReplicationError as error:
            self._drop(side)
            self._wrong(error)
            return
        self.tally.reads += 1
        self.tally.longest_seconds = max(self.tally.longest_seconds, time.monotonic() - began)
        # Where it was told meanwhile to look elsewhere, what it saw here may be on its way already.
        if wrong and self._work.told.side == side:
            self.tally.errors.append(f"{self.name} on the {side}: {wrong}")
        self._wait(self._work.read_every)

    def _look(self, session: Session) -> str:
        size = self._work.size
        if self._chance.random() < 0.3:
            number = self._chance.randrange(0, size.orders, 8)
            id = shop.order_key(number)
            found = session.rows("SELECT * FROM orders WHERE id=%s", (id,))
            return "" if found == [shop.base_row("orders", (id,), size)] else f"order {id} reads as {found!r}"
        low = self._work.some_new_order() if self._chance.random() < 0.6 else self._chance.randrange(2 * size.orders)
        half = shop.half_written(session, f"o.id BETWEEN {low - 20} AND {low + 20}")
        return f"orders {half} are half written" if half else ""
