"""What happens between the preparation of tables that move and their switch: copy, catch up, verify, wait at the gate.

What must stay true: each is a function of the driver and of what home says, so that a restart calls it again and it
goes on; a switch is tried only while every table is matched and verified, and catch-up is level; a verification at the
gate that cannot begin, or does not come to its end, ends nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from vreplication.clock import SYSTEM
from vreplication.cutover.reasons import LEFT_BEHIND, Reason, asked_reasons, catch_up_reasons
from vreplication.engine import maintenance, recheck
from vreplication.engine.job import StreamJob, StreamTable
from vreplication.engine.recheck import Recheck
from vreplication.engine.saying import Saying
from vreplication.errors import BadValue, Transient, VReplicationError
from vreplication.mysql import read_only
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import ConnectionLost, LockWait, Session, connect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.rowcopy.job import CopyJob
from vreplication.rowcopy.repair import copy_ranges
from vreplication.settings import BEAT_SECONDS, Limits, Tuning
from vreplication.spark.session import Spark, SparkAway
from vreplication.state import gate, journal, lease, ledger, source_marks, verdicts, workflows
from vreplication.state.ledger import KeyRange
from vreplication.state.moves import Side
from vreplication.state.verdicts import Verdict
from vreplication.verify.verify import Caller, verify
from vreplication.workflows.move_tables import differing, left_behind, seen, streams
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import MovePlan
from vreplication.workflows.move_tables.repeated import Asking, Enough
from vreplication.workflows.move_tables.spec import MoveSpec

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 2.0
_CLEAR_READS = 3
_RETRY_SECONDS = 60.0
"""Before a verification at the gate that did not come to its end is tried again."""
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Work:
    """One run over the tables of a workflow, on the way to the switch of this number. plan: where it begins."""

    driver: MoveDriver
    spark: Spark
    spec: MoveSpec
    plan: MovePlan | None = None
    number: int = 1
    rechecks: dict[str, Recheck] = field(default_factory=dict)
    look: left_behind.Look = field(default_factory=left_behind.Look)
    closed_until: float = 0.0
    """How long the last look at whether the old server is read-only counts; what it said."""
    is_closed: bool = False

    @property
    def stream(self) -> str:
        return streams.stream_id(self.driver.workflow, self.number)

    @property
    def route(self):  # type: ignore[no-untyped-def]
        """The way that rows go now."""
        return self.driver.route if streams.is_forward(self.number) else self.driver.route.turned()

    def load(self) -> StreamJob:
        with self.route.open() as ends:
            return streams.load(ends, self.driver.workflow, self.number)

    def with_ends(self, act: Callable[[Ends], T]) -> T:
        with self.route.open() as ends:
            return act(ends)


def has_open_splits(work: Work) -> bool:
    return any(is_open(work.driver.session, table) for table in work.driver.table_ids())


def is_open(session: Session, table: str) -> bool:
    return any(not split.is_done for split in ledger.splits(session, table))


def copy_job(work: Work, job: StreamJob, table: StreamTable, at_once: int = 1) -> CopyJob:
    return CopyJob(
        workflow=work.driver.workflow,
        table=table.id,
        copy_path="rows",
        limits=limits_of(work.spec, at_once),
        packet=job.packet,
        # MariaDB locks the counter's page at each inserted row: tasks that insert side by side end no earlier.
        by_turns=job.is_target_mariadb and any(c.is_auto_increment for c in table.mapping.target.columns),
    )


def shared(asked: Tuning, at_once: int) -> Tuning:
    """What an operator asks for is of all tables that are copied side by side."""
    tasks = asked.copy_parallelism
    return asked if tasks is None else replace(asked, copy_parallelism=max(1, tasks // at_once))


def limits_of(spec: MoveSpec, at_once: int = 1) -> Limits:
    """Of one of so many tables that are copied side by side."""
    return Limits(
        copy_parallelism=max(1, spec.tasks // at_once),
        chunk_rows=spec.chunk_rows,
        chunk_millis=spec.chunk_millis,
        apply_parallelism=spec.apply_parallelism,
    )


def catch_up(work: Work) -> None:
    """Wait until every chunk is matched."""
    work.driver.move(Phase.CATCHING_UP)
    reach("workflow.catching_up")
    wait_matched(work)


def wait_matched(work: Work) -> None:
    """Behind a fresh marker, so that what a crash left half done has been seen to."""
    driver = work.driver
    with work.route.open() as ends:
        # R14: what the ledger says at a restart may be of before the crash; behind a marker of ours it is not.
        markers = source_marks.markers_of(ends, work.stream)
        marker = markers.write()
        while markers.find_applied(marker) is None:
            driver.wait(_POLL_SECONDS)
        markers.remove(marker)
        ids = driver.table_ids(work.number)
        while not all(ledger.left(ends.home, table).is_nothing for table in ids):
            driver.wait(_POLL_SECONDS)


def compare(work: Work, is_enough: Callable[[], bool] = lambda: False) -> None:
    """Verify every row of every table under live writes. Raises BadValue where rows differ that stay wrong.

    is_enough: True ends it while all tables are verified, and nothing was found wrong: raises Enough.
    """
    driver = work.driver
    driver.move(Phase.VERIFYING)
    job = work.load()
    done = 0
    for table in job.tables:
        driver.report(verify_total=_rows_of(driver.session, job), verify_rows=done)
        asking = Asking(is_enough=is_enough, may_end=is_verified(work))
        found = _compare(work, job, table, done, asking)
        done += found.rows_compared
    driver.report(verify_rows=done, verify_total=done)
    _sum_up(driver, job)
    work.spark.release()
    reach("workflow.verified")


def _rows_of(session: Session, job: StreamJob) -> int:
    return sum(t.rows_total or 0 for t in workflows.tables(session, job.row.id))


def _compare(work: Work, job: StreamJob, table: StreamTable, done: int, asking: Asking) -> Verdict:
    driver = work.driver
    # Before the first row is read: a table that takes the place of this one meanwhile is not the one that was
    # verified.
    ids = work.with_ends(lambda ends: seen.ids(ends, table))
    started = _started_since(work, table)

    def on_tick(rows: int) -> None:
        driver.report(verify_rows=done + rows)
        asking.ask()

    verdict = verify(
        work.spark.context(driver.check),
        work.route,
        table.mapping,
        Caller(
            pace=driver.pace,
            on_tick=on_tick,
            check=driver.check,
            announce=driver.announce,
        ),
        workflow=table.id,
        stream=work.stream,
        is_mariadb=job.is_mariadb,
        # On the way back nothing is copied: somebody may have written what differs on the old server.
        repair=functools.partial(_repair, work, job, table, asking) if work.number == 1 else None,
        parallelism=work.spec.tasks,
    )
    if verdict.mismatches:
        journal.write(driver.session, driver.workflow, "mismatch", verdict.details, actor=lease.me())
    if verdict.verdict == verdicts.BAD:
        name = f"{table.mapping.target.schema}.{table.mapping.target.name}"
        words = f"{name} differs from what it was copied from: {verdict.details}."
        raise BadValue(words, cure=_cure(work, table, started))
    seen.note(driver.session, driver.workflow, work.number, table, ids)
    return verdict


def _started_since(work: Work, table: StreamTable) -> tuple[Side, ...]:
    workflow, number = work.driver.workflow, work.number
    return work.with_ends(lambda ends: differing.started_since(ends, workflow, number, table.id))


def _cure(work: Work, table: StreamTable, started: tuple[Side, ...]) -> str:
    if work.number == 1:
        # The plan has warned of them, and a person who reads this is to think of them first.
        computed = ", ".join(pair.target.name for pair in table.mapping.kept)
        why = f"The target may compute {computed} otherwise (drop it before the move), a" if computed else "A"
        return f"{why}nother client writes to it, or report it; where the application writes now nothing was touched."
    return differing.cure(work.driver.workflow, work.number, started)


def _sum_up(driver: MoveDriver, job: StreamJob) -> None:
    """One verdict of the workflow, for people; each table's own is what counts."""
    found = [v for table in job.tables if (v := verdicts.load(driver.session, table.id)) is not None]
    whole = Verdict(
        verdict=verdicts.CLEAN,
        rows_compared=sum(v.rows_compared for v in found),
        mismatches=sum(v.mismatches for v in found),
        repaired=sum(v.repaired for v in found),
        hot_keys=(),
        details="; ".join(v.details for v in found if v.details),
    )
    verdicts.save(driver.session, driver.workflow, whole)
    # Behind a mismatch it is news again, and so it is on the way back.
    journal.once(driver.session, driver.lease, "verified", whole.counts, since=("mismatch", "switched"))


