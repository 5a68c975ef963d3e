"""Plans on real servers: what is refused, by name and all at once, and that a plan touches nothing."""

from __future__ import annotations

import re

import pytest
from planning_setup import SIMPLE, refusal, run, session, verdict

from sandbox.databases import Database, grant_statements
from tests.support.flow import settings
from tests.support.rows import make_move, workflow_row
from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.disk import Disk, size
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.explain import explain, plan_json
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import check_prepared, make_plan
from vreplication.planning.spec import make_spec
from vreplication.planning.stages import STAGES
from vreplication.schema.difference import definitions_of
from vreplication.schema.mapping import map_for
from vreplication.schema.shadow import create_shadow
from vreplication.state import layout, workflows

__all__ = ["session"]


def position(database: Database) -> object:
    statement = inspect(database.admin).log_status
    return database.admin.row(statement)


def test_a_plan_of_a_plain_table(database: Database, session: Session) -> None:
    database.admin.execute_raw(f"CREATE TABLE t {SIMPLE}")
    database.admin.execute_raw("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')")
    schemas = database.admin.rows("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES ORDER BY 1, 2")
    before = position(database)
    plan = make_plan(session, make_spec(table="t", alter="CHANGE v w BIGINT, ADD x INT NOT NULL", workflow="w-1"))
    assert position(database) == before
    after = database.admin.rows("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES ORDER BY 1, 2")
    assert after == schemas
    assert plan.refusals == ()
    assert plan.mapping is not None
    assert [(p.source.name, p.target.name, p.convert) for p in plan.mapping.pairs] == [
        ("id", "id", "{}"),
        ("v", "w", "{}"),
        ("s", "s", "{}"),
        ("id", "x", "0"),
    ]
    text = explain(plan)
    assert "PRIMARY (id)" in text
    assert "v → w" in text
    assert names.shadow_table("t") in text
    assert names.retired_table("t", "w-1") in text
    assert "It can be done online" in text
    assert plan_json(plan)["is_refused"] is False
    assert tuple(stage for stage, _ in plan.stages) == STAGES
    assert [s["name"] for s in plan_json(plan)["stages"]] == [stage.name for stage in STAGES]


