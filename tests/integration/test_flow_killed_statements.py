"""Somebody kills statements of ours (KILL QUERY), as a tool does that ends what runs for long: they are sent again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, begin, let_go, paused_at, wait_reached, wait_until
from tests.support.rows import workflow_row
from vreplication.engine.driver import Driver
from vreplication.mysql.session import QUERY_KILLED, ConnectionLost, Session, SqlError, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import layout, lease, workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


@pytest.fixture
def app(database: Database) -> Session:
    session = connect(database.app_url)
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    session.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    return session


def kill(session: Session, words: str) -> None:
    """The statement of ours that waits for a lock."""
    sql = f"SELECT id FROM information_schema.processlist WHERE id <> {session.id} AND info LIKE '{words}'"
    wait_until(lambda: session.value(sql) is not None, f"no session waits in {words}")
    victim = session.value(sql)
    session.execute_raw(f"KILL QUERY {victim}")
    wait_until(lambda: session.value(f"{sql} AND id={victim}") is None, "it is not ended")


def test_the_verification_goes_on(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "verify.comparing"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "verify.comparing", run)
        app.execute_raw("LOCK TABLES t WRITE")
        let_go(pauses, "verify.comparing")
        kill(database.admin, "SELECT%`t`%")
        app.execute_raw("UNLOCK TABLES")
    assert run.result().event == "complete"


@pytest.mark.parametrize("role", [lease.DRIVER, lease.REPLICATE])
def test_a_heartbeat_goes_on(app: Session, database: Database, role: str) -> None:
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
    run_waits(run, database)
    with connect(database.url) as other, other.transaction():
        other.rows(f"SELECT 1 FROM {SIDECAR}.heartbeat WHERE workflow=%s AND role=%s FOR UPDATE", (run.workflow, role))
        kill(other, "INSERT INTO%heartbeat%")
    operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete"


def test_waiting_for_the_server_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kills statements may kill one of the looks behind an outage, too."""
    fence, killed = lease.fence, []

    def fence_killed_once(session: Session, our_lease: lease.Lease) -> None:
        if threading.current_thread() is threading.main_thread() and not killed:
            killed.append(session.id)
            raise SqlError("Query execution was interrupted (1317)", code=QUERY_KILLED)
        fence(session, our_lease)

    layout.install(database.admin)
    workflows.create(database.admin, workflow_row("w"))
    driver = Driver(database.url, "w", threading.Event(), lambda text: None)
    driver.start()
    monkeypatch.setattr(lease, "fence", fence_killed_once)
    driver.ride_out(ConnectionLost("lost"))
    driver.close()
    assert killed


def run_waits(run: Run, database: Database) -> None:
    """For its release."""
    wait_until(lambda: phase_of(run, database) is Phase.WAITING, "it does not come there")


def phase_of(run: Run, database: Database) -> Phase | None:
    row = workflows.find(database.admin, run.workflow)
    return row.phase if row else None
