"""How a run ends: the sidecar is told, what we made is removed or listed, and a Result is made of it.

What must stay true: only a cancel or a refusal removes anything; a failure leaves all as it is and lists it, each with
the command that removes it; an interrupt leaves everything for the same command to go on with; a driver that has
been taken over writes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from vreplication.cutover.decide import SWITCHED, decide
from vreplication.engine import log_kept, spool
from vreplication.engine.driver import Driver
from vreplication.engine.job import reason_of
from vreplication.engine.result import Leftover, Result
from vreplication.errors import (
    Cancelled,
    Interrupted,
    LeaseHeld,
    Refused,
    SourceChanged,
    Superseded,
    Transient,
    VReplicationError,
)
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.schema.introspect import exists
from vreplication.state import journal, lease, progress, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import dedup, prepare, reverting, standing_in

log = logging.getLogger(__name__)

STAYS = "stays, for it was rebuilt since it was made, or is another one; drop it yourself if it is not needed."


def completed(driver: Driver) -> Result:
    return completed_of(driver.session, driver.workflow)


def is_untold(session: Session, row: WorkflowRow) -> bool:
    """Complete, but the lease of its driver was not given back: whoever was to say so died, or lost the server."""
    if row.phase is not Phase.COMPLETE or lease.is_alive(session, row.id, lease.DRIVER):
        return False
    return lease.has_beat(session, row.id, lease.DRIVER)


def note_told(url: SourceUrl, result: Result) -> None:
    """The end of a workflow has been told. A server that is away has it told again, which does no harm."""
    if result.event != "complete":
        return
    try:
        with connect(url) as session:
            lease.give_back(session, result.workflow, lease.DRIVER)
    except VReplicationError as error:
        log.info("it could not be noted that the end was told: %s", error)


def completed_of(session: Session, workflow: str) -> Result:
    found = journal.latest(session, workflow, journal.ORPHANS)
    if found is None:
        return _result(session, "complete", workflow, None)
    return _result(session, "complete", workflow, str(found["details"]), exit_code=1)


def ended(url: SourceUrl, workflow: str, driver: Driver | None, error: VReplicationError) -> Result:
    """A Result for whatever ended the run before the cut-over."""
    # First: of a cancel or a refusal its tables are removed next.
    if driver:
        driver.child.end()
    if _is_no(url, workflow, driver, error):
        return Result(event="refused", workflow=workflow, reason=str(error), exit_code=2)
    # Without a driver there was no lease, so nothing of ours may be written.
    if driver is None:
        return _not_begun(workflow, error)
    try:
        if driver.is_superseded:
            return _taken_over(workflow, error)
        with connect(url) as session:
            return _ended_with_sidecar(session, workflow, driver, error)
    except VReplicationError as other:
        log.error("the sidecar could not be told: %s", other)
        return _untold(workflow, error, other)


def _not_begun(workflow: str, error: VReplicationError) -> Result:
    if isinstance(error, Interrupted):
        return Result(event="interrupted", workflow=workflow, reason=str(error), exit_code=Interrupted.exit_code)
    again = resume_command(workflow) if isinstance(error, Transient) else None
    return Result(event="failed", workflow=workflow, reason=str(error), resume_command=again, exit_code=1)


def _untold(workflow: str, error: VReplicationError, other: VReplicationError) -> Result:
    """The server is away: all stands as it did, and the same command finds out how that is."""
    is_interrupted = isinstance(error, Interrupted)
    return Result(
        event="interrupted" if is_interrupted else "failed",
        workflow=workflow,
        reason=str(other if str(error) == str(other) else f"{error} {other}"),
        resume_command=resume_command(workflow),
        exit_code=Interrupted.exit_code if is_interrupted else 1,
    )


def _taken_over(workflow: str, error: VReplicationError) -> Result:
    """How it ends is another process's to say; ours may have ended in whatever way its connections were killed."""
    log.info("ended after a takeover: %s", error)
    reason = f"Workflow {workflow} has been taken over by another process; this one has stopped writing."
    return Result(event="failed", workflow=workflow, reason=reason, exit_code=1)


def _is_no(url: SourceUrl, workflow: str, driver: Driver | None, error: VReplicationError) -> bool:
    """Nothing was touched: it never began, or a refused preparation has removed every trace of itself."""
    if isinstance(error, LeaseHeld):
        return True
    if not isinstance(error, Refused) or driver is None:
        return isinstance(error, Refused)
    try:
        with connect(url) as session:
            return workflows.find(session, workflow) is None
    except VReplicationError:
        return False


def _ended_with_sidecar(session: Session, workflow: str, driver: Driver, error: VReplicationError) -> Result:
    row = _settled(session, workflows.load(session, workflow))
    if row.is_cut:
        reason = f"The tables have been switched, but cleaning up did not end: {error}"
        is_interrupted = isinstance(error, Interrupted)
        # Of an interrupt nothing has failed: the same command cleans up.
        event, code = ("interrupted", Interrupted.exit_code) if is_interrupted else ("failed", 1)
        return _result(session, event, workflow, reason, exit_code=code)
    if isinstance(error, Interrupted):
        reason = f"Interrupted; the source table is untouched. {log_kept.limit(session)}".strip()
        return _result(session, "interrupted", workflow, reason, exit_code=Interrupted.exit_code)
    if isinstance(error, Cancelled):
        why = None if row.is_cancel_requested else error.message
        driver.announce_last(session)
        return cancelled(session, row, why, driver)
    told = reason_of(row, error)
    if not isinstance(error, Superseded) and not row.has_ended:
        workflows.move(session, workflow, Phase.FAILED, told, our_lease=driver.our_lease)
        journal.write(session, workflow, "failed", told, actor=lease.me())
    # What failed first is the reason; the copy, say, has only seen that the workflow has ended.
    reason = row.reason if row.phase is Phase.FAILED and row.reason else told
    return _result(session, "failed", workflow, reason, exit_code=1, leftovers=leftovers(session, row))


