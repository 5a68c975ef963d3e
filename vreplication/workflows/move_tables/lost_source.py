"""The end of a move whose source is gone for good, as a person says: what is left is done at home alone.

What must stay true: no process works on the workflow any more, nor does catch-up of its streams; a source that answers
is never taken for lost; while a switch is between its decision and its end nothing is done here, for then the source's
side decides who serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.engine import spool
from vreplication.engine.result import Result
from vreplication.errors import LeaseHeld, Refused, VReplicationError
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.settings import BEAT_SECONDS
from vreplication.state import journal, lease, moves, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.workflows.lookup import MOVE
from vreplication.workflows.move_tables import ending, prepare, streams

_LEFT = "What the workflow made on the source (triggers vr_deny_…, rows of ours, the old tables) is not removed."


def complete(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> Result:
    """Where the target serves. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.TARGET) as session:
        _forget(session, workflow)
        workflows.reopen(session, workflow, Phase.SWITCHED)
        workflows.move(session, workflow, Phase.COMPLETE)
        return Result(event="complete", workflow=workflow, reason=f"Completed without the source. {_LEFT}")


def cancel(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> Result:
    """Where the source served: what was made on the target goes. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.SOURCE) as session:
        prepare.undo(session, workflow)
        _forget(session, workflow)
        workflows.move(session, workflow, Phase.CANCELLED, "cancelled without its source, which is lost")
        words = f"Cancelled without the source. {_LEFT}"
        return Result(event="cancelled", workflow=workflow, reason=words, exit_code=3)


@contextlib.contextmanager
def _taken(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str, *, serving: Side) -> Iterator[Session]:
    """A session at home, the workflow ours alone. serving: which side has to, for what is asked."""
    with connect(home) as session:
        move = _checked(session, source, workflow)
        if move.serving is not serving:
            raise _other_serves(move)
        _take(session, workflow, move, by)
        yield session


def _other_serves(move: Move) -> Refused:
    if move.serving is Side.SOURCE:
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
    if move.decision in (Decision.DECIDED, Decision.OPENED):
        raise Refused(
            f"A switch of workflow {workflow} was decided and is not at its end.",
            cure=f"`vreplication resume {workflow}` brings it there.",
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


def _take(session: Session, workflow: str, move: Move, by: str) -> None:
    """Raises LeaseHeld."""
    for number in range(1, move.number + 1):
        stream = streams.stream_id(workflow, number)
        if lease.is_alive(session, stream, lease.REPLICATE):
            raise LeaseHeld(f"Catch-up of workflow {workflow} is still running.", cure="Stop that process first.")
    lease.acquire(session, workflow, lease.DRIVER)
    journal.write(session, workflow, "source lost", "what is left there is not removed", actor=by)


def _forget(session: Session, workflow: str) -> None:
    row, number = workflows.load(session, workflow), moves.load(session, workflow).number
    ending.drop_key_tables(session, workflow, number)
    prepare.forget_run(session, workflow)
    for each in range(1, number + 1):
        spool.forget(row, streams.stream_id(workflow, each))
