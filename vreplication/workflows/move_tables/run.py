"""MoveTables: tables move from one server to another. The whole flow of it, on one screen.

What must stay true: `run` never raises an error of ours, it returns how the workflow ended; until the switch is decided
the source's tables are untouched and serve; whatever ends us, the same call with the same workflow id goes on, from
what home and both servers say.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable

from vreplication.errors import Cancelled, LeaseHeld, Refused, Terminal, VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.session import connect
from vreplication.pausepoints import reach
from vreplication.phases import OVER, Phase
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Spark, SparkStart
from vreplication.state import layout, lease, moves, workflows
from vreplication.state.moves import Side
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.child import StreamCatchUp, StreamProcess
from vreplication.workflows.move_tables import ending, prepare, steps, streams, switch
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import MovePlan, make_move_plan
from vreplication.workflows.move_tables.spec import MoveSpec
from vreplication.workflows.move_tables.steps import Work
from vreplication.workflows.online_ddl import through_outages
from vreplication.workflows.result import Result

log = logging.getLogger(__name__)


class _AskedToComplete(Exception):
    """Of a workflow that waits for the way back: nobody wants it."""


def run(
    spec: MoveSpec,
    route: Route,
    *,
    stop: threading.Event,
    notify: Callable[[str], None],
    make_child: Callable[[Route, str, int], StreamCatchUp] = StreamProcess,
) -> Result:
    """Move the tables, follow the way back, and complete; or go on where it stopped."""
    workflow = spec.workflow or ""
    driver: MoveDriver | None = None
    spark: Spark = SparkStart(spec.spark_master, spec.tasks, at_once=False)
    try:
        plan = plan_or_resume(spec, route)
        with connect(route.home) as home:
            # What was asked for when it began holds on.
            spec = MoveSpec.model_validate(workflows.load(home, workflow).spec)
            number = moves.load(home, workflow).number
        driver = MoveDriver(route, workflow, stop, notify, make_child(route, workflow, number))
        driver.start()
        work = Work(driver=driver, spark=spark, spec=spec, number=number)
        if plan is not None:
            prepare.prepare(driver, plan)
        return through_outages(driver, functools.partial(to_the_end, work))
    except VReplicationError as error:
        return ending.ended(route, workflow, driver, error)
    except Exception as error:  # a fault of ours, or of Spark's: told like any other failure
        log.exception("workflow %s ended by an unexpected error", workflow)
        return ending.ended(route, workflow, driver, Terminal(f"Unexpected {type(error).__name__}: {error}"))
    finally:
        spark.stop()
        if driver:
            driver.close()


def plan_or_resume(spec: MoveSpec, route: Route) -> MovePlan | None:
    """A plan that passed, its rows written; None when the workflow exists and goes on. Raises Refused."""
    workflow = spec.workflow or ""
    with route.open(read_timeout=TABLE_SECONDS) as ends:
        found = workflows.find(ends.home, workflow)
        if found is not None and _goes_on(ends.home, found, spec):
            return None
        plan = make_move_plan(ends.source, ends.home, spec)
        if plan.refusals:
            raise Refused(" ".join(f"{r.sentence} {r.cure}".strip() for r in plan.refusals))
        reach("workflow.planned")
        prepare.create(ends.source, ends.home, plan, workflow)
        return plan


def _goes_on(home, row: WorkflowRow, spec: MoveSpec) -> bool:  # type: ignore[no-untyped-def]
    """False for one whose preparation was cut short: nothing of it is left then."""
    if row.kind != prepare.KIND:
        raise Refused(f"Workflow {row.id} is no move of tables.", cure="Give the new one another --workflow id.")
    if row.phase in OVER:
        raise Refused(f"Workflow {row.id} has ended ({row.phase}).", cure="Give the new one another --workflow id.")
    layout.complete(home)
    holder = lease.holder_of(home, row.id, lease.DRIVER)
    if holder and holder.is_alive:
        raise LeaseHeld(
            f"Workflow {row.id} is being worked on by {holder.name}.",
            cure=f"Watch it with `vreplication status {row.id} --watch`.",
        )
    if prepare.is_done(workflows.tables(home, row.id)):
        return True
    lease.acquire(home, row.id, lease.DRIVER)
    prepare.undo(home, row.id)
    prepare.forget(home, row.id)
    return False


def to_the_end(work: Work) -> Result:
    """From where home says that the workflow stands, through as many switches as are asked for."""
    driver = work.driver
    while True:
        work.number = moves.load(driver.session, driver.workflow).number
        if switch.persist(driver, functools.partial(switch.settle, work)):
            told(work)
            continue
        driver.note_serving(is_source=streams.is_forward(work.number))
        if not streams.is_forward(work.number) and not _is_way_back_wanted(work):
            return ending.complete(work)
        try:
            _follow(work)
        except _AskedToComplete:
            return ending.complete(work)
        told(work)


def _is_way_back_wanted(work: Work) -> bool:
    """Where its end was begun and cut short, the source's tables may have their retired names already."""
    move = moves.load(work.driver.session, work.driver.workflow)
    return work.spec.reverse and move.asked != moves.COMPLETE


def _follow(work: Work) -> None:
    """Keep the other side level, up to the switch. Raises _AskedToComplete."""
    driver = work.driver
    driver.stream.follow(work.number)
    driver.start_replicate()
    if work.number == 1:
        steps.copy(work)
        steps.catch_up(work)
        if not steps.is_verified(work):
            steps.compare(work)
    switch.switch(work, functools.partial(_is_asked, work))


def _is_asked(work: Work) -> bool:
    move = moves.load(work.driver.session, work.driver.workflow)
    if move.asked == moves.COMPLETE and move.serving is Side.TARGET:
        raise _AskedToComplete
    return steps.is_released(work) if move.serving is Side.SOURCE else move.asked == moves.REVERSE


def told(work: Work) -> None:
    """Behind a switch: catch-up of the stream that led to it is over, the hook is called, the next number counts."""
    driver = work.driver
    switch.tell(work)
    driver.child.end()
    driver.note_serving(is_source=not streams.is_forward(work.number))
    work.number += 1
    work.rechecks.clear()
    driver.move(Phase.SWITCHED if not streams.is_forward(work.number) else Phase.WAITING)


def cancel(route: Route, workflow: str, notify: Callable[[str], None] = lambda text: None) -> Result:
    """Remove what a workflow that nobody drives has made. Raises Refused after a switch, LeaseHeld."""
    driver = MoveDriver(route, workflow, threading.Event(), notify, StreamProcess(route, workflow, 1))
    try:
        driver.start()
        return ending.ended(route, workflow, driver, Cancelled("Cancelled by the operator."))
    except VReplicationError as error:
        return ending.ended(route, workflow, None, error)
    finally:
        driver.close()
