"""What an operator does to a workflow from outside: pause, resume, release, cancel, verify, clean up, look.

What must stay true: every act is a row in the sidecar that whoever works on the workflow reads; who did it is
journaled; an act on an unknown workflow is refused with one sentence.

url: of the server with the workflow's state. source: the other one, of tables that move (moving.py), where it is given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from vreplication.cutover.decide import SWITCHED, decide, settle
from vreplication.cutover.reasons import LEFT_BEHIND
from vreplication.cutover.sentry import remove_sentry
from vreplication.engine import job, log_kept, maintenance
from vreplication.engine.result import Result
from vreplication.errors import Interrupted, LeaseHeld, Refused, SourceChanged, Terminal, Transient
from vreplication.mysql.ends import Route
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.planning import revert_checks
from vreplication.planning.spec import spec_of
from vreplication.progress import snapshot
from vreplication.progress.snapshot import Snapshot
from vreplication.schema.introspect import exists
from vreplication.spark.session import SparkStart
from vreplication.state import gate, held, journal, lease, moves, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow
from vreplication.verify.verify import Caller
from vreplication.verify.verify import verify as verify_rows
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.lookup import FEED, MOVE, live
from vreplication.workflows.move_tables import operate as moving
from vreplication.workflows.online_ddl import cleaning, dedup, ending, failover, reverting
from vreplication.workflows.online_ddl import run as online_ddl
from vreplication.workflows.online_ddl.resume import check_alone

log = logging.getLogger(__name__)

# A driver looks twice a second, but a batch or a DROP of a large table that is under way ends first.
_CANCEL_PATIENCE_SECONDS = 60.0
_UNTOUCHED = {
    MOVE: "the source's tables are as they were",
    FEED: "the topic and what it holds stay",
}


def pause(url: SourceUrl, workflow: str, by: str) -> str:
    """No new chunk and no cut-over from now on; catch-up goes on, so that no log is missed.

    Returns what is to be known before the catch-up is stopped too, or ''.
    """
    with connect(url, use_database=False) as session:
        live(session, workflow, "paused")
        workflows.set_paused(session, workflow, True)
        journal.write(session, workflow, "paused", actor=by)
        return log_kept.limit(session)


def release(url: SourceUrl, workflow: str, by: str) -> None:
    """Open the cut-over gate; remembered when it comes before the gate."""
    with connect(url) as session:
        _release(session, workflow, by)


def _release(session: Session, workflow: str, by: str) -> None:
    kind = live(session, workflow, "released").kind
    if kind == MOVE:
        moving.refuse_release(session, workflow)
    _refuse_feed(kind, workflow, "released")
    # Over that of a window, too, which is taken back when the window closes; a person's never is.
    gate.release(session, workflow, by)
    journal.write(session, workflow, "released", actor=by)


def _refuse_feed(kind: str, workflow: str, act: str) -> None:
    if kind == FEED:
        raise Refused(f"{workflow} is a change feed, and cannot be {act}.")


def release_once(url: SourceUrl, workflow: str, by: str) -> None:
    """As `release`, unless somebody has: who was first stays the one who did."""
    with connect(url) as session:
        row = workflows.load(session, workflow)
        # Before `live`: a task that is called again behind the end has nothing to do, and must not fail for it.
        if gate.released_by(session, workflow) is not None or row.is_cut:
            return
        live(session, workflow, "released")
        # A person may have been faster, whose release a window's must not replace: that one is taken back.
        if gate.release_first(session, workflow, by):
            journal.write(session, workflow, "released", actor=by)


def approve(url: SourceUrl, workflow: str, by: str) -> None:
    """As `release_once`, by a person who was asked."""
    with connect(url) as session:
        row = workflows.load(session, workflow)
        # The first shows a switch a moment before the second does.
        if (row.kind == MOVE and _has_moved(moves.load(session, workflow))) or row.is_cut:
            return
        if stands(session, workflow) is not None:
            return
        _release(session, workflow, by)


def _has_moved(move: Move) -> bool:
    return move.serving is Side.TARGET or move.decision in (Decision.DECIDED, Decision.OPENED)


def stands(session: Session, workflow: str) -> str | None:
    """Who has released it so that another release would change nothing.

    A window takes its own back when it closes, and tables of a move that have come since want one that is given now.
    """
    by = gate.released_by(session, workflow)
    if by is None or maintenance.is_a_windows(by):
        return None
    noted = held.read(session, workflow).get((workflow, held.GATE), [])
    return None if any(each["code"] == LEFT_BEHIND for each in noted) else by


def reject(url: SourceUrl, workflow: str, by: str, source: SourceUrl | None = None) -> None:
    """Somebody who was asked has said no: the workflow is cancelled. Raises Refused when it is too late for that.

    source: of a move, which is not at home.
    """
    with connect(url) as session:
        row = workflows.load(session, workflow)
        _refuse_cut(row)
        # Before the cancel, which may take a minute, or fail: who has said no is known all the same.
        journal.write(session, workflow, "rejected", actor=by)
    result = cancel(url, workflow, by, source)
    if result.event != "cancelled":
        raise Terminal(result.reason or "It could not be cancelled.")


def resume(
    url: SourceUrl,
    workflow: str,
    by: str,
    stop: threading.Event,
    notify: Callable[[str], None],
    source: SourceUrl | None = None,
    replica: SourceUrl | None = None,
) -> Result | None:
    """Unpause; run it on when nobody does. None: somebody does. source, replica: of tables that move."""
    with connect(url) as session:
        is_move = workflows.load(session, workflow).kind == MOVE
    # Not within: it may go on for weeks, and the connection would be held for nothing.
    if is_move:
        return moving.resume(
            moving.Operator(
                home=url, source=source, workflow=workflow, by=by, stop=stop, notify=notify, replica=replica
            )
        )
    with connect(url) as session:
        # Before `live`, which refuses what is complete: it ended well, and whoever was to say so died.
        if ending.is_untold(session, workflows.load(session, workflow)):
            return ending.completed_of(session, workflow)
        workflow = reverting.going_on(session, workflow)
        row, is_driven = live(session, workflow, "resumed"), lease.is_alive(session, workflow, lease.DRIVER)
        if not (is_driven or row.is_cut):
            check_alone(session, row)
        workflows.set_paused(session, workflow, False)
        journal.write(session, workflow, "resumed", actor=by)
        if is_driven:
            return None
        spec = spec_of({**row.spec, "workflow": workflow})
    return online_ddl.run(spec, url, stop=stop, notify=notify)


def cancel(
    url: SourceUrl,
    workflow: str,
    by: str,
    source: SourceUrl | None = None,
    *,
    sink_password: str = "",
    is_forced: bool = False,
) -> Result:
    """Remove what the workflow made: by its driver when there is one, else here.

    Of a feed: sink_password of its broker; is_forced: it ends even where that cannot be told.
    """
    with _connected(url, workflow) as session:
        row = workflows.load(session, workflow)
        if row.phase is Phase.CANCELLED:
            return Result(event="cancelled", workflow=workflow, reason="It was cancelled before.", exit_code=0)
        _refuse_cut(row)
        if row.kind == MOVE and not lease.is_alive(session, workflow, lease.DRIVER):
            # Before it is asked for: a source that is missing, or another one, is refused with nothing noted.
            moving.route_of(url, source, workflow)
        request_cancel(session, row, by, is_forced=is_forced)
        if _wait_for_driver(session, workflow):
            untouched = _UNTOUCHED.get(row.kind, "the source table is untouched")
            more = feeding.UNFENCED if feeding.UNFENCED in (workflows.load(session, workflow).reason or "") else ""
            more = more or _left_by(session, workflow)
            return Result(event="cancelled", workflow=workflow, reason=f"Cancelled; {untouched}. {more}".strip())
        if row.kind == FEED:
            return feeding.cancel(url, workflow, sink_password)
        return _cancel_here(session, workflow) if row.kind != MOVE else moving.cancel(url, source, workflow)


def _connected(url: SourceUrl, workflow: str) -> Session:
    """Of a feed without the URL's schema, which may have been dropped: that stands in its log as any DDL."""
    with connect(url, use_database=False) as session:
        row = workflows.find(session, workflow)
    return connect(url, use_database=row is None or row.kind != FEED)