def _settled(session: Session, row: WorkflowRow) -> WorkflowRow:
    """A run that was lost in the middle of the cut-over: which table carries the name tells how it ended."""
    if row.phase is not Phase.CUTTING_OVER or row.is_cut:
        return row
    with contextlib.suppress(SourceChanged):
        # Neither table may carry it any more; then the cut-over has not been ours.
        if decide(session, row) == SWITCHED:
            workflows.set_fields(session, row.id, is_cut=1)
            journal.write(session, row.id, "switched", "found after the connection was lost", actor=lease.me())
    return workflows.load(session, row.id)


def cancelled(session: Session, row: WorkflowRow, why: str | None = None, driver: Driver | None = None) -> Result:
    """Remove what the workflow made. why: a sentence; None: the operator asked for it. driver: whose it is."""
    if reverting.is_way_back(row):
        return _closed(session, row, why, driver)
    problems = prepare.undo_quietly(session, row)
    if problems:
        return _result(session, "failed", row.id, problems[0], exit_code=1, leftovers=leftovers(session, row))
    left = _rebuilt(session, row)
    workflows.forget_run(session, row.id)
    spool.forget(row)
    # Behind what is removed: cut short before, the workflow has not ended, and is cancelled again.
    workflows.move(session, row.id, Phase.CANCELLED, why or "cancelled by the operator")
    journal.write(session, row.id, "cancelled", f"{why or ''} {left}".strip(), actor=lease.me())
    words = f"{why} The source table is untouched." if why else "Cancelled; the source table is untouched."
    return _result(session, "cancelled", row.id, f"{words} {left}".strip(), exit_code=3)


def _rebuilt(session: Session, row: WorkflowRow) -> str:
    """What stays, in words: a new table that somebody has rebuilt has another number, and is not known for ours."""
    is_known = row.shadow_identity is not None and not row.is_in_place
    if not (is_known and exists(session, row.source_schema, row.shadow_table)):
        return ""
    return f"{row.source_schema}.{row.shadow_table}: {STAYS}"


def _closed(session: Session, row: WorkflowRow, why: str | None, driver: Driver | None) -> Result:
    """Of a way back nothing is left but the table in use."""
    reason = why or "The operator has ended the window to revert."
    # First, and for good: nothing may switch to a table of which the first row is gone.
    reverting.close(session, row, reason, our_lease=driver.our_lease if driver else None)
    is_dropped = reverting.drop_original(session, row, driver.is_stopping if driver else lambda: False)
    rest = "has been dropped" if is_dropped else f"goes with `vreplication cleanup {row.spec['reverts']}`"
    words = f"{reason} The original {rest}; the source table is untouched."
    return _result(session, "cancelled", row.id, words, exit_code=0 if why else 3)


def leftovers(session: Session, row: WorkflowRow) -> tuple[Leftover, ...]:
    """What of ours is still there."""
    command = f"vreplication cancel {row.id}"
    found = []
    if exists(session, row.source_schema, row.shadow_table):
        what = "original" if reverting.is_way_back(row) else "shadow table"
        found.append(Leftover(what=f"{what} {row.source_schema}.{row.shadow_table}", command=command))
    if row.keeps_one and exists(session, row.source_schema, row.full_copy):
        found.append(Leftover(what=f"full copy {row.source_schema}.{row.full_copy}", command=command))
    for name in standing_in.left(session, row):
        found.append(Leftover(what=f"stand-in {row.source_schema}.{name}", command=command))
    found.append(Leftover(what=f"rows and key tables of workflow {row.id} in the sidecar", command=command))
    return tuple(found)


def resume_command(workflow: str) -> str:
    return f"vreplication resume {workflow}"


def _result(session: Session, event: str, workflow: str, reason: str | None, **more: Any) -> Result:
    row, figures = workflows.load(session, workflow), progress.read(session, workflow)
    side = dedup.told(session, row) if row.keeps_one else None
    retired_exists = event == "complete" and exists(session, row.source_schema, row.retired_table)
    return Result(
        event=event,
        workflow=workflow,
        reason=reason,
        shadow_table=row.shadow_table,
        retired_table=row.retired_table if retired_exists else None,
        rows_copied=figures.get("rows_copied"),
        events_applied=figures.get("events_applied"),
        cutover_millis=figures.get("cutover_millis"),
        write_stall_millis=figures.get("write_stall_millis"),
        reverts=row.spec.get("reverts"),
        side_table=side[0] if side else None,
        side_rows=side[1] if side else None,
        strategy=workflows.strategy_of(row.copy_path),
        strategy_reason=journal.strategy_reason(session, workflow),
        is_fallback=journal.latest(session, workflow, journal.FALLBACK) is not None,
        resume_command=resume_command(workflow) if event in ("failed", "interrupted") else None,
        **more,
    )
