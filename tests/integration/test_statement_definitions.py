"""Every statement that replaces the table stops the reader, and what changes nothing of ours passes.

The lists are of the two grammars.
"""

from __future__ import annotations

import pytest
from statement_setup import OBJECTS, came_of, cases, fill, run_as, source, stops

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support.private_server import private_server
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog.watch import Watch

__all__ = ["source"]

pytestmark = pytest.mark.either

REPLACING = """
TRUNCATE t
TRUNCATE TABLE {schema}.`t`
TRUNCATE /*!40000 t */
-- TRUNCATE o~truncate # o~t
TRUNCATE /*+ o */ t
ALTER/**/TABLE/**/`t`COMMENT'x'
USE mysql;; ALTER TABLE {schema} . t COMMENT 'x'
SET sql_mode = ANSI_QUOTES;; TRUNCATE "t"
SET sql_mode = NO_BACKSLASH_ESCAPES;; ALTER TABLE o COMMENT 'a\\', RENAME TO o2, COMMENT 'b';; TRUNCATE t
CREATE PROCEDURE r() TRUNCATE t;; CALL r()
PREPARE s FROM 'TRUNCATE t';; EXECUTE s
CREATE PROCEDURE r() TRUNCATE t;; USE mysql;; CALL {schema}.r()
PREPARE s FROM 'TRUNCATE t';; USE mysql;; EXECUTE s
LOCK TABLES t WRITE;; TRUNCATE t
ALTER TABLE t DISCARD TABLESPACE
ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2
ALTER TABLE part EXCHANGE PARTITION p0 WITH TABLE t
RENAME TABLE o TO o2, t TO o
DROP TABLE IF EXISTS nothing, t
DROP DATABASE {schema}
"""
REPLACING_MARIADB = """
/*!50701 ALTER TABLE o COMMENT '' */ TRUNCATE t
TRUNCATE /*M! t */
SET sql_mode = ORACLE;; DROP TABLE "t"
SET STATEMENT sort_buffer_size = 300000 FOR TRUNCATE t
EXECUTE IMMEDIATE 'TRUNCATE t'
BEGIN NOT ATOMIC TRUNCATE t; END
CREATE OR REPLACE TABLE t (id INT)
CREATE OR REPLACE TABLE t LIKE my
CREATE OR REPLACE TABLE t SELECT 1 AS id
CREATE OR REPLACE SEQUENCE t
ALTER TABLE part CONVERT TABLE t TO PARTITION p1 VALUES LESS THAN (2000)
RENAME TABLE IF EXISTS t TO t2
CREATE OR REPLACE DATABASE {schema}
"""
REPLACING_MYSQL = """
/*!50701 TRUNCATE */ t
/*M! ALTER TABLE o COMMENT '' */ TRUNCATE t
"""


@pytest.mark.parametrize("log_format", ["ROW", "STATEMENT"])
def test_every_way_to_replace_the_table_stops(database: Database, log_format: str) -> None:
    """Each on a database that is made again."""
    tried = cases(REPLACING) + cases(REPLACING_MARIADB if database.server.is_mariadb else REPLACING_MYSQL)
    wrong = []
    for steps in tried:
        database.admin.execute_raw(f"DROP DATABASE IF EXISTS {database.name}")
        database.admin.execute_raw(f"CREATE DATABASE {database.name}")
        database.admin.execute_raw(f"USE {database.name}")
        for statement in OBJECTS.strip().splitlines():
            database.admin.execute_raw(statement)
        if "CONVERT TABLE" not in steps[0]:
            database.admin.execute_raw("INSERT INTO t VALUES (1,'a')")
        source, start = watch(database, "t"), here(database)
        run_as(database, log_format, tuple(s.replace("{schema}", database.name) for s in steps), {})
        database.admin.execute_raw(f"CREATE DATABASE IF NOT EXISTS {database.name}")
        if not stops(database, start, source):
            wrong.append(steps)
    assert wrong == []
    assert len(tried) == (33 if database.server.is_mariadb else 22)


