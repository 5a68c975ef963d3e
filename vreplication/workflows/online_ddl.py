"""Online DDL: alter a live table. The whole flow of it, on one screen.

What must stay true: `run` never raises an error of ours, it returns how the workflow ended; the source table is
untouched until the switch; whatever ends us, the same call with the same workflow id goes on. A server that goes away
and comes back does not end us: we go on as that call would. What was verified before the server went away is verified
again, for a server may come back without the end of its log (docs/limits.md).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from vreplication.errors import Ambiguous, Interrupted, Refused, Terminal, VReplicationError
from vreplication.mysql.session import ConnectionLost, LockWait, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec
from vreplication.settings import SIGNAL_SECONDS, TABLE_SECONDS
from vreplication.state import workflows
from vreplication.state.wishes import Wishes
from vreplication.workflows import ending, prepare, resume, steps
from vreplication.workflows.child import CatchUp
from vreplication.workflows.driver import Driver, loaded_catch_up
from vreplication.workflows.result import Result
from vreplication.workflows.spark import SparkStart

log = logging.getLogger(__name__)

T = TypeVar("T")


def run(spec: Spec, url: SourceUrl, *, stop: threading.Event, notify: Callable[[str], None]) -> Result:
    """Plan, prepare, copy beside catch-up, verify, wait at the gate, switch, clean up; or go on where it stopped.

    Who has told a person of a complete end calls `ending.note_told`; until then the same call returns it again.
    """
    workflow = spec.workflow or ""
    spark = SparkStart(spec.spark_master, spec.tasks)
    driver: Driver | None = None
    child: CatchUp | None = None
    try:
        if told := resume.tell_late(url, spec):
            return told
        child = loaded_catch_up(url, workflow)
        plan = plan_or_resume(spec, url, stop)
        driver = Driver(url, workflow, stop, notify, child)
        driver.start()
        if plan is not None:
            prepare.prepare(driver, plan)
        result = through_outages(driver, functools.partial(to_the_end, driver, spark, spec))
        driver.note_done()
        return result
    except VReplicationError as error:
        return ending.ended(url, workflow, driver, error)
    except Exception as error:  # a fault of ours, or of Spark's: told like any other failure, with what is left behind
        log.exception("workflow %s ended by an unexpected error", workflow)
        return ending.ended(url, workflow, driver, _unexpected(error, stop))
    finally:
        spark.stop()
        if driver:
            driver.close()
        elif child:
            child.end()


def _unexpected(error: Exception, stop: threading.Event) -> VReplicationError:
    """An interrupt, when a signal that ended a process that we rely on reaches us, too."""
    if stop.wait(SIGNAL_SECONDS):
        return Interrupted("Interrupted.")
    return Terminal(f"Unexpected {type(error).__name__}: {error}")


def plan_or_resume(spec: Spec, url: SourceUrl, stop: threading.Event) -> Plan | None:
    """A plan that passed, its workflow row written; None when the workflow exists and goes on.

    Raises Refused, or Interrupted: then nothing was made. One that begins again keeps what was asked of it: it is
    written first, and `prepare` heeds the interrupt.
    """
    with connect(url, read_timeout=TABLE_SECONDS) as session:
        found = workflows.find(session, spec.workflow or "")
        asked = Wishes() if found is None else resume.begin_again(session, found, spec)
        if asked is None:
            return None
        is_new = found is None
        _heed(stop, is_new)
        plan = make_plan(session, spec)
        if plan.refusals:
            raise Refused(" ".join(f"{r.sentence} {r.cure}".strip() for r in plan.refusals))
        reach("workflow.planned")
        _heed(stop, is_new)
        prepare.create(session, plan, spec.workflow or "", asked)
        return plan


def _heed(stop: threading.Event, is_new: bool) -> None:
    if is_new and stop.is_set():
        raise Interrupted("Interrupted before anything was made.")


def through_outages(driver: Driver, act: Callable[[], T]) -> T:
    """Do it, and from wherever it stands do it again each time the server was lost and is back, or a lock is gone."""
    while True:
        try:
            return act()
        except (ConnectionLost, Ambiguous, LockWait) as error:
            driver.ride_out(error)


def to_the_end(driver: Driver, spark: SparkStart, spec: Spec) -> Result:
    """From where the sidecar and the tables say that the workflow stands."""
    if resume.is_switched(driver):
        steps.clean_up(driver)
    else:
        flow(driver, spark, spec)
    return ending.completed(driver)


def flow(driver: Driver, spark: SparkStart, spec: Spec) -> None:
    """From the first chunk to the last clean-up."""
    driver.start_replicate()
    steps.copy(driver, spark)
    steps.catch_up(driver)
    steps.compare(driver, spark)
    steps.switch(driver, spark, is_manual=spec.needs_release, window=spec.cutover_window)
    steps.clean_up(driver)
