"""Checksums against real tables: no false alarm over any change of type, and every planted fault is seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sandbox.databases import Database
from tests.support.private_server import VECTORS, is_older
from vreplication.mysql.quoting import idents, qualified
from vreplication.schema import checksum
from vreplication.schema.alter import parse_alter
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_tables
from vreplication.schema.model import TableMapping
from vreplication.schema.shadow import create_shadow

BOTH, MARIADB, MYSQL = "", "mariadb", "mysql"


@dataclass(frozen=True, slots=True)
class Change:
    """A column of one type with values, and the type that the ALTER makes of it."""

    before: str
    after: str
    values: tuple[str, ...]
    only_on: str = BOTH


INTEGERS = ("NULL", "0", "-1", "127", "-128")
TIMES = ("NULL", "'2020-02-29 23:59:59.999999'", "'0000-00-00 00:00:00'", "'1970-01-02 00:00:01'")
LABELS = ",".join(f"'l{i}'" for i in range(64))
WORDS = ("NULL", "''", "'a'", "'a  '", "'é€'", "'N'")
CHANGES = (
    Change("TINYINT", "BIGINT", INTEGERS),
    Change("BIGINT", "TINYINT", INTEGERS),
    Change("INT UNSIGNED", "BIGINT", ("NULL", "4294967295")),
    Change("BIGINT UNSIGNED", "DECIMAL(30,5)", ("NULL", "18446744073709551615")),
    Change("INT(8) ZEROFILL", "INT", ("NULL", "5", "123456789")),
    Change("INT(8) ZEROFILL", "VARCHAR(20)", ("NULL", "5", "123456789")),
    Change("INT", "VARCHAR(20)", INTEGERS),
    Change("INT", "CHAR(20) CHARACTER SET utf16", INTEGERS),
    Change("INT", "DOUBLE", INTEGERS),
    Change("INT", "BLOB", INTEGERS),
    Change("SMALLINT UNSIGNED", "BIT(20)", ("NULL", "0", "65535")),
    Change("DECIMAL(10,2)", "DECIMAL(14,4)", ("NULL", "0", "-1.25", "99999999.99")),
    Change("DECIMAL(65,30)", "DECIMAL(65,10)", ("NULL", "-1.5", "12345678901234567890123456789012345")),
    Change("DECIMAL(10,2)", "INT", ("NULL", "7", "-3")),
    Change("DECIMAL(10,2)", "VARCHAR(20)", ("NULL", "1.50", "-3")),
    Change("DECIMAL(10,2)", "DOUBLE", ("NULL", "1.53", "-3")),
    Change("FLOAT", "DOUBLE", ("NULL", "0.1", "-1.1754943508222875e-38", "-0e0", "3.4028234663852886e38")),
    Change("DOUBLE", "FLOAT", ("NULL", "0.1", "16777217", "-1.2345678901234567e-30", "-0e0")),
    Change("DOUBLE", "DOUBLE NOT NULL DEFAULT 1", ("0.1", "-1.2345678901234567e-300", "-0e0")),
    Change("DOUBLE", "DECIMAL(20,10)", ("NULL", "0.1", "-2.5")),
    Change("DOUBLE", "BIGINT", ("NULL", "2.5", "3.5", "-0.5")),
    Change("FLOAT", "VARCHAR(40)", ("NULL", "0.1", "1e30", "-2.5")),
    Change("DOUBLE", "VARCHAR(40)", ("NULL", "0.1", "1e30", "-1.2345678901234567e-300")),
    Change("BIT(64)", "BIGINT UNSIGNED", ("NULL", "0", "18446744073709551615")),
    Change("BIT(9)", "VARCHAR(20)", ("NULL", "257", "65")),
    Change("BIT(16)", "BLOB", ("NULL", "257", "16705")),
    Change("INT", "YEAR", ("NULL", "0", "1", "69", "70", "99", "1901", "2155")),
    Change("BIGINT UNSIGNED", "YEAR", ("NULL", "7", "1999")),
    Change("YEAR", "INT", ("NULL", "0", "1999", "2155")),
    Change("YEAR", "VARCHAR(10)", ("NULL", "0", "1999")),
    Change("DATE", "DATETIME(3)", ("NULL", "'2020-02-29'", "'0000-00-00'")),
    Change("DATETIME(6)", "DATETIME(6) NULL COMMENT 'x'", TIMES),
    Change("DATETIME", "DATETIME(6)", TIMES),
    Change("DATETIME(6)", "DATETIME(2)", TIMES[1:]),
    Change("DATETIME(6)", "VARCHAR(40)", TIMES),
    Change("DATETIME(3)", "TIMESTAMP(3) NULL", ("NULL", "'2020-02-29 23:59:59.123'", "'1970-01-02 00:00:01'")),
    Change("TIMESTAMP(6) NULL", "DATETIME(6)", TIMES),
    Change("TIMESTAMP(2) NULL", "VARCHAR(40)", ("NULL", "'2020-02-29 23:59:59.12'")),
    Change("DATETIME", "BIGINT", ("NULL", "'2020-02-29 23:59:59'")),
    Change("TIME(2)", "TIME(6)", ("NULL", "'-838:59:59'", "'00:00:00.25'")),
    Change("TIME(6)", "VARCHAR(30)", ("NULL", "'-838:59:59'", "'00:00:00.25'")),
    Change("VARCHAR(30)", "DATETIME(2)", ("NULL", "'2020-02-29 23:59:59.5'")),
    Change("VARCHAR(30)", "DATE", ("NULL", "'2020-02-29'")),
    Change("VARCHAR(30)", "TIME(1)", ("NULL", "'10:11:12.5'")),
    Change("VARCHAR(30)", "INT", ("NULL", "'12'", "'-7'", "'1e3'")),
    Change("VARCHAR(30)", "BIGINT UNSIGNED", ("NULL", "'18446744073709551615'")),
    Change("VARCHAR(30)", "DECIMAL(12,3)", ("NULL", "'12.5'", "'-7'")),
    Change("VARCHAR(30)", "FLOAT", ("NULL", "'12.1'", "'-7e-3'")),
    Change("VARCHAR(30)", "ENUM('a','B','c ,')", ("NULL", "'a'", "'b'", "'c ,'", "'2'")),
    Change("VARCHAR(30)", "JSON", ("NULL", '\'{"b": 1.0, "a": [null, "é"]}\'')),
    Change("VARCHAR(60)", "INET6", ("NULL", "'::1'", "'1::FF'"), MARIADB),
    Change("UUID", "VARCHAR(40)", ("NULL", "'123E4567-E89B-12D3-A456-426655440000'"), MARIADB),
    Change("UUID", "BINARY(16)", ("NULL", "'123E4567-E89B-12D3-A456-426655440000'"), MARIADB),
    Change("INET6", "VARBINARY(16)", ("NULL", "'::1'"), MARIADB),
    Change("UUID", "UUID NULL COMMENT 'x'", ("NULL", "'123E4567-E89B-12D3-A456-426655440000'"), MARIADB),
    Change("VARCHAR(20)", "VARCHAR(40)", WORDS),
    Change("VARCHAR(40)", "TEXT", WORDS),
    Change("VARCHAR(20)", "CHAR(20)", WORDS),
    Change("CHAR(20)", "VARCHAR(20)", WORDS),
    Change("TEXT", "VARCHAR(60)", WORDS),
    Change("LONGTEXT", "LONGTEXT NOT NULL", ("''", "REPEAT('x', 3000000)")),
    Change("VARCHAR(20)", "VARBINARY(60)", WORDS),
    Change("VARCHAR(20)", "BINARY(60)", WORDS),
    Change("VARCHAR(20) CHARACTER SET latin1", "VARCHAR(20) CHARACTER SET utf8mb4", ("NULL", "'é'", "''")),
    Change("VARCHAR(20) CHARACTER SET utf8mb4", "VARCHAR(20) CHARACTER SET latin1", ("NULL", "'é'", "''")),
    Change("VARCHAR(20) CHARACTER SET utf8mb4", "VARCHAR(20) CHARACTER SET utf16", WORDS),
    Change("CHAR(20) CHARACTER SET utf16", "VARCHAR(20) CHARACTER SET utf8mb3", WORDS),
    Change("VARCHAR(20) CHARACTER SET gbk", "CHAR(20) CHARACTER SET utf8mb4", ("NULL", "'中'", "'a '")),
    Change("VARCHAR(20) CHARACTER SET gbk", "VARCHAR(20) CHARACTER SET big5", ("NULL", "'中'", "'a '")),
    Change("VARCHAR(20) CHARACTER SET utf8mb3", "VARCHAR(20) CHARACTER SET utf8mb4", WORDS),
    Change("TEXT CHARACTER SET latin1", "LONGTEXT CHARACTER SET utf8mb4", ("NULL", "'é'", "REPEAT('é', 60000)")),
    Change("BINARY(5)", "BINARY(9)", ("NULL", "X'0100'", "''", "X'FFFEFFFEFF'")),
    Change("BINARY(5)", "VARBINARY(9)", ("NULL", "X'0100'", "''", "X'FFFEFFFEFF'")),
    Change("VARBINARY(5)", "BINARY(9)", ("NULL", "X'0100'", "''", "X'FF'")),
    Change("VARBINARY(5)", "BLOB", ("NULL", "X'0100'", "''", "X'FE'")),
    Change("BLOB", "TEXT", ("NULL", "'abc'", "''")),
    Change("LONGBLOB", "LONGBLOB COMMENT 'x'", ("NULL", "REPEAT(X'FF', 3000000)")),
    Change("VARBINARY(20)", "INT", ("NULL", "'12'")),
    Change("ENUM('a','b')", "ENUM('a','b','c')", ("NULL", "'a'", "'b'")),
    Change("ENUM('a','b')", "ENUM('b','x','a')", ("NULL", "'a'", "'b'")),
    Change("ENUM('a','b é')", "VARCHAR(20)", ("NULL", "'a'", "'b é'")),
    Change("ENUM('a','b é')", "CHAR(20) CHARACTER SET latin1", ("NULL", "'a'", "'b é'")),
    Change("ENUM('x','y')", "INT", ("NULL", "'x'", "'y'")),
    Change("SET('a','b')", "SET('a','b','c')", ("NULL", "''", "'a,b'")),
    Change("SET('a','b')", "SET('b','x','a')", ("NULL", "''", "'a,b'", "'b'")),
    Change("SET('a','b')", "VARCHAR(20)", ("NULL", "''", "'a,b'")),
    Change(f"SET({LABELS})", f"SET({LABELS}) COMMENT 'x'", ("NULL", "''", "'l63'", "'l0,l63'")),
    Change(f"SET({LABELS})", f"SET('x',{LABELS[5:]})", ("NULL", "''", "'l63'", "'l1,l63'")),
    Change("JSON", "JSON NULL COMMENT 'x'", ("NULL", '\'{"b": 1.0, "a": [null, "é"]}\'')),
    Change("JSON", "LONGTEXT", ("NULL", '\'{"b": 1.0, "a": [null, "é"]}\'')),
    Change("GEOMETRY", "GEOMETRY NULL COMMENT 'x'", ("NULL", "ST_GeomFromText('POINT(1 2)')")),
    Change("POINT", "GEOMETRY", ("NULL", "ST_GeomFromText('POINT(1 2)')")),
    Change("VECTOR(3)", "VECTOR(3) COMMENT 'x'", ("NULL", "TO_VECTOR('[1,2,3]')"), MYSQL),
    Change("VECTOR(3)", "VARBINARY(20)", ("NULL", "TO_VECTOR('[1,2,3]')"), MYSQL),
)
if is_older("mysql", VECTORS):
    CHANGES = tuple(change for change in CHANGES if not change.before.startswith("VECTOR"))


def build(
    database: Database, columns: str, alter: str, rows: list[str], *, key: str = "id", zone: str = "+00:00"
) -> TableMapping:
    """Table `t` with these rows, and its shadow `u` filled as the server-side copy would."""
    session = database.admin
    session.execute_raw(f"CREATE TABLE t ({columns}, PRIMARY KEY ({key})) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
    for row in rows:
        session.execute_raw(f"INSERT INTO t VALUES ({row})")
    clauses = parse_alter(alter)
    source = introspect(session, database.name, "t")
    shadow = create_shadow(session, source, clauses, "u")
    mapping = map_tables(source, shadow, clauses, is_mariadb=database.server.is_mariadb, global_time_zone=zone)
    names = idents(p.target.name for p in mapping.pairs)
    values = ",".join(p.convert.format(f"`{p.source.name}`") for p in mapping.pairs)
    session.execute_raw(
        f"INSERT INTO {qualified(database.name, 'u')} ({names}) SELECT {values} FROM {qualified(database.name, 't')}"
    )
    return mapping


def is_equal(database: Database, mapping: TableMapping) -> bool:
    """True when the sums agree; the single rows must agree with them."""
    source, target = (checksum.checksum(database.admin, side(mapping)) for side in (source_side, target_side))
    one = {(r.ident, r.value) for r in checksum.row_hashes(database.admin, source_side(mapping), "1=1")}
    other = {(r.ident, r.value) for r in checksum.row_hashes(database.admin, target_side(mapping), "1=1")}
    assert (one == other) == (source == target)
    return source == target


def test_changes_of_type_give_no_alarm_and_hide_no_fault(database: Database) -> None:
    wrong = []
    for change in CHANGES:
        if change.only_on in (BOTH, database.server.flavor):
            wrong += [f"{change.before} to {change.after}: {what}" for what in _check(database, change)]
            database.admin.execute_raw("DROP TABLE t, u")
    assert not wrong


def _check(database: Database, change: Change) -> list[str]:
    rows = [f"{i},{value}" for i, value in enumerate(change.values)]
    mapping = build(database, f"id INT NOT NULL, c {change.before}", f"MODIFY c {change.after}", rows)
    said = [] if is_equal(database, mapping) else ["false alarm"]
    last = len(rows) - 1
    database.admin.execute_raw(f"UPDATE u a JOIN u b ON b.id={last - 1} SET a.c=b.c WHERE a.id={last}")
    return [*said, "fault not seen"] if is_equal(database, mapping) else said


WIDE = (
    "id INT NOT NULL, a VARCHAR(20), b VARCHAR(20) NOT NULL, f FLOAT, d DOUBLE, n BIGINT, v VARBINARY(20), "
    "big LONGTEXT, l VARCHAR(20) CHARACTER SET latin1, e ENUM('a','b')"
)
ROWS = [
    "1,'x','y',0.1,0.1,10,X'00','long','é','a'",
    "2,'y','x',-3.5,1e100,20,X'0000','longer','è','b'",
    "3,NULL,'',NULL,NULL,NULL,NULL,NULL,NULL,NULL",
    "4,'','a ',0,0,0,'','','','a'",
    "5,'N','3',1,1,1,X'FEFF','\\0','ÿþ','b'",
]
COLUMNS = "id,a,b,f,d,n,v,big,l,e"
FAULTS = {
    "swapped between two rows": ["UPDATE u SET a=IF(id=1,'y','x') WHERE id IN (1,2)"],
    "swapped between two columns": ["UPDATE u SET a='y', b='x' WHERE id=1"],
    "all of two rows swapped": [
        "DELETE FROM u WHERE id IN (1,2)",
        "INSERT INTO u SELECT 3-id,a,b,f,d,n,v,big,l,e FROM t WHERE id IN (1,2)",
    ],
    "a truncated value": ["UPDATE u SET big=LEFT(big,3) WHERE id=2"],
    "NULL for ''": ["UPDATE u SET a=NULL WHERE id=4"],
    "'' for NULL": ["UPDATE u SET a='' WHERE id=3"],
    "'' for NULL in a blob": ["UPDATE u SET v='' WHERE id=3"],
    "'' for NULL in a long text": ["UPDATE u SET big='' WHERE id=3"],
    "0 for NULL": ["UPDATE u SET n=0 WHERE id=3"],
    "a FLOAT by its last bit": ["UPDATE u SET f=0.10000000894069672 WHERE id=1"],
    "a DOUBLE by its last bit": ["UPDATE u SET d=0.10000000000000002 WHERE id=1"],
    "a DOUBLE of 24 characters": ["UPDATE u SET d=-1.2345678901234567e-300 WHERE id=1"],
    "a trailing space less": ["UPDATE u SET b='a' WHERE id=4"],
    "upper case": ["UPDATE u SET a='X' WHERE id=1"],
    "a zero byte less": ["UPDATE u SET v=X'00' WHERE id=2"],
    "a row missing": ["DELETE FROM u WHERE id=2"],
    "a row missing and another one too many": ["UPDATE u SET id=7 WHERE id=2"],
    "a row too many": ["INSERT INTO u SELECT 9,a,b,f,d,n,v,big,l,e FROM u WHERE id=1"],
    "a field's end moved": ["UPDATE u SET v=X'FEFFFF', l='þ' WHERE id=5"],
    "another label": ["UPDATE u SET e='b' WHERE id=1"],
}


def test_planted_faults_are_seen(database: Database) -> None:
    mapping = build(database, WIDE, "ADD COLUMN extra INT NOT NULL DEFAULT 7, ADD KEY (n)", ROWS)
    missed = []
    for fault, statements in FAULTS.items():
        assert is_equal(database, mapping)
        for statement in statements:
            assert database.admin.execute_raw(statement.replace("INTO u SELECT", f"INTO u ({COLUMNS}) SELECT")) > 0
        if is_equal(database, mapping):
            missed.append(fault)
        database.admin.execute_raw("DELETE FROM u")
        database.admin.execute_raw(f"INSERT INTO u ({COLUMNS}) SELECT {COLUMNS} FROM t")
    assert not missed


def test_cast_on_the_source_side_does_not_hide_a_loss(database: Database) -> None:
    """What the server would report as a loss is compared in the wider type."""
    columns = "id INT NOT NULL, a DECIMAL(10,4), b VARCHAR(20), c VARCHAR(20), d BIGINT"
    alter = "MODIFY a DECIMAL(10,2), MODIFY b VARCHAR(3), MODIFY c VARCHAR(20) CHARACTER SET latin1, MODIFY d TINYINT"
    for i, lossy in enumerate(("1.2345,'abc','c',1", "1,'abcdef','c',1", "1,'abc','中',1", "1,'abc','c',1000")):
        mapping = build(database, columns, alter, ["1,1.5,'abc','é',7"])
        assert is_equal(database, mapping)
        database.admin.execute_raw(f"INSERT INTO t VALUES (2,{lossy})")
        database.admin.execute_raw("INSERT IGNORE INTO u SELECT * FROM t WHERE id=2")
        assert not is_equal(database, mapping), (i, lossy)
        database.admin.execute_raw("DROP TABLE t, u")


def test_text_that_is_rounded_is_no_text_of_the_same_number(database: Database) -> None:
    """Stored in an integer it is rounded without a word; a plain ALTER refuses it, or rounds it."""
    mapping = build(database, "id INT NOT NULL, a VARCHAR(20)", "MODIFY a INT", ["1,'1.0'", "2,'12'", "3,'1e3'"])
    assert is_equal(database, mapping)
    database.admin.execute_raw("INSERT INTO t VALUES (4,'1.5')")
    database.admin.execute_raw("INSERT IGNORE INTO u SELECT * FROM t WHERE id=4")
    assert not is_equal(database, mapping)


def test_values_swapped_between_rows_escape_a_plain_fold_but_not_ours(database: Database) -> None:
    """Why each CRC is weighted by its key."""
    mapping = build(database, "id INT NOT NULL, a VARCHAR(20) NOT NULL", "ADD KEY (a)", ["1,'aaaa'", "2,'bbbb'"])
    database.admin.execute_raw("UPDATE u SET a=IF(id=1,'bbbb','aaaa')")
    one, other = source_side(mapping), target_side(mapping)
    folded = [database.admin.value(f"SELECT BIT_XOR(CRC32({side.row})) {side.from_sql}") for side in (one, other)]
    assert folded[0] == folded[1]
    assert not is_equal(database, mapping)


def test_no_swap_of_values_between_any_rows_escapes(database: Database) -> None:
    """All 780 pairs of 40 rows, and 38 threes; values and keys as alike as they come."""
    rows = [f"{i},'{i:04d}'" for i in range(1, 41)]
    mapping = build(database, "id INT NOT NULL, a VARCHAR(20) NOT NULL", "ADD KEY (a)", rows)
    pairs = [f"({i},{j}),({j},{i})" for i in range(1, 41) for j in range(i + 1, 41)]
    threes = [f"({i},{i + 1}),({i + 1},{i + 2}),({i + 2},{i})" for i in range(1, 39)]
    database.admin.execute_raw("CREATE TABLE moves (id INT PRIMARY KEY, other INT NOT NULL)")
    for moves in [*pairs, *threes]:
        database.admin.execute_raw(f"REPLACE INTO moves VALUES {moves}")
        database.admin.execute_raw("UPDATE u JOIN moves m ON m.id=u.id SET a=LPAD(m.other,4,'0')")
        assert not is_equal(database, mapping), moves
        database.admin.execute_raw("UPDATE u SET a=LPAD(id,4,'0')")
        database.admin.execute_raw("DELETE FROM moves")
    assert is_equal(database, mapping)


def test_buckets_add_up_to_the_whole(database: Database) -> None:
    rows = [f"{i},'{i % 7}'" for i in range(200)]
    mapping = build(database, "id INT NOT NULL, a VARCHAR(20)", "ADD KEY (a)", rows)
    side = target_side(mapping)
    parts = checksum.buckets(database.admin, side, "1=1", 16)
    whole = sum(parts.values(), checksum.Checksum())
    assert whole == checksum.checksum(database.admin, side)
    assert whole.rows == 200
    some = [b for b in parts if b % 2]
    found = checksum.row_hashes(database.admin, side, checksum.in_buckets(side, some, 16))
    assert len(found) == sum(parts[b].rows for b in some)


def test_renamed_generated_and_added_columns(database: Database) -> None:
    """A generated column of the target is the server's work; a column that the ALTER fills is compared."""
    columns = "id INT NOT NULL, a INT, g INT AS (a*2) STORED, v VARCHAR(10) AS (CONCAT(a,'x')) VIRTUAL"
    alter = "DROP COLUMN v, MODIFY g BIGINT AS (a*3) STORED, ADD COLUMN w VARCHAR(10) NOT NULL"
    mapping = build(database, columns, alter, ["1,5,DEFAULT,DEFAULT", "2,6,DEFAULT,DEFAULT"])
    assert is_equal(database, mapping)
    database.admin.execute_raw("UPDATE u SET w='lost' WHERE id=1")
    assert not is_equal(database, mapping)


