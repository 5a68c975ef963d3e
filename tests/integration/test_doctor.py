"""`doctor` on real servers: each thing that can be wrong, made for real, is named with its cure; nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, paused_at, wait_reached, wait_until
from tests.support.pairs import Pair
from tests.support.rows import make_move
from vreplication import masking, names
from vreplication.cli import main, options
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import layout, lease
from vreplication.workflows.move_tables.streams import stream_id

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
Doctor = Callable[[], tuple[int, set[tuple[str, str, str]]]]


@pytest.fixture
def doctor(database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Doctor]:
    def call() -> tuple[int, set[tuple[str, str, str]]]:
        # The program takes them out of its environment.
        monkeypatch.setenv(options.SOURCE, str(database.url))
        monkeypatch.setenv(options.PASSWORD, database.url.password)
        capsys.readouterr()
        code = main.run(["doctor", "--json"])
        *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
        assert last == {"event": "doctor", "found": len(lines)}
        return code, {(line["kind"], line["what"], line["cure"]) for line in lines}

    yield call
    masking.forget()


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """After an online DDL that has completed: nothing is wrong."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
    assert begin(database, "t", "ADD a INT", workflow="w").result().event == "complete"
    with connect(database.url) as opened:
        yield opened


def test_each_thing_that_is_wrong_is_named_with_its_cure(database: Database, session: Session, doctor: Doctor) -> None:
    _, before = doctor()
    assert {kind for kind, _, _ in before} <= {"setting"}
    resume = "vreplication resume w"

    session.execute(f"UPDATE {SIDECAR}.workflow SET phase='copying' WHERE id='w'")
    session.execute(f"DELETE FROM {SIDECAR}.heartbeat")
    assert doctor() == (1, before | {("workflow", "w", resume)})
    with connect(database.url) as other:
        lease.acquire(other, "w", lease.DRIVER)
    session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 2 HOUR")
    assert doctor() == (1, before | {("workflow", "w", resume), ("lease", "driver of w", resume)})

    session.execute(f"DELETE FROM {SIDECAR}.heartbeat")
    session.execute(f"UPDATE {SIDECAR}.workflow SET phase='failed' WHERE id='w'")
    assert doctor() == (1, before | {("workflow", "w", f"{resume}, or vreplication cancel w")})

    ended = f"UPDATE {SIDECAR}.workflow SET phase='complete', ended_at = NOW(6) - INTERVAL 8 DAY WHERE id='w'"
    session.execute(ended)
    retired = f"{database.name}.{names.retired_table('t', 'w')}"
    before |= {("retired table", retired, "vreplication cleanup w")}
    assert doctor() == (1, before)

    database.admin.execute_raw("CREATE TABLE gone__vr_new (id INT PRIMARY KEY)")
    shadow = ("shadow table", f"{database.name}.gone__vr_new", "vreplication housekeeping --yes")
    assert doctor() == (1, before | {shadow})

    name = names.deny_trigger("elsewhere", "t", "INSERT")
    database.admin.execute_raw(f"CREATE TRIGGER {name} BEFORE INSERT ON t FOR EACH ROW SET @a = 1")
    _, found = doctor()
    [(kind, what, cure)] = found - before - {shadow}
    assert (kind, what) == ("trigger", f"{database.name}.{name}")
    assert cure.index("target of every move") < cure.index("DROP TRIGGER")


def test_a_sidecar_of_another_layout_is_named_and_left_alone(session: Session, doctor: Doctor) -> None:
    session.execute_raw(f"DROP TABLE {SIDECAR}.tuning")
    for change in (0, -1, 2):
        session.execute(f"UPDATE {SIDECAR}.schema_version SET version = version + %s WHERE id=1", (change,))
        code, found = doctor()
        assert (code, "sidecar" in {kind for kind, _, _ in found}) == (1, True)
    assert session.rows(f"SHOW TABLES FROM {SIDECAR} LIKE 'tuning'") == []


