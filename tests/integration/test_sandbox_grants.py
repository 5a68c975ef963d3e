"""What vreplication does, each act tried as the user of sql/grants/; and what that user must not be able to do."""

from __future__ import annotations

import struct

import pytest

from sandbox.databases import Database
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, SqlError, connect

pytestmark = pytest.mark.either

DENIED = {1044, 1045, 1142, 1227, 1410}


@pytest.fixture
def session(database: Database):
    database.admin.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a INT)")
    database.admin.execute("CREATE TRIGGER seen BEFORE INSERT ON t FOR EACH ROW SET NEW.a = NEW.a")
    database.admin.execute("CREATE TABLE plain (id INT PRIMARY KEY AUTO_INCREMENT, a INT)")
    with connect(database.url) as session:
        yield session


def test_binary_log_is_readable(session: Session, database: Database) -> None:
    status = inspect(database.admin).log_status
    assert str(session.rows(status)[0][0]).startswith("binlog.")
    assert session.rows("SHOW BINARY LOGS")
    session.rows("SHOW SLAVE HOSTS" if database.server.is_mariadb else "SHOW REPLICAS")
    assert session.rows("SHOW SLAVE STATUS" if database.server.is_mariadb else "SHOW REPLICA STATUS") == []


def test_binary_log_can_be_dumped(session: Session, database: Database) -> None:
    events = session.rows("SHOW BINARY LOGS")
    file = str(events[-1][0]).encode()
    # COM_BINLOG_DUMP: position, flags (1: end at the log's end instead of waiting), server id, file.
    request = struct.pack("<IHI", 4, 1, 2**31 + 7) + file
    connection = session._connection
    connection._execute_command(0x12, request)
    assert connection._read_packet().is_ok_packet()


def test_prepared_branches_are_visible(session: Session, database: Database) -> None:
    with connect(database.app_url) as app:
        app.execute("XA START 'a','b'")
        app.execute("INSERT INTO plain VALUES (1, 1)")
        app.execute("XA END 'a','b'")
        app.execute("XA PREPARE 'a','b'")
        assert [row[1:3] for row in session.rows("XA RECOVER")] == [(1, 1)]
        app.execute("XA ROLLBACK 'a','b'")


def test_what_blocks_is_visible(session: Session, database: Database) -> None:
    with connect(database.app_url) as app, app.transaction():
        app.execute("INSERT INTO plain VALUES (1, 1)")
        assert app.id in {
            int(row[0]) for row in session.rows("SELECT trx_mysql_thread_id FROM information_schema.innodb_trx")
        }
        assert app.id in {int(row[0]) for row in session.rows("SELECT id FROM information_schema.processlist")}
        if not database.server.is_mariadb:
            found = session.rows(
                "SELECT t.processlist_id FROM performance_schema.metadata_locks m JOIN performance_schema.threads t "
                "ON t.thread_id = m.owner_thread_id WHERE m.object_schema = %s AND m.object_name = 'plain'",
                (database.name,),
            )
            assert app.id in {int(row[0]) for row in found}


def test_table_ids_and_triggers_are_visible(session: Session, database: Database) -> None:
    tables = "innodb_sys_tables" if database.server.is_mariadb else "innodb_tables"
    name = f"{database.name}/plain"
    assert session.value(f"SELECT table_id FROM information_schema.{tables} WHERE name = %s", (name,)) is not None
    found = session.rows(
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = %s", (database.name,)
    )
    assert found == [("seen",)]


def test_shadow_and_switch(session: Session, database: Database) -> None:
    session.execute("CREATE TEMPORARY TABLE trial LIKE plain")
    session.execute("ALTER TABLE trial ADD COLUMN b INT, ADD INDEX (a)")
    session.execute("DROP TEMPORARY TABLE trial")
    session.execute("CREATE TABLE plain__vr_new LIKE plain")
    session.execute("ALTER TABLE plain__vr_new ADD COLUMN b INT, ADD UNIQUE INDEX (a, id), MODIFY a BIGINT")
    session.execute("INSERT INTO plain VALUES (1, 1)")
    session.execute("INSERT IGNORE INTO plain__vr_new (id, a) SELECT id, a FROM plain")
    session.execute("REPLACE INTO plain__vr_new (id, a) VALUES (1, 2)")
    session.execute("DELETE FROM plain__vr_new WHERE id = 7")
    session.rows("ANALYZE TABLE plain__vr_new")
    session.execute("CREATE TABLE plain__vr_old (id INT PRIMARY KEY)")
    with connect(database.url) as lock:
        lock.execute("LOCK TABLES plain WRITE, plain__vr_old WRITE")
        lock.execute("DROP TABLE plain__vr_old")
        lock.execute("UNLOCK TABLES")
    session.execute("RENAME TABLE plain TO plain__vr_old, plain__vr_new TO plain")
    session.execute("DROP TABLE plain__vr_old")
    assert session.rows("SELECT id, a, b FROM plain") == [(1, 2, None)]


def test_partitions(session: Session) -> None:
    session.execute("CREATE TABLE plain__vr_new LIKE plain")
    session.execute("ALTER TABLE plain__vr_new PARTITION BY HASH (id) PARTITIONS 2")
    session.execute("DROP TABLE plain__vr_new")


def test_sidecar(session: Session, database: Database) -> None:
    database.drop_sidecar()
    session.execute("CREATE DATABASE _vreplication")
    session.execute("CREATE TABLE _vreplication.lease (id INT PRIMARY KEY, a INT)")
    session.execute("ALTER TABLE _vreplication.lease ADD COLUMN b INT, ADD INDEX (b)")
    session.execute("INSERT INTO _vreplication.lease VALUES (1, 1, 1)")
    with session.transaction():
        assert session.rows("SELECT a FROM _vreplication.lease WHERE id = 1 FOR UPDATE") == [(1,)]
        session.execute("UPDATE _vreplication.lease SET a = 2 WHERE id = 1")
    session.execute("LOCK TABLES _vreplication.lease WRITE")
    session.execute("UNLOCK TABLES")
    session.execute("DROP TABLE _vreplication.lease")


def test_own_connections_can_be_killed(session: Session, database: Database) -> None:
    other = connect(database.url)
    session.kill(other.id)
    left = session.rows(
        "SELECT id FROM information_schema.processlist WHERE id = %s AND command <> 'Killed'", (other.id,)
    )
    assert left == []
    other.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE DATABASE elsewhere",
        "CREATE USER nobody@localhost",
        "SET GLOBAL max_connections = 10",
        "CREATE TABLE mysql.x (id INT)",
        "SELECT * FROM mysql.user",
        "FLUSH TABLES",
    ],
)
def test_what_is_not_needed_is_not_granted(session: Session, statement: str) -> None:
    with pytest.raises(SqlError) as refused:
        session.execute(statement)
    assert refused.value.code in DENIED