def test_all_refusals_are_listed(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE TABLE parent (id INT PRIMARY KEY)")
    plan = run(
        database,
        session,
        "(id INT, p INT, CONSTRAINT fk_q FOREIGN KEY (id) REFERENCES parent (id),"
        " CONSTRAINT fk_p FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE SET NULL)",
        "ADD COLUMN x NOTYPE",
    )
    assert {check.name for check in plan.refusals} == {"foreign keys", "shared key", "ALTER"}
    words = refusal(plan, "foreign keys").sentence
    assert "(fk_p, fk_q)" in words
    assert "changed by fk_p (" in words
    assert ("does not log" in words) is database.server.is_mariadb
    assert "NOTYPE" in refusal(plan, "ALTER").sentence
    assert "Refused: 3 of" in explain(plan)
    assert plan_json(plan)["is_refused"] is True


@pytest.mark.parametrize(("parent", "child"), [("t", "child"), ("pa-rent é", "ch-ild é")])
def test_parents_are_refused_even_of_children_in_other_schemas(
    database: Database, session: Session, parent: str, child: str
) -> None:
    other = f"{database.name}_other"
    database.admin.execute_raw(f"CREATE DATABASE {other}")
    try:
        database.admin.execute_raw(f"CREATE TABLE `{parent}` {SIMPLE}")
        database.admin.execute_raw(
            f"CREATE TABLE {other}.`{child}` (id INT PRIMARY KEY, p INT,"
            f" FOREIGN KEY (p) REFERENCES {database.name}.`{parent}` (id))"
        )
        plan = make_plan(session, make_spec(table=parent, alter="ADD x INT"))
        assert f"{other}.{child}" in refusal(plan, "foreign keys").sentence
    finally:
        database.admin.execute_raw(f"DROP DATABASE {other}")


def test_triggers_are_refused(database: Database, session: Session) -> None:
    database.admin.execute_raw(f"CREATE TABLE t {SIMPLE}")
    database.admin.execute_raw("CREATE TRIGGER watch BEFORE INSERT ON t FOR EACH ROW SET NEW.v = 1")
    plan = make_plan(session, make_spec(table="t", alter="ADD x INT"))
    assert "watch" in refusal(plan, "triggers").sentence


@pytest.mark.parametrize(
    ("definition", "alter", "name", "words"),
    [
        ("(id INT PRIMARY KEY) ENGINE=MyISAM", "ADD x INT", "engine", "MyISAM"),
        (SIMPLE, "ENGINE=MyISAM", "engine", "MyISAM"),
        ("(id INT)", "ADD x INT", "shared key", "no unique key"),
        ("(id INT UNIQUE, f FLOAT NOT NULL UNIQUE)", "ADD x INT", "shared key", "no unique key"),
        ("(t VARCHAR(99) NOT NULL, UNIQUE (t(10)))", "ADD x INT", "shared key", "no unique key"),
        (SIMPLE, "DROP PRIMARY KEY", "ALTER", "share no unique key"),
        (SIMPLE, "RENAME TO u", "ALTER", "renames the table"),
        (SIMPLE, "ADD COLUMN", "ALTER", "syntax"),
        (SIMPLE, "ADD x INT; DROP TABLE t", "ALTER", "more than one statement"),
        (SIMPLE, "MODIFY v DATE", "ALTER", "cannot be done online"),
    ],
)
def test_refused_by_name(
    database: Database, session: Session, definition: str, alter: str, name: str, words: str
) -> None:
    assert words in refusal(run(database, session, definition, alter), name).sentence


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("(id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "system-versioned"),
        ("(id INT PRIMARY KEY, b BLOB COMPRESSED)", "compressed columns"),
        ("(id INT PRIMARY KEY, a DATE, b DATE, PERIOD FOR p (a, b))", "period"),
    ],
)
def test_what_mariadb_alone_has(database: Database, session: Session, definition: str, words: str) -> None:
    assert words in refusal(run(database, session, definition, "ADD x INT"), "features").sentence


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("definition", "alter", "words"),
    [
        ("(k CHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY)", "ADD x INT", "no CHAR under a NOPAD collation"),
        ("(k CHAR(9) PRIMARY KEY)", "MODIFY k CHAR(9) COLLATE utf8mb4_nopad_bin NOT NULL", "share no unique key"),
    ],
)
def test_a_key_that_mariadb_sorts_otherwise_than_it_compares(
    database: Database, session: Session, definition: str, alter: str, words: str
) -> None:
    """Its index has 'a' behind 'a\\t', which is greater: a chunk that ends between the two leaves one out."""
    assert words in str(run(database, session, definition, alter).refusals)
    database.admin.execute_raw("CREATE TABLE o (k CHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, n INT)")
    database.admin.execute_raw("INSERT INTO o VALUES ('a',1),('a\\t',2),('b',3)")
    ranges = [f"SELECT COUNT(*) FROM o FORCE INDEX (PRIMARY) WHERE k{way}'a\\t'" for way in ("<=", ">")]
    assert sum(session.value(each) for each in ranges) == 2, "The server is better than that by now: take such keys."


def test_words_in_comments_and_defaults_are_no_features(database: Database, session: Session) -> None:
    """Of a plain table: what refuses elsewhere stands in quotes here."""
    definition = """(
        id INT PRIMARY KEY COMMENT 'grace period for refunds',
        a VARCHAR(99) DEFAULT 'it''s the period for data directory',
        b ENUM('COMPRESSED', '/*M!100301 COMPRESSED*/'),
        `data directory` INT, `period for x` INT
    ) ROW_FORMAT=COMPRESSED COMMENT='PERIOD FOR DATA DIRECTORY with system versioning'"""
    assert run(database, session, definition, "ADD x INT").refusals == ()


@pytest.mark.only_on("mysql")
def test_names_that_checks_will_have_are_told(database: Database, session: Session) -> None:
    definition = "(id INT PRIMARY KEY, CHECK (id > 0), CONSTRAINT mine CHECK (id < 9))"
    plan = run(database, session, definition, "ADD x INT")
    assert plan.refusals == ()
    told = next(check for check in plan.checks if check.name == "CHECK names")
    assert told.verdict is Verdict.WARN
    assert "mine becomes t_chk_2" in told.sentence


