"""What operators have asked of several tables' workflows at once, for the one of them that begins now.

What must stay true: it is read behind the plan, for who asked while that was made found no row to write it to.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.session import Session
from vreplication.state import gate, workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """released_by: who released the cut-over already, or None."""

    is_paused: bool = False
    is_cancel_requested: bool = False
    released_by: str | None = None


def write(session: Session, workflow: str, requests: OperatorRequests) -> None:
    if requests.is_paused:
        workflows.set_paused(session, workflow, True)
    if requests.is_cancel_requested:
        workflows.request_cancel(session, workflow)
    if requests.released_by is not None:
        gate.release(session, workflow, requests.released_by)