def _left_by(session: Session, workflow: str) -> str:
    """What a cancel that its driver has carried out has not removed, as that has said it."""
    found = journal.latest(session, workflow, "cancelled")
    words = str(found["details"]) if found else ""
    return words if ending.STAYS in words else ""


def request_cancel(session: Session, row: WorkflowRow, by: str, *, is_forced: bool = False) -> None:
    """From whoever drives it. Raises Refused."""
    if is_forced and row.kind != FEED:
        raise Refused(
            f"{row.id} is no change feed, and its cancel has nothing to be forced.", cure="Leave --force out."
        )
    workflows.request_cancel(session, row.id, is_forced=is_forced)
    journal.write(session, row.id, "cancel requested", "by force" if is_forced else "", actor=by)


def _refuse_cut(row: WorkflowRow) -> None:
    if row.kind == MOVE:
        moving.refuse_switched(row)
    elif row.is_cut or row.phase is Phase.COMPLETE:
        done = "altered its table in place" if row.is_in_place else "switched its tables"
        raise Refused(f"Workflow {row.id} has {done} and cannot be cancelled.", cure=_cure_of_cut(row))


def _cure_of_cut(row: WorkflowRow) -> str:
    if row.phase is not Phase.COMPLETE:
        return f"`vreplication resume {row.id}` does what is left."
    return "" if row.is_in_place else f"`vreplication cleanup {row.id}` drops the retired table."


