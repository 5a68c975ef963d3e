"""Rows compared, source with target, under live writes: all of them, again at the gate, and those written since.

What must stay true: a difference that stays ends the workflow, with the source untouched; once something was found
wrong a verification goes on to its end, or ends the workflow; a repeated one that has found nothing wrong and cannot
begin, cannot come to its end, or is not wanted any more, ends nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vreplication.clock import SYSTEM
from vreplication.engine import job, recheck
from vreplication.engine.driver import Driver
from vreplication.engine.job import Job
from vreplication.engine.recheck import Recheck
from vreplication.errors import BadValue, Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import ConnectionLost, LockWait
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.planning.spec import RevertSpec
from vreplication.schema.mapping import depends_on_zone
from vreplication.spark.session import Spark, SparkAway
from vreplication.state import journal, lease, ledger, verdicts
from vreplication.state.ledger import KeyRange
from vreplication.state.verdicts import Verdict
from vreplication.verify.verify import Caller, verify
from vreplication.workflows.online_ddl import dedup, reverting
from vreplication.workflows.online_ddl.copying import copy_again

_VERIFIED = "verified"
_ASK_SECONDS = 1.0
"""How often a repeated verification asks whether it is still wanted."""


def compare(driver: Driver, spark: Spark, is_enough: Callable[[], bool] = lambda: False) -> Verdict:
    """Verify every row under live writes. Raises BadValue when rows differ that stay wrong after copying again.

    is_enough: asked while nothing wrong has been found, when there is a verdict already; True ends it, and that counts.
    """
    driver.move(Phase.VERIFYING)
    found, before = job.load(driver.session, driver.workflow), verdicts.load(driver.session, driver.workflow)
    driver.describe(found.mapping.source)
    copied = ledger.totals(driver.session, driver.workflow).rows_copied
    driver.report(verify_rows=0, verify_total=copied or found.row.rows_total)
    verdict = _verify(spark, _Comparing(driver=driver, job=found, is_enough=is_enough, before=before))
    driver.report(verify_rows=verdict.rows_compared, verify_total=verdict.rows_compared)
    # A release may have ended it: then the verdict before stands, which was judged in its time.
    if verdict is not before:
        _judge(driver, verdict, _by_zone(found))
        dedup.compare(driver)
    # It may be hours until it is needed again, if ever.
    spark.release()
    reach("workflow.verified")
    return verdict


def compare_by_another_zone(driver: Driver, spark: Spark) -> None:
    """Verify again where another process has verified it, while the server's zone was another one that matters.

    Rows that were written by that are copied again, and all are as a plain ALTER would make them now.
    """
    session, workflow = driver.session, driver.workflow
    # What does not count is verified again in any case, and what a person has waived is not.
    counts = recheck.vouches(Ends.on(session), workflow) and not recheck.is_waived(session, workflow)
    words = _by_zone(job.load(session, workflow))
    told = journal.latest(session, workflow, _VERIFIED)
    if counts and words and not (told and str(told["details"]).endswith(words)):
        compare(driver, spark)


def _by_zone(found: Job) -> str:
    """'' where no row depends on the server's zone."""
    return f", by time_zone {found.zone}" if depends_on_zone(found.mapping) else ""


def _verify(spark: Spark, comparing: _Comparing) -> Verdict:
    driver, found = comparing.driver, comparing.job
    try:
        return verify(
            spark.context(comparing.check),
            Route.within(driver.url),
            found.mapping,
            Caller(pace=driver.pace, on_tick=comparing.tick, check=driver.check, announce=driver.announce),
            workflow=driver.workflow,
            is_mariadb=found.server.is_mariadb,
            # A way back has copied nothing: what differs there is another hand's doing (see `reverting.not_again`).
            repair=None if isinstance(found.spec, RevertSpec) else comparing.repair,
            parallelism=found.parallelism,
        )
    except _Enough as enough:
        driver.notify("verification interrupted; using the previous result")
        return enough.verdict
    except (ConnectionLost, LockWait):
        raise
    except Transient as error:
        # With something found wrong it has to be seen right, and without a verdict there is none to go by.
        if comparing.before is None:
            raise
        raise _NotNow(error.message, cure=error.cure) from error


class _NotNow(Transient):
    """A repeated verification could not come to its end, and has found nothing wrong: the one before counts."""


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
        # From here on nothing ends it early: what was wrong has to be seen right.
        self.before = None
        copy_again(self.driver, self.job, ranges, clear=True)


def _judge(driver: Driver, verdict: Verdict, by_zone: str) -> None:
    if verdict.mismatches:
        journal.write(driver.session, driver.workflow, "mismatch", verdict.details, actor=lease.me())
    if verdict.verdict == verdicts.BAD:
        raise BadValue(
            f"The copy differs from the source: {verdict.details}",
            cure="The source table is untouched. Cancel this workflow; if it happens again, report it.",
        )
    # Once, whoever drives, and again behind a mismatch.
    journal.once(driver.session, driver.lease, _VERIFIED, f"{verdict.counts}{by_zone}", since=("mismatch",))


def verify_again(driver: Driver, spark: Spark, is_enough: Callable[[], bool]) -> bool:
    """At the gate. False: not this time, which ends nothing, for the last verification still counts."""
    is_done = True
    try:
        compare(driver, spark, is_enough)
    except (SparkAway, _NotNow) as error:
        # Spark did not start, or the table is written to too fast to be compared now.
        is_done = False
        driver.notify(f"not verified again: {error.message}")
    driver.move(Phase.WAITING)
    return is_done


def since_verified(driver: Driver, share: int) -> Recheck:
    """What was written since, to be compared up to the cut-over. share: among so many tables its time is divided."""
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


def is_level(driver: Driver, again: Recheck, *, with_sample: bool) -> bool:
    """Few enough keys are left for the lock. False: they are written faster than they can be compared, this time."""
    try:
        again.until_small(with_sample=with_sample)
        if lowest := dedup.load(driver):
            dedup.until_few(driver, lowest)
    except (ConnectionLost, LockWait):
        # Transient, too, but no word about the keys: `through_outages` begins again.
        raise
    except Transient as error:
        driver.notify(f"cut-over not begun: {error}")
        driver.report(waiting_for=error.message)
        return False
    return True
