"""Definition statements that queue for the table while it is locked, and servers that serve out of turn."""

from __future__ import annotations

import pytest
from race_setup import Race

from tests.support.flow import let_go, wait_until
from vreplication.errors import Transient
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import workflows
from vreplication.workflows.online_ddl import retrying, switching

pytestmark = pytest.mark.either

PARTITIONED = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), u INT) PARTITION BY HASH (id) PARTITIONS 2"
EMPTIES = {
    "truncate": ("", "TRUNCATE TABLE t"),
    "truncate, with a comment": ("", "/* nightly */ truncate `t`"),
    "truncate a partition": (PARTITIONED, "ALTER TABLE t TRUNCATE PARTITION p0"),
    "in a procedure": ("", "CALL empty_it()"),
    "of a prepared statement": ("", "EXECUTE IMMEDIATE 'TRUNCATE TABLE t'"),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("kind", "point"), [("truncate", "cutover.locked"), *((kind, "cutover.after_barrier") for kind in EMPTIES)]
)
@pytest.mark.in_turn
def test_a_table_is_emptied_while_it_is_locked_for_the_switch(race: Race, kind: str, point: str) -> None:
    """It is served before RENAME, and by the old table: so there must be no cut-over before it is."""
    table, statement = EMPTIES[kind]
    if statement.startswith("EXECUTE") and not race.database.server.is_mariadb:
        pytest.skip("a statement of MariaDB")
    race.make(*[table] * bool(table))
    race.app.execute_raw("CREATE PROCEDURE empty_it () TRUNCATE TABLE t")
    with race.held(point) as run:
        background = race.in_background(statement)
        wait_until(lambda: race.is_blocked(background), "it does not wait")
    result = run.result()
    background.result()
    # Of the table that it had emptied nothing may live on in a new one.
    assert race.app.value("SELECT COUNT(*) FROM t") == 0, result
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert [left.what for left in result.leftovers], result
    with connect(race.database.url) as session:
        assert workflows.load(session, run.workflow).phase is Phase.FAILED


@pytest.mark.usefixtures("patient")
def test_a_definition_statement_for_another_table_is_no_hindrance(race: Race) -> None:
    race.make()
    race.app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    with race.app.transaction():
        race.app.rows("SELECT * FROM other")
        with race.held("cutover.after_barrier") as run:
            background = race.in_background("TRUNCATE TABLE other")
            wait_until(lambda: race.is_blocked(background), "it does not wait")
        assert run.result().event == "complete", run.said
    background.result()


def test_a_server_that_serves_writers_before_renames(race: Race) -> None:
    """max_write_lock_count, set while a run is under way: no attempt until it is as before; a plan is refused."""
    race.make()
    usual = race.database.admin.value("SELECT @@GLOBAL.max_write_lock_count")
    try:
        with race.held("workflow.copied") as run:
            race.database.admin.execute_raw("SET GLOBAL max_write_lock_count=1")
        race.waiting_for(run, "max_write_lock_count is 1")
        refused = race.begin().result()
        assert "max_write_lock_count is 1" in (refused.reason or "")
    finally:
        race.database.admin.execute_raw(f"SET GLOBAL max_write_lock_count={usual}")
    race.complete(run)


def test_a_backup_that_forbids_definition_statements(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts are made again, with pauses and without verifying again, until it lets go."""
    monkeypatch.setattr(retrying, "CUTOVER_RETRY_SECONDS", (0.5,))
    race.make()
    is_mariadb = race.database.server.is_mariadb
    with race.held("workflow.gate_open") as run:
        if is_mariadb:
            for stage in ("START", "FLUSH", "BLOCK_DDL"):
                race.database.admin.execute_raw(f"BACKUP STAGE {stage}")
        else:
            race.database.admin.execute_raw("LOCK INSTANCE FOR BACKUP")
        let_go(race.pauses, "workflow.gate_open")
        race.said(run, "cut-over not done")
        race.waiting_for(run, "ock")
        race.database.admin.execute_raw("BACKUP STAGE END" if is_mariadb else "UNLOCK INSTANCE")
    race.complete(run)
    assert sum("erifying" in line for line in run.said) <= 1, run.said


@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD COLUMN other INT", "TRUNCATE TABLE t", "RENAME TABLE t TO u"])
def test_a_definition_statement_between_two_attempts_is_named(
    race: Race, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """It ends the workflow at once, and not after the next attempt, or after catch-up was started again and again."""
    monkeypatch.setattr(retrying, "CUTOVER_RETRY_SECONDS", (600.0,))
    monkeypatch.setattr(switching, "mark", not_now)
    race.make()
    run = race.begin()
    race.said(run, "cut-over not done: not now")
    race.app.execute_raw(statement)
    result = run.result(30.0)
    assert result.event == "failed", result
    assert f"The binary log shows {statement.split()[0]}" in (result.reason or ""), result


def not_now(*_: object) -> str:
    raise Transient("not now")
