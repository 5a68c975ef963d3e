"""From the first chunk until every one is matched: copy, catch up, and copying again.

What must stay true: each is a function of the driver and what the sidecar says, so that a restart calls it again and
it goes on; a chunk counts as copied only when it is matched, behind a marker of this run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from vreplication.engine import job
from vreplication.engine.driver import Driver
from vreplication.engine.job import Job
from vreplication.mysql.ends import Ends, Route
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.rowcopy import ahead
from vreplication.rowcopy.repair import copy_keys, copy_ranges
from vreplication.rowcopy.spark_job import run_copy, slots
from vreplication.spark.session import Spark
from vreplication.state import compared, dirty, journal, ledger, markers, tuning
from vreplication.state.ledger import Bound, KeyRange
from vreplication.state.tuning import Room
from vreplication.verify import beside
from vreplication.verify.beside import Beside
from vreplication.verify.rounds import Examiner, markers_of
from vreplication.workflows.online_ddl import conflicts, dedup, standing_in

_POLL_SECONDS = 0.0625


def copy(driver: Driver, spark: Spark) -> None:
    """Copy every split that is not done, on Spark; until that has started, one after the other here."""
    driver.move(Phase.COPYING)
    standing_in.go_on(driver)
    found = job.load(driver.session, driver.workflow)
    driver.describe(found.mapping.source, is_compared_beside=_is_compared_beside(found))
    # What was compared before a server was lost, or by a driver before us, counts for nothing.
    compared.forget(driver.session, driver.workflow)
    if any(not s.is_done for s in ledger.splits(driver.session, driver.workflow)):
        _copy_ahead(driver, spark, found)
        _copy_on_spark(driver, spark, found)
    driver.freshen()
    rows = ledger.totals(driver.session, driver.workflow).rows_copied
    journal.once(driver.session, driver.lease, "copied", f"{rows:,} rows")
    reach("workflow.copied")


def _copy_on_spark(driver: Driver, spark: Spark, found: Job) -> None:
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
    # Where the target sorts keys otherwise, or its rows may push each other out, a chunk's range is no unit there.
    is_large = (found.row.rows_total or 0) >= beside.LEAST_ROWS or found.mapping.source.data_bytes >= beside.LEAST_BYTES
    return is_large and found.mapping.has_same_order and not found.mapping.may_collide


def _copy_ahead(driver: Driver, spark: Spark, found: Job) -> None:
    # Smaller tables are left to Spark: they are copied in less than a second, and it verifies them in any case.
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
    standing_in.finish(driver)
    dedup.fill(driver)
    # Where nothing is dirty no definition has to be read.
    if not dirty.is_any(driver.session, driver.workflow):
        return
    found = job.load(driver.session, driver.workflow)
    if found.mapping.may_collide:
        conflicts.resolve(driver, found, functools.partial(_copy_keys, driver, found))


def wait_matched(driver: Driver) -> None:
    """Behind a fresh marker, so that what a crash left half done has been seen to."""
    marker = markers.write(driver.session, driver.workflow)
    while markers.find_applied(driver.session, driver.workflow, marker) is None:
        driver.wait(_POLL_SECONDS)
    while not ledger.left(driver.session, driver.workflow).is_nothing:
        driver.wait(_POLL_SECONDS)


def copy_again(driver: Driver, found: Job, ranges: Sequence[KeyRange], *, clear: bool) -> None:
    """Copy ranges again under the chunk protocol and wait until they are matched."""
    route = Route.within(driver.url)
    copy_ranges(route, driver.lease, found.mapping, found.copy_job, ranges, clear=clear, check=driver.check)
    wait_matched(driver)


def _copy_keys(driver: Driver, found: Job, keys: Sequence[Bound]) -> None:
    route = Route.within(driver.url)
    copy_keys(route, driver.lease, found.mapping, found.copy_job, keys, check=driver.check)
    wait_matched(driver)
