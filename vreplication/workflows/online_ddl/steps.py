"""The steps between preparation and the end: copy, catch up, verify, wait at the gate, cut over, clean up.

What must stay true: each is a function of the driver and what the sidecar says, so that a restart calls it again and
it goes on; nothing is handed from one step to the next in memory.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from vreplication.clock import SYSTEM
from vreplication.cutover import foreign
from vreplication.cutover.force import Caps, Force
from vreplication.cutover.reasons import OTHERS, Gate, Reason, why_closed
from vreplication.cutover.sentry import drop_table
from vreplication.engine import job, maintenance, recheck, spool
from vreplication.engine.driver import Driver
from vreplication.engine.job import Job
from vreplication.engine.recheck import Mismatch, Recheck
from vreplication.engine.saying import Saying
from vreplication.errors import BadValue, Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import Server, inspect, is_mariadb
from vreplication.mysql.session import ConnectionLost, LockWait, Session
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.planning.spec import RevertSpec, Spec, spec_of
from vreplication.rowcopy import ahead
from vreplication.rowcopy.repair import copy_keys, copy_ranges
from vreplication.rowcopy.spark_job import run_copy, slots
from vreplication.schema.introspect import exists
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Spark, SparkAway
from vreplication.state import (
    compared,
    dirty,
    journal,
    keytables,
    lease,
    ledger,
    markers,
    tuning,
    verdicts,
    workflows,
)
from vreplication.state.gate import released_by
from vreplication.state.ledger import Bound, KeyRange
from vreplication.state.tuning import Room
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow
from vreplication.verify import beside
from vreplication.verify.beside import Beside
from vreplication.verify.rounds import Examiner, markers_of
from vreplication.verify.verify import Caller, verify
from vreplication.workflows.online_ddl import conflicts, dedup, retrying, reverting, statistics, switching
from vreplication.workflows.online_ddl.retrying import Failed
from vreplication.workflows.online_ddl.switching import Company, Member, Tried
from vreplication.workflows.online_ddl.together import Together

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_RETRY_SECONDS = 60.0
"""Before a verification that could not begin is tried again."""
_CLEAR_SECONDS = 0.15
"""Between two reads of the gate that found nothing."""
_ASK_SECONDS = 1.0
"""How often a repeated verification asks whether it is still wanted."""
_MISMATCHES = 5
"""Attempts at the cut-over that may end in a difference under the lock."""


def copy(driver: Driver, spark: Spark) -> None:
    """Copy every split that is not done, on Spark; until that has started, one after the other here."""
    driver.move(Phase.COPYING)
    found = job.load(driver.session, driver.workflow)
    driver.describe(found.mapping.source, is_compared_beside=_is_compared_beside(found))
    # What was compared before a server was lost, or by a driver before us, counts for nothing.
    compared.forget(driver.session, driver.workflow)
    if any(not s.is_done for s in ledger.splits(driver.session, driver.workflow)):
        _copy_ahead(driver, spark, found)
        context = spark.context(driver.check)
        room = Room(slots=slots(context), holds_counter=found.holds_counter)
        tuning.note_room(driver.session, driver.workflow, room)
        run_copy(
            context,
            Route.within(driver.url),
            driver.lease,
            found.mapping,
            found.copy_job,
            on_tick=driver.check,
            asked=driver.asked,
            pace=driver.pace,
            compare=_beside(driver, found),
        )
    driver.freshen()
    rows = ledger.totals(driver.session, driver.workflow).rows_copied
    journal.once(driver.session, driver.lease, "copied", f"{rows:,} rows")
    reach("workflow.copied")


def _beside(driver: Driver, found: Job) -> Beside | None:
    """What compares chunks beside the copy; None where all is compared at the end."""
    mapping, is_mariadb = found.mapping, found.server.is_mariadb
    if not _is_compared_beside(found):
        return None
    workflow = driver.workflow
    ends = Ends.on(driver.session)
    examiner = Examiner(
        ends=ends,
        mapping=mapping,
        table=workflow,
        markers=markers_of(ends, workflow),
        is_mariadb=is_mariadb,
        check=driver.check,
    )
    if not (collection := beside.begin(examiner)):
        return None
    return Beside(mapping=mapping, workflow=workflow, lease=driver.lease, collection=collection, is_mariadb=is_mariadb)


def _is_compared_beside(found: Job) -> bool:
    is_large = (found.row.rows_total or 0) >= beside.LEAST_ROWS
    return is_large and found.mapping.has_same_order and not found.mapping.may_collide


def _copy_ahead(driver: Driver, spark: Spark, found: Job) -> None:
    if (found.row.rows_total or 0) >= ahead.LEAST_ROWS:
        ahead.copy_ahead(
            Route.within(driver.url),
            driver.lease,
            found.mapping,
            found.copy_job,
            is_over=lambda: not spark.is_starting(),
            check=driver.check,
        )


def catch_up(driver: Driver) -> None:
    """Wait until every chunk is matched; under a new unique key copy again what gave way to other rows."""
    driver.move(Phase.CATCHING_UP)
    reach("workflow.catching_up")
    wait_matched(driver)
    dedup.fill(driver)
    if not dirty.is_any(driver.session, driver.workflow):
        return
    found = job.load(driver.session, driver.workflow)
    if found.mapping.may_collide:
        conflicts.resolve(driver, found, functools.partial(_copy_keys, driver, found))


def wait_matched(driver: Driver) -> None:
    """Behind a fresh marker, so that what a crash left half done has been seen to."""
    marker = markers.write(driver.session, driver.workflow)
    while markers.find_applied(driver.session, driver.workflow, marker) is None:
        driver.wait(_POLL_SECONDS / 4)
    while not ledger.totals(driver.session, driver.workflow).is_all_matched:
        driver.wait(_POLL_SECONDS / 4)


def copy_again(driver: Driver, found: Job, ranges: Sequence[KeyRange], *, clear: bool) -> None:
    """Copy ranges again under the chunk protocol and wait until they are matched."""
    route = Route.within(driver.url)
    copy_ranges(route, driver.lease, found.mapping, found.copy_job, ranges, clear=clear, check=driver.check)
    wait_matched(driver)


def _copy_keys(driver: Driver, found: Job, keys: Sequence[Bound]) -> None:
    route = Route.within(driver.url)
    copy_keys(route, driver.lease, found.mapping, found.copy_job, keys, check=driver.check)
    wait_matched(driver)


def compare(driver: Driver, spark: Spark, is_enough: Callable[[], bool] = lambda: False) -> Verdict:
    """Verify every row under live writes. Raises BadValue when rows differ that stay wrong after copying again.

    is_enough: asked while nothing wrong has been found, when there is a verdict already; True ends it, and that counts.
    """
    driver.move(Phase.VERIFYING)
    found, before = job.load(driver.session, driver.workflow), verdicts.load(driver.session, driver.workflow)
    driver.describe(found.mapping.source)
    copied = ledger.totals(driver.session, driver.workflow).rows_copied
    driver.report(verify_rows=0, verify_total=copied or found.row.rows_total)
    comparing = _Comparing(driver=driver, job=found, is_enough=is_enough, before=before)
    try:
        verdict = verify(
            spark.context(comparing.check),
            Route.within(driver.url),
            found.mapping,
            Caller(pace=driver.pace, on_tick=comparing.tick, check=driver.check, announce=driver.announce),
            workflow=driver.workflow,
            is_mariadb=found.server.is_mariadb,
            repair=None if isinstance(found.spec, RevertSpec) else comparing.repair,
            parallelism=found.parallelism,
        )
    except _Enough as enough:
        verdict = enough.verdict
        driver.notify("verification interrupted; using the previous result")
    driver.report(verify_rows=verdict.rows_compared, verify_total=verdict.rows_compared)
    if verdict is not before:
        _judge(driver, verdict)
        dedup.compare(driver)
    # It may be hours until it is needed again, if ever.
    spark.release()
    reach("workflow.verified")
    return verdict


class _Enough(Exception):
    """A repeated verification need not come to its end."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict


