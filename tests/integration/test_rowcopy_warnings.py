"""What the server says about a copying statement: duplicates pass, bad values fail with table, column and key."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pymysql
import pytest
from rowcopy_setup import PATHS, WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from vreplication import names
from vreplication.apply.writer import bad_value
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import SqlError, connect
from vreplication.settings import SIDECAR
from vreplication.state import keytables

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


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", ["ok", "too long"])
def test_generated_key_is_copied_and_named(database: Database, path: str, bad: str) -> None:
    """It is no column of the INSERT. MariaDB has no generated column that is NOT NULL."""
    case = make_case(
        database,
        "CREATE TABLE t (a INT, v VARCHAR(9), s VARCHAR(9) AS (CONCAT('*/', a)) STORED NOT NULL,"
        " g INT AS (100 - a) STORED NOT NULL, PRIMARY KEY (g, s))",
        "MODIFY v VARCHAR(5)",
        (f"INSERT INTO t (a, v) VALUES (1,'a'),(2,'b'),(203,NULL),(4,'/*'),(5,'{bad}')",),
    )
    case.cut()
    error = case.copy(0, path, chunk_rows=2).error
    if bad == "ok":
        assert error is None
        case.assert_same("a, v, s, g")
    else:
        assert isinstance(error, BadValue)
        assert "g=95, s='*/5':" in error.message


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
    sql = f"SELECT rows_read, rows_copied, swallowed FROM {SIDECAR}.chunk"
    (row,) = case.session.rows(sql)
    return tuple(map(int, row))


def _dirty(case: CopyCase) -> list[str]:
    """Keys that are to be copied again, as literals."""
    table = f"{SIDECAR}.{names.dirty_table(WORKFLOW)}"
    found = case.session.rows(f"SELECT {keytables.literal_sql(case.mapping)} FROM {table}")
    return [x.decode() if isinstance(x, bytes) else str(x) for (x,) in found]


@pytest.mark.parametrize("path", PATHS)
def test_a_note_is_no_row_that_gave_way(database: Database, path: str) -> None:
    """A row that was passed over would be taken for one of those."""
    case = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, d DATETIME)",
        "MODIFY d DATE",
        ("INSERT INTO t VALUES (1,'2020-01-02 03:04:05'),(2,'2020-01-02 00:00:00')",),
    )
    case.copy_all(path)
    assert _ledger_row(case) == (2, 2, 0)


@pytest.mark.parametrize("path", PATHS)
def test_row_that_catch_up_wrote_first_stays(database: Database, path: str) -> None:
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=("INSERT INTO t VALUES (1,1),(2,2)",))
    case.session.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (2, 20)")
    case.copy_all(path)
    assert case.rows(case.shadow) == [(1, 1), (2, 20)]
    assert _ledger_row(case) == (2, 1, 0)


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
    assert (_ledger_row(case), _dirty(case)) == ((2, 1, 1), [])


@pytest.mark.parametrize("path", PATHS)
def test_duplicate_under_a_new_unique_key_makes_the_row_dirty(database: Database, path: str) -> None:
    case = make_case(
        database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(99))", "ADD UNIQUE KEY `odd ' for key 'name` (v)",
        ("INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'x'' for key ''PRIMARY'),(4,'x'' for key ''PRIMARY')",),
    )  # fmt: skip
    case.copy_all(path)
    assert len(case.rows(case.shadow)) == 3
    assert (_ledger_row(case), _dirty(case)) == ((4, 3, 1), ["4"])


def test_narrower_copy_key_makes_the_row_dirty(database: Database) -> None:
    """The key itself may now take two rows for one."""
    case = make_case(
        database,
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
        "MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL",
        ("INSERT INTO t VALUES ('A',1),('a',2)",),
    )
    case.copy_all()
    (left,) = case.rows(case.shadow)
    other = "a" if left[0] == "A" else "A"
    assert (_ledger_row(case), _dirty(case)) == ((2, 1, 1), [f"_utf8mb4 X'{other.encode().hex()}'"])


@pytest.mark.parametrize("path", PATHS)
def test_row_that_catch_up_wrote_first_is_no_conflict_where_the_key_is_compared_anew(
    database: Database, path: str
) -> None:
    """Else a busy table would be copied again for ever."""
    case = make_case(
        database,
        "CREATE TABLE t (a INT, b VARCHAR(20) CHARACTER SET latin1, v INT, PRIMARY KEY (a, b))",
        "MODIFY b VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL",
        ("INSERT INTO t VALUES (1,'A',1),(1,'b',2),(2,'é',3)",),
    )
    case.session.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (1,'A',1),(2,'é',9)")
    case.copy_all(path)
    assert case.rows(case.shadow) == [(1, "A", 1), (1, "b", 2), (2, "é", 9)]
    assert _dirty(case) == []


@pytest.fixture
def german(database: Database) -> Iterator[None]:
    """A server whose messages are in German where a session does not ask for another language."""
    before = database.admin.value("SELECT @@GLOBAL.lc_messages")
    database.admin.execute_raw("SET GLOBAL lc_messages='de_DE'")
    try:
        with pymysql.connect(**database.app_url.connect_arguments()) as plain, plain.cursor() as cursor:
            with pytest.raises(pymysql.err.ProgrammingError, match="existiert nicht"):
                cursor.execute(f"SELECT 1 FROM {ident(database.name)}.nowhere")
        yield
    finally:
        database.admin.execute_raw(f"SET GLOBAL lc_messages='{before}'")


@pytest.mark.usefixtures("german")
@pytest.mark.parametrize("path", PATHS)
def test_bad_value_is_named_where_messages_are_german(database: Database, path: str) -> None:
    case = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))",
        "MODIFY v VARCHAR(3)",
        ("INSERT INTO t VALUES (7,'abcd')",),
    )
    case.cut()
    error = case.copy(0, path).error
    assert isinstance(error, BadValue)
    assert "id=7:" in error.message


@pytest.mark.usefixtures("german")
@pytest.mark.parametrize("path", PATHS)
def test_new_unique_key_is_known_where_messages_are_german(database: Database, path: str) -> None:
    case = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "ADD UNIQUE KEY v (v)",
        ("INSERT INTO t VALUES (1,1),(2,1)",),
    )
    case.copy_all(path)
    assert (_ledger_row(case), _dirty(case)) == ((2, 1, 1), ["2"])


@pytest.mark.usefixtures("german")
def test_change_that_does_not_fit_is_named_where_messages_are_german(database: Database) -> None:
    """The reader of the log learns the row's key from the server's words, too."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(3))")
    with connect(database.url) as session, pytest.raises(SqlError) as refused:
        session.execute_raw("INSERT INTO t VALUES (1,'abc'),(2,'abcd')")
    assert "key (2)" in str(bad_value(refused.value, ["1", "2"]))
