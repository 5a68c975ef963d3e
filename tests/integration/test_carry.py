"""Definitions carried to another server: what really comes out there, and what is refused by name."""

from __future__ import annotations

import pytest

from tests.support.pairs import Pair
from tests.support.private_server import VECTORS, is_older
from vreplication.errors import Refused
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import inspect
from vreplication.schema.carried import compare, try_carried
from vreplication.schema.carry import Carried, carry
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.model import Table
from vreplication.workflows.move_tables.plan import mapping_of

WIDE = """(
  id INT UNSIGNED NOT NULL AUTO_INCREMENT, t1 TINYINT(1) DEFAULT 1, t2 TINYINT UNSIGNED, sm SMALLINT, md MEDIUMINT,
  z INT(5) ZEROFILL, big BIGINT UNSIGNED NOT NULL, d DECIMAL(10,2) DEFAULT '1.50', f FLOAT, g FLOAT(7,3), db DOUBLE,
  bits BIT(3) DEFAULT b'101', y YEAR, dt DATE DEFAULT '2020-02-29', tm TIME(3),
  at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), ts TIMESTAMP NULL,
  made TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, zero DATETIME DEFAULT '0000-00-00',
  c CHAR(5) COLLATE latin1_bin, v VARCHAR(10) DEFAULT 'x''y\\\\z', w VARCHAR(20) COLLATE utf8mb3_general_ci,
  tx TEXT, ltx LONGTEXT COLLATE utf8mb4_unicode_ci, bl TINYBLOB, bi BINARY(3), vb VARBINARY(9) DEFAULT 'A',
  e ENUM('a','b''c','é') DEFAULT 'a', s SET('x','y') COLLATE utf8mb4_bin, j JSON, p POINT NOT NULL,
  gc GEOMETRYCOLLECTION, hidden INT INVISIBLE DEFAULT 4, ex INT DEFAULT (1+2), u VARCHAR(36) DEFAULT (uuid()),
  jd JSON DEFAULT (json_object()), note VARCHAR(9) COMMENT 'hi `there`, "you"; it''s',
  g1 INT GENERATED ALWAYS AS (sm + 1) VIRTUAL, g2 VARCHAR(30) GENERATED ALWAYS AS (concat('x\\\\', v)) STORED,
  PRIMARY KEY (id), UNIQUE KEY uv (v), KEY mixed (t1 DESC, c(2)) COMMENT 'k', SPATIAL KEY sp (p), FULLTEXT KEY ft (tx),
  UNIQUE KEY big (big, dt) USING BTREE, CONSTRAINT positive CHECK (sm > 1 and d < 5.5)
) ENGINE=InnoDB AUTO_INCREMENT=77 DEFAULT CHARSET=latin1 ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1 COMMENT='tab''le'"""


def carried(pair: Pair, definition: str, *, name: str = "t") -> tuple[Table, Carried]:
    """As t__vr_new of the target, tried there."""
    pair.source.admin.execute_raw(f"CREATE TABLE {name} {definition}")
    source, target = pair.source.admin, pair.target.admin
    table = introspect(source, pair.source.name, name)
    place = {"schema": pair.target.name, "name": f"{name}__vr_new"}
    found = carry(table, inspect(source), inspect(target), **place)
    try_carried(target, table, found, **place)
    assert not exists(target, pair.target.name, f"{name}__vr_new")
    return table, found


def made(pair: Pair, definition: str) -> tuple[Table, Table, Carried]:
    """The table on the source, and what it is on the target under its own name."""
    table, found = carried(pair, definition)
    pair.target.admin.execute_raw(found.create_sql)
    pair.target.admin.execute_raw("RENAME TABLE t__vr_new TO t")
    there = introspect(pair.target.admin, pair.target.name, "t")
    compare(table, there)
    return table, there, found


