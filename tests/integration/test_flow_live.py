"""The whole of an online DDL through the command line, on real Spark, under live writes."""

from __future__ import annotations

import pytest

from sandbox import orders
from sandbox.databases import Database
from sandbox.workload import Workload
from tests.support.flow import altered_copy, call, command, definition, finish, wait_until
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import workflows

pytestmark = pytest.mark.either

ROWS = 30_000
ALTER = (
    "ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT 'eu' AFTER id, MODIFY amount DECIMAL(14,4) NOT NULL, "
    "MODIFY note TEXT CHARACTER SET utf16, ADD INDEX by_customer (customer, status)"
)
PROGRESS = {
    "event", "workflow", "phase", "paused", "percent", "rows_copied", "rows_total", "rows_total_exact",
    "copy_eta_seconds", "apply_eta_seconds", "eta_seconds", "eta_low_seconds", "eta_high_seconds", "eta_of",
    "eta_reason", "lag_seconds", "backlog", "converging", "throttled", "throttle_reasons",
    "shadow_table",
}  # fmt: skip
LAST = {
    "event", "workflow", "reason", "shadow_table", "retired_table", "side_table", "side_rows", "rows_copied",
    "events_applied", "cutover_millis", "write_stall_millis", "strategy", "strategy_reason", "resume_command",
}  # fmt: skip


def make(database: Database, rows: int = ROWS) -> None:
    with connect(database.app_url) as app:
        orders.create(app, "orders")
        orders.fill(app, "orders", rows)


def differences(database: Database, workload: Workload) -> list[object]:
    """Keys whose row is not what the application last committed."""
    found: list[object] = []
    with connect(database.app_url) as app:
        rows = {
            r[0]: r[1:] for r in app.rows("SELECT id, customer, status, amount, note, email, updated_at FROM orders")
        }
    for key, row in workload.expected.items():
        want = row and (row.customer, row.status, row.amount, row.note, row.email, row.updated_at)
        if rows.get(key) != want:
            found.append((key, rows.get(key), want))
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_live_table_is_changed_and_nothing_is_lost(database: Database) -> None:
    make(database)
    with connect(database.app_url) as app:
        altered_copy(app, database, "orders", ALTER, "plain")
        wanted = definition(app, "plain")
    with Workload(
        database.app_url, "orders", rows=ROWS, writers=2, readers=1, seed=7, rate=50, xa=True, read_every=0.02
    ) as workload:
        workload.wait_for(20)
        ended = call(database, "online-ddl", "--table", "orders", "--alter", ALTER, "--yes", "--json")
        assert ended.code == 0, (ended.out[-2000:], ended.err[-2000:])
        workload.wait_for(50)
    report = workload.stop()
    assert report.errors == ()
    assert differences(database, workload) == []
    with connect(database.app_url) as app:
        assert definition(app, "orders") == wanted
    check_lines(ended.lines, database)


def check_lines(lines: list[dict[str, object]], database: Database) -> None:
    *progress, last = lines
    assert {frozenset(line) for line in progress} == {frozenset(PROGRESS)}
    assert set(last) == LAST | {"leftovers"}
    assert last["event"] == "complete"
    assert isinstance(last["rows_copied"], int)
    assert last["rows_copied"] >= ROWS * 0.8
    assert 0 < float(str(last["write_stall_millis"])) < 3000
    phases = [line["phase"] for line in progress]
    assert phases[0] == "planning"
    assert all(line["percent"] is None or 0 <= float(str(line["percent"])) <= 100 for line in progress)
    with connect(database.app_url) as app:
        assert app.row(f"SELECT 1 FROM `{last['retired_table']}` LIMIT 1") is not None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.seldom
def test_manual_cutover_waits_for_release_and_cleanup_drops_the_original(database: Database) -> None:
    make(database, rows=1_000)
    with Workload(database.app_url, "orders", rows=1_000, writers=1, readers=1, rate=30, xa=True) as workload:
        retired = held_released_and_complete(database)
        workload.wait_for(20)
    assert workload.stop().errors == ()
    assert differences(database, workload) == []
    assert call(database, "cleanup", "held", "--yes").code == 0
    with connect(database.app_url) as app:
        assert app.row("SHOW TABLES LIKE %s", (retired,)) is None


def held_released_and_complete(database: Database) -> str:
    """Returns the name of the retired table."""
    words = ("--table", "orders", "--alter", "ENGINE=InnoDB", "--cutover", "manual", "--workflow", "held", "--yes")
    running = command(database, "online-ddl", *words, "--json")
    wait_until(lambda: phase(database) is Phase.WAITING or running.poll() is not None, "never waits")
    assert running.poll() is None, finish(running)
    assert call(database, "status", "held", "--json").last["phase"] == "waiting"
    assert call(database, "release", "held").code == 0
    ended = finish(running)
    assert (ended.code, ended.last["event"]) == (0, "complete")
    return str(ended.last["retired_table"])


def phase(database: Database) -> Phase | None:
    """As the sidecar has it: a command for every look would take the cores from what it waits for."""
    with connect(database.url) as session:
        found = workflows.find(session, "held")
    return found.phase if found else None
