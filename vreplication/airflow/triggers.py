"""Waiting without a worker slot: at the gate, and for catch-up.

What must stay true: the event loop is never blocked (every look at the sidecar runs in a thread of its connection's); a
look that fails is tried again; the sidecar's release row is the only thing that opens the gate; what is serialized
holds no password; none fires before Airflow's scheduler can have seen that its task waits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from vreplication.airflow import connections
from vreplication.airflow.looking import look_at
from vreplication.errors import VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.planning.window import Window
from vreplication.state import gate, lease, progress, verdicts, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.stages import CATCH_UP_SECONDS

log = logging.getLogger(__name__)

T = TypeVar("T")
_POLL_SECONDS = 1.0
_READ_SECONDS = 30.0
"""A server that does not answer must not keep one of the triggerer's threads."""
_LOOKS_A_VERDICT = 5
"""Looks at the workflow for one at how old its last verification is."""
_LOOKS_A_TASK = 15
"""Looks at the sidecar for one at the state of a task, which asks Airflow's api-server."""
_LEAST_SECONDS = 5.0
"""Of a wait. What fires sooner may bring its task back before the scheduler has heard that the process which began to
wait has ended; it takes that end for the task's then, which it was not to have, and the task for failed."""
ENDED_STATES = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


async def fired(awaited: Awaitable[dict[str, Any]]) -> TriggerEvent:
    """What a trigger fires with, and not too soon."""
    until = time.monotonic() + _LEAST_SECONDS
    event = await awaited
    await asyncio.sleep(max(0.0, until - time.monotonic()))
    return TriggerEvent(event)


class _Watch(BaseTrigger):
    """Looks at a workflow's sidecar, in a thread each time."""

    def __init__(self, conn_id: str, workflow: str) -> None:
        super().__init__()
        self.conn_id, self.workflow = conn_id, workflow

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", self.fields()

    def fields(self) -> dict[str, Any]:
        """What it is made from again."""
        return {"conn_id": self.conn_id, "workflow": self.workflow}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield await fired(self.awaited())

    async def awaited(self) -> dict[str, Any]:
        """What it fires with, when it is time to."""
        raise NotImplementedError

    async def ask(self, question: Callable[..., T], *args: Any, otherwise: T) -> T:
        """The answer; `otherwise` when the sidecar cannot be read just now."""
        try:
            return await look_at(self.conn_id, functools.partial(question, *args))
        except VReplicationError as error:
            log.warning("the sidecar could not be read: %s", error)
            return otherwise


class _Missed:
    """How long catch-up has been missed, from one look to another: what nobody looked at is not known."""

    def __init__(self) -> None:
        self._since: float | None = None

    def for_seconds(self, at: float, *, is_caught_up: bool) -> float:
        """at: when the look began."""
        if is_caught_up:
            self._since = None
            return 0.0
        self._since = at if self._since is None else self._since
        return at - self._since


class GateTrigger(_Watch):
    """Fires with state released, window, verify (the last verification is old), lost (no catch-up), or ended.

    verify_seconds: age at which a verification is old, 0: never; verify_pause: not in the first so many seconds.
    """

    def __init__(
        self, conn_id: str, workflow: str, window: str | None, verify_seconds: float = 0.0, verify_pause: float = 0.0
    ) -> None:
        super().__init__(conn_id, workflow)
        self.window, self.verify_seconds, self.verify_pause = window, verify_seconds, verify_pause

    def fields(self) -> dict[str, Any]:
        mine = {"window": self.window, "verify_seconds": self.verify_seconds, "verify_pause": self.verify_pause}
        return {**super().fields(), **mine}

    async def awaited(self) -> dict[str, Any]:
        # Asked for here, for what is serialized goes into Airflow's database and must hold no password.
        url = await connections.asource_url(self.conn_id)
        began, missed, number = time.monotonic(), _Missed(), -1
        while True:
            number += 1
            found = await self.ask(_timed_look, url, self.workflow, self.window, otherwise=None)
            # A look that failed says nothing against catch-up.
            event, is_caught_up, at = found or (None, True, time.monotonic())
            seconds = missed.for_seconds(at, is_caught_up=is_caught_up)
            if seconds > CATCH_UP_SECONDS and event is None:
                reason = f"Catch-up of workflow {self.workflow} has not run for {seconds:.0f} seconds."
                event = {"state": "lost", "reason": reason}
            # Without catch-up a verification cannot end: it waits for markers that nothing would apply.
            is_time = is_caught_up and number % _LOOKS_A_VERDICT == 0 and at - began >= self.verify_pause
            if event is None and is_time:
                event = await self.ask(_to_be_verified, url, self.workflow, self.verify_seconds, otherwise=None)
            if event:
                return event
            await asyncio.sleep(_POLL_SECONDS)


class CatchUpTrigger(_Watch):
    """Fires with state here (catch-up runs, or need not any more), ended, or lost (its task has ended without it)."""

    def __init__(self, conn_id: str, workflow: str, dag_id: str, run_id: str, tasks: Sequence[str]) -> None:
        super().__init__(conn_id, workflow)
        self.dag_id, self.run_id, self.tasks = dag_id, run_id, list(tasks)

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "dag_id": self.dag_id, "run_id": self.run_id, "tasks": self.tasks}

    async def awaited(self) -> dict[str, Any]:
        url = await connections.asource_url(self.conn_id)
        number = -1
        while True:
            number += 1
            event = await self.ask(look_for_catch_up, url, self.workflow, otherwise=None)
            if event is None and number % _LOOKS_A_TASK == 0:
                event = await self._lost()
            if event:
                return event
            await asyncio.sleep(_POLL_SECONDS)

    async def _lost(self) -> dict[str, Any] | None:
        """Waiting for a place is no end; one that has ended will not begin again by itself."""
        states = await states_of(self.dag_id, self.run_id, self.tasks)
        # One that waits to be tried again (up_for_retry) has not ended.
        if not states or not all(state in ENDED_STATES for state in states.values()):
            return None
        named = ", ".join(f"{task} ({state})" for task, state in states.items())
        reason = (
            f"Catch-up of workflow {self.workflow} does not run: {named} has ended. Clear it together with this task."
        )
        return {"state": "lost", "reason": reason}


