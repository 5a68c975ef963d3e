"""Every kind of statement that can write to a table without naming it: its rows arrive, or the reader stops.

The lists are of the two grammars. What a server refuses is listed as refused, so that nothing is tried in vain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from statement_setup import Steps, came_of, cases, contents, fill, run_as, source

from sandbox.databases import Database
from tests.support.flow import wait_until
from tests.support.tailing import here
from vreplication.binlog.watch import Watch
from vreplication.mysql.session import SqlError

__all__ = ["source"]

pytestmark = pytest.mark.either

WRITING = """
DELETE FROM v
DELETE FROM x
DELETE v FROM v JOIN o ON v.id = o.id
DELETE FROM x USING x JOIN o ON x.id = o.id
UPDATE v SET w = 'z'
UPDATE x SET w = 'z' WHERE id = 3
UPDATE v, o SET v.w = 'z' WHERE v.id = o.id
INSERT INTO v VALUES (9,'z')
INSERT INTO x VALUES (9,'z')
INSERT INTO x SELECT id + 10, w FROM o
INSERT INTO o VALUES (f(),'z')
INSERT INTO v VALUES (3,'z') ON DUPLICATE KEY UPDATE w = 'q'
INSERT IGNORE INTO v VALUES (3,'z'),(4,'q')
REPLACE INTO v VALUES (3,'z')
REPLACE INTO x VALUES (3,'z')
SELECT f()
SELECT f() INTO @a
SELECT * FROM vf
SELECT * FROM o WHERE id < f() FOR UPDATE
WITH w AS (SELECT f()) SELECT * FROM w
(SELECT f())
SELECT 1 UNION SELECT f()
DO f()
SET @a = f()
SET @a = (SELECT f())
SET SESSION sort_buffer_size = 300000 + f()
SHOW TABLES WHERE f()
CALL p()
CALL q()
CALL cur()
PREPARE s FROM 'DELETE FROM v';; EXECUTE s
LOCK TABLES v WRITE;; DELETE FROM v;; UNLOCK TABLES
BEGIN;; DELETE FROM v;; COMMIT
BEGIN;; SAVEPOINT a;; DELETE FROM x;; RELEASE SAVEPOINT a;; COMMIT
XA START 'a';; DELETE FROM v;; XA END 'a';; XA PREPARE 'a';; XA COMMIT 'a'
XA START 'a';; DELETE FROM x;; XA END 'a';; XA COMMIT 'a' ONE PHASE
CREATE TEMPORARY TABLE tmp (n INT);; INSERT INTO tmp VALUES (f())
LOAD DATA INFILE '{csv}' INTO TABLE v
LOAD DATA INFILE '{csv}' INTO TABLE x
LOAD DATA INFILE '{csv}' REPLACE INTO TABLE o (id, @a) SET w = f()
LOAD XML INFILE '{xml}' INTO TABLE x
DELETE /*+ SET_VAR(sort_buffer_size=400000) */ FROM v
DELETE /*!40000 QUICK */ FROM v
/*!99999 FLUSH TABLES */ DELETE FROM v
-- FLUSH TABLES~DELETE FROM v
# FLUSH TABLES~DELETE FROM v
"""
WRITING_MARIADB = """
SET SESSION skip_replication = 1;; DELETE FROM v
SET SESSION gtid_domain_id = 7;; DELETE FROM x
SET SESSION binlog_annotate_row_events = 0;; DELETE FROM x
SET SESSION binlog_direct_non_transactional_updates = 1;; INSERT INTO my VALUES (f(),'z')
SET STATEMENT sql_mode = 'ANSI_QUOTES' FOR DELETE FROM v
/*M!999999 FLUSH TABLES */ DELETE FROM v
/*!80000 FLUSH TABLES */ DELETE FROM v
INSERT IGNORE INTO my VALUES (f(),'z')
ANALYZE UPDATE v SET w = 'z'
ANALYZE DELETE FROM v
ANALYZE FORMAT=JSON DELETE FROM x
ANALYZE INSERT INTO v VALUES (9,'z')
ANALYZE REPLACE INTO x VALUES (3,'z')
ANALYZE SELECT f()
INSERT INTO o VALUES (f(),'z') RETURNING id
INSERT INTO v VALUES (9,'z') RETURNING id
REPLACE INTO v VALUES (3,'z') RETURNING id
DELETE FROM v RETURNING id
VALUES (f())
EXECUTE IMMEDIATE 'DELETE FROM v'
SET STATEMENT max_statement_time = 9 FOR DELETE FROM v
SET STATEMENT sort_buffer_size = 300000 FOR ANALYZE DELETE FROM x
CREATE TABLE c SELECT f() AS n
CREATE TABLE c AS (SELECT * FROM vf)
CREATE TABLE c AS WITH w AS (SELECT f() AS n) SELECT * FROM w
CREATE TABLE c VALUES (f())
CREATE TABLE IF NOT EXISTS c SELECT f() AS n
CREATE OR REPLACE TABLE c SELECT f() AS n
CREATE TABLE c (n INT) PARTITION BY RANGE (n) (PARTITION p0 VALUES LESS THAN (9)) SELECT f() AS n
CREATE TABLE c (n INT) ENGINE=MyISAM SELECT f() AS n
CREATE TEMPORARY TABLE tmp SELECT f() AS n
CREATE OR REPLACE TEMPORARY TABLE tmp SELECT f() AS n
CREATE TEMPORARY TABLE t SELECT f() AS n;; DROP TEMPORARY TABLE t
SET STATEMENT sort_buffer_size = 300000 FOR CREATE TABLE c SELECT f() AS n
BEGIN NOT ATOMIC DELETE FROM v; END
BEGIN NOT ATOMIC DECLARE y INT DEFAULT f(); END
IF f() THEN SET @a = 1; END IF
CASE WHEN f() THEN SET @a = 1; END CASE
FOR i IN 1..f() DO SET @a = 1; END FOR
WHILE f() < 1 DO SET @a = 1; END WHILE
REPEAT SET @a = 1; UNTIL f() END REPEAT
BEGIN NOT ATOMIC l: LOOP DELETE FROM v; LEAVE l; END LOOP; END
SET sql_mode = ORACLE;; BEGIN DELETE FROM v; END
SET sql_mode = ORACLE;; CREATE OR REPLACE PACKAGE k AS PROCEDURE r(); END;; CREATE OR REPLACE PACKAGE BODY k AS PROCEDURE r() AS BEGIN DELETE FROM v; END; END;; CALL k.r()
"""  # noqa: E501
WRITING_MYSQL = """
SET SESSION binlog_rows_query_log_events = 1;; DELETE FROM v
SET SESSION binlog_transaction_compression = 1;; DELETE FROM x
SET binlog_transaction_compression = 1;; XA START 'a';; DELETE FROM v;; XA END 'a';; XA PREPARE 'a';; XA COMMIT 'a'
/*M! FLUSH TABLES */ DELETE FROM v
/*M! ANALYZE TABLE o */ DELETE FROM x
WITH w AS (SELECT 1 AS id) DELETE FROM v
WITH w AS (SELECT 1 AS id) UPDATE v, w SET v.w = 'z' WHERE v.id = w.id
INSERT DELAYED INTO x VALUES (9,'z')
INSERT INTO x SELECT id + 10, w FROM (TABLE o) y
INSERT INTO x VALUES ROW(9,'z')
VALUES ROW(f())
TABLE vf
EXPLAIN ANALYZE SELECT f()
SET PERSIST sort_buffer_size = 300000 + f();; RESET PERSIST sort_buffer_size
INSERT INTO jv VALUES ('{"_id": 50, "w": "j"}')
"""

REFUSED = """
HANDLER v OPEN
HANDLER o OPEN;; HANDLER o READ FIRST WHERE f()
KILL QUERY 1000000 + f()
KILL QUERY (SELECT 1000000 + f())
TRUNCATE v
EXECUTE nothing
PREPARE s FROM 'SELECT ?';; EXECUTE s USING f()
ALTER TABLE o ADD COLUMN z INT DEFAULT (f())
ALTER TABLE o ADD COLUMN z INT AS (f())
ALTER TABLE o ADD CHECK (f() > 0)
ALTER TABLE o PARTITION BY HASH (f())
CREATE TABLE c (n INT DEFAULT (f()))
CREATE TABLE c LIKE v
CREATE EVENT e ON SCHEDULE AT NOW() + INTERVAL f() HOUR DO SET @a = 1
CREATE EVENT e ON SCHEDULE AT (SELECT NOW() + INTERVAL f() HOUR) DO SET @a = 1
CREATE EVENT e ON SCHEDULE EVERY f() HOUR DO SET @a = 1
BINLOG 'x'
IMPORT TABLE FROM 'x.sdi'
"""
REFUSED_MARIADB = """
WITH w AS (SELECT 1) DELETE FROM v
TABLE vf
EXPLAIN ANALYZE DELETE FROM v
INSERT DELAYED INTO x VALUES (9,'z')
SET STATEMENT max_statement_time = f() FOR SELECT 1
EXECUTE IMMEDIATE 'SELECT ?' USING f()
DELETE HISTORY FROM v
"""
REFUSED_MYSQL = """
ANALYZE DELETE FROM v
VALUES (f())
DELETE FROM v RETURNING id
EXECUTE IMMEDIATE 'DELETE FROM v'
SET STATEMENT max_statement_time = 9 FOR DELETE FROM v
BEGIN NOT ATOMIC DELETE FROM v; END
IF f() THEN SET @a = 1; END IF
CREATE TABLE c SELECT f() AS n
CREATE TABLE c TABLE vf
CREATE TABLE c VALUES ROW(f())
CREATE TEMPORARY TABLE tmp SELECT f() AS n
DELETE FROM jv
INSTALL COMPONENT 'file://component_query_attributes' SET GLOBAL sort_buffer_size = 300000 + f()
"""
TRIED = {"mariadb": (90, 25), "mysql": (61, 31)}
"""How many write, how many are refused."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """What LOAD reads: the server may be another user."""
    tmp_path.chmod(0o755)
    contents = {"csv": "50\ta\n51\tb\n", "xml": "<l><row><id>60</id><w>q</w></row></l>"}
    for kind, text in contents.items():
        (tmp_path / f"in.{kind}").write_text(text)
    return {kind: str(tmp_path / f"in.{kind}") for kind in contents}


def outcome(database: Database, source: Watch, log_format: str, steps: Steps, files: dict[str, str]) -> str:
    fill(database)
    before, start = contents(database, "t"), here(database)
    try:
        run_as(database, log_format, steps, files)
    except SqlError as error:
        return f"refused ({error})"
    return "nothing is written" if contents(database, "t") == before else came_of(database, source, start)


@pytest.mark.parametrize("log_format", ["ROW", "MIXED", "STATEMENT"])
def test_a_change_comes_as_rows_or_stops(
    database: Database, source: Watch, files: dict[str, str], log_format: str
) -> None:
    tried = cases(WRITING) + cases(WRITING_MARIADB if database.server.is_mariadb else WRITING_MYSQL)
    found = {steps: outcome(database, source, log_format, steps, files) for steps in tried}
    wanted = {"rows"} if log_format == "ROW" else {"rows", "stop"}
    wrong = [f"{what}: {';; '.join(steps)}" for steps, what in found.items() if what not in wanted]
    assert not wrong, "\n".join(wrong)
    assert len(found) == TRIED[database.server.flavor][0]


def test_what_is_refused_writes_nothing(database: Database, source: Watch, files: dict[str, str]) -> None:
    tried = cases(REFUSED) + cases(REFUSED_MARIADB if database.server.is_mariadb else REFUSED_MYSQL)
    found = {steps: outcome(database, source, "STATEMENT", steps, files) for steps in tried}
    wrong = [f"{what}: {';; '.join(steps)}" for steps, what in found.items() if not what.startswith("refused")]
    assert not wrong, "\n".join(wrong)
    assert len(found) == TRIED[database.server.flavor][1]


@pytest.fixture
def scheduler(database: Database) -> Iterator[None]:
    database.admin.execute_raw("SET GLOBAL event_scheduler=ON")
    yield
    database.admin.execute_raw("SET GLOBAL event_scheduler=OFF")


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("log_format", ["ROW", "MIXED", "STATEMENT"])
@pytest.mark.parametrize("change", ["DELETE FROM v", "DELETE FROM x", "CALL p()", "SET @a = f()"])
def test_an_event_writes_as_its_body_says(database: Database, source: Watch, log_format: str, change: str) -> None:
    fill(database)
    before, start = contents(database, "t"), here(database)
    database.admin.execute_raw(
        f"CREATE EVENT e ON SCHEDULE AT NOW() DO BEGIN SET SESSION binlog_format={log_format}; {change}; END"
    )
    wait_until(lambda: contents(database, "t") != before, "the event does not run")
    assert came_of(database, source, start) in ({"rows"} if log_format == "ROW" else {"rows", "stop"})
