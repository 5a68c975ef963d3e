"""DDL in a topic: the consumer runs it between the rows before and behind it, and what fails ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consume_setup import MODES, holds, session, standing, t

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session

__all__ = ["session", "t"]

pytestmark = pytest.mark.either


@pytest.mark.parametrize("mode", MODES)
def test_ddl_stands_between_its_rows(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    """Partition 2 gets it last: until then no row behind it is applied, and it is not run."""
    feed = FeedWriter(kafka, 3)
    alter = f"ALTER TABLE {database.name}.t ADD COLUMN b INT DEFAULT 7"
    session.execute_raw("CREATE TABLE later LIKE t")
    session.execute_raw("ALTER TABLE later ADD COLUMN b INT")
    wide = replace(t, columns=layout_of(session, database.name, "later").columns)
    with Consuming(feed.address(), database.url, mode) as one:
        with feed.transaction():
            for partition in range(3):
                feed.row(partition, t, 1, None, (partition, 1), seq=partition)
            feed.ddl(5, database.name, alter, to=(0, 1))
            for partition in (0, 1):
                feed.row(partition, wide, 6, None, (10 + partition, 1, 8), seq=partition)
            feed.resolved(6, to=(0, 1))
            feed.row(2, t, 2, None, (20, 2))
        if mode == "row":
            holds(session, [(0, 1), (1, 1)], by=one)
        # Mode transaction has nothing to say of 1 before partition 2 has resolved it.
        wait_until(lambda: mode == "transaction" or standing(session, feed, "ddl") == [0, 1], "they do not stand there")
        assert len(session.rows("SHOW COLUMNS FROM t")) == 2
        with feed.transaction():
            feed.ddl(5, database.name, alter, to=(2,))
            feed.row(2, wide, 7, None, (22, 2, 9))
            feed.resolved(7)
        rows = [(0, 1, 7), (1, 1, 7), (2, 1, 7), (10, 1, 8), (11, 1, 8), (20, 2, 7), (22, 2, 9)]
        holds(session, rows, by=one)


@pytest.mark.parametrize("mode", MODES)
def test_a_ddl_that_fails_ends_it_with_the_servers_words(
    kafka: Cluster, database: Database, session: Session, t: Layout, mode: str
) -> None:
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.ddl(5, database.name, "ALTER TABLE t ADD COLUMN a SMALLINT")
        feed.row(0, t, 6, None, (1, 1))
        feed.resolved(6)
    for _ in range(2):
        failure = Consuming(feed.address(), database.url, mode).failed()
        assert "Duplicate column name 'a'" in str(failure)
    # Done by hand, in some other way.
    session.execute_raw("ALTER TABLE t MODIFY COLUMN a BIGINT")
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, 1)], by=one)


@pytest.mark.parametrize("mode", MODES)
def test_all_kinds_of_ddl(kafka: Cluster, database: Database, session: Session, t: Layout, mode: str) -> None:
    feed = FeedWriter(kafka, 2)
    name = database.name
    with feed.transaction():
        feed.row(0, t, 1, None, (1, 1))
        feed.ddl(2, name, "CREATE TABLE u (id INT PRIMARY KEY, a INT)")
        feed.row(1, replace(t, table="u"), 3, None, (2, 2))
        feed.ddl(4, name, "RENAME TABLE t TO x, u TO t, x TO u")
        feed.row(0, t, 5, None, (3, 3))
        feed.ddl(6, "", f"TRUNCATE TABLE {name}.u")
        feed.row(1, replace(t, table="u"), 7, None, (4, 4))
        feed.ddl(8, name, "CREATE TABLE gone (a INT)")
        feed.ddl(9, name, "DROP TABLE gone")
        feed.ddl(10, "no_such_schema", f"CREATE TABLE {name}.v LIKE {name}.u")
        feed.resolved(10)
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(2, 2), (3, 3)], by=one)
        wait_until(lambda: len(session.rows("SHOW TABLES")) == 3, "tables", timeout_seconds=180)
        assert session.rows("SELECT * FROM u") == [(4, 4)]


def test_a_new_columns_time_is_the_one_of_the_source(
    kafka: Cluster, database: Database, session: Session, t: Layout
) -> None:
    """Not when a consumer came to it."""
    feed, at = FeedWriter(kafka, 1), 1_600_000_000
    session.execute_raw("INSERT INTO t VALUES (1,1)")
    with feed.transaction():
        feed.ddl(at * 10**6 + 7, database.name, "ALTER TABLE t ADD COLUMN made TIMESTAMP DEFAULT CURRENT_TIMESTAMP")
        feed.resolved(at * 10**6 + 7)
    with Consuming(feed.address(), database.url, "row") as one:
        sql = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=DATABASE() AND COLUMN_NAME='made'"
        wait_until(lambda: one.error or session.value(sql), "it is not run")
    assert session.value("SELECT UNIX_TIMESTAMP(made) FROM t") == at
