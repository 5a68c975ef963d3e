"""Two tables that belong together, written and read as one: an order's total is the sum of its items' prices.

What must stay true: what a writer has committed is remembered, and nothing else; a reader that sees a total that is not
the sum, or one table altered beside the other as it was, has found an error. Writers lock the tables in one order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl

TABLES = ("orders", "items")
ALTER = "ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT 'eu'"
_WRITERS, _ROWS = 2, 400
_TORN = "SELECT o.id FROM orders o JOIN items i ON i.order_id=o.id GROUP BY o.id, o.total HAVING o.total<>SUM(i.price)"
_ONE = "SELECT o.*, i.* FROM orders o JOIN items i ON i.order_id=o.id WHERE o.id=%s"
_COLUMNS = 5
"""Of both together, as they are made."""


def create(session: Session) -> None:
    session.execute_raw("CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, total INT NOT NULL) ENGINE=InnoDB")
    session.execute_raw(
        "CREATE TABLE items (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT NOT NULL, price INT NOT NULL, "
        "KEY by_order (order_id)) ENGINE=InnoDB"
    )
    orders = ",".join(f"({n},{n})" for n in range(1, _ROWS + 1))
    session.execute_raw(f"INSERT INTO orders VALUES {orders}")
    session.execute_raw("INSERT INTO items (order_id, price) SELECT id, total FROM orders")


@dataclass(slots=True)
class Related:
    """Two writers and two readers, started by `with` and stopped at its end."""

    url: SourceUrl
    totals: dict[int, int] = field(default_factory=lambda: {n: n for n in range(1, _ROWS + 1)})
    """Of each order, as committed."""
    errors: list[str] = field(default_factory=list)
    deadlocks: list[str] = field(default_factory=list)
    """Transactions that the server has ended, which any application has to repeat: but it should not have to."""
    writes: int = 0
    reads: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Related:
        runs = [*(lambda n=n: self._write(n) for n in range(_WRITERS)), self._read_sums, self._read_columns]
        self._threads = [threading.Thread(target=self._guarded, args=(run,), daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def wait_for(self, more: int) -> None:
        """Until so many transactions and reads more have been done."""
        writes, reads = self.writes + more, self.reads + more
        waited = threading.Event()
        while not self.errors and (self.writes < writes or self.reads < reads):
            waited.wait(0.02)

    def _guarded(self, run: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                run()
            except LockWait as error:
                # Of a reader: it waits for both tables, too.
                self.deadlocks.append(str(error))
            except VReplicationError as error:
                self.errors.append(str(error))
                return

    def _write(self, number: int) -> None:
        draw = random.Random(number)
        with connect(self.url, lock_wait_seconds=20) as session:
            # Each locks rows of its own and no gaps: so whoever ends a deadlock here has made it.
            session.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            while not self._over.is_set():
                try:
                    self._change(session, draw, number)
                    self.writes += 1
                except Transient as error:
                    self.deadlocks.append(str(error))
                self._over.wait(0.01)

    def _change(self, session: Session, draw: random.Random, number: int) -> None:
        """One transaction over both tables, on orders that are this writer's."""
        mine = [key for key in list(self.totals) if key % _WRITERS == number]
        key, kind = draw.choice(mine), draw.random()
        if kind < 0.4:
            self._add(session, draw.randint(1, 99), number)
        elif kind < 0.8 or len(mine) < _ROWS // 4:
            self._raise(session, key, draw.randint(1, 9))
        else:
            self._delete(session, key)

    def _add(self, session: Session, price: int, number: int) -> None:
        key = max([key for key in list(self.totals) if key % _WRITERS == number], default=0) + _WRITERS
        with session.transaction():
            session.execute_raw(f"INSERT INTO orders (id, total) VALUES ({key},{2 * price})")
            session.execute_raw(f"INSERT INTO items (order_id, price) VALUES ({key},{price}),({key},{price})")
        self.totals[key] = 2 * price

    def _raise(self, session: Session, key: int, by: int) -> None:
        with session.transaction():
            session.execute_raw(f"UPDATE orders SET total=total+{by} WHERE id={key}")
            session.execute_raw(f"UPDATE items SET price=price+{by} WHERE order_id={key} ORDER BY id LIMIT 1")
        self.totals[key] += by

    def _delete(self, session: Session, key: int) -> None:
        with session.transaction():
            session.execute_raw(f"DELETE FROM orders WHERE id={key}")
            session.execute_raw(f"DELETE FROM items WHERE order_id={key}")
        del self.totals[key]

    def _read_sums(self) -> None:
        with connect(self.url, lock_wait_seconds=20) as session:
            while not self._over.is_set():
                if torn := session.rows(_TORN):
                    self.errors.append(f"orders {torn[:3]} are not the sum of their items")
                self.reads += 1
                self._over.wait(0.02)

    def _read_columns(self) -> None:
        """Both tables altered, or neither."""
        with connect(self.url, lock_wait_seconds=20) as session:
            while not self._over.is_set():
                for row in session.rows(_ONE, (random.choice(list(self.totals)),)):
                    if len(row) not in (_COLUMNS, _COLUMNS + 2):
                        self.errors.append(f"one table is altered and the other is not: {row}")
                self._over.wait(0.005)

    def differences(self, session: Session) -> list[str]:
        """Between what was committed and what is there. The writers have stopped."""
        self.stop()
        there = {int(key): int(total) for key, total in session.rows("SELECT id, total FROM orders")}
        sums = {int(k): int(s) for k, s in session.rows("SELECT order_id, SUM(price) FROM items GROUP BY order_id")}
        wrong = [f"{name}: {set(found.items()) ^ set(self.totals.items())}" for name, found in
                 (("orders", there), ("items", sums)) if found != self.totals]  # fmt: skip
        return [*self.errors, *wrong]