def test_a_log_that_a_failed_workflow_would_read_is_gone(database: Database, session: Session, doctor: Doctor) -> None:
    session.execute(f"UPDATE {SIDECAR}.workflow SET phase='failed' WHERE id='w'")
    assert "binary log" not in {kind for kind, _, _ in doctor()[1]}
    database.admin.execute_raw("FLUSH BINARY LOGS")
    # A log of its own for a change after the workflow's place, and one behind it to be kept.
    database.admin.execute_raw("INSERT INTO t VALUES (1, 1)")
    database.admin.execute_raw("FLUSH BINARY LOGS")
    last = str(database.admin.rows("SHOW BINARY LOGS")[-1][0])

    def is_gone() -> bool:
        database.admin.execute_raw(f"PURGE BINARY LOGS TO '{last}'")
        return len(database.admin.rows("SHOW BINARY LOGS")) == 1

    wait_until(is_gone, "the run's dump still holds a file")
    code, found = doctor()
    assert (code, [what for kind, what, _ in found if kind == "binary log"]) == (1, ["w"])


def test_a_workflow_that_is_at_work_is_nothing_wrong(database: Database, doctor: Doctor, pauses: Path) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
    database.admin.execute_raw("INSERT INTO t VALUES (1)")
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD a INT", workflow="w")
        wait_reached(pauses, "workflow.copied", run)
        _, found = doctor()
    assert {kind for kind, _, _ in found} <= {"setting"}
    assert run.result().event == "complete"


def test_a_move_whose_way_back_is_kept_level_is_worked_on(session: Session, database: Database, doctor: Doctor) -> None:
    """By its catch-up alone, which holds its lease under the name of the way."""
    make_move(session, "m", database.name, number=2)
    idle = ("workflow", "m", "vreplication resume m")
    assert idle in doctor()[1]
    with connect(database.url) as other:
        lease.acquire(other, stream_id("m", 2), lease.REPLICATE)
        assert idle not in doctor()[1]


def test_a_setting_that_plans_refuse_is_named(database: Database, doctor: Doctor) -> None:
    found_before = database.admin.value("SELECT @@GLOBAL.binlog_row_image")
    try:
        database.admin.execute_raw("SET GLOBAL binlog_row_image=MINIMAL")
        code, found = doctor()
    finally:
        database.admin.execute_raw(f"SET GLOBAL binlog_row_image={found_before}")
    assert (code, "row image" in {what for kind, what, _ in found if kind == "setting"}) == (1, True)


def test_what_the_user_lacks_is_named_as_its_grants(database: Database, doctor: Doctor) -> None:
    database.admin.execute_raw(f"REVOKE LOCK TABLES ON `{database.name}`.* FROM '{database.user}'@'%'")
    code, found = doctor()
    (cure,) = [cure for kind, _, cure in found if kind == "grants"]
    assert code == 1
    assert f"GRANT LOCK TABLES ON `{database.name}`.* TO the user;" in cure


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_both_ends_of_a_move(pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What each needs as such, whose triggers deny writes on the source, and the log that a move would read there."""

    def doctor() -> set[tuple[str, str, str]]:
        for (url, password), end in (((options.SOURCE, options.PASSWORD), pair.source),
                                     ((options.TARGET, options.TARGET_PASSWORD), pair.target)):  # fmt: skip
            monkeypatch.setenv(url, str(end.url))
            monkeypatch.setenv(password, end.url.password)
        capsys.readouterr()
        main.run(["doctor", "--json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return {(each["server"], each["kind"], each["what"]) for each in lines[:-1]}

    source = pair.source.admin
    source.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
    source.execute_raw(f"REVOKE LOCK TABLES ON `{pair.source.name}`.* FROM '{pair.source.user}'@'%'")
    before = doctor()
    assert {each for each in before if each[1] == "grants"} == {("source", "grants", f"{pair.source.user}@%")}
    with connect(pair.target.url) as home, connect(pair.source.url) as at_source:
        layout.install(home)
        make_move(home, "m", pair.source.name)
        server = identity_of(at_source)
        home.execute(f"UPDATE {SIDECAR}.move SET source_server=%s WHERE workflow='m'", (server,))
        trigger = names.deny_trigger("m", "orders", "INSERT")
        source.execute_raw(f"CREATE TRIGGER {trigger} BEFORE INSERT ON t FOR EACH ROW SET @a = 1")
        assert ("source", "trigger", f"{pair.source.name}.{trigger}") not in doctor()
        home.execute(f"UPDATE {SIDECAR}.workflow SET start_position='purged.000001:4' WHERE id='m'")
        assert ("source", "binary log", "m") in doctor()
        home.execute(f"UPDATE {SIDECAR}.workflow SET phase='cancelled' WHERE id='m'")
        assert ("source", "trigger", f"{pair.source.name}.{trigger}") in doctor()
    masking.forget()


def test_a_server_that_is_not_given_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.SOURCE, raising=False)
    assert main.run(["doctor", "--json"]) == 2
