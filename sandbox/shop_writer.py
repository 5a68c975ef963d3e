"""Writers of sandbox.shop_workload: orders with their items, customers, and a till that counts each one's transactions.

What must stay true:
- A row enters the memory when its COMMIT has returned. An UPDATE or DELETE names the serial number of the row's last
  write: a write that was lost, or made twice, is met by the next one.
- What a writer draws follows from the seed and its number alone.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from sandbox import shop
from sandbox.shop import COLUMNS, KEYS, Customer, Item, Key, Order, Row
from sandbox.shop_actors import READ_ONLY, Memory, Missing, Writing, marks, write
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.session import LockWait, Session, SqlError

if TYPE_CHECKING:
    from sandbox.shop_workload import Workload

_MOST_LINES = 6
_AGAIN_SECONDS = 0.003
R = TypeVar("R", Order, Item, Customer)


class _RollBack(Exception):
    """The writer has chosen to roll this transaction back."""


class Writer(Writing):
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
        write(session, f"INSERT INTO orders ({','.join(Order._fields[1:])}) VALUES ({marks(order[1:])})", order[1:])
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
        write(session, f"INSERT INTO {table} ({','.join(COLUMNS[table])}) VALUES ({marks(row)})", row)
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
        write(session, f"UPDATE {table} SET {sets} WHERE {where[0]}", [*to, *where[1]])
        # In this order: where the key stays, the new row takes this place.
        self._pending[table, shop.key_of(table, old)] = None
        self._pending[table, shop.key_of(table, new)] = new
        return new

    def _remove(self, session: Session, table: str, row: Row) -> None:
        where, values = _where(table, row)
        write(session, f"DELETE FROM {table} WHERE {where}", values)
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


def _where(table: str, row: Row) -> tuple[str, tuple[object, ...]]:
    names = (*KEYS[table], "serial")
    return " AND ".join(f"{name}=%s" for name in names), tuple(getattr(row, name) for name in names)


def _json(value: object) -> str:
    """In the one form in which texts are compared."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
