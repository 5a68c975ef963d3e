"""How a move of tables ends: complete, cancelled, failed or interrupted.

What must stay true: a cancel removes only what the workflow made, and only while the source serves; `complete` takes
the source's tables away only while the target serves, and when somebody has asked for it; it renames them before the
triggers on them go, so that no write reaches them by their old names in between; a failure leaves all as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from vreplication.clock import SYSTEM
from vreplication.cutover import deny
from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import drop_table
from vreplication.engine import spool
from vreplication.engine.result import Leftover, Result
from vreplication.errors import Cancelled, Interrupted, LeaseHeld, Refused, Terminal, Transient, VReplicationError
from vreplication.mysql import read_only
from vreplication.mysql.ends import Route
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.schema.introspect import exists
from vreplication.state import journal, keytables, lease, moves, progress, source_marks, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.workflows import TableRow
from vreplication.workflows.move_tables import opening, prepare, sides, streams
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.steps import Work
from vreplication.workflows.online_ddl.ending import STAYS, resume_command

log = logging.getLogger(__name__)

_TRIES, _AGAIN_SECONDS = 5, 0.5

BEHIND = (Decision.DECIDED, Decision.OPENED)
"""Nothing but forward."""


def complete(work: Work) -> Result:
    """End the way back: the source's tables get their retired names, or go, and nothing of ours stays there."""
    driver, workflow = work.driver, work.driver.workflow
    check_is_asked(driver.session, workflow)
    driver.rest()
    driver.child.end()
    with driver.at_source() as source:
        source.execute_raw("SET SESSION lock_wait_timeout=1")
        # The names first: with the triggers gone and the old names still there, an application that was never told
        # would write to tables that nobody follows.
        is_dropped = work.spec.retired == "drop"
        _patiently(driver, source, lambda: _retire(source, driver.session, workflow, is_dropped=is_dropped))
        reach("complete.retired")
        # By the triggers' own names, which RENAME has not changed: they are on the retired tables now.
        tables = sides.tables_on(driver.session, workflow, Side.SOURCE)
        _patiently(driver, source, lambda: deny.allow(source, tables, workflow=workflow))
        if is_dropped:
            _drop_retired(driver, source)
        reach("complete.dropped")
        _forget_source(source, workflow, work.number)
    drop_key_tables(driver.session, workflow, work.number)
    row = workflows.load(driver.session, workflow)
    journal.write(driver.session, workflow, "complete", "", actor=lease.me())
    prepare.forget_run(driver.session, workflow)
    for number in range(1, work.number + 1):
        spool.forget(row, streams.stream_id(workflow, number))
    # Last: until then the same command does all of this again.
    driver.move(Phase.COMPLETE)
    return completed_of(driver.session, workflow)


def _patiently(driver: MoveDriver, source: Session, act: Callable[[], None]) -> None:
    """DDL on the source's tables, tried for a second at a time: whoever reads one comes behind what waits for it."""

    def once() -> None:
        try:
            act()
        except LockWait as error:
            rows = workflows.tables(driver.session, driver.workflow)
            tables = [(row.source_schema, name) for row in rows for name in (row.source_table, row.retired_table)]
            words = opening.who_holds(driver, source, tables, "The source's tables cannot be put aside yet")
            raise LockWait(words or error.message) from None

    sides.persist(driver, once)
    driver.report(waiting_for=None)


def check_is_asked(home: Session, workflow: str) -> None:
    """A scheduler's task comes here when the one before it is marked as success, whatever has been done.

    Raises Refused where the source's tables are in use, or the way back is still open.
    """
    move, spec = moves.load(home, workflow), workflows.load(home, workflow).spec
    if move.serving is Side.SOURCE:
        raise Refused(
            f"The source serves the tables of workflow {workflow}, so it is not completed.",
            cure=f"Go on with it, or take it back: `vreplication cancel {workflow}`.",
        )
    if spec.get("reverse", True) and move.asked != moves.COMPLETE:
        raise Refused(
            f"Nobody has asked for the end of the way back of workflow {workflow}.",
            cure=f"`vreplication complete {workflow}` ends it.",
        )


def completed_of(home: Session, workflow: str) -> Result:
    """Of one that is complete, whoever has driven it."""
    kept = workflows.tables(home, workflow) if workflows.load(home, workflow).spec.get("retired") != "drop" else []
    retired = ", ".join(f"{table.source_schema}.{table.retired_table}" for table in kept) or None
    return _result(home, "complete", workflow, None, retired_table=retired)


def _retire(source: Session, home: Session, workflow: str, *, is_dropped: bool) -> None:
    """All in one statement; triggers go with their tables. Nothing where that is done. is_dropped: in the end."""
    left = [
        f"{qualified(t.source_schema, t.source_table)} TO {qualified(t.source_schema, t.retired_table)}"
        for t in workflows.tables(home, workflow)
        if not _is_retired(source, t, workflow, is_dropped=is_dropped)
    ]
    if left:
        source.execute_raw(f"RENAME TABLE {', '.join(left)}")


