"""The end of a move whose source is gone for good, as a person says: what is left is done at home alone.

What must stay true: no process works on the workflow any more, nor does catch-up of its streams; a source that answers
is never taken for lost; behind the decision of a switch back nothing is done here, for the source may have taken
writes; where the target is to serve, it takes writes in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.cutover import deny
from vreplication.engine import spool
from vreplication.engine.result import Result
from vreplication.errors import LeaseHeld, Refused, VReplicationError
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.settings import BEAT_SECONDS
from vreplication.state import journal, lease, moves, workflows
from vreplication.state.lease import Lease
from vreplication.state.moves import Decision, Move, Side
from vreplication.workflows.lookup import MOVE
from vreplication.workflows.move_tables import ending, opening, prepare, sides, streams

_LEFT = "What the workflow made on the source (triggers vr_deny_…, rows of ours, the old tables) is not removed."


def complete(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> Result:
    """Where the target serves. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.TARGET) as (session, our_lease):
        told = _open(session, our_lease)
        _forget(session, workflow)
        workflows.reopen(session, workflow, Phase.SWITCHED)
        workflows.move(session, workflow, Phase.COMPLETE)
        return Result(event="complete", workflow=workflow, reason=f"Completed without the source. {told}{_LEFT}")


def cancel(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> Result:
    """Where the source served: what was made on the target goes. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.SOURCE) as (session, _):
        prepare.undo(session, workflow)
        _forget(session, workflow)
        workflows.move(session, workflow, Phase.CANCELLED, "cancelled without its source, which is lost")
        words = f"Cancelled without the source. {_LEFT}"
        return Result(event="cancelled", workflow=workflow, reason=words, exit_code=3)


@contextlib.contextmanager
def _taken(
    home: SourceUrl, source: SourceUrl | None, workflow: str, by: str, *, serving: Side
) -> Iterator[tuple[Session, Lease]]:
    """A session at home, the workflow ours alone. serving: which side has to, for what is asked."""
    with connect(home) as session:
        move = _checked(session, source, workflow)
        if _serving(move) is not serving:
            raise _other_serves(move)
        yield session, _take(session, workflow, move, by)


def _serving(move: Move) -> Side:
    """Also where a switch was decided and is not at its end."""
    return move.serving.other if move.decision in ending.BEHIND else move.serving


def _other_serves(move: Move) -> Refused:
    if _serving(move) is Side.SOURCE:
        return Refused(
            f"The tables of workflow {move.workflow} are not switched: the source served them.",
            cure=f"`vreplication cancel {move.workflow} --source-lost` removes what was made on the target.",
        )
    return Refused(
        f"The tables of workflow {move.workflow} have been switched: the target serves them.",
        cure=f"`vreplication complete {move.workflow} --source-lost` ends it.",
    )


def _checked(session: Session, source: SourceUrl | None, workflow: str) -> Move:
    row = workflows.load(session, workflow)
    if row.kind != MOVE or row.phase in OVER:
        words = f"has ended ({row.phase})" if row.kind == MOVE else "moves no tables"
        raise Refused(f"Workflow {workflow} {words}, so it has no source to be lost.", cure="Leave --source-lost out.")
    move = moves.load(session, workflow)
    if move.decision in ending.BEHIND and _serving(move) is Side.SOURCE:
        raise Refused(
            f"The switch back of workflow {workflow} was decided: the source may have taken writes by then.",
            cure=f"When it answers again, `vreplication resume {workflow}` brings the switch to its end.",
        )
    if source is not None and _answers(source, move):
        raise Refused(f"The source of workflow {workflow} answers.", cure="Leave --source-lost out.")
    return move


def _answers(source: SourceUrl, move: Move) -> bool:
    try:
        with connect(source, use_database=False, read_timeout=BEAT_SECONDS) as session:
            return identity(inspect(session)) == move.source_server
    except VReplicationError:
        return False


def _take(session: Session, workflow: str, move: Move, by: str) -> Lease:
    """Raises LeaseHeld."""
    for number in range(1, move.number + 1):
        stream = streams.stream_id(workflow, number)
        if lease.is_alive(session, stream, lease.REPLICATE):
            raise LeaseHeld(f"Catch-up of workflow {workflow} is still running.", cure="Stop that process first.")
    our_lease = lease.acquire(session, workflow, lease.DRIVER)
    journal.write(session, workflow, "source lost", "what is left there is not removed", actor=by)
    return our_lease


def _open(session: Session, our_lease: Lease) -> str:
    """The target takes writes, whatever a switch there or back has left undone; returns what is to be said of it."""
    workflow = our_lease.workflow
    move, spec = moves.load(session, workflow), workflows.load(session, workflow).spec
    if move.decision is Decision.DECIDED and move.number == 1:
        opening.rename(session, move, workflow)
    # Also those of a switch back that was cut short: the driver that would have dropped them is gone.
    deny.allow(session, sides.tables_on(session, workflow, Side.TARGET), workflow=workflow)
    if move.decision is Decision.DECIDED:
        moves.decide(session, our_lease, Decision.OPENED)
        journal.write(session, workflow, "switched", "to the target", actor=lease.me())
    if move.decision not in ending.BEHIND:
        return ""
    moves.decide(session, our_lease, Decision.RUNNING, serving=str(Side.TARGET), number=move.number + 1)
    workflows.set_fields(session, workflow, is_cut=1, cancel_requested=0)
    return "The hook may not have been called: have the application write to the target. " if spec["on_switch"] else ""


def _forget(session: Session, workflow: str) -> None:
    row, number = workflows.load(session, workflow), moves.load(session, workflow).number
    ending.drop_key_tables(session, workflow, number)
    prepare.forget_run(session, workflow)
    for each in range(1, number + 1):
        spool.forget(row, streams.stream_id(workflow, each))