def test_a_wide_table_and_its_way_back(pair: Pair) -> None:
    source, target, found = made(pair, WIDE)
    assert (target.auto_increment, len(target.keys)) == (77, len(source.keys))
    assert found.untried == ("FULLTEXT KEY ft",)
    if pair.is_one_flavor:
        assert found.changes == ()
    else:
        assert any("JSON" in change and "Column j:" in change for change in found.changes)
        assert {target.column(n).data_type for n in ("j", "jd")} == (
            {"longtext"} if pair.target.server.is_mariadb else {"json"}
        )
    assert target.column("c").collation == "latin1_bin"
    assert "CONSTRAINT `positive` CHECK" in target.create_sql
    servers = inspect(pair.source.admin), inspect(pair.target.admin)
    there, back = mapping_of(source, target, *servers), mapping_of(target, source, *reversed(servers))
    for mapping in (there, back):
        assert (mapping.source_index, mapping.is_exact_key, mapping.has_same_order) == ("PRIMARY", True, True)
        assert not mapping.added_unique or not pair.is_one_flavor
        assert not mapping.is_written_in_zone
        assert {p.convert for p in mapping.pairs} == {"{}"}
        soft = {p.source.name for p in mapping.soft}
        assert soft == (set() if pair.is_one_flavor else {"f", "g", "db", "j", "jd"})
        assert {p.source.name for p in mapping.kept} == ({"g2"} if pair.is_one_flavor else {"g1", "g2"})


def test_defaults_come_out_alike(pair: Pair) -> None:
    """Rows that name no column: what an application that writes on gets."""
    made(
        pair,
        "(id INT PRIMARY KEY, d DECIMAL(10,2) DEFAULT '1.50', bits BIT(3) DEFAULT b'101', v VARCHAR(10) CHARACTER SET"
        " utf8mb4 COLLATE utf8mb4_bin DEFAULT 'x''y\\\\zé', ex INT DEFAULT (1+2), tx TEXT CHARACTER SET utf8mb4 COLLATE"
        " utf8mb4_bin DEFAULT ('a\\\\b'), vb VARBINARY(4) DEFAULT 'AB', n INT DEFAULT NULL, neg INT DEFAULT -5,"
        " g VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin GENERATED ALWAYS AS (concat('x\\\\', id)) STORED)",
    )
    rows = []
    for side in (pair.source.admin, pair.target.admin):
        side.execute_raw("INSERT INTO t (id) VALUES (1)")
        rows.append(side.rows("SELECT d, bits+0, v, ex, tx, vb, n, neg, g FROM t"))
    assert rows[0] == rows[1]


def test_unset_charsets_are_those_of_the_source(pair: Pair) -> None:
    """A schema's defaults differ from server to server."""
    pair.source.admin.execute_raw("ALTER DATABASE CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci")
    pair.target.admin.execute_raw("ALTER DATABASE CHARACTER SET latin1 COLLATE latin1_german1_ci")
    source, target, found = made(pair, "(id VARCHAR(20) PRIMARY KEY, v VARCHAR(10), e ENUM('ä'), n INT)")
    assert [c.collation for c in target.columns] == [c.collation for c in source.columns]
    assert target.column("v").collation == "utf8mb4_unicode_520_ci"
    assert found.changes == ()


def test_the_default_of_columns_to_come_is_that_of_the_source(pair: Pair) -> None:
    """MySQL does not write it, and it is another one on MariaDB 11.8 (character_set_collations)."""
    source, target, _ = made(pair, "(id INT PRIMARY KEY) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci")
    assert source.collation == target.collation == "utf8mb3_general_ci"


@pytest.mark.parametrize("pair", ["mysql-mysql"], indirect=True)
def test_check_names_follow_the_table(pair: Pair) -> None:
    _, target, found = made(pair, "(id INT PRIMARY KEY, a INT CHECK (a > 1), CONSTRAINT own CHECK (id > 0))")
    assert "`t__vr_new_chk_1`" in found.create_sql
    assert "CONSTRAINT `t_chk_1`" in target.create_sql
    assert "CONSTRAINT `own`" in target.create_sql


@pytest.mark.parametrize("pair", ["mysql-mysql"], indirect=True)
def test_partitions_and_expressions_stay_within_a_flavor(pair: Pair) -> None:
    _, target, found = made(pair, "(id INT PRIMARY KEY, a INT, KEY f ((a+1))) PARTITION BY HASH (id) PARTITIONS 2")
    assert target.is_partitioned
    assert found.untried == ("partitions",)


ON_ANY = [
    ("(id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))", "foreign key"),
    ("(id INT PRIMARY KEY) ENGINE=MyISAM", "MyISAM"),
]


