"""Real logs that end the reading: definitions, statements, rows that are not whole, another shape."""

from __future__ import annotations

import contextlib

import pytest
from stream_setup import app, keys, run, setting, source

from sandbox.databases import Database
from tests.support.tailing import groups, here, watch
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session, SqlError, connect

__all__ = ["app", "source"]

STOPPING = [
    ("ALTER TABLE t COMMENT='x'", "ALTER TABLE"),
    ("CREATE INDEX i ON t (v)", "CREATE INDEX"),
    ("TRUNCATE t", "TRUNCATE"),
    ("TRUNCATE TABLE `t`", "TRUNCATE"),
    ("RENAME TABLE other TO x, t TO y", "RENAME TABLE"),
    ("ALTER TABLE other ADD FOREIGN KEY (id) REFERENCES t (id)", "ALTER TABLE"),
    ("DROP TABLE other, t", "DROP TABLE"),
    ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.v='x'", "CREATE TRIGGER"),
    ("CREATE OR REPLACE VIEW w AS SELECT 1", None),
    ("ANALYZE TABLE t", None),
    ("ALTER TABLE other ADD COLUMN t INT, ALGORITHM=COPY", None),
    ("CREATE TABLE IF NOT EXISTS t (id INT)", None),
    ("CREATE TABLE u LIKE t", None),
    ("DROP TABLE IF EXISTS tt", None),
    ("CREATE PROCEDURE p() BEGIN DELETE FROM t; END", None),
    ("CREATE TEMPORARY TABLE t (id INT)", None),
    ("OPTIMIZE TABLE t", "OPTIMIZE TABLE"),
    ("OPTIMIZE TABLE other, t", "OPTIMIZE TABLE"),
    ("OPTIMIZE TABLE other", None),
    ("CREATE TRIGGER g BEFORE INSERT ON other FOR EACH ROW SET NEW.v='t'", None),
]


@pytest.mark.parametrize(("statement", "why"), STOPPING, ids=[s for s, _ in STOPPING])
def test_definitions(database: Database, app: Session, source: Watch, statement: str, why: str | None) -> None:
    start = here(database)
    with setting(database, "log_bin_trust_function_creators", "1"):
        app.rows(statement)
    app.close()
    with connect(database.app_url) as second, contextlib.suppress(SqlError):
        run(second, "INSERT INTO other (id) VALUES (1)")
    if why:
        with pytest.raises(SourceChanged, match=why) as caught:
            groups(database, start, source)
        assert f"event at {start.file}:" in str(caught.value)
    else:
        found = groups(database, start, source)
        assert found[-1].end == here(database)


def test_guarded_tables_and_other_schemas(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(
        database.admin,
        f"CREATE DATABASE {database.name}x",
        f"CREATE TABLE {database.name}x.t (id INT)",
        f"DROP DATABASE {database.name}x",
    )
    run(app, "ALTER TABLE other COMMENT 'x'")
    groups(database, start, source)
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source, guarded=frozenset({(database.name, "other")}))
    start = here(database)
    run(database.admin, f"DROP DATABASE {database.name}", f"CREATE DATABASE {database.name}", f"USE {database.name}")
    with pytest.raises(SourceChanged, match="DROP DATABASE"):
        groups(database, start, source)


def test_statement_format_stops(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "SET SESSION binlog_format='STATEMENT'", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        start = here(database)
        run(app, "UPDATE t SET v='x'")
    with pytest.raises(SourceChanged, match="written as a statement"):
        groups(database, start, source)


def test_row_images_that_are_not_full_stop(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "INSERT INTO t VALUES (1,'a')", "SET SESSION binlog_row_image='MINIMAL'")
        start = here(database)
        run(app, "UPDATE t SET v='x'")
    with pytest.raises(SourceChanged, match="binlog_row_image=FULL"):
        groups(database, start, source)


@pytest.mark.only_on("mysql")
def test_parts_of_json_documents_stop(database: Database) -> None:
    with database.server.admin(database.name) as app:
        run(app, "CREATE TABLE j (id INT PRIMARY KEY, j JSON)", 'INSERT INTO j VALUES (1,\'{"a":"0123456789"}\')')
        source = watch(database, "j")
        run(app, "SET SESSION binlog_row_value_options='PARTIAL_JSON'")
        start = here(database)
        run(app, "UPDATE j SET j = JSON_SET(j, '$.a', 'x')")
    with pytest.raises(SourceChanged, match="parts of JSON documents"):
        groups(database, start, source)


@pytest.mark.only_on("mariadb")
def test_alter_in_two_phases(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "SET SESSION binlog_alter_two_phase=1")
        start = here(database)
        run(app, "ALTER TABLE other ADD COLUMN z INT", "INSERT INTO t VALUES (1,'a')")
        run(app, "INSERT INTO other (id) VALUES (1),(2)")
        with pytest.raises(SqlError, match="Duplicate"):
            app.execute_raw("ALTER TABLE other ADD COLUMN y INT NOT NULL, ADD UNIQUE (y), ALGORITHM=COPY")
        run(app, "INSERT INTO t VALUES (2,'a')")
        assert keys(groups(database, start, source)) == [["1"], ["2"]]
        log = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
        told = " ".join(str(event[5]) for event in log)
        assert "START ALTER" in told
        assert "COMMIT ALTER" in told
        assert "ROLLBACK ALTER" in told
        run(app, "ALTER TABLE t ADD COLUMN z INT")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source)


@pytest.mark.only_on("mariadb")
def test_sequences_and_set_statement(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(
        app,
        "CREATE SEQUENCE q",
        "SELECT NEXTVAL(q)",
        "SET STATEMENT max_statement_time=9 FOR ALTER TABLE other COMMENT 'x'",
    )
    run(app, "INSERT INTO t VALUES (1,'a')")
    assert keys(groups(database, start, source)) == [["1"]]
    run(app, "SET STATEMENT max_statement_time=9 FOR ALTER TABLE t COMMENT 'x'")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source)


def test_a_table_with_another_shape_stops(database: Database, app: Session, source: Watch) -> None:
    run(app, "ALTER TABLE t ADD COLUMN z INT")
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a',1)")
    with pytest.raises(SourceChanged, match="3 columns, not 2"):
        groups(database, start, source)
    run(app, "DELETE FROM t", "ALTER TABLE t DROP COLUMN z, MODIFY v BIGINT")
    start = here(database)
    run(app, "INSERT INTO t VALUES (2,1)")
    with pytest.raises(SourceChanged, match="type 8, not varchar"):
        groups(database, start, source)


def test_names_in_other_character_sets(database: Database, app: Session) -> None:
    run(app, "CREATE TABLE `café` (id INT PRIMARY KEY)")
    source, start = watch(database, "café"), here(database)
    run(app, "SET NAMES latin1")
    app.execute_raw("TRUNCATE `café`".encode("latin-1"))
    with pytest.raises(SourceChanged, match=r"TRUNCATE|cannot read"):
        groups(database, start, source)
