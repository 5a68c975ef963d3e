"""The stages of a workflow as Airflow tasks, of whatever kind.

What must stay true: which tasks there are, in which order, is the registry's tuple; a task decides nothing: it reads
the run's params, calls a stage, and tells Airflow whether trying again may help; Airflow's SIGTERM sets the stage's
stop event, so that processes and connections end in order; no password is in a rendered field, an XCom or a log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from vreplication.airflow import assets, connections, request
from vreplication.airflow.approval import CutOverApproval, end_approval, task_states
from vreplication.airflow.connections import source_url
from vreplication.airflow.ending import RETRY_POLICY, cancelled_by
from vreplication.airflow.links import MigrationLink
from vreplication.airflow.noting import CANCELLED, REFUSED, WORKFLOW, store, store_end
from vreplication.airflow.storing import stored
from vreplication.airflow.telling import events_sent, figures_sent
from vreplication.airflow.triggers import CatchUpTrigger, GateTrigger, look
from vreplication.engine import maintenance
from vreplication.errors import Refused, VReplicationError
from vreplication.masking import mask, masked
from vreplication.mysql.session import connect
from vreplication.state import journal, lease
from vreplication.workflows.registry import KINDS, Tasks, for_forms
from vreplication.workflows.stages import BaseStage, Ended

log = logging.getLogger(__name__)

COPY_POOL, REPLICATE_POOL, FEED_POOL = "vreplication_copy", "vreplication_replicate", "vreplication_feed"
PATIENT_RETRIES = 20
"""Of a task that needs catch-up, or is it: while catch-up waits for a place in its pool each try ends soon."""
ENDLESS_RETRIES = 1_000_000
"""Of a task that runs for years: each worker that dies under it takes one."""
VERIFY_PAUSE_SECONDS = 300.0
"""After a verification at the gate that came to nothing."""


class CatchUpAway(AirflowException):
    """The stage gave up because nobody catches up."""


class RunRefused(AirflowFailException):
    """What was asked for cannot be done, as it is."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"refused: {sentence}")
        self.sentence = sentence


class StageOperator(BaseOperator):
    """Runs one stage, which subclasses name.

    asked: what the run's form says otherwise, by the same names; templates in it are rendered. group: of all tasks of
    one workflow, where a DAG has several of them.
    """

    stage_name = ""

    ui_color = "#e8eef7"
    template_fields: Sequence[str] = ("asked",)
    operator_extra_links = (MigrationLink(),)
    has_progress = False
    is_measured = False
    """Sends figures: one task of those that run side by side."""
    checks_webhook = False
    """Refuse where it is configured wrongly; later tasks go on without it."""
    is_ended_by_cancel = True

    def __init__(
        self, *, kind: str = "online_ddl", asked: Mapping[str, Any] | None = None, group: str = "", **kwargs: Any
    ) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=5))
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.kind, self.asked, self.group = kind, asked, group
        self._stop = threading.Event()

    @property
    def tasks(self) -> Tasks:
        return KINDS[self.kind].tasks

    def read(self, context: Any) -> request.Request:
        return request.read(context, self.kind, request.own(self.asked, self.group))

    def execute(self, context: Any) -> Any:
        return self.run_stage(context, self.work)

    def work(self, stage: BaseStage[Any]) -> Any:
        return self.tasks.stages[self.stage_name](stage)

    def run_stage(self, context: Any, work: Callable[[BaseStage[Any]], Any]) -> Any:
        """Call a stage; while it runs its progress is in the task state store, too, where the class says so."""
        connections.use_own_python()

        def call() -> Any:
            # Within `call`: a wrong param, or a connection that is missing, is a refusal with a note on the run like
            # any other.
            stage = self.read(context).stage(self._stop)
            try:
                with (
                    events_sent(stage.url, is_checked=self.checks_webhook),
                    figures_sent(stage.url, stage.workflow) if self.is_measured else contextlib.nullcontext(),
                    stored(context, stage) if self.has_progress else contextlib.nullcontext(),
                ):
                    return work(stage)
            except Ended as error:
                if not error.may_retry:
                    self._skip_if_cancelled(context, stage, is_left=bool(error.result.leftovers))
                raise
            except Refused:
                # One that begins, or is tried again, when the workflow has been cancelled meanwhile.
                self._skip_if_cancelled(context, stage)
                raise

        try:
            return self._result(call)
        except RunRefused as refused:
            store_end(context, REFUSED, refused.sentence)
            raise

    def _skip_if_cancelled(self, context: Any, stage: BaseStage[Any], *, is_left: bool = False) -> None:
        """What a person has ended has not failed: it is skipped, what follows too, and clean_up says by whom.

        is_left: something of it is still there, which whoever carries the cancel out may be removing this moment.
        """
        by = cancelled_by(stage.url, stage.workflow, is_left=is_left) if self.is_ended_by_cancel else None
        if by is not None:
            store_end(context, CANCELLED, f"Cancelled by {by}.")
            raise AirflowSkipException(f"Cancelled by {mask(by)}.") from None

    def _end(self, context: Any, reason: str) -> NoReturn:
        """What it waited for has ended the workflow."""
        self._skip_if_cancelled(context, self.read(context).stage(self._stop))
        raise AirflowFailException(reason)

    def _result(self, work: Callable[[], Any]) -> Any:
        """Airflow's exceptions for ours."""
        try:
            return work()
        except Ended as error:
            if error.lacks_catch_up:
                raise CatchUpAway(mask(str(error))) from None
            for left in error.result.leftovers:
                log.error("left behind: %s; `%s` removes it", left.what, left.command)
            if error.may_retry:
                raise AirflowException(mask(str(error))) from None
            if error.result.event == "refused":
                raise RunRefused(for_forms(mask(str(error)))) from None
            raise AirflowFailException(mask(f"{error.result.event}: {error}")) from None
        except Refused as error:
            raise RunRefused(for_forms(str(error))) from None

    def on_kill(self) -> None:
        self._stop.set()