@dataclass(slots=True, kw_only=True)
class _Comparing:
    """What a verification reports to. Once something was wrong it goes on to its end, whoever waits for it."""

    driver: Driver
    job: Job
    is_enough: Callable[[], bool]
    before: Verdict | None
    asked: float = 0.0

    def tick(self, rows: int) -> None:
        self.driver.report(verify_rows=rows)
        self._ask()

    def check(self) -> None:
        """While Spark starts."""
        self.driver.check()
        self._ask()

    def _ask(self) -> None:
        if self.before is None or SYSTEM.monotonic() - self.asked < _ASK_SECONDS:
            return
        self.asked = SYSTEM.monotonic()
        if self.is_enough():
            raise _Enough(self.before)

    def repair(self, ranges: Sequence[KeyRange]) -> None:
        self.before = None
        copy_again(self.driver, self.job, ranges, clear=True)


def _judge(driver: Driver, verdict: Verdict) -> None:
    if verdict.mismatches:
        journal.write(driver.session, driver.workflow, "mismatch", verdict.details, actor=lease.me())
    if verdict.verdict == verdicts.BAD:
        raise BadValue(
            f"The copy differs from the source: {verdict.details}",
            cure="The source table is untouched. Cancel this workflow; if it happens again, report it.",
        )
    journal.once(driver.session, driver.lease, "verified", verdict.counts, since=("mismatch",))


