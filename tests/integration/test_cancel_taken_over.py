"""A driver that stands still in the middle of a cancel, and wakes up when others have ended it and begun anew."""

from __future__ import annotations

import threading

import pytest
from rowcopy_setup import Background, wait_until

from sandbox.databases import Database
from tests.support.rows import workflow_row
from vreplication.engine.driver import Driver
from vreplication.errors import Cancelled
from vreplication.mysql.session import connect
from vreplication.schema.introspect import exists
from vreplication.settings import SIDECAR
from vreplication.state import layout, lease, workflows
from vreplication.state.workflows import CREATING
from vreplication.workflows.online_ddl import ending

pytestmark = pytest.mark.either

WORKFLOW, SHADOW = "w", "t__vr_new"
WAITS = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'LOCK TABLES%t__vr_new%'"


def silenced(database: Database) -> Driver:
    """It holds the lease, and has not beaten for a minute."""
    session = database.admin
    layout.install(session)
    session.execute_raw(f"CREATE TABLE {database.name}.{SHADOW} (id INT PRIMARY KEY)")
    about = {"source_schema": database.name, "source_table": "t", "shadow_table": SHADOW}
    workflows.create(session, workflow_row(WORKFLOW, **about))
    workflows.set_fields(session, WORKFLOW, shadow_identity=CREATING, cancel_requested=1)
    driver = Driver(database.url, WORKFLOW, threading.Event(), lambda text: None)
    driver.start()
    driver._closing.set()
    assert driver._thread
    driver._thread.join()
    return driver


def test_it_drops_nothing_that_was_made_since(database: Database) -> None:
    """The name alone told that the table was its own: it had been cut off while it made it."""
    driver, session = silenced(database), database.admin
    with connect(database.url) as later:
        later.execute_raw(f"LOCK TABLES {SHADOW} WRITE")
        ending_it = Background(lambda: ending.ended(database.url, WORKFLOW, driver, Cancelled("Cancelled.")))
        wait_until(lambda: session.value(WAITS) == 1)
        session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 1 MINUTE")
        lease.acquire(session, WORKFLOW, lease.DRIVER)
    assert ending_it.result().event == "failed"
    assert exists(session, database.name, SHADOW)
    driver.close()