class PlanOperator(StageOperator):
    """All checks; refuses with the sentences that the command line shows, and touches nothing.

    A cancelled workflow is refused here: who clears its run wants it to go on, and it cannot.
    """

    is_ended_by_cancel = False

    checks_webhook = True

    def work(self, stage: BaseStage[Any]) -> Any:
        return self.tasks.check(stage)

    def execute(self, context: Any) -> dict[str, Any]:
        if self.group:
            # Before the checks: a group that is refused has its place on the page as well.
            self._tell_place(context)
        made = super().execute(context)
        found = self.read(context)
        log.info("workflow %s", found.spec.workflow)
        return {"workflow": found.spec.workflow, "copy_path": getattr(made, "copy_path", None)}

    def _tell_place(self, context: Any) -> None:
        """The run's own form does not say it. What cannot be read is told by the task itself."""
        with contextlib.suppress(Refused):
            found = self.read(context)
            place = {"conn_id": found.conn_id, "conn_ids": dict(found.conn_ids), "workflow": found.spec.workflow}
            # The page finds the workflow by it for as long as Airflow has the run.
            store(context, WORKFLOW, {"group": self.group, **place}, retention=NEVER_EXPIRE)


class PrepareOperator(StageOperator):
    stage_name = "prepare"


class ReplicateOperator(StageOperator):
    """Catch-up, beside the copy and until the gate has been passed."""

    stage_name = "replicate"
    has_progress = True
    is_measured = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": REPLICATE_POOL, "retries": PATIENT_RETRIES, **kwargs})


class CopyOperator(StageOperator):
    """Gives its place in the pool up while nobody catches up: who is to may be waiting for a place himself."""

    stage_name = "copy"
    has_progress = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": COPY_POOL, **kwargs})

    def execute(self, context: Any) -> Any:
        try:
            return super().execute(context)
        except CatchUpAway:
            found = self.read(context)
            # Of this workflow alone: a DAG of somebody's own may have several groups, each with its catch-up.
            tasks = (t for t in context["dag"].tasks if isinstance(t, ReplicateOperator))
            catching_up = [t.task_id for t in tasks if t.group == self.group]
            trigger = CatchUpTrigger(
                found.conn_id, found.spec.workflow or "", context["dag"].dag_id, context["run_id"], catching_up
            )
            self.defer(trigger=trigger, method_name="go_on")

    def go_on(self, context: Any, event: dict[str, Any]) -> Any:
        """Called when the trigger has fired."""
        if event["state"] != "here":
            self._end(context, event["reason"])
        return self.execute(context)


class VerifyOperator(StageOperator):
    stage_name = "verify"
    has_progress = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": COPY_POOL, "retries": PATIENT_RETRIES, **kwargs})


