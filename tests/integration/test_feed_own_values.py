"""ALTERs of a feed that give rows values which the target would find otherwise: they are not run there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from consume_setup import MODES, holds

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter, layout_of
from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.errors import Terminal
from vreplication.feed.consume import own_values
from vreplication.feed.consume.listener import Ddl
from vreplication.mysql.session import Session, connect
from vreplication.state import layout

DRAWN = (
    "ALTER TABLE {t} ADD COLUMN u CHAR(36) NOT NULL DEFAULT (UUID()), ADD n INT",
    "ALTER TABLE {t} ADD n INT DEFAULT 5, ADD u DOUBLE DEFAULT (1 + rand ())",
    "ALTER TABLE {t} ADD (n INT, u CHAR(36) DEFAULT uuid(), KEY (n))",
    "ALTER TABLE {t} NOWAIT ADD COLUMN IF NOT EXISTS `u` INT DEFAULT NEXT VALUE FOR s.q",
    "ALTER ONLINE TABLE IF EXISTS {t} WAIT 5 ADD u BINARY(16) DEFAULT (UUID_TO_BIN(UUID())) FIRST",
    "SET STATEMENT lock_wait_timeout=5 FOR ALTER TABLE {t} ADD u VARCHAR(99) DEFAULT CURRENT_USER",
    "/* a */ ALTER TABLE {t} DROP COLUMN a, ADD u INT DEFAULT NEXTVAL(q) COMMENT 'x'",
)
COUNTED = (
    "ALTER TABLE {t} ADD u INT AUTO_INCREMENT PRIMARY KEY FIRST",
    "ALTER TABLE {t} ADD (u SERIAL)",
)
PLAIN = (
    "ALTER TABLE {t} ADD COLUMN u CHAR(36) DEFAULT 'UUID()' COMMENT 'RAND()' AFTER a",
    "ALTER TABLE {t} ADD COLUMN rand INT DEFAULT (a + 1), ADD uuid INT, ADD u INT AFTER auto_increment",
    "ALTER TABLE {t} ALTER COLUMN a SET DEFAULT (RAND()), MODIFY b CHAR(36) DEFAULT (UUID())",
    "ALTER TABLE {t} ADD COLUMN u DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
    "ALTER TABLE {t} ADD COLUMN b CHAR(36) DEFAULT (UUID())",
    "CREATE INDEX i ON {t} (a)",
)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.server.plain(database.server.url(database.name))) as opened:
        layout.complete(opened)
        yield opened


def is_refused(session: Session, schema: str, sql: str) -> bool:
    said = definition(Query(schema=schema, text=sql.encode(), collation=45, sql_mode=0), "utf-8")
    assert said is not None
    try:
        own_values.check(session, Ddl(1, schema, sql), said)
    except Terminal as error:
        return "new column u (" in error.message
    return False


def test_what_would_be_otherwise_is_refused_where_there_are_rows(database: Database, session: Session) -> None:
    for table, key in (("keyed", "id INT PRIMARY KEY"), ("bare", "id INT, UNIQUE (id)"), ("no_rows", "id INT")):
        session.execute_raw(f"CREATE TABLE {table} ({key}, a INT, b CHAR(36))")
    session.execute_raw("INSERT INTO keyed VALUES (1,1,'x')")
    session.execute_raw("INSERT INTO bare VALUES (1,1,'x')")
    wrong = {"keyed": DRAWN, "bare": DRAWN + COUNTED, "no_rows": ()}
    for table, refused in wrong.items():
        for sql in DRAWN + COUNTED + PLAIN:
            names = (table, f"`{database.name}` . {table}") if sql in DRAWN else (table,)
            for name in names:
                text = sql.format(t=name)
                assert is_refused(session, database.name, text) == (sql in refused), text


@pytest.mark.parametrize("mode", MODES)
def test_it_is_done_by_hand_and_the_consumer_goes_on(
    kafka: Cluster, database: Database, session: Session, mode: str
) -> None:
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36))")
    wide = layout_of(session, database.name, "t")
    session.execute_raw("ALTER TABLE t DROP COLUMN u")
    narrow = layout_of(session, database.name, "t")
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, narrow, 1, None, (1,))
        feed.ddl(2, database.name, "ALTER TABLE t ADD COLUMN u CHAR(36) DEFAULT (UUID())")
        feed.row(1, wide, 3, None, (2, "two"))
        feed.resolved(3)
    for _ in range(2):
        failure = Consuming(feed.address(), database.url, mode).failed()
        assert "DEFAULT UUID()" in str(failure)
    assert session.rows("SELECT * FROM t") == [(1,)]
    session.execute_raw("ALTER TABLE t ADD COLUMN u CHAR(36)")
    session.execute_raw("UPDATE t SET u='one'")
    with Consuming(feed.address(), database.url, mode) as one:
        holds(session, [(1, "one"), (2, "two")], by=one)


def test_a_column_that_becomes_auto_increment_is_numbered_as_by_a_client(
    kafka: Cluster, database: Database, session: Session
) -> None:
    """Where 0 stands for the next number, and by steps of one whatever the target's own are."""
    zero, new = "ALTER TABLE {} MODIFY id INT AUTO_INCREMENT", "ALTER TABLE {} ADD COLUMN n INT AUTO_INCREMENT UNIQUE"
    for table in ("t", "s"):
        session.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT)")
        session.execute_raw(f"INSERT INTO {table} VALUES (0,1),(5,2)")
        session.execute_raw(f"CREATE TABLE {table}2 (id INT PRIMARY KEY)")
        session.execute_raw(f"INSERT INTO {table}2 VALUES (7),(8)")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.ddl(1, database.name, zero.format("t"))
        feed.ddl(2, database.name, new.format("t2"))
        feed.resolved(2)
    session.execute_raw("SET GLOBAL auto_increment_increment=2")
    try:
        with Consuming(feed.address(), database.url, "row") as one:
            holds(session, [(7, 1), (8, 2)], "t2", by=one)
    finally:
        session.execute_raw("SET GLOBAL auto_increment_increment=DEFAULT")
    session.execute_raw("SET SESSION sql_mode=@@GLOBAL.sql_mode, auto_increment_increment=1")
    session.execute_raw(zero.format("s"))
    session.execute_raw(new.format("s2"))
    for table, same in (("t", "s"), ("t2", "s2")):
        assert session.rows(f"SELECT * FROM {table} ORDER BY 1") == session.rows(f"SELECT * FROM {same} ORDER BY 1")
    assert session.value("SELECT MIN(id) FROM t") == 1


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_rows_that_the_source_has_dropped_are_dropped_by_the_order_of_the_key_or_by_hand(
    kafka: Cluster, database: Database, session: Session
) -> None:
    """ALTER IGNORE logs no row; without a key each server keeps the one that it has met first."""
    session.execute_raw("CREATE TABLE keyed (id INT PRIMARY KEY, a INT)")
    session.execute_raw("CREATE TABLE t (id INT, a INT)")
    keyed, bare = layout_of(session, database.name, "keyed"), layout_of(session, database.name, "t")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        for seq, layout in enumerate((keyed, keyed, bare, bare)):
            feed.row(0, layout, 1, None, (3 - seq % 2, 7), seq=seq)
        feed.ddl(2, database.name, "ALTER IGNORE TABLE keyed ADD UNIQUE (a)")
        feed.ddl(3, database.name, "SET STATEMENT lock_wait_timeout=5 FOR ALTER IGNORE TABLE t ADD UNIQUE (a)")
        feed.row(0, bare, 4, None, (4, 8))
        feed.resolved(4)
    assert "other rows of" in str(Consuming(feed.address(), database.url, "transaction").failed())
    assert session.rows("SELECT * FROM keyed") == [(2, 7)]
    assert sorted(session.rows("SELECT * FROM t")) == [(2, 7), (3, 7)]
    session.execute_raw("DELETE FROM t WHERE id=2")
    session.execute_raw("ALTER TABLE t ADD UNIQUE (a)")
    with Consuming(feed.address(), database.url, "transaction") as one:
        holds(session, [(3, 7), (4, 8)], by=one)
