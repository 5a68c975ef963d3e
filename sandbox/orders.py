"""The table of the demo and of the end-to-end tests: its definition, its rows, and how to fill it quickly.

What must stay true: base rows have odd keys, so that a key change finds room between them; a row's content follows from
its key alone; every eighth base row is never written (`is_read_only`), so that a reader knows what it must find.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session

DEFINITION = """(
  id         BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
  customer   INT           NOT NULL,
  status     VARCHAR(20)   NOT NULL,
  amount     DECIMAL(10,2) NOT NULL,
  note       VARCHAR(100),
  email      VARCHAR(60)   NOT NULL,
  updated_at DATETIME(6)   NOT NULL,
  UNIQUE KEY email (email)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
ALTER = (
    "ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT 'eu', "
    "MODIFY amount DECIMAL(14,4) NOT NULL, ADD INDEX customer (customer)"
)
STATUSES = ("new", "paid", "sent", "done")
_EPOCH = datetime(2024, 1, 1)
_STEP = 100_000
_DIGITS = "SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 " + "".join(
    f"UNION ALL SELECT {n} " for n in range(5, 10)
)


class Order(NamedTuple):
    """One row, in the order of the table's columns."""

    id: int
    customer: int
    status: str
    amount: Decimal
    note: str | None
    email: str
    updated_at: datetime


COLUMNS = ",".join(Order._fields)


def base_key(number: int) -> int:
    """Key of the n-th base row, counted from 0."""
    return 2 * number + 1


def is_read_only(number: int) -> bool:
    """True for a base row that no writer touches."""
    return number % 8 == 0


def base_row(number: int) -> Order:
    """The n-th base row, as `fill` writes it."""
    return Order(
        id=base_key(number),
        customer=number * 7919 % 100_000,
        status=STATUSES[number % 4],
        amount=Decimal(number % 1_000_000) / 100,
        note=None if number % 5 == 0 else f"order ✓ {number}",
        email=f"{number}@example.com",
        updated_at=_EPOCH + timedelta(seconds=number, microseconds=number % 1_000_000),
    )


def create(session: Session, table: str) -> None:
    session.execute_raw(f"CREATE TABLE {ident(table)} {DEFINITION}")


def fill(session: Session, table: str, rows: int, progress: Callable[[int], None] = lambda done: None) -> None:
    """Write `rows` base rows, a step a statement; `progress` hears how many are there."""
    for start in range(0, rows, _STEP):
        session.execute_raw(_fill_statement(table, start, min(_STEP, rows - start)))
        progress(min(start + _STEP, rows))


def _fill_statement(table: str, start: int, count: int) -> str:
    numbers = "+".join(f"d{i}.n*{10**i}" for i in range(5))
    source = ",".join(f"({_DIGITS}) d{i}" for i in range(5))
    return (
        f"INSERT INTO {ident(table)} ({COLUMNS}) "
        f"SELECT 2*k+1, k*7919 MOD 100000, ELT(k MOD 4 + 1,'new','paid','sent','done'), "
        f"(k MOD 1000000)/100, IF(k MOD 5 = 0, NULL, CONCAT('order ✓ ', k)), CONCAT(k,'@example.com'), "
        f"TIMESTAMP'2024-01-01 00:00:00' + INTERVAL k SECOND + INTERVAL (k MOD 1000000) MICROSECOND "
        f"FROM (SELECT {start}+{numbers} k FROM {source}) numbers WHERE k < {start + count} ORDER BY k"
    )