@pytest.mark.only_on("mysql")
def test_a_check_name_that_another_table_has_is_refused(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE TABLE u (id INT PRIMARY KEY, CONSTRAINT t_chk_2 CHECK (id < 9))")
    definition = "(id INT PRIMARY KEY, CHECK (id > 0), CONSTRAINT mine CHECK (id < 9))"
    plan = run(database, session, definition, "ADD x INT")
    assert "t_chk_2" in refusal(plan, "CHECK names").sentence


def test_partitioned_tables_are_checked_at_prepare(database: Database, session: Session) -> None:
    plan = run(database, session, "(id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2", "ADD x INT")
    assert plan.refusals == ()
    assert plan.mapping is None
    assert "checked at prepare" in explain(plan)


def test_what_a_partitioned_plan_left_open_is_checked_with_the_shadow(database: Database, session: Session) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2")
    database.admin.execute_raw("INSERT INTO t VALUES (1, 5), (2, 5)")
    for alter, refused in (("ADD x INT", []), ("ADD UNIQUE (v) REMOVE PARTITIONING", ["unique keys"])):
        plan = make_plan(session, make_spec(table="t", alter=alter))
        assert plan.mapping is None
        shadow = create_shadow(session, plan.source, plan.clauses, names.shadow_table("t"))
        mapping = map_for(plan.server, plan.source, shadow, plan.clauses)
        assert [check.name for check in check_prepared(session, plan, shadow, mapping)] == refused
        session.execute_raw(f"DROP TABLE {shadow.name}")


def test_tables_of_ours_and_taken_names_are_refused(database: Database, session: Session) -> None:
    shadow = names.shadow_table("t")
    database.admin.execute_raw(f"CREATE TABLE {shadow} {SIMPLE}")
    plan = run(database, session, SIMPLE, "ADD x INT")
    assert shadow in refusal(plan, "names").sentence
    plan = make_plan(session, make_spec(table=shadow, alter="ADD x INT"))
    refusal(plan, "table")


def test_an_unended_workflow_on_the_table_is_refused(database: Database, session: Session) -> None:
    layout.install(session)
    row = workflow_row("w-9", source_schema=database.name, source_table="t", phase=Phase.COPYING)
    workflows.create(session, row)
    plan = run(database, session, SIMPLE, "ADD x INT")
    assert "w-9" in refusal(plan, "other workflows").sentence
    # Another table, and the same to the collation of our columns.
    database.admin.execute_raw(f"CREATE TABLE ť {SIMPLE}")
    assert make_plan(session, make_spec(table="ť", alter="ADD x INT")).refusals == ()
    # To the server too; but its DDL would end the workflow, for which case counts for nothing.
    database.admin.execute_raw(f"CREATE TABLE T {SIMPLE}")
    assert "w-9" in refusal(make_plan(session, make_spec(table="T", alter="ADD x INT")), "other workflows").sentence
    session.execute_raw("UPDATE _vreplication.workflow SET phase='complete' WHERE id='w-9'")
    assert make_plan(session, make_spec(table="t", alter="ADD x INT")).refusals == ()


@pytest.mark.parametrize("number", [1, 2])
def test_a_table_whose_move_goes_on_is_refused_under_its_schema_here(
    database: Database, session: Session, number: int
) -> None:
    """The way back ends at a RENAME that it does not know, and then what is written here is not on the source."""
    layout.install(session)
    make_move(session, "m-1", database.name, number=number)
    database.admin.execute_raw(f"CREATE TABLE items {SIMPLE}")
    spec = make_spec(table="items", alter="ADD x INT")
    assert "m-1" in refusal(make_plan(session, spec), "other workflows").sentence
    session.execute_raw("UPDATE _vreplication.workflow SET phase='complete' WHERE id='m-1'")
    assert make_plan(session, spec).refusals == ()


def test_too_little_disk_is_refused_with_both_sizes(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = (Disk(path="data", device="1", free=3 * 1024),) * 2
    monkeypatch.setattr("vreplication.mysql.disk.disks", lambda _: full)
    plan = run(database, session, SIMPLE, "ADD x INT")
    found = refusal(plan, "disk")
    assert f"The copy needs about {size(plan.copy_bytes)} and the binary log about" in found.sentence
    assert plan.copy_bytes >= 16 * 1024
    assert "3 KiB are free" in found.sentence


def test_missing_privileges_are_listed_as_grants(database: Database, session: Session) -> None:
    database.admin.execute_raw(f"REVOKE LOCK TABLES ON `{database.name}`.* FROM '{database.user}'@'%'")
    database.admin.execute_raw(f"REVOKE PROCESS ON *.* FROM '{database.user}'@'%'")
    with connect(database.url) as anew:
        plan = run(database, anew, SIMPLE, "ADD x INT")
    found = refusal(plan, "privileges")
    assert f"GRANT LOCK TABLES ON `{database.name}`.*" in found.cure
    assert "GRANT PROCESS ON *.*" in found.cure


def test_triggers_that_a_narrower_grant_hides_are_asked_for(database: Database, session: Session) -> None:
    """The wider one has TRIGGER, and the server does not count it: without a word the table would lose its triggers."""
    execute, whom = database.admin.execute_raw, f"'{database.user}'@'%'"
    execute(f"REVOKE TRIGGER ON `{database.name}`.* FROM {whom}")
    execute(f"GRANT ALL ON `{database.name[:-2]}%`.* TO {whom}")
    _check_trigger_is_asked_for(database, session)


@pytest.mark.only_on("mysql")
def test_triggers_that_a_partial_revoke_hides_are_asked_for(database: Database, session: Session) -> None:
    execute, whom = database.admin.execute_raw, f"'{database.user}'@'%'"
    with settings(database, {"partial_revokes": 1}):
        execute(f"GRANT TRIGGER ON *.* TO {whom}")
        # The schema's own grant first, then from the one on everything.
        for _ in range(2):
            execute(f"REVOKE TRIGGER ON `{database.name}`.* FROM {whom}")
        try:
            _check_trigger_is_asked_for(database, session)
        finally:
            execute(f"REVOKE TRIGGER ON *.* FROM {whom}")


def _check_trigger_is_asked_for(database: Database, session: Session) -> None:
    database.admin.execute_raw(f"CREATE TABLE t {SIMPLE}")
    database.admin.execute_raw("CREATE TRIGGER seen BEFORE INSERT ON t FOR EACH ROW SET NEW.v=7")
    plan = make_plan(session, make_spec(table="t", alter="ADD x INT", workflow="w-1"))
    assert f"GRANT TRIGGER ON `{database.name}`.*" in refusal(plan, "privileges").cure


@pytest.mark.parametrize("place", ["schema", "sidecar", "everywhere"])
def test_each_privilege_that_is_taken_away_is_named(database: Database, place: str) -> None:
    """Alone; whatever else cannot be looked at without it, the GRANT that cures it is in what the user reads."""
    database.admin.execute_raw(f"CREATE TABLE t {SIMPLE}")
    with connect(database.url) as ours:
        layout.install(ours)
    where = {"schema": f"`{database.name}`.*", "sidecar": "`_vreplication`.*", "everywhere": "*.*"}[place]
    for privilege in sorted(_privileges(database, where)):
        database.admin.execute_raw(f"REVOKE {privilege} ON {where} FROM '{database.user}'@'%'")
        told = _refused(database)
        database.admin.execute_raw(f"GRANT {privilege} ON {where} TO '{database.user}'@'%'")
        assert re.search(rf"GRANT [^;]*{privilege}[^;]* ON {re.escape(where)}", told), (privilege, told)
    assert _refused(database) == ""


def _privileges(database: Database, where: str) -> set[str]:
    """What sql/grants/ gives there."""
    named = grant_statements(database.server.flavor, user="u", host="%", password="p", schema=database.name)
    lists = [re.match(rf"GRANT (.+)\s+ON {re.escape(where)}", s, re.S) for s in named]
    return {word.strip() for found in lists if found for word in found[1].split(",")}


def _refused(database: Database) -> str:
    """What a plan says against it, with the cures."""
    try:
        with connect(database.url) as session:
            workflows.find(session, "w")
            plan = make_plan(session, make_spec(table="t", alter="ADD x INT"))
    except Refused as refused:
        return f"{refused} {refused.cure}"
    return " ".join(f"{r.sentence} {r.cure}" for r in plan.refusals)


SETTINGS = [
    ("binlog_row_image", "MINIMAL", "row image"),
    ("binlog_row_image", "NOBLOB", "row image"),
    pytest.param("binlog_row_value_options", "PARTIAL_JSON", "partial JSON", marks=pytest.mark.only_on("mysql")),
    ("binlog_format", "STATEMENT", "log format"),
    pytest.param("binlog_order_commits", "OFF", "commit order", marks=pytest.mark.only_on("mysql")),
    ("max_write_lock_count", "1000", "lock order"),
    ("read_only", "1", "writable"),
]


@pytest.mark.parametrize(("variable", "value", "name"), SETTINGS)
def test_settings_are_read_from_the_server(
    database: Database, session: Session, variable: str, value: str, name: str
) -> None:
    database.admin.execute_raw(f"CREATE TABLE t {SIMPLE}")
    before = database.admin.value(f"SELECT @@global.{variable}")
    database.admin.execute_raw(f"SET GLOBAL {variable}={value}")
    try:
        plan = make_plan(session, make_spec(table="t", alter="ADD x INT"))
    finally:
        database.admin.execute_raw(f"SET GLOBAL {variable}=" + ("''" if before == "" else str(before)))
    refusal(plan, name)


def test_copy_path(database: Database, session: Session) -> None:
    """MariaDB's innodb_autoinc_lock_mode is 1: INSERT … SELECT holds the counter."""
    plan = run(database, session, "(id INT AUTO_INCREMENT PRIMARY KEY)", "ADD x INT")
    assert plan.copy_path == "server"
    assert ("by turns" in plan.copy_path_reason) is database.server.is_mariadb
    colliding = make_plan(session, make_spec(table="t", alter="ADD x INT NOT NULL, ADD UNIQUE (x)"))
    assert colliding.copy_path == ("rows" if database.server.is_mariadb else "server")
    asked = make_plan(session, make_spec(table="t", alter="ADD x INT", copy_path="rows"))
    assert asked.copy_path == "rows"


def test_added_columns_that_differ_from_a_plain_alter_are_told(database: Database, session: Session) -> None:
    plan = run(database, session, SIMPLE, "ADD n INT NOT NULL AUTO_INCREMENT UNIQUE")
    assert verdict(plan, "new columns") is Verdict.WARN
    plan = make_plan(session, make_spec(table="t", alter="ADD u CHAR(36) DEFAULT (UUID())"))
    if database.server.is_mariadb:
        assert verdict(plan, "new columns") is Verdict.WARN
    else:
        assert "unsafe" in refusal(plan, "ALTER").sentence
    plan = make_plan(
        session,
        make_spec(
            table="t",
            alter="ADD d DATETIME DEFAULT CURRENT_TIMESTAMP, ADD c INT DEFAULT 3, ADD w CHAR(9) DEFAULT 'a(b)'",
        ),
    )
    assert verdict(plan, "new columns") is Verdict.OK


CHECKED = "(id INT AUTO_INCREMENT PRIMARY KEY, v INT, CONSTRAINT t_chk_4 CHECK (v > 0), CONSTRAINT mine CHECK (v < 9))"


@pytest.mark.parametrize(
    ("definition", "alter"),
    [
        (SIMPLE, "CHANGE v w BIGINT, ADD x INT NOT NULL, ADD INDEX (w), COMMENT 'new'"),
        (CHECKED, "ADD x INT, ADD CHECK (v <> 5)"),
        ("(id INT PRIMARY KEY) COMMENT 'ours'", "ENGINE=InnoDB"),
    ],
)
def test_the_definition_afterwards_is_what_the_table_gets(
    database: Database, session: Session, definition: str, alter: str
) -> None:
    """Of a trial, as of the table that takes the name in the end."""
    plan = run(database, session, definition, alter)
    told = plan.definitions
    made = create_shadow(session, plan.source, plan.clauses, names.shadow_table("t"))
    assert definitions_of(plan.source, made) == told
    database.admin.execute_raw(f"RENAME TABLE t TO old, {made.name} TO t")
    _, found = database.admin.row("SHOW CREATE TABLE t") or ("", "")
    assert told.after == re.sub(r" AUTO_INCREMENT=\d+", "", str(found))
    assert ("+" in {line.mark for line in told.changes}) == ("ADD" in alter)


def test_disk_is_told(database: Database, session: Session) -> None:
    plan = run(database, session, SIMPLE, "ADD x INT")
    sentence = next(check.sentence for check in plan.checks if check.name == "disk")
    assert "copy needs about" in sentence
    assert "are free" in sentence


def test_no_such_table(database: Database, session: Session) -> None:
    with pytest.raises(Refused, match="no table"):
        make_plan(session, make_spec(table="nothing", alter="ADD x INT"))


@pytest.mark.parametrize("name", ["order", "a.b", "x" * 64, "é`-"])
def test_odd_names(database: Database, session: Session, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    database.admin.execute_raw(f"CREATE TABLE {quoted} (`select` INT PRIMARY KEY, `b``c` INT)")
    plan = make_plan(session, make_spec(table=f"{database.name}.{quoted}", alter="ADD x INT"))
    assert plan.refusals == ()
    assert explain(plan)


@pytest.mark.only_on("mariadb")
def test_a_year_of_two_digits_changes_no_type(database: Database, session: Session) -> None:
    """A plain ALTER makes 1970 of 70 and '70' of it as text; a literal of ours is neither."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, y YEAR(2), s VARCHAR(9))")
    for alter in ("MODIFY y YEAR", "MODIFY y VARCHAR(9)", "MODIFY y INT", "MODIFY s YEAR(2)"):
        found = make_plan(session, make_spec(table="t", alter=alter))
        assert any("cannot be done online" in check.sentence for check in found.refusals), alter
    assert make_plan(session, make_spec(table="t", alter="ADD z INT, CHANGE y x YEAR(2)")).refusals == ()


def test_rows_that_a_plain_alter_would_number_are_refused(database: Database, session: Session) -> None:
    plan = run(database, session, "(id INT PRIMARY KEY, n INT, KEY (n))", "MODIFY n INT NOT NULL AUTO_INCREMENT")
    assert "written with 0" in next(c.sentence for c in plan.checks if c.name == "numbering")
    for value, word in (("0", "have 0"), ("NULL", "have NULL")):
        database.admin.execute_raw(f"REPLACE INTO t VALUES (1, {value})")
        assert word in refusal(make_plan(session, plan.spec), "numbering").sentence
    database.admin.execute_raw("UPDATE t SET n=5")
    assert make_plan(session, plan.spec).refusals == ()


@pytest.mark.either
def test_days_of_zero_that_a_plain_alter_refuses_are_refused(database: Database, session: Session) -> None:
    admin = database.admin
    before = admin.value("SELECT @@GLOBAL.sql_mode")
    try:
        admin.execute_raw("SET GLOBAL sql_mode='STRICT_TRANS_TABLES,NO_ZERO_DATE'")
        plan = run(database, session, SIMPLE, "ADD d DATE NOT NULL")
        assert "NO_ZERO_DATE" in refusal(plan, "new columns").sentence
        admin.execute_raw("SET GLOBAL sql_mode='STRICT_TRANS_TABLES'")
        assert make_plan(session, plan.spec).refusals == ()
    finally:
        admin.execute("SET GLOBAL sql_mode=%s", (before,))


def test_an_algorithm_that_a_trial_cannot_take_is_refused_with_the_way_to_ask(
    database: Database, session: Session
) -> None:
    plan = run(database, session, SIMPLE, "ADD x INT, ALGORITHM=INPLACE")
    assert "--strategy" in refusal(plan, "ALTER").cure


@pytest.mark.only_on("mysql")
def test_what_only_a_temporary_table_refuses_is_checked_at_prepare(database: Database, session: Session) -> None:
    plan = run(database, session, SIMPLE, "COMPRESSION='zlib', AUTOEXTEND_SIZE=4M")
    assert plan.refusals == ()
    assert "checked at prepare" in explain(plan)


@pytest.mark.only_on("mariadb")
def test_a_default_of_bytes_that_are_no_text_is_refused(database: Database, session: Session) -> None:
    plan = run(database, session, SIMPLE, "ADD x VARBINARY(2) DEFAULT X'FF00'")
    assert "no text" in refusal(plan, "ALTER").sentence
    database.admin.execute_raw("ALTER TABLE t ADD x VARBINARY(2) DEFAULT X'FF00'")
    with pytest.raises(Refused, match="no text"):
        make_plan(session, plan.spec)
