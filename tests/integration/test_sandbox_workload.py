"""The workload knows what it wrote, the proof sees what is wrong, and servers come back after kill -9."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

import pytest

from sandbox import orders, servers
from sandbox.databases import Database, create_database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from sandbox.writer import Share, Writer
from tests.support.flow import wait_until
from vreplication.mysql.session import connect

pytestmark = pytest.mark.either

ROWS = 400


@pytest.fixture
def filled(database: Database) -> Database:
    orders.create(database.admin, "orders")
    orders.fill(database.admin, "orders", ROWS)
    keep_copy(database.admin, "orders", "at_start")
    return database


def _altered(database: Database) -> None:
    database.admin.execute_raw(f"ALTER TABLE orders {orders.ALTER}")


def test_fill_writes_what_base_row_says(filled: Database) -> None:
    found = filled.admin.rows(f"SELECT {orders.COLUMNS} FROM orders ORDER BY id")
    assert found == [tuple(orders.base_row(number)) for number in range(ROWS)]


@pytest.mark.parametrize("xa", [False, True])
def test_expected_is_what_is_there_also_across_a_plain_alter(filled: Database, xa: bool) -> None:
    with Workload(filled.app_url, "orders", rows=ROWS, readers=1, xa=xa) as workload:
        workload.wait_for(500)
        _altered(filled)
        workload.wait_for(500)
        report = workload.stop()
    assert report.errors == ()
    assert report.writes >= 1000
    assert report.rolled_back > 0
    assert report.reads > 0
    assert report.longest_stall_ms > 0
    proof = prove(filled.admin, "orders", "at_start", orders.ALTER, workload.expected)
    assert proof.differences == ()
    assert proof.altered.rows > ROWS / 2


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("DELETE FROM orders WHERE id = 1", "lost: rows [1]"),
        (
            "INSERT INTO orders SELECT 2, customer, status, amount, note, 'x', updated_at, region FROM orders LIMIT 1",
            "invented: rows [2]",
        ),
        ("UPDATE orders SET amount = amount + 0.0001 WHERE id = 17", "other content: rows [17]"),
        ("UPDATE orders SET note = '' WHERE id = 1", "other content: rows [1]"),
        ("UPDATE orders SET note = 'ORDER ✓ 1' WHERE id = 3", "other content: rows [3]"),
        ("ALTER TABLE orders DROP INDEX customer", "SHOW CREATE TABLE differs"),
    ],
)
def test_the_proof_sees_a_planted_fault(filled: Database, fault: str, seen: str) -> None:
    _altered(filled)
    filled.admin.execute_raw(fault)
    proof = prove(filled.admin, "orders", "at_start", orders.ALTER, {})
    assert not proof.holds
    assert any(seen in text for text in proof.differences), proof.differences


def test_swapped_values_are_seen(filled: Database) -> None:
    _altered(filled)
    filled.admin.execute_raw("UPDATE orders SET customer = IF(id = 1, 7919, 0) WHERE id IN (1, 3)")
    proof = prove(filled.admin, "orders", "at_start", orders.ALTER, {})
    assert proof.differences == ("other content: rows [1, 3]",)


def test_a_writer_notices_a_lost_row(filled: Database) -> None:
    workload = Workload(filled.app_url, "orders", rows=ROWS, writers=1)
    filled.admin.execute_raw("DELETE FROM orders WHERE (id DIV 2) MOD 8 <> 0")
    with workload, pytest.raises(TimeoutError):
        workload.wait_for(10_000)
    assert any("instead of 1" in error for error in workload.report().errors)


def test_a_reader_notices_a_lost_row(filled: Database) -> None:
    filled.admin.execute_raw("DELETE FROM orders WHERE (id DIV 2) MOD 8 = 0")
    with Workload(filled.app_url, "orders", rows=ROWS, readers=1) as workload:
        # The reader ends itself after so many errors.
        until = time.monotonic() + 60
        while len(workload.report().errors) < 1 and time.monotonic() < until:
            time.sleep(0.01)
    assert any("reads as []" in error for error in workload.report().errors)


def test_a_renamed_away_table_is_an_error(filled: Database) -> None:
    with Workload(filled.app_url, "orders", rows=ROWS, writers=1) as workload:
        workload.wait_for(50)
        filled.admin.execute_raw("RENAME TABLE orders TO elsewhere")
        with pytest.raises(TimeoutError):
            workload.wait_for(10_000)
    assert any("(1146)" in error for error in workload.report().errors)


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.in_turn
def test_the_workload_outlives_a_restart(server: servers.RunningServer, tmp_path: Path, end: str) -> None:
    if not server.is_ours:
        pytest.skip("kills a server: never one that somebody handed us")
    private = servers.start(server.flavor, tmp_path / "s", options={"innodb-buffer-pool-size": "64M"})
    try:
        database = create_database(private)
        orders.create(database.admin, "orders")
        orders.fill(database.admin, "orders", ROWS)
        keep_copy(database.admin, "orders", "at_start")
        with Workload(database.app_url, "orders", rows=ROWS) as workload:
            workload.wait_for(200)
            pid = private.pid
            getattr(private, end)()
            private.restart()
            assert private.pid != pid
            workload.wait_for(200)
        report = workload.stop()
        assert report.errors == ()
        assert report.retries > 0
        session = database.reconnect()
        _altered(database)
        assert prove(session, "orders", "at_start", orders.ALTER, workload.expected).differences == ()
        database.drop()
    finally:
        private.stop()
    assert not private.is_alive()


def test_a_branch_whose_rollback_was_forgotten_is_rolled_back_again(filled: Database) -> None:
    """As MariaDB does when it is killed behind its answer; whoever prepared the branch has to end it."""
    share = Share(number=0, writers=1, rows=0)
    writer = Writer(filled.app_url, "orders", share, seed=1, rate=None, xa=True, stop=threading.Event())
    token = secrets.token_hex(8)
    branch = f"'{token}','b'"
    # The server takes a moment to see that a connection has gone; until then it knows nothing of the branch.
    prepare(filled, branch)
    wait_until(lambda: writer._roll_back_branch(branch), "it is not rolled back")
    prepare(filled, branch)
    wait_until(lambda: writer._reconnect() or not is_prepared(filled, token), "it is not rolled back again")


def prepare(database: Database, branch: str) -> None:
    with connect(database.app_url) as app:
        for statement in (
            f"XA START {branch}",
            "DELETE FROM orders WHERE id = 1",
            f"XA END {branch}",
            f"XA PREPARE {branch}",
        ):
            app.execute_raw(statement)


def is_prepared(database: Database, token: str) -> bool:
    return any(token in str(row) for row in database.admin.rows("XA RECOVER"))
