"""kill -9 of the driver and of catch-up, wherever they stand: the same command goes on, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_setup import WORKFLOW, Live

from tests.support import tailing
from tests.support.flow import let_go, paused_at, wait_until
from tests.support.run_ddl import Command, children, replicates, wait_gone
from vreplication.binlog.events import Position
from vreplication.engine import spool
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import checkpoint, gate, lease, tuning, workflows
from vreplication.workflows import operate

pytestmark = pytest.mark.either

CHAINS = (
    (
        "workflow.planned",
        "prepare.tables_made",
        "copy.after_open",
        "workflow.copied",
        "cutover.before_lock",
        "cutover.sentry_dropped",
    ),
    (
        "prepare.done",
        "copy.before_land",
        "verify.began",
        "cutover.locked",
        "cutover.after_unlock",
    ),
    (
        "copy.after_land",
        "workflow.catching_up",
        "workflow.verified",
        "cutover.after_barrier",
        "workflow.switched",
    ),
    (
        "workflow.gate_open",
        "cutover.rename_pending",
        "cutover.after_rename",
        "workflow.cleaned",
        "workflow.complete",
    ),
)
"""Every phase; each point of preparation, switch and workflow once, of a chunk those around its commits; in order."""
CATCH_UPS_POINTS = ("apply.before_flush", "apply.before_match", "replicate.holding")
WHILE_IT_CATCHES_UP = ("workflow.copied", "workflow.catching_up", "verify.began", "workflow.gate_open")
STOP_SECONDS = 30.0
"""The command needs one or two to stop; the machine may be busy with other tests."""
OF_ALL_CONNECTIONS = ("prepare.tables_made", "copy.before_land", "workflow.verified", "cutover.locked")


@pytest.mark.slow
@pytest.mark.parametrize("points", CHAINS, ids=" ".join)
@pytest.mark.in_turn
def test_driver_killed_again_and_again(live: Live, points: tuple[str, ...]) -> None:
    """Every step forward ends in a crash; each start goes on where the last one stood."""
    for point in points:
        kill_driver(live, point)
    live.complete(live.start())
    live.prove()
    if points[-1] == "workflow.complete":
        # That end has been told now.
        assert live.start().finish().code == 2


def kill_driver(live: Live, point: str) -> None:
    with paused_at(live.pauses, point):
        command = live.start()
        assert live.reached(point, command) == command.pid
        orphans = command.kill()
    wait_gone(orphans)
    live.workload.wait_for(5)


@pytest.mark.slow
@pytest.mark.in_turn("mysql")
def test_what_was_asked_before_a_preparation_was_cut_short_still_holds(live: Live) -> None:
    """It is begun again from nothing; the release, the pause and the tuning are the operator's, and stay."""
    url = live.database.url
    with paused_at(live.pauses, "prepare.tables_made"):
        first = live.start("--cutover", "manual")
        live.reached("prepare.tables_made", first)
        operate.release(url, WORKFLOW, "dba")
        operate.pause(url, WORKFLOW, "dba")
        with connect(url) as session:
            tuning.ask(session, WORKFLOW, Tuning(chunk_millis=250))
        first.kill()
    with paused_at(live.pauses, "prepare.done"):
        again = live.start("--cutover", "manual")
        live.reached("prepare.done", again)
        with connect(url) as session:
            assert workflows.load(session, WORKFLOW).is_paused
            assert tuning.read(session, WORKFLOW) == Tuning(chunk_millis=250)
            assert gate.released_by(session, WORKFLOW) == "dba"
            workflows.set_paused(session, WORKFLOW, False)
    live.complete(again)
    live.prove()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["copy.before_land", "cutover.rename_pending"])
@pytest.mark.in_turn
def test_cancel_when_the_driver_was_killed(live: Live, point: str) -> None:
    """Nobody goes on with it: what it made goes, and the table is what the application wrote."""
    with paused_at(live.pauses, point):
        first = live.start()
        live.reached(point, first)
        orphans = first.kill()
    ended = operate.cancel(live.database.url, WORKFLOW, "dba")
    assert (ended.event, ended.exit_code) == ("cancelled", 3), ended
    wait_gone(orphans)
    live.prove_untouched()


