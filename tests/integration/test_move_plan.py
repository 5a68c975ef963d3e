"""Plans of moves on real servers: what is refused, by name and all at once, with least privileges, touching nothing."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandbox.databases import Database, grant_statements
from tests.support.pairs import FOLLOW, Pair
from tests.support.rows import make_move, workflow_row
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning import privileges
from vreplication.planning.facts import Check, Verdict
from vreplication.state import layout, source_marks, workflows
from vreplication.workflows.move_tables.explain import explain, plan_json
from vreplication.workflows.move_tables.plan import MovePlan, make_move_plan
from vreplication.workflows.move_tables.spec import make_move_spec
from vreplication.workflows.registry import KINDS

PLAIN = "(id INT PRIMARY KEY, v INT, s VARCHAR(20) COLLATE utf8mb4_bin, j JSON) COLLATE utf8mb4_unicode_ci"
ONE_WAY = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)


@contextlib.contextmanager
def setting(database: Database, name: str, value: str) -> Iterator[None]:
    """A global setting for the time of a block."""
    before = database.admin.value(f"SELECT @@GLOBAL.{name}")
    database.admin.execute_raw(f"SET GLOBAL {name}={value}")
    try:
        yield
    finally:
        database.admin.execute("SET GLOBAL " + name + "=%s", (before,))


@contextlib.contextmanager
def user_of(database: Database, role: str) -> Iterator[Session]:
    """A session of a user with exactly the grants of sql/grants/move_<role>."""
    user = f"{database.user}_m"
    statements = grant_statements(
        f"move_{role}.{database.server.flavor}", user=user, host="%", password="0ne-Word", schema=database.name
    )
    for statement in statements:
        database.admin.execute_raw(statement)
    try:
        with connect(replace(database.url, user=user, password="0ne-Word")) as session:
            yield session
    finally:
        database.admin.execute_raw(f"DROP USER '{user}'@'%'")


@pytest.fixture
def sessions(pair: Pair) -> Iterator[tuple[Session, Session]]:
    """As least-privilege users of both roles, on servers that let them create triggers."""
    with contextlib.ExitStack() as stack:
        for side in (pair.source, pair.target):
            stack.enter_context(setting(side, "log_bin_trust_function_creators", "1"))
        yield stack.enter_context(user_of(pair.source, "source")), stack.enter_context(user_of(pair.target, "target"))


def plan(sessions: tuple[Session, Session], **options: object) -> MovePlan:
    return make_move_plan(*sessions, make_move_spec(**({"tables": ("t",)} | options)))


def found(plan: MovePlan, name: str) -> list[Check]:
    checks = [check for check in plan.checks if check.name == name]
    assert checks, f"no check {name}: {[check.name for check in plan.checks]}"
    return checks


def refusal(plan: MovePlan, name: str) -> str:
    refused = [check for check in found(plan, name) if check.verdict is Verdict.REFUSE]
    assert refused, f"{name} does not refuse: {[(c.name, c.sentence) for c in plan.refusals]}"
    assert all(check.cure for check in refused)
    return " ".join(check.sentence for check in refused)


def state(pair: Pair) -> list[object]:
    """What a plan must leave as it is."""
    sql = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES ORDER BY 1, 2"
    sides = (pair.source, pair.target)
    status = [inspect(s.admin).log_status for s in sides]
    return [s.admin.rows(q) for s, log in zip(sides, status, strict=True) for q in (sql, log)]


@pytest.mark.parametrize("pair", ["mariadb-mysql", "mysql-mysql", "mysql-mariadb"], indirect=True)
def test_an_expression_that_a_sql_mode_changes_on_mysql(pair: Pair, sessions: tuple[Session, Session]) -> None:
    """MySQL computes g and asks the CHECK otherwise in a session with NO_BACKSLASH_ESCAPES."""
    more = r"g VARCHAR(9) AS (CONCAT(v, '\\\\', v)) STORED, CHECK (v <> '\\\\')"
    pair.source.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(3), {more}) COLLATE utf8mb4_bin")
    to_mysql, from_mariadb = not pair.target.server.is_mariadb, pair.source.server.is_mariadb
    assert {c.verdict for c in found(plan(sessions), "expressions")} == {Verdict.WARN if to_mysql else Verdict.OK}
    mode = str(pair.source.admin.value("SELECT @@GLOBAL.sql_mode"))
    with setting(pair.source, "sql_mode", f"'{mode},NO_BACKSLASH_ESCAPES'"), fresh(pair) as after:
        assert [c.verdict for c in plan(after).refusals if c.name == "expressions"] == [Verdict.REFUSE] * from_mariadb


@contextlib.contextmanager
def fresh(pair: Pair) -> Iterator[tuple[Session, Session]]:
    with connect(pair.source.url) as source, connect(pair.target.url) as target:
        yield source, target


def test_a_plan_touches_nothing_and_prints_its_stages(pair: Pair, sessions: tuple[Session, Session]) -> None:
    for name in ("t", "u", "stays"):
        pair.source.admin.execute_raw(f"CREATE TABLE {name} {PLAIN}")
    pair.source.admin.execute_raw("CREATE VIEW seen AS SELECT * FROM t")
    before = state(pair)
    made = plan(sessions, tables=(), all_tables=True, exclude=("stays",), on_switch="true")
    assert state(pair) == before
    assert made.refusals == ()
    assert [table.source.name for table in made.tables] == ["t", "u"]
    assert tuple(stage for stage, _ in made.stages) == KINDS["move_tables"].stages
    assert [c.sentence for c in found(made, "not moved")] == ["These stay on the source: views seen."]
    first = made.tables[0]
    assert first.mapping is not None
    assert first.carried.create_sql.startswith(f"CREATE TABLE `{pair.target.name}`.`t__vr_new` (")
    assert bool(first.carried.changes) is not pair.is_one_flavor
    text = explain(made)
    assert all(f"{number}. {stage.name}:" in text for number, (stage, _) in enumerate(made.stages, 1))
    assert "The tables can be moved." in text
    assert [s["name"] for s in json.loads(json.dumps(plan_json(made)))["stages"]] == [s.name for s, _ in made.stages]
    for url in (pair.source.url, pair.target.url):
        assert url.password not in text


@ONE_WAY
def test_tables_may_be_named_with_their_database(pair: Pair, sessions: tuple[Session, Session]) -> None:
    """As `online-ddl` takes them; a table whose own name has a dot is found first."""
    here = pair.source.name
    for name in ("big", "a.b", "stays"):
        pair.source.admin.execute_raw(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)")
    made = plan(sessions, tables=(f"{here}.big", "a.b"), workflow="named")
    assert [table.source.name for table in made.tables] == ["big", "a.b"]
    assert not [check for check in made.refusals if check.name == "tables"]
    made = plan(sessions, tables=(), all_tables=True, exclude=(f"{here}.stays", "`a.b`"), workflow="named")
    assert [table.source.name for table in made.tables] == ["big"]
    assert "elsewhere.big is in another database" in refusal(plan(sessions, tables=("elsewhere.big",)), "tables")


@ONE_WAY
def test_all_that_refuses_is_told_at_once(pair: Pair, sessions: tuple[Session, Session]) -> None:
    source, target = pair.source.admin, pair.target.admin
    source.execute_raw("CREATE TABLE parent (id INT PRIMARY KEY)")
    source.execute_raw("CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))")
    source.execute_raw("CREATE TABLE keyless (id INT)")
    source.execute_raw("CREATE TABLE slow (id INT PRIMARY KEY) ENGINE=MyISAM")
    source.execute_raw("CREATE TABLE fired (id INT PRIMARY KEY)")
    source.execute_raw("CREATE TRIGGER own BEFORE INSERT ON fired FOR EACH ROW SET NEW.id = NEW.id")
    source.execute_raw("CREATE TABLE there (id INT PRIMARY KEY)")
    target.execute_raw("CREATE TABLE there (id INT PRIMARY KEY)")
    target.execute_raw("CREATE TABLE fired__vr_new (id INT PRIMARY KEY)")
    target.execute_raw("SET SESSION foreign_key_checks=0")
    target.execute_raw("CREATE TABLE early (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES fired (id))")
    target.execute_raw("SET SESSION foreign_key_checks=1")
    names = ("parent", "child", "keyless", "slow", "fired", "there", "missing")
    made = plan(sessions, tables=names, workflow="m" * 48)
    assert [name in refusal(made, "foreign keys") for name in ("parent", "child", "early")] == [True] * 3
    assert "keyless" in refusal(made, "shared key")
    assert "MyISAM" in refusal(made, "tables")
    assert "missing" in refusal(made, "tables")
    assert "own" in refusal(made, "triggers")
    assert "there" in refusal(made, "target table")
    assert "fired__vr_new" in refusal(made, "target table")
    assert "too long" in refusal(made, "workflow")
    assert "foreign key" in refusal(made, "definition")
    assert all(stage.name and explained.sentence for stage, explained in made.stages)
    assert "Refused:" in explain(made)


@pytest.mark.parametrize("pair", ["mariadb-mariadb", "mysql-mysql"], indirect=True)
def test_an_id_with_parts_that_are_there(pair: Pair, sessions: tuple[Session, Session]) -> None:
    """A move keeps its tables' state under its id with a number behind it."""
    home = pair.target.admin
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    layout.install(home)
    for workflow in ("shop.1", "items.s2", "plain", "plain.a"):
        workflows.create(home, workflow_row(workflow, phase=Phase.COMPLETE))
    make_move(home, "parts", pair.target.name)
    for workflow, word in (("shop", "shop.1"), ("items", "items.s2"), ("parts.1", "parts")):
        assert word in refusal(plan(sessions, workflow=workflow), "workflow")
    assert not plan(sessions, workflow="plain").refusals


