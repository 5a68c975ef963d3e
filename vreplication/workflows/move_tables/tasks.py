"""The stages of a move as processes of their own: what Airflow's tasks call.

What must stay true: as in workflows/stages.py. Up to the first switch catch-up is a stage of its own beside the others;
from there on whoever drives the workflow has it as a child, as the command does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from vreplication.engine.child import CatchUp, StreamCatchUp, StreamElsewhere, StreamProcess
from vreplication.engine.driver import Driver
from vreplication.engine.replicate import replicate_stream
from vreplication.engine.result import Result
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Spark, SparkStart
from vreplication.state import moves, workflows
from vreplication.workflows import operate
from vreplication.workflows.move_tables import ending, prepare, run, steps, streams
from vreplication.workflows.move_tables import operate as moving
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import MovePlan
from vreplication.workflows.move_tables.run import ACTS
from vreplication.workflows.move_tables.spec import MoveSpec
from vreplication.workflows.move_tables.steps import Work
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStage(BaseStage[MoveSpec]):
    """What every stage of a move is called with."""

    route: Route

    @classmethod
    def at(
        cls, ends: Mapping[str, SourceUrl], spec: MoveSpec, stop: threading.Event, notify: Callable[[str], None]
    ) -> MoveStage:
        """ends: source and target, and a replica where there is one to be read."""
        route = Route(source=ends["source"], target=ends["target"], home=ends["target"], replica=ends.get("replica"))
        return cls(url=route.home, route=route, spec=spec, stop=stop, notify=notify)

    def driver(self, child: CatchUp | None) -> MoveDriver:
        own = cast(StreamCatchUp, child) if child else StreamProcess(self.route, self.workflow, 1)
        return MoveDriver(self.route, self.workflow, self.stop, self.notify, own)

    def ended(self, driver: Driver | None, error: VReplicationError) -> Result:
        return ending.ended(self.route, self.workflow, cast("MoveDriver | None", driver), error)

    def targets(self) -> list[tuple[str, str]]:
        with connect(self.url) as session:
            schema = moves.load(session, self.workflow).target_schema
            return [(schema, table.source_table) for table in workflows.tables(session, self.workflow)]


def plan(stage: MoveStage) -> MovePlan | None:
    """Every check; touches nothing. None: the workflow exists and goes on. Raises Ended."""
    with told(stage, None), stage.route.open(read_timeout=TABLE_SECONDS) as ends:
        check_claim(stage, ends.home)
        found = workflows.find(ends.home, stage.workflow)
        if found is None:
            return run.checked_plan(ends, stage.spec, stage.route)
        if words := moving.check_begin(stage.spec, stage.route):
            stage.notify(words)
        return None


def prepare_tables(stage: MoveStage) -> None:
    """Tables on the target, sidecar rows, start position; of a workflow that exists nothing is done again."""
    with told(stage, None):
        made = None if _is_prepared(stage) else _begun(stage)
    if made is not None:
        spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)
        with driven(stage, _elsewhere(stage, None)) as driver:
            ACTS["prepare"](Work(driver=cast(MoveDriver, driver), spark=spark, spec=stage.spec, plan=made))


def _begun(stage: MoveStage) -> MovePlan | None:
    return run.plan_or_resume(stage.spec, stage.route, stage.by, stage.claimant)


def _is_prepared(stage: MoveStage) -> bool:
    moving.check_begin(stage.spec, stage.route)
    with connect(stage.url) as session:
        check_claim(stage, session)
        found = workflows.find(session, stage.workflow)
        if found is None or not prepare.is_done(workflows.tables(session, stage.workflow)):
            return False
        run.take_hook(session, found, stage.spec)
        return True


def catch_up(stage: MoveStage) -> None:
    """From before the first chunk until the gate has been passed."""
    with told(stage, None):
        wait_reopened(stage)
        with connect(stage.url) as home:
            is_over = streams.is_over(home, stage.workflow, 1)
        # Behind the switch there is nothing for it, not even the tables by their hidden names.
        if not is_over:
            replicate_stream(streams.stream_of(stage.route, stage.workflow, 1), stage.stop, is_alone=True)
            check_end(stage, lambda home: streams.is_over(home, stage.workflow, 1))


def copy(stage: MoveStage) -> None:
    """Copy every split and wait until each chunk is matched. Gives up, to be called again, when catch-up is away."""
    _act(stage, "copy", _elsewhere(stage, COPY_PATIENCE_SECONDS), at_once=True)


def verify(stage: MoveStage) -> None:
    _act(stage, "verify", _elsewhere(stage, CATCH_UP_SECONDS), at_once=True)


def verify_again(stage: MoveStage, is_enough: Callable[[], bool]) -> bool:
    """While it waits at the gate. Where there is enough before it begins, the last one counts. False: not now."""

    def act(work: Work) -> bool:
        run.finish_copying(work)
        return work.number != 1 or is_enough() or steps.verify_again(work, is_enough)

    return bool(_drive(stage, act, _elsewhere(stage, CATCH_UP_SECONDS), at_once=True))


def enter_gate(stage: MoveStage) -> None:
    """The workflow waits from here on; who opens the gate is the caller's affair."""
    _act(stage, "gate", _elsewhere(stage, CATCH_UP_SECONDS))


