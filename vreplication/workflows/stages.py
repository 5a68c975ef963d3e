"""The flow of a workflow, cut into stages that run as processes of their own, one after the other: what all kinds
share, and an online DDL's (those of tables that move: move_tables/tasks.py).

What must stay true: a stage is the same functions that the command calls; it takes the driver's lease, waiting for
who had it before, and gives it back; nothing passes from stage to stage but the workflow's id, so that any of them can
be killed and called again. A server that goes away and comes back does not end a stage that drives, as it does not end
the command. A stage that ends badly raises `Ended` with the Result that the command would have shown.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vreplication.clock import SYSTEM
from vreplication.errors import LeaseHeld, Refused, SourceChanged, Terminal, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Request, Spec
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Spark, SparkStart
from vreplication.state import gate, journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows import ending, failover, online_ddl, operate, prepare, resume, steps
from vreplication.workflows.child import CatchUp, CatchUpAway, Elsewhere
from vreplication.workflows.driver import Driver
from vreplication.workflows.online_ddl import ACTS, Work, finish_copying
from vreplication.workflows.replicate import replicate
from vreplication.workflows.result import Result

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=Request)
CATCH_UP_SECONDS = 6.0
"""A stage that needs catch-up gives up after this long without it: ten seconds with all that is around it."""
COPY_PATIENCE_SECONDS = 20.0
"""A copy keeps its place so long while catch-up is away, which may have to wait for a place of its own."""
REOPEN_SECONDS = 30.0
_LEASE_SECONDS = 30.0


class Ended(Exception):
    """A stage ended badly. `may_retry`: calling it again may help. `lacks_catch_up`: when catch-up runs again."""

    def __init__(self, result: Result, *, may_retry: bool, lacks_catch_up: bool = False) -> None:
        super().__init__(result.reason or result.event)
        self.result, self.may_retry, self.lacks_catch_up = result, may_retry, lacks_catch_up


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStage(Generic[R]):
    """What every stage is called with. `spec.workflow` is set. url: of the server where the state is."""

    url: SourceUrl
    spec: R
    stop: threading.Event
    notify: Callable[[str], None]

    @property
    def workflow(self) -> str:
        return self.spec.workflow or ""

    def driver(self, child: CatchUp | None) -> Driver:
        return Driver(self.url, self.workflow, self.stop, self.notify, child)

    def ended(self, driver: Driver | None, error: VReplicationError) -> Result:
        """As the command would end."""
        raise NotImplementedError

    def targets(self) -> list[tuple[str, str]]:
        """(schema, table) of what the workflow has changed."""
        raise NotImplementedError


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
        made = None if _is_prepared(stage) else online_ddl.plan_or_resume(stage.spec, stage.url, stage.stop)
    if made is not None:
        spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=False)
        with driven(stage, Elsewhere(stage.url, stage.workflow, None)) as driver:
            ACTS["prepare"](Work(driver=driver, spark=spark, spec=stage.spec, plan=made, is_whole=False))


def _is_prepared(stage: Stage) -> bool:
    with connect(stage.url) as session:
        found = workflows.find(session, stage.workflow)
        if found is not None:
            resume.check_same(session, found, stage.spec)
            _check_log(session, found)
        return found is not None and prepare.is_done(found)


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
            _check_log(session, row)
            failover.follow(session, row)
        replicate(stage.url, stage.workflow, stage.stop, is_alone=True)
        check_end(stage, lambda session: workflows.load(session, stage.workflow).is_cut)


def wait_reopened(stage: BaseStage[Any]) -> None:
    """Going on after a failure is for the stage beside this one to begin, which was called again at the same time."""
    deadline = SYSTEM.monotonic() + REOPEN_SECONDS
    with connect(stage.url) as session:
        while workflows.load(session, stage.workflow).phase is Phase.FAILED and SYSTEM.monotonic() < deadline:
            if stage.stop.wait(0.2):
                return


def check_end(stage: BaseStage[Any], is_cut: Callable[[Session], bool]) -> None:
    """Catch-up also ends when the workflow does, or when this process is to: then it has not succeeded."""
    with connect(stage.url) as session:
        row = workflows.load(session, stage.workflow)
        is_released = gate.released_by(session, stage.workflow) is not None
        is_over = is_cut(session)
    if is_over or row.phase is Phase.COMPLETE or (is_released and row.phase in (Phase.WAITING, Phase.CUTTING_OVER)):
        return
    if row.is_cancel_requested or row.phase in (Phase.FAILED, Phase.CANCELLED):
        raise Terminal(row.reason or "The workflow was cancelled.")
    raise Transient("Catch-up was stopped.")


def copy(stage: Stage) -> None:
    """Copy every split and wait until each chunk is matched. Gives up, to be called again, when catch-up is away."""
    _act(stage, "copy", Elsewhere(stage.url, stage.workflow, COPY_PATIENCE_SECONDS))


def verify(stage: Stage) -> None:
    _act(stage, "verify", Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS))


def verify_again(stage: Stage, is_enough: Callable[[], bool]) -> None:
    """While it waits at the gate. `is_enough` ends it early, and then the last verification counts."""
    spark = SparkStart(stage.spec.spark_master, stage.spec.tasks)

    def act(driver: Driver) -> None:
        if not resume.is_switched(driver):
            finish_copying(Work(driver=driver, spark=spark, spec=stage.spec, is_whole=False))
            steps.verify_again(driver, spark, is_enough)

    drive(stage, Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS), act, spark)


def enter_gate(stage: Stage) -> None:
    """The workflow waits from here on; who opens the gate is the caller's affair."""
    _act(stage, "gate", Elsewhere(stage.url, stage.workflow, CATCH_UP_SECONDS), at_once=False)


