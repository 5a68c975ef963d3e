"""Keys in plans on real servers: which one both tables share, and under which rows may be in each other's way."""

from __future__ import annotations

import pytest
from planning_setup import SIMPLE, refusal, run, session, verdict

from sandbox.databases import Database
from vreplication import names
from vreplication.mysql.session import Session, SqlError
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import check_prepared, make_plan
from vreplication.planning.spec import make_spec
from vreplication.schema.introspect import introspect, introspect_temporary, keys_written
from vreplication.schema.mapping import map_for
from vreplication.schema.shadow import create_shadow

__all__ = ["session"]


@pytest.mark.parametrize(
    ("alter", "found"),
    [
        ("ADD UNIQUE KEY u (s)", None),
        ("ADD UNIQUE KEY u (v)", "(5) 2 times"),
        ("MODIFY s VARCHAR(20) COLLATE utf8mb4_general_ci, ADD UNIQUE KEY u (s)", ") 2 times"),
        ("ADD UNIQUE KEY u (s(1))", "(b) 2 times"),
        ("ADD UNIQUE KEY u (v, s)", None),
        ("ADD c INT NOT NULL, ADD UNIQUE KEY u (c)", "(0) 4 times"),
        ("ADD c INT DEFAULT 7, ADD UNIQUE KEY u (c)", "(7) 4 times"),
        ("ADD c INT, ADD UNIQUE KEY u (c)", None),
        ("ADD g INT AS (v % 2) STORED, ADD UNIQUE KEY u (g)", "(1) 2 times"),
        ("ADD g CHAR(3) COLLATE utf8mb4_bin AS (SUBSTR(s,1,1)) STORED, ADD UNIQUE KEY u (g)", "(b) 2 times"),
        ("ADD g CHAR(9) AS (CAST(v AS CHAR)) STORED, ADD UNIQUE KEY u (g)", "(5) 2 times"),
        ("ADD g CHAR(9) COLLATE utf8mb4_bin AS (CONCAT(TRIM(s), ') ,')) STORED, ADD UNIQUE KEY u (g)", None),
        ("ADD n INT, ADD d INT AS (n + v) STORED, ADD UNIQUE KEY u (d)", None),
        ("ADD n INT DEFAULT 3, ADD d INT AS (n + v) STORED, ADD UNIQUE KEY u (d)", "(8) 2 times"),
        (
            "ADD n VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'x',"
            " ADD d VARCHAR(40) COLLATE utf8mb4_bin AS (CONCAT(n, SUBSTR(s,1,1))) STORED, ADD UNIQUE KEY u (d)",
            "(xb) 2 times",
        ),
        ("DROP PRIMARY KEY, ADD UNIQUE (id), ADD PRIMARY KEY (s)", None),
        # Text that reads like no default, and the moment of the ALTER: neither is NULL.
        ("ADD n VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'NULL', ADD UNIQUE KEY u (n)", "(NULL) 4 times"),
        ("ADD n VARCHAR(9) DEFAULT 'NULL', ADD d INT AS (IF(n IS NULL,1,id)) STORED, ADD UNIQUE KEY u (d)", None),
        ("ADD n VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'a''(b)', ADD UNIQUE KEY u (n)", "(a'(b)) 4 times"),
        ("ADD n BIT(3) DEFAULT b'101', ADD UNIQUE KEY u (n)", " 4 times"),
        ("ADD n DATETIME DEFAULT CURRENT_TIMESTAMP, ADD UNIQUE KEY u (v, n)", ") 2 times"),
        (
            "ADD n DATETIME DEFAULT CURRENT_TIMESTAMP, ADD d INT AS (IF(n IS NULL,1,id)) STORED, ADD UNIQUE KEY u (d)",
            None,
        ),
    ],
)
def test_duplicates_under_a_new_unique_key(database: Database, session: Session, alter: str, found: str | None) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT, s VARCHAR(20) COLLATE utf8mb4_bin NOT NULL)")
    database.admin.execute_raw("INSERT INTO t VALUES (1,5,'a'),(2,5,'A'),(3,NULL,'bb'),(4,NULL,'bc')")
    plan = make_plan(session, make_spec(table="t", alter=alter))
    if found is None:
        assert plan.refusals == ()
        assert verdict(plan, "unique keys") is Verdict.WARN
        assert plan.mapping is not None
        assert plan.mapping.may_collide
    else:
        assert found in refusal(plan, "unique keys").sentence


NO_PAD = {"mysql": "utf8mb4_0900_ai_ci", "mariadb": "utf8mb4_general_nopad_ci"}


