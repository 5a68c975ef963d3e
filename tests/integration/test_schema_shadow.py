"""The shadow table becomes what a plain ALTER TABLE would have made; the trial says the same without a trace."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, connect
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Table
from vreplication.schema.shadow import comparable, create_shadow
from vreplication.schema.trial import trial_alter

BASE = """(id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
 a VARCHAR(20) CHARACTER SET latin1 DEFAULT 'q' COMMENT 'x, y',
 e ENUM('a','b''c,d') NOT NULL, g INT GENERATED ALWAYS AS (n + 1) VIRTUAL, h INT AS (LENGTH(a)) STORED, n INT NOT NULL,
 d DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), f FLOAT(7,3), b BIT(5), gm GEOMETRY,
 UNIQUE KEY u (a, h), KEY k (a(3)), CHECK (n < 1000), CHECK (n > -5)) COMMENT='it''s'"""
CASES = {
    "add": (BASE, "ADD COLUMN x INT NOT NULL AFTER a, ADD KEY (x, n)"),
    "drop and rename": (BASE, "DROP COLUMN f, CHANGE b c BIT(9), RENAME COLUMN gm TO `g m`"),
    "convert": (BASE, "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"),
    "invisible": (BASE, "ADD COLUMN i INT INVISIBLE DEFAULT 3"),
    "new check": (BASE, "ADD CHECK (n <> 7)"),
    "new named check": (BASE, "ADD CONSTRAINT only_odd CHECK (n % 2 = 1)"),
    "partition": ("(id INT PRIMARY KEY, v INT, KEY (v))", "PARTITION BY HASH (id) PARTITIONS 3"),
    "partitioned": (
        "(id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"
        " PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "ADD COLUMN w INT, ADD KEY (v)",
    ),
    "fulltext": ("(id INT PRIMARY KEY, t TEXT, FULLTEXT KEY ft (t))", "ADD COLUMN w INT"),
    "new fulltext": ("(id INT PRIMARY KEY, t TEXT)", "ADD FULLTEXT KEY ft (t)"),
    "spatial": ("(id INT PRIMARY KEY, g POINT NOT NULL, SPATIAL KEY (g))", "ADD COLUMN w INT"),
    "new primary key": ("(id INT NOT NULL UNIQUE, v INT NOT NULL)", "ADD PRIMARY KEY (v, id)"),
    "options": (BASE, "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8, COMMENT='new', STATS_PERSISTENT=1"),
    "json": ("(id INT PRIMARY KEY, j JSON)", "ADD COLUMN k JSON, MODIFY j JSON NOT NULL"),
    "reserved words": ("(`select` INT PRIMARY KEY, `a``b` INT)", "CHANGE `a``b` `from` INT, ADD KEY `order` (`from`)"),
}


@pytest.fixture
def session(database: Database) -> Session:
    return connect(database.url)


def make(database: Database, definition: str, name: str = "t") -> None:
    database.admin.execute_raw(f"CREATE TABLE {ident(name)} {definition}")


def plain_alter(database: Database, definition: str, alter: str, name: str = "t") -> str:
    make(database, definition, name)
    database.admin.execute_raw(f"ALTER TABLE {ident(name)} {alter}")
    return introspect(database.admin, database.name, name).create_sql


def switched(database: Database, table: Table, shadow: Table) -> str:
    """SHOW CREATE TABLE of the shadow under the table's name; nothing is left then."""
    retired = names.retired_table(table.name, "w")
    database.admin.execute_raw(
        f"RENAME TABLE {ident(table.name)} TO {ident(retired)}, {ident(shadow.name)} TO {ident(table.name)}"
    )
    found = introspect(database.admin, database.name, table.name).create_sql
    database.admin.execute_raw(f"DROP TABLE {ident(table.name)}, {ident(retired)}")
    return found


@pytest.mark.parametrize("case", CASES)
def test_definition_equals_that_of_a_plain_alter(database: Database, session: Session, case: str) -> None:
    definition, text = CASES[case]
    make(database, definition)
    table = introspect(session, database.name, "t")
    shadow = create_shadow(session, table, parse_alter(text), names.shadow_table("t"))
    found = switched(database, table, shadow)
    assert comparable(found, "t") == comparable(plain_alter(database, definition, text), "t")


