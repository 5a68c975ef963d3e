"""What a person may do to a workflow on the page: pause, resume, release, tune, cancel; of a move reverse, complete.

What must stay true: an act is a row in the sidecar and a line in the journal with the person's name; the page starts no
process, so a resume unpauses and says so when nobody is there to go on; a source that does not answer says so soon.
"""

from __future__ import annotations

from collections.abc import Callable

from vreplication import names
from vreplication.engine import effort
from vreplication.errors import Refused
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.progress import fed
from vreplication.state import journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui import FEEDS, MOVES
from vreplication.ui.asking import quick
from vreplication.ui.buttons import labelled
from vreplication.workflows.online_ddl import reverting
from vreplication.workflows.registry import for_forms

QUEUE_ACTS = ("first", "earlier", "later", "remove")


def pause(url: SourceUrl, workflow: str, by: str) -> str:
    from vreplication.workflows import operate

    row = _live(url, workflow, "paused")
    operate.pause(url, workflow, by)
    if row.kind == FEEDS:
        return "Paused: nothing is sent until it is resumed; the log is read on from there then."
    return "Paused: no new chunk and no cut-over; changes are still applied."


def resume(url: SourceUrl, workflow: str, by: str) -> str:
    """As `operate.resume`, without running it on here: the web server is no place for that."""
    _live(url, workflow, "resumed")
    with quick(url) as session:
        workflows.set_paused(session, workflow, False)
        journal.write(session, workflow, "resumed", actor=by)
        if lease.is_alive(session, workflow, lease.DRIVER):
            return "Resumed: its process goes on."
    return "Resumed. If no task of it is running, clear the one that stopped in Airflow, or use `vreplication resume`."


def release(url: SourceUrl, workflow: str, by: str) -> str:
    from vreplication.workflows import operate

    row = _live(url, workflow, "released")
    with quick(url) as session:
        # Before `operate.release`, which writes this name over that of whoever was first.
        before = operate.stands(session, workflow)
    if before is not None:
        return f"It was released before, by {before}."
    operate.release(url, workflow, by)
    if "reverts" in row.spec:
        return _asked_to_revert(url, row)
    return "Released: the cut-over follows as soon as everything is verified and caught up."


def _asked_to_revert(url: SourceUrl, row: WorkflowRow) -> str:
    with quick(url) as session:
        if lease.is_alive(session, row.id, lease.DRIVER):
            return "Asked: the original takes the name again as soon as it is level and verified."
    return f"Asked, and there is no active worker: `vreplication revert {row.spec['reverts']}` does it."


def tune(url: SourceUrl, workflow: str, by: str, asked_for: object = None) -> str:
    """`asked_for`: what the form, or anybody, has sent."""
    # The route takes the body as it comes, for most acts have none; so it may be any JSON, or nothing.
    if not isinstance(asked_for, dict):
        raise Refused("Say what to set as an object: copy_parallelism, chunk_millis, or both.")
    if _live(url, workflow, "tuned").kind == FEEDS:
        raise Refused(f"{workflow} is a change feed, and copies nothing that could be tuned.")
    try:
        return effort.tune(url, workflow, by, asked_for)
    except Refused as error:
        # The form has labels, and no options.
        raise Refused(labelled(error.message), cure=for_forms(error.cure)) from None


def reverse(url: SourceUrl, workflow: str, by: str) -> str:
    """Asked of the driver, for this process starts none."""
    _ask_driver(url, workflow, by, "reverse")
    return "Asked: writes go back to the source as soon as both sides are level."


def complete(url: SourceUrl, workflow: str, by: str) -> str:
    _ask_driver(url, workflow, by, "complete")
    return "Asked: the reverse stream ends, and the tables on the source get their retired names or are dropped."


def _ask_driver(url: SourceUrl, workflow: str, by: str, what: str) -> None:
    from vreplication.workflows.move_tables import operate as moving

    with quick(url) as session:
        # First: of one that has ended, or is not switched, no task is to be cleared.
        moving.check_ask(session, workflow, what)
        # A wish that is noted for a driver that is not there would be carried out by a later one, when it is not meant
        # any more.
        is_driven = lease.is_alive(session, workflow, lease.DRIVER)
    if not is_driven:
        cure = f"Clear its task reverse_stream in Airflow, or use `vreplication {what} {workflow}`."
        raise Refused(f"Workflow {workflow} has no active worker.", cure=cure)
    moving.ask(moving.Operator(home=url, source=None, workflow=workflow, by=by), what)


