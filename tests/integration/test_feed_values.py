"""Every column type as a feed reads it, beside what the server shows; and tables whose definition has changed since."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.servers import RunningServer
from tests.integration import test_binlog_types as types
from tests.support import feeds
from tests.support.private_server import VECTORS, is_older
from vreplication.binlog.values import float_text
from vreplication.errors import SourceChanged
from vreplication.feed.catalog import Filter
from vreplication.feed.dispatch import Weights
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import SqlError
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Column

GROUPS = {name: getattr(types, name) for name in ("INTEGERS", "NUMBERS", "TIMES")}
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"})
_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"})


def _shown(column: Column) -> str:
    """SQL of what the server shows, as hexadecimal digits where bytes or letters count."""
    name = ident(column.name)
    if column.data_type in _BYTES or column.data_type in ("geometry", "point", "polygon", "linestring"):
        return f"HEX({name})"
    if column.data_type in _TEXT:
        return f"HEX(CONVERT({name} USING utf8mb4))"
    if column.data_type in ("bit", "year"):
        return f"{name}+0"
    if column.data_type in ("float", "double"):
        return f"({name}+0e0)"
    return f"CONCAT({name})"


def _as_shown(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex().upper()
    if column.data_type in _TEXT:
        return value.encode().hex().upper()
    if column.data_type == "float":
        return pytest.approx(value, rel=1e-6)
    if column.is_zerofill:
        return str(value).rjust(10, "0")
    return value if column.data_type in ("bit", "year", "double") else str(value)


def make_table(database: Database, definition: str, rows: list[str]) -> None:
    database.admin.execute_raw(types.LOOSE)
    database.admin.execute_raw("SET time_zone='+00:00'")
    database.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {definition})")
    for number, row in enumerate(rows):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({number},{row})")


def _check(database: Database, definition: str, rows: list[str]) -> None:
    feeds.describe_fully(database)
    tables, start = feeds.catalog(database), feeds.here(database)
    make_table(database, definition, rows)
    read = [after for name, _, after in feeds.read(database, tables, start) if name == "t"]
    columns = introspect(database.admin, database.name, "t").columns
    shown = database.admin.rows(f"SELECT {','.join(map(_shown, columns))} FROM t ORDER BY id")
    assert len(read) == len(rows)
    for row, told in zip(read, shown, strict=True):
        for column, text in zip(columns, told, strict=True):
            wanted = _as_shown(column, row[column.name])
            found = text if not isinstance(text, bytes) else text.decode()
            assert (found if wanted is None or not isinstance(wanted, str) else str(found)) == wanted, column


@pytest.mark.parametrize("name", GROUPS)
def test_values_are_those_that_the_server_shows(database: Database, name: str) -> None:
    definition, rows = GROUPS[name]
    _check(database, definition, rows)


def test_numbers_behind_a_year_keep_their_sign(database: Database) -> None:
    _check(database, "y YEAR, a INT, b INT UNSIGNED, c BIGINT", ["2001,-1,4294967295,-1", "1901,1,0,1"])


TEXTS = """
 a VARCHAR(40) CHARACTER SET utf8mb4, b CHAR(9) CHARACTER SET latin1, c TEXT CHARACTER SET cp1251,
 d VARCHAR(30) CHARACTER SET gbk, e VARCHAR(30) CHARACTER SET sjis, f VARCHAR(30) CHARACTER SET utf16,
 g VARCHAR(30) CHARACTER SET ucs2, h TINYTEXT CHARACTER SET hp8, i ENUM('a','ä','ß') CHARACTER SET latin1,
 j SET('x','ö,'  ) CHARACTER SET latin1, k BINARY(5), l VARBINARY(5), m BLOB, n VARCHAR(9) CHARACTER SET utf32,
 o VARCHAR(300) CHARACTER SET swe7, p LONGTEXT CHARACTER SET eucjpms, q POINT
