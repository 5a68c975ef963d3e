"""The sidecar's rows as `status` and the watching thread see them, read by the least-privilege user."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandbox.databases import Database
from vreplication import masking
from vreplication.cli import main
from vreplication.cli.watcher import Watcher, watch
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress import snapshot as snapshots
from vreplication.progress.estimate import ApplyEstimate, CopyEstimate
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, progress, verdicts, workflows
from vreplication.state.workflows import WorkflowRow

pytestmark = pytest.mark.either

ID = "orders-1"


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        yield opened


def _create(session: Session, workflow: str = ID, phase: Phase = Phase.COPYING) -> None:
    layout.install(session)
    row = WorkflowRow(
        id=workflow, kind="online_ddl", protocol=1, source_schema="shop", source_table="orders", spec={}, phase=phase,
        is_paused=False, is_cancel_requested=False, reason=None, shadow_table="orders__vr_new",
        retired_table="orders__vr_old_abcdef", copy_path="server", source_identity=None, shadow_identity=None,
        source_definition=None, server_identity=None, start_position=None, is_cut=False, rows_total=None,
    )  # fmt: skip
    workflows.create(session, row)


def _write(session: Session, workflow: str = ID) -> None:
    """What driver and replicating process write, by their own estimates."""
    copy, apply = CopyEstimate(), ApplyEstimate()
    for second in range(6):
        copied = copy.observe(second, rows_copied=100 * second, rows_total=2_000)
        applied = apply.observe(second, lag_seconds=30.0 - second, backlog=40)
    progress.write_driver(session, workflow, **copied.columns(), rows_total_exact=1)
    progress.write_replicate(
        session, workflow, lag_seconds=25.0, backlog=40, events_applied=77, **applied.columns(), throttled="lag"
    )


def test_no_sidecar_is_nothing_and_an_unknown_id_is_refused(session: Session) -> None:
    assert snapshots.read_all(session) == []
    assert snapshots.find(session, ID) is None
    with pytest.raises(Refused, match="no workflow 'orders-1'"):
        snapshots.read(session, ID)


def test_a_workflow_without_progress_is_known_by_its_phase(session: Session) -> None:
    _create(session, phase=Phase.PREPARING)
    found = snapshots.read(session, ID)
    assert (found.phase, found.percent, found.lag_seconds, found.rows_copied) == (Phase.PREPARING, None, None, 0)
    assert found.shadow_table == "orders__vr_new"
    assert found.updated_seconds_ago is None


def test_json_line_of_a_copying_workflow(session: Session) -> None:
    _create(session)
    _write(session)
    workflows.set_paused(session, ID, True)
    assert snapshots.read(session, ID).as_json() == {
        "event": "progress",
        "workflow": ID,
        "phase": "copying",
        "paused": True,
        "percent": 25.0,
        "rows_copied": 500,
        "rows_total": 2000,
        "rows_total_exact": True,
        "copy_eta_seconds": pytest.approx(15.0),
        "apply_eta_seconds": pytest.approx(25.0),
        "eta_seconds": None,
        "eta_low_seconds": None,
        "eta_high_seconds": None,
        "eta_of": None,
        "eta_reason": "paused",
        "lag_seconds": 25.0,
        "backlog": 40,
        "converging": True,
        "throttled": "lag",
        "throttle_reasons": [
            {
                "code": "pause",
                "sentence": "paused by the operator",
                "what": None,
                "value": None,
                "limit": None,
                "unit": None,
            }
        ],
        "shadow_table": "orders__vr_new",
    }


def test_the_planned_total_stands_in_until_the_driver_writes_one(session: Session) -> None:
    _create(session)
    workflows.set_fields(session, ID, rows_total=1234)
    assert snapshots.read(session, ID).rows_total == 1234


def test_figures_of_a_silent_writer_are_unknown(database: Database, session: Session) -> None:
    _create(session)
    _write(session)
    database.admin.execute(f"UPDATE {SIDECAR}.progress SET replicate_at = NOW(6) - INTERVAL 8 SECOND")
    found = snapshots.read(session, ID)
    assert (found.lag_seconds, found.backlog, found.converging, found.throttled) == (None, None, None, None)
    assert found.rows_per_second == pytest.approx(100)
    assert found.updated_seconds_ago is not None
    assert found.updated_seconds_ago < 5
    database.admin.execute(f"UPDATE {SIDECAR}.progress SET driver_at = NOW(6) - INTERVAL 60 SECOND")
    found = snapshots.read(session, ID)
    assert (found.rows_per_second, found.copy_eta_seconds, found.rows_copied) == (None, None, 500)
    assert found.is_silent


def test_the_rate_of_the_copy_ends_with_the_copy(session: Session) -> None:
    """The row keeps it, and the driver writes on into that row while it verifies and switches."""
    _create(session, phase=Phase.VERIFYING)
    _write(session)
    found = snapshots.read(session, ID)
    assert (found.rows_per_second, found.copy_eta_seconds, found.rows_copied) == (None, None, 500)


@pytest.mark.parametrize(("phase", "percent"), [(Phase.COPYING, 99.9), (Phase.CATCHING_UP, 100.0)])
def test_percent_is_below_100_while_copying(session: Session, phase: Phase, percent: float) -> None:
    _create(session, phase=phase)
    progress.write_driver(session, ID, percent=100.0)
    assert snapshots.read(session, ID).percent == percent


def test_all_workflows_newest_first_with_their_verdicts(session: Session) -> None:
    for name in ("first", "second"):
        _create(session, name)
    verdict = verdicts.Verdict(
        verdict="clean", rows_compared=5, mismatches=0, repaired=0, hot_keys=(), details="nothing to say"
    )
    verdicts.save(session, "first", verdict)
    assert [(s.workflow, s.verdict) for s in snapshots.read_all(session)] == [("second", None), ("first", "clean")]


def test_status_json_shows_one_and_all(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _create(session)
    _write(session)
    journal.write(session, ID, "triggered", actor="ann")
    for args in (["status", ID, "--json"], ["status", "--json"]):
        _environment(monkeypatch, database)
        assert main.run(args) == 0
        lines = capsys.readouterr().out.splitlines()
        line = json.loads(lines[0])
        assert len(lines) == 1
        assert (line["workflow"], line["source_table"], line["percent"]) == (ID, "shop.orders", 25.0)
        told = [(each["event"], each["actor"]) for each in line.get("journal", ())]
        assert told == ([("triggered", "ann")] if ID in args else [])
    _environment(monkeypatch, database)
    assert main.run(["status", ID]) == 0
    assert re.search(r"20\d\d-.* UTC +triggered +by ann", capsys.readouterr().out)
    _environment(monkeypatch, database)
    assert main.run(["status", "other", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["event"] == "refused"
    assert "There is no workflow 'other'" in captured.err
    assert database.password not in captured.out + captured.err


def test_status_of_a_server_without_workflows(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _environment(monkeypatch, database)
    assert main.run(["status"]) == 0
    assert "No workflows on this server yet" in capsys.readouterr().out


def _environment(monkeypatch: pytest.MonkeyPatch, database: Database) -> None:
    """A command takes both out of the environment."""
    masking.forget()
    monkeypatch.setenv("VREPLICATION_SOURCE", _url_text(database))
    monkeypatch.setenv("VREPLICATION_PASSWORD", database.password)


def _url_text(database: Database) -> str:
    url = database.url
    return f"mysql+pymysql://{url.user}@{url.host}:{url.port}/{url.database}"


def test_the_watcher_sees_a_workflow_that_begins_later_and_outlives_a_lost_connection(
    database: Database, session: Session
) -> None:
    opened: list[Session] = []

    def open_session(url: object) -> Session:
        opened.append(connect(database.url, read_timeout=5.0))
        return opened[-1]

    first = Snapshot(workflow=ID, phase=Phase.PLANNING, source_table="orders")
    with Watcher(database.url, ID, first=first, find=snapshots.find, open_session=open_session) as watcher:
        watcher.settle(30)
        assert (watcher.latest.phase, watcher.latest.source_table) == (Phase.PLANNING, "orders")
        _create(session)
        watcher.settle(30)
        assert watcher.latest.phase is Phase.COPYING
        database.admin.kill(opened[-1].id)
        workflows.move(session, ID, Phase.CATCHING_UP)
        watcher.settle(30)
        assert watcher.latest.phase is Phase.CATCHING_UP
    assert len(opened) == 2


def test_settling_is_not_answered_by_a_read_that_began_before_it(database: Database) -> None:
    phase, reading = [Phase.COPYING], threading.Event()
    gates = iter([threading.Event(), threading.Event()])

    def find(session: Session, workflow: str) -> Snapshot:
        seen = phase[0]
        reading.set()
        if (gate := next(gates, None)) is not None:
            opens.append(threading.Timer(0.2, gate.set))
            opens[-1].start()
            gate.wait(30)
        return Snapshot(workflow=workflow, phase=seen)

    opens: list[threading.Timer] = []
    with Watcher(database.url, ID, first=Snapshot(workflow=ID, phase=Phase.PLANNING), find=find) as watcher:
        reading.wait(30)
        phase[0] = Phase.COMPLETE
        watcher.settle(30)
        assert watcher.latest.phase is Phase.COMPLETE


def test_the_watcher_waits_for_nobody_when_the_server_is_not_there(database: Database) -> None:
    with watch(replace(database.url, port=1), ID) as watcher:
        watcher.settle(0.01)
        assert watcher.latest.phase is Phase.PLANNING
    assert not [t for t in threading.enumerate() if t.name == "progress"]