@dataclass(frozen=True, slots=True, kw_only=True)
class AtGate:
    """What holds a workflow before the cut-over.

    window: releases while it is open, and no longer. company: the tables that are switched in one with this one.
    """

    driver: Driver
    row: WorkflowRow
    spec: Spec
    server: Server
    company: Company
    is_manual: bool
    window: str | None = None
    level_since: datetime | None = None
    force: Force | None = None

    @property
    def needs_release(self) -> bool:
        return self.is_manual or self.window is not None

    def is_released(self) -> bool:
        if self.window:
            maintenance.keep(self.driver.session, self.driver.workflow, self.window)
        return released_by(self.driver.session, self.driver.workflow) is not None

    def is_wanted(self) -> bool:
        """Nothing but a verification that is under way holds it, as far as people and other tables go."""
        is_released = self.is_released() or not self.needs_release
        return is_released and not self.company.missing(self.driver.workflow)

    def reasons(self) -> list[Reason]:
        """Of its own; where there are none, that others have some."""
        self.is_released()
        found = why_closed(
            self.driver.session,
            self.server,
            self.row,
            own_connections=frozenset(self.driver.connections),
            ignore_old_snapshots=self.spec.ignore_old_snapshots,
            needs_release=self.needs_release,
            window=self.window,
            level_since=self.level_since,
        )
        self.company.tell(self.driver.workflow, is_ready=not found)
        found = found or self._waits_for_others()
        if self.force:
            self.force.note([reason.code for reason in found])
        return found

    def _waits_for_others(self) -> list[Reason]:
        missing = self.company.missing(self.driver.workflow)
        words = f"Waiting for {', '.join(missing)}: all tables are switched together."
        return [Reason(code=OTHERS, sentence=words)] if missing else []


def at_gate(driver: Driver, company: Company, *, is_manual: bool, window: str | None) -> AtGate:
    row, server = workflows.load(driver.session, driver.workflow), inspect(driver.session)
    spec = spec_of(row.spec)
    return AtGate(
        driver=driver,
        row=row,
        spec=spec,
        server=server,
        level_since=_level_since(driver, row),
        company=company,
        is_manual=is_manual,
        window=window,
        force=_force(driver, spec, server, row),
    )


def _level_since(driver: Driver, row: WorkflowRow) -> datetime | None:
    """Of a way back, which is level by now and copies nothing: what an older snapshot shows of it is not."""
    return driver.session.value("SELECT NOW(6)") if reverting.is_way_back(row) else None


def _force(driver: Driver, spec: Spec, server: Server, row: WorkflowRow) -> Force | None:
    if spec.force_cutover_after is None:
        return None
    caps = Caps(
        after_seconds=spec.force_cutover_after,
        max_age_seconds=spec.force_cutover_max_age,
        max_rows=spec.force_cutover_max_rows,
    )

    def own() -> frozenset[int]:
        return frozenset(driver.connections) | lease.connections(driver.session, row.id)

    return Force(caps=caps, server=server, row=row, session=lambda: driver.session, own=own, notify=driver.notify)