@pytest.mark.parametrize("pair", ["mariadb-mariadb", "mysql-mysql"], indirect=True)
def test_an_id_of_a_move_to_another_target(pair: Pair, sessions: tuple[Session, Session]) -> None:
    """Its triggers on the source are called alike: what the one had denied the other opened, or switched once more."""
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    with connect(pair.source.url) as source:
        source_marks.install(source)
        source_marks.beat(source, "shop.s2", 1)
        assert "another target" in refusal(plan(sessions, workflow="shop"), "other streams")
        assert [c.verdict for c in found(plan(sessions, workflow="shop.s"), "other streams")] == [Verdict.WARN]
        layout.install(pair.target.admin)
        make_move(pair.target.admin, "shop", pair.target.name)
        assert [c.verdict for c in found(plan(sessions, workflow="shop"), "other streams")] == [Verdict.OK]


@ONE_WAY
def test_a_target_table_that_is_taken_over(pair: Pair, sessions: tuple[Session, Session]) -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE t {PLAIN}")
    first = plan(sessions).tables[0]
    sql = first.carried.create_sql
    pair.target.admin.execute_raw(sql)
    pair.target.admin.execute_raw("RENAME TABLE t__vr_new TO t")
    assert plan(sessions, resume_into=True).refusals == ()
    assert "already" in refusal(plan(sessions), "target table")
    pair.target.admin.execute_raw("INSERT INTO t (id) VALUES (1)")
    assert "not empty" in refusal(plan(sessions, resume_into=True), "target table")
    pair.target.admin.execute_raw("DELETE FROM t")
    pair.target.admin.execute_raw("ALTER TABLE t MODIFY v BIGINT")
    assert "type of column v" in refusal(plan(sessions, resume_into=True), "target table")


