"""The sidecar on real servers: lease and takeover, ledger, markers, phases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import wait_until
from tests.support.rows import make_move
from vreplication.cutover.reasons import LEFT_BEHIND
from vreplication.engine import maintenance
from vreplication.errors import LeaseHeld, Refused, Superseded, Terminal, Transient
from vreplication.mysql.server import started_at
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.phases import Phase
from vreplication.progress import metrics
from vreplication.settings import SIDECAR
from vreplication.state import (
    checkpoint,
    forecasts,
    gate,
    held,
    journal,
    layout,
    lease,
    ledger,
    markers,
    progress,
    rows,
    sidecar,
    verdicts,
    workflows,
)
from vreplication.state.checkpoint import Checkpoint
from vreplication.state.ledger import Chunk, KeyRange, Landing, Split
from vreplication.state.verdicts import CLEAN, Verdict
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import acts
from vreplication.workflows import operate
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.online_ddl import cleaning

pytestmark = pytest.mark.either

WORKFLOW = "wf-1"
RANGE = KeyRange(lower=("1",), upper=("9",), has_lower=True)


@pytest.fixture
def session(database: Database) -> Session:
    opened = connect(database.url)
    layout.install(opened)
    workflows.create(opened, row(database.name))
    return opened


def row(schema: str) -> WorkflowRow:
    return WorkflowRow(
        id=WORKFLOW, kind="online_ddl", protocol=1, source_schema=schema, source_table="t",
        spec={"alter": "ENGINE=InnoDB"}, phase=Phase.PREPARING, is_paused=False, is_cancel_requested=False, reason=None,
        shadow_table="t__vr_new", retired_table="t__vr_old", copy_path="server", source_identity=None,
        shadow_identity=None, source_definition=None, server_identity=None, start_position=None, is_cut=False,
        rows_total=None,
    )  # fmt: skip


def test_a_sidecar_that_comes_while_one_looks(database: Database) -> None:
    """None is none; one that was made between the look and the question whether there is any is looked at."""
    database.drop_sidecar()
    with connect(database.url) as opened:
        assert workflows.find(opened, WORKFLOW) is None
        answers: list[bool] = []

        def look() -> str:
            answers.append(layout.exists(opened))
            if not answers[-1]:
                layout.install(opened)
            return str(opened.value(f"SELECT id FROM {SIDECAR}.{'no_such_table' if not answers[-1] else 'workflow'}"))

        assert layout.look(opened, look) == "None"
        assert answers == [False, True]
        with pytest.raises(Terminal, match="no_such_column"):
            layout.look(opened, lambda: opened.value(f"SELECT no_such_column FROM {SIDECAR}.workflow"))


def test_install_is_repeatable_and_a_newer_sidecar_is_refused(session: Session) -> None:
    layout.install(session)
    session.execute(f"UPDATE {SIDECAR}.schema_version SET version=99")
    with pytest.raises(Terminal, match="version 99"):
        layout.install(session)


def test_a_workflow_is_read_back_and_moves_along_the_table(session: Session) -> None:
    found = workflows.load(session, WORKFLOW)
    assert found.spec == {"alter": "ENGINE=InnoDB"}
    workflows.move(session, WORKFLOW, Phase.COPYING)
    workflows.move(session, WORKFLOW, Phase.COMPLETE)
    with pytest.raises(Terminal, match="cannot go from complete"):
        workflows.move(session, WORKFLOW, Phase.COPYING)
    with pytest.raises(Refused, match="no workflow 'nope'"):
        workflows.load(session, "nope")


def test_a_forecast_that_comes_late_does_not_bring_a_forgotten_workflow_back(session: Session) -> None:
    """The driver's beat may be about to write it when a refused preparation removes every trace."""
    told = {
        "eta_seconds": 5.0,
        "eta_low_seconds": 4.0,
        "eta_high_seconds": 6.0,
        "eta_of": "complete",
        "eta_reason": None,
    }
    forecasts.write(session, WORKFLOW, **told)
    assert list(forecasts.read(session, WORKFLOW)) == [WORKFLOW]
    workflows.forget(session, WORKFLOW)
    forecasts.write(session, WORKFLOW, **told)
    assert forecasts.read(session, WORKFLOW) == {}


