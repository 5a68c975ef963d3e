"""What a mapping writes is what a plain ALTER TABLE gives, by both ways, in the server's own time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from sandbox.databases import Database
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, idents
from vreplication.mysql.session import Session, connect
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import row_literal_sql
from vreplication.schema.mapping import local_zone, map_tables
from vreplication.schema.model import TableMapping
from vreplication.schema.shadow import create_shadow

ZONE = "-03:30"
MOMENT = datetime(2024, 5, 6, 7, 8, 9, 999_999)
TABLE = """(id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET latin1, b INT, ts TIMESTAMP(3) NULL, d DATETIME,
 g INT AS (b + 1) VIRTUAL, e ENUM('x','y'), UNIQUE (b))"""
ROWS = """(1,'é',5,'2020-06-01 12:00:00.250','2020-06-01 12:00:00','x'),(2,NULL,NULL,NULL,NULL,NULL),
 (3,'a ',-7,'0000-00-00 00:00:00','0000-00-00 00:00:00','y')"""
ALTERS = [
    "ADD n INT NOT NULL FIRST, ADD c CHAR(3) NOT NULL AFTER a, ADD x DECIMAL(5,2) NOT NULL",
    "ADD e2 ENUM('q{0}','r') NOT NULL, ADD s SET('q') NOT NULL, ADD bi BINARY(3) NOT NULL, ADD bt BIT(9) NOT NULL",
    "ADD dd DATE NOT NULL, ADD tt TIME(2) NOT NULL, ADD dt DATETIME(3) NOT NULL, ADD y YEAR NOT NULL,"
    " ADD tx TEXT NOT NULL",
    "ADD p VARCHAR(9) DEFAULT 'it''s', ADD q INT DEFAULT 4 INVISIBLE, ADD g2 INT AS (id * 2) STORED",
    "MODIFY ts DATETIME(3), MODIFY d TIMESTAMP NULL",
    "MODIFY ts VARCHAR(40), MODIFY d DATE",
    "RENAME COLUMN a TO b, RENAME COLUMN b TO a, DROP COLUMN g",
    "DROP COLUMN a, ADD COLUMN a VARCHAR(20)",
    "CHANGE a z VARCHAR(30) CHARACTER SET utf8mb4, MODIFY e VARCHAR(5), MODIFY b BIGINT",
    "CONVERT TO CHARACTER SET utf8mb4, DROP PRIMARY KEY, ADD PRIMARY KEY (id, e), ADD UNIQUE (id),"
    " MODIFY e ENUM('y','x') NOT NULL",
]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as opened:
        yield opened


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def copy(session: Session, mapping: TableMapping, way: str) -> None:
    target, columns = ident(mapping.target.name), idents(pair.target.name for pair in mapping.pairs)
    session.execute_raw(f"DELETE FROM {target}")
    if way == "server":
        values = ",".join(pair.convert.format(ident(pair.source.name)) for pair in mapping.pairs)
        session.execute_raw(f"INSERT INTO {target} ({columns}) SELECT {values} FROM t")
        return
    for (row,) in session.rows(f"SELECT {row_literal_sql(mapping)} FROM t"):
        session.execute_raw(f"INSERT INTO {target} ({columns}) VALUES {text(row)}")


def contents(session: Session, mapping: TableMapping, table: str) -> list[tuple[object, ...]]:
    columns = ",".join(f"HEX({ident(c.name)})" for c in mapping.target.columns)
    return list(session.rows(f"SELECT {columns} FROM {ident(table)} ORDER BY id"))


def altered(session: Session, text: str) -> None:
    session.execute_raw(f"SET time_zone='{ZONE}'")
    try:
        session.execute_raw(f"ALTER TABLE t {text}")
    finally:
        session.execute_raw("SET time_zone='+00:00'")


@pytest.mark.parametrize("alter", ALTERS)
def test_both_ways_give_what_a_plain_alter_gives(database: Database, session: Session, alter: str) -> None:
    if "MODIFY e ENUM('y','x') NOT NULL" in alter:
        rows = ROWS.replace("(2,NULL,NULL,NULL,NULL,NULL)", "(2,NULL,NULL,NULL,NULL,'y')")
    else:
        rows = ROWS
    session.execute_raw(f"CREATE TABLE t {TABLE}")
    session.execute_raw(f"INSERT INTO t (id,a,b,ts,d,e) VALUES {rows}")
    clauses, source = parse_alter(alter), introspect(session, database.name, "t")
    shadow = create_shadow(session, source, clauses, "s")
    mapping = map_tables(source, shadow, clauses, is_mariadb=database.server.is_mariadb, global_time_zone=ZONE)
    found = {}
    for way in ("server", "literals"):
        copy(session, mapping, way)
        found[way] = contents(session, mapping, "s")
    altered(session, alter)
    expected = contents(session, mapping, "t")
    assert found == {"server": expected, "literals": expected}


def test_the_current_time_is_one_for_all_rows_and_local(database: Database, session: Session) -> None:
    session.execute_raw(f"CREATE TABLE t {TABLE}")
    session.execute_raw(f"INSERT INTO t (id,a,b,ts,d,e) VALUES {ROWS}")
    clauses = parse_alter(
        "ADD l DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3), ADD u TIMESTAMP DEFAULT CURRENT_TIMESTAMP, ADD n DATETIME"
    )
    source = introspect(session, database.name, "t")
    shadow = create_shadow(session, source, clauses, "s")
    mapping = map_tables(
        source,
        shadow,
        clauses,
        is_mariadb=database.server.is_mariadb,
        global_time_zone=ZONE,
        moment=MOMENT,
    )
    for way in ("server", "literals"):
        copy(session, mapping, way)
        rows = session.rows("SELECT DISTINCT CONCAT(l), CONCAT(u), n FROM s")
        assert rows == [("2024-05-06 03:38:09.999", "2024-05-06 07:08:09", None)]


@pytest.mark.only_on("mysql")
def test_functional_keys_that_are_there_already(database: Database, session: Session) -> None:
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), UNIQUE KEY f ((LOWER(a))))")
    source = introspect(session, database.name, "t")
    added = {}
    for alter in ("ADD x INT", "MODIFY a VARCHAR(5)", "ADD UNIQUE KEY u ((UPPER(a)))"):
        clauses = parse_alter(alter)
        shadow = create_shadow(session, source, clauses, "s")
        added[alter] = [k.name for k in map_tables(source, shadow, clauses, is_mariadb=False).added_unique]
        session.execute_raw("DROP TABLE s")
    assert added == {"ADD x INT": [], "MODIFY a VARCHAR(5)": ["f"], "ADD UNIQUE KEY u ((UPPER(a)))": ["u"]}


@pytest.mark.parametrize("kind", ["GEOMETRY", "JSON"])
def test_columns_without_a_value_for_old_rows_are_refused(database: Database, session: Session, kind: str) -> None:
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    clauses, source = parse_alter(f"ADD x {kind} NOT NULL"), introspect(session, database.name, "t")
    shadow = create_shadow(session, source, clauses, "s")
    if kind == "JSON" and not database.server.is_mariadb:
        assert [p.convert for p in map_tables(source, shadow, clauses, is_mariadb=False).pairs] == ["{}", "'null'"]
        return
    with pytest.raises(Refused, match="without a value"):
        map_tables(source, shadow, clauses, is_mariadb=database.server.is_mariadb)


@pytest.mark.parametrize(
    ("zone", "system", "expected"),
    [
        ("SYSTEM", "UTC", None),
        ("+00:00", "CET", None),
        ("SYSTEM", "CET", "SYSTEM"),
        ("SYSTEM", "GMT", "SYSTEM"),
        ("GMT", "CET", None),
        ("Europe/Paris", "UTC", "Europe/Paris"),
    ],
)
def test_zones_that_are_utc_need_no_conversion(zone: str, system: str, expected: str | None) -> None:
    assert local_zone(zone, system) == expected


WORDS = ["now", "current_timestamp", "current_timestamp()", "localtime", "NOW(6)"]


def test_a_default_that_is_text_is_no_clock(database: Database, session: Session) -> None:
    """SHOW COLUMNS shows DEFAULT 'now' like the function."""
    added = ", ".join(f"ADD c{i} VARCHAR(30) DEFAULT '{word}'" for i, word in enumerate(WORDS))
    mapping = added_by(database, session, f"{added}, ADD n ENUM('now','x') DEFAULT 'now'")
    for way in ("server", "literals"):
        copy(session, mapping, way)
        columns = ",".join(f"c{i}" for i in range(len(WORDS)))
        assert session.rows(f"SELECT DISTINCT {columns},n FROM s") == [(*WORDS, "now")]


def test_the_clock_in_text_has_the_digits_that_are_asked_for(database: Database, session: Session) -> None:
    alter = (
        "ADD x VARCHAR(40) DEFAULT (NOW(6)), ADD y VARCHAR(40) DEFAULT (NOW()), ADD z DECIMAL(20,6) DEFAULT (NOW(2))"
    )
    mapping = added_by(database, session, f"{alter}, ADD dd DATE DEFAULT (NOW(6))")
    for way in ("server", "literals"):
        copy(session, mapping, way)
        (row,) = session.rows("SELECT DISTINCT x, y, CONCAT(z), CONCAT(dd) FROM s")
        assert row[:2] == ("2024-05-06 07:08:09.999999", "2024-05-06 07:08:09")
        assert row[2:] == ("20240506070809.990000", "2024-05-06")


def added_by(database: Database, session: Session, alter: str) -> TableMapping:
    """Of an ALTER that began at MOMENT, with the table and the shadow that stand there then."""
    session.execute_raw(f"CREATE TABLE t {TABLE}")
    session.execute_raw(f"INSERT INTO t (id,a,b,ts,d,e) VALUES {ROWS}")
    clauses, source = parse_alter(alter), introspect(session, database.name, "t")
    shadow = create_shadow(session, source, clauses, "s")
    return map_tables(source, shadow, clauses, is_mariadb=database.server.is_mariadb, moment=MOMENT)
