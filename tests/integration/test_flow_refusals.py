"""Refusals as a user meets them: exit 2, one sentence with the cause and the cure, and nothing touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, call, paused_at, settings, wait_reached
from vreplication.mysql.session import Session, connect
from vreplication.planning.explain import explain
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import Spec
from vreplication.settings import SIDECAR

pytestmark = pytest.mark.either

CASES = {
    "no shared key": ("CREATE TABLE t (a INT NULL, KEY (a))", "ADD COLUMN z INT", "unique"),
    "foreign key child": (
        "CREATE TABLE p (id INT PRIMARY KEY); "
        "CREATE TABLE t (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
        "ADD COLUMN z INT",
        "foreign key",
    ),
    "foreign key parent": (
        "CREATE TABLE t (id INT PRIMARY KEY); "
        "CREATE TABLE c (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (id))",
        "ADD COLUMN z INT",
        "foreign key",
    ),
    "trigger": (
        "CREATE TABLE t (id INT PRIMARY KEY, a INT); CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.a=1",
        "ADD COLUMN z INT",
        "trigger",
    ),
    "not InnoDB": ("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=MyISAM", "ADD COLUMN z INT", "InnoDB"),
    "rename": ("CREATE TABLE t (id INT PRIMARY KEY)", "RENAME TO u", "rename"),
    "syntax": ("CREATE TABLE t (id INT PRIMARY KEY)", "MODIFY", "syntax"),
    "unknown column": ("CREATE TABLE t (id INT PRIMARY KEY)", "DROP COLUMN nope", "nope"),
    "duplicates": (
        "CREATE TABLE t (id INT PRIMARY KEY, a INT); INSERT INTO t VALUES (1,7),(2,7),(3,8)",
        "ADD UNIQUE KEY u (a)",
        "7",
    ),
    "a view": ("CREATE TABLE b (id INT PRIMARY KEY); CREATE VIEW t AS SELECT * FROM b", "ADD COLUMN z INT", "view"),
    "no such table": ("CREATE TABLE b (id INT PRIMARY KEY)", "ADD COLUMN z INT", "no table"),
}  # fmt: skip


def make(app: Session, statements: str) -> None:
    for statement in statements.split("; "):
        app.execute_raw(statement)


def state(database: Database) -> tuple[object, ...]:
    """What a refusal must leave as it is: the schema's tables, and the end of the log."""
    admin = database.admin
    try:
        place = admin.row("SHOW BINARY LOG STATUS")
    except Exception:
        place = admin.row("SHOW MASTER STATUS")
    schemas = admin.rows("SHOW DATABASES")
    return (admin.rows("SHOW TABLES"), place and place[:2], schemas)


def unused(database: Database) -> tuple[object, ...]:
    """The state of a server on which nothing of ours has ever run."""
    database.drop_sidecar()
    return state(database)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", CASES)
def test_plan_and_run_refuse_and_touch_nothing(database: Database, name: str) -> None:
    create, alter, word = CASES[name]
    make(database.admin, create)
    before = unused(database)
    sentence = begin_refused(database, alter)
    result = begin(database, "t", alter).result()
    assert (result.event, result.exit_code, result.leftovers) == ("refused", 2, ())
    for told in (sentence, result.reason or ""):
        assert word.lower() in told.lower(), told
    assert state(database) == before


def begin_refused(database: Database, alter: str) -> str:
    from vreplication.errors import Refused

    try:
        with connect(database.url) as session:
            plan = make_plan(session, Spec(table="t", alter=alter))
    except Refused as error:
        return str(error)
    assert plan.refusals, "nothing is refused"
    assert all(check.sentence and check.cure for check in plan.refusals), plan.refusals
    return " ".join(f"{check.sentence} {check.cure}" for check in plan.refusals)