def test_the_second_holder_is_told_who_the_first_is(session: Session, database: Database) -> None:
    lease.acquire(session, WORKFLOW, lease.DRIVER)
    with connect(database.url) as other, pytest.raises(LeaseHeld, match=lease.me()):
        lease.acquire(other, WORKFLOW, lease.DRIVER)


def test_of_two_that_take_it_first_one_is_told(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = lease._clock

    def taken_meanwhile(mine: Session) -> int:
        monkeypatch.setattr(lease, "_clock", clock)
        with connect(database.url) as other:
            lease.acquire(other, WORKFLOW, lease.DRIVER)
        return clock(mine)

    monkeypatch.setattr(lease, "_clock", taken_meanwhile)
    with pytest.raises(LeaseHeld, match="at this moment"):
        lease.acquire(session, WORKFLOW, lease.DRIVER)


def test_a_holder_without_connections_is_taken_over_at_once(session: Session, database: Database) -> None:
    dead = connect(database.url)
    old = lease.acquire(dead, WORKFLOW, lease.DRIVER)
    dead.close()
    wait_until_gone(session, dead.id)
    new = lease.acquire(session, WORKFLOW, lease.DRIVER)
    assert new.token > old.token
    with pytest.raises(Superseded), session.transaction():
        lease.fence(session, old)


def wait_until_gone(session: Session, connection: int) -> None:
    for _ in range(1000):
        if session.row("SELECT 1 FROM information_schema.processlist WHERE id=%s", (connection,)) is None:
            return
    raise AssertionError("the connection is still there")


def test_a_stale_holder_is_killed_and_its_open_transaction_rolled_back(session: Session, database: Database) -> None:
    """A stopped driver holds the lease in share mode; the takeover does not wait for it to wake up."""
    stopped = connect(database.url)
    old = lease.acquire(stopped, WORKFLOW, lease.DRIVER)
    stopped.execute("BEGIN")
    lease.fence(stopped, old)
    session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 1 MINUTE")
    new = lease.acquire(session, WORKFLOW, lease.DRIVER)
    assert new.token > old.token
    assert session.row("SELECT 1 FROM information_schema.processlist WHERE id=%s", (stopped.id,)) is None


def test_connections_of_another_server_are_left_alone(session: Session, database: Database) -> None:
    """After a failover they are strangers' here; both servers may have been started in the same second."""
    with connect(database.url) as stranger:
        lease.acquire(stranger, WORKFLOW, lease.DRIVER)
        here = session.value(f"SELECT server_started FROM {SIDECAR}.heartbeat")
        assert lease.holder_of(session, WORKFLOW, lease.DRIVER).is_alive  # type: ignore[union-attr]
        session.execute(f"UPDATE {SIDECAR}.heartbeat SET server_started=%s", (int(here) ^ 1,))
        lease.acquire(session, WORKFLOW, lease.DRIVER)
        assert stranger.value("SELECT 1") == 1


def test_a_run_of_a_server_is_known_again(session: Session) -> None:
    one = lease.server_run(session)
    for seconds, is_same in ((0, True), (2, True), (-2, True), (3, False), (-3, False)):
        assert lease.is_same_run(one, one + (seconds << 20)) is is_same
    assert not lease.is_same_run(one, one ^ 1)
    assert one < 1 << 63


@pytest.mark.parametrize("seconds", [-1_000_000, 1_000_000])
def test_a_run_of_a_server_is_known_after_its_clock_was_set(database: Database, seconds: int) -> None:
    """Also to before the moment when it was started: then its uptime is told as a number of 64 bits."""
    with connect(database.url) as before, connect(database.url) as after:
        after.execute_raw(f"SET timestamp=UNIX_TIMESTAMP()+({seconds})")
        assert abs(started_at(after) - started_at(before)) <= 1
        assert started_at(after) <= before.value("SELECT UNIX_TIMESTAMP()")


def test_a_takeover_waits_for_a_transaction_in_flight(session: Session, database: Database) -> None:
    """A worker whose connection is not in the heartbeat: the bump waits for its share lock."""
    mine = lease.acquire(session, WORKFLOW, lease.REPLICATE)
    lease.release(session, mine)
    with connect(database.url) as worker, connect(database.url) as taker:
        worker.execute("BEGIN")
        lease.fence(worker, mine)
        done = threading.Event()
        thread = threading.Thread(target=lambda: (lease.acquire(taker, WORKFLOW, lease.REPLICATE), done.set()))
        thread.start()
        assert not done.wait(0.3)
        worker.execute("COMMIT")
        thread.join(10)
        assert done.is_set()
        with pytest.raises(Superseded):
            lease.fence(worker, mine)


def test_a_holder_that_comes_back_meanwhile_is_not_taken_over(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats with new connections, which nobody would end."""
    with connect(database.url) as first, connect(database.url) as second:
        held = lease.acquire(first, WORKFLOW, lease.DRIVER)
        session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL 1 HOUR")
        bump = lease._bump

        def late(*args: Any) -> int:
            lease.beat(second, held, (second.id,))
            return bump(*args)

        monkeypatch.setattr(lease, "_bump", late)
        with pytest.raises(LeaseHeld):
            lease.acquire(session, WORKFLOW, lease.DRIVER)
        assert lease.is_held(second, held)


def open_gate(session: Session) -> None:
    mine = lease.acquire(session, WORKFLOW, lease.REPLICATE)
    gate.write(session, mine, is_open=True, reason="", beat=1)


def a_split(session: Session) -> int:
    ledger.add_splits(session, WORKFLOW, [Split(number=0, range=RANGE, estimated_rows=9)])
    return ledger.claim_split(session, WORKFLOW, 0)


def a_chunk(attempt: int, ordinal: int = 0) -> Chunk:
    return Chunk(split=0, ordinal=ordinal, attempt=attempt, state=ledger.OPEN, range=RANGE)


def test_a_chunk_opens_only_while_the_gate_is_open(session: Session) -> None:
    attempt = a_split(session)
    assert not ledger.open_chunk(session, WORKFLOW, a_chunk(attempt))
    open_gate(session)
    workflows.set_paused(session, WORKFLOW, True)
    assert not ledger.open_chunk(session, WORKFLOW, a_chunk(attempt))
    workflows.set_paused(session, WORKFLOW, False)
    session.execute(f"UPDATE {SIDECAR}.gate SET written_at = written_at - INTERVAL 3 SECOND")
    assert not ledger.open_chunk(session, WORKFLOW, a_chunk(attempt))
    assert gate.read(session, WORKFLOW).reason == "catch-up is not running"
    session.execute(f"UPDATE {SIDECAR}.gate SET written_at = NOW(6)")
    assert ledger.open_chunk(session, WORKFLOW, a_chunk(attempt))


def test_a_superseded_attempt_can_neither_open_nor_land(session: Session) -> None:
    old = a_split(session)
    open_gate(session)
    assert ledger.open_chunk(session, WORKFLOW, a_chunk(old))
    [zombie] = ledger.chunks(session, WORKFLOW)
    new = ledger.claim_split(session, WORKFLOW, 0)
    [chunk] = ledger.chunks(session, WORKFLOW)
    assert (chunk.attempt, chunk.range) == (new, RANGE)
    with session.transaction(), pytest.raises(Superseded):
        ledger.fence_chunk(session, WORKFLOW, zombie)
    assert not ledger.open_chunk(session, WORKFLOW, a_chunk(old, 1))


def test_a_landed_chunk_is_not_bumped(session: Session) -> None:
    attempt = a_split(session)
    open_gate(session)
    ledger.open_chunk(session, WORKFLOW, a_chunk(attempt))
    [chunk] = ledger.chunks(session, WORKFLOW)
    with session.transaction():
        ledger.fence_chunk(session, WORKFLOW, chunk)
        ledger.land(session, WORKFLOW, chunk, Landing(rows_read=3, rows_copied=2, swallowed=1, millis=5))
    ledger.claim_split(session, WORKFLOW, 0)
    [landed] = ledger.chunks(session, WORKFLOW)
    assert (landed.attempt, landed.state) == (attempt, ledger.LANDED)
    assert not ledger.left(session, WORKFLOW).is_nothing
    ledger.match(session, WORKFLOW, 0, 0)
    ledger.finish_split(session, WORKFLOW, 0, attempt + 1)
    assert ledger.left(session, WORKFLOW).is_nothing
    assert ledger.totals(session, WORKFLOW).rows_copied == 3


def test_a_marker_that_is_being_committed_is_waited_for(session: Session, database: Database) -> None:
    """Its row is read in the log before the server shows it; taken for none catch-up would not hold at it."""
    with connect(database.url) as writer, connect(database.url) as reader, ThreadPoolExecutor(1) as beside:
        with writer.transaction():
            rows.add(writer, sidecar.marker, workflow=WORKFLOW, id="m", kind=markers.CUTOVER, created_at=sidecar.now())
            assert not markers.is_present(reader, WORKFLOW, "m")
            found = beside.submit(markers.is_standing, reader, WORKFLOW, "m")
            sql = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"
            wait_until(lambda: session.rows(sql), "nobody waits")
        assert found.result()
        markers.remove(writer, WORKFLOW, "m")
        assert not markers.is_standing(reader, WORKFLOW, "m")


def test_small_rows_round_trip(session: Session) -> None:
    checkpoint.save(session, WORKFLOW, Checkpoint(position="b.000001:4", batch=1, events_applied=2))
    checkpoint.save(session, WORKFLOW, Checkpoint(position="b.000001:9", batch=2, events_applied=3))
    assert checkpoint.load(session, WORKFLOW) == Checkpoint(position="b.000001:9", batch=2, events_applied=3)
    marker = markers.write(session, WORKFLOW)
    assert markers.find_applied(session, WORKFLOW, marker) is None
    markers.record_applied(session, WORKFLOW, marker, ("X'61',X'',1",), is_holding=False)
    assert markers.wait_applied(session, WORKFLOW, marker, timeout_seconds=1).branches == ("X'61',X'',1",)
    assert gate.released_by(session, WORKFLOW) is None
    gate.release(session, WORKFLOW, "ann")
    assert gate.released_by(session, WORKFLOW) == "ann"
    progress.write_driver(session, WORKFLOW, percent=1.5)
    progress.write_replicate(session, WORKFLOW, lag_seconds=0.5)
    found = progress.read(session, WORKFLOW)
    assert (found["percent"], found["lag_seconds"], found["backlog"]) == (1.5, 0.5, None)
    journal.write(session, WORKFLOW, "released", "x", actor="ann")
    assert [e["event"] for e in journal.read(session, WORKFLOW)] == ["released"]


def test_a_release_on_the_page_takes_the_place_of_a_windows(session: Session, database: Database) -> None:
    """Which would take it back when it closes."""
    gate.release(session, WORKFLOW, maintenance.named("Sat 02:00-04:00 UTC"))
    acts.release(database.url, WORKFLOW, "ann")
    assert gate.released_by(session, WORKFLOW) == "ann"
    assert acts.release(database.url, WORKFLOW, "bob") == "It was released before, by ann."
    assert gate.released_by(session, WORKFLOW) == "ann"


def test_an_approval_takes_the_place_of_a_release_that_came_before_tables_did(session: Session) -> None:
    """Which are told and held at the gate: it changed nothing, and the switch waited on for a release."""
    make_move(session, "m", "new")
    gate.release(session, "m", "ann")
    operate.approve(session.url, "m", "bob")
    assert gate.released_by(session, "m") == "ann"
    held.note(session, "m", held.GATE, [{"code": LEFT_BEHIND, "sentence": "late came", "value": 1}])
    operate.approve(session.url, "m", "bob")
    assert gate.released_by(session, "m") == "bob"


def test_what_is_no_feed_is_not_scaled(session: Session) -> None:
    """The cure was another id for the new one, where nothing new was begun."""
    with pytest.raises(Refused, match=r"no change feed, and has no partitions\. `vreplication status`"):
        feeding.scale(session.url, WORKFLOW, 4, "ann")


def test_the_heartbeat_of_a_moves_later_stream_is_among_the_pages_figures(session: Session) -> None:
    make_move(session, "m", "new", number=2)
    lease.acquire(session, "m.s2", lease.REPLICATE)
    found = metrics.of_server(session, "here", {"move_tables"})
    assert [s.labels["workflow"] for s in found if s.name == "workflow_heartbeat_age_seconds"] == ["m.s2"]


def test_a_workflow_is_forgotten_whole_or_not_at_all(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off in between, its id would be taken by a row that no command finds."""
    remove = rows.remove

    def cut_off(session: Session, table: Any, **where: Any) -> None:
        if table is sidecar.workflow:
            raise Transient("the process ends here")
        remove(session, table, **where)

    with monkeypatch.context() as patched:
        patched.setattr(rows, "remove", cut_off)
        with pytest.raises(Transient):
            workflows.forget(session, WORKFLOW)
    assert workflows.find(session, WORKFLOW) is not None
    workflows.forget(session, WORKFLOW)
    assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.workflow") == 0


def test_what_holds_a_workflow_may_be_said_in_many_words(session: Session) -> None:
    """A server's own, and its cure behind them: refused as too long, they would end catch-up, or the forecast."""
    progress.write_replicate(session, WORKFLOW, throttled="by --max-lag: " + "é" * 300)
    assert len(progress.read(session, WORKFLOW)["throttled"]) == 255
    forecasts.write(session, WORKFLOW, eta_of="complete", eta_reason="waits: " + "é" * 300)
    assert forecasts.read(session, WORKFLOW)[WORKFLOW]["eta_reason"].startswith("waits: éé")


def test_a_release_is_given_and_taken_back_in_the_name_of_who_was_first(session: Session) -> None:
    """Between a look and the release somebody else may have released."""
    assert gate.release_first(session, WORKFLOW, "ann")
    assert not gate.release_first(session, WORKFLOW, "maintenance window x")
    assert gate.released_by(session, WORKFLOW) == "ann"
    assert not gate.withdraw(session, WORKFLOW, "maintenance window x")
    assert gate.released_by(session, WORKFLOW) == "ann"
    assert gate.withdraw(session, WORKFLOW, "ann")
    assert gate.released_by(session, WORKFLOW) is None


def test_a_window_does_not_take_the_place_of_a_person_who_was_faster(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person releases right after it has been seen that nobody has."""
    looked = gate.released_by

    def look(opened: Session, workflow: str) -> str | None:
        found = looked(opened, workflow)
        if found is None:
            gate.release(opened, workflow, "ann")
        return found

    monkeypatch.setattr(gate, "released_by", look)
    operate.release_once(session.url, WORKFLOW, "maintenance window x")
    assert looked(session, WORKFLOW) == "ann"
    assert [entry["actor"] for entry in journal.read(session, WORKFLOW) if entry["event"] == "released"] == []


def test_an_end_is_told_by_who_holds_the_lease(session: Session) -> None:
    """A driver that was stopped in the cut-over wakes up when another one has done all that was left."""
    old = lease.acquire(session, WORKFLOW, lease.DRIVER)
    lease.release(session, old)
    new = lease.acquire(session, WORKFLOW, lease.DRIVER)
    workflows.set_fields(session, WORKFLOW, phase="complete", is_cut=1)

    def driver(right: lease.Lease) -> Any:
        return SimpleNamespace(session=session, workflow=WORKFLOW, lease=right, child=SimpleNamespace(end=lambda: None))

    with pytest.raises(Superseded):
        cleaning.clean_up(driver(old))
    cleaning.clean_up(driver(new))


def test_a_strangers_connection_of_the_same_number_is_left_alone(session: Session, database: Database) -> None:
    """Numbers begin again with each start of the server, and two starts within two seconds look the same."""
    with connect(database.app_url) as stranger, connect(database.url) as ours:
        lease.end_lost(session, (stranger.id, ours.id), lease.server_run(session))
        assert stranger.value("SELECT 1") == 1
        with pytest.raises(ConnectionLost):
            ours.value("SELECT 1")


def test_a_verification_from_before_the_servers_start_counts_for_nothing_whatever_its_clock_said(
    session: Session,
) -> None:
    """The machine crashed with a clock that was ahead: the verification ended "behind" the start."""
    verdict = Verdict(verdict=CLEAN, rows_compared=1, mismatches=0, repaired=0, hot_keys=(), details="")
    verdicts.save(session, WORKFLOW, verdict)
    ahead = f"UPDATE {SIDECAR}.verification SET finished_at = NOW(6) + INTERVAL 1 HOUR"
    session.execute(ahead)
    assert verdicts.is_of_this_run(session, WORKFLOW)
    session.execute(f"{ahead}, started_at = started_at - INTERVAL 1 MINUTE")
    assert not verdicts.is_of_this_run(session, WORKFLOW)
