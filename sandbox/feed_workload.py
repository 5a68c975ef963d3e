"""A live application on two servers, and who reads what a feed makes of it on a third one.

On MariaDB orders with their items, on MySQL accounts with transfers between them; on both a table with a row every
50 ms, by which the time is taken. The reader looks at the third server all the time, whether each order has all of its
items and whether no money is on its way: it must never see half a transaction.

A server may be killed meanwhile: whoever has lost it connects again, and looks there whether what was under way was
committed, so that it is counted, or not, as it is.

What must stay true: rows that belong together change in one transaction; no row changes its key, so that in a topic no
change is two messages; what a writer draws follows from the seed, its number and its lost transactions alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.errors import Ambiguous, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl

MARIADB, MYSQL = "mariadb", "mysql"
TABLES = {MARIADB: ("orders", "items", "mariadb_times"), MYSQL: ("accounts", "transfers", "mysql_times")}
TIMES = {MARIADB: "mariadb_times", MYSQL: "mysql_times"}
BALANCE = 10_000
WRITERS = 2
AWAY_SECONDS = 120.0
"""So long a server may be away."""
_CHARSET = "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
CREATE = {
    "orders": f"(id BIGINT PRIMARY KEY, items INT NOT NULL, cents BIGINT NOT NULL, note VARCHAR(40)) {_CHARSET}",
    "items": "(order_id BIGINT NOT NULL, line INT NOT NULL, what VARCHAR(40) NOT NULL, cents BIGINT NOT NULL,"
    f" PRIMARY KEY (order_id, line)) {_CHARSET}",
    "accounts": f"(id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, moves INT NOT NULL) {_CHARSET}",
    "transfers": "(id BIGINT PRIMARY KEY, payer BIGINT NOT NULL, payee BIGINT NOT NULL, amount BIGINT NOT NULL,"
    f" at DATETIME(6) NOT NULL) {_CHARSET}",
    **{name: f"(id BIGINT PRIMARY KEY) {_CHARSET}" for name in TIMES.values()},
}
_NOTES = ("café", "søndag", "東京", "🚲 by bicycle", "plain", None)
_TOTALS = """SELECT (SELECT COALESCE(SUM(items),0) FROM orders), (SELECT COUNT(*) FROM items),
 (SELECT COALESCE(SUM(cents),0) FROM orders), (SELECT COALESCE(SUM(cents),0) FROM items),
 (SELECT SUM(balance) FROM accounts), (SELECT SUM(moves) FROM accounts), (SELECT 2*COUNT(*) FROM transfers)"""
_HALVES = """SELECT o.id FROM orders o LEFT JOIN
 (SELECT order_id, COUNT(*) n, SUM(cents) cents FROM items GROUP BY order_id) i ON i.order_id=o.id
 WHERE o.items<>COALESCE(i.n,0) OR o.cents<>COALESCE(i.cents,0) LIMIT 3"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many rows there are before the feed begins; of items as orders want them, two and a half on average."""

    orders: int
    accounts: int
    transfers: int

    @classmethod
    def of(cls, rows: int) -> Size:
        return cls(orders=max(rows // 5, 10), accounts=max(rows // 20, 10), transfers=max(rows // 4, 10))


def create(session: Session, tables: Sequence[str]) -> None:
    for table in tables:
        session.execute_raw(f"CREATE TABLE {table} {CREATE[table]}")


def fill(sessions: dict[str, Session], size: Size, seed: int) -> None:
    """What is there before, by the same rules as what the application writes."""
    chance = random.Random(seed)
    for start in range(1, size.orders + 1, 500):
        drawn = [draw_order(chance, number) for number in range(start, min(start + 500, size.orders + 1))]
        _insert(sessions[MARIADB], "orders", [order for order, _ in drawn])
        _insert(sessions[MARIADB], "items", [item for _, items in drawn for item in items])
    balances, moves = [BALANCE] * size.accounts, [0] * size.accounts
    transfers = []
    for number in range(1, size.transfers + 1):
        payer, payee, amount = *chance.sample(range(size.accounts), 2), chance.randint(1, 99)
        balances[payer], balances[payee] = balances[payer] - amount, balances[payee] + amount
        moves[payer], moves[payee] = moves[payer] + 1, moves[payee] + 1
        transfers.append((number, payer + 1, payee + 1, amount, f"2026-01-01 00:00:00.{number % 1_000_000:06}"))
    accounts = [(n + 1, balances[n], moves[n]) for n in range(size.accounts)]
    for table, rows in (("accounts", accounts), ("transfers", transfers)):
        for start in range(0, len(rows), 1000):
            _insert(sessions[MYSQL], table, rows[start : start + 1000])


def draw_order(chance: random.Random, number: int) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    lines = chance.randint(1, 4)
    items = [
        (number, line, f"thing {chance.randrange(500)}", chance.randint(1, 99_999)) for line in range(1, lines + 1)
    ]
    return (number, lines, sum(item[3] for item in items), chance.choice(_NOTES)), items


def _insert(session: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
    one = f"({','.join(['%s'] * len(rows[0]))})"
    session.execute(f"INSERT INTO {table} VALUES {','.join([one] * len(rows))}", [v for row in rows for v in row])


# -- who writes and reads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A transaction. sql, args: tell whether it was committed; where it is open yet, they wait. then: what is so if it
    was."""

    sql: str
    args: tuple[Any, ...]
    then: Callable[[], None] = lambda: None


class Actor(threading.Thread):
    """A connection that does the same again and again; what it meets ends it and is kept, but a server is waited for.

    done: how often. lost: transactions whose connection was lost; kept: of them, those that were committed.
    """

    def __init__(self, name: str, url: SourceUrl, pause: float) -> None:
        super().__init__(name=name, daemon=True)
        self.errors: list[str] = []
        self.done = self.lost = self.kept = 0
        self._url, self._pause = url, pause
        self._under_way: UnderWay | None = None
        self._away_since = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._has_ended():
                pass
        except (VReplicationError, Missing) as error:
            self.errors.append(f"{self.name}: {error}")

    def _has_ended(self) -> bool:
        """One connection. False: it was lost."""
        try:
            with connect(self._url) as session:
                self._settle(session)
                self._go_on(session)
                return True
        except (Transient, Ambiguous):
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > AWAY_SECONDS:
                raise
            threading.Event().wait(0.1)
            return False

    def _settle(self, session: Session) -> None:
        """Of what was under way when the last connection was lost only the server knows whether it was committed."""
        if self._under_way is None:
            return
        is_there = bool(session.value(self._under_way.sql, self._under_way.args))
        self.lost, self.kept = self.lost + 1, self.kept + is_there
        if is_there:
            self._count()
        self._under_way = None

    def _go_on(self, session: Session) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self.act(session)
            self._count()
            self._stopping.wait(max(0.0, self._pause - (time.monotonic() - began)))
        self.last(session)

    def _count(self) -> None:
        done, self._under_way, self._away_since = self._under_way, None, 0.0
        if done is not None:
            done.then()
        self.done += 1

    def act(self, session: Session) -> None:
        raise NotImplementedError

    def last(self, session: Session) -> None:
        """Once more, when it was told to end."""

    def stop(self) -> None:
        """Ends behind what is under way."""
        self._stopping.set()
        if self.ident is not None:
            self.join(30)


class Missing(Exception):
    """A statement of the application met other rows than it has written."""


def _must(session: Session, count: int, sql: str, *args: Any) -> None:
    if (found := session.execute(sql, args)) != count:
        raise Missing(f"{found} rows instead of {count}: {sql} {args}")


_IS_ORDER, _IS_NO_ORDER = (f"SELECT COUNT(*)={n} FROM orders WHERE id=%s FOR UPDATE" for n in (1, 0))


class Orders(Actor):
    """New orders, orders with other items, and cancelled ones. One writer has the odd numbers, the other the even."""

    def __init__(self, number: int, url: SourceUrl, size: Size, seed: int, rate: float) -> None:
        super().__init__(f"orders {number}", url, 1 / rate)
        self._chance = random.Random(seed * 100 + number)
        self._mine = [n for n in range(1, size.orders + 1) if n % WRITERS == number]
        self._next = max(self._mine, default=number) + WRITERS

    def act(self, session: Session) -> None:
        drawn = self._chance.random()
        with session.transaction():
            if drawn < 0.5 or len(self._mine) < 2:
                self._put(session, self._next)
            else:
                at = self._chance.randrange(len(self._mine))
                self._change(session, at, is_cancelled=drawn > 0.85)

    def _put(self, session: Session, number: int) -> None:
        self._under_way = UnderWay(sql=_IS_ORDER, args=(number,), then=self._add)
        order, items = draw_order(self._chance, number)
        _insert(session, "orders", [order])
        for item in items:
            _insert(session, "items", [item])

    def _add(self) -> None:
        self._mine.append(self._next)
        self._next += WRITERS

    def _change(self, session: Session, at: int, *, is_cancelled: bool) -> None:
        number, note = self._mine[at], f"changed, {self.done}"
        changed = UnderWay(sql="SELECT COUNT(*) FROM orders WHERE id=%s AND note=%s FOR UPDATE", args=(number, note))
        gone = UnderWay(sql=_IS_NO_ORDER, args=(number,), then=lambda: self._remove(at))
        self._under_way = gone if is_cancelled else changed
        session.execute("DELETE FROM items WHERE order_id=%s", (number,))
        if is_cancelled:
            _must(session, 1, "DELETE FROM orders WHERE id=%s", number)
            return
        (_, lines, cents, _), items = draw_order(self._chance, number)
        for item in items:
            _insert(session, "items", [item])
        _must(session, 1, "UPDATE orders SET items=%s, cents=%s, note=%s WHERE id=%s", lines, cents, note, number)

    def _remove(self, at: int) -> None:
        self._mine[at] = self._mine[-1]
        self._mine.pop()


class Transfers(Actor):
    """Money from one account to another one. Each writer has accounts and numbers of its own."""

    def __init__(self, number: int, url: SourceUrl, size: Size, seed: int, rate: float) -> None:
        super().__init__(f"transfers {number}", url, 1 / rate)
        self._chance = random.Random(seed * 100 + 50 + number)
        self._accounts = [n for n in range(1, size.accounts + 1) if n % WRITERS == number]
        self._next = size.transfers + 1 + (size.transfers + 1 + number) % WRITERS

    def act(self, session: Session) -> None:
        payer, payee = self._chance.sample(self._accounts, 2)
        amount = self._chance.randint(1, 99)
        self._under_way = UnderWay(
            sql="SELECT COUNT(*) FROM transfers WHERE id=%s FOR UPDATE", args=(self._next,), then=self._pass
        )
        sql = "UPDATE accounts SET balance=balance+%s, moves=moves+1 WHERE id=%s"
        with session.transaction():
            _must(session, 1, sql, -amount, payer)
            _insert(session, "transfers", [(self._next, payer, payee, amount, "2026-01-02 03:04:05.678901")])
            _must(session, 1, sql, amount, payee)

    def _pass(self) -> None:
        self._next += WRITERS


@dataclass(slots=True)
class Moments:
    """By (server, number of the row): when it was committed, in which stage, and when it was seen."""

    stage: str = ""
    committed: dict[tuple[str, int], tuple[float, str]] = field(default_factory=dict)
    in_topic: dict[tuple[str, int], float] = field(default_factory=dict)
    in_target: dict[tuple[str, int], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, stage: str, *, takes_waiting: bool = True) -> None:
        """takes_waiting: rows that nobody has seen yet are of the new stage, for what happens now is in their way."""
        with self._lock:
            self.stage = stage
            for row in self._waiting() if takes_waiting else ():
                self.committed[row] = (self.committed[row][0], stage)

    def behind(self) -> float:
        """Age of the oldest row that is not in the target, in seconds."""
        with self._lock:
            now = time.monotonic()
            return now - min((self.committed[row][0] for row in self._waiting()), default=now)

    def _waiting(self) -> list[tuple[str, int]]:
        """Those from before the first stage came in any order, by a snapshot, and are not all noted."""
        return [row for row in self.committed.keys() - self.in_target.keys() if self.committed[row][1]]

    def commit(self, row: tuple[str, int], at: float) -> None:
        with self._lock:
            self.committed[row] = (at, self.stage)

    def newest(self) -> dict[str, int]:
        return {flavor: max((n for f, n in list(self.committed) if f == flavor), default=0) for flavor in TIMES}

    def are_in_target(self, wanted: dict[str, int]) -> bool:
        return all(row in self.in_target for row in wanted.items())

    def are_in_topic(self, wanted: dict[str, int]) -> bool:
        return all(row in self.in_topic for row in wanted.items())

    def delays(self, stage: str, seen: dict[tuple[str, int], float]) -> list[float]:
        """Of all rows of a stage, in order; those that nobody saw are left out."""
        return sorted(seen[row] - at for row, (at, when) in self.committed.items() if when == stage and row in seen)


class Ticker(Actor):
    """A row by which the time is taken."""

    def __init__(self, flavor: str, url: SourceUrl, moments: Moments) -> None:
        super().__init__(f"times on {flavor}", url, 0.05)
        self._flavor, self._moments = flavor, moments

    def act(self, session: Session) -> None:
        """Where its answer was lost the row was committed at some time from here on."""
        row, table, began = (self._flavor, self.done + 1), TIMES[self._flavor], time.monotonic()
        sql = f"SELECT COUNT(*) FROM {table} WHERE id=%s FOR UPDATE"
        self._under_way = UnderWay(sql=sql, args=row[1:], then=lambda: self._moments.commit(row, began))
        session.execute(f"INSERT INTO {table} VALUES (%s)", row[1:])
        now = time.monotonic()
        self._under_way = UnderWay(sql=sql, args=row[1:], then=lambda: self._moments.commit(row, now))

    def last(self, session: Session) -> None:
        """Behind whatever was written until it was told to end: who waits for this row has all."""
        self.act(session)
        self._count()


class Watcher(Actor):
    """Looks into the target for rows by which the time is taken."""

    def __init__(self, url: SourceUrl, moments: Moments) -> None:
        super().__init__("who looks for times in the target", url, 0.01)
        self._moments = moments
        self._last = dict.fromkeys(TIMES, 0)

    def act(self, session: Session) -> None:
        for flavor, table in TIMES.items():
            found = session.rows(f"SELECT id FROM {table} WHERE id>%s ORDER BY id", (self._last[flavor],))
            now = time.monotonic()
            for (number,) in found:
                self._moments.in_target[flavor, number] = now
                self._last[flavor] = number


class Reader(Actor):
    """Looks whether whole transactions are in the target, from the moment on in which all rows are there."""

    def __init__(self, url: SourceUrl, size: Size) -> None:
        super().__init__("who reads the target", url, 0.1)
        self._money = BALANCE * size.accounts

    def act(self, session: Session) -> None:
        items, there, cents, sums, money, moves, twice = session.rows(_TOTALS)[0]
        if (items, cents) != (there, sums) or (money, moves) != (self._money, twice):
            raise Missing(
                f"half a transaction: orders tell of {items} items worth {cents}, there are {there} worth {sums};"
                f" accounts hold {money} of {self._money} after {moves} moves of {twice}"
            )
        if halves := session.rows(_HALVES):
            raise Missing(f"half a transaction: orders {', '.join(str(number) for (number,) in halves)}")


@dataclass(slots=True)
class Workload:
    """All of them."""

    writers: list[Actor]
    tickers: list[Actor]
    readers: list[Actor]

    @property
    def transactions(self) -> int:
        return sum(actor.done for actor in (*self.writers, *self.tickers))

    @property
    def lost(self) -> tuple[int, int]:
        """Transactions whose answer was lost with the server, and how many of them were committed."""
        writing = (*self.writers, *self.tickers)
        return sum(actor.lost for actor in writing), sum(actor.kept for actor in writing)

    @property
    def errors(self) -> list[str]:
        return [error for actor in (*self.writers, *self.tickers, *self.readers) for error in actor.errors]

    def start(self) -> None:
        for actor in (*self.writers, *self.tickers):
            actor.start()

    def stop_writing(self) -> None:
        """Those who take the time come last: behind their last row there is nothing."""
        for actor in (*self.writers, *self.tickers):
            actor.stop()

    def stop(self) -> None:
        self.stop_writing()
        for actor in self.readers:
            actor.stop()


def of(
    sources: dict[str, SourceUrl], target: SourceUrl, size: Size, moments: Moments, *, seed: int, rate: float
) -> Workload:
    """rate: transactions a second of each writer."""
    kinds: tuple[tuple[str, Callable[..., Actor]], ...] = ((MARIADB, Orders), (MYSQL, Transfers))
    return Workload(
        writers=[kind(n, sources[flavor], size, seed, rate) for flavor, kind in kinds for n in range(WRITERS)],
        tickers=[Ticker(flavor, url, moments) for flavor, url in sources.items()],
        readers=[Watcher(target, moments), Reader(target, size)],
    )
