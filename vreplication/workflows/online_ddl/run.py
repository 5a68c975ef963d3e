"""Online DDL: alter a live table. The whole flow of it, on one screen.

What must stay true: `run` never raises an error of ours, it returns how the workflow ended; the source table is
untouched until the cut-over; whatever ends us, the same call with the same workflow id goes on. A server that goes away
and comes back does not end us: we go on as that call would. What was verified before the server went away is verified
again, for a server may come back without the end of its log (docs/limits.md).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from vreplication.engine.child import CatchUp
from vreplication.engine.driver import Driver, loaded_catch_up, through_outages
from vreplication.engine.result import Result
from vreplication.errors import Interrupted, Refused, Terminal, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.phases import OVER, Phase
from vreplication.planning import strategy
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec
from vreplication.planning.stages import STAGES
from vreplication.planning.strategy import ONLINE
from vreplication.settings import SIGNAL_SECONDS, TABLE_SECONDS
from vreplication.spark.session import Spark, SparkStart
from vreplication.state import ids, ledger, operator_requests, workflows
from vreplication.state.operator_requests import OperatorRequests
from vreplication.workflows.online_ddl import (
    cleaning,
    comparing,
    copying,
    cut_over,
    ending,
    in_place,
    prepare,
    resume,
    standing_in,
)
from vreplication.workflows.online_ddl.switching import Company

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a stage works with. plan: None where the tables are prepared. is_whole: this process runs all stages."""

    driver: Driver
    spark: Spark
    spec: Spec
    plan: Plan | None = None
    is_whole: bool = True
    at_gate: Callable[[], None] = lambda: None
    company: Company | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What several runs share, as one of them has it.

    asked: what operators have asked of all of them. at_gate: called once nothing more of it is to be copied. company:
    those that are switched together; None: each is by itself.
    """

    spark: Spark
    child: CatchUp
    asked: Callable[[], OperatorRequests]
    at_gate: Callable[[], None]
    company: Company | None = None


def run(
    spec: Spec,
    url: SourceUrl,
    *,
    stop: threading.Event,
    notify: Callable[[str], None],
    lent: Lent | None = None,
    by: str = "",
) -> Result:
    """Plan, prepare, copy beside catch-up, verify, wait at the gate, switch, clean up; or go on where it stopped.

    by: who triggered it, for the journal.
    Who has told a person of a complete end calls `ending.note_told`; until then the same call returns it again.
    """
    workflow = spec.workflow or ""
    spark: Spark = (
        lent.spark if lent else SparkStart(spec.spark_master, spec.tasks, at_once=strategy.is_surely_online(spec))
    )
    driver: Driver | None = None
    child: CatchUp | None = None
    try:
        if told := resume.tell_late(url, spec):
            return told
        # Its program is loaded beside the planning: half a second that would lie before the first marker, and so
        # before the first chunk.
        child = lent.child if lent else loaded_catch_up(url, workflow)
        asked, is_together = (lent.asked, lent.company is not None) if lent else (OperatorRequests, False)
        plan = plan_or_resume(spec, url, stop, asked, is_together=is_together, is_member=lent is not None, by=by)
        _tell_notes(plan, notify)
        driver = Driver(url, workflow, stop, notify, child)
        if lent and lent.company:
            driver.check_others = lent.company.check
        driver.start()
        if not (lent or in_place.is_in_place(driver)):
            # Beside the preparation; where the server alters the table it is not needed.
            spark.is_starting()
        work = Work(driver=driver, spark=spark, spec=spec, plan=plan)
        if lent:
            work = replace(work, at_gate=lent.at_gate, company=lent.company)
        # Not again behind an outage: a preparation that was cut short is undone and begun anew, by the same command.
        ACTS["prepare"](work)
        result = through_outages(driver, functools.partial(to_the_end, work))
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


def _tell_notes(plan: Plan | None, notify: Callable[[str], None]) -> None:
    """Who did not ask for the plan has not seen what it only warns of."""
    for check in plan.checks if plan else ():
        if check.verdict is Verdict.WARN:
            notify(f"{check.name}: {check.sentence} {check.cure}".strip())


def _unexpected(error: Exception, stop: threading.Event) -> VReplicationError:
    """An interrupt, when a signal that ended a process that we rely on reaches us, too."""
    # Ctrl-C reaches Spark's JVM as it reaches us: that it has ended may be seen before our own signal is.
    if stop.wait(SIGNAL_SECONDS):
        return Interrupted("Interrupted.")
    return Terminal(f"Unexpected {type(error).__name__}: {error}")


def plan_or_resume(
    spec: Spec,
    url: SourceUrl,
    stop: threading.Event,
    asked_before: Callable[[], OperatorRequests] = OperatorRequests,
    *,
    is_together: bool = False,
    is_member: bool = False,
    by: str = "",
    claimant: str = "",
) -> Plan | None:
    """A plan that passed, its workflow row written; None when the workflow exists and goes on.

    asked_before: what was asked of a workflow that does not exist yet. is_together: those that are switched in one with
    it go on as well. is_member: of a group, whose run calls this. claimant: who has claimed it from the queue.

    Raises Refused, or Interrupted: then nothing was made. One that begins again keeps its row, with what was asked of
    it, until the next one takes its place; `prepare` looks at the interrupt.
    """
    spec = online(spec) if is_together else spec
    with connect(url, read_timeout=TABLE_SECONDS) as session:
        found = workflows.find(session, spec.workflow or "")
        if found is not None and resume.goes_on(session, found, spec, is_together=is_together):
            return None
        is_new = found is None
        if is_new and not is_member:
            ids.check_free(session, spec.workflow or "")
        _heed(stop, is_new)
        plan = _checked_plan(session, spec, is_new=is_new)
        reach("workflow.planned")
        _heed(stop, is_new)
        plan = prepare.create(session, plan, spec.workflow or "", by, claimant, is_anew=not is_new)
        # Of several, also what was asked while this one was planned: there was no row yet to write it to.
        operator_requests.write(session, spec.workflow or "", asked_before())
        return plan


def _checked_plan(session: Session, spec: Spec, *, is_new: bool) -> Plan:
    """Raises Refused; then nothing is left of one that was to begin again."""
    try:
        plan = make_plan(session, spec)
        if plan.refusals:
            raise Refused(" ".join(f"{r.sentence} {r.cure}".strip() for r in plan.refusals))
    except Refused:
        if not is_new:
            workflows.forget(session, spec.workflow or "")
        raise
    return plan


def online(spec: Spec) -> Spec:
    """The same of a table that is switched together with others: one RENAME does it for all."""
    return spec.model_copy(update={"strategy": ONLINE})


def _heed(stop: threading.Event, is_new: bool) -> None:
    if is_new and stop.is_set():
        raise Interrupted("Interrupted before anything was made.")


def to_the_end(work: Work) -> Result:
    """From where the sidecar and the tables say that the workflow stands."""
    if resume.is_switched(work.driver):
        if work.company:
            work.company.note_switched()
        ACTS["clean_up"](work)
    else:
        flow(work)
    return ending.completed(work.driver)


def flow(work: Work) -> None:
    """All that follows when the tables have been prepared."""
    for stage in STAGES:
        if stage.after:
            ACTS[stage.name](work)


def _prepare(work: Work) -> None:
    if work.plan is None or _is_prepared(work):
        return
    act = in_place.prepare if work.plan.strategy.is_in_place else prepare.prepare
    act(work.driver, work.plan)


def _is_prepared(work: Work) -> bool:
    """By another process, between our plan and our lease: to make its tables anew would take them away from it."""
    row = workflows.load(work.driver.session, work.driver.workflow)
    is_prepared = prepare.is_done(row) and row.phase not in OVER
    if not is_prepared and work.plan is not None:
        workflows.check_is_ours(row, work.plan.begun_at)
    return is_prepared


def _unless_in_place(act: Callable[[Work], None]) -> Callable[[Work], None]:
    """Where the server alters the table itself nothing is copied, followed and compared."""

    def acting(work: Work) -> None:
        if not in_place.is_in_place(work.driver):
            act(work)

    return acting


def _replicate(work: Work) -> None:
    work.driver.start_replicate()


def _copy(work: Work) -> None:
    copying.copy(work.driver, work.spark)
    copying.catch_up(work.driver)


def _verify(work: Work) -> None:
    finish_copying(work)
    comparing.compare(work.driver, work.spark)


def _gate(work: Work) -> None:
    """The workflow waits from here on; what it waits for is seen to where the tables are switched."""
    work.driver.move(Phase.WAITING)
    work.at_gate()


def _cut_over(work: Work) -> None:
    """In the window where there is one: what opened a gate may be long ago, and what blocked the cut-over had to go."""
    if in_place.is_in_place(work.driver):
        if in_place.switch(work.driver, is_manual=work.spec.needs_release, window=work.spec.cutover_window):
            return
        # The table has refused it, and the workflow has been prepared anew: these stages were passed over before.
        if work.is_whole:
            for name in ("replicate", "copy", "verify", "gate"):
                ACTS[name](work)
    if not work.is_whole:
        work.driver.start_replicate()
        finish_copying(work)
        # The stages before had a catch-up of their own: what they have seen matched may be of before a crash (R14).
        copying.wait_matched(work.driver)
        comparing.compare_by_another_zone(work.driver, work.spark)
    # Also where a scheduler's gate is passed: a task that somebody marks as success has released nothing.
    is_manual, window = work.spec.needs_release, work.spec.cutover_window
    cut_over.switch(work.driver, work.spark, is_manual=is_manual, window=window, company=work.company)


def _clean_up(work: Work) -> None:
    cleaning.clean_up(work.driver)


def finish_copying(work: Work) -> None:
    """A stage that was killed while it copied ranges again has left their splits to us; nobody else comes for them.

    Nor for a stand-in that still has the rows: a replica may have been promoted without the end of the log.
    """
    session, workflow = work.driver.session, work.driver.workflow
    if work.is_whole:
        return
    is_copied = all(s.is_done for s in ledger.splits(session, workflow))
    if not is_copied or standing_in.left(session, workflows.load(session, workflow)):
        _copy(work)


ACTS: Mapping[str, Callable[[Work], None]] = {
    "prepare": _prepare,
    "replicate": _unless_in_place(_replicate),
    "copy": _unless_in_place(_copy),
    "verify": _unless_in_place(_verify),
    "gate": _gate,
    "cut_over": _cut_over,
    "clean_up": _clean_up,
}
"""What the stages do, under the driver's lease."""
