"""MoveTables: tables move from one server to another. The whole flow of it, on one screen.

What must stay true: `run` never raises an error of ours, it returns how the workflow ended; until the switch is decided
the source's tables are untouched and serve; whatever ends us, the same call with the same workflow id goes on, from
what home and both servers say.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping

from vreplication.engine.child import StreamCatchUp, StreamProcess
from vreplication.engine.driver import through_outages
from vreplication.engine.result import Result
from vreplication.errors import Cancelled, LeaseHeld, Refused, Terminal, VReplicationError
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import Session, connect
from vreplication.pausepoints import reach
from vreplication.phases import OVER, Phase
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Spark, SparkStart
from vreplication.state import journal, layout, lease, moves, workflows
from vreplication.state.moves import Side
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.move_tables import copying, ending, opening, prepare, sides, steps, streams, switch
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import MovePlan, make_move_plan
from vreplication.workflows.move_tables.spec import MoveSpec
from vreplication.workflows.move_tables.stages import STAGES
from vreplication.workflows.move_tables.steps import Work

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
    by: str = "",
) -> Result:
    """Move the tables, follow the way back, and complete; or go on where it stopped. by: who triggered it."""
    workflow = spec.workflow or ""
    driver: MoveDriver | None = None
    # Beside the planning: of 10.8 s for 2,097,152 rows its start alone took one.
    spark: Spark = SparkStart(spec.spark_master, spec.tasks, at_once=_is_to_be_copied(route, workflow))
    try:
        plan = plan_or_resume(spec, route, by)
        with connect(route.home) as home:
            # What was asked for when it began holds on.
            spec = MoveSpec.model_validate(workflows.load(home, workflow).spec)
            number = moves.load(home, workflow).number
        driver = MoveDriver(route, workflow, stop, notify, make_child(route, workflow, number))
        driver.start()
        work = Work(driver=driver, spark=spark, spec=spec, plan=plan, number=number)
        # Not again behind an outage: a preparation that was cut short is undone and begun anew, by the same command.
        ACTS["prepare"](work)
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


def _is_to_be_copied(route: Route, workflow: str) -> bool:
    """Then Spark starts while it is planned. False where that is not known: who asks for Spark has it started, too."""
    try:
        with connect(route.home) as home:
            row = workflows.find(home, workflow)
    except VReplicationError:
        return False
    return row is None or row.phase in (Phase.PREPARING, Phase.COPYING)


def plan_or_resume(spec: MoveSpec, route: Route, by: str = "", claimant: str = "") -> MovePlan | None:
    """A plan that passed, its rows written; None when the workflow exists and goes on. Raises Refused.

    claimant: who has claimed it from the queue.
    """
    workflow = spec.workflow or ""
    with route.open(read_timeout=TABLE_SECONDS) as ends:
        found = workflows.find(ends.home, workflow)
        if found is not None:
            if _goes_on(ends.home, found, spec):
                return None
            prepare.forget_marks(ends.source, workflow)
        try:
            plan = checked_plan(ends, spec, route)
        except Refused:
            if found is not None:
                prepare.forget(ends.home, workflow)
            raise
        reach("workflow.planned")
        return prepare.create(ends.source, ends.home, plan, workflow, by, claimant, is_anew=found is not None)


def checked_plan(ends: Ends, spec: MoveSpec, route: Route) -> MovePlan:
    """Touches nothing. Raises Refused with every check that says no."""
    with route.open_replica(read_timeout=TABLE_SECONDS) as replica:
        plan = make_move_plan(ends.source, ends.home, spec, replica)
    if plan.refusals:
        raise Refused(" ".join(f"{r.sentence} {r.cure}".strip() for r in plan.refusals))
    return plan


def _goes_on(home: Session, row: WorkflowRow, spec: MoveSpec) -> bool:
    """False for one whose preparation was cut short: nothing but its row is left then, and is to be replaced."""
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
        take_hook(home, row, spec)
        return True
    # Its connections end first: a preparation that is only stopped would go on, and make tables behind the undo.
    lease.acquire(home, row.id, lease.DRIVER)
    prepare.undo(home, row.id)
    prepare.forget_tables(home, row.id)
    return False


def take_hook(home: Session, row: WorkflowRow, spec: MoveSpec) -> None:
    """The one thing that may be asked for otherwise: one that never says yes would keep the workflow from its end."""
    if spec.on_switch and spec.on_switch != row.spec.get("on_switch"):
        workflows.set_spec(home, row.id, {**row.spec, "on_switch": spec.on_switch})
        journal.write(home, row.id, "hook changed", "the application is told by another one", actor=lease.me())


def to_the_end(work: Work) -> Result:
    """From where home says that the workflow stands, through as many switches as are asked for."""
    begin(work)
    for stage in STAGES:
        if stage.after:
            ACTS[stage.name](work)
    return ending.completed_of(work.driver.session, work.driver.workflow)


def begin(work: Work) -> None:
    """Bring a switch that a driver before us has left to its end; then the number counts (W10)."""
    driver = work.driver
    work.number = moves.load(driver.session, driver.workflow).number
    while sides.persist(driver, functools.partial(opening.settle, work)):
        told(work)
        work.number = moves.load(driver.session, driver.workflow).number
    driver.note_serving(is_source=streams.is_forward(work.number))


def _prepare(work: Work) -> None:
    if work.plan is not None and not _is_prepared(work):
        prepare.prepare(work.driver, work.plan)


def _is_prepared(work: Work) -> bool:
    """By another process, between our plan and our lease: to make its tables anew would take them away from it."""
    home, workflow = work.driver.session, work.driver.workflow
    row = workflows.load(home, workflow)
    is_prepared = prepare.is_done(workflows.tables(home, workflow)) and row.phase not in OVER
    if not is_prepared and work.plan is not None:
        workflows.check_is_ours(row, work.plan.begun_at)
    return is_prepared


def _replicate(work: Work) -> None:
    if _is_first(work):
        _start_replicate(work)


def _start_replicate(work: Work) -> None:
    work.driver.stream.follow(work.number)
    work.driver.start_replicate()


def _copy(work: Work) -> None:
    if _is_first(work):
        copying.copy(work)
        steps.catch_up(work)


def finish_copying(work: Work) -> None:
    """What was copied again when its process ended has left open splits, and no other stage comes for them."""
    if _is_first(work) and steps.has_open_splits(work):
        _copy(work)


def _verify(work: Work) -> None:
    finish_copying(work)
    if _is_first(work) and not steps.is_verified(work):
        steps.compare(work)


def _gate(work: Work) -> None:
    """The workflow waits from here on; what it waits for is seen to where the tables are switched."""
    if _is_first(work):
        work.driver.move(Phase.WAITING)


def _switch(work: Work) -> None:
    finish_copying(work)
    if _is_first(work):
        _switch_next(work)


def _is_first(work: Work) -> bool:
    """The tables have not been switched yet."""
    return work.number == 1


def _reverse_stream(work: Work) -> None:
    """Keep the other side level, and switch back, and there again, as often as is asked for; until it is to end."""
    with contextlib.suppress(_AskedToComplete):
        while streams.is_forward(work.number) or _is_way_back_wanted(work):
            _switch_next(work)


def _is_way_back_wanted(work: Work) -> bool:
    """Where its end was begun and cut short, the source's tables may have their retired names already."""
    move = moves.load(work.driver.session, work.driver.workflow)
    return work.spec.reverse and move.asked != moves.COMPLETE


