"""A DDL that comes a second time, of another source, or after somebody has done it: done is what is the same."""

from __future__ import annotations

import pytest
from consume_setup import holds

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.feed.consume import repeated
from vreplication.feed.consume.listener import Ddl
from vreplication.mysql.session import Session, SqlError, connect

TABLE = "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a VARCHAR(9) NOT NULL DEFAULT 'x', n INT, KEY by_n (n))"
TWICE = (
    "ALTER TABLE t ADD COLUMN z INT DEFAULT 5",
    "ALTER TABLE `t` ADD z DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) AFTER id, ADD UNIQUE KEY (z), COMMENT='x, y'",
    "ALTER TABLE t DROP COLUMN n, MODIFY a TEXT",
    "ALTER TABLE t CHANGE a `b c` VARCHAR(20) FIRST, ADD INDEX two (n, `b c`), ADD CONSTRAINT u UNIQUE (n)",
    "ALTER TABLE t RENAME COLUMN a TO b, RENAME INDEX by_n TO n_by",
    "ALTER TABLE t DROP KEY by_n, ADD KEY by_a (a)",
    "ALTER TABLE t ADD (y INT, z TIMESTAMP NULL DEFAULT '2020-01-02 03:04:05')",
    "CREATE UNIQUE INDEX i USING BTREE ON t (a, n)",
    "DROP INDEX by_n ON t",
    "CREATE TABLE v (id INT PRIMARY KEY, t TEXT) COMMENT='TABLE v'",
    "CREATE TABLE v LIKE t",
)
OTHER = (
    ("ALTER TABLE t ADD COLUMN z INT", "ALTER TABLE t ADD COLUMN z BIGINT"),
    ("ALTER TABLE t ADD COLUMN z INT", "ALTER TABLE t ADD COLUMN z INT DEFAULT 5"),
    ("ALTER TABLE t ADD COLUMN z INT", "ALTER TABLE t ADD COLUMN y INT, ADD COLUMN z INT"),
    ("ALTER TABLE t ADD COLUMN z INT", "ALTER TABLE t ADD COLUMN z INT, DROP COLUMN n"),
    ("ALTER TABLE t ADD COLUMN z INT", "ALTER TABLE t DROP COLUMN a, ADD COLUMN a TEXT, ADD COLUMN z INT"),
    ("ALTER TABLE t RENAME COLUMN a TO b", "ALTER TABLE t CHANGE a b TEXT"),
    ("ALTER TABLE t ADD INDEX i (a)", "ALTER TABLE t ADD INDEX i (a, n)"),
    ("ALTER TABLE t ADD INDEX i (a)", "CREATE UNIQUE INDEX i ON t (a)"),
    ("CREATE TABLE v (id INT PRIMARY KEY)", "CREATE TABLE v (id BIGINT PRIMARY KEY)"),
    ("CREATE TABLE v (a INT) SELECT 1 a", "CREATE TABLE v (a INT)"),
    ("RENAME TABLE t TO u", "RENAME TABLE t TO u"),
)


def is_there(session: Session, schema: str, sql: str) -> bool:
    """It is refused, and that is said of it."""
    said = definition(Query(schema=schema, text=sql.encode(), collation=45, sql_mode=0), "utf-8")
    assert said is not None
    with pytest.raises(SqlError) as refused:
        session.execute_raw(sql)
    return repeated.is_there(session, Ddl(1, schema, sql), said, refused.value.code)


def test_only_what_is_the_same_counts_as_done(database: Database) -> None:
    with connect(database.server.plain(database.server.url(database.name))) as session:
        for first, second in [(sql, sql) for sql in TWICE] + list(OTHER):
            session.execute_raw(TABLE)
            session.execute_raw(first)
            before = session.rows("SHOW TABLES")
            assert is_there(session, database.name, second) == (first == second and "RENAME TABLE" not in first), second
            assert session.rows("SHOW TABLES") == before
            session.execute_raw("DROP TABLE IF EXISTS t, u, v")


@pytest.mark.parametrize("mode", ["row", "transaction"])
def test_tables_of_two_sources_are_altered_one_after_the_other(kafka: Cluster, database: Database, mode: str) -> None:
    """Between the two, and behind both, rows of either go on."""
    with connect(database.server.plain(database.server.url(database.name))) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        old = layout_of(session, database.name, "t")
        session.execute_raw("CREATE TABLE like_t (id INT PRIMARY KEY, a INT, z INT DEFAULT 5)")
        new = layout_of(session, database.name, "like_t")
    new = type(new)(**{**vars(new), "table": "t"})
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, old, 1, None, (1, 1))
        feed.row(1, old, 2, None, (2, 1))
        feed.ddl(3, database.name, "ALTER TABLE t ADD COLUMN z INT DEFAULT 5")
        feed.row(0, new, 4, None, (3, 1, 7))
        feed.row(1, old, 5, (2, 1), (2, 2))
        feed.ddl(6, database.name, "ALTER TABLE t ADD COLUMN z INT DEFAULT 5")
        feed.row(1, new, 7, (2, 2, 5), (2, 2, 8))
        feed.ddl(8, database.name, "DROP TABLE like_t")
        feed.ddl(9, database.name, "DROP TABLE like_t")
        feed.row(0, new, 10, (3, 1, 7), (3, 2, 7))
        feed.resolved(10)
    with Consuming(feed.address(), database.url, mode) as one, connect(database.app_url) as session:
        holds(session, [(1, 1, 5), (2, 2, 8), (3, 2, 7)], by=one)
