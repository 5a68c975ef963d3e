"""Literals made on the server are the values themselves: a row written from its literals is the row."""

from __future__ import annotations

import random

import pytest

from sandbox.databases import Database
from tests.support.private_server import VECTORS, is_older
from vreplication.mysql.quoting import ident, idents
from vreplication.mysql.session import Session, connect
from vreplication.schema.alter import parse_alter
from vreplication.schema.bounds import equal_sql, order_sql, range_sql
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import bound_sql, key_literal_sql, literal_sql, row_literal_sql
from vreplication.schema.mapping import map_tables
from vreplication.schema.model import Column

COLUMNS = {
    "ti": ("TINYINT", ["-128", "127"]),
    "bu": ("BIGINT UNSIGNED", ["18446744073709551615", "0"]),
    "bs": ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    "zf": ("INT(8) ZEROFILL", ["42", "0"]),
    "de": ("DECIMAL(65,30)", ["-99999999999999999999999999999999999.000000000000000000000000000001", "0"]),
    "dz": ("DECIMAL(10,3) ZEROFILL", ["1.5", "0"]),
    "fl": ("FLOAT", ["1.1", "-3.4028234e38", "1e-45", "16777216", "-0e0"]),
    "fm": ("FLOAT(7,3)", ["1.234", "-99.9"]),
    "do": ("DOUBLE", ["0.1e0+0.2e0", "2.2250738585072014e-308", "-1.2345678901234567e-200", "5e-324", "1e16"]),
    "dm": ("DOUBLE(10,2)", ["1.1", "12345678.91"]),
    "bi": ("BIT(64)", ["18446744073709551615", "1"]),
    "ye": ("YEAR", ["0", "1901", "2155"]),
    "da": ("DATE", ["'0000-00-00'", "'2020-02-31'", "'9999-12-31'", "'2020-00-10'"]),
    "tm": ("TIME(6)", ["'-838:59:59.000000'", "'-00:00:00.500000'", "'838:59:58.999999'"]),
    "dt": ("DATETIME(6)", ["'0000-00-00 00:00:00.000000'", "'0001-01-01 00:00:00.000001'"]),
    "ts": ("TIMESTAMP(3) NULL", ["'0000-00-00 00:00:00.000'", "'2038-01-19 03:14:07.999'"]),
    "ch": ("CHAR(10) CHARACTER SET utf8mb4", ["'a'", "'😀'", "''"]),
    "vl": ("VARCHAR(10) CHARACTER SET latin1", ["_latin1 X'81E9'", "'a '", "''"]),
    "vg": ("VARCHAR(10) CHARACTER SET gbk", ["_gbk X'B0A1'", "_gbk X'D55C27'"]),
    "vu": ("VARCHAR(10) CHARACTER SET utf16", ["'é'", "'''\\\\'"]),
    "vb": ("VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ["'A'", "'NULL'"]),
    "tx": ("MEDIUMTEXT", ["REPEAT('é',70000)", "'\\0\\n'"]),
    "bn": ("BINARY(5)", ["X'0100'", "''", "X'FF00FF'"]),
    "vn": ("VARBINARY(5)", ["X'0100'", "''"]),
    "bl": ("LONGBLOB", ["REPEAT(X'00FF',100000)", "''"]),
    "en": ("ENUM('a','b''c','é') CHARACTER SET latin1", ["'é'", "'b''c'"]),
    "se": ("SET('x','y','z')", ["'x,z'", "''"]),
    "js": ("JSON", ['\'{"a": [1, 2.5, null, "é"]}\'', "'[]'"]),
    "ge": ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)',4326)", "ST_GeomFromText('LINESTRING(0 0,1 1)')"]),
}
ONLY = {
    "mariadb": {
        "uu": ("UUID", ["'123e4567-e89b-12d3-a456-426614174000'"]),
        "i6": ("INET6", ["'::ffff:1.2.3.4'", "'fe80::1'"]),
        "i4": ("INET4", ["'255.0.0.1'"]),
    },
    "mysql": {} if is_older("mysql", VECTORS) else {"ve": ("VECTOR(3)", ["STRING_TO_VECTOR('[1,2.5,-3]')"])},
}


