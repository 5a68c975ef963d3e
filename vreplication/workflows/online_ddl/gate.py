"""Before the cut-over: what holds a workflow there, and what it does until nothing holds it any more.

What must stay true: the gate opens only when several looks in a row have found no reason against it; while it is shut
what is written goes on being compared, so that little is left for the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from vreplication.clock import SYSTEM
from vreplication.cutover.force import Caps, Force
from vreplication.cutover.reasons import OTHERS, Gate, Reason, why_closed
from vreplication.engine import maintenance, recheck
from vreplication.engine.driver import Driver
from vreplication.engine.recheck import Recheck
from vreplication.engine.saying import Saying
from vreplication.mysql.server import Server, inspect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.planning.spec import Spec, spec_of
from vreplication.spark.session import Spark
from vreplication.state import lease, verdicts, workflows
from vreplication.state.gate import released_by
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import dedup, reverting, statistics
from vreplication.workflows.online_ddl.comparing import compare, is_level, verify_again
from vreplication.workflows.online_ddl.copying import catch_up
from vreplication.workflows.online_ddl.switching import Company

_POLL_SECONDS = 0.25
_RETRY_SECONDS = 60.0
"""Before a verification that could not begin is tried again."""
_CLEAR_SECONDS = 0.15
"""Between two reads of the gate that found nothing."""


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
        # A window opens and closes by being looked at.
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
        # By its own reasons alone: with those of others among them two tables would wait for each other for ever.
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
    if window is None:
        maintenance.forget(driver.session, driver.workflow)
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
    """Of what is not copied by chunks (a way back, a new table that follows a full copy) and is level by now: what an
    older snapshot shows of it is not.
    """
    is_copied = not (reverting.is_way_back(row) or row.keeps_one)
    return None if is_copied else driver.session.value("SELECT NOW(6)")


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
    # Before anything can open the gate: from the switch on the server plans by what it knows of the new table.
    statistics.collect(driver, at.row)
    lowest = dedup.load(driver)
    gate, saying, holding = Gate(at.reasons), Saying(driver.notify), _Holding(spark=spark, again=again, at=at)
    while not gate.is_open():
        reverting.check_open(driver, at.spec)
        reasons = "; ".join(r.sentence for r in gate.reasons)
        driver.hold(gate.reasons)
        if reasons:
            saying.say(f"waiting: {reasons}")
        holding.act(gate.reasons)
        if lowest is not None:
            dedup.settle_some(driver, lowest)
        driver.wait(_POLL_SECONDS if gate.reasons else _CLEAR_SECONDS)
    driver.hold()
    reach("workflow.gate_open")


@dataclass(slots=True, kw_only=True)
class _Holding:
    """What is done between two looks at the gate."""

    spark: Spark
    again: Recheck
    at: AtGate
    not_before: float = 0.0
    """Of a repeated verification."""

    def act(self, reasons: Sequence[Reason]) -> None:
        """What must be done comes before what may be, and one of them is enough: then the gate is looked at again."""
        codes, driver = {r.code for r in reasons}, self.at.driver
        if "dirty" in codes:
            catch_up(driver)
            driver.move(Phase.WAITING)
        elif "not_verified" in codes:
            compare(driver, self.spark)
            driver.move(Phase.WAITING)
        elif SYSTEM.monotonic() > self.not_before and _is_to_be_verified(driver, self.at.spec, reasons):
            if not verify_again(driver, self.spark, self.at.is_wanted):
                self.not_before = SYSTEM.monotonic() + _RETRY_SECONDS
        elif recheck.has_many_keys(driver.session, driver.workflow):
            is_level(driver, self.again, with_sample=False)


def _is_to_be_verified(driver: Driver, spec: Spec, reasons: Sequence[Reason]) -> bool:
    """The last verification is old, and there is time: the workflow waits for nothing but a person, or other tables."""
    if [r.code for r in reasons] not in (["not_released"], [OTHERS]) or not spec.verify_every_minutes:
        return False
    age = verdicts.age_seconds(driver.session, driver.workflow)
    return age is not None and age > 60 * spec.verify_every_minutes