AT_PREPARE = {
    "duplicates": (
        "CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2; "
        "INSERT INTO t VALUES (1,5),(2,5)",
        "ADD UNIQUE KEY u (v) REMOVE PARTITIONING",
        "(5) 2 times",
    ),
    "unknown type": ("CREATE TABLE t (id INT PRIMARY KEY, s TEXT, FULLTEXT KEY (s))", "ADD COLUMN z NOTYPE", "NOTYPE"),
    "no shared key": (
        "CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2",
        "DROP PRIMARY KEY REMOVE PARTITIONING",
        "unique key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_PREPARE)
@pytest.mark.in_turn
def test_what_is_refused_at_prepare_is_exit_2_and_nothing_of_it_is_left(database: Database, name: str) -> None:
    """The plan cannot try these; of the sidecar, made meanwhile, the tables stay, and only the journal has rows."""
    create, alter, word = AT_PREPARE[name]
    make(database.admin, create)
    tables, _, _ = unused(database)
    with connect(database.url) as session:
        assert "checked at prepare" in explain(make_plan(session, Spec(table="t", alter=alter)))
    ended = call(database, "online-ddl", "--table", "t", "--alter", alter, "--yes", "--json")
    assert (ended.code, ended.last["event"]) == (2, "refused"), (ended.out, ended.err)
    assert word in ended.last["reason"]
    assert state(database)[0] == tables
    kept = [name for (name,) in database.admin.rows(f"SHOW TABLES FROM {SIDECAR}") if name != "schema_version"]
    assert [name for name in kept if database.admin.row(f"SELECT 1 FROM {SIDECAR}.`{name}` LIMIT 1")] == ["journal"]
    told = database.admin.row(f"SELECT event, details FROM {SIDECAR}.journal ORDER BY id DESC LIMIT 1")
    assert told is not None
    assert (told[0], word in told[1]) == ("refused", True)


def test_the_command_line_says_it_in_one_sentence_and_exits_with_2(database: Database) -> None:
    make(database.admin, CASES["trigger"][0])
    before = unused(database)
    ended = call(database, "online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT", "--yes", "--json")
    assert ended.code == 2, (ended.out, ended.err)
    assert ended.last["event"] == "refused"
    assert "trigger" in ended.last["reason"].lower()
    assert state(database) == before
    planned = call(database, "plan", "online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT")
    assert planned.code == 2
    assert "trigger" in planned.out.lower()
    assert "Traceback" not in ended.err + planned.err


def test_plan_shows_what_would_happen_and_touches_nothing(database: Database) -> None:
    make(database.admin, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT)")
    before = unused(database)
    ended = call(database, "plan", "online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT")
    assert ended.code == 0, (ended.out, ended.err)
    for word in ("t__vr_new", "t__vr_old_…", "PRIMARY"):
        assert word in ended.out
    shown = call(database, "plan", "online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT", "--json")
    assert json.loads(shown.out)["copy_path"] == "server"
    assert state(database) == before


@pytest.mark.only_on("mysql")
def test_a_unique_expression_is_exit_2(database: Database) -> None:
    make(database.admin, "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(9)); INSERT INTO t VALUES (1,'a'),(2,'b')")
    before = unused(database)
    ended = call(database, "online-ddl", "--table", "t", "--alter", "ADD UNIQUE KEY u ((LOWER(s)))", "--yes", "--json")
    assert (ended.code, ended.last["event"]) == (2, "refused"), (ended.out, ended.err)
    assert "unique key u is over an expression" in ended.last["reason"]
    assert "generated column" in ended.last["reason"]
    assert state(database) == before


@pytest.mark.usefixtures("quick")
def test_a_second_workflow_on_the_table_and_a_table_of_ours_are_refused(database: Database, pauses: Path) -> None:
    make(database.admin, "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        second = begin(database, "t", "ADD COLUMN y INT").result()
        ours = begin(database, "t__vr_new", "ADD COLUMN y INT").result()
    assert (second.exit_code, ours.exit_code) == (2, 2)
    assert run.workflow in (second.reason or "")
    assert run.result().event == "complete"


def test_a_missing_privilege_is_named_as_a_grant(database: Database) -> None:
    make(database.admin, "CREATE TABLE t (id INT PRIMARY KEY)")
    database.admin.execute_raw(f"REVOKE LOCK TABLES ON `{database.name}`.* FROM '{database.user}'@'%'")
    ended = call(database, "plan", "online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT")
    assert ended.code == 2
    assert "GRANT LOCK TABLES" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    "words",
    [
        *(("pause",), ("cancel", "--yes"), ("status",)),
        *(pytest.param(words, marks=pytest.mark.seldom) for words in (("resume",), ("release",), ("cleanup", "--yes"))),
    ],
)
@pytest.mark.in_turn
def test_an_unknown_workflow_is_exit_2(database: Database, words: tuple[str, ...]) -> None:
    ended = call(database, words[0], "nope", *words[1:])
    assert ended.code == 2, (ended.out, ended.err)
    assert "nope" in ended.err


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("quick")
def test_where_the_server_asks_for_a_primary_key_the_plan_does(database: Database) -> None:
    """Of what the table becomes: to give it one is just what is wanted."""
    make(database.admin, "CREATE TABLE t (id INT NOT NULL, v INT, UNIQUE KEY (id)); INSERT INTO t VALUES (1,1)")
    with settings(database, {"sql_require_primary_key": 1}):
        said = begin_refused(database, "ADD COLUMN z INT")
        assert "sql_require_primary_key" in said
        run = begin(database, "t", "ADD PRIMARY KEY (id)", strategy="online")
        assert run.result().event == "complete", run.result()
