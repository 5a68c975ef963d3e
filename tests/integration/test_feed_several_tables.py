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
        pytest.param(["RENAME TABLE t TO x, u TO t, x TO u"], {"t", "u"}, id="exchange"),
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
