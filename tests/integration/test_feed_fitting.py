"""Values of a feed that the target would store otherwise, and says nothing of: each ends the consumer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox.binaries import FLAVORS
from sandbox.databases import Database, create_database
from tests.support.feed_producer import layout_of
from tests.support.private_server import private_server
from vreplication.errors import Terminal
from vreplication.feed.consume.rows import Target
from vreplication.feed.consume.waiting import Waiting
from vreplication.feed.formats.open import Open
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Place, Row
from vreplication.mysql.session import Session, connect

OTHERWISE = (
    ("DATETIME(6)", "DATETIME", "2024-01-01 10:00:00.600000"),
    ("TIMESTAMP(6)", "TIMESTAMP(5)", "2024-01-01 10:00:00.000001"),
    ("TIME(3)", "TIME(1)", "-10:11:12.345"),
    ("DATETIME", "DATE", "2024-01-01 10:00:00"),
    ("DATE", "TIME", "2024-01-01"),
    ("TIME", "DATETIME", "10:11:12"),
    ("DOUBLE", "FLOAT", 0.1),
    ("INT", "FLOAT", 16777217),
    ("DECIMAL(30,20)", "DOUBLE", "0.10000000000000000001"),
    ("BIGINT UNSIGNED", "DOUBLE", 2**63 + 1),
    ("INT", "INT NOT NULL AUTO_INCREMENT UNIQUE", None),
    ("TIMESTAMP NULL", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", None),
)
ALIKE = (
    ("DATETIME(6)", "DATETIME(3)", "2024-01-01 10:00:00.120000"),
    ("TIME(6)", "TIME", "10:00:00.000000"),
    ("DATE", "DATETIME", "2024-01-01"),
    ("TIMESTAMP(3)", "TIMESTAMP(6)", "2024-01-01 10:00:00.125"),
    ("FLOAT", "DOUBLE", 0.5),
    ("MEDIUMINT", "FLOAT", 8388607),
    ("INT", "DOUBLE", 2147483647),
    ("INT", "INT AUTO_INCREMENT UNIQUE", 0),
    ("INT", "VARCHAR(20)", None),
)


def write(database: Database, session: Session, source: str, target: str, value: Any) -> None:
    for table, column in (("s", source), ("t", target)):
        database.admin.execute_raw(f"DROP TABLE IF EXISTS {table}")
        database.admin.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, v {column})")
    layout = replace(layout_of(database.admin, database.name, "s"), table="t")
    Target(session).write([_row(layout, value)])


def test_what_would_be_stored_otherwise_ends_it(database: Database) -> None:
    with connect(database.url) as session:
        session.execute_raw("SET SESSION foreign_key_checks=0")
        for case in OTHERWISE:
            with pytest.raises(Terminal, match="column"):
                write(database, session, *case)
            assert database.admin.rows("SELECT * FROM t") == [], case
        for case in ALIKE:
            write(database, session, *case)
            assert database.admin.value("SELECT COUNT(*) FROM t") == 1, case


@pytest.mark.parametrize("flavor", FLAVORS)
def test_two_tables_that_are_one_to_the_target_end_it(flavor: str) -> None:
    """A source tells Orders from orders; the target keeps names in lower case. One in capitals alone is no harm."""
    with private_server(flavor, {"lower_case_table_names": 1}) as server:
        database = create_database(server, "shop")
        database.admin.execute_raw("CREATE TABLE Orders (id INT PRIMARY KEY, v INT)")
        named = layout_of(database.admin, "shop", "orders")
        rows = [_row(replace(named, number=at, table=name), 7, at) for at, name in enumerate(("Orders", "orders"))]
        with connect(database.url) as session:
            target = Target(session)
            target.write(rows[:1])
            with pytest.raises(Terminal, match=r"rows of shop.Orders and of shop.orders, which are one table"):
                target.write(rows[1:])
        assert database.admin.rows("SELECT id FROM orders") == [(0,)]


def _row(layout: Layout, value: Any, key: int = 1) -> Waiting:
    (sent,) = Open().row(Row(layout=layout, place=Place(1, 0), before=None, after=(key, value)))
    return Waiting(1, 0, True, 0, 0, sent.key or b"", sent.value or b"")