def _wait_for_driver(session: Session, workflow: str) -> bool:
    """True when a living driver has carried the cancel out."""
    waited = threading.Event()
    seconds = 0.0
    while seconds < _CANCEL_PATIENCE_SECONDS:
        # First: a driver that ends in between has carried it out before it lets go.
        is_driven = lease.is_alive(session, workflow, lease.DRIVER)
        row = workflows.load(session, workflow)
        if row.phase is Phase.CANCELLED:
            return True
        if row.is_cut and row.kind == MOVE:
            # Or it would be cancelled as soon as it has been switched back.
            workflows.set_fields(session, workflow, cancel_requested=0)
        _refuse_cut(row)
        if not is_driven:
            return False
        waited.wait(0.2)
        seconds += 0.2
    if row.kind == FEED and not row.is_cancel_forced:
        raise Transient(
            f"Feed {workflow} has been asked to end, and has not yet: Kafka may be away.",
            cure=f"Cancel it again when Kafka answers; `vreplication cancel {workflow} --force` ends it without that.",
        )
    raise Refused(f"The driver of workflow {workflow} did not respond.", cure="Stop its process and cancel again.")


def close_window(session: Session, workflow: str) -> Result:
    """Of a way back that nobody drives, and whose time is over."""
    return _cancel_here(session, workflow, reverting.TIME_IS_OVER)


def _cancel_here(session: Session, workflow: str, why: str | None = None) -> Result:
    """Nobody drives it: take both leases, so that nobody can write any more, then remove."""
    # The driver's first: by its new token a catch-up that still runs sees that it has been superseded, and lets go.
    rights = [lease.acquire(session, workflow, lease.DRIVER), _take_replicate(session, workflow)]
    try:
        # First: by the identities that another server gave out a table of the application's might be taken for ours.
        row = failover.adopt(session, workflows.load(session, workflow))
        if row.shadow_identity and _is_switched(session, row):
            workflows.set_fields(session, workflow, is_cut=1)
            journal.write(session, workflow, "switched", "found when it was to be cancelled", actor=lease.me())
            _refuse_cut(workflows.load(session, workflow))
        return ending.cancelled(session, row, why)
    finally:
        for right in rights:
            lease.release(session, right)


