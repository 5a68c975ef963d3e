"""kill -9 of the database server under a stage of the flow, which waits until it is back and ends well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support import private_server, staged
from tests.support.flow import contents, paused_at, wait_reached, wait_until
from tests.support.staged import WORKFLOW, Called, CatchUp
from vreplication.engine import maintenance
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import verdicts
from vreplication.workflows import stages
from vreplication.workflows.online_ddl import tasks
from vreplication.workflows.online_ddl.tasks import Stage

pytestmark = [pytest.mark.slow, pytest.mark.either]
STOP_SECONDS = 5.0
WINDOW = "Sat 02:00-04:00 UTC"
MONDAY, SATURDAY = datetime(2026, 11, 23, 12, 0, tzinfo=UTC), datetime(2026, 11, 28, 2, 0, tzinfo=UTC)


@dataclass(slots=True)
class Flow:
    """A flow whose server can be killed. `said`: to whoever watches."""

    database: Database
    said: list[str] = field(default_factory=list)
    stage: Stage = field(init=False)

    def kill(self) -> None:
        self.database.close()
        private_server.kill(self.database.server)

    def restart(self) -> None:
        """When the stage has missed it."""
        wait_until(lambda: any("as soon as the server answers" in text for text in self.said), "nobody misses it")
        self.database.server.restart()


@pytest.fixture
def flow(database: Database, quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    found = Flow(database)
    found.stage = staged.make(database, monkeypatch, found.said.append)
    yield found
    found.stage.stop.set()


def test_while_it_copies(flow: Flow, pauses: Path) -> None:
    stage = flow.stage
    tasks.plan(stage)
    tasks.prepare_tables(stage)
    beside = CatchUp(stage)
    with paused_at(pauses, "workflow.copied"):
        copying = Called(tasks.copy, stage)
        wait_reached(pauses, "workflow.copied")
        flow.kill()
    flow.restart()
    assert copying.end() is None
    tasks.verify(stage)
    tasks.enter_gate(stage)
    stages.release(stage, "tester")
    assert beside.end() is None
    tasks.cut_over(stage)
    assert tasks.clean_up(stage).rows_copied == 5


def test_while_it_waits_at_the_gate(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `cut_over`, for the window; what was verified before the outage is verified again."""
    moment = [MONDAY]
    monkeypatch.setattr(maintenance, "now", lambda: moment[0])
    stage = replace(flow.stage, spec=flow.stage.spec.model_copy(update={"cutover_window": WINDOW}))
    tasks.plan(stage)
    tasks.prepare_tables(stage)
    beside = CatchUp(stage)
    tasks.copy(stage)
    tasks.verify(stage)
    tasks.enter_gate(stage)
    stages.release(stage, maintenance.named(WINDOW))
    assert beside.end() is None
    switching = Called(tasks.cut_over, stage)
    with connect(flow.database.url) as session:
        wait_until(lambda: WINDOW in str(waiting_for(session)), "it does not wait")
    flow.kill()
    flow.restart()
    with connect(flow.database.url) as session, connect(flow.database.app_url) as app:
        wait_until(lambda: verdicts.is_of_this_run(session, WORKFLOW), "it does not go on")
        assert switching.is_going
        app.execute_raw("INSERT INTO t (v) VALUES ('late')")
        moment[0] = SATURDAY
        assert switching.end() is None
        assert contents(app, "t")[-1] == (6, b"late".hex().upper(), 7)
    assert tasks.clean_up(stage).event == "complete"


def test_catch_up_is_stopped_while_the_server_is_away(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the server for minutes, but not against the scheduler's signal; the next try goes on."""
    tasks.plan(flow.stage)
    tasks.prepare_tables(flow.stage)
    begun = staged.wait_begun(monkeypatch, flow.kill)
    catching_up = Called(tasks.catch_up, flow.stage)
    assert begun.wait(30)
    flow.stage.stop.set()
    ended = catching_up.end(STOP_SECONDS)
    assert ended is not None
    assert ended.may_retry
    flow.database.server.restart()
    again = replace(flow.stage, stop=threading.Event())
    beside = CatchUp(again)
    tasks.copy(again)
    again.stop.set()
    assert beside.end() is not None


def waiting_for(session: Session) -> object:
    return session.value(f"SELECT waiting_for FROM {SIDECAR}.progress WHERE workflow='{WORKFLOW}'")