@pytest.mark.parametrize(
    ("kind", "values", "alter", "found"),
    [
        # Text under a collation to bytes: these are told apart.
        ("VARCHAR(20) {no_pad}", "(1,'a'),(2,'A'),(3,'á')", "MODIFY s VARBINARY(80), ADD UNIQUE KEY u (s)", None),
        ("VARCHAR(20) {no_pad}", "(1,'a'),(2,'A')", "MODIFY s BLOB, ADD UNIQUE KEY u (s(9))", None),
        ("VARCHAR(20) {no_pad}", "(1,'ab'),(2,'abc')", "MODIFY s BLOB, ADD UNIQUE KEY u (s(2))", "(0x6162) 2 times"),
        ("VARCHAR(20) {no_pad}", "(1,'a'),(2,'A')", "ADD g VARBINARY(80) AS (s) STORED, ADD UNIQUE KEY u (g)", None),
        ("VARBINARY(9)", "(1,'a'),(2,X'6100')", "MODIFY s BINARY(3), ADD UNIQUE KEY u (s)", "(0x610000) 2 times"),
        # CHAR keeps no spaces at the end, whether or not the collation counts them.
        ("VARCHAR(9) {no_pad}", "(1,'a'),(2,'a ')", "MODIFY s CHAR(9) {no_pad}, ADD UNIQUE KEY u (s)", "(a) 2 times"),
        ("VARCHAR(9) {no_pad}", "(1,'a'),(2,'a ')", "MODIFY s VARCHAR(8) {no_pad}, ADD UNIQUE KEY u (s)", None),
        ("VARBINARY(9)", "(1,'a'),(2,'a ')", "MODIFY s CHAR(9) {no_pad}, ADD UNIQUE KEY u (s)", "(a) 2 times"),
        ("VARCHAR(9) {no_pad}, UNIQUE KEY u (s)", "(1,'a'),(2,'a ')", "MODIFY s CHAR(9) {no_pad}", "(a) 2 times"),
        ("INT", "(1,1),(2,10)", "MODIFY s CHAR(9) {no_pad}, ADD UNIQUE KEY u (s)", None),
        (
            "VARCHAR(9) {no_pad}",
            "(1,'a'),(2,'a ')",
            "ADD g CHAR(9) {no_pad} AS (CONCAT(s, ' ')) STORED, ADD UNIQUE KEY u (g)",
            "(a) 2 times",
        ),
    ],
)
def test_what_a_changed_type_holds_decides_what_is_equal(
    database: Database, session: Session, kind: str, values: str, alter: str, found: str | None
) -> None:
    """And the server's own ALTER agrees."""
    no_pad = f"COLLATE {NO_PAD[database.server.flavor]}"
    database.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, s {kind.format(no_pad=no_pad)})")
    database.admin.execute_raw(f"INSERT INTO t VALUES {values}")
    alter = alter.format(no_pad=no_pad)
    plan = make_plan(session, make_spec(table="t", alter=alter))
    if found is None:
        assert plan.refusals == ()
        database.admin.execute_raw(f"ALTER TABLE t {alter}")
    else:
        assert found in refusal(plan, "unique keys").sentence
        with pytest.raises(SqlError, match="Duplicate"):
            database.admin.execute_raw(f"ALTER TABLE t {alter}")


EXPRESSION = "(id INT PRIMARY KEY, a VARCHAR(9), b INT, UNIQUE KEY f ((LOWER(a))))"


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    ("definition", "alter", "named"),
    [
        (SIMPLE, "ADD UNIQUE KEY u ((UPPER(s)))", "u"),
        (SIMPLE, "ADD UNIQUE KEY u (v, (UPPER(s)))", "u"),
        (EXPRESSION, "ADD UNIQUE KEY u (b)", "f"),
        (EXPRESSION, "MODIFY a VARCHAR(5)", "f"),
    ],
)
def test_unique_expressions_are_refused(
    database: Database, session: Session, definition: str, alter: str, named: str
) -> None:
    """Where rows may be in each other's way: which row that is, is found by columns."""
    found = refusal(run(database, session, definition, alter), "unique keys")
    assert f"unique key {named} is over an expression" in found.sentence
    assert "generated column" in found.cure


@pytest.mark.only_on("mysql")
def test_unique_expressions_that_stay_are_taken(database: Database, session: Session) -> None:
    assert run(database, session, EXPRESSION, "ADD x INT, ADD KEY k ((UPPER(a)))").refusals == ()


