"""The stages of an online DDL as processes of their own: what Airflow's tasks call.

What must stay true: as in workflows/stages.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vreplication.engine.child import CatchUp, Elsewhere
from vreplication.engine.driver import Driver
from vreplication.engine.replicate import replicate
from vreplication.engine.result import Result
from vreplication.errors import Interrupted, Refused, SourceChanged, Terminal, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec, spec_of
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import SparkStart
from vreplication.state import journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import comparing, ending, failover, in_place, prepare, resume, reverting, run
from vreplication.workflows.online_ddl.run import ACTS, Work, finish_copying
from vreplication.workflows.stages import (
    CATCH_UP_SECONDS,
    COPY_PATIENCE_SECONDS,
    BaseStage,
    Ended,
    check_claim,
    check_end,
    drive,
    driven,
    told,
    wait_reopened,
)

_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(BaseStage[Spec]):
    """Of an online DDL."""

    @classmethod
    def at(
        cls, ends: Mapping[str, SourceUrl], spec: Spec, stop: threading.Event, notify: Callable[[str], None]
    ) -> Stage:
        """ends: the source."""
        return cls(url=ends["source"], spec=spec, stop=stop, notify=notify)

    def ended(self, driver: Driver | None, error: VReplicationError) -> Result:
        return ending.ended(self.url, self.workflow, driver, error)

    def targets(self) -> list[tuple[str, str]]:
        return [self.spec.table_parts(self.url.database)]


def plan(stage: Stage) -> Plan | None:
    """Every check; touches nothing. None: the workflow exists and goes on. Raises Ended."""
    with told(stage, None), connect(stage.url, read_timeout=TABLE_SECONDS) as session:
        check_claim(stage, session)
        found = workflows.find(session, stage.workflow)
        if found is not None:
            resume.check_same(session, found, stage.spec)
            return None
        made = make_plan(session, stage.spec)
        if made.refusals:
            raise Refused(" ".join(f"{r.sentence} {r.cure}".strip() for r in made.refusals))
        return made


def prepare_tables(stage: Stage) -> None:
    """Shadow table, sidecar rows, start position; of a workflow that exists nothing is done again."""
    with told(stage, None):
        made = None if _is_prepared(stage) else _begun(stage)
    if made is not None:
        spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)
        with driven(stage, Elsewhere(stage.url, stage.workflow, None)) as driver:
            ACTS["prepare"](Work(driver=driver, spark=spark, spec=stage.spec, plan=made, is_whole=False))


def _begun(stage: Stage) -> Plan | None:
    return run.plan_or_resume(stage.spec, stage.url, stage.stop, by=stage.by, claimant=stage.claimant)


def _is_prepared(stage: Stage) -> bool:
    with connect(stage.url) as session:
        check_claim(stage, session)
        found = workflows.find(session, stage.workflow)
        if found is not None:
            resume.check_same(session, found, stage.spec)
            _check_log(session, found)
        is_prepared = found is not None and prepare.is_done(found)
        if found is not None and is_prepared and not found.is_cut:
            resume.take_options(session, found, stage.spec)
        return is_prepared


def _check_log(session: Session, row: WorkflowRow) -> None:
    """A log that cannot be read on ends the workflow: nobody who waits for its catch-up need wait on."""
    try:
        failover.check_log(session, row)
    except SourceChanged as error:
        if not row.has_ended:
            workflows.move(session, row.id, Phase.FAILED, str(error))
            journal.write(session, row.id, "failed", str(error), actor=lease.me())
        raise


def catch_up(stage: Stage) -> None:
    """From before the first chunk until the gate has been passed."""
    with told(stage, None):
        wait_reopened(stage)
        with connect(stage.url) as session:
            row = workflows.load(session, stage.workflow)
            # Switched elsewhere since the task before it died: there is nothing for it, not even the table by its name.
            if row.is_in_place or row.is_cut:
                return
            _check_log(session, row)
            failover.follow(session, row)
        replicate(stage.url, stage.workflow, stage.stop, is_alone=True)
        check_end(stage, lambda session: workflows.load(session, stage.workflow).is_cut)


def copy(stage: Stage) -> None:
    """Copy every split and wait until each chunk is matched. Gives up, to be called again, when catch-up is away."""
    _act(stage, "copy", Elsewhere(stage.url, stage.workflow, COPY_PATIENCE_SECONDS))


def verify(stage: Stage) -> None:
    _act(stage, "verify", Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS))


def verify_again(stage: Stage, is_enough: Callable[[], bool]) -> bool:
    """While it waits at the gate. `is_enough` ends it early, and then the last verification counts. False: not now."""
    spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)

    def act(driver: Driver) -> bool:
        if in_place.is_in_place(driver) or resume.is_switched(driver):
            return True
        finish_copying(Work(driver=driver, spark=spark, spec=stage.spec, is_whole=False))
        return comparing.verify_again(driver, spark, is_enough)

    return drive(stage, Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS), act, spark)


def enter_gate(stage: Stage) -> None:
    """The workflow waits from here on; who opens the gate is the caller's affair."""
    _act(stage, "gate", Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS), at_once=False)