""".replace("'ö,'  ", "'ö'")


TEXT_ROWS = [
    "'zß水🍌','Ünï€','Привет','中文','日本','𝄞a','水b','Æøå','ä','x,ö',X'0102',X'0100',X'FF00','🍌','Åäö','日本①',POINT(1,2)",
    "'','','','','','','','','a','',X'',X'',X'','','','',NULL",
    ",".join(["NULL"] * 17),
]


def test_text_of_any_character_set_is_what_the_server_makes_of_it(database: Database) -> None:
    _check(database, TEXTS, TEXT_ROWS)


@pytest.mark.parametrize("more", ["", ", y INT UNSIGNED"])
@pytest.mark.parametrize("kind", ["POINT", "VECTOR(2)"])
def test_text_behind_a_geometry_or_a_vector_keeps_its_character_set(
    database: Database, server: RunningServer, kind: str, more: str
) -> None:
    """In the log some of them have a place among the collations of text. more: by it the server is asked, too."""
    if kind != "POINT" and (server.is_mariadb or is_older("mysql", VECTORS)):
        pytest.skip("it has no VECTOR")
    columns = f"v {kind}, u CHAR(9) CHARACTER SET latin1, w VARCHAR(9) CHARACTER SET utf8mb3, b BLOB{more}"
    value = "ST_GeomFromText('POINT(1 2)')" if kind == "POINT" else "TO_VECTOR('[1,2]')"
    _check(database, columns, [f"{value},'aé','bé',X'C3A9'{', 1' if more else ''}"])


@pytest.mark.only_on("mysql")
def test_json_is_what_the_server_shows(database: Database) -> None:
    rows = [
        """'{"a": [1, 2.5, null, true, "ü"], "b": {}}'""",
        "JSON_OBJECT('d', CAST(1.50 AS DECIMAL(5,2)), 't', CAST('2020-01-02 03:04:05' AS DATETIME))",
        "JSON_ARRAY(CAST(18446744073709551615 AS UNSIGNED), CAST('10:11:12' AS TIME), CAST('2020-02-03' AS DATE))",
        "JSON_ARRAY(CAST(X'0102' AS BINARY), CAST(7 AS UNSIGNED), 'a\"b')",
        "NULL",
    ]
    _check(database, "a JSON", rows)


@pytest.mark.only_on("mysql")
def test_json_with_long_binary_values(database: Database) -> None:
    """The server prints them in lines."""
    lengths = (0, 1, 56, 57, 58, 114, 115, 300)
    _check(database, "a JSON", [f"JSON_ARRAY(CAST(REPEAT(X'FE01',{n}) AS BINARY({n})))" for n in lengths])


@pytest.mark.only_on("mysql")
def test_json_numbers_are_laid_out_as_the_server_does_it(database: Database) -> None:
    """Where a point becomes an exponent, and how that is written: a snapshot's rows have the server's own text."""
    drawn = random.Random(7)
    powers = [float(f"1e{exponent}") for exponent in range(-330, 309)]
    numbers = [
        0.0,
        123456789012345680000.0,
        4026207469410758.5,
        1e15 - 0.125,
        *powers,
        *(2.0**n for n in range(-1074, 1024)),
    ]
    numbers += [drawn.uniform(1, 10) * power for power in powers[300:360] for _ in range(9)]
    numbers += [float(drawn.randrange(10**digits)) for digits in range(1, 24) for _ in range(9)]
    numbers += [struct.unpack("<d", drawn.randbytes(7) + bytes([drawn.randrange(127)]))[0] for _ in range(1000)]
    texts = [f"{sign}{float_text(number)}" for number in numbers for sign in ("", "-")]
    parts = [texts[at : at + 500] for at in range(0, len(texts), 500)]
    _check(database, "a JSON", [*(f"JSON_ARRAY({','.join(part)})" for part in parts), *(f"'{t}'" for t in texts[:40])])


@pytest.mark.only_on("mariadb")
def test_mariadbs_own_types_are_text(database: Database) -> None:
    _check(
        database,
        "a UUID, b INET6, c INET4, d JSON",
        ["'123e4567-e89b-12d3-a456-426655440000','2001:db8::1','10.1.2.3','[1, 2]'", "NULL,NULL,NULL,NULL"],
    )


def test_rows_are_read_by_the_definition_that_they_were_written_under(database: Database) -> None:
    """The table has other columns, labels and character sets by the time that its rows are read."""
    feeds.describe_fully(database)
    start = feeds.here(database)
    sql = database.admin.execute_raw
    sql("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET latin1, e ENUM('x','y'), n INT UNSIGNED)")
    sql("INSERT INTO t VALUES (1,'é','y',4000000000)")
    sql("ALTER TABLE t MODIFY a TEXT CHARACTER SET utf8mb4, DROP COLUMN e, RENAME COLUMN n TO m")
    sql("ALTER TABLE t ADD COLUMN e ENUM('p','q') AFTER a")
    sql("INSERT INTO t VALUES (2,'水','q',1)")
    sql("ALTER TABLE t DROP COLUMN e, ADD COLUMN z INT DEFAULT 5 FIRST, MODIFY m BIGINT")
    sql("UPDATE t SET m=-1 WHERE id=2")
    sql("RENAME TABLE t TO u")
    sql("DROP TABLE u")
    found = feeds.read(database, feeds.catalog(database), start)
    rows = [(before, after) for name, before, after in found if name == "t"]
    assert rows == [
        (None, {"id": 1, "a": "é", "e": "y", "n": 4000000000}),
        (None, {"id": 2, "a": "水", "e": "q", "m": 1}),
        ({"z": 5, "id": 2, "a": "水", "m": 1}, {"z": 5, "id": 2, "a": "水", "m": -1}),
    ]
    ddl = [(fields["verb"], fields["tables"]) for name, _, fields in found if name == "DDL"]
    here = database.name
    assert ddl == [
        ("CREATE", ((here, "t"),)),
        *[("ALTER", ((here, "t"),))] * 3,
        ("RENAME", ((here, "t"), (here, "u"))),
        ("DROP", ((here, "u"),)),
    ]


def _changed_since(database: Database, create: str, row: str, change: str) -> Any:
    """The row as it is read when the table is another one by then."""
    feeds.describe_fully(database)
    start = feeds.here(database)
    database.admin.execute_raw(create)
    database.admin.execute_raw(row)
    database.admin.execute_raw(change)
    tables = feeds.catalog(database)
    (after,) = [after for name, _, after in feeds.read(database, tables, start) if name == "t"]
    return tables.layouts[0], after


def test_labels_of_any_character_set_are_read_when_the_table_is_gone(database: Database) -> None:
    create = (
        "CREATE TABLE t (id INT PRIMARY KEY, a ENUM('水','b') CHARACTER SET ucs2, b ENUM('Æ') CHARACTER SET hp8,"
        " c SET('水','x') CHARACTER SET utf16)"
    )
    _, after = _changed_since(database, create, "INSERT INTO t VALUES (1,'水','Æ','水,x')", "DROP TABLE t")
    assert after == {"id": 1, "a": "水", "b": "Æ", "c": "水,x"}


def test_the_key_and_what_may_be_null_are_of_the_rows_own_time(database: Database) -> None:
    create = "CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, c INT, UNIQUE (b))"
    change = "ALTER TABLE t DROP KEY b, ADD PRIMARY KEY (a), MODIFY c INT NOT NULL DEFAULT 0"
    layout, _ = _changed_since(database, create, "INSERT INTO t VALUES (1,2,3)", change)
    assert (layout.key, layout.has_key) == (("b",), True)
    assert [column.is_nullable for column in layout.columns] == [False, False, True]


def test_text_that_has_become_bytes_is_read_as_text(database: Database) -> None:
    """An unsigned column has the server asked for what the log does not tell."""
    create = "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, c CHAR(9), v VARCHAR(9), x TEXT) CHARACTER SET latin1"
    change = "ALTER TABLE t MODIFY c BINARY(9), MODIFY v VARBINARY(9), MODIFY x BLOB"
    _, after = _changed_since(database, create, "INSERT INTO t VALUES (1,'é','é','é')", change)
    assert after == {"id": 1, "c": "é", "v": "é", "x": "é"}


@pytest.mark.parametrize(
    ("charset", "stored"), [("cp1250", "4181"), ("hebrew", "FF"), ("gbk", "A140"), ("sjis", "81AD"), ("euckr", "A2E8")]
)
@pytest.mark.in_turn
def test_bytes_that_are_no_letter_end_the_feed(database: Database, charset: str, stored: str) -> None:
    """A server makes question marks of them, which are text as any other."""
    feeds.describe_fully(database)
    start, sql = feeds.here(database), database.admin.execute_raw
    sql(f"CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET {charset})")
    sql("INSERT INTO t VALUES (1,'a?')")
    sql(f"INSERT INTO t VALUES (2,_{charset} X'{stored}')")
    with pytest.raises(SourceChanged, match=rf"text in {charset} .* X'{stored}'"):
        feeds.read(database, feeds.catalog(database), start)


def test_a_unique_key_that_came_later_tells_no_rows_apart(database: Database) -> None:
    layout, _ = _changed_since(
        database, "CREATE TABLE t (a INT NOT NULL)", "INSERT INTO t VALUES (1)", "ALTER TABLE t ADD UNIQUE (a)"
    )
    assert not layout.has_key


@pytest.mark.only_on("mariadb")
def test_mariadbs_own_types_and_hidden_columns_after_a_change(database: Database) -> None:
    layout, after = _changed_since(
        database,
        "CREATE TABLE t (a UUID PRIMARY KEY, b INET6, c VARCHAR(900), UNIQUE (c) USING HASH)",
        "INSERT INTO t VALUES ('123e4567-e89b-12d3-a456-426655440000','::1','x')",
        "ALTER TABLE t ADD COLUMN z INT",
    )
    assert after == {"a": "123e4567-e89b-12d3-a456-426655440000", "b": "::1", "c": "x"}
    assert layout.key == ("a",)


@pytest.mark.only_on("mariadb")
def test_collations_of_uca_14_are_known(database: Database) -> None:
    create = "CREATE TABLE t (a VARCHAR(9) CHARACTER SET utf8mb4 COLLATE uca1400_ai_ci PRIMARY KEY)"
    _, after = _changed_since(database, create, "INSERT INTO t VALUES ('ä')", "ALTER TABLE t ADD COLUMN z INT")
    assert after == {"a": "ä"}


@pytest.mark.only_on("mariadb")
def test_an_alter_in_two_phases_is_one_ddl_and_a_failed_one_none(database: Database) -> None:
    feeds.describe_fully(database)
    sql = database.admin.execute_raw
    sql("CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    sql("INSERT INTO t VALUES (1,1),(2,1)")
    start = feeds.here(database)
    sql("SET SESSION binlog_alter_two_phase=ON")
    sql("ALTER TABLE t ADD COLUMN z INT")
    with pytest.raises(SqlError):
        sql("ALTER TABLE t ADD UNIQUE (b)")
    sql("SET SESSION binlog_alter_two_phase=OFF")
    found = feeds.read(database, feeds.catalog(database), start)
    assert [fields["sql"] for name, _, fields in found if name == "DDL"] == ["ALTER TABLE t ADD COLUMN z INT"]


def test_a_table_that_is_made_from_a_query_is_ddl_and_rows(database: Database) -> None:
    feeds.describe_fully(database)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) SELECT 7 AS id")
    start = feeds.here(database)
    database.admin.execute_raw("CREATE TABLE u (id INT PRIMARY KEY) SELECT id FROM t")
    (_, _, ddl), (_, _, after) = feeds.read(database, feeds.catalog(database), start)
    assert "START TRANSACTION" not in ddl["sql"]
    assert (ddl["verb"], after) == ("CREATE", {"id": 7})


COLLATED = [
    "a",
    "A",
    "ä",
    "a ",
    "a  ",
    "a\u00a0",
    "",
    " ",
    "\u00ad",
    "b",
    "ß",
    "ss",
    "a\x00",
    "ａ",
    "ñ",
    "n",
    "1",
    "١",
    "z",
]


def test_text_that_is_equal_goes_to_one_partition(database: Database) -> None:
    """By `=` of the server, over all of its collations of utf8mb4 and some of others."""
    names = [
        str(name)
        for (name,) in database.admin.rows(
            "SELECT COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            " WHERE CHARACTER_SET_NAME='utf8mb4'"
        )
    ]
    full = [name if name.startswith("utf8mb4") else f"utf8mb4_{name}" for name in names]
    weights = Weights(database.admin)
    literals = [f"CONVERT(_utf8mb4 X'{text.encode().hex()}' USING utf8mb4)" for text in COLLATED]
    for collation in full:
        pairs = [(i, j) for i in range(len(COLLATED)) for j in range(i)]
        asked = ",".join(f"{literals[i]}={literals[j]} COLLATE {collation}" for i, j in pairs)
        (equal,) = database.admin.rows(f"SELECT {asked}")
        weights.ask(collation, COLLATED)
        for (i, j), is_equal in zip(pairs, equal, strict=True):
            if is_equal:
                here = (collation, COLLATED[i], COLLATED[j])
                assert weights.of(collation, COLLATED[i]) == weights.of(collation, COLLATED[j]), here


def test_names_with_dots_and_brackets_are_told_apart() -> None:
    assert not Filter(tables=("shop.*",)).has("shop.eu", "t")
    assert Filter(tables=("shop.eu.*",)).has("shop.eu", "t")
    assert Filter(tables=("a[[]1].*",)).has("a[1]", "t")