@ONE_WAY
def test_settings_of_both_servers(pair: Pair, sessions: tuple[Session, Session]) -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE t {PLAIN}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(setting(pair.target, "binlog_row_image", "'MINIMAL'"))
        stack.enter_context(setting(pair.source, "binlog_row_image", "'NOBLOB'"))
        stack.enter_context(setting(pair.target, "max_allowed_packet", "65536"))
        stack.enter_context(setting(pair.target, "read_only", "1"))
        stack.enter_context(setting(pair.source, "time_zone", "'+03:00'"))
        stack.enter_context(setting(pair.source, "log_bin_trust_function_creators", "0"))
        made = plan(sessions)
        assert "NOBLOB" in refusal(made, "source: row image")
        assert "MINIMAL" in refusal(made, "target: row image")
        assert "64 KiB" in refusal(made, "packets")
        assert "read-only" in refusal(made, "target: writable")
        assert "SUPER" in refusal(made, "source: deny triggers")
        assert found(made, "time_zone")[0].verdict is Verdict.WARN
        assert found(made, "source: writable")[0].verdict is Verdict.OK
        one_way = {check.name for check in plan(sessions, reverse=False).checks}
    assert "target: row image" not in one_way
    assert "source: row image" in one_way


@ONE_WAY
def test_what_depends_on_the_time_zone_is_refused_where_that_is_not_utc(
    pair: Pair, sessions: tuple[Session, Session]
) -> None:
    pair.source.admin.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, d DATE AS (cast(ts as date)) VIRTUAL)"
    )
    with setting(pair.target, "time_zone", "'+03:00'"):
        assert "time zone" in refusal(plan(sessions), "definition")
    with setting(pair.target, "time_zone", "'+00:00'"), setting(pair.source, "time_zone", "'+00:00'"):
        assert plan(sessions).refusals == ()


