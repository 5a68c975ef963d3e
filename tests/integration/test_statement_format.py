"""Every kind of statement that can write to a table without naming it: its rows arrive, or the reader stops.

The lists are of the two grammars. What a server refuses is listed as refused, so that nothing is tried in vain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support.flow import wait_until
from tests.support.private_server import private_server
from tests.support.tailing import apply, changes, groups, here, watch
from vreplication.binlog.charsets import EXACT, codec_of
from vreplication.binlog.events import Position
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged
from vreplication.mysql.session import SqlError, connect
from vreplication.mysql.url import SourceUrl

pytestmark = pytest.mark.either

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
def source(database: Database) -> Watch:
    for statement in OBJECTS.strip().splitlines():
        database.admin.execute_raw(statement)
    if not database.server.is_mariadb:
        document = "JSON_DUALITY_OBJECT(WITH(INSERT,UPDATE,DELETE) '_id': id, 'w': w)"
        database.admin.execute_raw(f"CREATE JSON RELATIONAL DUALITY VIEW jv AS SELECT {document} FROM t")
    return watch(database, "t")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """What LOAD reads: the server may be another user."""
    tmp_path.chmod(0o755)
    contents = {"csv": "50\ta\n51\tb\n", "xml": "<l><row><id>60</id><w>q</w></row></l>"}
    for kind, text in contents.items():
        (tmp_path / f"in.{kind}").write_text(text)
    return {kind: str(tmp_path / f"in.{kind}") for kind in contents}


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


# -- definitions, in row format ----------------------------------------------------------------------------------------

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


def stops(database: Database, start: Position, source: Watch) -> bool:
    try:
        groups(database, start, source)
    except SourceChanged as error:
        return "cannot be read" not in error.message
    return False


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


# -- names in clients' character sets ----------------------------------------------------------------------------------

NAMES = {
    **dict.fromkeys(("utf8mb3", "utf8mb4", "binary"), "tä".encode()),
    **dict.fromkeys(("sjis", "cp932"), b"\x95\x5c\x81\x60"),
    **dict.fromkeys(("ujis", "eucjpms"), b"\xc9\xbd\xa1\xc1"),
    **dict.fromkeys(("gbk", "gb2312"), b"\xb1\xed\xb8\xf1"),
    **{"gb18030": b"\xb1\xed\xa8\xbc", "big5": b"\xaa\xed\xa5\x5c", "euckr": b"\xc7\xa5"},
    **{"cp866": b"t\xfc", "koi8u": b"t\x95", "greek": b"t\xa1\xeb", "hebrew": b"t\xaf\xe0", "geostd8": b"t\xc1\xc2"},
    **{"tis620": b"t\xa1\xa2", "latin1": b"\xc4rg\x81r"},
}
"""The bytes in which a client names the table; those not listed: t\xc4\xe4. With trailing backslashes, and with letters
for which Python has another one."""
NO_CLIENT = ("ucs2", "utf16", "utf16le", "utf32", "ascii", "swe7")


def charsets(database: Database) -> list[str]:
    listed = database.admin.rows("SELECT character_set_name FROM information_schema.character_sets")
    return sorted({str(name) for (name,) in listed} - set(NO_CLIENT))


def in_utf8(database: Database, raw: bytes, charset: str) -> str:
    charset = "utf8mb4" if charset == "binary" else charset
    return str(database.admin.value(f"SELECT CONVERT(CONVERT(X'{raw.hex()}' USING {charset}) USING utf8mb4)"))


@pytest.fixture
def definer(database: Database) -> Iterator[SourceUrl]:
    """Of a name that the server writes in UTF-8 into the text of a client of another character set."""
    name = f"{database.name[-8:]}_中文"
    database.admin.execute_raw(f"CREATE USER `{name}` IDENTIFIED BY '{database.password}'")
    database.admin.execute_raw(f"GRANT ALL ON *.* TO `{name}`")
    yield database.server.plain(database.server.url(database.name, user=name, password=database.password))
    database.admin.execute_raw(f"DROP USER `{name}`")


def test_a_client_of_any_character_set_is_understood(database: Database, definer: SourceUrl) -> None:
    """Its own text, text that the server makes of it, and a mixture; the log tells the client's character set only."""
    found = charsets(database)
    unseen = []
    for charset in found:
        raw = NAMES.get(charset, b"t\xc4\xe4")
        name = in_utf8(database, raw, charset)
        assert "?" not in name, charset
        for statement in (
            b"TRUNCATE `%s`",
            b"ALTER TABLE `%s` COMMENT 'x'",
            b"CREATE TRIGGER g BEFORE INSERT ON `%s` FOR EACH ROW SET @a = 1",
            b"DROP TABLE IF EXISTS nothing, `%s`",
            *([b"CREATE OR REPLACE TABLE `%s` SELECT 1 AS id"] if database.server.is_mariadb else []),
        ):
            # MariaDB leaves a trigger behind whose text it cannot read any more.
            database.admin.execute_raw("DROP TRIGGER IF EXISTS g")
            database.admin.execute_raw(f"DROP TABLE IF EXISTS `{name}`")
            database.admin.execute_raw(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)")
            source, start = watch(database, name), here(database)
            with connect(definer) as app:
                app.execute_raw(f"SET NAMES {charset}")
                app.execute_raw(statement % raw)
            if not stops(database, start, source):
                unseen.append((charset, name, statement))
    assert unseen == []
    assert len(found) >= 30


def test_exact_codecs_give_the_servers_letters(database: Database) -> None:
    wrong, seen = [], set()
    for charset in charsets(database):
        codec = codec_of(charset)
        if codec not in EXACT or codec == "utf-8":
            continue
        seen.add(codec)
        for number in range(128, 256):
            told = in_utf8(database, bytes([number]), charset)
            ours = bytes([number]).decode(codec, "replace")
            if ours not in (told, "\ufffd") and told not in ("?", "None"):
                wrong.append((charset, number, ours, told))
    assert wrong == []
    assert seen == EXACT - {"utf-8", "ascii"}


@pytest.mark.parametrize(
    ("name", "clients"),
    [("t", ("latin1", "cp1251", "koi8r")), ("orders", ("gbk", "sjis", "geostd8")), ("tä", ("latin1", "cp1251"))],
)
def test_text_of_a_client_that_means_another_table_passes(
    database: Database, name: str, clients: tuple[str, ...]
) -> None:
    for table in (name, "o"):
        database.admin.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    source, start = watch(database, name), here(database)
    with database.server.admin(database.name) as app:
        for charset in clients:
            app.execute_raw(f"SET NAMES {charset}")
            app.execute_raw(b"ALTER TABLE o COMMENT '\xb1\xed\xb8\xf1'")
    database.admin.execute_raw(f"INSERT INTO {name} VALUES (1)")
    assert len(changes(groups(database, start, source))) == 1


# -- MEMORY tables -----------------------------------------------------------------------------------------------------


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
