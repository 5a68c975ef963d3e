"""Three tables of a shop, for the demo that moves them: their definitions, their rows, how to fill them quickly.

What must stay true: a row that was there at the start follows from its key alone (`base_row`); base orders have odd
keys, so that a key change finds room between them; every eighth is never written (`is_read_only`), nor are its items;
an order says how many items it has and what they cost, and outside of a transaction that is so (`half_written`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from vreplication.mysql.session import Session

STATUSES = ("new", "paid", "sent", "done")
TABLES = ("orders", "items", "customers")
# What both servers take: utf8mb4_general_ci is a collation of both.
_END = ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci"
DEFINITIONS = {
    "orders": f"""CREATE TABLE orders (
  id         BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
  code       VARCHAR(40)   NOT NULL,
  customer   INT           NOT NULL,
  status     VARCHAR(12)   NOT NULL,
  line_count SMALLINT      NOT NULL,
  total      DECIMAL(14,2) NOT NULL,
  serial     BIGINT        NOT NULL,
  placed_at  DATETIME(6)   NOT NULL,
  UNIQUE KEY code (code), KEY customer (customer)
{_END}""",
    "items": f"""CREATE TABLE items (
  order_id BIGINT        NOT NULL,
  line     SMALLINT      NOT NULL,
  sku      VARCHAR(20)   NOT NULL,
  quantity INT           NOT NULL,
  price    DECIMAL(10,2) NOT NULL,
  serial   BIGINT        NOT NULL,
  PRIMARY KEY (order_id, line)
{_END}""",
    "customers": f"""CREATE TABLE customers (
  id         BIGINT       NOT NULL PRIMARY KEY,
  name       VARCHAR(80)  NOT NULL,
  about      TEXT,
  profile    JSON         NOT NULL,
  serial     BIGINT       NOT NULL,
  updated_at DATETIME(6)  NOT NULL
{_END}""",
}
_EPOCH = datetime(2024, 1, 1)
_STEP = 100_000
_DIGITS = "(SELECT 0 n " + "".join(f"UNION ALL SELECT {n} " for n in range(1, 10)) + ")"
_LINES = "(SELECT 1 l UNION ALL SELECT 2 UNION ALL SELECT 3)"


class Order(NamedTuple):
    id: int
    code: str
    customer: int
    status: str
    line_count: int
    total: Decimal
    serial: int
    placed_at: datetime


class Item(NamedTuple):
    order_id: int
    line: int
    sku: str
    quantity: int
    price: Decimal
    serial: int

    @property
    def cost(self) -> Decimal:
        return self.quantity * self.price


class Customer(NamedTuple):
    id: int
    name: str
    about: str | None
    profile: str
    serial: int
    updated_at: datetime


Row = Order | Item | Customer
Key = tuple[int, ...]
KINDS: dict[str, type[Order] | type[Item] | type[Customer]] = {"orders": Order, "items": Item, "customers": Customer}
KEYS = {"orders": ("id",), "items": ("order_id", "line"), "customers": ("id",)}
COLUMNS = {table: kind._fields for table, kind in KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the shop at the start. tills: customers -1, -2, …, one for each writer."""

    orders: int
    customers: int
    tills: int

    @classmethod
    def of(cls, rows: int, tills: int) -> Size:
        """So many rows in all: three orders with six items for each customer."""
        return cls(orders=max(256, rows * 3 // 10), customers=max(128, rows // 10), tills=tills)


def key_of(table: str, row: Row) -> Key:
    return tuple(getattr(row, name) for name in KEYS[table])


def order_key(number: int) -> int:
    """Of the n-th base order, counted from 0."""
    return 2 * number + 1


def is_read_only(number: int) -> bool:
    """Of the n-th base order, or customer."""
    return number % 8 == 0


def lines_of(number: int) -> int:
    return number % 3 + 1


def base_row(table: str, key: Key, size: Size) -> Row | None:
    """What `fill` has written under this key."""
    if table == "customers":
        return _base_customer(key[0], size)
    number, is_even = divmod(key[0] - 1, 2)
    if is_even or not 0 <= number < size.orders:
        return None
    if table == "orders":
        return _base_order(number, size)
    return _base_item(number, key[1]) if 1 <= key[1] <= lines_of(number) else None


def _base_item(number: int, line: int) -> Item:
    return Item(
        order_id=order_key(number),
        line=line,
        sku=f"sku-{(number * 31 + line) % 5000}",
        quantity=(number + line) % 5 + 1,
        price=Decimal((number * 13 + line * 7) % 10_000) / 100,
        serial=0,
    )


def _base_order(number: int, size: Size) -> Order:
    lines = lines_of(number)
    return Order(
        id=order_key(number),
        code=f"B{number}",
        customer=number * 7919 % size.customers + 1,
        status=STATUSES[number % 4],
        line_count=lines,
        total=sum((_base_item(number, line).cost for line in range(1, lines + 1)), Decimal(0)),
        serial=0,
        placed_at=_EPOCH + timedelta(seconds=number, microseconds=number % 1_000_000),
    )


def _base_customer(id: int, size: Size) -> Customer | None:
    if -size.tills <= id < 0:
        return Customer(id=id, name=f"till {-id}", about=None, profile="{}", serial=0, updated_at=_EPOCH)
    number = id - 1
    if not 0 <= number < size.customers:
        return None
    return Customer(
        id=id,
        name=f"Customer ✓ {number}",
        about=None if number % 4 == 0 else f"Likes naïve 💶 things, number {number}. " * (number % 6 + 1),
        profile=f'{{"city": "Zürich", "level": {number % 5}, "tags": ["a", "t{number % 7}"]}}',
        serial=0,
        updated_at=_EPOCH + timedelta(seconds=number),
    )


def create(session: Session) -> None:
    for table in TABLES:
        session.execute_raw(DEFINITIONS[table])


def fill(session: Session, size: Size, progress: Callable[[int], None] = lambda orders: None) -> None:
    """Write all base rows; `progress` hears how many orders are there."""
    for start in range(0, size.customers, _STEP):
        session.execute_raw(_customers(start, min(start + _STEP, size.customers)))
    for till in range(1, size.tills + 1):
        session.execute("INSERT INTO customers VALUES (%s,%s,NULL,'{}',0,%s)", (-till, f"till {till}", _EPOCH))
    for start in range(0, size.orders, _STEP):
        end = min(start + _STEP, size.orders)
        session.execute_raw(_items(start, end))
        session.execute_raw(_orders(start, end, size))
        progress(end)
    for table in TABLES:
        session.rows(f"ANALYZE TABLE {table}")


def _numbers(start: int, end: int) -> str:
    """Rows of one column, k."""
    digits = "+".join(f"d{i}.n*{10**i}" for i in range(5))
    places = ",".join(f"{_DIGITS} d{i}" for i in range(5))
    return f"(SELECT k FROM (SELECT {start}+{digits} k FROM {places}) every WHERE k < {end}) numbers"


def _items(start: int, end: int) -> str:
    return (
        "INSERT INTO items SELECT 2*k+1, l, CONCAT('sku-', (k*31+l) MOD 5000), (k+l) MOD 5 + 1,"
        f" ((k*13+l*7) MOD 10000)/100, 0 FROM {_numbers(start, end)} JOIN {_LINES} ls WHERE l <= k MOD 3 + 1"
        " ORDER BY k, l"
    )


def _orders(start: int, end: int, size: Size) -> str:
    return (
        f"INSERT INTO orders SELECT 2*k+1, CONCAT('B',k), k*7919 MOD {size.customers} + 1,"
        " ELT(k MOD 4 + 1,'new','paid','sent','done'), k MOD 3 + 1,"
        " (SELECT SUM(quantity*price) FROM items WHERE order_id=2*k+1), 0,"
        " TIMESTAMP'2024-01-01 00:00:00' + INTERVAL k SECOND + INTERVAL (k MOD 1000000) MICROSECOND"
        f" FROM {_numbers(start, end)} ORDER BY k"
    )


def _customers(start: int, end: int) -> str:
    return (
        "INSERT INTO customers SELECT k+1, CONCAT('Customer ✓ ', k),"
        " IF(k MOD 4 = 0, NULL, REPEAT(CONCAT('Likes naïve 💶 things, number ', k, '. '), k MOD 6 + 1)),"
        """ CONCAT('{"city": "Zürich", "level": ', k MOD 5, ', "tags": ["a", "t', k MOD 7, '"]}'), 0,"""
        f" TIMESTAMP'2024-01-01 00:00:00' + INTERVAL k SECOND FROM {_numbers(start, end)} ORDER BY k"
    )


def half_written(session: Session, where: str = "1=1") -> list[int]:
    """Orders of which not all is there, or items without an order; `where`: on o.id. One statement, one snapshot."""
    sql = (
        "SELECT o.id FROM orders o LEFT JOIN items i ON i.order_id=o.id"
        f" WHERE {where} GROUP BY o.id, o.line_count, o.total"
        " HAVING COUNT(i.line) <> MAX(o.line_count) OR COALESCE(SUM(i.quantity*i.price),0) <> MAX(o.total)"
    )
    return [int(row[0]) for row in session.rows(sql)]


def orphans(session: Session) -> list[int]:
    """Items whose order is not there."""
    sql = "SELECT DISTINCT i.order_id FROM items i LEFT JOIN orders o ON o.id=i.order_id WHERE o.id IS NULL"
    return [int(row[0]) for row in session.rows(sql)]