def test_times_that_change_their_zone(database: Database) -> None:
    """A plain ALTER goes by the server's zone; the sessions are in UTC."""
    columns = "id INT NOT NULL, a TIMESTAMP(3) NULL, b DATETIME(2), c TIMESTAMP NULL"
    alter = "MODIFY a DATETIME(3), MODIFY b TIMESTAMP(4) NULL, MODIFY c VARCHAR(30)"
    rows = ["1,'2020-01-01 00:30:00.125','2020-01-01 00:30:00.25','2020-01-01'", "2,NULL,NULL,NULL"]
    mapping = build(database, columns, alter, rows, zone="+02:00")
    assert str(database.admin.value("SELECT a FROM u WHERE id=1")) == "2020-01-01 02:30:00.125000"
    assert is_equal(database, mapping)
    database.admin.execute_raw("UPDATE u SET a=a - INTERVAL 2 HOUR WHERE id=1")
    assert not is_equal(database, mapping)


@pytest.mark.only_on("mysql")
def test_key_that_the_server_generates(database: Database) -> None:
    """It is no column that we write, but rows are told apart by it."""
    columns = "id INT NOT NULL, g INT AS (100-id) STORED NOT NULL, v INT"
    mapping = build(database, columns, "MODIFY v BIGINT", ["1,DEFAULT,5", "2,DEFAULT,6"], key="g")
    assert [p.target.name for p in mapping.key] == ["g"]
    assert is_equal(database, mapping)
    database.admin.execute_raw("UPDATE u SET v=11-v")
    assert not is_equal(database, mapping)
