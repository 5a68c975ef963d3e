"""A key in a lake whose column gets another type: rows of before are known under it, or the lake ends before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lake_setup import lake, layout, read

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_producer import FeedWriter
from tests.support.lakes import LakeServer
from tests.support.running_feed import Running, start_feed
from vreplication.errors import Terminal

__all__ = ["lake"]

pytestmark = [pytest.mark.spark, pytest.mark.either]

CARRIED = (
    ("TIME", "'01:02:03'", "TIME(3)"),
    ("TIME(6)", "'01:02:03.500000'", "TIME(1)"),
    ("DATETIME", "'2020-01-01 10:00:00'", "DATETIME(6)"),
    ("DATE", "'2020-01-01'", "DATETIME(2)"),
    ("INT", "7", "BIGINT UNSIGNED"),
    ("INT", "7", "VARCHAR(9) CHARACTER SET ascii"),
    ("INT", "7", "DECIMAL(9,2)"),
    ("DECIMAL(9,1)", "7.5", "NUMERIC(9,3)"),
    ("VARCHAR(9)", "'7'", "INTEGER"),
    ("VARCHAR(9)", "'a'", "ENUM('x','a')"),
    ("BINARY(4)", "'abcd'", "VARBINARY(9)"),
)
"""Type of the key, a value, and its type behind the ALTER."""
STOPPED = (
    ("timestamp", "2020-01-01 10:00:00", "DATETIME"),
    ("time", "01:02:03.500", "TIME"),
    ("datetime", "2020-01-01 10:00:00.250", "DATETIME(1)"),
    ("decimal", "7.25", "DECIMAL(9,1)"),
    ("binary", b"abcd", "BINARY(8)"),
    ("varchar", "a ", "CHAR(9)"),
    ("varchar", "A", "ENUM('a')"),
    ("varchar", "007", "INT"),
    ("bit", 1, "BINARY(1)"),
)


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


def test_a_row_of_before_is_known_under_its_key(
    begin: Callable[..., Running], database: Database, lakes: LakeServer, lake: Path
) -> None:
    feed = begin()
    feed.wait_begun()
    for number, (before, value, _) in enumerate(CARRIED):
        database.admin.execute_raw(f"CREATE TABLE t{number} (n INT, k {before} PRIMARY KEY)")
        database.admin.execute_raw(f"INSERT INTO t{number} VALUES (1,{value})")
    for number, (_, _, behind) in enumerate(CARRIED):
        database.admin.execute_raw(f"ALTER TABLE t{number} MODIFY COLUMN k {behind} NOT NULL")
        database.admin.execute_raw(f"UPDATE t{number} SET n=2")
    feed.wait_sent(database)
    lakes.fill(feed.feed.address, lake)
    for number, case in enumerate(CARRIED):
        assert read(lakes, lake, "n", table=f"{database.name}.t{number}") == [(2,)], case


def test_a_lake_ends_where_a_row_would_be_there_twice(
    begin: Callable[..., Running], database: Database, lakes: LakeServer, lake: Path
) -> None:
    """By words that no message tells: what the source has made of them depends on its session's zone."""
    feed = begin()
    feed.wait_begun()
    database.admin.execute_raw("CREATE TABLE t (n INT, k TIMESTAMP PRIMARY KEY)")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'2020-01-01 10:00:00')")
    feed.wait_sent(database)
    lakes.fill(feed.feed.address, lake)
    database.admin.execute_raw("ALTER TABLE t CHANGE k `at` DATETIME NOT NULL, ADD COLUMN m INT")
    database.admin.execute_raw("UPDATE t SET n=2")
    feed.wait_sent(database)
    for _ in range(2):
        with pytest.raises(Terminal, match=rf"`k`, .* key of {database.name}\.t, are written otherwise"):
            lakes.fill(feed.feed.address, lake)
    assert read(lakes, lake, "n", table=f"{database.name}.t") == [(1,)]


@pytest.mark.parametrize(("before", "value", "behind"), STOPPED)
def test_a_key_whose_values_become_others_ends_a_lake(
    kafka: Cluster, lakes: LakeServer, lake: Path, before: str, value: object, behind: str
) -> None:
    table, feed = layout("t", ("n", "int"), ("k", before), key=("k",)), FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, table, 1, None, (1, value))
        feed.ddl(2, "shop", f"ALTER TABLE t MODIFY k {behind} NOT NULL FIRST")
        feed.resolved(2)
    with pytest.raises(Terminal, match="written otherwise"):
        lakes.fill(feed.address(), lake)


def test_a_key_is_looked_at_in_the_rows_that_are_there(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    table, feed = layout("t", ("n", "int"), ("k", "time"), key=("k",)), FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, table, 1, None, (1, "01:02:03.5"))
        feed.row(0, table, 2, (1, "01:02:03.5"), None)
        feed.row(0, table, 3, None, (1, "01:02:04.0"))
        feed.ddl(4, "shop", "ALTER TABLE t MODIFY k TIME, MODIFY n TIME")
        feed.row(0, table, 5, (1, "01:02:04"), (2, "01:02:04"))
        feed.resolved(5)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake, "n") == [(2,)]


def test_a_table_that_takes_the_place_of_another_has_its_key(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """The copy of another tool, which the feed does not follow: no statement tells its types, its rows do."""
    before, feed = layout("t", ("n", "int"), ("k", "timestamp"), key=("k",)), FeedWriter(kafka, 1)
    behind = layout("t", ("n", "int"), ("k", "datetime"), key=("k",))
    with feed.transaction():
        feed.row(0, before, 1, None, (1, "2020-01-01 10:00:00"))
        feed.ddl(2, "shop", "RENAME TABLE t TO _t_del, _t_gho TO t")
        feed.resolved(2)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.row(0, behind, 3, None, (2, "2020-01-01 12:00:00"))
        feed.resolved(3)
    with pytest.raises(Terminal, match="written otherwise"):
        lakes.fill(feed.address(), lake)
    assert read(lakes, lake, "n") == [(1,)]
