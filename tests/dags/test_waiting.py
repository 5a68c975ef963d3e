"""What our triggers wait for, each asked of a real sidecar; none of them ever blocks the event loop."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from alone import in_airflow

from sandbox.databases import Database
from tests.support.dag_runs import now_open
from tests.support.rows import workflow_row
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import gate, layout, lease, verdicts, workflows
from vreplication.state.verdicts import Verdict

pytestmark = pytest.mark.either

FIRST = """
import asyncio, importlib
from vreplication.airflow import triggers

triggers.CATCH_UP_SECONDS, triggers._LEAST_SECONDS = 1.0, 0.0
states = {"failed": {"replicate": "failed"}, "waiting": {"replicate": "scheduled"}}

async def states_of(dag_id, run_id, tasks):
    return states.get(run_id, {})

triggers.states_of = states_of

async def first(trigger):
    path, fields = trigger.serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(fields)))
    async for event in again.run():
        return event.payload

async def patiently(kind, words):
    try:
        return await asyncio.wait_for(first(getattr(triggers, kind)(*words)), 6)
    except asyncio.TimeoutError:
        return None

async def main():
    asked = json.loads(sys.argv[1])
    return await asyncio.gather(*(patiently(kind, words) for kind, *words in asked))

tell(asyncio.run(main()))
"""
CALM = """
import asyncio, os, time
from vreplication.airflow import triggers

async def main():
    waiting = [
        asyncio.create_task(anext(trigger.run()))
        for trigger in (triggers.GateTrigger("c", "w", None), triggers.EndTrigger("c", "w"))
    ]
    gaps, last = [], time.monotonic()
    while len(gaps) < 40:
        await asyncio.sleep(0.05)
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    assert not any(task.done() for task in waiting)
    tell(max(gaps))
    sys.stdout.flush()
    # The threads that look are still waiting for an answer.
    os._exit(0)

asyncio.run(main())
"""


SOON = """
import asyncio, time
from vreplication.airflow import triggers

triggers.look_for_end = lambda url, workflow: {"state": "complete"}

async def main():
    began = time.monotonic()
    event = await anext(triggers.EndTrigger("c", "w").run())
    return event.payload, time.monotonic() - began

tell(asyncio.run(main()))
"""
QUEUED = """
import asyncio, time
from vreplication.airflow import queue_trigger

queue_trigger.standing_at = lambda url, concurrency: (["w"], False)

async def main():
    began = time.monotonic()
    asked = queue_trigger.QueueTrigger(["c"], 1, known=[], seconds=60.0, dag_id="d")
    event = await anext(asked.run())
    return event.payload, time.monotonic() - began

tell(asyncio.run(main()))
"""
LEFT = """
import threading
from types import SimpleNamespace
from vreplication.airflow import ending, operators
from vreplication.engine.result import Leftover, Result
from vreplication.mysql.session import connect
from vreplication.mysql.url import parse
from vreplication.phases import Phase
from vreplication.state import workflows
from vreplication.workflows.stages import Ended

url, carries_out = parse(sys.argv[1]), sys.argv[2] == "carried out"
stage = SimpleNamespace(url=url, workflow="w")
left = Leftover(what="shadow table", command="vreplication cancel w")
failed = Ended(Result(event="failed", workflow="w", reason="gone", leftovers=(left,)), may_retry=False)

class Clock:
    now = 0.0
    def monotonic(self): return self.now
    def sleep(self, seconds):
        self.now += seconds
        if carries_out:
            with connect(url) as session:
                workflows.move(session, "w", Phase.CANCELLED, "by whoever drives it")

class Copy(operators.CopyOperator):
    is_measured = has_progress = False
    def read(self, context): return SimpleNamespace(stage=lambda stop: stage)

def work(stage): raise failed

ending.time, operators.store_end = Clock(), lambda *_: None
try:
    Copy(task_id="copy").run_stage({}, work)
except Exception as error:
    tell(type(error).__name__)
"""
STARVED = """
import asyncio, os, time
from types import SimpleNamespace
from airflow.sdk.execution_time import task_runner
from vreplication.airflow import looking, triggers

triggers._LEAST_SECONDS = 0.0
real, beats = triggers.look, []

