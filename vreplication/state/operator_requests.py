"""What operators have asked of a workflow so far, carried over when its preparation is begun again.

What must stay true: a release, a pause or a tuning that came before the preparation was cut short holds for the one
that follows under the same id; it is written as soon as there is a row to write it to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vreplication.mysql.session import Session
from vreplication.settings import Tuning
from vreplication.state import gate, tuning, workflows
from vreplication.state.workflows import WorkflowRow


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """released_by: who released the cut-over already, or None."""

    is_paused: bool = False
    is_cancel_requested: bool = False
    released_by: str | None = None
    tuning: Tuning = field(default_factory=Tuning)


def read(session: Session, row: WorkflowRow) -> OperatorRequests:
    return OperatorRequests(
        is_paused=row.is_paused,
        released_by=gate.released_by(session, row.id),
        tuning=tuning.read(session, row.id),
    )


def write(session: Session, workflow: str, requests: OperatorRequests) -> None:
    if requests.is_paused:
        workflows.set_paused(session, workflow, True)
    if requests.is_cancel_requested:
        workflows.request_cancel(session, workflow)
    if requests.released_by is not None:
        gate.release(session, workflow, requests.released_by)
    if requests.tuning != Tuning():
        tuning.ask(session, workflow, requests.tuning)