def _is_retired(source: Session, table: TableRow, workflow: str, *, is_dropped: bool) -> bool:
    """Raises Terminal where another one has the name: the triggers would go, and the original be open to writes."""
    if not exists(source, table.source_schema, table.retired_table):
        # A run before us may have dropped it, and been cut off before it said so; or somebody else has.
        is_gone = not exists(source, table.source_schema, table.source_table)
        return is_gone or (is_dropped and not _is_original(source, table, workflow))
    found = table_identity(source, table.source_schema, table.retired_table, is_mariadb(source))
    if found != table.source_identity and exists(source, table.source_schema, table.source_table):
        name = f"{table.source_schema}.{table.retired_table}"
        raise Terminal(
            f"There is a table {name} on the source, which is not the original that is to be called so.",
            cure="Rename or drop it, then go on with the same command.",
        )
    return True


def _is_original(source: Session, table: TableRow, workflow: str) -> bool:
    """What has its name, unless somebody has made it since: one that was only rebuilt there is denied all the same."""
    name = (table.source_schema, table.source_table)
    if not exists(source, *name):
        return False
    found = table_identity(source, *name, is_mariadb(source))
    return found == table.source_identity or bool(deny.standing(source, name, workflow=workflow))


def _drop_retired(driver: MoveDriver, source: Session) -> None:
    for table in workflows.tables(driver.session, driver.workflow):
        place = (table.source_schema, table.retired_table)
        # By its number that was noted: whatever else has the name by now is not the original, or was rebuilt since.
        is_dropped = drop_table(source, *place, table.source_identity or "", is_mariadb=is_mariadb(source))
        if not is_dropped and exists(source, *place):
            words = f"{'.'.join(place)} stays on the source: it was rebuilt since it was copied, or is another one"
            driver.notify(words)
            journal.write(driver.session, driver.workflow, "not dropped", words, actor=lease.me())


def _forget_source(source: Session, workflow: str, number: int) -> None:
    for each in range(1, number + 2):
        source_marks.forget(source, streams.stream_id(workflow, each))


def drop_key_tables(home: Session, workflow: str, number: int) -> None:
    for each in range(1, number + 2):
        for table in workflows.tables(home, workflow):
            # Also of the stream that would have followed, whose tables are made before anybody waits at a switch.
            keytables.drop_all(home, table.id(streams.stream_id(workflow, each)))
        source_marks.forget(home, streams.stream_id(workflow, each)) if source_marks.exists(home) else None


def ended(route: Route, workflow: str, driver: MoveDriver | None, error: VReplicationError) -> Result:
    """A Result for whatever ended the run."""
    error = read_only.named(error, route)
    if driver:
        driver.child.end()
    if isinstance(error, LeaseHeld) or (isinstance(error, Refused) and _is_gone(route, workflow, driver)):
        return Result(event="refused", workflow=workflow, reason=str(error), exit_code=2)
    if driver is None or driver.our_lease is None:
        return _untold(workflow, error)
    try:
        if driver.is_superseded:
            reason = f"Workflow {workflow} has been taken over by another process; this one has stopped writing."
            return Result(event="failed", workflow=workflow, reason=reason, exit_code=1)
        with connect(route.home) as home:
            return _ended_at_home(home, workflow, driver, error)
    except Refused as other:
        return Result(event="refused", workflow=workflow, reason=str(other), exit_code=2)
    except VReplicationError as other:
        log.error("the sidecar could not be told: %s", other)
        return _not_cancelled(workflow, other) if isinstance(error, Cancelled) else _untold(workflow, error)


def _is_gone(route: Route, workflow: str, driver: MoveDriver | None) -> bool:
    """Nothing was touched, or a refused preparation has removed every trace of itself."""
    if driver is None:
        return True
    try:
        with connect(route.home) as home:
            return workflows.find(home, workflow) is None
    except VReplicationError:
        return False


def _untold(workflow: str, error: VReplicationError) -> Result:
    is_interrupted = isinstance(error, Interrupted)
    return Result(
        event="interrupted" if is_interrupted else "failed",
        workflow=workflow,
        reason=str(error),
        resume_command=resume_command(workflow) if is_interrupted or isinstance(error, Transient) else None,
        exit_code=error.exit_code,
    )


def _not_cancelled(workflow: str, error: VReplicationError) -> Result:
    """It is there as before, and nothing works on it any more."""
    reason = f"{error} The workflow is not cancelled yet."
    leftover = Leftover(what="what the workflow made", command=f"vreplication cancel {workflow}")
    return Result(event="failed", workflow=workflow, reason=reason, exit_code=1, leftovers=(leftover,))