def look(url, workflow, window):
    if url.host != "127.0.0.2":
        return real(url, workflow, window)
    beats.append(time.monotonic())
    return None if len(beats) < 3 else {"state": "released", "by": "ann"}, True

triggers.look = look
triggers.look_for_catch_up = lambda url, workflow: None if url.host == "127.0.0.2" else real(url, workflow, None)
asked = []

def get_task_states(dag_id, task_ids, run_ids):
    asked.append([dag_id, task_ids, run_ids])
    return {"r": {"replicate": "failed"}}

task_runner.RuntimeTaskInstance = SimpleNamespace(get_task_states=get_task_states)

async def main():
    silent = [asyncio.create_task(anext(triggers.GateTrigger("c", f"w{n}", None).run())) for n in range(20)]
    await asyncio.sleep(0.5)
    began = time.monotonic()
    first = await asyncio.wait_for(anext(triggers.GateTrigger("other", "w", None).run()), 30)
    catch_up = triggers.CatchUpTrigger("other", "w", "d", "r", ["replicate"])
    second = await asyncio.wait_for(anext(catch_up.run()), 30)
    seconds = time.monotonic() - began
    none = [await triggers.states_of("d", "r", []), await triggers.states_of("d", "another", ["replicate"])]
    threads = sum(t.name == "looking" for t in looking.threading.enumerate())
    tell([first.payload, second.payload["state"], seconds, asked, none, threads, any(t.done() for t in silent)])
    sys.stdout.flush()
    # The threads that look at the silent one are still waiting for an answer.
    os._exit(0)

asyncio.run(main())
"""
RESTING = """
from types import SimpleNamespace
from vreplication.airflow import operators

class Gate(operators.GateSensor):
    is_verified, waits = True, []
    @property
    def tasks(self): return SimpleNamespace(verify_again=lambda stage, is_enough: self.is_verified)
    def read(self, context): return SimpleNamespace(window=None)
    def run_stage(self, context, work): return work(SimpleNamespace(url=None, workflow="w"))
    def _wait(self, found, verify_pause=0.0): self.waits.append(verify_pause)

gate = Gate(task_id="gate")
for Gate.is_verified in (True, False):
    gate.proceed({}, {"state": "verify"})
tell(gate.waits)
"""
MISSED = """
from vreplication.airflow import triggers

