"""One statement about tables that a feed follows and others: on a target the others are left as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import twin
from tests.support.running_feed import Running, origin, start_feed
from vreplication.feed.catalog import Filter

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    made = [(f"CREATE TABLE {t} (id INT PRIMARY KEY)", f"INSERT INTO {t} VALUES (1)") for t in ("t", "u")]
    yield from twin(database, *(statement for both in made for statement in both))


def tables(database: Database) -> set[str]:
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s"
    return {name for (name,) in database.admin.rows(sql, (database.name,))}


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        pytest.param(["DROP TABLE t, u"], {"u"}, id="drop"),
        pytest.param(["DROP TABLE IF EXISTS u, nothing, {here}.`t`"], {"u"}, id="drop if exists"),
        pytest.param(["RENAME TABLE t TO t2, u TO u2"], {"t2", "u"}, id="rename"),
        pytest.param(["RENAME TABLE u TO u2, u2 TO u3, {here}.t TO t2, t2 TO t3"], {"t3", "u"}, id="rename twice"),
        pytest.param(["ALTER TABLE t RENAME TO t2"], {"t2", "u"}, id="alter"),
        pytest.param(["DROP DATABASE {here}", "CREATE DATABASE {here}"], {"u"}, id="database"),
    ],
)
def test_tables_that_are_not_followed_stay_on_the_target(
    begin: Callable[..., Running], database: Database, target: Database, sql: list[str], left: set[str]
) -> None:
    only = Filter(tables=(f"{database.name}.t", f"{database.name}.done"))
    feed = begin(sources=(replace(origin(database), filter=only),))
    feed.wait_begun()
    with database.server.admin(database.name) as session:
        for each in (*sql, "USE {here}", "CREATE TABLE done (id INT PRIMARY KEY)"):
            session.execute_raw(each.format(here=database.name))
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        wait_until(lambda: one.error or feed.error or "done" in tables(target), "the last DDL is not run", 30)
        assert feed.error is None
        assert one.error is None
    assert tables(target) == {"done", *left}


PARTED = "CREATE TABLE {} (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"


@pytest.mark.parametrize(
    "sql",
    [
        "RENAME TABLE t TO x, u TO t, x TO u",
        "RENAME TABLE t TO t_old, u TO t",
        "ALTER TABLE u RENAME TO v",
        "ALTER TABLE parted EXCHANGE PARTITION p WITH TABLE u",
        "ALTER TABLE other EXCHANGE PARTITION p WITH TABLE t",
    ],
)
def test_rows_that_the_feed_does_not_have_are_not_taken_from_the_targets_own_table(
    begin: Callable[..., Running], database: Database, target: Database, sql: str
) -> None:
    """What is not followed may be anything on the target: there it is empty, and its name is the source's."""
    for each in (database, target):
        for table in ("parted", "other"):
            each.admin.execute_raw(PARTED.format(table))
            each.admin.execute_raw(f"INSERT INTO {table} VALUES (1)")
    for table in ("u", "other"):
        target.admin.execute_raw(f"DELETE FROM {table}")
    names = ("t", "v", "parted", "done")
    only = Filter(tables=tuple(f"{database.name}.{name}" for name in names))
    feed = begin(sources=(replace(origin(database), filter=only),))
    feed.wait_begun()
    before = {table: rows(target, table) for table in ("t", "parted")}
    database.admin.execute_raw(sql)
    for _ in range(2):
        failed = Consuming(feed.feed.address, target.url, "transaction").failed()
        assert "which the feed does not follow" in str(failed)
    assert {table: rows(target, table) for table in ("t", "parted")} == before
    target.admin.execute_raw("DELETE FROM u")
    for table in ("u", "other"):
        target.admin.execute_raw(f"INSERT INTO {table} VALUES (1)")
    target.admin.execute_raw(sql)
    database.admin.execute_raw("CREATE TABLE done (id INT PRIMARY KEY)")
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        wait_until(lambda: one.error or "done" in tables(target), "the last DDL is not run", 30)
        assert one.error is None
    followed = tables(database) & set(names)
    assert {name: rows(target, name) for name in followed} == {name: rows(database, name) for name in followed}


def rows(database: Database, table: str) -> list[tuple[object, ...]]:
    return database.admin.rows(f"SELECT * FROM {table} ORDER BY 1")


def test_the_schema_of_the_url_goes_and_the_feed_goes_on(
    begin: Callable[..., Running], database: Database, target: Database
) -> None:
    """Without any other DDL before it; where the feed has all of its tables the target loses it, too."""
    feed = begin()
    feed.wait_begun()
    with database.server.admin(database.name) as session:
        for sql in ("DROP DATABASE {}", "CREATE DATABASE {}", "USE {}", "CREATE TABLE {}.done (id INT PRIMARY KEY)"):
            session.execute_raw(sql.format(database.name))
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        wait_until(lambda: one.error or feed.error or tables(target) == {"done"}, "the last DDL is not run", 30)
        assert feed.error is None
        assert one.error is None
