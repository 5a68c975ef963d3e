"""SIGTERM and SIGINT to everybody at once, as a service manager or a terminal sends them, with real Spark.

The JVM, Spark's Python workers and catch-up hear of it at the same moment as the command, or before. That is an
interrupt and no failure: the same command goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_setup import WORKFLOW, Live

from tests.support.flow import Ended, paused_at, wait_until
from tests.support.run_ddl import Command, children, replicates, wait_gone
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import journal, workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(400)]

WORDS = ("--copy-path", "rows", "--cutover", "manual")
STOP_SECONDS = 30.0
Send = Callable[[Command, signal.Signals], None]


def to_the_group(command: Command, number: signal.Signals) -> None:
    """As a terminal does it, and a shell's `kill -- -pid`."""
    os.killpg(command.pid, number)


def to_all(command: Command, number: signal.Signals) -> None:
    """As systemd does it (KillMode=control-group), whatever group they are in: here the command is the last to hear."""
    for pid in (*descendants(command.pid), command.pid):
        # One that ended of itself since it was listed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def to_spark_first(command: Command, number: signal.Signals) -> None:
    """The command has time to notice that its JVM has gone before its own signal comes."""
    gone = [pid for pid in children(command.pid) if pid not in replicates(command.pid)]
    for pid in gone:
        os.kill(pid, number)
    wait_gone(gone)
    # The command's own signal is late by this much: that is what is tried.
    time.sleep(0.4)
    os.kill(command.pid, number)


def descendants(pid: int) -> list[int]:
    """Deepest first."""
    return [found for child in children(pid) for found in (*descendants(child), child)]


COPYING, CATCHING_UP, VERIFYING = "copy.after_select", "workflow.catching_up", "verify.comparing"


@pytest.mark.parametrize(
    ("number", "send", "points"),
    [
        pytest.param(
            signal.SIGTERM, to_the_group, (COPYING,), marks=[pytest.mark.only_on("mariadb"), pytest.mark.seldom]
        ),
        pytest.param(signal.SIGTERM, to_spark_first, (COPYING, VERIFYING), marks=pytest.mark.only_on("mariadb")),
        pytest.param(signal.SIGINT, to_all, (CATCHING_UP,), marks=pytest.mark.only_on("mysql")),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value, "name", ""),
)
def test_a_signal_to_all_is_an_interrupt_in_every_phase(
    live: Live, number: signal.Signals, send: Send, points: tuple[str, ...]
) -> None:
    """Each on one of the servers: processes are the same on both."""
    for point in points:
        while_held(live, point, number, send)
    if send is to_the_group:
        at_the_gate(live, number, send)
        operate.release(live.database.url, WORKFLOW, "dba")
        live.complete(live.start(*WORDS, is_spark=True))
        live.prove()


def at_the_gate(live: Live, number: signal.Signals, send: Send) -> None:
    command = live.start(*WORDS, is_spark=True)
    wait_until(lambda: is_waiting(live) or not command.is_going, "it does not get to the gate")
    stopped(live, command, number, send)


def while_held(live: Live, point: str, number: signal.Signals, send: Send) -> None:
    with paused_at(live.pauses, point):
        command = live.start(*WORDS, is_spark=True)
        reached = live.reached(point, command)
        if reached != command.pid:
            stopped(live, command, number, send)
            return
        send(command, number)
        wait_until(lambda: is_stopping(live, command), "the signal is not seen")
    is_interrupted(live, command.finish())


def stopped(live: Live, command: Command, number: signal.Signals, send: Send) -> None:
    left, began = descendants(command.pid), time.monotonic()
    send(command, number)
    ended = command.finish()
    assert time.monotonic() - began < STOP_SECONDS
    is_interrupted(live, ended)
    wait_gone(left)


def is_interrupted(live: Live, ended: Ended) -> None:
    assert (ended.code, ended.last["event"]) == (130, "interrupted"), (ended.last, live.log())
    assert f"--workflow {WORKFLOW}" in ended.last["resume_command"]
    assert "Traceback" not in ended.err
    with connect(live.database.url) as session:
        assert workflows.load(session, WORKFLOW).phase is not Phase.FAILED
        assert [entry for entry in journal.read(session, WORKFLOW) if entry["event"] == "failed"] == []


def is_waiting(live: Live) -> bool:
    with connect(live.database.url) as session:
        row = workflows.find(session, WORKFLOW)
    return row is not None and row.phase is Phase.WAITING


def is_stopping(live: Live, command: Command) -> bool:
    said = f" {command.pid} vreplication.cli.attend: asked to stop"
    return any(said in Path(path).read_text() for path in live.log_files)