@pytest.mark.parametrize("pair", ["mysql-mysql", "mariadb-mariadb"], indirect=True)
@pytest.mark.parametrize(("definition", "said"), ON_ANY)
def test_what_no_target_takes(pair: Pair, definition: str, said: str) -> None:
    pair.source.admin.execute_raw("CREATE TABLE parent (id INT PRIMARY KEY)")
    assert said in refusal(pair, definition)
    pair.source.admin.execute_raw("DROP TABLE t")


def refusal(pair: Pair, definition: str) -> str:
    with pytest.raises(Refused) as refused:
        carried(pair, definition)
    assert refused.value.cure
    assert not exists(pair.target.admin, pair.target.name, "t__vr_new")
    return str(refused.value)


TO_MARIADB = {
    "(id INT PRIMARY KEY, col VARCHAR(9) COLLATE utf8mb4_0900_ai_ci)": "utf8mb4_0900_ai_ci",
    "(id INT PRIMARY KEY, col POINT SRID 4326)": "SRID 4326",
    "(id INT PRIMARY KEY, col INT, KEY col ((col + 1)))": "expression",
    "(id INT PRIMARY KEY, col VARCHAR(9) COLLATE utf8mb4_croatian_ci, UNIQUE KEY u (col))": "does not tell",
    "(id INT PRIMARY KEY, col VARBINARY(4) DEFAULT 0x00FF)": "no text",
    "(id INT PRIMARY KEY, col INT NOT NULL INVISIBLE)": "INVISIBLE",
    "(col INT PRIMARY KEY) PARTITION BY HASH (col) PARTITIONS 2": "partitioned",
    "(id INT PRIMARY KEY, j JSON, col JSON GENERATED ALWAYS AS (json_extract(j,'$.a')))": "JSON",
    "(id INT PRIMARY KEY, col CHAR(9) CHARACTER SET gb18030)": "gb18030",
    "(id INT KEY, v CHAR(9) COLLATE latin1_bin, c CHAR(9) COLLATE latin1_bin AS (concat('é',v)))": "_latin1'?'",
    "(id INT PRIMARY KEY, t TEXT COLLATE utf8mb4_bin, col INT AS (regexp_like(t,'a')))": "regexp_like",
}
TO_MYSQL = {
    "(id INT PRIMARY KEY, col UUID)": "uuid",
    "(id INT PRIMARY KEY, col INET6)": "inet6",
    "(id INT PRIMARY KEY, col YEAR(2))": "year(2)",
    "(id INT PRIMARY KEY, col INET4)": "inet4",
    "(id INT PRIMARY KEY, col VARCHAR(99) COMPRESSED)": "COMPRESSED",
    "(id INT PRIMARY KEY, col TEXT COLLATE utf8mb4_bin, UNIQUE KEY col (col))": "whole columns of text",
    "(id INT PRIMARY KEY, col VARCHAR(9) COLLATE utf8mb4_uca1400_ai_ci)": "uca1400",
    "(id INT PRIMARY KEY, col VARCHAR(9) COLLATE utf8mb4_nopad_bin)": "nopad",
    "(id INT PRIMARY KEY, col JSON, KEY k (col(9)))": "JSON",
    "(col INT PRIMARY KEY) WITH SYSTEM VERSIONING": "versioned",
    "(id INT PRIMARY KEY, a DATE, b DATE, PERIOD FOR col (a, b))": "period",
    "(col INT PRIMARY KEY) ENCRYPTED=NO ENCRYPTION_KEY_ID=1": "encrypted",
    "(id INT PRIMARY KEY, col INT NOT NULL DEFAULT nextval(numbers))": "sequence",
}


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_what_mariadb_does_not_have(pair: Pair) -> None:
    _refused_one_by_one(pair, TO_MARIADB)
    if not is_older("mysql", VECTORS):
        _refused_one_by_one(pair, {"(id INT PRIMARY KEY, col VECTOR(3))": "vector(3)"})


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_what_mysql_does_not_have(pair: Pair) -> None:
    pair.source.admin.execute_raw("CREATE SEQUENCE numbers")
    _refused_one_by_one(pair, TO_MYSQL)
    if pair.source.admin.row("SHOW COLLATION LIKE 'utf8mb4_0900_ai_ci'"):
        _refused_one_by_one(pair, {"(col VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY)": "does not tell"})
    pair.source.admin.execute_raw("DROP SEQUENCE numbers")


