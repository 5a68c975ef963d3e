"""May this attempt go on, and how hard? One look at everything that could say no, and at what the operator asks for.

What must stay true: this is a courtesy that ends useless work early; what keeps a late attempt from writing is the
fences inside the landing transaction.
"""

from __future__ import annotations

from vreplication.errors import Cancelled, Superseded, Terminal
from vreplication.mysql.session import Session
from vreplication.phases import ENDED, Phase
from vreplication.settings import SIDECAR, Pace, Tuning
from vreplication.state import throttle
from vreplication.state.lease import Lease

_SQL = (
    "SELECT w.phase, w.cancel_requested, l.token, s.attempt, t.copy_parallelism, t.chunk_millis, "
    "p.effort, p.tasks, p.chunk_millis "
    f"FROM {SIDECAR}.workflow w LEFT JOIN {SIDECAR}.lease l ON l.workflow=w.id AND l.role=%s "
    f"LEFT JOIN {SIDECAR}.split s ON s.workflow=%s AND s.split=%s "
    f"LEFT JOIN {SIDECAR}.tuning t ON t.workflow=w.id "
    f"LEFT JOIN {SIDECAR}.throttle p ON p.workflow=w.id AND {throttle.FRESH} WHERE w.id=%s"
)


def check_standing(session: Session, lease: Lease, table: str, split: int, attempt: int) -> tuple[Tuning, Pace | None]:
    """What is asked for now, and what the server bears.

    table: id under which the split is kept. attempt 0: the split is not claimed yet. Raises Cancelled, Superseded or
    Terminal.
    """
    row = session.row(_SQL, (lease.role, table, split, lease.workflow))
    if row is None:
        raise Superseded(f"Workflow {lease.workflow} is gone.")
    phase, is_cancel_requested, token, newest, parallelism, millis, *borne = row
    if is_cancel_requested or phase == Phase.CANCELLED:
        raise Cancelled(f"Workflow {lease.workflow} was cancelled.")
    if phase in ENDED:
        raise Terminal(f"Workflow {lease.workflow} has ended ({phase}).")
    if token != lease.token:
        raise Superseded(f"Workflow {lease.workflow} has been taken over by another process.")
    if attempt and newest != attempt:
        raise Superseded(f"A newer attempt at split {split} has taken over.")
    return Tuning(copy_parallelism=parallelism, chunk_millis=millis), throttle.of_row(*borne)
