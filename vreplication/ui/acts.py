"""What a person may do to a workflow on the page: pause, resume, release, cancel.

What must stay true: an act is a row in the sidecar and a line in the journal with the person's name; the page starts no
process, so a resume unpauses and says so when nobody is there to go on; each button says what will and what will not
happen before anything does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vreplication.errors import Refused
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot
from vreplication.state import gate, journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.ui.asking import quick
from vreplication.ui.reading import About

_ENDED = (Phase.COMPLETE, Phase.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button with its question. `will` and `wont` are whole sentences."""

    act: str
    label: str
    question: str
    will: str
    wont: str
    is_grave: bool = False


def buttons(seen: Snapshot, about: About) -> list[Button]:
    """Those that make sense now."""
    if seen.phase in _ENDED:
        return []
    found = [] if seen.phase is Phase.FAILED else _of_living(seen, about)
    may_cancel = not about.is_cut and (not seen.is_cancel_requested or seen.is_silent)
    return [*found, *([_cancel(seen)] if may_cancel else [])]


def _of_living(seen: Snapshot, about: About) -> list[Button]:
    if about.is_cut:
        return []
    turn = _resume(seen) if seen.is_paused else _pause(seen)
    return [turn, *([_release(seen)] if about.needs_release else [])]


def _pause(seen: Snapshot) -> Button:
    return Button(
        act="pause",
        label="Pause",
        question=f"Pause the migration of {seen.source_table}?",
        will="No new chunk is copied and the tables are not switched until it is resumed.",
        wont=f"Changes to {seen.source_table} are still applied, so nothing is lost or has to be copied again.",
    )


def _resume(seen: Snapshot) -> Button:
    return Button(
        act="resume",
        label="Resume",
        question=f"Resume the migration of {seen.source_table}?",
        will="The process that works on it goes on where it stopped.",
        wont="No process is started: if none is left, clear the task in Airflow or use `vreplication resume`.",
    )


def _release(seen: Snapshot) -> Button:
    return Button(
        act="release",
        label="Release",
        question=f"Release the cut-over of {seen.source_table}?",
        will="The tables are switched as soon as the copy is verified and caught up; writers wait for at most seconds.",
        wont="It is not forced: unproven rows or a blocking connection still hold it. It cannot be taken back "
        "(pausing holds it again). Your name goes into the journal.",
        is_grave=True,
    )


def _cancel(seen: Snapshot) -> Button:
    return Button(
        act="cancel",
        label="Cancel",
        question=f"Cancel the migration of {seen.source_table}?",
        will="The shadow table and everything copied so far are removed; to change the table later is to begin again.",
        wont=f"{seen.source_table} is untouched: no row and no column of it changes.",
        is_grave=True,
    )


def pause(url: SourceUrl, workflow: str, by: str) -> str:
    from vreplication.workflows import operate

    _live(url, workflow, "paused")
    operate.pause(url, workflow, by)
    return "Paused: no new chunk and no cut-over; changes are still applied."


def resume(url: SourceUrl, workflow: str, by: str) -> str:
    """As `operate.resume`, without running it on here: the web server is no place for that."""
    _live(url, workflow, "resumed")
    with quick(url) as session:
        workflows.set_paused(session, workflow, False)
        journal.write(session, workflow, "resumed", actor=by)
        if lease.is_alive(session, workflow, lease.DRIVER):
            return "Resumed: the process that works on it goes on."
    return "Resumed. If no task of it is running, clear the one that stopped in Airflow, or use `vreplication resume`."


def release(url: SourceUrl, workflow: str, by: str) -> str:
    from vreplication.workflows import operate

    _live(url, workflow, "released")
    with quick(url) as session:
        before = gate.released_by(session, workflow)
    if before is not None:
        return f"It was released before, by {before}."
    operate.release(url, workflow, by)
    return "Released: the switch follows as soon as everything is verified and caught up."


def cancel(url: SourceUrl, workflow: str, by: str) -> str:
    """By its driver when there is one, which is only asked here; else at once, in this request."""
    from vreplication.workflows import operate

    with quick(url) as session:
        row = _cancellable(session, workflow)
        if row.phase is Phase.CANCELLED:
            return "It was cancelled before."
        if lease.is_alive(session, workflow, lease.DRIVER):
            workflows.request_cancel(session, workflow)
            journal.write(session, workflow, "cancel requested", actor=by)
            return f"Asked: the process that works on it removes what it made; {row.source_table} is untouched."
    result = operate.cancel(url, workflow, by)
    if result.event != "cancelled":
        raise Refused(f"It could not be cancelled: {result.reason}")
    return "Cancelled: what it made is removed; the source table is untouched."


ACTS: dict[str, Callable[[SourceUrl, str, str], str]] = {
    "pause": pause,
    "resume": resume,
    "release": release,
    "cancel": cancel,
}


def _live(url: SourceUrl, workflow: str, act: str) -> None:
    """Raises Refused; quickly, where the source does not answer."""
    with quick(url) as session:
        row = workflows.load(session, workflow)
    if row.phase in (*_ENDED, Phase.FAILED):
        raise Refused(f"Workflow {workflow} has ended ({row.phase}) and cannot be {act}.")


def _cancellable(session: Session, workflow: str) -> WorkflowRow:
    row = workflows.load(session, workflow)
    if row.is_cut or row.phase is Phase.COMPLETE:
        raise Refused(f"Workflow {workflow} has switched its tables and cannot be cancelled.")
    return row