@ONE_WAY
def test_a_source_that_is_a_replica(pair: Pair, sessions: tuple[Session, Session]) -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE t {PLAIN}")
    follow, word, reset = FOLLOW[pair.source.server.is_mariadb]
    pair.source.admin.execute_raw(follow)
    try:
        assert found(plan(sessions), "source: replica")[0].verdict is Verdict.WARN
        pair.source.admin.execute_raw(f"START {word} SQL_THREAD")
        assert "itself a replica" in refusal(plan(sessions), "source: replica")
    finally:
        pair.source.admin.execute_raw(f"STOP {word}")
        pair.source.admin.execute_raw(reset)


@pytest.mark.parametrize("pair", ["mysql-mysql", "mariadb-mariadb"], indirect=True)
def test_a_server_is_not_its_own_target(pair: Pair) -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE t {PLAIN}")
    made = make_move_plan(pair.source.admin, pair.source.admin, make_move_spec(tables=("t",)))
    assert "same schema" in refusal(made, "two servers")
    made = make_move_plan(pair.source.admin, pair.target.admin, make_move_spec(tables=("t",), target_schema="nowhere"))
    assert "nowhere" in refusal(made, "target schema")


@pytest.mark.parametrize("pair", ["mysql-mysql", "mariadb-mariadb"], indirect=True)
@pytest.mark.parametrize("role", ["source", "target"])
def test_each_privilege_is_needed_and_named(pair: Pair, role: str) -> None:
    """Exactly what sql/grants/ has is enough, and whichever is taken away is missing."""
    database = pair.source if role == "source" else pair.target
    wanted = privileges.MOVE_SOURCE if role == "source" else privileges.MOVE_TARGET
    is_mariadb = database.server.is_mariadb
    with user_of(database, role) as session:

        def lacks() -> str:
            return " ".join(privileges.lacking(session, wanted, database.name, is_mariadb=is_mariadb))

        assert lacks() == ""
        user = f"'{database.user}_m'@'%'"
        for line in [str(row[0]) for row in session.rows("SHOW GRANTS")]:
            given = re.match(r"GRANT (.+) ON (\S+|`.*`\.\S+) TO ", line)
            for privilege in re.split(", ?", given[1]) if given and given[1] != "USAGE" else []:
                database.admin.execute_raw(f"REVOKE {privilege} ON {given[2]} FROM {user}")
                assert re.search(rf"\b{privilege}\b", lacks()), privilege
                database.admin.execute_raw(f"GRANT {privilege} ON {given[2]} TO {user}")
        assert lacks() == ""


@pytest.mark.parametrize("pair", ["mysql-mysql", "mariadb-mariadb"], indirect=True)
def test_a_user_of_the_source_can_do_what_a_move_does_there(pair: Pair, sessions: tuple[Session, Session]) -> None:
    session, admin = sessions[0], pair.source.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    session.execute_raw("LOCK TABLES t WRITE")
    session.execute_raw("CREATE TRIGGER deny BEFORE INSERT ON t FOR EACH ROW SIGNAL SQLSTATE '45000'")
    session.execute_raw("UNLOCK TABLES")
    session.execute_raw("DROP TRIGGER deny")
    session.execute_raw("REPLACE INTO t VALUES (1)")
    session.execute_raw("DELETE FROM t WHERE id=1")
    session.execute_raw("RENAME TABLE t TO t__vr_old")
    session.execute_raw("DROP TABLE t__vr_old")
    schema = ident("_vreplication")
    session.execute_raw(f"CREATE DATABASE IF NOT EXISTS {schema}")
    session.execute_raw(f"CREATE TABLE IF NOT EXISTS {schema}.stream_marker_x (id INT PRIMARY KEY, n INT)")
    session.execute_raw(f"REPLACE INTO {schema}.stream_marker_x VALUES (1, 1)")
    session.rows(f"SELECT n FROM {schema}.stream_marker_x FOR UPDATE")
    session.execute_raw(f"UPDATE {schema}.stream_marker_x SET n=2")
    session.execute_raw(f"DELETE FROM {schema}.stream_marker_x")
    admin.execute_raw(f"DROP TABLE {schema}.stream_marker_x")