@pytest.fixture
def session(database: Database) -> Session:
    return connect(database.app_url)


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_row_from_its_literals_is_the_row(database: Database, session: Session) -> None:
    columns = {**COLUMNS, **ONLY[database.server.flavor]}
    definition = ",".join(f"{name} {kind[0]}" for name, kind in columns.items())
    session.execute_raw(f"CREATE TABLE a (id INT PRIMARY KEY, {definition}, g INT AS (ti + 1) VIRTUAL)")
    session.execute_raw("CREATE TABLE b LIKE a")
    for i in range(5):
        values = [kind[1][i] if i < len(kind[1]) else "NULL" for kind in columns.values()]
        session.execute_raw(f"INSERT INTO a (id,{idents(columns)}) VALUES ({i},{','.join(values)})")
    table = introspect(session, database.name, "a")
    mapping = map_tables(
        table, introspect(session, database.name, "b"), parse_alter("FORCE"), is_mariadb=database.server.is_mariadb
    )
    target = idents(pair.target.name for pair in mapping.pairs)
    for (row,) in session.rows(f"SELECT {row_literal_sql(mapping, alias='x')} FROM a x"):
        session.execute_raw(f"INSERT INTO b ({target}) VALUES {text(row)}")
    for column in table.columns:
        # A DOUBLE as hexadecimal is its whole part: as JSON it has all of its digits.
        shown = {"float": "JSON_ARRAY(c*1e0)", "double": "JSON_ARRAY(c*1e0)"}.get(column.data_type, "HEX(c)")
        shown = shown.replace("c", ident(column.name)) if "(c" in shown else shown
        assert session.rows(f"SELECT id,{shown} FROM a") == session.rows(f"SELECT id,{shown} FROM b"), column.name


def test_doubles_keep_their_last_bit(database: Database, session: Session) -> None:
    drawn = random.Random(7)
    doubles = [drawn.uniform(-1, 1) * 10.0 ** drawn.randint(-300, 300) for _ in range(300)]
    session.execute_raw("CREATE TABLE d (id INT PRIMARY KEY, d DOUBLE)")
    session.execute_raw(f"INSERT INTO d VALUES {','.join(f'({i},{d!r})' for i, d in enumerate(doubles))}")
    column = introspect(session, database.name, "d").column("d")
    found = session.rows(f"SELECT {literal_sql(column, 'd')} FROM d ORDER BY id")
    assert [float(text(row[0])) for row in found] == doubles


def test_numbers_have_one_text(database: Database, session: Session) -> None:
    """Keys of integers and binaries are compared as texts."""
    session.execute_raw("CREATE TABLE n (id INT(8) ZEROFILL, b BINARY(3), PRIMARY KEY (id, b))")
    session.execute_raw("INSERT INTO n VALUES (7, X'0A')")
    table = introspect(session, database.name, "n")
    literals = key_literal_sql(table.columns, ["id", "b"])
    assert text(session.value(f"SELECT {literals} FROM n")) == "7,X'0A0000'"


KEYS = {
    "int": ("id INT", "id", ["seq*3"]),
    "three parts": (
        "a INT, b VARCHAR(20), c DATETIME",
        "a,b,c",
        ["seq DIV 50", "CONCAT('b',seq MOD 7)", "'2020-01-01'+INTERVAL seq HOUR"],
    ),
    "enum": ("e ENUM('z','a','m'), i INT", "e,i", ["1+seq MOD 3", "seq"]),
    "latin1": ("s VARCHAR(30) CHARACTER SET latin1", "s", ["CONCAT('k',seq*7919 MOD 10007)"]),
    "utf16": ("s VARCHAR(30) CHARACTER SET utf16", "s", ["CONCAT('k',seq*7919 MOD 10007)"]),
    "binary": ("k BINARY(16)", "k", ["LEFT(UNHEX(SHA2(seq,256)),16)"]),
    "date": ("d DATE, n INT", "d,n", ["'2020-01-01'+INTERVAL seq DIV 10 DAY", "seq"]),
    "timestamp": ("t TIMESTAMP(6), i INT", "t,i", ["'2020-01-01 10:00:00'+INTERVAL seq DIV 3 SECOND", "seq"]),
    "time": ("t TIME(2), i INT", "t,i", ["SEC_TO_TIME(seq*7-9000)", "seq"]),
    "year": ("y YEAR, i INT", "y,i", ["IF(seq MOD 5=0,0,2000+seq MOD 5)", "seq"]),
    "decimal": ("d DECIMAL(20,4)", "d", ["seq*1.0001-900"]),
    "bit": ("b BIT(20)", "b", ["seq"]),
    "uuid": ("u UUID", "u", ["CONCAT('0000000',seq MOD 10,'-0000-4000-8000-',LPAD(seq,12,'0'))"]),
    "inet6": ("u INET6", "u", ["CONCAT('::',HEX(seq))"]),
}
ROWS, CHUNK = 1200, 150


