"""Which statements would be served before the cut-over's RENAME, by the old table."""

from __future__ import annotations

import pytest

from vreplication.cutover.ahead import defines
from vreplication.mysql import text


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE orders",
        "truncate orders",
        "/* nightly */ TRUNCATE `shop`.`Orders`",
        "ALTER TABLE orders TRUNCATE PARTITION p0",
        "ALTER TABLE archive EXCHANGE PARTITION p0 WITH TABLE orders",
        "SET STATEMENT max_statement_time=1 FOR TRUNCATE orders",
        "DROP TABLE IF EXISTS a, orders",
        "/*!50000 TRUNCATE */ TABLE orders",
        "TRUNCATE TABLE `\ufffd`",
        "TRUNCATE TABLE `orders",
        'TRUNCATE "shop"."orders"',
    ],
)
def test_it_would(statement: str) -> None:
    assert defines(statement, "shop", ("shop", "orders"))


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "UPDATE orders SET a=TRUNCATE(b, 2)",
        "INSERT INTO orders VALUES ('TRUNCATE orders')",
        "SELECT * FROM orders",
        "TRUNCATE TABLE orders_old",
        "TRUNCATE TABLE other -- not orders",
        "SET STATEMENT max_statement_time=1 FOR UPDATE orders SET a=1",
        "LOCK TABLES orders WRITE",
        "ALTER TABLE other ADD orders INT COMMENT 'orders'",
        "INSERT INTO orders VALUES ('an ALTER of a backslash \\')",
        "SET SESSION sort_buffer_size=1",
    ],
)
def test_it_would_not(statement: str) -> None:
    assert not defines(statement, "shop", ("shop", "orders"))


def test_of_a_long_statement_the_first_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers wait meanwhile."""
    cut: list[int] = []
    take = text._Scanner._take
    monkeypatch.setattr(text._Scanner, "_take", lambda scanner: (cut.append(scanner.at), take(scanner))[1])
    assert not defines(
        f"/* load */ INSERT INTO orders VALUES {','.join(['(1)'] * 100_000)}", "shop", ("shop", "orders")
    )
    assert len(cut) == 1


def test_a_table_of_that_name_in_another_schema_is_no_matter() -> None:
    table = ("shop", "orders")
    assert not defines("TRUNCATE orders", "archive", table)
    assert not defines("TRUNCATE archive.orders", "shop", table)
    assert defines("TRUNCATE `Shop`.orders", "archive", table)
    assert defines("TRUNCATE shop . orders", "", table)
