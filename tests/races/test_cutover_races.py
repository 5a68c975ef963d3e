"""Writers and readers in the instant of the cut-over, and snapshots that are older than the copy."""

from __future__ import annotations

import pytest
from race_setup import ALTER, Race

from sandbox import orders
from sandbox.workload import Workload
from tests.support.flow import begin, paused_at, wait_reached, wait_until
from vreplication.mysql.processes import processes
from vreplication.mysql.session import connect

SNAPSHOT = ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
EURO = "\N{BANKNOTE WITH EURO SIGN}"
"""Four bytes in UTF-8: MySQL's information_schema cannot show a statement that holds it."""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("point", ["cutover.locked", "cutover.after_barrier", "cutover.rename_pending"])
def test_a_write_that_arrives_in_the_instant_of_the_switch(race: Race, point: str) -> None:
    """It waits for the lock, and then goes into the new table."""
    race.make()
    with race.held(point) as run:
        insert = race.in_background("INSERT INTO t (id,v,u) VALUES (1000,'late',1)")
        update = race.in_background("UPDATE t SET v='changed' WHERE id=10")
        wait_until(lambda: race.is_blocked(insert) and race.is_blocked(update), "the writers do not wait")
    result = run.result()
    assert result.event == "complete", result
    insert.result()
    update.result()
    assert race.app.rows("SELECT * FROM t WHERE id IN (10,1000)") == [(10, "changed", 1, 7), (1000, "late", 1, 7)]
    assert race.app.rows(f"SELECT id, v FROM `{result.retired_table}` WHERE id IN (10,1000)") == [(10, "v1")]


@pytest.mark.parametrize("point", ["cutover.rename_pending", "cutover.sentry_dropped", "cutover.after_unlock"])
def test_readers_and_writers_that_never_stop_see_no_error(race: Race, point: str) -> None:
    """They queue at each step of the cut-over; each read finds its row, each write its table."""
    with connect(race.database.app_url) as app:
        orders.create(app, "orders")
        orders.fill(app, "orders", 400)
    workload = Workload(race.database.app_url, "orders", rows=400, writers=2, readers=3, seed=3, rate=100, xa=True)
    with workload:
        with paused_at(race.pauses, point):
            run = begin(race.database, "orders", orders.ALTER)
            race.runs.append(run)
            wait_reached(race.pauses, point, run)
        assert run.result().event == "complete", run.result()
        workload.wait_for(10)
    report = workload.stop()
    assert report.errors == ()
    assert report.reads > 100


def test_a_snapshot_from_before_the_end_of_the_copy_holds_the_gate(race: Race) -> None:
    """F21b: after the cut-over it would read a half-filled table."""
    race.make()
    with connect(race.database.app_url) as reader:
        with race.held("copy.after_open") as run:
            for statement in SNAPSHOT:
                reader.execute_raw(statement)
        said = race.waiting_for(run, f"onnection {reader.id} ", "snapshot")
        assert race.database.app_user in said
        assert reader.value("SELECT COUNT(*) FROM t") == 20
        reader.execute_raw("COMMIT")
    race.complete(run)


def test_old_snapshots_can_be_waived(race: Race) -> None:
    race.make()
    with connect(race.database.app_url) as reader:
        with race.held("copy.after_open", ignore_old_snapshots=True) as run:
            for statement in SNAPSHOT:
                reader.execute_raw(statement)
        race.complete(run)
        assert reader.value("SELECT COUNT(*) FROM t") == 0


@pytest.mark.parametrize("start", range(1, 5))
@pytest.mark.in_turn
def test_a_statement_with_characters_of_four_bytes_is_no_hindrance(race: Race, start: int) -> None:
    """MySQL's own list of connections fails while it runs (3854); where it is cut, a character may be, too."""
    race.make()
    with race.held("workflow.copied") as run:
        busy = race.in_background(f"SELECT SLEEP(60), '{'x' * start}{EURO * 60}'")
        wait_until(lambda: _is_running(race, busy.session.id), "it does not run")
    race.complete(run)
    assert busy.is_running
    race.database.admin.kill(busy.session.id)


def test_a_statement_that_is_no_text_is_no_hindrance(race: Race) -> None:
    race.make()
    with race.held("workflow.copied") as run:
        busy = race.in_background(b"SELECT SLEEP(60), _binary '\xff\xfe\x80', '" + EURO.encode() + b"'")
        wait_until(lambda: _is_running(race, busy.session.id), "it does not run")
    race.complete(run)
    assert busy.is_running
    race.database.admin.kill(busy.session.id)


def test_an_old_snapshot_is_seen_behind_such_statements(race: Race) -> None:
    """While MySQL cannot list transactions the gate stays shut, and who is to blame is named."""
    race.make()
    reader, other = connect(race.database.app_url), connect(race.database.app_url)
    with race.held("copy.after_open") as run:
        for session in (reader, other):
            for statement in SNAPSHOT:
                session.execute_raw(statement)
        busy = race.borrowed(other, f"SELECT SLEEP(60), '{EURO}'")
        wait_until(lambda: _is_running(race, other.id), "it does not run")
    assert EURO in race.waiting_for(run, f"onnection {other.id} ") or race.database.server.is_mariadb
    race.database.admin.kill(other.id)
    race.waiting_for(run, f"onnection {reader.id} ", "snapshot")
    reader.execute_raw("COMMIT")
    race.complete(run)
    assert not busy.is_running


def _is_running(race: Race, connection_id: int) -> bool:
    found = processes(race.database.admin).get(connection_id)
    return found is not None and EURO in found.statement


def test_an_alter_is_what_the_switch_brings(race: Race) -> None:
    """The reader of the old definition and of the new one: nothing in between."""
    race.make()
    with race.held("cutover.after_unlock", ALTER) as run:
        reader = race.in_background("SELECT COUNT(added) FROM t")
        wait_until(lambda: race.is_blocked(reader) or not reader.is_running, "it neither waits nor reads")
    race.complete(run)
    reader.result()