def _ended_at_home(home: Session, workflow: str, driver: MoveDriver, error: VReplicationError) -> Result:
    move = moves.load(home, workflow)
    if isinstance(error, Cancelled):
        driver.announce_last(home)
        return cancelled(home, driver)
    where = who_serves(move, workflow)
    if isinstance(error, (Interrupted, Transient)):
        reason = f"{error} {where[0].upper()}{where[1:]}.".strip()
        return _result(home, "interrupted", workflow, reason, exit_code=error.exit_code)
    row = workflows.load(home, workflow)
    if not row.has_ended:
        workflows.move(home, workflow, Phase.FAILED, str(error), our_lease=driver.lease)
        journal.write(home, workflow, "failed", str(error), actor=lease.me())
    # What failed first is the reason; the copy, say, has only seen that the workflow has ended.
    reason = row.reason if row.phase is Phase.FAILED and row.reason else str(error)
    leftover = Leftover(what="tables and rows of ours", command=f"vreplication cancel {workflow}")
    # No cancel is offered where it would be refused.
    leftovers = (leftover,) if move.serving is Side.SOURCE and move.decision not in BEHIND else ()
    return _result(home, "failed", workflow, f"{reason} ({where})", exit_code=1, leftovers=leftovers)


def who_serves(move: Move, workflow: str) -> str:
    if move.decision in (Decision.DENYING, Decision.ABORTING):
        # Of what was switched a cancel is refused.
        end = "cancel" if move.serving is Side.SOURCE else "complete"
        return f"writes on the {move.serving} may still be denied: resume or {end} opens it"
    if move.decision is Decision.DECIDED:
        return f"the switch is decided and the {move.serving.other} is not open: writes fail until resume opens it"
    if move.decision is Decision.OPENED:
        return f"the {move.serving.other} serves from now on, and the application has not been told"
    if move.serving is Side.SOURCE:
        return "the source serves, untouched"
    return f"the target serves; where the way back cannot go on, `vreplication complete {workflow}` ends it"


def cancelled(home: Session, driver: MoveDriver) -> Result:
    """Remove what the workflow made, on both servers. Raises Refused while the target serves."""
    workflow = driver.workflow
    row, move = workflows.load(home, workflow), moves.load(home, workflow)
    if move.serving is Side.TARGET or move.decision in BEHIND:
        # Or it would be cancelled as soon as it has been switched back.
        workflows.set_fields(home, workflow, cancel_requested=0)
        if move.decision in BEHIND:
            # Until then the commands below are refused, and neither side may take writes.
            raise Refused(
                f"A switch of workflow {workflow} was decided and has not come to its end.",
                cure=f"`vreplication resume {workflow}` brings it there.",
            )
        raise Refused(
            f"The tables of workflow {workflow} have been switched.",
            cure=f"`vreplication reverse {workflow}` goes back, `vreplication complete {workflow}` ends it.",
        )
    with driver.at_source() as source:
        # First: a switch that was given up may have left triggers, by which the application's writes fail.
        _allow(driver, source, sides.tables_on(home, workflow, Side.SOURCE))
        _forget_source(source, workflow, move.number)
    left = prepare.undo(home, workflow)
    drop_key_tables(home, workflow, move.number)
    prepare.forget_run(home, workflow)
    spool.forget(row)
    workflows.move(home, workflow, Phase.CANCELLED, "cancelled by the operator")
    words = words_of_left(left)
    journal.write(home, workflow, "cancelled", words, actor=lease.me())
    reason = f"Cancelled; the source's tables are as they were. {words}".strip()
    return _result(home, "cancelled", workflow, reason, exit_code=3)


def _allow(driver: MoveDriver, source: Session, tables: list[tuple[str, str]]) -> None:
    """Raises LockWait, naming whoever keeps a table for longer than a person waits for a cancel."""
    for left in reversed(range(_TRIES)):
        try:
            return deny.allow(source, tables, workflow=driver.workflow)
        except LockWait as error:
            if not left:
                words = opening.who_holds(driver, source, tables)
                raise LockWait(words or error.message, cure="End that transaction, then cancel again.") from None
            SYSTEM.sleep(_AGAIN_SECONDS)


def words_of_left(left: list[str]) -> str:
    """left: what `prepare.undo` has not dropped; '' where that is nothing."""
    return f"{' and '.join(left)} on the target: {STAYS}" if left else ""


def _result(home: Session, event: str, workflow: str, reason: str | None, **more: object) -> Result:
    figures, move = progress.read(home, workflow), moves.find(home, workflow)
    return Result(
        event=event,
        workflow=workflow,
        reason=reason,
        rows_copied=figures.get("rows_copied"),
        events_applied=figures.get("events_applied"),
        cutover_millis=figures.get("cutover_millis"),
        write_stall_millis=move.stall_millis if move else None,
        resume_command=resume_command(workflow) if event in ("failed", "interrupted") else None,
        **more,  # type: ignore[arg-type]
    )