def release(stage: MoveStage, by: str) -> None:
    """Open the gate of the first switch unless somebody has; who goes there a second time releases it himself."""
    with told(stage, None):
        with connect(stage.url) as session:
            is_first = moves.load(session, stage.workflow).number == 1
        if is_first:
            operate.release_once(stage.url, stage.workflow, by)


def switch(stage: MoveStage) -> None:
    """The first switch, with a catch-up of its own from the checkpoint."""
    _act(stage, "switch", None)


def reverse_stream(stage: MoveStage) -> None:
    """Keep both sides level, and switch back and there again, until somebody completes the workflow."""
    _act(stage, "reverse_stream", None)


def clean_up(stage: MoveStage) -> Result:
    """Behind the last switch; returns how the workflow ended."""
    with connect(stage.url) as session:
        if workflows.load(session, stage.workflow).phase is Phase.COMPLETE:
            return ending.completed_of(session, stage.workflow)
        # Before it drives: what is refused here leaves the workflow as it is.
        _check_is_asked(session, stage.workflow)
    return cast(Result, _drive(stage, ACTS["clean_up"], None))


def _check_is_asked(session: Session, workflow: str) -> None:
    try:
        ending.check_is_asked(session, workflow)
    except Refused as error:
        result = Result(event="refused", workflow=workflow, reason=str(error), exit_code=2)
        raise Ended(result, may_retry=False) from error


TASKS: Mapping[str, Callable[[Any], Any]] = {
    "prepare": prepare_tables,
    "replicate": catch_up,
    "copy": copy,
    "verify": verify,
    "gate": enter_gate,
    "switch": switch,
    "reverse_stream": reverse_stream,
    "clean_up": clean_up,
}
"""What a scheduler calls for the stages of move_tables/stages.py, by their names."""


def _elsewhere(stage: MoveStage, patience_seconds: float | None) -> StreamElsewhere:
    return StreamElsewhere(stage.url, stage.workflow, patience_seconds)


def _act(stage: MoveStage, name: str, child: CatchUp | None, *, at_once: bool = False) -> None:
    """What the command does at this stage. at_once: Spark starts meanwhile."""
    _drive(stage, ACTS[name], child, at_once=at_once)


def _drive(stage: MoveStage, act: Callable[[Work], object], child: CatchUp | None, *, at_once: bool = False) -> object:
    """Under the driver's lease, what an interrupted switch has left first; and again when a server was away."""
    spark: Spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=at_once)

    def work_on(driver: Driver) -> object:
        work = Work(driver=cast(MoveDriver, driver), spark=spark, spec=_spec(driver.session, stage))
        run.begin(work)
        return act(work)

    return drive(stage, child, work_on, spark)


def _spec(home: Session, stage: MoveStage) -> MoveSpec:
    """What was asked for when it began holds on."""
    return MoveSpec.model_validate(workflows.load(home, stage.workflow).spec)
