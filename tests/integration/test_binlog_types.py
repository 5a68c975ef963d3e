"""Every column type, byte for byte: rows written to one table, read from the log, replayed into its twin."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from tests.support.private_server import VECTORS
from tests.support.tailing import apply, changes, groups, here, watch
from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.schema.introspect import introspect

LOOSE = "SET SESSION sql_mode='ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'"

INTEGERS = (
    "a TINYINT, b TINYINT UNSIGNED, c SMALLINT, d SMALLINT UNSIGNED, e MEDIUMINT, f MEDIUMINT UNSIGNED, g INT,"
    " h INT UNSIGNED ZEROFILL, i BIGINT, j BIGINT UNSIGNED, k BOOL, l YEAR, m BIT(1), n BIT(9), o BIT(64)",
    [
        "-128,0,-32768,0,-8388608,0,-2147483648,0,-9223372036854775808,0,0,0,0,0,0",
        "127,255,32767,65535,8388607,16777215,2147483647,4294967295,9223372036854775807,18446744073709551615,1,2155,"
        "1,511,18446744073709551615",
        "-1,200,-1,40000,-1,9000000,-1,3000000000,-1,9223372036854775808,1,1901,1,b'100000001',1",
        "NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
    ],
)
NUMBERS = (
    "a DECIMAL(65,30), b DECIMAL(10,0), c DECIMAL(9,9), d DECIMAL(1,1), e DECIMAL(18,9) UNSIGNED, f DECIMAL(20,2),"
    " g FLOAT, h DOUBLE, i FLOAT(7,3), j DOUBLE(10,2), k DECIMAL(11,10)",
    [
        "99999999999999999999999999999999999.999999999999999999999999999999,9999999999,0.999999999,0.9,999999999.999999999,"
        "999999999999999999.99,1.1,1.1,1234.567,-12345678.91,9.9999999999",
        "-99999999999999999999999999999999999.999999999999999999999999999999,-9999999999,-0.999999999,-0.9,0,"
        "-999999999999999999.99,-3.4028234e38,-1.7976931348623157e308,-0.001,0.01,-0.0000000001",
        "0.000000000000000000000000000001,-1,0.000000001,0,0.000000001,-0.01,1.17549e-38,2.2250738585072014e-308,0,0,0",
        "-0.000000000000000000000000000001,0,0,-0.1,1,0.01,16777216,0.1,0.1,0.1,1.0000000001",
        "100000000000,1,0.1,0.1,1.5,100,3.3333333,5e-324,3,3,3",
        "0,0,0,0,0,0,-0e0,-0e0,-0e0,1e7,0",
    ],
)
TIMES = (
    "a DATE, b DATETIME, c DATETIME(1), d DATETIME(3), e DATETIME(6), f TIME, g TIME(2), h TIME(4), i TIME(6),"
    " j TIMESTAMP NULL, k TIMESTAMP(2) NULL, l TIMESTAMP(6) NULL, m DATETIME(5), n TIME(5), o TIME(1),"
    " p TIMESTAMP(5) NULL",
    [
        "'2020-02-29','2020-02-29 23:59:59','2020-01-01 00:00:00.9','2020-01-01 00:00:00.009',"
        "'9999-12-31 23:59:59.999999',"
        "'838:59:59','838:59:58.99','00:00:00.0001','-838:59:58.999999','2038-01-19 03:14:07','1970-01-01 00:00:01.01',"
        "'2038-01-19 03:14:07.999999','2020-01-01 01:02:03.12345','-01:02:03.00001','-00:00:00.1',"
        "'2001-01-01 00:00:00.00001'",
        "'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00.0','0000-00-00 00:00:00',"
        "'0000-00-00 00:00:00','00:00:00',"
        "'-01:02:03.25','-00:00:00.0001','-00:00:00.000001','0000-00-00 00:00:00','0000-00-00 00:00:00',"
        "'0000-00-00 00:00:00','0000-00-00 00:00:00','00:00:00','-838:59:59','0000-00-00 00:00:00'",
        "'2020-00-00','2020-05-00 00:00:00','2020-00-00 01:02:03.4','0000-01-01 00:00:00.5',"
        "'0001-01-01 00:00:00.000001',"
        "'-838:59:59','-00:00:00.01','-23:59:59.9999','23:00:00.1','1970-01-01 00:00:01','2000-01-01 00:00:00.10',"
        "'2000-01-01 00:00:00.100000','2020-02-31 00:00:00','-00:00:59.99999','10:00:00.5','2001-01-01 00:00:00.1'",
        "NULL,'1000-01-01 00:00:00',NULL,NULL,NULL,'-00:00:01',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
    ],
)
STRINGS = (
    "a CHAR(5) CHARACTER SET utf8mb4, b VARCHAR(300) CHARACTER SET utf8mb4, c CHAR(255) CHARACTER SET utf8mb4,"
    " d VARCHAR(20) CHARACTER SET latin1, e CHAR(4) CHARACTER SET gbk, f VARCHAR(10) CHARACTER SET utf16,"
    " g CHAR(3) CHARACTER SET utf32, h TEXT CHARACTER SET ucs2, i VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,"
    " j TINYTEXT CHARACTER SET sjis, k MEDIUMTEXT CHARACTER SET utf8mb4, l LONGTEXT CHARACTER SET ascii,"
    " m CHAR(0), n CHAR(200) CHARACTER SET utf16, o VARCHAR(5) CHARACTER SET cp1251",
    [
        "'é','a''\\\\b\\\"\\n',REPEAT('ü',255),X'81FF80',_gbk X'D6D0D6D0',_utf16 X'D83DDE0000E9',_utf32 X'0001F600',"
        "_ucs2 X'00E90041','A ',_sjis X'835C',REPEAT('😀',70000),'x','',REPEAT('é',200),_cp1251 X'FFFE'",
        "'','','','','','','','','','','','','','',''",
        "' a','a  ','ab  ',' ',_gbk X'815C',_utf16 X'0020',_utf32 X'00000020',_ucs2 X'0020','a',_sjis X'5C','',"
        "'',NULL,' ',' '",
        "NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
    ],
)
BYTES = (
    "a BINARY(5), b VARBINARY(300), c BINARY(255), d TINYBLOB, e BLOB, f MEDIUMBLOB, g LONGBLOB, h BINARY(0),"
    " i VARBINARY(3), j BINARY(1)",
    [
        "X'010000',X'0000',REPEAT(X'FF',255),X'00FF',REPEAT(X'AB',65535),REPEAT(X'00',70000),X'','',X'000000',X'00'",
        "'','','','','','','','','',''",
        "X'2020202020',X'2020',X'20',X'20',X'5C27',X'27',X'22',NULL,X'202020',X'20'",
        "NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
    ],
)
LABELS = (
    "a ENUM('x','y','it''s','é',''), b SET('a','b','ö','d'), c ENUM('a','b') CHARACTER SET latin1,"
    f" d ENUM({','.join(repr(f'l{i}') for i in range(300))}), e SET({','.join(repr(f's{i}') for i in range(64))})",
    ["'x','','a','l0','s0'", "'it''s','a,ö','b','l299','s63,s1'", "'é','a,b,ö,d','b','l255','s0,s31,s32'",
     "'','b',NULL,'l256',''", "NULL,NULL,NULL,NULL,NULL"],
)  # fmt: skip
ESCAPED_LABELS = (
    r"a ENUM('back\\slash','new\nline','zero\0','a\\\\b'), b SET('\\','\n','\'')",
    [r"'back\\slash','\\,\n'", r"'new\nline','\''", r"'zero\0','\n'", r"'a\\\\b',''", "NULL,NULL"],
)
SHAPES = (
    "a GEOMETRY, b POINT, c POLYGON, d LINESTRING",
    [
        "ST_GeomFromText('POINT(1 2)'),ST_GeomFromText('POINT(-1.5 1e10)'),"
        "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))'),ST_GeomFromText('LINESTRING(0 0,1 1)')",
        "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))',4326),"
        "ST_GeomFromText('POINT(1 2)',4326),NULL,NULL",
    ],
)
GENERATED = (
    "a INT, b INT AS (a*2) VIRTUAL, c VARCHAR(20) AS (CONCAT(a,'x')) STORED, d VARCHAR(10)",
    ["1,DEFAULT,DEFAULT,'p'", "NULL,DEFAULT,DEFAULT,'q'"],
)
BY_NAME = {
    "integers": INTEGERS,
    "numbers": NUMBERS,
    "times": TIMES,
    "strings": STRINGS,
    "bytes": BYTES,
    "labels": LABELS,
    "escaped labels": ESCAPED_LABELS,
    "shapes": SHAPES,
    "generated": GENERATED,
}


def fill(session: Session, table: str, rows: list[str]) -> None:
    for number, row in enumerate(rows, 1):
        session.execute_raw(f"INSERT INTO {ident(table)} VALUES ({number},{row})")


def make_twins(database: Database, columns: str) -> None:
    for table in ("a", "b"):
        database.admin.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")


def images(database: Database, table: str) -> list[tuple[object, ...]]:
    """Each value by its bytes, and by its number: FLOAT and BIT are not their text."""
    parts = []
    for column in introspect(database.admin, database.name, table).columns:
        name = ident(column.name)
        parts.append(f"HEX({name})")
        if column.data_type in ("float", "double"):
            parts += [f"HEX(CAST({name}*1e0 AS CHAR))", f"CONCAT(JSON_ARRAY({name}*1e0))"]
        if column.data_type == "json":
            parts += [f"CAST({name} AS CHAR)", *(f"JSON_TYPE(JSON_EXTRACT({name},'{p}'))" for p in PATHS)]
        elif column.data_type not in ("geometry", "point", "polygon", "linestring", "vector"):
            parts.append(f"CAST({name} AS CHAR)")
    return database.admin.rows(f"SELECT id,{','.join(parts)} FROM {table} ORDER BY id")


PATHS = ("$", "$[0]", "$[1]", "$[2]", "$.a", "$.b", "$.c", "$.d.e")


def check(database: Database, columns: str, rows: list[str], setup: str = "") -> None:
    """Insert, update and delete in `a`; whatever the log says makes `b` the same."""
    make_twins(database, columns)
    source = watch(database, "a")
    start = here(database)
    with connect(database.app_url) as app:
        app.execute_raw(LOOSE)
        if setup:
            app.execute_raw(setup)
        fill(app, "a", rows)
        apply(database, source, "b", changes(groups(database, start, source)))
        assert images(database, "b") == images(database, "a")
        start = here(database)
        app.execute_raw("UPDATE a SET id = id + 1000 WHERE id = 1")
        app.execute_raw("DELETE FROM a WHERE id = 2")
        found = changes(groups(database, start, source))
        assert [(c.key, c.values is None) for c in found][:2] == [("1", True), ("1001", False)]
        apply(database, source, "b", found)
    assert images(database, "b") == images(database, "a")


@pytest.mark.parametrize("name", BY_NAME)
def test_round_trip(database: Database, name: str) -> None:
    columns, rows = BY_NAME[name]
    check(database, columns, rows)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("name", ["times"])
def test_round_trip_of_old_time_formats(database: Database, name: str) -> None:
    columns, rows = BY_NAME[name]
    database.admin.execute_raw("SET GLOBAL mysql56_temporal_format=OFF")
    try:
        check(database, columns, rows)
    finally:
        database.admin.execute_raw("SET GLOBAL mysql56_temporal_format=ON")


@pytest.mark.only_on("mariadb")
def test_round_trip_of_mariadb_types(database: Database) -> None:
    check(
        database,
        "u UUID, i6 INET6, i4 INET4, j JSON",
        [
            "'00112233-4455-1677-8899-aabbccddee00','::1','1.2.3.0','{\"a\": 1.50}'",
            "'00112233-4455-4677-8899-aabbccdd2020','2001:db8::','0.0.0.0','[]'",
            "'00000000-0000-0000-0000-000000000000','::','32.32.32.32','null'",
            "'ffffffff-ffff-7fff-bfff-ffffffffff20','::ffff:1.2.3.4','255.255.255.255','\"x\"'",
            "NULL,NULL,NULL,NULL",
        ],
    )


@pytest.mark.only_on("mysql", since=VECTORS)
def test_round_trip_of_vectors(database: Database) -> None:
    check(database, "v VECTOR(3), w VECTOR", ["TO_VECTOR('[1,2,-3.5]'),TO_VECTOR('[1]')", "NULL,NULL"])


@pytest.mark.only_on("mysql")
def test_round_trip_of_json(database: Database) -> None:
    documents = [
        '\'{"a": 1, "b": [1.5, -0.0, 1e300, true, null, "x\\\\"é😀"], "c": {}, "d": {"e": []}}\'',
        "'[18446744073709551615, -9223372036854775808, 32768]'",
        "'\"just text\"'",
        "'0.1'",
        "'null'",
        "NULL",
        "JSON_ARRAY(CAST('1.50' AS DECIMAL(10,2)), CAST('-12345678901.5' AS DECIMAL(30,3)), '')",
        "JSON_OBJECT('a', CAST('2020-02-29' AS DATE), 'b', CAST('-10:11:12.000013' AS TIME(6)), 'c',"
        " CAST('2020-01-02 03:04:05.6' AS DATETIME(6)), 'd', JSON_OBJECT('e', CAST(7 AS UNSIGNED)))",
        "JSON_ARRAY(CAST(7 AS UNSIGNED), CAST(70000 AS UNSIGNED), CAST(5000000000 AS UNSIGNED))",
        "CAST(CAST('1.5' AS DECIMAL(5,1)) AS JSON)",
        "CAST(CAST('2020-02-29' AS DATE) AS JSON)",
        "JSON_ARRAY(CAST(X'00FF' AS BINARY), TRUE, 1.5e0)",
        "JSON_OBJECT('a', REPEAT('x', 70000), 'b', CAST(1.25 AS DECIMAL(4,2)), 'c', FALSE, '', NULL)",
        "CAST(CONCAT('[', REPEAT('1,', 40000), '70000, 1.5, {\"k\": \"v\"}]') AS JSON)",
        "CAST(CONCAT(REPEAT('[', 99), REPEAT(']', 99)) AS JSON)",
    ]
    check(database, "j JSON", documents)


@pytest.mark.only_on("mysql")
def test_json_that_no_sql_rebuilds_is_refused(database: Database) -> None:
    make_twins(database, "j JSON, x BLOB")
    source, start = watch(database, "a"), here(database)
    database.admin.execute_raw("INSERT INTO a (id, x) VALUES (1, X'00')")
    database.admin.execute_raw("UPDATE a SET j = JSON_ARRAY(x)")
    with pytest.raises(SourceChanged, match="binary value of column type 252"):
        groups(database, start, source)


def test_doubles_are_exact_to_the_last_bit(database: Database) -> None:
    """10 to the power of everything, and neighbors."""
    make_twins(database, "f FLOAT, d DOUBLE")
    source, start = watch(database, "a"), here(database)
    database.admin.execute_raw(
        "INSERT INTO a WITH RECURSIVE n AS (SELECT -300 i UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
        " SELECT i + 1000, IF(ABS(i) < 37, POW(10, i) / 3, 0), POW(10, i) / 3 FROM n"
    )
    apply(database, source, "b", changes(groups(database, start, source)))
    wrong = database.admin.value("SELECT COUNT(*) FROM a JOIN b USING (id) WHERE NOT (a.f <=> b.f AND a.d <=> b.d)")
    assert (wrong, database.admin.value("SELECT COUNT(*) FROM b")) == (0, 601)


@pytest.mark.only_on("mariadb")
def test_hidden_columns_of_mariadb(database: Database) -> None:
    """A UNIQUE key on a BLOB has a hidden column behind it; an invisible column is an ordinary one."""
    check(database, "a BLOB UNIQUE, b INT INVISIBLE DEFAULT 5, c TEXT UNIQUE", ["'x','7'", "NULL,'8'", "'y','9'"])


@pytest.mark.only_on("mysql")
def test_hidden_columns_of_mysql(database: Database) -> None:
    """An index on an expression has a hidden column behind it."""
    check(database, "a VARCHAR(9), b INT INVISIBLE DEFAULT 5, UNIQUE ((LOWER(a)))", ["'x'", "NULL", "'y'"])
