"""A live application on the three tables of sandbox.shop, which writes where it is told to (sandbox.on_switch).

Writers keep orders with their items, and customers; each has a till, a row that counts its transactions. Readers look
whether all of an order is there. A knocker was told nothing: it tries both servers in turn, all the time.

What must stay true:
- A row enters the memory when its COMMIT has returned. An UPDATE or DELETE names the serial number of the row's last
  write: a write that was lost, or made twice, is met by the next one.
- Every accepted transaction is noted with who took it, and when; whatever an application must never see is an error.
- What a writer draws follows from the seed and its number alone.
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
from typing import NamedTuple, TypeVar

from sandbox import shop
from sandbox.shop import COLUMNS, KEYS, Customer, Item, Key, Order, Row, Size
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

READ_ONLY, NO_TABLE = 1290, 1146
MAX_ERRORS = 20
SOURCE, TARGET = "source", "target"
_MOST_LINES = 6
_AGAIN_SECONDS = 0.003
R = TypeVar("R", Order, Item, Customer)
Memory = dict[tuple[str, Key], Row | None]


class Missing(Exception):
    """A statement met other rows than were committed: something was lost or invented."""


class _RollBack(Exception):
    """The writer has chosen to roll this transaction back."""


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


class _Actor(threading.Thread):
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


class _Writing(_Actor):
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


class Writer(_Writing):
    """Transaction after transaction, over two tables at least: each moves the till's number on by one."""

    def __init__(self, number: int, seed: int, work: Workload) -> None:
        super().__init__(f"writer-{number}", seed, work)
        self._number = number
        self._pending: Memory = {}
        self._new: list[int] = []
        self.orders: list[int] = []
        """Keys of orders that are not base orders; some are gone."""
        self._count = 0
        self._placed = self._last_id = 0
        self._began: float | None = None
        self._due = time.monotonic()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _rested(self) -> None:
        self._began = None
        self._due = time.monotonic()

    def _step(self) -> None:
        self._began = self._began or time.monotonic()
        side = self._work.told.side
        self._pending, self._new, self._placed = {}, [], self._last_id
        try:
            self._transaction(side)
            self._done()
        except _RollBack:
            self._began = None
        except LockWait:
            self._drop(side)
        except SqlError as error:
            self._refused(side, error)
        except Transient as error:
            self._drop(side)
            self._wrong(error)
            self._wait(0.05)
        except (VReplicationError, Missing) as error:
            self._drop(side)
            self._wrong(error)

    def _refused(self, side: str, error: SqlError) -> None:
        self._at(side).rollback()
        if error.code != READ_ONLY:
            self._wrong(error)
        self.tally.refused[error.code] += 1
        self._wait(_AGAIN_SECONDS)

    def _done(self) -> None:
        now = time.monotonic()
        self.tally.longest_seconds = max(self.tally.longest_seconds, now - (self._began or now))
        self._began = None
        # After a stall the writer catches up, by half a second's worth at most.
        self._due = max(self._due + 1 / self._work.rate, now - 0.5)
        self._wait(max(0.0, self._due - now))

    def _transaction(self, side: str) -> None:
        session = self._at(side)
        session.execute_raw("BEGIN")
        self.serial += 1
        try:
            self._ring(session)
            for act in self._chance.choices(_ACTS, weights=_WEIGHTS, k=self._chance.choice((1, 1, 2))):
                act(self, session)
            if self._chance.random() < 0.04:
                raise _RollBack
            sent = time.monotonic()
            session.execute_raw("COMMIT")
        except BaseException:
            self.serial -= 1
            session.rollback()
            raise
        self._note(side, sent)
        self.memory.update(self._pending)
        self.orders += self._new
        self._last_id = self._placed

    def _ring(self, session: Session) -> None:
        till = self._get("customers", (-self._number - 1,))
        assert isinstance(till, Customer)
        profile = _json({"shift": self.serial // 10, "last": self._mark(), "Öre": [self.serial, None, True]})
        self._change(session, "customers", till, till._replace(profile=profile, updated_at=self._now()))

    # -- acts ---------------------------------------------------------------------------------------------------------

    def _place(self, session: Session) -> None:
        items = [self._item(0, line) for line in range(1, self._chance.randint(1, 3) + 1)]
        order = self._order(len(items), sum((item.cost for item in items), Decimal(0)))
        _write(session, f"INSERT INTO orders ({','.join(Order._fields[1:])}) VALUES ({_marks(order[1:])})", order[1:])
        id = int(session.value("SELECT LAST_INSERT_ID()"))
        # A value whose insert was rolled back may come again: seen on MariaDB around a plain ALTER.
        if id <= self._last_id:
            raise Missing(f"AUTO_INCREMENT gave {id} after {self._last_id}: a key that was in use comes again")
        self._placed = id
        self._pending["orders", (id,)] = order._replace(id=id)
        self._new.append(id)
        for item in items:
            self._put(session, "items", item._replace(order_id=id))

    def _alter_line(self, session: Session) -> None:
        if (found := self._order_with_items()) is None:
            return
        order, items = found
        item = self._chance.choice(items)
        other = item._replace(quantity=self._chance.randint(1, 9), sku=f"sku-{self._mark()}"[:20])
        self._change(session, "items", item, other)
        self._change(session, "orders", order, order._replace(total=order.total - item.cost + other.cost))

    def _add_line(self, session: Session) -> None:
        if (found := self._order_with_items()) is None or len(found[1]) >= _MOST_LINES:
            return
        order, items = found
        free = next(line for line in range(1, _MOST_LINES + 1) if all(item.line != line for item in items))
        item = self._item(order.id, free)
        self._put(session, "items", item)
        more = order._replace(total=order.total + item.cost, line_count=order.line_count + 1)
        self._change(session, "orders", order, more)

    def _drop_line(self, session: Session) -> None:
        if (found := self._order_with_items()) is None:
            return
        order, items = found
        item = self._chance.choice(items)
        self._remove(session, "items", item)
        less = order._replace(total=order.total - item.cost, line_count=order.line_count - 1)
        self._change(session, "orders", order, less)

    def _cancel(self, session: Session) -> None:
        if (found := self._order_with_items()) is None:
            return
        for item in found[1]:
            self._remove(session, "items", item)
        self._remove(session, "orders", found[0])

    def _renumber(self, session: Session) -> None:
        """The key changes: into a gap between base orders, or below them all; its items go with it."""
        if (found := self._order_with_items()) is None:
            return
        order, items = found
        self._count += 1
        id = order.id + 1 if order.id % 2 else -(self._count * 64 + self._number + 1)
        if id > 2 * self._work.size.orders - 1 or self._get("orders", (id,)) is not None:
            return
        self._change(session, "orders", order, order._replace(id=id))
        self._new.append(id)
        for item in items:
            self._change(session, "items", item, item._replace(order_id=id))

    def _swap(self, session: Session) -> None:
        """Two orders exchange their unique codes, by way of a third."""
        one, two = self._some_order(), self._some_order()
        if one is None or two is None or one.id == two.id:
            return
        between = self._change(session, "orders", one, one._replace(code=f"S{self._mark()}"))
        self._change(session, "orders", two, two._replace(code=one.code))
        self._change(session, "orders", between, between._replace(code=two.code))

    def _edit_customer(self, session: Session) -> None:
        customer = self._some_customer()
        about = self._chance.choice((None, "", f"naïve 💶 {self._mark()} " * self._chance.randint(1, 60)))
        profile = {"level": self._chance.randrange(9), "city": f"Österåker {self._mark()}", "tags": [self._mark(), 7]}
        if customer is not None:
            new = customer._replace(about=about, profile=_json(profile), updated_at=self._now())
            self._change(session, "customers", customer, new)

    def _move_customer(self, session: Session) -> None:
        """Away and back again under another key, or for good."""
        if (customer := self._some_customer()) is None:
            return
        self._remove(session, "customers", customer)
        if self._chance.random() < 0.7:
            self._put(session, "customers", customer._replace(name=f"again {self._mark()}", serial=self.serial))

    # -- what is where ------------------------------------------------------------------------------------------------

    def _get(self, table: str, key: Key) -> Row | None:
        """What is committed, or written by this transaction, under a key of ours."""
        for known in (self._pending, self.memory):
            if (table, key) in known:
                return known[table, key]
        return shop.base_row(table, key, self._work.size)

    def _some_order(self) -> Order | None:
        for _ in range(16):
            if self.orders and self._chance.random() < 0.4:
                id = self._chance.choice(self.orders)
            else:
                id = shop.order_key(self._mine(self._work.size.orders))
            found = self._get("orders", (id,))
            if isinstance(found, Order):
                return found
        return None

    def _some_customer(self) -> Customer | None:
        found = self._get("customers", (self._mine(self._work.size.customers) + 1,))
        return found if isinstance(found, Customer) else None

    def _mine(self, count: int) -> int:
        """Number of some base row that this writer alone writes."""
        while True:
            number = self._chance.randrange(count)
            if number // 8 % self._work.writer_count == self._number and not shop.is_read_only(number):
                return number

    def _order_with_items(self) -> tuple[Order, list[Item]] | None:
        if (order := self._some_order()) is None:
            return None
        found = [self._get("items", (order.id, line)) for line in range(1, _MOST_LINES + 1)]
        items = [item for item in found if isinstance(item, Item)]
        return (order, items) if items else None

    def _order(self, lines: int, total: Decimal) -> Order:
        customer, status = self._chance.randrange(self._work.size.customers) + 1, self._chance.choice(shop.STATUSES)
        return Order(0, f"W{self._mark()}", customer, status, lines, total, self.serial, self._now())

    def _item(self, order: int, line: int) -> Item:
        price = Decimal(self._chance.randrange(100_000)) / 100
        return Item(order, line, f"sku-{self._mark()}"[:20], self._chance.randint(1, 9), price, self.serial)

    def _mark(self) -> str:
        self._count += 1
        return f"{self._number}-{self._count}-{self._chance.getrandbits(24):06x}"

    def _now(self) -> datetime:
        """Each write has a time of its own, which says nothing about the clock: runs with one seed look alike."""
        self._count += 1
        return datetime(2025, 1, 1) + timedelta(microseconds=1_000_003 * self._count)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _put(self, session: Session, table: str, row: Row) -> None:
        _write(session, f"INSERT INTO {table} ({','.join(COLUMNS[table])}) VALUES ({_marks(row)})", row)
        self._pending[table, shop.key_of(table, row)] = row

    def _change(self, session: Session, table: str, old: R, new: R) -> R:
        """Sets the serial number as well. Raises Missing where the row is not as it was left."""
        new = new._replace(serial=self.serial)
        names = [name for name in COLUMNS[table] if getattr(old, name) != getattr(new, name)]
        if not names:
            return new
        where = _where(table, old)
        sets = ",".join(f"{name}=%s" for name in names)
        to: list[object] = [getattr(new, name) for name in names]
        _write(session, f"UPDATE {table} SET {sets} WHERE {where[0]}", [*to, *where[1]])
        self._pending[table, shop.key_of(table, old)] = None
        self._pending[table, shop.key_of(table, new)] = new
        return new

    def _remove(self, session: Session, table: str, row: Row) -> None:
        where, values = _where(table, row)
        _write(session, f"DELETE FROM {table} WHERE {where}", values)
        self._pending[table, shop.key_of(table, row)] = None


_ACTS = (
    Writer._place,
    Writer._alter_line,
    Writer._add_line,
    Writer._drop_line,
    Writer._cancel,
    Writer._renumber,
    Writer._swap,
    Writer._edit_customer,
    Writer._move_customer,
)
_WEIGHTS = (5, 5, 2, 2, 2, 2, 1, 4, 1)


def _write(session: Session, sql: str, values: Sequence[object]) -> None:
    if (touched := session.execute(sql, tuple(values))) != 1:
        raise Missing(f"{sql.partition(' ')[0]} touched {touched} rows instead of 1: {sql} {tuple(values)!r}")


def _where(table: str, row: Row) -> tuple[str, tuple[object, ...]]:
    names = (*KEYS[table], "serial")
    return " AND ".join(f"{name}=%s" for name in names), tuple(getattr(row, name) for name in names)


def _marks(values: Sequence[object]) -> str:
    return ",".join(["%s"] * len(values))


def _json(value: object) -> str:
    """In the one form in which texts are compared."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


class Knocker(_Writing):
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
            _write(session, f"INSERT INTO orders ({','.join(Order._fields[1:])}) VALUES ({_marks(row[1:])})", row[1:])
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


class Reader(_Actor):
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


class Workload:
    """Start once, stop once; `hold` keeps all writers between two transactions, readers go on."""

    def __init__(
        self,
        told: Told,
        size: Size,
        *,
        writers: int = 2,
        readers: int = 1,
        seed: int = 1,
        rate: float = 60.0,
        read_every: float = 0.005,
    ) -> None:
        """rate: transactions a second of each writer. size: with a till for each."""
        self.told, self.size, self.rate, self.read_every, self.writer_count = told, size, rate, read_every, writers
        self.stopping, self.held = threading.Event(), threading.Event()
        self._writers = [Writer(number, seed, self) for number in range(writers)]
        self.knocker = Knocker(seed, self)
        self._writing: list[_Writing] = [*self._writers, self.knocker]
        self._readers = [Reader(number, seed, self) for number in range(readers)]
        self._actors: list[_Actor] = [*self._writing, *self._readers]
        self._chance = random.Random(seed)

    @property
    def expected(self) -> Memory:
        """The row last committed under each key that was touched, None where it was deleted."""
        return {key: row for actor in self._writing for key, row in actor.memory.items()}

    @property
    def accepted(self) -> list[Accepted]:
        return [one for actor in self._writing for one in list(actor.tally.accepted)]

    def accepted_by(self, side: str) -> int:
        return sum(one.side == side for one in self.accepted)

    @property
    def tills(self) -> dict[int, int]:
        """Key of each writer's till, and the number of its last transaction."""
        return {-number - 1: writer.serial for number, writer in enumerate(self._writers)}

    @property
    def refused(self) -> Counter[int]:
        return sum((actor.tally.refused for actor in self._writing), Counter())

    @property
    def reads(self) -> int:
        return sum(reader.tally.reads for reader in self._readers)

    @property
    def errors(self) -> list[str]:
        return [error for actor in self._actors for error in actor.tally.errors]

    def some_new_order(self) -> int:
        orders = self._chance.choice(self._writers).orders
        return orders[-self._chance.randint(1, min(20, len(orders)))] if orders else 1

    def longest_stall(self) -> float:
        """Of a write, in seconds, since this was asked last."""
        longest = max(writer.tally.longest_seconds for writer in self._writers)
        for writer in self._writers:
            writer.tally.longest_seconds = 0.0
        return longest

    def wait_for(self, transactions: int, side: str, timeout_seconds: float = 60.0) -> None:
        """Until each writer has so many more of them accepted by this side."""
        wanted = {w: self._of(w, side) + transactions for w in self._writers}
        deadline = time.monotonic() + timeout_seconds
        while any(self._of(w, side) < count for w, count in wanted.items()):
            if time.monotonic() > deadline or not all(w.is_alive() for w in self._writers):
                raise TimeoutError(f"the application does not get on: {self.errors}")
            time.sleep(0.01)

    @staticmethod
    def _of(writer: Writer, side: str) -> int:
        return sum(one.side == side for one in writer.tally.accepted)

    def hold(self) -> None:
        """Returns when no write is under way."""
        for actor in self._writing:
            actor.is_resting.clear()
        self.held.set()
        for actor in self._writing:
            if actor.is_alive() and not actor.is_resting.wait(60):
                raise TimeoutError(f"{actor.name} does not come to rest")

    def go_on(self) -> None:
        self.held.clear()

    def start(self) -> Workload:
        for actor in self._actors:
            actor.start()
        return self

    def stop(self) -> None:
        """End behind the transactions under way; idempotent."""
        self.stopping.set()
        for actor in self._actors:
            if actor.ident is not None:
                actor.join(60)

    def __enter__(self) -> Workload:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
