"""Every column type as a feed reads it, beside what the server shows; and tables whose definition has changed since."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.databases import Database
from tests.integration import test_binlog_types as types
from tests.support import feeds
from vreplication.mysql.quoting import ident
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


def _table(database: Database, definition: str, rows: list[str]) -> None:
    database.admin.execute_raw(types.LOOSE)
    database.admin.execute_raw("SET time_zone='+00:00'")
    database.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {definition})")
    for number, row in enumerate(rows):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({number},{row})")


def _check(database: Database, definition: str, rows: list[str]) -> None:
    feeds.describe_fully(database)
    tables, start = feeds.catalog(database), feeds.here(database)
    _table(database, definition, rows)
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


TEXTS = """
 a VARCHAR(40) CHARACTER SET utf8mb4, b CHAR(9) CHARACTER SET latin1, c TEXT CHARACTER SET cp1251,
 d VARCHAR(30) CHARACTER SET gbk, e VARCHAR(30) CHARACTER SET sjis, f VARCHAR(30) CHARACTER SET utf16,
 g VARCHAR(30) CHARACTER SET ucs2, h TINYTEXT CHARACTER SET hp8, i ENUM('a','ä','ß') CHARACTER SET latin1,
 j SET('x','ö,'  ) CHARACTER SET latin1, k BINARY(5), l VARBINARY(5), m BLOB, n VARCHAR(9) CHARACTER SET utf32,
 o VARCHAR(300) CHARACTER SET swe7, p LONGTEXT CHARACTER SET eucjpms, q POINT
""".replace("'ö,'  ", "'ö'")


def test_text_of_any_character_set_is_what_the_server_makes_of_it(database: Database) -> None:
    rows = [
        "'zß水🍌','Ünï€','Привет','中文','日本','𝄞a','水b','Æøå','ä','x,ö',X'0102',X'0100',X'FF00','🍌','Åäö','日本①',POINT(1,2)",
        "'','','','','','','','','a','',X'',X'',X'','','','',NULL",
        ",".join(["NULL"] * 17),
    ]
    _check(database, TEXTS, rows)


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
