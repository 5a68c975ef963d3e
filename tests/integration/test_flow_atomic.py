"""`--atomic`: several tables changed by one command and switched in one statement, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Ended, altered_copy, call, definition, let_go, paused_at, pauses, wait_until
from tests.support.related import ALTER, TABLES, Related, create
from tests.support.run_ddl import Command, start, wait_gone, wait_reached
from vreplication import names
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import groups, lease, progress, workflows

__all__ = ["pauses"]
ID = "atomic"
MEMBERS = groups.members(ID, len(TABLES))
WORDS = ("--table", "orders", "--table", "items", "--alter", ALTER, "--workflow", ID, "--atomic")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.either]


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        create(session)
        yield session


@contextmanager
def running(database: Database, folder: Path, *more: str) -> Iterator[Command]:
    command = start(database, folder / "state", ("online-ddl", *WORDS, "--yes", "--json", *more))
    try:
        yield command
    finally:
        command.process.kill()


def phases(database: Database) -> list[Phase | None]:
    with connect(database.url) as session:
        rows = [workflows.find(session, each) for each in MEMBERS]
    return [row.phase if row else None for row in rows]


def waits_for(database: Database, command: Command, number: int, *words: str) -> None:
    """Until a table's workflow says that it waits for this."""
    said = [""]

    def says() -> bool:
        assert command.is_going, command.finish()
        if None in phases(database):
            return False
        with connect(database.url) as session:
            said[0] = str(progress.read(session, MEMBERS[number]).get("waiting_for") or "")
        return all(word in said[0] for word in words)

    wait_until(says, f"it does not wait for {words}: {said}")


def ends(ended: Ended) -> dict[str, str]:
    return {str(each["table"]): str(each["event"]) for each in ended.last["tables"]}


def reasons(ended: Ended) -> dict[str, str]:
    return {str(each["table"]): str(each["reason"]) for each in ended.last["tables"]}


def renames(database: Database, begin: str) -> list[str]:
    """What the binary log has of RENAMEs of the database's tables, since its file `begin`."""
    admin = database.admin
    files = [str(row[0]) for row in admin.rows("SHOW BINARY LOGS")]
    events = [row for file in files[files.index(begin) :] for row in admin.rows(f"SHOW BINLOG EVENTS IN '{file}'")]
    return [str(row[5]) for row in events if "RENAME TABLE" in str(row[5]) and f"`{database.name}`" in str(row[5])]


def is_untouched(app: Session) -> bool:
    columns = [name for table in TABLES for (name, *_) in app.rows(f"SHOW COLUMNS FROM {table}")]
    return "region" not in columns


def ours(app: Session) -> list[str]:
    return sorted(str(name) for (name,) in app.rows("SHOW TABLES") if "__vr_" in str(name))


def test_both_are_switched_in_one_statement(database: Database, app: Session, tmp_path: Path) -> None:
    """Held until each is released; no reader ever sees one of them new beside the other; both are what ALTER makes."""
    # Of its own: what is shown of a log as text fails at the names of other tests' XA branches.
    database.admin.execute_raw("FLUSH BINARY LOGS")
    log = str(database.admin.rows("SHOW BINARY LOGS")[-1][0])
    with Related(database.app_url) as related:
        with running(database, tmp_path, "--cutover", "manual") as command:
            waits_for(database, command, 0, "release")
            waits_for(database, command, 1, "release")
            assert call(database, "release", MEMBERS[0]).code == 0
            waits_for(database, command, 0, "Waiting for items: all tables are switched together.")
            related.wait_for(20)
            assert (phases(database), is_untouched(app)) == ([Phase.WAITING] * 2, True)
            assert [line["atomic"] for line in call(database, "status", ID, "--json").lines] == [True, True]
            assert "All of them are switched together, in one statement." in call(database, "status", ID).out
            assert call(database, "release", ID).code == 0
            ended = command.finish()
        assert (ended.code, ends(ended)) == (0, dict.fromkeys(TABLES, "complete")), ended
        related.wait_for(20)
    assert (related.differences(app), related.deadlocks) == ([], [])
    (statement,) = renames(database, log)
    assert all(f"`{name}`" in statement for name in TABLES)
    stalls = {
        line["write_stall_millis"] for line in ended.lines if line.get("event") == "complete" and "tables" not in line
    }
    assert len(stalls) == 1
    assert stalls.pop() < 3000
    for table, workflow in zip(TABLES, MEMBERS, strict=True):
        altered_copy(app, database, names.retired_table(table, workflow), ALTER, f"plain_{table}")
        assert definition(app, table) == definition(app, f"plain_{table}")


