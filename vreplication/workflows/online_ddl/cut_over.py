"""The cut-over, tried until the tables are switched: held at the gate before each attempt.

What must stay true: no attempt without a verification that still counts and few enough keys left for the lock; rows
that differ under the lock are compared again, not switched; no number of attempts that merely failed ends a workflow.
"""

from __future__ import annotations

import functools

from vreplication.engine import recheck
from vreplication.engine.driver import Driver
from vreplication.engine.recheck import Mismatch, Recheck
from vreplication.errors import BadValue
from vreplication.mysql.ends import Ends
from vreplication.spark.session import Spark
from vreplication.workflows.online_ddl import retrying, switching
from vreplication.workflows.online_ddl.comparing import compare, is_level, since_verified
from vreplication.workflows.online_ddl.gate import AtGate, at_gate, hold_at_gate
from vreplication.workflows.online_ddl.retrying import Failed
from vreplication.workflows.online_ddl.switching import Company, Member, Tried
from vreplication.workflows.online_ddl.together import Together

_MISMATCHES = 5
"""Attempts at the cut-over that may end in a difference under the lock."""


def switch(
    driver: Driver, spark: Spark, *, is_manual: bool, window: str | None = None, company: Company | None = None
) -> None:
    """Hold at the gate and try until the tables are switched; rows that differ under the lock are verified again."""
    number, mismatches, company = 0, 0, company or Together.alone(driver.workflow)
    # It may have been before a server was lost.
    company.tell(driver.workflow, is_ready=False)
    if not recheck.vouches(Ends.on(driver.session), driver.workflow):
        # What was verified before the server was lost, or before a failover, counts for nothing.
        compare(driver, spark)
    at, again = at_gate(driver, company, is_manual=is_manual, window=window), since_verified(driver, len(company))
    while True:
        hold_at_gate(driver, spark, again, at)
        try:
            is_small = is_level(driver, again, with_sample=True)
            tried = cut_over(at, again, number + 1) if is_small else None
            if is_small and tried is None:
                # The others are not ready any more, or this one is not.
                continue
            number += 1
            if tried and tried.outcome.is_switched:
                return
            retrying.pause(driver, at.server, at.row, _failed(at, number, tried))
        except Mismatch as error:
            number, mismatches = number + 1, mismatches + 1
            driver.notify(f"{error}; comparing them again")
            if mismatches > _MISMATCHES:
                raise BadValue(f"The copy keeps differing from the source: {error}") from None


def cut_over(at: AtGate, again: Recheck, number: int) -> Tried | None:
    """Try the cut-over once, when all tables of the company have come to it; None: it has not come to that.

    Raises Mismatch when rows of this table differ under the lock.
    """
    driver, company = at.driver, at.company
    # To compare what was written took its time since the gate was open, and a window may have closed meanwhile.
    if at.needs_release and not at.is_released():
        return None

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