def cancel(
    url: SourceUrl,
    workflow: str,
    by: str,
    source: SourceUrl | None = None,
    sink_password: str = "",
    *,
    is_forced: bool = False,
) -> str:
    """By its driver when there is one, which is only asked here; else at once, in this request.

    source: the other server of a move, where it is known. sink_password: of a feed's broker. is_forced: of a feed.
    """
    from vreplication.workflows import operate

    with quick(url) as session:
        row = _cancellable(session, workflow)
        if row.phase is Phase.CANCELLED:
            return "It was cancelled before."
        if lease.is_alive(session, workflow, lease.DRIVER):
            # Not `operate.cancel`, which waits up to a minute for the driver: a person, and a thread of the web server,
            # would wait.
            operate.request_cancel(session, row, by, is_forced=is_forced)
            if row.kind == FEEDS:
                return _asked_to_end(session, workflow, is_forced=is_forced)
            return f"Asked: its process removes what it made; {row.source_table} is untouched."
        if "reverts" in row.spec:
            # It is emptied first, for which this request has no time.
            cure = f"`vreplication cleanup {row.spec['reverts']}` ends the way back."
            raise Refused(f"Workflow {workflow} has no active worker.", cure=cure)
    result = operate.cancel(url, workflow, by, source, sink_password=sink_password, is_forced=is_forced)
    # What stays behind is told as an error: to be pressed again, when what held it up is gone.
    if result.event != "cancelled":
        raise Refused(f"It could not be cancelled: {result.reason}")
    if row.kind == FEEDS:
        return result.reason or "Cancelled."
    return "Cancelled: what it made is removed; the source table is untouched."


def force_cancel(
    url: SourceUrl, workflow: str, by: str, source: SourceUrl | None = None, sink_password: str = ""
) -> str:
    """Of a feed whose broker is gone for good."""
    return cancel(url, workflow, by, source, sink_password, is_forced=True)


def _asked_to_end(session: Session, workflow: str, *, is_forced: bool) -> str:
    found = fed.find(session, workflow)
    if found is None or found.waiting_for is None or is_forced:
        return "Asked: its process ends it; the topic and what it holds stay."
    return (
        f"Asked, and it ends when Kafka answers. Now it waits: {found.waiting_for}"
        " Where its process has ended by then, press Cancel again; where Kafka is gone for good, press Cancel without"
        " Kafka."
    )


def cleanup(url: SourceUrl, workflow: str, by: str, source: SourceUrl | None = None, sink_password: str = "") -> str:
    """Of what is emptied first, whoever keeps it level is asked instead."""
    from vreplication.workflows import operate

    with quick(url) as session:
        back = reverting.way_back(session, workflow)
    # A DROP of a full table holds the server up; the command empties it chunk by chunk first, for as long as that
    # takes.
    if back is not None and back.phase is not Phase.COMPLETE:
        cure = f"`vreplication cleanup {workflow}` does it."
        raise Refused(f"The original of {workflow} is emptied first, for which this request has no time.", cure=cure)
    removed = operate.cleanup(url, workflow, by, source)
    return f"Dropped: {', '.join(removed)}." if removed else "Nothing was left to drop."


def cleanup_duplicates(url: SourceUrl, workflow: str, by: str) -> str:
    """The side table of --on-duplicate, and nothing else."""
    from vreplication.workflows import operate

    removed = operate.drop_duplicates(url, workflow, by)
    return f"Dropped: {', '.join(removed)}." if removed else "Nothing was left to drop."


def revert(url: SourceUrl, workflow: str, by: str) -> str:
    """Of the workflow that has switched: its way back is released."""
    return release(url, names.way_back(workflow), by)


def end_window(url: SourceUrl, workflow: str, by: str) -> str:
    return cancel(url, names.way_back(workflow), by)


# Keys are the last part of the routes, and the `act` of buttons.
ACTS: dict[str, Callable[..., str]] = {
    "pause": pause,
    "resume": resume,
    "release": release,
    "tune": tune,
    "cancel": cancel,
    "force-cancel": force_cancel,
    "reverse": reverse,
    "complete": complete,
    "cleanup": cleanup,
    "cleanup-duplicates": cleanup_duplicates,
    "revert": revert,
    "end-window": end_window,
}


def in_queue(url: SourceUrl, workflow: str, act: str, by: str) -> str:
    """One of QUEUE_ACTS on what waits there."""
    from vreplication.scheduler import queueing

    with quick(url) as session:
        if act == "remove":
            queueing.remove(session, workflow, by)
            return "Removed from the queue."
        queueing.move(session, workflow, by, act)
    return f"Moved {act}."


WITH_VALUES = frozenset({"tune"})
"""Acts that take what the form says."""
AT_BOTH_ENDS = frozenset({"cancel", "force-cancel", "cleanup"})
"""Acts that change something on both servers of a move, or in a feed's broker, where nobody drives it."""


def _live(url: SourceUrl, workflow: str, act: str) -> WorkflowRow:
    """Raises Refused; quickly, where the source does not answer."""
    with quick(url) as session:
        row = workflows.load(session, workflow)
    # Before `OVER`, among which it is not: the command resumes it, which runs on in that process.
    if row.phase is Phase.FAILED:
        cure = f"Clear the task that failed in Airflow, or use `vreplication resume {workflow}`."
        raise Refused(f"Workflow {workflow} has failed and cannot be {act} here.", cure=cure)
    if row.phase in OVER:
        raise Refused(f"Workflow {workflow} has ended ({row.phase}) and cannot be {act}.")
    return row


def _cancellable(session: Session, workflow: str) -> WorkflowRow:
    row = workflows.load(session, workflow)
    if row.is_cut or row.phase is Phase.COMPLETE:
        cure = "Reverse goes back; then it can be." if row.kind == MOVES and row.phase not in OVER else ""
        raise Refused(f"Workflow {workflow} has switched its tables and cannot be cancelled.", cure=cure)
    return row