def _take_replicate(session: Session, workflow: str) -> lease.Lease:
    """Catch-up needs a moment to see that its driver has gone."""
    for _ in range(100):
        try:
            return lease.acquire(session, workflow, lease.REPLICATE)
        except LeaseHeld:
            threading.Event().wait(0.2)
    return lease.acquire(session, workflow, lease.REPLICATE)


def _is_switched(session: Session, row: WorkflowRow) -> bool:
    """A source table that was rebuilt or renamed by others is not ours: what we made is removed all the same."""
    try:
        return settle(session, row) == SWITCHED
    except SourceChanged:
        remove_sentry(session, row.source_schema, row.retired_table, row.id)
        return False


def check_revert(url: SourceUrl, workflow: str) -> list[str]:
    """What would be lost, in sentences. Raises Refused where it cannot be reverted (any more)."""
    with connect(url) as session:
        row = _way_back(session, workflow)
        if row.is_cut or decide(session, row) == SWITCHED:
            # By a process that died before it could say so.
            return []
        return revert_checks.losses(job.load(session, row.id).mapping)


def revert(
    url: SourceUrl, workflow: str, by: str, stop: threading.Event, notify: Callable[[str], None]
) -> Result | None:
    """Switch back to the original; None: whoever keeps it level does so."""
    with connect(url) as session:
        row = _way_back(session, workflow)
        # It is the release that whoever keeps the original level waits for; asked for twice, it is journaled once.
        if gate.release_first(session, row.id, by):
            journal.write(session, row.id, "revert", actor=by)
    return resume(url, row.id, by, stop, notify)


def _way_back(session: Session, workflow: str) -> WorkflowRow:
    row = workflows.load(session, workflow)
    found = row if reverting.is_way_back(row) else reverting.way_back(session, workflow)
    if found is None:
        words = "has no way back" if row.is_cut else "has not switched its tables"
        raise Refused(
            f"Workflow {workflow} {words}.",
            cure="Only one that was started with --revert-window can be reverted, after its cut-over.",
        )
    if found.phase is Phase.COMPLETE:
        raise Refused(f"Workflow {workflow} has been reverted.")
    if found.phase is Phase.CANCELLED:
        raise Refused(f"Workflow {workflow} cannot be reverted any more. {found.reason or ''}".strip())
    if found.phase is Phase.FAILED:
        raise Refused(found.reason or f"{found.id} has failed.", cure=f"`vreplication resume {found.id}` tries again.")
    return found


def _clean_way_back(url: SourceUrl, row: WorkflowRow, by: str) -> list[str] | None:
    """End the window of a workflow early, or drop what a revert has put aside. None: it has no way back."""
    with connect(url) as session:
        back = reverting.way_back(session, row.id)
        if back is None:
            return None
        if reverting.closed_way_back(session, row.id):
            return _drop_closed(session, back)
    if back.phase is Phase.COMPLETE:
        return cleanup(url, back.id, by)
    if back.is_cut:
        raise Refused(f"Workflow {row.id} is being reverted.", cure=f"`vreplication resume {back.id}` ends that first.")
    result = cancel(url, back.id, by)
    if result.event != "cancelled":
        raise Terminal(result.reason or "The window could not be ended.")
    with connect(url) as session:
        is_there = exists(session, back.source_schema, back.shadow_table)
    return [f"{back.source_schema}.{back.shadow_table}{' (its process is emptying it)' if is_there else ''}"]


def _drop_closed(session: Session, back: WorkflowRow) -> list[str]:
    """What is left of a way back that was closed."""
    if exists(session, back.source_schema, back.shadow_table):
        # By this server's own numbers: behind a failover those that were noted are another server's.
        back = failover.adopt(session, back)
    is_dropped = reverting.drop_original(session, back)
    return [f"{back.source_schema}.{back.shadow_table}"] if is_dropped else []