class GateSensor(StageOperator):
    """Waits, without a worker slot, until the sidecar has a release; `auto` writes one, a window does when it opens.

    While it waits it takes a slot now and then, to verify again.
    """

    stage_name = "gate"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"retries": PATIENT_RETRIES, **kwargs})

    def execute(self, context: Any) -> Any:
        super().execute(context)
        found = self._result(lambda: self.read(context))
        if found.cutover == "auto":
            return self._release(found, "auto")
        self._wait(found)
        return None

    def _release(self, found: request.Request, by: str) -> None:
        assert self.tasks.release
        release = self.tasks.release
        self._result(lambda: release(found.stage(self._stop), by))

    def _wait(self, found: request.Request, verify_pause: float = 0.0) -> None:
        trigger = GateTrigger(
            conn_id=found.conn_id,
            workflow=found.spec.workflow or "",
            window=found.window,
            verify_seconds=60 * found.spec.verify_every_minutes,
            verify_pause=verify_pause,
        )
        self.defer(trigger=trigger, method_name="proceed")

    def proceed(self, context: Any, event: dict[str, Any]) -> str:
        """Called when the trigger has fired. Raises what ended the wait."""
        # `_verify` ends by waiting again, as an exception of Airflow's, so what is behind these branches is not
        # reached.
        if event["state"] == "verify":
            self._verify(context)
        elif event["state"] == "window":
            found = self.read(context)
            self._release(found, maintenance.named(str(found.window)))
        elif event["state"] == "lost":
            # Tried again: catch-up has a task of its own, which may only be waiting for a worker.
            raise AirflowException(event["reason"])
        elif event["state"] != "released":
            self._end(context, event["reason"])
        else:
            found = self.read(context)
            _note(found.stage(self._stop), "release noticed")
        return str(event.get("by") or "")

    def _verify(self, context: Any) -> None:
        """Verify again, then wait on. What comes to nothing this time is tried again later, and costs no retry."""
        found = self.read(context)
        assert self.tasks.verify_again
        verify_again = self.tasks.verify_again

        def work(stage: BaseStage[Any]) -> bool:
            # What ends the wait ends the round, too.
            return verify_again(stage, lambda: look(stage.url, stage.workflow, found.window)[0] is not None)

        try:
            pause = 0.0 if self.run_stage(context, work) else VERIFY_PAUSE_SECONDS
        # Both are AirflowExceptions as well: only what may be different the next time is waited for.
        except (AirflowFailException, AirflowSkipException):
            raise
        except AirflowException as error:
            # Airflow is ending the task; one that defers now would go on.
            if self._stop.is_set():
                raise
            log.warning("the verification is tried again in %.0f minutes: %s", VERIFY_PAUSE_SECONDS / 60, error)
            pause = VERIFY_PAUSE_SECONDS
        self._wait(found, pause)


class CutOverOperator(StageOperator):
    stage_name = "cut_over"

    def work(self, stage: BaseStage[Any]) -> Any:
        _note(stage, "cut-over begun")
        return super().work(stage)


class SwitchOperator(StageOperator):
    stage_name = "switch"

    def work(self, stage: BaseStage[Any]) -> Any:
        _note(stage, "cut-over begun")
        return super().work(stage)


class ReverseStreamOperator(StageOperator):
    """Keeps both sides level for as long as the way back is open: it has catch-up in it, and takes a place of it."""

    stage_name = "reverse_stream"
    has_progress = True
    is_measured = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": REPLICATE_POOL, "retries": PATIENT_RETRIES, **kwargs})