@pytest.mark.parametrize("case", CASES)
def test_trial_reads_like_the_shadow(database: Database, session: Session, case: str) -> None:
    definition, text = CASES[case]
    make(database, definition)
    table = introspect(session, database.name, "t")
    trial = trial_alter(session, table, parse_alter(text))
    shadow = create_shadow(session, table, parse_alter(text), names.shadow_table("t"))
    if trial is None:
        assert "partition" in case or "fulltext" in case or case == "options"
    else:
        assert trial.columns == shadow.columns
        assert trial.keys == shadow.keys


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ("CONSTRAINT t_chk_3 CHECK (v > 1), CONSTRAINT t_chk_7 CHECK (v > 2) NOT ENFORCED", "ADD COLUMN w INT"),
        ("CONSTRAINT t_chk_3 CHECK (v > 1), CHECK (v < 9)", "ADD CHECK (v <> 5)"),
        ("CHECK (v > 1), CHECK (v < 9)", "DROP CHECK t_chk_1"),
        ("CHECK (v > 1), CHECK (v < 9)", "DROP CONSTRAINT T_CHK_2, ADD CHECK (v < 8)"),
        ("CHECK (v > 1), CONSTRAINT mine CHECK (v < 9)", "DROP CHECK mine"),
        ("CHECK (v > 1), CHECK (v < 9)", "ALTER CHECK t_chk_1 NOT ENFORCED"),
    ],
)
def test_check_names_on_mysql(database: Database, session: Session, checks: str, text: str) -> None:
    definition = f"(id INT PRIMARY KEY, v INT, {checks})"
    make(database, definition)
    table = introspect(session, database.name, "t")
    assert trial_alter(session, table, parse_alter(text)) is not None
    found = switched(database, table, create_shadow(session, table, parse_alter(text), names.shadow_table("t")))
    assert found == plain_alter(database, definition, text)


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("ADD COLUMN w INT", "ADD COLUMN w INT"),
        ("ALTER CHECK mine NOT ENFORCED", "ALTER CHECK t_chk_4 NOT ENFORCED"),
        (
            "DROP CHECK mine, ADD CONSTRAINT mine CHECK (v < 8)",
            "DROP CHECK t_chk_4, ADD CONSTRAINT t_chk_4 CHECK (v < 8)",
        ),
        ("DROP CONSTRAINT `MINE`", "DROP CONSTRAINT t_chk_4"),
    ],
)
def test_checks_with_names_of_the_users(database: Database, session: Session, text: str, plain: str) -> None:
    definition = "(id INT PRIMARY KEY, v INT, CONSTRAINT {} CHECK (v > 1), CONSTRAINT t_chk_3 CHECK (v < 9))"
    make(database, definition.format("mine"))
    table = introspect(session, database.name, "t")
    assert trial_alter(session, table, parse_alter(text)) is not None
    found = switched(database, table, create_shadow(session, table, parse_alter(text), names.shadow_table("t")))
    assert found == plain_alter(database, definition.format("t_chk_4"), plain)


@pytest.mark.only_on("mariadb")
def test_check_names_on_mariadb(database: Database, session: Session) -> None:
    definition, text = (
        "(id INT PRIMARY KEY, v INT CHECK (v > 1), CONSTRAINT mine CHECK (v < 9), CHECK (v <> 3))",
        "DROP CONSTRAINT mine",
    )
    make(database, definition)
    table = introspect(session, database.name, "t")
    found = switched(database, table, create_shadow(session, table, parse_alter(text), names.shadow_table("t")))
    assert found == plain_alter(database, definition, text)


@pytest.mark.parametrize("name", ["order", "a-b", "t`x", "naïve", "x" * 64, "a.b", "T 1"])
def test_odd_table_names(database: Database, session: Session, name: str) -> None:
    make(database, "(id INT PRIMARY KEY, v INT)", name)
    table = introspect(session, database.name, name)
    shadow = create_shadow(session, table, parse_alter("ADD COLUMN w INT"), names.shadow_table(name))
    assert [c.name for c in shadow.columns] == ["id", "v", "w"]
    assert trial_alter(session, table, parse_alter("ADD COLUMN w INT")) is not None