class EndTrigger(_Watch):
    """Fires with state complete or ended. A workflow that has not begun yet is waited for as well."""

    def __init__(self, conn_id: str, workflow: str, poll_seconds: float = _POLL_SECONDS) -> None:
        super().__init__(conn_id, workflow)
        self.poll_seconds = poll_seconds

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "poll_seconds": self.poll_seconds}

    async def awaited(self) -> dict[str, Any]:
        url = await connections.asource_url(self.conn_id)
        while (event := await self.ask(look_for_end, url, self.workflow, otherwise=None)) is None:
            await asyncio.sleep(self.poll_seconds)
        return event


class ScaledTrigger(_Watch):
    """Fires with state done or ended: a feed has so many partitions, or will not have them. Says what it waits for."""

    def __init__(self, conn_id: str, workflow: str, partitions: int) -> None:
        super().__init__(conn_id, workflow)
        self.partitions = partitions

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "partitions": self.partitions}

    async def awaited(self) -> dict[str, Any]:
        url = await connections.asource_url(self.conn_id)
        told = ""
        while True:
            found = await self.ask(_scaling, url, self.workflow, self.partitions, otherwise=None)
            if found is not None and (found.is_done or found.reason):
                return {"state": "done" if found.is_done else "ended", "reason": found.reason}
            if found is not None and found.waits_for != told:
                told = found.waits_for
                log.info("waiting for %s", told)
            await asyncio.sleep(_POLL_SECONDS)


def _scaling(url: SourceUrl, workflow: str, partitions: int) -> feeding.Scaling:
    with connect(url, read_timeout=_READ_SECONDS) as session:
        return feeding.scaling(session, workflow, partitions)


async def states_of(dag_id: str, run_id: str, tasks: Sequence[str]) -> dict[str, str | None]:
    """States of a run's tasks, as Airflow has them."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    if not tasks:
        return {}
    # Airflow's own call blocks, and all triggers share the event loop.
    found = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=dag_id, task_ids=list(tasks), run_ids=[run_id]
    )
    return dict(found.get(run_id, {}))


def look(url: SourceUrl, workflow: str, window: str | None) -> tuple[dict[str, Any] | None, bool]:
    """What ends the wait at the gate, if anything does, and whether catch-up runs."""
    with connect(url, read_timeout=_READ_SECONDS) as session:
        row = workflows.find(session, workflow)
        by = gate.released_by(session, workflow)
        is_caught_up = lease.is_alive(session, workflow, lease.REPLICATE)
    if row is None or _has_ended(row):
        return _ended(row, workflow), is_caught_up
    # One that has switched needs no release any more: it may have been carried on elsewhere.
    if by is not None or row.is_cut:
        return {"state": "released", "by": by}, is_caught_up
    # While it is paused no window releases it: a release cannot be taken back, and the switch would follow the resume.
    if window and not row.is_paused and Window.parse(window).is_open(datetime.now(UTC)):
        return {"state": "window"}, is_caught_up
    return None, is_caught_up


def _timed_look(url: SourceUrl, workflow: str, window: str | None) -> tuple[dict[str, Any] | None, bool, float]:
    """As `look`, and when it began: it may have waited for a thread."""
    at = time.monotonic()
    return *look(url, workflow, window), at


def look_for_catch_up(url: SourceUrl, workflow: str) -> dict[str, Any] | None:
    """What ends a copy's wait for catch-up, if anything does. While it waits, that is in its progress row."""
    with connect(url, read_timeout=_READ_SECONDS) as session:
        row = workflows.find(session, workflow)
        # A cancel that came in the instant of the switch changes nothing any more.
        if row is None or (_has_ended(row) and not row.is_cut):
            return _ended(row, workflow)
        is_here = row.is_cut or lease.is_alive(session, workflow, lease.REPLICATE)
        words = None if is_here else "a place for its catch-up"
        progress.write_driver(session, workflow, waiting_for=words, rows_per_second=None, copy_eta_seconds=None)
    return {"state": "here"} if is_here else None


def look_for_end(url: SourceUrl, workflow: str) -> dict[str, Any] | None:
    with connect(url, read_timeout=_READ_SECONDS) as session:
        row = workflows.find(session, workflow)
    if row is None or not row.has_ended:
        return None
    return {"state": "complete"} if row.phase is Phase.COMPLETE else _ended(row, workflow)


def _has_ended(row: WorkflowRow) -> bool:
    return row.is_cancel_requested or row.phase in (Phase.FAILED, Phase.CANCELLED)


def _ended(row: WorkflowRow | None, workflow: str) -> dict[str, Any]:
    return {"state": "ended", "reason": (row.reason if row else None) or f"Workflow {workflow} was cancelled."}


def _to_be_verified(url: SourceUrl, workflow: str, seconds: float) -> dict[str, Any] | None:
    """A pause is also one for the server: then nothing is verified."""
    if not seconds:
        return None
    with connect(url, read_timeout=_READ_SECONDS) as session:
        age = verdicts.age_seconds(session, workflow)
        is_paused = workflows.load(session, workflow).is_paused
    return {"state": "verify"} if age is not None and age > seconds and not is_paused else None
