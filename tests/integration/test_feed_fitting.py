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
from vreplication.feed.large import _key_layout
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
    ("FLOAT", "FLOAT", 3.4028235e38),
    ("FLOAT", "FLOAT", -3.4028235e38),
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


BY_ZONE = (
    # what is generated, its key, what ends it
    ("DATE AS (DATE(at)) STORED", "UNIQUE KEY (v)", "other values than the feed's in v"),
    ("DATE AS (DATE(at)) STORED", "KEY (v)", "other values than the feed's in v"),
    ("DATE AS (DATE(at)) VIRTUAL", "UNIQUE KEY (v)", "finds by its own time zone"),
)


def test_what_is_computed_by_another_time_zone_ends_it(database: Database) -> None:
    """The source's sessions were in New York: two of its days are one in UTC, and a row would go without a word."""
    cases = BY_ZONE if database.server.is_mariadb else (*BY_ZONE, ("DATE", "UNIQUE KEY k ((DATE(at)))", "finds by its"))
    for column, key, words in cases:
        database.admin.execute_raw("DROP TABLE IF EXISTS t")
        database.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NOT NULL, v {column}, {key})")
        layout = layout_of(database.admin, database.name, "t")
        sent = [(1, "2024-01-02 04:00:00", "2024-01-01"), (2, "2024-01-02 06:00:00", "2024-01-02")]
        rows = [_sent(layout, row) for row in sent]
        with connect(database.url) as session:
            with pytest.raises(Terminal, match=words), session.transaction():
                Target(session).write(rows)
            assert session.rows("SELECT id FROM t") == [], (column, key)


@pytest.mark.parametrize(("kind", "words"), [("STORED", "other values than the feed's in v"), ("VIRTUAL", "finds by")])
def test_what_has_more_digits_on_the_source_ends_it(database: Database, kind: str, words: str) -> None:
    """Its sessions had div_precision_increment=12; ours are the server's own, by which the two rows are one."""
    database.admin.execute_raw(
        f"CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, v DECIMAL(30,12) AS (a / b) {kind}, UNIQUE KEY (v))"
    )
    layout = layout_of(database.admin, database.name, "t")
    sent = [(1, 1, 3, "0.333333333333"), (2, 333333333, 1000000000, "0.333333333000")]
    with connect(database.url) as session:
        with pytest.raises(Terminal, match=words), session.transaction():
            Target(session).write([_sent(layout, row) for row in sent])
        assert session.rows("SELECT id FROM t") == []


@pytest.mark.parametrize(
    ("columns", "sent", "words"),
    [
        pytest.param("a DATETIME, v TIMESTAMP AS (a) STORED", "2024-01-01 05:00:00", "other values", id="stored"),
        pytest.param("a DATETIME, v TIMESTAMP AS (a) VIRTUAL", "2024-01-01 05:00:00", "finds by", id="virtual"),
        pytest.param("a INT, v DATE AS (CAST(a AS DATE)) VIRTUAL", None, "finds by", id="number"),
        pytest.param("a DATETIME, v DATE AS (DATE(a)) VIRTUAL", None, "other values", id="day of zero"),
    ],
)
def test_what_a_session_takes_for_another_date_ends_it(
    database: Database, columns: str, sent: str | None, words: str
) -> None:
    """The source's sessions were in another time zone, or took no days of zero: for the target both rows are one."""
    database.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, UNIQUE KEY (v))")
    layout = layout_of(database.admin, database.name, "t")
    base: object = 20240230 if "INT, v" in columns else "0000-00-00 00:00:00" if sent is None else "2024-01-01 10:00:00"
    rows = [_sent(layout, row) for row in ((1, base, sent), (2, base, sent and "2024-01-01 10:00:00"))]
    with connect(database.url) as session:
        with pytest.raises(Terminal, match=words), session.transaction():
            Target(session).write(rows)
        assert session.rows("SELECT id FROM t") == []


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_what_is_computed_as_on_the_source_is_written(database: Database, kind: str) -> None:
    database.admin.execute_raw(
        f"CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NOT NULL, d DATETIME, v DATE AS (DATE(at)) STORED,"
        f" w DATE AS (DATE(d)) {kind}, UNIQUE KEY (v), UNIQUE KEY (w))"
    )
    layout = layout_of(database.admin, database.name, "t")
    days = [f"2024-01-0{day}" for day in range(1, 6)]
    rows = [_sent(layout, (at, f"{day} 04:00:00", f"{day} 23:00:00", day, day)) for at, day in enumerate(days)]
    with connect(database.url) as session, session.transaction():
        Target(session).write([*rows, _sent(layout, (4, "2024-01-05 05:00:00", None, days[4], None))])
        found = session.rows("SELECT id, CAST(v AS CHAR) FROM t ORDER BY id")
    assert found == list(enumerate(days))


def test_a_timestamp_that_every_session_reads_alike_ends_nothing(database: Database) -> None:
    """Rows that are marked as gone keep what is unique free; beside the feed's own key two rows are never one."""
    alive = "(IF(gone_at IS NULL,1,NULL))"
    keys = "UNIQUE KEY (email, alive), UNIQUE KEY (id, day)" + (
        "" if database.server.is_mariadb else f", UNIQUE KEY (email, {alive})"
    )
    database.admin.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(9), gone_at TIMESTAMP NULL,"
        f" alive INT AS {alive} VIRTUAL, day DATE AS (DATE(gone_at)) VIRTUAL, {keys})"
    )
    layout = layout_of(database.admin, database.name, "t")
    rows = [(1, "a", "2024-01-02 04:00:00", None, "2024-01-01"), (2, "a", None, 1, None)]
    with connect(database.url) as session, session.transaction():
        Target(session).write([_sent(layout, row) for row in rows])
        assert session.rows("SELECT id, alive FROM t ORDER BY id") == [(1, None), (2, 1)]


def test_a_large_row_that_goes_is_told_by_its_key_alone(database: Database) -> None:
    database.admin.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL, v DATE AS (DATE(at)) STORED, UNIQUE KEY (v))"
    )
    layout = layout_of(database.admin, database.name, "t")
    bare, _ = _key_layout(layout)
    (gone,) = Open().row(Row(layout=bare, place=Place(1, 1), before=(1,), after=None))
    with connect(database.url) as session, session.transaction():
        target = Target(session)
        target.write([_sent(layout, (1, "2024-01-02 04:00:00", "2024-01-02"))])
        target.write([Waiting(1, 1, True, 0, 0, gone.key or b"", gone.value or b"")])
        assert session.rows("SELECT id FROM t") == []


def _row(layout: Layout, value: Any, key: int = 1) -> Waiting:
    return _sent(layout, (key, value))


def _sent(layout: Layout, row: tuple[Any, ...]) -> Waiting:
    (sent,) = Open().row(Row(layout=layout, place=Place(1, 0), before=None, after=row))
    return Waiting(1, 0, True, 0, 0, sent.key or b"", sent.value or b"")