def _switch_next(work: Work) -> None:
    """Catch-up of the stream, up to its switch. Raises _AskedToComplete."""
    _start_replicate(work)
    switch.switch(work, functools.partial(_is_asked, work))
    told(work)


def _is_asked(work: Work) -> bool:
    move = moves.load(work.driver.session, work.driver.workflow)
    if move.asked == moves.COMPLETE and move.serving is Side.TARGET:
        raise _AskedToComplete
    return steps.is_released(work) if move.serving is Side.SOURCE else move.asked == moves.REVERSE


def told(work: Work) -> None:
    """Behind a switch: catch-up of the stream that led to it is over, the hook is called, the next number counts."""
    driver = work.driver
    opening.tell(work)
    driver.child.end()
    driver.note_serving(is_source=not streams.is_forward(work.number))
    work.number += 1
    work.rechecks.clear()
    # Last: `vreplication reverse` waits for this phase.
    driver.move(Phase.SWITCHED if not streams.is_forward(work.number) else Phase.WAITING)


ACTS: Mapping[str, Callable[[Work], object]] = {
    "prepare": _prepare,
    "replicate": _replicate,
    "copy": _copy,
    "verify": _verify,
    "gate": _gate,
    "switch": _switch,
    "reverse_stream": _reverse_stream,
    "clean_up": ending.complete,
}
"""What the stages do, under the driver's lease; nothing where the workflow is past them."""


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