@pytest.mark.parametrize(
    "text", ["ADD COLUMN", "ADD COLUMN v INT", "DROP COLUMN none", "MODIFY v NOTYPE", "ADD KEY (none)"]
)
def test_a_refused_alter_leaves_nothing(database: Database, session: Session, text: str) -> None:
    make(database, "(id INT PRIMARY KEY, v INT)")
    table = introspect(session, database.name, "t")
    with pytest.raises(Refused, match=r"\(\d+\)"):
        create_shadow(session, table, parse_alter(text), names.shadow_table("t"))
    with pytest.raises(Refused, match=r"\(\d+\)"):
        trial_alter(session, table, parse_alter(text))
    assert database.admin.rows("SHOW TABLES") == [("t",)]


def test_a_table_in_the_way_is_not_dropped(database: Database, session: Session) -> None:
    make(database, "(id INT PRIMARY KEY)")
    make(database, "(mine INT)", names.shadow_table("t"))
    table = introspect(session, database.name, "t")
    with pytest.raises(Refused, match="already exists"):
        create_shadow(session, table, parse_alter("ADD COLUMN w INT"), names.shadow_table("t"))
    assert introspect(session, database.name, names.shadow_table("t")).has_column("mine")


@pytest.mark.only_on("mysql")
def test_what_like_loses_is_refused(database: Database, session: Session, tmp_path: object) -> None:
    try:
        make(database, f"(id INT PRIMARY KEY) DATA DIRECTORY = '{tmp_path}'")
    except Exception as error:
        pytest.skip(f"this server takes no DATA DIRECTORY: {error}")
    table = introspect(session, database.name, "t")
    with pytest.raises(Refused, match="differs"):
        create_shadow(session, table, parse_alter("ADD COLUMN w INT"), names.shadow_table("t"))


def test_trial_writes_nothing_to_the_log(database: Database, session: Session) -> None:
    make(database, BASE)
    table = introspect(session, database.name, "t")
    status = inspect(database.admin).log_status
    before = database.admin.row(status)
    trial_alter(session, table, parse_alter("ADD COLUMN w INT, ADD KEY (w)"))
    assert database.admin.row(status) == before


def test_introspection_of_columns_and_keys(database: Database, session: Session) -> None:
    make(database, BASE)
    table = introspect(session, database.name, "T" if database.server.flavor == "none" else "t")
    by_name = {c.name: c for c in table.columns}
    assert [c.ordinal for c in table.columns] == list(range(1, 11))
    assert by_name["id"].is_auto_increment
    assert by_name["id"].is_unsigned
    assert (by_name["a"].charset, by_name["a"].length, by_name["a"].characters) == ("latin1", 20, 20)
    assert by_name["e"].labels == ("a", "b'c,d")
    assert (by_name["g"].generated, by_name["h"].generated) == ("virtual", "stored")
    assert "`n`" in by_name["g"].expression
    assert (by_name["d"].fraction, by_name["f"].precision, by_name["f"].scale) == (3, 7, 3)
    assert not by_name["n"].has_default
    assert by_name["f"].has_default
    keys = {k.name: k for k in table.keys}
    assert keys["PRIMARY"].is_primary
    assert keys["u"].is_unique
    assert keys["u"].columns == ("a", "h")
    assert keys["k"].parts[0].prefix == 3


def test_views_and_missing_tables_are_refused(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE VIEW v AS SELECT 1 AS one")
    with pytest.raises(Refused, match="view"):
        introspect(session, database.name, "v")
    with pytest.raises(Refused, match="no table"):
        introspect(session, database.name, "nothing")


@pytest.mark.only_on("mariadb")
def test_sequences_are_refused(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE SEQUENCE s")
    with pytest.raises(Refused, match="sequence"):
        introspect(session, database.name, "s")


def test_qualified_names_reach_other_schemas(database: Database, session: Session) -> None:
    make(database, "(id INT PRIMARY KEY)")
    assert session.rows(f"SELECT * FROM {qualified(database.name, 't')}") == []