PASSING = """
CREATE TABLE c SELECT * FROM t
CREATE TABLE c AS WITH w AS (SELECT f() AS n) SELECT * FROM o
CREATE TABLE IF NOT EXISTS t (id INT)
CREATE TABLE IF NOT EXISTS o SELECT 9 AS id
CREATE TABLE c LIKE t;; ALTER TABLE c ADD COLUMN t INT;; CREATE INDEX t ON c (t);; RENAME TABLE c TO t2;; DROP TABLE t2
CREATE TEMPORARY TABLE tmp SELECT * FROM t;; ALTER TABLE tmp ADD COLUMN t INT;; DROP TABLE tmp
CREATE TEMPORARY TABLE t (id INT);; INSERT INTO t VALUES (7);; DELETE FROM t;; DROP TEMPORARY TABLE t
CREATE TABLE c (n INT) PARTITION BY LIST (n) (PARTITION p VALUES IN (1, 2))
CREATE OR REPLACE VIEW v AS SELECT * FROM t;; ALTER VIEW v AS SELECT * FROM t
CREATE PROCEDURE r() DELETE FROM t;; ALTER PROCEDURE r COMMENT 't';; DROP PROCEDURE r
CREATE EVENT e ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM t;; ALTER EVENT e COMMENT 't';; DROP EVENT e
CREATE TRIGGER other BEFORE INSERT ON o FOR EACH ROW DELETE FROM t;; DROP TRIGGER other
CREATE USER {schema}_u;; GRANT SELECT, DELETE ON t TO {schema}_u;; REVOKE DELETE ON t FROM {schema}_u;; DROP USER {schema}_u
CREATE USER {schema}_u;; RENAME USER {schema}_u TO {schema}_w;; ALTER USER {schema}_w ACCOUNT LOCK;; DROP USER {schema}_w
CREATE ROLE {schema}_r;; DROP ROLE {schema}_r
CREATE DATABASE {schema}_o;; ALTER DATABASE {schema}_o CHARACTER SET latin1;; DROP DATABASE {schema}_o
ALTER DATABASE {schema} CHARACTER SET utf8mb4
ANALYZE TABLE t
ANALYZE LOCAL TABLE t
CHECK TABLE t
CHECKSUM TABLE t
OPTIMIZE TABLE o
REPAIR TABLE my
FLUSH TABLES t
FLUSH PRIVILEGES
DROP TABLE IF EXISTS nothing
DROP VIEW IF EXISTS nothing
DROP DATABASE IF EXISTS nothing
SET SESSION sort_buffer_size = 300000
SHOW TABLES
EXPLAIN DELETE FROM t
SELECT * FROM t WHERE id = 1 FOR UPDATE
TRUNCATE o
/*!40000 ALTER TABLE o DISABLE KEYS */
CREATE SERVER {schema}_s FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1');; DROP SERVER {schema}_s
"""  # noqa: E501
PASSING_MARIADB = """
ANALYZE TABLE t PERSISTENT FOR ALL
REPAIR VIEW v
CREATE OR REPLACE TABLE c SELECT f() AS n
CREATE OR REPLACE DATABASE {schema}_o;; DROP DATABASE {schema}_o
CREATE SEQUENCE q;; SELECT NEXTVAL(q);; SELECT SETVAL(q, 50);; ALTER SEQUENCE q RESTART;; CREATE OR REPLACE SEQUENCE q;; DROP SEQUENCE q
CREATE USER {schema}_u;; SET PASSWORD FOR {schema}_u = PASSWORD('x');; DROP USER {schema}_u
CREATE ROLE {schema}_r;; GRANT {schema}_r TO root@localhost;; SET DEFAULT ROLE {schema}_r FOR root@localhost;; DROP ROLE {schema}_r
SET STATEMENT sort_buffer_size = 300000 FOR ALTER TABLE o COMMENT 't'
FLUSH QUERY CACHE
SET sql_mode = ORACLE;; CREATE PACKAGE k AS PROCEDURE r(); END;; DROP PACKAGE k
ALTER ONLINE TABLE o COMMENT 'x'
BACKUP LOCK o;; BACKUP UNLOCK
DROP SEQUENCE IF EXISTS nothing
"""  # noqa: E501
PASSING_MYSQL = """
ANALYZE TABLE t UPDATE HISTOGRAM ON w WITH 4 BUCKETS;; ANALYZE TABLE t DROP HISTOGRAM ON w
CREATE TABLE c TABLE o
CREATE TABLE c VALUES ROW(1)
SET DEFAULT ROLE NONE TO root@localhost
CREATE SPATIAL REFERENCE SYSTEM 990001 NAME 't' DEFINITION 'GEOGCS["Greek",DATUM["Greek",SPHEROID["Bessel 1841",6377397.155,299.1528128]],PRIMEM["Greenwich",0],UNIT["degree",0.017453292519943278],AXIS["Lat",NORTH],AXIS["Lon",EAST]]';; DROP SPATIAL REFERENCE SYSTEM 990001
CREATE LIBRARY k LANGUAGE JAVASCRIPT AS 'export function g(n){{return "it\\'s"}}';; DROP LIBRARY k
CREATE MATERIALIZED VIEW m AS SELECT id FROM o;; DROP VIEW m
ALTER INSTANCE RELOAD TLS
"""  # noqa: E501


def test_what_changes_nothing_of_ours_passes_in_row_format(database: Database, source: Watch) -> None:
    tried = cases(PASSING) + cases(PASSING_MARIADB if database.server.is_mariadb else PASSING_MYSQL)
    wrong = []
    for steps in tried:
        fill(database)
        start = here(database)
        run_as(database, "ROW", tuple(s.replace("{schema}", database.name) for s in steps), {})
        if (found := came_of(database, source, start)) != "rows":
            wrong.append(f"{found}: {';; '.join(steps)}")
    assert not wrong, "\n".join(wrong)
    assert len(tried) == (48 if database.server.is_mariadb else 43)


@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_an_emptied_memory_table_passes(flavor: str) -> None:
    """The server tells its replicas what a restart did, in the words of whatever session comes first."""
    with private_server(flavor) as server:
        database = create_database(server)
        database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        memory = ("m1", "`a b``c`", "`mä`", "`m4`")
        for name in memory:
            database.admin.execute_raw(f"CREATE TABLE {name} (id INT) ENGINE=MEMORY")
            database.admin.execute_raw(f"INSERT INTO {name} VALUES (1)")
        database.close()
        server.restart()
        source, start = watch(database, "t"), here(database)
        touch(database, *memory)
        log = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
        assert sum("TRUNCATE TABLE" in str(event[5]) for event in log) == len(memory)
        assert [c.key for c in changes(groups(database, start, source))] == ["1", "2"]


def touch(database: Database, plain: str, spaced: str, foreign: str, of_another: str) -> None:
    """Read each for the first time: in a transaction, with other quotes, from another schema and character set."""
    with database.server.admin(database.name) as app:
        for statement in (
            "BEGIN",
            "INSERT INTO t VALUES (1)",
            f"SELECT * FROM {plain}",
            "INSERT INTO t VALUES (2)",
            "COMMIT",
            "SET sql_mode=ANSI_QUOTES",
            f"SELECT * FROM {spaced}",
            "SET NAMES gbk",
            "USE mysql",
            f"SELECT * FROM {database.name}.{of_another}",
            "SET NAMES utf8mb4",
            f"SELECT * FROM {database.name}.{foreign}",
        ):
            app.execute_raw(statement)
