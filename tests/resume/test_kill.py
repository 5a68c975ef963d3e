"""kill -9 of the driver and of catch-up, wherever they stand: the same command goes on, and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import paused_at
from tests.support.run_ddl import Command, children, replicates, wait_gone
from vreplication.mysql.processes import processes
from vreplication.mysql.session import connect
from vreplication.settings import Tuning
from vreplication.state import gate, tuning, workflows
from vreplication.workflows import operate

BEFORE_THE_SWITCH = (
    "prepare.tables_made",
    "prepare.done",
    "copy.after_open",
    "copy.before_land",
    "copy.after_land",
    "workflow.copied",
    "verify.began",
    "workflow.verified",
    "workflow.gate_open",
    "cutover.before_lock",
    "cutover.locked",
    "cutover.after_barrier",
    "cutover.rename_pending",
)
SWITCHING = (
    "cutover.sentry_dropped",
    "cutover.after_unlock",
    "workflow.switched",
    "workflow.cleaned",
    "workflow.complete",
)


@pytest.mark.slow
@pytest.mark.parametrize("point", [*BEFORE_THE_SWITCH, *SWITCHING])
def test_driver_killed(live: Live, point: str) -> None:
    with paused_at(live.pauses, point):
        first = live.start()
        assert live.reached(point, first) == first.pid
        orphans = first.kill()
    wait_gone(orphans)
    live.workload.wait_for(5)
    live.complete(live.start())
    live.prove()
    if point == "workflow.complete":
        # That end has been told now.
        assert live.start().finish().code == 2


@pytest.mark.slow
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
def test_driver_killed_again_and_again(live: Live) -> None:
    """Every step forward ends in a crash; each start goes on where the last one stood."""
    for point in ("prepare.done", "copy.before_land", "workflow.verified", "cutover.locked", "cutover.rename_pending"):
        with paused_at(live.pauses, point):
            command = live.start()
            live.reached(point, command)
            command.kill()
        (live.pauses / f"{point}.reached").unlink()
    live.complete(live.start())
    live.prove()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["apply.before_flush", "apply.before_match", "replicate.holding"])
def test_catch_up_killed(live: Live, point: str) -> None:
    """Its driver starts another one."""
    with paused_at(live.pauses, point):
        command = live.start()
        child = live.reached(point, command)
        assert child != command.pid
        os.kill(child, signal.SIGKILL)
    live.complete(command)
    live.prove()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["workflow.copied", "verify.began", "workflow.gate_open"])
def test_catch_up_killed_while_its_driver_is_elsewhere(live: Live, point: str) -> None:
    with paused_at(live.pauses, point):
        command = live.start()
        live.reached(point, command)
        before = replicates(command.pid)
        assert len(before) == 1
        os.kill(before[0], signal.SIGKILL)
        wait_gone(before)
    live.complete(command)
    live.prove()


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
@pytest.mark.spark
def test_driver_killed_while_spark_copies(live: Live) -> None:
    """Its JVM and the Python workers end by themselves; one that is in the middle of a chunk lands nothing."""
    words = ("--copy-path", "rows")
    with paused_at(live.pauses, "copy.after_select"):
        first = live.start(*words, is_spark=True)
        assert live.reached("copy.after_select", first) != first.pid
        left = children(first.pid)
        first.kill()
    wait_gone(left)
    live.complete(live.start(*words, is_spark=True))
    live.prove()


@pytest.mark.slow
@pytest.mark.spark
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
@pytest.mark.parametrize("point", ["prepare.tables_made", "copy.before_land", "workflow.verified", "cutover.locked"])
def test_every_connection_lost(live: Live, point: str) -> None:
    """The command may end with a failure; then the same command goes on."""
    with paused_at(live.pauses, point):
        command = live.start()
        live.reached(point, command)
        kill_connections(live)
    goes_on(live, live.start, command)
    live.prove()


def kill_connections(live: Live) -> None:
    admin = live.database.admin
    for process in processes(admin).values():
        if process.user == live.database.user:
            admin.kill(process.id)


def goes_on(live: Live, again: Callable[[], Command], command: Command) -> None:
    ended = command.finish()
    if ended.code:
        assert ended.code == 1, ended
        live.complete(again())
