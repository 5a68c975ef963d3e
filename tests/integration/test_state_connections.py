"""Whose connections are ended when a workflow is taken over."""

from __future__ import annotations

from contextlib import closing

import pymysql

from sandbox.databases import Database
from vreplication.mysql.processes import still_there
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import layout, lease, source_marks

WORKFLOW = "wf-1"


def test_an_application_that_has_a_dead_holders_number_is_left_alone(database: Database) -> None:
    """The server was started again within two seconds: the holder's numbers are those of others."""
    application = pymysql.connect(**database.url.connect_arguments())
    with closing(application), connect(database.url) as holder, connect(database.url) as taker:
        held = begun(holder, application.thread_id())
        lease.acquire(taker, WORKFLOW, lease.DRIVER)
        assert not lease.is_held(holder, held)
        lease.end_lost(taker, (application.thread_id(),), lease.server_run(taker))
        source_marks.install(taker)
        source_marks.claim(taker, WORKFLOW, lease.DRIVER, 1, (application.thread_id(),))
        source_marks.claim(taker, WORKFLOW, lease.DRIVER, 2, ())
        application.ping(reconnect=False)


def test_connections_that_a_program_of_before_has_noted_are_ended(database: Database) -> None:
    """It gave them no signs: the numbers are all that is known."""
    former = pymysql.connect(**database.url.connect_arguments())
    with closing(former), connect(database.url) as holder, connect(database.url) as taker:
        begun(holder, former.thread_id())
        noted = f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 1 MINUTE, connections='[{former.thread_id()}]'"
        holder.execute(noted)
        lease.acquire(taker, WORKFLOW, lease.DRIVER)
        assert not still_there(taker, (former.thread_id(),))


def begun(holder: Session, connection: int) -> lease.Lease:
    """A lease whose last beat tells of that connection."""
    layout.install(holder)
    held = lease.acquire(holder, WORKFLOW, lease.DRIVER)
    lease.beat(holder, held, (connection,))
    return held