def test_one_that_is_blocked_holds_both(database: Database, app: Session, tmp_path: Path) -> None:
    with Related(database.app_url) as related, connect(database.app_url) as blocker:
        with running(database, tmp_path, "--cutover", "manual") as command:
            waits_for(database, command, 1, "release")
            blocker.execute_raw("BEGIN")
            blocker.rows("SELECT * FROM items LIMIT 1")
            assert call(database, "release", ID).code == 0
            waits_for(database, command, 1, f"KILL {blocker.id}")
            related.wait_for(20)
            assert is_untouched(app)
            blocker.rollback()
            ended = command.finish()
        assert (ended.code, ends(ended)) == (0, dict.fromkeys(TABLES, "complete")), ended
    assert (related.differences(app), related.deadlocks) == ([], [])


@pytest.mark.in_turn("mysql")
def test_one_that_fails_ends_both(database: Database, app: Session, tmp_path: Path) -> None:
    """Nothing is switched; the other says which one it was; `cancel` removes what was made."""
    with running(database, tmp_path, "--cutover", "manual") as command:
        waits_for(database, command, 0, "release")
        waits_for(database, command, 1, "release")
        database.admin.execute_raw(f"ALTER TABLE {database.name}.items ADD COLUMN odd INT")
        ended = command.finish()
    assert (ended.code, ends(ended)) == (1, dict.fromkeys(TABLES, "failed"))
    assert (
        f"The migration of items failed, so none of the tables of workflow {ID} is switched: "
        in reasons(ended)["orders"]
    )
    assert "ALTER TABLE" in reasons(ended)["items"]
    own = [line for line in ended.lines if line["event"] == "failed" and "tables" not in line]
    assert [line["resume_command"] for line in own] == [f"vreplication resume {ID}"] * 2
    assert is_untouched(app)
    assert call(database, "cancel", ID, "--yes").code == 0
    assert ours(app) == []


def test_a_duplicate_in_one_ends_both(database: Database, app: Session, tmp_path: Path) -> None:
    """Under a new unique key, written while both are held; each table has an ALTER of its own."""
    file = tmp_path / "tables.yaml"
    file.write_text(
        f"- {{table: orders, alter: {ALTER!r}}}\n- {{table: items, alter: 'ADD UNIQUE KEY one (order_id, price)'}}\n"
    )
    words = ("online-ddl", "--tables-file", str(file), "--atomic", "--workflow", ID, "--cutover", "manual", "--yes")
    command = start(database, tmp_path / "state", (*words, "--json"))
    waits_for(database, command, 0, "release")
    waits_for(database, command, 1, "release")
    app.execute_raw("INSERT INTO items (order_id, price) VALUES (1, 1)")
    ended = command.finish()
    assert (ended.code, ends(ended)) == (1, dict.fromkeys(TABLES, "failed")), ended
    assert "The migration of items failed" in reasons(ended)["orders"]
    assert "(1" in reasons(ended)["items"]
    assert is_untouched(app)


@pytest.mark.in_turn("mariadb")
def test_one_that_is_cancelled_ends_both(database: Database, app: Session, tmp_path: Path) -> None:
    with running(database, tmp_path, "--cutover", "manual") as command:
        waits_for(database, command, 0, "release")
        waits_for(database, command, 1, "release")
        assert call(database, "cancel", MEMBERS[1], "--yes").code == 0
        ended = command.finish()
    assert (ended.code, ends(ended)) == (3, dict.fromkeys(TABLES, "cancelled")), ended
    assert f"items was cancelled, so none of the tables of workflow {ID} is switched." in reasons(ended)["orders"]
    assert (is_untouched(app), ours(app)) == (True, [])


@pytest.mark.in_turn("mysql")
def test_killed_at_the_gate_none_goes_on_alone(database: Database, app: Session, tmp_path: Path) -> None:
    """A table's own workflow would be switched by itself: it is refused, and the group goes on."""
    with running(database, tmp_path, "--cutover", "manual") as command:
        waits_for(database, command, 0, "release")
        waits_for(database, command, 1, "release")
        wait_gone(command.kill())
    assert call(database, "pause", MEMBERS[1]).code == 0
    alone = ("--table", "items", "--alter", ALTER, "--workflow", MEMBERS[1], "--yes")
    for words in (("resume", MEMBERS[1]), ("online-ddl", *alone)):
        refused = call(database, *words)
        assert (refused.code, f"the tables of {ID}, which are switched together" in refused.err) == (2, True), refused
    with connect(database.url) as session:
        assert workflows.load(session, MEMBERS[1]).is_paused, "what is refused touches nothing"
    without = call(database, "online-ddl", *(word for word in WORDS if word != "--atomic"), "--yes")
    assert (without.code, f"Workflow {ID} was begun with --atomic." in without.err) == (2, True), without
    more = call(database, "online-ddl", *WORDS, "--foreign-keys", "rebuild", "--yes")
    assert (more.code, "Leave out --atomic" in more.err) == (2, True), more
    assert call(database, "release", ID).code == 0
    ended = start(database, tmp_path / "state", ("resume", ID, "--json")).finish()
    assert (ended.code, ends(ended)) == (0, dict.fromkeys(TABLES, "complete")), ended
    assert not is_untouched(app)


