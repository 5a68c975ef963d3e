"""Catch-up that loses its connections in the middle of the cut-over and starts again from its checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from race_setup import Race

from tests.support.flow import Run, let_go, wait_reached, wait_until
from vreplication import pausepoints
from vreplication.apply import applier
from vreplication.mysql.session import Session, connect
from vreplication.state import lease, markers

FOREIGN = "'of another table','b',1"


@pytest.fixture
def foreign(race: Race) -> Iterator[Session]:
    """A branch that changed another table, and stays prepared all the while."""
    race.make()
    race.app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    with connect(race.database.app_url) as session:
        session.execute_raw(f"XA START {FOREIGN}")
        yield session
        session.execute_raw(f"XA ROLLBACK {FOREIGN}")


class Flushes:
    """Counts catch-up's batches and stops it before the second one."""

    def __init__(self) -> None:
        self.count = 0
        self.goes_on = threading.Event()

    def reach(self, point: str) -> None:
        if point == "apply.before_flush":
            self.count += 1
            if self.count == 2:
                self.goes_on.wait(30.0)
        pausepoints.reach(point)


def lose_connections(race: Race, run: Run) -> str:
    """Returns a marker for catch-up to find when it has started again."""
    with connect(race.database.url) as session:
        holder = lease.holder_of(session, run.workflow, lease.REPLICATE)
        assert holder is not None
        for connection in holder.connections:
            race.database.admin.kill(connection)
        return markers.write(session, run.workflow)


def is_applied(race: Race, run: Run, marker: str) -> bool:
    with connect(race.database.url) as session:
        return markers.find_applied(session, run.workflow, marker) is not None


def test_what_is_read_again_is_not_applied_again_behind_the_barrier(
    race: Race, foreign: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest prepared branch may lie far back in the log; the shadow must not go back to that time."""
    flushes = Flushes()
    with race.held("workflow.verified") as run:
        foreign.execute_raw("INSERT INTO other VALUES (1)")
        foreign.execute_raw(f"XA END {FOREIGN}")
        foreign.execute_raw(f"XA PREPARE {FOREIGN}")
        for value in ("older", "newer"):
            race.write(f"UPDATE t SET v='{value}' WHERE id=10")
            race.applied(run)
        (race.pauses / "cutover.after_barrier").touch()
    wait_reached(race.pauses, "cutover.after_barrier", run)
    monkeypatch.setattr(applier, "reach", flushes.reach)
    marker = lose_connections(race, run)
    try:
        # Either it writes again what it wrote long ago, or it goes on behind the barrier.
        wait_until(lambda: flushes.count == 2 or is_applied(race, run, marker), "it does not go on")
        let_go(race.pauses, "cutover.after_barrier")
        wait_until(lambda: not race.app.rows("SHOW TABLES LIKE 't\\_\\_vr\\_new'"), "the tables are not switched")
        assert race.app.value("SELECT v FROM t WHERE id=10") == "newer"
    finally:
        flushes.goes_on.set()
    race.complete(run)
