"""What is copied is what is there: every kind of key, both paths, chunks and splits of odd sizes."""

from __future__ import annotations

import pytest
from rowcopy_setup import PATHS, CopyCase, make_case

from sandbox.databases import Database
from tests.support.flow import settings
from vreplication.mysql.ends import Ends
from vreplication.rowcopy.paths import BulkPath, make_path
from vreplication.state import ledger

NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT"

KEYS = {
    "integer": ("id INT PRIMARY KEY, v VARCHAR(20)", f"INSERT INTO t {NUMBERS} i * 3 - 150, i FROM n"),
    "unsigned": (
        "id BIGINT UNSIGNED PRIMARY KEY, v INT",
        f"INSERT INTO t {NUMBERS} 18446744073709551615 - i * 7, i FROM n",
    ),
    "composite": (
        "a INT, b VARCHAR(10) COLLATE utf8mb4_general_ci, v INT, PRIMARY KEY (a, b)",
        f"INSERT INTO t {NUMBERS} i % 4, CONCAT('k', i), i FROM n",
    ),
    "insensitive": (
        "id VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT",
        f"INSERT INTO t {NUMBERS} IF(i % 2, CONCAT('Ab', i), CONCAT('aB', i)), i FROM n",
    ),
    "binary": ("id VARBINARY(28) PRIMARY KEY, v INT", f"INSERT INTO t {NUMBERS} UNHEX(SHA2(i, 224)), i FROM n"),
    "date": ("id DATE PRIMARY KEY, v INT", f"INSERT INTO t {NUMBERS} '1999-12-01' + INTERVAL i DAY, i FROM n"),
    "time": (
        "id DATETIME(6), u TIMESTAMP(3) NOT NULL, v INT, PRIMARY KEY (id, u)",
        f"INSERT INTO t {NUMBERS} '2000-01-01' + INTERVAL i MICROSECOND, '2020-01-01' + INTERVAL i SECOND, i FROM n",
    ),
    "decimal": ("id DECIMAL(30, 10) PRIMARY KEY, v INT", f"INSERT INTO t {NUMBERS} i / 7 - 5, i FROM n"),
    "unique": (
        "v INT, `odd ``name` INT NOT NULL, UNIQUE KEY `my key` (`odd ``name`)",
        f"INSERT INTO t {NUMBERS} i, i * i FROM n",
    ),
    "enum": (
        "id ENUM('z', 'a', 'm') NOT NULL, n INT, v INT, PRIMARY KEY (id, n)",
        f"INSERT INTO t {NUMBERS} i % 3 + 1, i, i FROM n",
    ),
}


def case_of(database: Database, kind: str, alter: str = "ADD COLUMN extra INT DEFAULT 7 AFTER v") -> CopyCase:
    columns, fill = KEYS[kind]
    return make_case(database, f"CREATE TABLE t ({columns}) DEFAULT CHARSET=utf8mb4", alter, (fill,))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KEYS)
def test_every_key_type(database: Database, kind: str, path: str) -> None:
    case = case_of(database, kind)
    columns = ",".join(f"`{c.name.replace('`', '``')}`" for c in case.mapping.source.columns)
    case.copy_all(path, chunk_rows=23)
    case.assert_same(columns)
    chunks = case.chunks()
    assert len(chunks) >= 100 // 23
    assert {c.state for c in chunks} == {ledger.LANDED}
    assert sum(c.rows_copied for c in chunks) == 100
    assert [c.range.lower for c in chunks[1:]] == [c.range.upper for c in chunks[:-1]]
    assert ledger.find_split(case.session, "wf-copy", 0).is_done


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("rows", "chunk"), [(1, 1), (2, 1), (50, 50), (51, 50), (100, 99)])
def test_edges_of_chunks(database: Database, path: str, rows: int, chunk: int) -> None:
    fill = f"INSERT INTO t {NUMBERS} i, i FROM n WHERE i <= {rows}"
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=(fill,))
    case.copy_all(path, chunk_rows=chunk)
    case.assert_same()