def _repair(work: Work, job: StreamJob, table: StreamTable, asking: Asking, ranges: Sequence[KeyRange]) -> None:
    """What was found wrong has to be seen right: cut short from here on, no verification counts."""
    asking.may_end = False
    verdicts.forget(work.driver.session, table.id)
    _copy_again(work, job, table, ranges)


def _copy_again(work: Work, job: StreamJob, table: StreamTable, ranges: Sequence[KeyRange]) -> None:
    driver = work.driver
    copy_ranges(
        work.route, driver.lease, table.mapping, copy_job(work, job, table), ranges, clear=True, check=driver.check
    )
    wait_matched(work)


def is_verified(work: Work) -> bool:
    """The last verification of each table still counts."""
    ids = work.driver.table_ids(work.number)
    return work.with_ends(lambda ends: all(recheck.vouches(ends, id) for id in ids))


def rechecks(work: Work, job: StreamJob) -> list[Recheck]:
    """Of each table, what was written since its verification; what has been copied again once is remembered."""
    return [_recheck(work, job, table) for table in job.tables]


def _recheck(work: Work, job: StreamJob, table: StreamTable) -> Recheck:
    driver = work.driver
    if table.id not in work.rechecks:
        work.rechecks[table.id] = Recheck(
            route=work.route,
            mapping=table.mapping,
            table=table.id,
            workflow=work.stream,
            is_mariadb=job.is_mariadb,
            home=lambda: driver.session,
            check=driver.check,
            copy_again=functools.partial(_copy_again if work.number == 1 else _not_again, work, job, table),
            # Nothing is copied on the way back. Without ranges a sample would be the table's first rows, each time.
            copied=driver.table_ids(1)[table.number],
        )
    return work.rechecks[table.id]