@pytest.mark.slow
def test_catch_up_killed_again_and_again(live: Live) -> None:
    """Its driver starts another one."""
    command = live.start()
    for point in held_in_turn(live, *CATCH_UPS_POINTS):
        child = live.reached(point, command)
        assert child != command.pid
        os.kill(child, signal.SIGKILL)
    live.complete(command)
    live.prove()


@pytest.mark.slow
@pytest.mark.in_turn("mariadb")
def test_catch_up_killed_while_its_driver_is_elsewhere(live: Live) -> None:
    command = live.start()
    for point in held_in_turn(live, *WHILE_IT_CATCHES_UP):
        live.reached(point, command)
        before = replicates(command.pid)
        assert len(before) == 1, point
        os.kill(before[0], signal.SIGKILL)
        wait_gone(before)
    live.complete(command)
    live.prove()


def held_in_turn(live: Live, *points: str) -> Iterator[str]:
    """Whoever comes to one of them is held there while the caller's loop is at it."""
    with paused_at(live.pauses, *points):
        for point in points:
            yield point
            let_go(live.pauses, point)


@pytest.mark.slow
def test_catch_up_killed_between_rows_and_checkpoint(live: Live) -> None:
    """The rows of a batch that two connections shared are committed, its checkpoint is not."""
    with paused_at(live.pauses, "workflow.copied"):
        command = live.start()
        live.reached("workflow.copied", command)
        with paused_at(live.pauses, "apply.before_checkpoint"):
            live.write_much()
            child = live.reached("apply.before_checkpoint", command)
            assert child != command.pid
            os.kill(child, signal.SIGKILL)
    live.complete(command)
    live.prove()


@pytest.mark.slow
def test_killed_with_branches_on_disk(live: Live, spooled: Path) -> None:
    """Their rows, put aside before, are not read again: not by the next catch-up, and not by the next driver's, which
    has to do without the log in which they were prepared.
    """
    manual = ("--cutover", "manual")
    with connect(live.database.app_url) as kept, connect(live.database.app_url) as dropped:
        command = live.start(*manual)
        held(live, 0)
        live.prepare(kept, "kept", 1, 2_000)
        live.prepare(dropped, "dropped", 2_001, 4_000)
        held(live, 2)
        assert list(spooled.rglob("*.sqlite"))
        first = replicates(command.pid)
        os.kill(first[0], signal.SIGKILL)
        wait_gone(first)
        held(live, 2)
        assert "read again" not in live.log()
        file = next_log(live)
        wait_gone(command.kill())
        purge_up_to(live, file)
        with paused_at(live.pauses, "apply.before_flush"):
            command = live.start(*manual)
            # It has taken the rows over, and no checkpoint says yet where they are now.
            os.kill(live.reached("apply.before_flush", command), signal.SIGKILL)
        held(live, 2)
        # Each catch-up begins the log anew.
        assert "read again" not in live.log()
        kept.execute_raw("XA COMMIT 'kept'")
        dropped.execute_raw("XA ROLLBACK 'dropped'")
        held(live, 0)
    operate.release(live.database.url, WORKFLOW, "dba")
    live.complete(command)
    assert not list(spooled.rglob("*.sqlite"))
    live.prove(has_log=False)


def next_log(live: Live) -> str:
    """The server begins another file of its log; returns its name as soon as the checkpoint stands there."""
    live.database.admin.execute_raw("FLUSH BINARY LOGS")
    file = tailing.here(live.database).file
    with connect(live.database.url) as session:
        wait_until(lambda: saved_in(session) == file, f"no checkpoint in {file}")
    return file


def purge_up_to(live: Live, file: str) -> None:
    """What the server still has open is passed over in silence."""

    def is_first() -> bool:
        live.database.admin.execute_raw(f"PURGE BINARY LOGS TO '{file}'")
        return str(live.database.admin.rows("SHOW BINARY LOGS")[0][0]) == file

    wait_until(is_first, "the logs before it stay")