TYPES = """CREATE TABLE t (
  id INT AUTO_INCREMENT PRIMARY KEY, u BIGINT UNSIGNED, d DECIMAL(65,30), f FLOAT, g DOUBLE, b BIT(20), ch CHAR(5),
  latin VARCHAR(10) CHARACTER SET latin1, wide VARCHAR(10) CHARACTER SET utf16, chinese VARCHAR(10) CHARACTER SET gbk,
  fixed BINARY(6), var VARBINARY(10), bl MEDIUMBLOB, tx MEDIUMTEXT, dt DATE, tm TIME(6), dtm DATETIME(3),
  ts TIMESTAMP(6) NULL, y YEAR, e ENUM('x','it''s','ü'), s SET('a','b','c'), j JSON, p POINT,
  n INT DEFAULT 3, gen INT AS (n + 1) STORED, virt INT AS (n * 2) VIRTUAL
) DEFAULT CHARSET=utf8mb4"""
VALUES = (
    "INSERT INTO t (id) VALUES (-2147483648), (0)",
    """INSERT INTO t (u,d,f,g,b,ch,latin,wide,chinese,fixed,var,bl,tx,dt,tm,dtm,ts,y,e,s,j,p) VALUES
    (18446744073709551615, -99999999999999999999999999999999999.999999999999999999999999999999, 1.1754944e-38, 5e-324,
     b'11111111111111111111', 'a\\n,(', 'ÿ''"\\\\', '𝒜b', '汉字', X'0100', X'00FF0A2C0A', X'2C0A', 'line\\n,\\n(1,2)',
     '0000-00-00', '-838:59:58.999999', '0001-01-01 00:00:00.123', '1970-01-01 00:00:01.000001', 2155, 'it''s', 'a,c',
     '{"a": [1, 2.50, null, "\\\\u00e9"], "b": -0.0}', ST_GeomFromText('POINT(1 -2)')),
    (0, 0.5, -0.1, -1.7976931348623157e308, 0, '', '', '', '', '', '', '', '', '2024-02-29', '00:00:00', 
     '9999-12-31 23:59:59.999', '2038-01-19 03:14:07.999999', 0, 'ü', '', '[]', NULL)""",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_all_types_byte_for_byte(database: Database, path: str) -> None:
    database.admin.execute_raw("SET SESSION sql_mode='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'")
    case = make_case(database, TYPES, "ADD KEY (u), ALGORITHM=COPY", VALUES)
    case.copy_all(path)
    columns = ",".join(f"HEX({c.name}),{c.name}" for c in case.mapping.source.columns)
    case.assert_same(columns)
    assert len(case.rows(case.shadow)) == 4


def test_blobs_of_megabytes_are_streamed(database: Database) -> None:
    sizes = ("0", "3000000", "1", "16", "900000")
    fill = tuple(f"INSERT INTO t SELECT {i}, REPEAT(X'00FF', {n}), 'x' FROM DUAL" for i, n in enumerate(sizes))
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB, c CHAR(1))", fill=fill)
    case.copy_all("rows")
    case.assert_same("id, SHA2(b, 256), c")
    assert len(case.chunks()) == 1


def test_row_longer_than_a_packet_is_copied_inside_the_server(database: Database) -> None:
    """6 MB are 12 MB of text; the job is told of a packet of 4 MB."""
    from dataclasses import replace

    from vreplication.rowcopy.chunker import copy_split

    fill = tuple(f"INSERT INTO t VALUES ({i}, REPEAT('y', {n}))" for i, n in enumerate((10, 6_000_000, 20)))
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT)", fill=fill)
    case.cut()
    job = replace(case.job("rows"), packet=4 << 20)
    with case.gate_kept_open():
        assert copy_split(case.route, case.driver, case.mapping, job, 0).error is None
    case.assert_same("id, SHA2(b, 256)")


@pytest.mark.parametrize("path", PATHS)
def test_value_whose_text_no_packet_holds_is_no_null(database: Database, path: str) -> None:
    """It fits into a packet, its literal does not: HEX and CONCAT give NULL then."""
    from dataclasses import replace

    from vreplication.rowcopy.chunker import copy_split

    fill = ("INSERT INTO t VALUES (1, 'a', 'b'), (2, REPEAT('y', 700000), NULL), (3, NULL, REPEAT('z', 900000))",)
    with settings(database, {"max_allowed_packet": 1 << 20}):
        case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT, c LONGBLOB)", fill=fill)
        case.cut()
        job = replace(case.job(path), packet=1 << 20)
        with case.gate_kept_open():
            assert copy_split(case.route, case.driver, case.mapping, job, 0).error is None
        case.assert_same("id, SHA2(b, 256), SHA2(c, 256)")


@pytest.mark.parametrize("path", PATHS)
def test_sizes_follow_the_time_that_chunks_take(database: Database, path: str) -> None:
    fill = (
        f"INSERT INTO t {NUMBERS} i, i FROM n",
        *(f"INSERT INTO t SELECT id + {100 << k}, v FROM t" for k in range(8)),
    )
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=fill)
    case.copy_all(path, chunk_millis=5_000)
    case.assert_same()
    copied = [c.rows_copied for c in case.chunks()]
    assert copied[:3] == [2000, 4000, 8000]


@pytest.mark.parametrize("path", PATHS)
def test_strings_of_every_length_class(database: Database, path: str) -> None:
    """Around the borders of length-encoded strings, NULL and '' told apart."""
    columns = "s VARCHAR(250) CHARACTER SET ascii, v VARCHAR(300), m MEDIUMTEXT, b MEDIUMBLOB"
    create = f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) DEFAULT CHARSET=utf8mb4"
    values = (
        f"({n}, REPEAT('s', {min(n, 250)}), REPEAT('v', {min(n, 300)}), REPEAT('é', {n}), REPEAT(X'00FF', {n}))"
        for n in (0, 1, 125, 126, 250, 251, 255, 256, 32767, 32768, 65536)
    )
    fill = (f"INSERT INTO t VALUES {','.join(values)}", "INSERT INTO t (id) VALUES (-1)")
    case = make_case(database, create, fill=fill)
    case.copy_all(path)
    case.assert_same("id, s, v, SHA2(m, 256), LENGTH(m), SHA2(b, 256), LENGTH(b)")
    assert len(case.chunks()) == 1


@pytest.mark.only_on("mariadb")
def test_values_travel_without_text_on_mariadb(database: Database) -> None:
    fill = ("INSERT INTO t VALUES (1,1),(2,2)",)
    case = make_case(database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", fill=fill)
    path = make_path(Ends.on(case.session), case.mapping, case.job("rows"))
    assert isinstance(path, BulkPath)
    case.copy_all("rows")
    case.assert_same()