def test_a_cancel_in_the_middle_of_the_switch(database: Database, app: Session, tmp_path: Path, pauses: Path) -> None:
    """Of one whose driver others may act for: the attempt is given up."""
    with paused_at(pauses, "cutover.before_lock"), running(database, tmp_path) as command:
        wait_reached(pauses, "cutover.before_lock", command)
        with connect(database.url) as session:
            workflows.request_cancel(session, MEMBERS[1])
            for _ in range(2):
                # Requests are read between two beats.
                wait_for_beat(session, MEMBERS[1])
        let_go(pauses, "cutover.before_lock")
        ended = command.finish()
    assert (ended.code, ends(ended)) == (3, dict.fromkeys(TABLES, "cancelled")), ended
    assert (is_untouched(app), ours(app)) == (True, [])


def wait_for_beat(session: Session, workflow: str) -> None:
    sql = f"SELECT at FROM {SIDECAR}.heartbeat WHERE workflow=%s AND role=%s"
    last = session.value(sql, (workflow, lease.DRIVER))
    wait_until(lambda: session.value(sql, (workflow, lease.DRIVER)) != last, "the driver does not beat")


def test_the_plan_has_one_statement_for_both(database: Database, app: Session) -> None:
    plan = call(database, "plan", "online-ddl", *WORDS, "--json")
    assert plan.code == 0, plan
    schema = f"`{database.name}`"
    retired = {table: names.retired_table(table, workflow) for table, workflow in zip(TABLES, MEMBERS, strict=True)}
    whole = "RENAME TABLE " + ", ".join(
        f"{schema}.`{t}` TO {schema}.`{retired[t]}`, {schema}.`{t}__vr_new` TO {schema}.`{t}`" for t in sorted(TABLES)
    )
    for line in plan.lines:
        (stage,) = [stage for stage in line["stages"] if stage["name"] == "cut_over"]
        assert stage["statements"][-1] == whole
        assert "all 2 tables atomically, in one statement" in stage["sentence"]
    assert whole in call(database, "plan", "online-ddl", *WORDS).out
    assert ours(app) == []


def test_of_one_table_it_says_nothing(database: Database, app: Session) -> None:
    words = ("online-ddl", "--table", "orders", "--alter", ALTER, "--workflow", "one")
    with_it, without = (call(database, "plan", *words, *more, "--json") for more in (("--atomic",), ()))
    assert (with_it.code, with_it.last["stages"]) == (0, without.last["stages"])


@pytest.mark.in_turn("mariadb")
def test_what_cannot_be_switched_together_is_refused(database: Database, app: Session, tmp_path: Path) -> None:
    """One sentence, exit code 2, and nothing is touched."""
    windows = tmp_path / "windows.yaml"
    windows.write_text(
        "- {table: orders, alter: ADD COLUMN z INT, options: {cutover-window: 'Sat 02:00-04:00 Europe/Berlin'}}\n"
        "- {table: items, alter: ADD COLUMN z INT}\n"
    )
    other_windows = call(database, "online-ddl", "--tables-file", str(windows), "--atomic", "--yes")
    assert (other_windows.code, "they have different cutover-windows" in other_windows.err) == (2, True)
    many = [word for n in range(13) for word in ("--table", f"t{n}")]
    too_many = call(database, "online-ddl", *many, "--alter", "ADD COLUMN z INT", "--atomic", "--yes")
    assert (too_many.code, "--atomic switches at most 12 tables" in too_many.err) == (2, True)
    queued = call(database, "submit", "--table", "orders", "--alter", ALTER, "--atomic")
    assert (queued.code, "A queued online DDL has one table" in queued.err) == (2, True)
    app.execute_raw("CREATE TABLE more (id INT PRIMARY KEY, item INT, FOREIGN KEY (item) REFERENCES items (id))")
    related = call(database, "online-ddl", *WORDS, "--yes")
    assert (related.code, "more" in related.err) == (2, True), related
    assert ours(app) == []
    with connect(database.url) as session:
        assert groups.find(session, ID) is None