def cut_over(stage: Stage) -> None:
    """Switch the tables, with a catch-up of its own from the checkpoint."""
    _act(stage, "cut_over", None, at_once=False)


def clean_up(stage: Stage) -> Result:
    """After the cut-over; returns how the workflow ended."""
    with connect(stage.url) as session:
        if workflows.load(session, stage.workflow).phase is Phase.COMPLETE:
            return ending.completed_of(session, stage.workflow)

    def act(driver: Driver) -> Result:
        if not resume.is_switched(driver):
            raise Terminal("The tables have not been switched.")
        spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)
        ACTS["clean_up"](Work(driver=driver, spark=spark, spec=stage.spec, is_whole=False))
        return ending.completed(driver)

    return drive(stage, Elsewhere(stage.url, stage.workflow, None), act)


def keep_level(stage: Stage) -> bool:
    """Behind the end, until it has been reverted or the time is over. False: there is no way back. Raises Ended."""
    with told(stage, None), connect(stage.url) as session:
        back = reverting.way_back(session, stage.workflow)
        # Somebody may do so at the command line.
        while back and back.phase not in OVER and lease.is_alive(session, back.id, lease.DRIVER):
            if stage.stop.wait(_LOOK_SECONDS):
                raise Interrupted("Interrupted.")
            back = workflows.load(session, back.id)
    if back is None or back.phase in OVER:
        return back is not None
    result = run.run(spec_of({**back.spec, "workflow": back.id}), stage.url, stop=stage.stop, notify=stage.notify)
    if result.event not in ("complete", "cancelled"):
        raise Ended(result, may_retry=not _has_failed(stage, back.id))
    ending.note_told(stage.url, result)
    return True


def _has_failed(stage: Stage, workflow: str) -> bool:
    with connect(stage.url) as session:
        return workflows.load(session, workflow).phase is Phase.FAILED


TASKS: Mapping[str, Callable[[Stage], Any]] = {
    "prepare": prepare_tables,
    "replicate": catch_up,
    "copy": copy,
    "verify": verify,
    "gate": enter_gate,
    "cut_over": cut_over,
    "clean_up": clean_up,
}
"""What a scheduler calls for the stages of planning/stages.py, by their names."""


def _act(stage: Stage, name: str, child: CatchUp | None, *, at_once: bool = True) -> None:
    """What the command does at this stage, unless the tables have been switched. at_once: Spark starts meanwhile."""
    spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)

    def act(driver: Driver) -> None:
        if not resume.is_switched(driver):
            if at_once and not in_place.is_in_place(driver):
                spark.is_starting()
            ACTS[name](Work(driver=driver, spark=spark, spec=stage.spec, is_whole=False))

    drive(stage, child, act, spark)