def release(stage: BaseStage[Any], by: str) -> None:
    """Open the gate unless somebody has."""
    with told(stage, None):
        operate.release_once(stage.url, stage.workflow, by)


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
    spark = SparkStart(stage.spec.spark_master, stage.spec.tasks, at_once=at_once)

    def act(driver: Driver) -> None:
        if not resume.is_switched(driver):
            ACTS[name](Work(driver=driver, spark=spark, spec=stage.spec, is_whole=False))

    drive(stage, child, act, spark)


def drive(stage: BaseStage[Any], child: CatchUp | None, act: Callable[[Driver], T], spark: Spark | None = None) -> T:
    """Do it under the driver's lease, and again from where it stands when the server was away. Raises Ended."""
    with driven(stage, child, spark) as driver:
        return online_ddl.through_outages(driver, functools.partial(act, driver))


@contextlib.contextmanager
def driven(stage: BaseStage[Any], child: CatchUp | None, spark: Spark | None = None) -> Iterator[Driver]:
    """A driver that holds the lease for the time of a block. Raises Ended."""
    driver: Driver | None = None
    try:
        with told(stage, lambda: driver):
            driver = stage.driver(child)
            _take_lease(driver, stage)
            yield driver
    finally:
        if driver:
            driver.close()
        if spark:
            spark.stop()


def _take_lease(driver: Driver, stage: BaseStage[Any]) -> None:
    """The stage before may have been killed: its heartbeat has to grow old first."""
    deadline = SYSTEM.monotonic() + _LEASE_SECONDS
    while True:
        try:
            return driver.start()
        except LeaseHeld:
            if SYSTEM.monotonic() > deadline or stage.stop.wait(0.5):
                raise


@contextlib.contextmanager
def told(stage: BaseStage[Any], driver: Callable[[], Driver | None] | None) -> Iterator[None]:
    """Turn an error into Ended, as the command would end; what may be tried again leaves the workflow as it is."""
    try:
        yield
    except VReplicationError as error:
        if isinstance(error, LeaseHeld) or not isinstance(error, Terminal):
            result = Result(event="interrupted", workflow=stage.workflow, reason=str(error), exit_code=1)
            raise Ended(result, may_retry=True, lacks_catch_up=isinstance(error, CatchUpAway)) from error
        result = stage.ended(driver() if driver else None, error)
        raise Ended(result, may_retry=result.event == "interrupted") from error