def _not_again(work: Work, job: StreamJob, table: StreamTable, ranges: Sequence[KeyRange]) -> None:
    serving = streams.serving(work.number)
    raise BadValue(
        f"{len(ranges)} rows of {table.mapping.target.name} on the {serving.other} differ from what the application"
        f" wrote on the {serving}.",
        cure=_cure(work, table, _started_since(work, table)),
    )


def until_small(work: Work, job: StreamJob) -> bool:
    """Few enough keys are left for the switch, of every table. False: not this time."""
    driver = work.driver
    try:
        for each in rechecks(work, job):
            each.until_small(with_sample=True)
    # It is Transient as well, but says nothing of the keys: `through_outages` begins again.
    except ConnectionLost:
        raise
    except Transient as error:
        driver.notify(f"switch not begun: {error}")
        driver.report(waiting_for=error.message)
        return False
    return True


def hold_at_gate(work: Work, is_asked: Callable[[], bool]) -> None:
    """Wait until nothing speaks against the switch any more, three readings running; verify again where it must be.

    is_asked: somebody, or nobody needs to, has said that it may be made.
    """
    driver = work.driver
    reason_of = Saying(driver.notify)
    driver.move(Phase.WAITING if streams.is_forward(work.number) else Phase.SWITCHED)
    clear, not_before = 0, 0.0
    while clear < _CLEAR_READS:
        reasons = why_closed(work, is_asked)
        clear = 0 if reasons else clear + 1
        driver.hold(reasons)
        if reasons:
            reason_of.say(f"waiting: {'; '.join(r.sentence for r in reasons)}")
        if SYSTEM.monotonic() > not_before and _is_to_be_verified(work, reasons):
            is_done = verify_again(work, lambda: is_asked() and not _left_behind(work))
            not_before = 0.0 if is_done else SYSTEM.monotonic() + _RETRY_SECONDS
        elif any(recheck.has_many_keys(driver.session, table) for table in driver.table_ids(work.number)):
            _compare_written(work)
        driver.wait(_POLL_SECONDS)
    driver.hold()
    reach("workflow.gate_open")


def verify_again(work: Work, is_enough: Callable[[], bool]) -> bool:
    """At the gate. False: not this time; if the last verification does not count, the gate stays shut.

    is_enough: somebody waits for nothing but this one, which need not be.
    """
    driver, is_done = work.driver, True
    try:
        compare(work, is_enough)
    except Enough:
        work.spark.release()
        driver.notify("verification interrupted; using the previous result")
    except (ConnectionLost, LockWait):
        raise
    except (SparkAway, Transient) as error:
        # Spark did not start, or a table is written to too fast to be compared now.
        is_done = False
        driver.notify(f"not verified again: {error.message}")
    driver.move(Phase.WAITING if streams.is_forward(work.number) else Phase.SWITCHED)
    return is_done