@pytest.mark.only_on("mysql")
def test_unique_expressions_of_partitions_are_refused_with_the_shadow(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2")
    plan = make_plan(session, make_spec(table="t", alter="ADD UNIQUE KEY u ((ABS(v))) REMOVE PARTITIONING"))
    assert plan.refusals == ()
    shadow = create_shadow(session, plan.source, plan.clauses, names.shadow_table("t"))
    mapping = map_for(plan.server, plan.source, shadow, plan.clauses)
    (refused,) = check_prepared(session, plan, shadow, mapping)
    assert "unique key u is over an expression" in refused.sentence


@pytest.mark.parametrize(
    ("definition", "alter"),
    [
        ("(id INT PRIMARY KEY, a INT, b INT, UNIQUE (a))", "ADD UNIQUE (a, b)"),
        ("(id INT PRIMARY KEY, a INT, b INT, UNIQUE (a, b))", "ADD x INT, RENAME COLUMN a TO c"),
        ("(id INT PRIMARY KEY, s VARCHAR(40), UNIQUE (s(10)))", "ADD UNIQUE (s)"),
        ("(id INT PRIMARY KEY, n INT, g INT AS (n + 1) VIRTUAL, UNIQUE (g))", "ADD x INT"),
        ("(id INT PRIMARY KEY)", "MODIFY id BIGINT"),
    ],
)
def test_under_keys_that_are_unique_already_nothing_collides(
    database: Database, session: Session, definition: str, alter: str
) -> None:
    plan = run(database, session, definition, alter)
    assert plan.refusals == ()
    assert plan.mapping is not None
    assert plan.mapping.added_unique == ()


@pytest.mark.parametrize(
    ("definition", "alter", "key", "is_exact"),
    [
        ("(a INT NOT NULL UNIQUE, id BIGINT PRIMARY KEY)", "ADD x INT", ["id"], True),
        ("(a INT NOT NULL UNIQUE, id BIGINT PRIMARY KEY)", "DROP COLUMN id", ["a"], True),
        ("(s VARCHAR(99) NOT NULL UNIQUE, b BINARY(16) NOT NULL UNIQUE)", "ADD x INT", ["b"], True),
        ("(s VARCHAR(99) NOT NULL UNIQUE, i INT UNIQUE)", "ADD x INT", ["s"], False),
        (
            "(a INT, b CHAR(4), PRIMARY KEY (b, a))",
            "RENAME COLUMN a TO c, DROP PRIMARY KEY, ADD PRIMARY KEY (c, b)",
            ["b", "a"],
            False,
        ),
        ("(d DATETIME(3) PRIMARY KEY)", "MODIFY d DATETIME(6)", ["d"], False),
        ("(e ENUM('b','a') PRIMARY KEY)", "ADD x INT", ["e"], False),
    ],
)
def test_the_shared_key(
    database: Database, session: Session, definition: str, alter: str, key: list[str], is_exact: bool
) -> None:
    plan = run(database, session, definition, alter)
    assert plan.refusals == ()
    assert plan.mapping is not None
    assert [pair.source.name for pair in plan.mapping.key] == key
    assert plan.mapping.is_exact_key is is_exact


@pytest.mark.parametrize(("before", "alter"), [("{}", "ADD x INT"), ("", "ALTER INDEX b {}")])
def test_a_key_that_is_hidden_tells_no_rows_apart(
    database: Database, session: Session, before: str, alter: str
) -> None:
    """Nothing may be read by it (FORCE INDEX): it was found out when the copy was done."""
    hidden = "IGNORED" if database.server.is_mariadb else "INVISIBLE"
    definition = f"(a BIGINT NOT NULL, b INT NOT NULL, UNIQUE KEY z (a), UNIQUE KEY b (b) {before.format(hidden)})"
    plan = run(database, session, definition, alter.format(hidden))
    assert plan.refusals == ()
    assert plan.mapping is not None
    assert (plan.mapping.source_index, plan.mapping.target_index) == ("z", "z")


@pytest.mark.parametrize(
    ("alter", "may_collide", "has_same_order"),
    [
        ("ADD x INT", False, True),
        ("MODIFY s VARCHAR(20) COLLATE utf8mb4_general_ci", True, False),
        ("MODIFY e ENUM('y','x')", False, False),
    ],
)
def test_order_of_the_key(
    database: Database, session: Session, alter: str, may_collide: bool, has_same_order: bool
) -> None:
    definition = "(s VARCHAR(20) COLLATE utf8mb4_bin, e ENUM('x','y'), PRIMARY KEY (s, e))"
    plan = run(database, session, definition, alter)
    assert plan.mapping is not None
    assert (plan.mapping.may_collide, plan.mapping.has_same_order) == (may_collide, has_same_order)


MANY_KEYS = """(id INT PRIMARY KEY, v INT, s VARCHAR(20) COLLATE utf8mb4_bin, j JSON, g POINT SRID 0 NOT NULL, x TEXT,
UNIQUE KEY a ((UPPER(s))), UNIQUE KEY b (v, (CONCAT(s, 'it''s', 'a\\\\b\\nc', 'q`q,(')) DESC), KEY c ((v + 1), v DESC),
KEY d (s(5), v), KEY e ((CAST(j->'$.a' AS UNSIGNED ARRAY))), KEY `k``1,(` ((CASE WHEN v > 1 THEN 1 ELSE NULL END)),
SPATIAL KEY g (g), FULLTEXT KEY f (x), KEY h (x(3)) COMMENT 'a,(b', UNIQUE KEY i (v) INVISIBLE)"""


@pytest.mark.only_on("mysql")
def test_keys_are_read_from_the_definition_as_from_the_server(database: Database) -> None:
    """MySQL 8.0 dies of SHOW INDEX of a temporary table with a key of a column and an expression."""
    database.admin.execute_raw(f"CREATE TABLE t {MANY_KEYS}")
    found = introspect(database.admin, database.name, "t")
    assert sum(key.has_expression for key in found.keys) == 5
    assert keys_written(found.create_sql) == found.keys
    twin = MANY_KEYS.replace("FULLTEXT KEY f (x), ", "")
    database.admin.execute_raw(f"CREATE TEMPORARY TABLE twin {twin}")
    tried = introspect_temporary(database.admin, database.name, "twin").keys
    assert tried == tuple(key for key in found.keys if key.name != "f")
