"""What the server says about a copying statement: duplicates pass, bad values fail with table, column and key."""

from __future__ import annotations

import re

import pytest
from rowcopy_setup import PATHS, CopyCase, make_case

from sandbox.databases import Database
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident
from vreplication.settings import SIDECAR

BAD = {
    "too long": ("v VARCHAR(20)", "MODIFY v VARCHAR(3)", "'abcd'", "v"),
    "out of range": ("v INT", "MODIFY v TINYINT UNSIGNED", "256", "v"),
    "null": ("v INT NULL", "MODIFY v INT NOT NULL", "NULL", "v"),
    "unknown label": ("v ENUM('a','b')", "MODIFY v ENUM('a')", "'b'", "v"),
    "not in the character set": ("v VARCHAR(9)", "MODIFY v VARCHAR(9) CHARACTER SET latin1", "'漢'", "v"),
    "no number": ("v VARCHAR(9)", "MODIFY v INT", "'x1'", "v"),
    "check": ("v INT", "ADD CONSTRAINT small CHECK (v < 5)", "9", "small"),
    "no partition": ("v INT", "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3))", "1", "partition"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", BAD)
def test_value_that_does_not_fit(database: Database, kind: str, path: str) -> None:
    column, alter, value, named = BAD[kind]
    good = "'a'" if "'" in value else "1"
    case = make_case(
        database,
        f"CREATE TABLE t (id INT PRIMARY KEY, {column}) DEFAULT CHARSET=utf8mb4",
        alter,
        (
            f"INSERT INTO t VALUES (1,{good}), (2,{good}), (3,{value})"
            if kind != "no number"
            else f"INSERT INTO t VALUES (3,{value})",
        ),
    )
    case.cut()
    error = case.copy(0, path).error
    assert isinstance(error, BadValue)
    assert f"{database.name}.t" in error.message
    assert re.search(rf"\b{named}\b", error.message)
    assert case.shadow not in error.message or kind == "check"
    if kind not in ("check", "no partition"):
        assert "id=3:" in error.message
    assert case.rows(case.shadow) == []


NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"


@pytest.mark.parametrize("path", PATHS)
def test_bad_value_behind_many_duplicates_is_seen(database: Database, path: str) -> None:
    """max_error_count's default of 64 would hide it."""
    case = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "MODIFY v TINYINT",
        (f"INSERT INTO t {NUMBERS} SELECT i, 1 FROM n",),
    )
    case.session.execute(f"INSERT INTO {ident(case.shadow)} SELECT * FROM t WHERE id < 900")
    case.app.execute("UPDATE t SET v = 1000 WHERE id = 900")
    case.cut()
    error = case.copy(0, path).error
    assert isinstance(error, BadValue)
    assert "id=900" in error.message


def _ledger_row(case: CopyCase) -> tuple[int, ...]:
    sql = f"SELECT rows_read, rows_copied, swallowed, is_dirty FROM {SIDECAR}.chunk"
    (row,) = case.session.rows(sql)
    return tuple(map(int, row))


@pytest.mark.parametrize("path", PATHS)
def test_row_that_catch_up_wrote_first_stays(database: Database, path: str) -> None:
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=("INSERT INTO t VALUES (1,1),(2,2)",))
    case.session.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (2, 20)")
    case.copy_all(path)
    assert case.rows(case.shadow) == [(1, 1), (2, 20)]
    assert _ledger_row(case) == (2, 1, 0, 0)


@pytest.mark.parametrize("path", PATHS)
def test_stale_row_under_a_common_unique_key_is_counted(database: Database, path: str) -> None:
    case = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, UNIQUE KEY v (v))",
        fill=("INSERT INTO t VALUES (1,1),(2,2)",),
    )
    case.session.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (9, 2)")
    case.copy_all(path)
    assert case.rows(case.shadow) == [(1, 1), (9, 2)]
    assert _ledger_row(case) == (2, 1, 1, 0)


@pytest.mark.parametrize("path", PATHS)
def test_duplicate_under_a_new_unique_key_marks_the_chunk(database: Database, path: str) -> None:
    case = make_case(
        database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(99))", "ADD UNIQUE KEY `odd ' for key 'name` (v)",
        ("INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'x'' for key ''PRIMARY'),(4,'x'' for key ''PRIMARY')",),
    )  # fmt: skip
    case.copy_all(path)
    assert len(case.rows(case.shadow)) == 3
    assert _ledger_row(case) == (4, 3, 1, 1)


def test_narrower_copy_key_marks_the_chunk(database: Database) -> None:
    """The key itself may now take two rows for one."""
    case = make_case(
        database,
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
        "MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL",
        ("INSERT INTO t VALUES ('A',1),('a',2)",),
    )
    case.copy_all()
    assert _ledger_row(case) == (2, 1, 1, 1)