@pytest.mark.parametrize("case", KEYS)
def test_ranges_tile_the_table_and_read_no_more_than_their_rows(
    database: Database, session: Session, case: str
) -> None:
    definition, key, values = KEYS[case]
    if case in ("uuid", "inet6") and not database.server.is_mariadb:
        pytest.skip("a type of MariaDB")
    limit = "max_recursive_iterations" if database.server.is_mariadb else "cte_max_recursion_depth"
    session.execute_raw(f"SET SESSION {limit}=100000")
    session.execute_raw(f"CREATE TABLE k ({definition}, v INT, PRIMARY KEY ({key}))")
    session.execute_raw(
        f"INSERT INTO k ({key}) WITH RECURSIVE q AS (SELECT 1 AS seq UNION ALL SELECT seq+1 FROM q WHERE seq<{ROWS})"
        f" SELECT {','.join(values)} FROM q"
    )
    table = introspect(session, database.name, "k")
    columns = [table.column(name) for name in table.keys[0].columns]
    counts = list(_walk(session, columns))
    assert sum(counts) == ROWS
    assert counts == [CHUNK] * (ROWS // CHUNK) + [0] * (len(counts) - ROWS // CHUNK)


def _walk(session: Session, columns: list[Column]) -> list[int]:
    bounds = ",".join(bound_sql(c, ident(c.name)) for c in columns)
    lo: list[str] | None = None
    counts = []
    while True:
        found = session.row(
            f"SELECT {bounds} FROM k FORCE INDEX (PRIMARY) WHERE {range_sql(columns, lo, None)}"
            f" ORDER BY {order_sql(columns)} LIMIT 1 OFFSET {CHUNK - 1}"
        )
        hi = [text(value) for value in found] if found else None
        counts.append(_count(session, columns, lo, hi))
        if hi is None:
            return counts
        lo = hi


def _count(session: Session, columns: list[Column], lo: list[str] | None, hi: list[str] | None) -> int:
    before = _reads(session)
    rows = session.rows(f"SELECT v FROM k FORCE INDEX (PRIMARY) WHERE {range_sql(columns, lo, hi)}")
    reads = _reads(session) - before
    assert reads <= len(rows) + 10
    return len(rows)


def _reads(session: Session) -> int:
    return sum(int(row[1]) for row in session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_bounds_are_inclusive_where_they_should_be(database: Database, session: Session) -> None:
    session.execute_raw("CREATE TABLE k (a INT, e ENUM('z','y'), PRIMARY KEY (a, e))")
    session.execute_raw("INSERT INTO k VALUES (1,'z'),(1,'y'),(2,'z'),(2,'y')")
    table = introspect(session, database.name, "k")
    columns = list(table.columns)
    lo, hi = ["1", "1"], ["2", "1"]
    open_below = session.rows(f"SELECT a,e FROM k WHERE {range_sql(columns, lo, hi)} ORDER BY a,e")
    closed = session.rows(f"SELECT a,e FROM k WHERE {range_sql(columns, lo, hi, lo_inclusive=True)} ORDER BY a,e")
    assert open_below == [(1, "y"), (2, "z")]
    assert closed == [(1, "z"), *open_below]
    assert session.rows(f"SELECT a,e FROM k WHERE {range_sql(columns, None, None)}") == [*closed, (2, "y")]
    assert session.rows(
        f"SELECT a,e FROM k x WHERE {equal_sql(columns, ['1', chr(39) + 'y' + chr(39)], alias='x')}"
    ) == [(1, "y")]