class RevertWindowOperator(StageOperator):
    """Behind the end: keeps the original level for as long as it can be reverted to, and takes a place of catch-up."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": REPLICATE_POOL, "retries": PATIENT_RETRIES, **kwargs})

    def work(self, stage: BaseStage[Any]) -> None:
        assert self.tasks.keep_level
        if not self.tasks.keep_level(stage):
            raise AirflowSkipException("No way back was asked for.")


class StreamOperator(StageOperator):
    """A change feed, for as long as there is one. Cancelled it has succeeded; paused it waits, and keeps its place."""

    stage_name = "stream"
    has_progress = True
    is_measured = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pool": FEED_POOL, "retries": ENDLESS_RETRIES, **kwargs})

    def execute(self, context: Any) -> dict[str, Any]:
        return dict(masked(dataclasses.asdict(super().execute(context))))


class CleanUpOperator(StageOperator):
    """Ends the workflow and tells its assets; its result is the task's XCom. Ends the run's open approval in any case.

    approval: that task's id. It runs when all before it has ended, and fails when that has not succeeded.
    """

    stage_name = "clean_up"

    def __init__(self, *, approval: str | None = None, **kwargs: Any) -> None:
        # Whatever became of the others: a request to a person that stays open would keep the run from ending.
        super().__init__(**{"trigger_rule": "all_done", "outlets": [assets.ANY_TABLE, assets.EACH_TABLE], **kwargs})
        self.approval = approval

    def work(self, stage: BaseStage[Any]) -> Any:
        return super().work(stage), stage.targets()

    def execute(self, context: Any) -> dict[str, Any]:
        if self.approval:
            end_approval(context, self.approval)
        self._check_before(context)
        result, targets = super().execute(context)
        for schema, table in targets:
            assets.note_migrated(context, self.read(context).conn_id, schema, table, result.workflow)
        return dict(masked(dataclasses.asdict(result)))

    def _check_before(self, context: Any) -> None:
        states = task_states(context, sorted(self.upstream_task_ids))
        if bad := [f"{task} ({state})" for task, state in states.items() if state in ("failed", "upstream_failed")]:
            culprits = ", ".join(_failed(context, self.group) or bad)
            raise AirflowFailException(f"There is nothing to clean up after: {culprits} did not succeed.")
        if "skipped" in states.values():
            self._fail_if_cancelled(context)
            raise AirflowSkipException("What comes before was skipped.")

    def _fail_if_cancelled(self, context: Any) -> None:
        """Skipped tasks alone would make a success of the run, and whoever waits for it would go on."""
        found = self.read(context)
        if by := cancelled_by(source_url(found.conn_id), found.spec.workflow or ""):
            store_end(context, CANCELLED, f"Cancelled by {by}.")
            raise AirflowFailException(f"Cancelled by {mask(by)}.")


_OF_STAGE: dict[str, type[StageOperator]] = {
    found.stage_name: found
    for found in (
        PrepareOperator,
        ReplicateOperator,
        CopyOperator,
        VerifyOperator,
        GateSensor,
        CutOverOperator,
        SwitchOperator,
        ReverseStreamOperator,
        StreamOperator,
        CleanUpOperator,
    )
}


def make_tasks(
    first: BaseOperator,
    kind: str = "online_ddl",
    own: Mapping[str, Any] | None = None,
    **more: dict[str, Any],
) -> dict[str, Any]:
    """A task for each stage, named and ordered as the stages are, all behind `first`.

    own: arguments of each; more: of a stage.
    """
    made: dict[str, Any] = {}
    for stage in KINDS[kind].stages:
        task = _OF_STAGE[stage.name](task_id=stage.name, kind=kind, **{**(own or {}), **more.get(stage.name, {})})
        for before in [made[name] for name in stage.after] or [first]:
            before >> task
        made[stage.name] = task
    return made


def make_flow(kind: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All tasks of a kind's DAG, or of a group of one's own. own: arguments of each, `asked` and `group`."""
    own = own or {}
    plan = PlanOperator(task_id="plan", kind=kind, **own)
    if KINDS[kind].tasks.release is None:
        return make_tasks(plan, kind, own)
    group = own.get("group")
    tasks = make_tasks(plan, kind, own, clean_up={"approval": f"{group}.approve" if group else "approve"})
    # Nothing waits for `approve`: the gate waits for the sidecar's release row, which the answer writes.
    tasks["verify"] >> CutOverApproval(task_id="approve", kind=kind, **own)
    if KINDS[kind].tasks.keep_level is not None:
        tasks["clean_up"] >> RevertWindowOperator(task_id="revert_window", kind=kind, **own)
    return tasks


def _note(stage: BaseStage[Any], event: str) -> None:
    """A step for people to see when it was; a server that is away just now holds nothing up."""
    with contextlib.suppress(VReplicationError), connect(stage.url) as session:
        journal.write(session, stage.workflow, event, actor=lease.me())


def _failed(context: Any, group: str) -> list[str]:
    """Tasks of this run that failed themselves: what stands right before the one that asks may only have waited."""
    known = [task for task in context["dag"].task_ids if not group or task.startswith(f"{group}.")]
    states = task_states(context, sorted(known))
    return [f"{task} ({state})" for task, state in states.items() if state == "failed"]