def _is_to_be_verified(work: Work, reasons: Sequence[Reason]) -> bool:
    """It has to be; or the last one is old, and there is time: the workflow waits for nothing but a person."""
    session, minutes = work.driver.session, work.spec.verify_every_minutes
    if "not_verified" in [r.code for r in reasons]:
        return True
    if not {r.code for r in reasons} <= {"not_released", LEFT_BEHIND} or not (reasons and minutes):
        return False
    ages = [verdicts.age_seconds(session, table) for table in work.driver.table_ids(work.number)]
    # None on the first way, which is verified before the gate: one that did not come to its end has found something
    # wrong (`_repair`). On a later one: none has been asked for yet.
    return any(work.number == 1 if age is None else age > 60 * minutes for age in ages)


def _compare_written(work: Work) -> None:
    """So that what has to be compared before the switch does not pile up."""
    try:
        for each in rechecks(work, work.load()):
            each.until_small(with_sample=False)
    except ConnectionLost:
        # A repair that was cut off is gone on with where the copy is.
        raise
    except Transient as error:
        driver = work.driver
        driver.notify(f"what was written meanwhile is compared later: {error}")


def why_closed(work: Work, is_asked: Callable[[], bool]) -> list[Reason]:
    """Everything that holds the switch back now; what is not known is a reason."""
    driver = work.driver
    session, workflow = driver.session, driver.workflow
    found = [*unwanted(work, is_asked), *catch_up_reasons(session, workflow)]
    if not all(ledger.left(session, id).is_nothing for id in driver.table_ids(work.number)):
        found.append(Reason(code="not_matched", sentence="The copy is not complete."))
    elif not found and not is_verified(work):
        found.append(Reason(code="not_verified", sentence="The tables have to be verified."))
    if any(r.code == "not_running" for r in found):
        found += _closed_to_us(work)
    return [*found, *_left_behind(work)]


def _left_behind(work: Work) -> list[Reason]:
    return left_behind.at_the_gate(work.driver, work.spec, work.number, work.look)


def _closed_to_us(work: Work) -> list[Reason]:
    """The old server is often closed behind a switch, by a person who does not think of the way back."""
    if SYSTEM.monotonic() >= work.closed_until:
        work.closed_until, work.is_closed = SYSTEM.monotonic() + _LOOK_SECONDS, _is_closed(work)
    if not work.is_closed:
        return []
    return [Reason(code="read_only", sentence=f"{read_only.sentence('the source')} {read_only.CURE}")]


def _is_closed(work: Work) -> bool:
    try:
        with connect(work.driver.route.source, read_timeout=BEAT_SECONDS) as session:
            return read_only.is_so(session)
    except VReplicationError as error:
        # While the target serves the driver needs the old server for nothing, and it may be away for long.
        log.debug("it is not known whether the source is read-only: %s", error)
        return False


def unwanted(work: Work, is_asked: Callable[[], bool]) -> list[Reason]:
    """What an operator has asked for, or not, that holds the switch back."""
    return [*_not_released(work, is_asked), *asked_reasons(work.driver.session, work.driver.workflow)]


def _not_released(work: Work, is_asked: Callable[[], bool]) -> list[Reason]:
    if is_asked():
        return []
    workflow, window = work.driver.workflow, work.spec.cutover_window
    if not streams.is_forward(work.number):
        sentence = f"Waiting for `vreplication reverse {workflow}` or `vreplication complete {workflow}`."
    # Behind a way back no window releases it any more (`is_released`).
    elif window and work.number == 1:
        sentence = f"Waiting for the window {window}, or `vreplication release {workflow}`."
    else:
        sentence = f"Waiting for `vreplication release {workflow}`."
    return [Reason(code="not_released", sentence=sentence)]


def is_released(work: Work) -> bool:
    """Nobody needs to release the switch, or somebody has."""
    session, workflow, spec = work.driver.session, work.driver.workflow, work.spec
    if spec.cutover_window and work.number == 1:
        maintenance.keep(session, workflow, spec.cutover_window)
    # Behind a way back it takes a person's release, whatever was asked for when it began.
    needs_release = spec.cutover == "manual" or spec.cutover_window is not None or work.number > 1
    return not needs_release or gate.released_by(session, workflow) is not None