def hold_at_gate(driver: Driver, spark: Spark, again: Recheck, at: AtGate) -> None:
    """Wait until nothing speaks against the cut-over any more, three readings running; verify again now and then.

    What is written meanwhile is compared before it gets too much.
    """
    driver.move(Phase.WAITING)
    statistics.collect(driver, at.row)
    lowest = dedup.load(driver)
    gate, saying, not_before = Gate(at.reasons), Saying(driver.notify), 0.0
    while not gate.is_open():
        reverting.check_open(driver, at.spec)
        reasons = "; ".join(r.sentence for r in gate.reasons)
        driver.hold(gate.reasons)
        if reasons:
            saying.say(f"waiting: {reasons}")
        if any(r.code == "dirty" for r in gate.reasons):
            catch_up(driver)
            driver.move(Phase.WAITING)
        elif any(r.code == "not_verified" for r in gate.reasons):
            compare(driver, spark)
            driver.move(Phase.WAITING)
        elif SYSTEM.monotonic() > not_before and _is_to_be_verified(driver, at.spec, gate.reasons):
            if not verify_again(driver, spark, at.is_wanted):
                not_before = SYSTEM.monotonic() + _RETRY_SECONDS
        elif recheck.has_many_keys(driver.session, driver.workflow):
            _is_level(driver, again, with_sample=False)
        if lowest is not None:
            dedup.settle_some(driver, lowest)
        driver.wait(_POLL_SECONDS if gate.reasons else _CLEAR_SECONDS)
    driver.hold()
    reach("workflow.gate_open")


def verify_again(driver: Driver, spark: Spark, is_enough: Callable[[], bool]) -> bool:
    """At the gate. False: Spark did not start this time, which ends nothing, for the last verification still counts."""
    is_done = True
    try:
        compare(driver, spark, is_enough)
    except SparkAway as error:
        is_done = False
        driver.notify(f"not verified again: {error.message}")
    driver.move(Phase.WAITING)
    return is_done


def _is_to_be_verified(driver: Driver, spec: Spec, reasons: Sequence[Reason]) -> bool:
    """The last verification is old, and there is time: the workflow waits for nothing but a person, or other tables."""
    if [r.code for r in reasons] not in (["not_released"], [OTHERS]) or not spec.verify_every_minutes:
        return False
    age = verdicts.age_seconds(driver.session, driver.workflow)
    return age is not None and age > 60 * spec.verify_every_minutes


def switch(
    driver: Driver, spark: Spark, *, is_manual: bool, window: str | None = None, company: Company | None = None
) -> None:
    """Hold at the gate and try until the tables are switched; rows that differ under the lock are verified again."""
    number, company = 0, company or Together.alone(driver.workflow)
    # It may have been before a server was lost.
    company.tell(driver.workflow, is_ready=False)
    if not recheck.vouches(Ends.on(driver.session), driver.workflow):
        # What was verified before the server was lost, or before a failover, counts for nothing.
        compare(driver, spark)
    at, again = at_gate(driver, company, is_manual=is_manual, window=window), _recheck(driver, len(company))
    while True:
        hold_at_gate(driver, spark, again, at)
        try:
            is_level = _is_level(driver, again, with_sample=True)
            tried = cut_over(at, again, number + 1) if is_level else None
            if is_level and tried is None:
                # The others are not ready any more, or this one is not.
                continue
            number += 1
            if tried and tried.outcome.is_switched:
                return
            retrying.pause(driver, at.server, at.row, _failed(at, number, tried))
        except Mismatch as error:
            number += 1
            driver.notify(f"{error}; comparing them again")
            if number > _MISMATCHES:
                raise BadValue(f"The copy keeps differing from the source: {error}") from None


def _recheck(driver: Driver, share: int) -> Recheck:
    found = job.load(driver.session, driver.workflow)
    return Recheck(
        route=Route.within(driver.url),
        mapping=found.mapping,
        table=driver.workflow,
        workflow=driver.workflow,
        is_mariadb=found.server.is_mariadb,
        home=lambda: driver.session,
        check=driver.check,
        copy_again=reverting.not_again
        if isinstance(found.spec, RevertSpec)
        else functools.partial(copy_again, driver, found, clear=True),
        share=share,
    )


def _is_level(driver: Driver, again: Recheck, *, with_sample: bool) -> bool:
    """Few enough keys are left for the lock. False: they are written faster than they can be compared, this time."""
    try:
        again.until_small(with_sample=with_sample)
        if lowest := dedup.load(driver):
            dedup.until_few(driver, lowest)
    except (ConnectionLost, LockWait):
        raise
    except Transient as error:
        driver.notify(f"cut-over not begun: {error}")
        driver.report(waiting_for=error.message)
        return False
    return True