def cleanup(url: SourceUrl, workflow: str, by: str, source: SourceUrl | None = None) -> list[str]:
    """Drop the retired table of a completed workflow; returns what was dropped."""
    with connect(url) as session:
        row = workflows.load(session, workflow)
        _refuse_feed(row.kind, workflow, "cleaned up: nothing of ours is left of it but its topics")
        if row.phase is not Phase.COMPLETE:
            raise Refused(
                f"Workflow {workflow} is not complete but {row.phase}.",
                cure=f"`vreplication {_end(row)} {workflow}` ends it.",
            )
        if row.kind == MOVE:
            return moving.cleanup(url, source, workflow, by)
        if (removed := _clean_way_back(url, row, by)) is not None:
            return removed
        if not exists(session, row.source_schema, row.retired_table):
            return []
        # By this server's own numbers: behind a failover those that were noted are another server's.
        if not cleaning.drop_retired(session, failover.adopt(session, row)):
            raise Refused(
                f"{row.source_schema}.{row.retired_table} is not the table that workflow {workflow} began with: it was "
                "rebuilt or replaced since.",
                cure="Drop it yourself if it is not needed.",
            )
        journal.write(session, workflow, "dropped", f"retired table {row.retired_table}", actor=by)
        return [f"{row.source_schema}.{row.retired_table}"]


def drop_duplicates(url: SourceUrl, workflow: str, by: str) -> list[str]:
    """Drop the side table of a completed workflow; returns what was dropped."""
    with connect(url) as session:
        row = workflows.load(session, workflow)
        if not row.keeps_one:
            raise Refused(f"Workflow {workflow} has no side table: it was begun without --on-duplicate.")
        if row.phase is not Phase.COMPLETE:
            raise Refused(f"Workflow {workflow} is not complete but {row.phase}.")
        is_dropped = dedup.drop_side(session, row, by)
        return [f"{row.source_schema}.{row.side_table}"] if is_dropped else []


def _end(row: WorkflowRow) -> str:
    """The command that ends a workflow."""
    if not row.is_cut:
        return "cancel"
    return "complete" if row.kind == MOVE else "resume"


def verify(
    url: SourceUrl, workflow: str, spark_master: str, stop: threading.Event, source: SourceUrl | None = None
) -> Verdict:
    """Compare source and shadow now; repairs nothing. The workflow's catch-up must be running."""
    with connect(url) as session:
        row = live(session, workflow, "verified")
        if row.is_in_place:
            raise Refused(f"Workflow {workflow} has no copy to compare: the server alters the table itself.")
        _refuse_feed(row.kind, workflow, "verified")
    if row.kind == MOVE:
        return moving.verify(url, source, workflow, spark_master, stop)
    with connect(url) as session:
        # What is written while rows are compared is compared again behind a marker, which only catch-up applies.
        if not lease.is_alive(session, workflow, lease.REPLICATE):
            raise Refused(f"Catch-up of workflow {workflow} is not running.", cure=f"`vreplication resume {workflow}`.")
        found = job.load(session, workflow)
    spark = SparkStart(spark_master, found.parallelism)

    def check() -> None:
        if stop.is_set():
            raise Interrupted("Interrupted.")

    try:
        return verify_rows(
            spark.context(check), Route.within(url), found.mapping, Caller(check=check), workflow=workflow,
            repair=None, is_mariadb=found.server.is_mariadb, parallelism=found.parallelism,
        )  # fmt: skip
    except SqlError as error:
        _refuse_moved(url, workflow, found, error)
        raise
    finally:
        spark.stop()


def _refuse_moved(url: SourceUrl, workflow: str, found: job.Job, error: SqlError) -> None:
    """Raises Transient where the rows are in another table by now (schema/stand_in.py)."""
    if error.code == NO_SUCH_TABLE:
        with connect(url) as session:
            now = job.written_to(session, workflows.load(session, workflow))
        if now != (was := found.mapping.target.name):
            cure = f"Run `vreplication verify {workflow}` again."
            raise Transient(f"The copied rows went from {was} to {now} meanwhile.", cure=cure) from None


def status(url: SourceUrl, workflow: str) -> Snapshot:
    """Raises Refused on an unknown workflow."""
    with connect(url) as session:
        workflows.load(session, workflow)
        return snapshot.read(session, workflow)