missed = triggers._Missed()
tell([missed.for_seconds(at, is_caught_up=is_so) for at, is_so in json.loads(sys.argv[1])])
"""


def uri(database: Database) -> str:
    url = database.url
    return f"mysql://{url.user}:{quote(url.password, safe='')}@{url.host}:{url.port}/{url.database}"


def begin(session: Session, workflow: str, phase: Phase = Phase.WAITING, **fields: Any) -> None:
    row = workflow_row(workflow, phase=phase, source_schema=session.url.database, source_table=workflow)
    workflows.create(session, row)
    if fields:
        workflows.set_fields(session, workflow, **fields)


def verified(session: Session, workflow: str) -> None:
    verdict = Verdict(verdict="clean", rows_compared=1, mismatches=0, repaired=0, hot_keys=(), details="")
    verdicts.save(session, workflow, verdict)
    sql = f"UPDATE {SIDECAR}.verification SET finished_at = finished_at - INTERVAL 1 HOUR WHERE workflow=%s"
    session.execute(sql, (workflow,))


def caught_up(session: Session, workflow: str) -> None:
    """With a heartbeat that does not grow old while Airflow is being imported."""
    lease.acquire(session, workflow, lease.REPLICATE)
    session.execute(f"UPDATE {SIDECAR}.heartbeat SET at = at + INTERVAL 1 MINUTE WHERE workflow=%s", (workflow,))


def without_numbers(event: dict[str, Any] | None) -> dict[str, Any] | None:
    """How many seconds it was depends on the machine; that it is no more than is promised, the whole run shows."""
    return event and {name: value and re.sub(r"\d+", "#", str(value)) for name, value in event.items()}


@pytest.mark.only_on("mariadb")
def test_what_ends_each_wait(database: Database, tmp_path: Path) -> None:
    with connect(database.url) as session:
        layout.install(session)
        for name in ("released", "lost", "waiting", "window", "old", "paused"):
            begin(session, name)
        begin(session, "cancelled", cancel_requested=1)
        begin(session, "failed", Phase.FAILED, reason="the disk was full")
        begin(session, "cut", is_cut=1)
        begin(session, "complete", Phase.COMPLETE)
        workflows.set_paused(session, "paused", True)
        gate.release(session, "released", "ann")
        for name in ("window", "old", "paused"):
            caught_up(session, name)
            verified(session, name)
        open_now, lost = now_open(), "Catch-up of workflow lost does not run"
        asked: dict[tuple[Any, ...], Any] = {
            ("GateTrigger", "c", "released", None): {"state": "released", "by": "ann"},
            ("GateTrigger", "c", "cut", None): {"state": "released", "by": None},
            ("GateTrigger", "c", "lost", None): {
                "state": "lost", "reason": "Catch-up of workflow lost has not run for # seconds.",
            },
            ("GateTrigger", "c", "cancelled", None): {"state": "ended", "reason": "Workflow cancelled was cancelled."},
            ("GateTrigger", "c", "failed", None): {"state": "ended", "reason": "the disk was full"},
            ("GateTrigger", "c", "nobody", None): {"state": "ended", "reason": "Workflow nobody was cancelled."},
            ("GateTrigger", "c", "window", open_now): {"state": "window"},
            ("GateTrigger", "c", "old", None, 3000.0): {"state": "verify"},
            ("GateTrigger", "c", "old", None, 4000.0): None,
            ("GateTrigger", "c", "old", None, 0.0): None,
            ("GateTrigger", "c", "old", None, 3000.0, 60.0): None,
            ("GateTrigger", "c", "paused", open_now, 3000.0): None,
            ("CatchUpTrigger", "c", "old", "d", "r", ("replicate",)): {"state": "here"},
            ("CatchUpTrigger", "c", "cut", "d", "r", ()): {"state": "here"},
            ("CatchUpTrigger", "c", "failed", "d", "r", ()): {"state": "ended", "reason": "the disk was full"},
            ("CatchUpTrigger", "c", "waiting", "d", "waiting", ("replicate",)): None,
            ("CatchUpTrigger", "c", "lost", "d", "failed", ("replicate",)): {
                "state": "lost",
                "reason": f"{lost}: replicate (failed) has ended. Clear it together with this task.",
            },
            ("EndTrigger", "c", "complete"): {"state": "complete"},
            ("EndTrigger", "c", "failed"): {"state": "ended", "reason": "the disk was full"},
            ("EndTrigger", "c", "nobody"): None,
            ("EndTrigger", "c", "released"): None,
        }  # fmt: skip
        found = in_airflow(tmp_path, FIRST, json.dumps(list(asked)), settings={"AIRFLOW_CONN_C": uri(database)})
        told = session.value(f"SELECT waiting_for FROM {SIDECAR}.progress WHERE workflow='waiting'")
    assert dict(zip(asked, map(without_numbers, found), strict=True)) == asked
    assert told == "a place for its catch-up"


def test_a_server_that_says_nothing_does_not_block_the_event_loop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/d"
        gap = in_airflow(tmp_path, CALM, settings={"AIRFLOW_CONN_C": where})
    assert gap < 0.5


def test_none_fires_before_the_scheduler_has_seen_that_its_task_waits(tmp_path: Path) -> None:
    """Seen of a sensor whose workflow ended as it began to wait: it had skipped itself, and Airflow had it fail."""
    event, seconds = in_airflow(tmp_path, SOON, settings={"AIRFLOW_CONN_C": "mysql://u:p@127.0.0.1:1/d"})
    assert (event, seconds >= 5) == ({"state": "complete"}, True)


def test_nor_does_that_of_the_queue_in_which_something_is_due_by_then(tmp_path: Path) -> None:
    event, seconds = in_airflow(tmp_path, QUEUED, settings={"AIRFLOW_CONN_C": "mysql://u:p@127.0.0.1:1/d"})
    assert (event, seconds >= 5) == ({"state": "due"}, True)


def test_a_server_that_says_nothing_keeps_no_other_ones_gates_waiting(tmp_path: Path) -> None:
    """However many gates wait for it: its looks have threads of their own, and few."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = {"AIRFLOW_CONN_C": f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/d"}
        other = {"AIRFLOW_CONN_OTHER": "mysql://u:p@127.0.0.2:1/d"}
        found = in_airflow(tmp_path, STARVED, settings=where | other)
    first, second, seconds, asked, none, threads, is_silent_done = found
    assert (first, second) == ({"state": "released", "by": "ann"}, "lost")
    assert seconds < 6, "two pauses between looks, and no more than a busy machine needs"
    assert asked == [["d", ["replicate"], ["r"]], ["d", ["replicate"], ["another"]]]
    assert (none, threads <= 4, is_silent_done) == ([{}, {}], True, False)