def cut_over(at: AtGate, again: Recheck, number: int) -> Tried | None:
    """Try the cut-over once, when all tables of the company have come to it; None: it has not come to that.

    Raises Mismatch when rows of this table differ under the lock.
    """
    driver, company = at.driver, at.company

    def may_stay() -> bool:
        driver.check()
        too_many = recheck.has_too_many_keys(driver.session, driver.workflow, again.mapping, len(company))
        return not (at.reasons() or too_many)

    member = Member(driver=driver, number=number)
    tried = company.meet(driver.workflow, member, functools.partial(switching.attempt, company), may_stay)
    if tried is not None:
        _tell(driver, tried)
    return tried


def _tell(driver: Driver, tried: Tried) -> None:
    outcome = tried.outcome
    if outcome.is_switched:
        switching.note_switched(driver, "" if tried.keys is None else f"{tried.keys} keys compared under the lock")
        driver.report(write_stall_millis=outcome.lock_millis, cutover_millis=outcome.total_millis)
    else:
        driver.notify(f"cut-over not done: {outcome.reason}")
        driver.report(waiting_for=outcome.reason)


def _failed(at: AtGate, number: int, tried: Tried | None) -> Failed:
    if tried is None:
        return Failed(number=number)
    # Of several tables that are switched together it may be another one that was blocked.
    found = tried.outcome.blockers if len(at.company) == 1 else ()
    return Failed(number=number, why=tried.outcome.reason, blocked_by=found)


def clean_up(driver: Driver) -> None:
    """After the cut-over: catch-up ends, what was only for the run goes; the retired table stays unless told."""
    driver.child.end()
    row = workflows.load(driver.session, driver.workflow)
    if row.phase is Phase.COMPLETE:
        # By us, before the server was lost; or by who has taken over, and then the end is not ours to tell.
        lease.fence(driver.session, driver.lease)
        return
    switching.finish_keys(driver, row)
    _verify_keys(driver, row)
    dedup.set_aside(driver, row)
    reverting.open_window(driver, row)
    keytables.drop_all(driver.session, row.id)
    if row.spec.get("retired") == "drop" and reverting.way_back(driver.session, row.id) is None:
        _drop_original(driver, row)
    journal.write(driver.session, row.id, "complete", f"{row.source_schema}.{row.source_table}", actor=lease.me())
    workflows.forget_run(driver.session, row.id)
    spool.forget(row)
    reach("workflow.cleaned")
    driver.move(Phase.COMPLETE)
    reach("workflow.complete")


def _verify_keys(driver: Driver, row: WorkflowRow) -> None:
    """Each foreign key that went over: has every row a parent? Told at the end, by the journal."""
    if not foreign.is_asked(row) or journal.latest(driver.session, row.id, journal.FOREIGN_KEYS, journal.ORPHANS):
        return
    driver.report(waiting_for="foreign keys are verified")
    with driver.session.patient(TABLE_SECONDS):
        keys, without = foreign.verify(driver.session, row)
    event = journal.ORPHANS if without else journal.FOREIGN_KEYS
    journal.once(driver.session, driver.lease, event, " ".join(without) or foreign.whole(keys))
    driver.report(waiting_for=None)
    reach("workflow.keys_verified")


def _drop_original(driver: Driver, row: WorkflowRow) -> None:
    """Not found: a clean-up that was cut short has dropped it, and said so or not."""
    what = f"retired table {row.retired_table}"
    if drop_retired(driver.session, row):
        journal.write(driver.session, row.id, "dropped", what, actor=lease.me())
    elif exists(driver.session, row.source_schema, row.retired_table):
        why = "it is not the one that the workflow began with"
        journal.write(driver.session, row.id, "kept", f"{what}: {why}", actor=lease.me())


def drop_retired(session: Session, row: WorkflowRow) -> bool:
    """Drop the pushed-aside original, if it is the table that the workflow began with."""
    return drop_table(
        session,
        row.source_schema,
        row.retired_table,
        row.source_identity or "",
        is_mariadb=is_mariadb(session),
    )