def saved_in(session: Session) -> str:
    saved = checkpoint.load(session, WORKFLOW)
    return Position.parse(saved.position).file if saved else ""


@pytest.fixture
def spooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No memory for open transactions; the folder of what is put aside."""
    monkeypatch.setenv(spool.MEMORY, "0.001")
    monkeypatch.setenv(spool.FOLDER, str(tmp_path / "spool"))
    return tmp_path / "spool"


def held(live: Live, branches: int) -> None:
    """Until the command waits for its release, or for branches, and the catch-up that lives has said so many itself."""
    sql = (
        f"SELECT p.held_branches FROM {SIDECAR}.progress p JOIN {SIDECAR}.lease l USING (workflow) "
        "WHERE workflow=%s AND l.role=%s AND p.replicate_at > l.taken_at"
    )

    def is_so() -> bool:
        assert live.commands[-1].is_going, live.log()
        row = workflows.find(session, WORKFLOW)
        if row is None or row.phase is not Phase.WAITING or not lease.is_alive(session, WORKFLOW, lease.REPLICATE):
            return False
        return bool(session.value(sql, (WORKFLOW, lease.REPLICATE)) == branches)

    with connect(live.database.url) as session:
        wait_until(is_so, f"never {branches} branches at the gate")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.in_turn("mysql")
@pytest.mark.seldom
def test_ctrl_c_and_kill_while_spark_copies(live: Live) -> None:
    """The JVM and the Python workers end with it; one that is in the middle of a chunk lands nothing."""
    words = ("--copy-path", "rows")
    for end in (interrupt, Command.kill):
        with paused_at(live.pauses, "copy.after_select"):
            command = live.start(*words, is_spark=True)
            assert live.reached("copy.after_select", command) != command.pid
            left = children(command.pid)
            end(command)
        wait_gone(left)
    live.complete(live.start(*words, is_spark=True))
    live.prove()


def interrupt(command: Command) -> None:
    """As a terminal does it: everybody in its group hears of it, the JVM and its Python workers, too."""
    began = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)
    ended = command.finish()
    print(f"ended {time.monotonic() - began:.1f} s after Ctrl-C")
    assert (ended.code, ended.last["event"]) == (130, "interrupted"), ended.last
    assert "Traceback" not in ended.err
    assert time.monotonic() - began < STOP_SECONDS


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.in_turn("mariadb")
def test_spark_workers_killed(live: Live) -> None:
    """One with rows in its hands, one that compares: Spark starts others, and the command does not notice."""
    words = ("--copy-path", "rows")
    with paused_at(live.pauses, "verify.comparing"):
        with paused_at(live.pauses, "copy.after_select"):
            command = live.start(*words, is_spark=True)
            kill_worker(live, "copy.after_select", command)
        kill_worker(live, "verify.comparing", command)
    live.complete(command)
    live.prove()


def kill_worker(live: Live, point: str, command: Command) -> None:
    worker = live.reached(point, command)
    assert worker != command.pid
    os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_every_connection_lost_again_and_again(live: Live) -> None:
    """The command may end with a failure; then the same command goes on."""
    command = live.start()
    for point in held_in_turn(live, *OF_ALL_CONNECTIONS):
        command = goes_on(live, command, lambda point=point: (live.pauses / f"{point}.reached").exists())
        live.reached(point, command)
        kill_connections(live)
    live.complete(goes_on(live, command, lambda: False))
    live.prove()


def kill_connections(live: Live) -> None:
    admin = live.database.admin
    for process in processes(admin).values():
        if process.user == live.database.user:
            admin.kill(process.id)


def goes_on(live: Live, command: Command, is_there: Callable[[], bool]) -> Command:
    """The same process, or if that ends with a failure before it is there, one of the same command."""
    wait_until(lambda: is_there() or not command.is_going, "it neither goes on nor ends")
    if command.is_going or command.process.returncode == 0:
        return command
    ended = command.finish()
    assert ended.code == 1, (ended, live.log())
    return live.start()
