"""What tests of statements in the log share: a table, all that writes to it unseen, and what came of a statement.

What must stay true: each case runs in a session of its own.
"""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from tests.support.private_server import is_older
from tests.support.tailing import apply, changes, groups, watch
from vreplication.binlog.events import Position
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged

Steps = tuple[str, ...]

OBJECTS = """
CREATE TABLE t (id INT PRIMARY KEY, w VARCHAR(20) CHARACTER SET utf8mb4)
CREATE TABLE copy LIKE t
CREATE TABLE x LIKE t
CREATE TABLE o LIKE t
CREATE TABLE my (id INT PRIMARY KEY, w VARCHAR(20)) ENGINE=MyISAM
CREATE TABLE part LIKE t
ALTER TABLE part PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (1000))
CREATE VIEW v AS SELECT * FROM t
CREATE TRIGGER xi AFTER INSERT ON x FOR EACH ROW INSERT INTO t VALUES (NEW.id + 100, NEW.w)
CREATE TRIGGER xu AFTER UPDATE ON x FOR EACH ROW UPDATE t SET w = CONCAT(w, 'u') WHERE id = NEW.id
CREATE TRIGGER xd AFTER DELETE ON x FOR EACH ROW DELETE FROM t WHERE id = OLD.id
CREATE FUNCTION f() RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN UPDATE t SET w = CONCAT(w, 'f'); RETURN 7; END
CREATE PROCEDURE p() DELETE FROM v
CREATE PROCEDURE q() DELETE FROM x
CREATE PROCEDURE cur() BEGIN DECLARE c CURSOR FOR SELECT f() FROM o; OPEN c; CLOSE c; END
CREATE VIEW vf AS SELECT f() AS n FROM o
"""
FILL = """
DROP TABLE IF EXISTS c
DELETE FROM x
DELETE FROM t
DELETE FROM copy
DELETE FROM o
DELETE FROM my
INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'c')
INSERT INTO copy SELECT * FROM t
INSERT INTO x VALUES (1,'a'),(2,'b'),(3,'c')
DELETE FROM t WHERE id > 100
INSERT INTO o VALUES (1,'a'),(2,'b')
"""


def cases(text: str) -> list[Steps]:
    """One a line; `;;` between its steps, `~` for a line's end."""
    return [tuple(step.strip().replace("~", "\n") for step in line.split(";;")) for line in text.strip().splitlines()]


@pytest.fixture
def source(database: Database) -> Watch:
    for statement in OBJECTS.strip().splitlines():
        database.admin.execute_raw(statement)
    if not database.server.is_mariadb:
        if is_older("mysql", (9, 4)):
            pytest.skip("it has no JSON duality views")
        document = "JSON_DUALITY_OBJECT(WITH(INSERT,UPDATE,DELETE) '_id': id, 'w': w)"
        database.admin.execute_raw(f"CREATE JSON RELATIONAL DUALITY VIEW jv AS SELECT {document} FROM t")
    return watch(database, "t")


def fill(database: Database) -> None:
    for statement in FILL.strip().splitlines():
        database.admin.execute_raw(statement)


def run_as(database: Database, log_format: str, steps: Steps, files: dict[str, str]) -> None:
    """In a session of its own. Raises SqlError."""
    with database.server.admin(database.name, read_timeout=30) as app:
        app.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        app.execute_raw(f"SET SESSION binlog_format={log_format}")
        for step in steps:
            app.execute_raw(step.format(**files) if step.startswith("LOAD") else step)


def contents(database: Database, table: str) -> list[tuple[object, ...]]:
    return database.admin.rows(f"SELECT * FROM {table} ORDER BY id")


def came_of(database: Database, source: Watch, start: Position) -> str:
    """What the log from there gives: all changes of t as rows, an end of the reading, or less than happened."""
    try:
        found = groups(database, start, source)
    except SourceChanged as error:
        return "stop" if "written as a statement" in error.message else f"stop: {error.message}"
    apply(database, source, "copy", changes(found))
    return "rows" if contents(database, "copy") == contents(database, "t") else "UNSEEN"


def stops(database: Database, start: Position, source: Watch) -> bool:
    try:
        groups(database, start, source)
    except SourceChanged as error:
        return "cannot be read" not in error.message
    return False