@pytest.mark.parametrize("pair", ["mariadb-mariadb"], indirect=True)
def test_a_sequence_that_would_begin_anew(pair: Pair) -> None:
    """The default names it with its schema: one that is there on the target would give out numbers that are taken."""
    pair.source.admin.execute_raw("CREATE SEQUENCE numbers")
    _refused_one_by_one(pair, {"(id INT PRIMARY KEY DEFAULT nextval(numbers), v VARCHAR(9) DEFAULT 'a')": "sequence"})
    carried(pair, "(id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'nextval')")


def _refused_one_by_one(pair: Pair, cases: dict[str, str]) -> None:
    for definition, said in cases.items():
        found = refusal(pair, definition)
        assert said in found, (definition, found)
        pair.source.admin.execute_raw("DROP TABLE t")


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_what_is_written_otherwise_is_told(pair: Pair) -> None:
    pair.source.admin.execute_raw("ALTER DATABASE CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci")
    to_mariadb = {
        "(id INT PRIMARY KEY, a INT, KEY k (a) INVISIBLE)": ("IGNORED",),
        "(id INT PRIMARY KEY, a INT, b INT AS (a + 1) STORED NOT NULL)": ("Column b: NOT NULL",),
        "(id INT PRIMARY KEY, CONSTRAINT c CHECK (id > 1) NOT ENFORCED)": ("NOT ENFORCED",),
        "(id INT PRIMARY KEY, p POINT)": ("latitude first",),
        "(id INT PRIMARY KEY) COLLATE utf8mb4_0900_ai_ci COMPRESSION='zlib'": ("utf8mb4_0900_ai_ci", "COMPRESSION"),
    }
    to_mysql = {
        "(id INT(5) PRIMARY KEY, a INT)": ("int(5)",),
        "(id INT PRIMARY KEY, g GEOMETRY)": ("latitude first",),
        "(id INT PRIMARY KEY, a INT CHECK (a > id))": ("Column a: its CHECK",),
        "(id INT PRIMARY KEY, a INT, CHECK (a > 1), KEY k (a) IGNORED)": ("Key k", "CONSTRAINT_1"),
        "(id INT PRIMARY KEY) PAGE_CHECKSUM=1": ("PAGE_CHECKSUM",),
    }
    for definition, told in (to_mariadb if pair.target.server.is_mariadb else to_mysql).items():
        _, _, found = made(pair, definition)
        assert all(any(word in change for change in found.changes) for word in told), (definition, found.changes)
        assert len(found.changes) == len(told), found.changes
        for side in (pair.source, pair.target):
            side.admin.execute_raw(f"DROP TABLE {qualified(side.name, 't')}")


@pytest.mark.parametrize("pair", ["mysql-mysql"], indirect=True)
def test_a_table_that_came_out_otherwise_is_refused(pair: Pair) -> None:
    source, _ = carried(pair, "(id INT PRIMARY KEY, v VARCHAR(9) NOT NULL DEFAULT 'a', KEY k (v), CHECK (id > 0))")
    others = {
        "(id INT PRIMARY KEY, v VARCHAR(8) NOT NULL DEFAULT 'a', KEY k (v), CHECK (id > 0))": "type of column v",
        "(id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'a', KEY k (v), CHECK (id > 0))": "NULL of column v",
        "(id INT PRIMARY KEY, v VARCHAR(9) NOT NULL DEFAULT 'b', KEY k (v), CHECK (id > 0))": "default of column v",
        "(id INT PRIMARY KEY, v VARCHAR(9) NOT NULL DEFAULT 'a', UNIQUE KEY k (v), CHECK (id > 0))": "key k",
        "(id INT PRIMARY KEY, v VARCHAR(9) NOT NULL DEFAULT 'a', KEY k (v))": "0 CHECK constraints",
        "(id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb4_bin NOT NULL DEFAULT 'a', KEY k (v), CHECK (id > 0))": "col",
    }
    for definition, said in others.items():
        pair.target.admin.execute_raw(f"CREATE TABLE t {definition}")
        with pytest.raises(Refused, match=said):
            compare(source, introspect(pair.target.admin, pair.target.name, "t"))
        pair.target.admin.execute_raw("DROP TABLE t")
