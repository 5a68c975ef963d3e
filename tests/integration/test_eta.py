"""The time to the end on real servers: told in every phase, remembered for later workflows, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, let_go, paused_at, wait_reached, wait_until
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import SIDECAR
from vreplication.state import forecasts, gate, layout
from vreplication.state.forecasts import KEPT, Pace

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]

POINTS = {
    "prepare.done": Phase.PREPARING,
    "copy.after_land": Phase.COPYING,
    "workflow.catching_up": Phase.CATCHING_UP,
    "verify.began": Phase.VERIFYING,
    "workflow.gate_open": Phase.WAITING,
}


def make(database: Database) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        app.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(1, 1001)))


def told(session: Session, workflow: str) -> Snapshot:
    wait_until(lambda: snapshot.read(session, workflow).eta_seconds is not None, "there is no ETA")
    return snapshot.read(session, workflow)


def test_each_phase_has_an_eta_and_says_of_what(database: Database, pauses: Path) -> None:
    make(database)
    with connect(database.url) as session, paused_at(pauses, *POINTS):
        run = begin(database, "t", "ADD COLUMN z INT", chunk_rows=100, copy_parallelism=1)
        for point, phase in POINTS.items():
            wait_reached(pauses, point, run)
            seen = told(session, run.workflow)
            assert (seen.phase, seen.eta_of, seen.eta_reason) == (phase, Phase.COMPLETE, None)
            assert seen.eta_seconds is not None
            assert seen.eta_low_seconds is not None
            assert seen.eta_high_seconds is not None
            assert 0 <= seen.eta_low_seconds <= seen.eta_seconds <= seen.eta_high_seconds < 300
            let_go(pauses, point)
        assert run.result().event == "complete"
        assert snapshot.read(session, run.workflow).eta_seconds == 0.0
        parts = {pace.part for pace in forecasts.paces(session) if pace.source_name == f"{database.name}.t"}
        assert {"preparing", "starting", "catching_up"} <= parts


def test_a_manual_one_is_foretold_to_the_gate(database: Database) -> None:
    make(database)
    with connect(database.url) as session:
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: snapshot.find(session, run.workflow) is not None, "it does not begin")
        wait_until(lambda: snapshot.read(session, run.workflow).phase is Phase.WAITING, "it does not come to the gate")
        wait_until(lambda: snapshot.read(session, run.workflow).eta_of is not None, "there is no forecast")
        seen = snapshot.read(session, run.workflow)
        assert (seen.eta_seconds, seen.eta_of) == (0.0, Phase.WAITING)
        gate.release(session, run.workflow, "ann")
        # What was foretold of the gate is not taken for the end.
        assert snapshot.read(session, run.workflow).eta_of is not Phase.WAITING
        assert run.result().event == "complete"


def test_a_forecast_that_cannot_be_written_harms_nothing(database: Database, pauses: Path) -> None:
    make(database)
    tables = ("forecast", "pace")
    with connect(database.url) as session, paused_at(pauses, "prepare.done", "copy.after_land"):
        run = begin(database, "t", "ADD COLUMN z INT", chunk_rows=100, copy_parallelism=1)
        wait_reached(pauses, "prepare.done", run)
        try:
            for table in tables:
                session.execute_raw(f"DROP TABLE {SIDECAR}.{table}")
                session.execute_raw(f"CREATE TABLE {SIDECAR}.{table} (another_shape INT)")
            let_go(pauses, "prepare.done")
            wait_reached(pauses, "copy.after_land", run)
            seen = snapshot.read(session, run.workflow)
            assert (seen.phase, seen.eta_seconds) == (Phase.COPYING, None)
            assert forecasts.paces(session) == []
            let_go(pauses, "copy.after_land")
            assert run.result().event == "complete"
        finally:
            for table in tables:
                session.execute_raw(f"DROP TABLE {SIDECAR}.{table}")
            layout.complete(session)


def test_paces_are_bounded(database: Database) -> None:
    with connect(database.url) as session:
        layout.install(session)
        session.execute_raw(f"DELETE FROM {SIDECAR}.pace")
        pace = Pace(part="copying", source_name="s.t", units=1.0, seconds=2.0)
        for _ in range(KEPT + 3):
            forecasts.note_pace(session, "w", pace)
        assert forecasts.paces(session) == [pace] * KEPT
        assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.pace") == KEPT