def test_only_what_was_looked_at_counts_as_missed(tmp_path: Path) -> None:
    """A look that had to wait for its thread does not say that catch-up was away all the time."""
    looks = [[0.0, True], [20.0, False], [23.0, False], [24.0, True], [60.0, False], [67.0, False]]
    assert in_airflow(tmp_path, MISSED, json.dumps(looks)) == [0.0, 0.0, 3.0, 0.0, 0.0, 7.0]


def test_a_verification_that_came_to_nothing_rests(tmp_path: Path) -> None:
    """Of a table that changes too often the gate verified again at once, for as long as it waited."""
    assert in_airflow(tmp_path, RESTING) == [0.0, 300.0]


@pytest.mark.parametrize(("base", "link"), [("http://h:1", ""), ("https://h/af/", "/af")])
def test_links_have_the_prefix_of_a_proxy(tmp_path: Path, base: str, link: str) -> None:
    code = """
from types import SimpleNamespace
from vreplication.airflow.links import MigrationLink
tell(MigrationLink().get_link(None, ti_key=SimpleNamespace(dag_id="online_ddl", run_id="manual__2026+x/y")))
"""
    found = in_airflow(tmp_path, code, settings={"AIRFLOW__API__BASE_URL": base})
    assert found == f"{link}/dags/online_ddl/runs/manual__2026%2Bx%2Fy/plugin/migration"


def test_the_sensor_for_any_workflow(tmp_path: Path) -> None:
    code = """
from datetime import timedelta
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from vreplication.airflow import sensors
from vreplication.airflow.sensors import WorkflowSensor
from vreplication.errors import Transient

def is_away(url, workflow):
    raise Transient("away")

sensors.source_url = lambda conn_id: conn_id
sensors.look_for_end = is_away
task = WorkflowSensor(task_id="widened", workflow="w", source_conn_id="shop", timeout=timedelta(2), poke_interval=3)
told = [list(task.template_fields)]
try:
    task.execute({})
except TaskDeferred as deferred:
    told += [list(deferred.trigger.serialize()), deferred.method_name, deferred.timeout.days]
events = [{"state": "complete"}, None, {"state": "complete"}]
sensors.look_for_end = lambda url, workflow: events.pop(0)
told.append(task.execute({}))
try:
    task.proceed({}, {"state": "ended", "reason": "the disk was full"})
except AirflowFailException as error:
    told.append(str(error))

def raised(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__

soft = WorkflowSensor(task_id="s", workflow="w", soft_fail=True, deferrable=False)
told.append(raised(lambda: soft.proceed({}, {"state": "ended", "reason": "the disk was full"})))
told += [bool(soft.poke({})), soft.poke({}).xcom_value, task.timeout]
tell(told)
"""
    trigger = ["vreplication.airflow.triggers.EndTrigger", {"conn_id": "shop", "workflow": "w", "poll_seconds": 3}]
    expected = [["source_conn_id", "workflow"], trigger, "proceed", 2, "w", "the disk was full"]
    expected += ["AirflowSkipException", False, "w", 2 * 86400]
    assert in_airflow(tmp_path, code) == expected


@pytest.mark.parametrize(
    ("end", "told"), [("carried out", "AirflowSkipException"), ("left as it is", "AirflowFailException")]
)
def test_what_fails_under_a_cancel_is_skipped_when_that_has_been_carried_out(
    database: Database, tmp_path: Path, end: str, told: str
) -> None:
    """Where something is left, another process may be removing it this moment."""
    with connect(database.url) as session:
        layout.install(session)
        workflows.create(session, workflow_row("w", phase=Phase.COPYING))
        workflows.request_cancel(session, "w")
    url = database.url
    address = f"mysql://{url.user}:{url.password}@{url.host}:{url.port}/{url.database}"
    assert in_airflow(tmp_path, LEFT, address, end) == told
