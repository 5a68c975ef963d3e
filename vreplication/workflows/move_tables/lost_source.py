"""The end of a move whose source is gone for good, as a person says: what is left is done at home alone.

What must stay true: no process works on the workflow any more, nor does catch-up of its streams; a source that answers
is never taken for lost; what the source may have taken since a switch back was decided is lost only where a person has
said so; where the target is to serve, it takes writes in the end, and tables that somebody may use are not dropped; no
trigger of ours goes, on whatever has taken the source's place, but where the source served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.cutover import deny
from vreplication.engine import spool
from vreplication.engine.result import Result
from vreplication.errors import LeaseHeld, Refused, Transient, VReplicationError
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import ConnectionLost, ServerFull, Session, Silent, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.phases import OVER, Phase
from vreplication.schema.introspect import exists
from vreplication.settings import BEAT_SECONDS
from vreplication.state import journal, lease, moves, workflows
from vreplication.state.lease import Lease
from vreplication.state.moves import Decision, Move, Side
from vreplication.workflows.lookup import MOVE
from vreplication.workflows.move_tables import ending, opening, prepare, sides, streams

_LEFT = "What the workflow made on the source (triggers vr_deny_…, rows of ours, the old tables) is not removed."
_ON_A_REPLICA = (
    "A replica that takes its place may have these triggers, and would deny writes: `vreplication doctor` with its URL"
    " names them, and how each is dropped."
)
_ACCEPTED = (
    "What the source took since it was switched back is lost. Have the application write to the target, and keep it"
    " away from the source, which would take writes if it came back. "
)


def complete(
    home: SourceUrl, source: SourceUrl | None, workflow: str, by: str, *, accepts_loss: bool = False
) -> Result:
    """Where the target serves; accepts_loss: also where it was switched back from. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.TARGET, accepts_loss=accepts_loss) as (session, our_lease):
        told = (_take_back(session, our_lease, by) if accepts_loss else "") + _open(session, our_lease)
        _forget(session, workflow)
        workflows.reopen(session, workflow, Phase.SWITCHED)
        workflows.move(session, workflow, Phase.COMPLETE)
        return Result(event="complete", workflow=workflow, reason=f"Completed without the source. {told}{_LEFT}")


def cancel(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> Result:
    """Where the source served: what was made on the target goes. Raises Refused, LeaseHeld."""
    with _taken(home, source, workflow, by, serving=Side.SOURCE) as (session, _):
        # Before its rows go: cut short behind that, nothing would tell which triggers are of this workflow.
        told = _allow_in_its_place(source, sides.tables_on(session, workflow, Side.SOURCE), workflow)
        left = ending.words_of_left(prepare.undo(session, workflow))
        _forget(session, workflow)
        workflows.move(session, workflow, Phase.CANCELLED, "cancelled without its source, which is lost")
        journal.write(session, workflow, "cancelled", left, actor=by)
        words = " ".join(filter(None, ("Cancelled without the source.", left, _LEFT, told)))
        return Result(event="cancelled", workflow=workflow, reason=words, exit_code=3)


def _allow_in_its_place(source: SourceUrl | None, tables: list[tuple[str, str]], workflow: str) -> str:
    """A replica that was promoted has the triggers of a switch that was cut short; returns what is to be said."""
    if source is None:
        return _ON_A_REPLICA
    try:
        with connect(source, use_database=False, read_timeout=BEAT_SECONDS) as session:
            denied = [table for table in tables if deny.standing(session, table, workflow=workflow)]
            deny.allow(session, denied, workflow=workflow)
    except ConnectionLost:
        return _ON_A_REPLICA
    except VReplicationError as error:
        return f"Triggers that deny writes may stand at {source.place}, too: {error.message}. {_ON_A_REPLICA}"
    freed = ", ".join(".".join(table) for table in denied)
    return f"At {source.place}, which is another server, {freed} takes writes again." if freed else ""


@contextlib.contextmanager
def _taken(
    home: SourceUrl, source: SourceUrl | None, workflow: str, by: str, *, serving: Side, accepts_loss: bool = False
) -> Iterator[tuple[Session, Lease]]:
    """A session at home, the workflow ours alone. serving: which side has to, for what is asked."""
    with connect(home) as session:
        move = _checked(session, source, workflow)
        if not (accepts_loss and _is_back(move)):
            _check_serving(session, move, serving)
        yield session, _take(session, workflow, move, by)


def _serving(move: Move) -> Side:
    """Also where a switch was decided and is not at its end."""
    return move.serving.other if move.decision in ending.BEHIND else move.serving


def _is_back(move: Move) -> bool:
    """Switched to the target and back: it has the tables by their own names, and writes to them are denied."""
    return _serving(move) is Side.SOURCE and move.number > 1


def _check_serving(session: Session, move: Move, serving: Side) -> None:
    if _is_back(move) and (serving is Side.TARGET or move.decision in ending.BEHIND):
        raise _was_switched_back(move, "the source may have taken writes since")
    if _serving(move) is not serving:
        raise _other_serves(move)
    # A table that somebody has opened by hand, to go on without the source, may be the only one that is left.
    if _is_back(move) and (opened := _opened(session, move)):
        raise _was_switched_back(move, f"{', '.join(opened)} on the target takes writes again")


def _opened(session: Session, move: Move) -> list[str]:
    """The target's tables on which nothing of ours denies writes."""
    tables = sides.tables_on(session, move.workflow, Side.TARGET)
    there = [table for table in tables if exists(session, *table)]
    denied = deny.denied_tables(session, there, workflow=move.workflow)
    return [".".join(table) for table in there if table not in denied]


def _was_switched_back(move: Move, why: str) -> Refused:
    how = "was decided" if move.decision in ending.BEHIND else "is done"
    return Refused(
        f"The switch back of workflow {move.workflow} {how}, and {why}.",
        cure=f"If the source answers again, `vreplication resume {move.workflow}` goes on. If it never will,"
        f" `vreplication complete {move.workflow} --source-lost --accept-lost-writes` has the target take writes,"
        " without what the source took since.",
    )


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
    if source is None:
        raise Refused(
            f"Without the URL of its source, {move.source_at}, it cannot be asked whether that answers.",
            cure="Pass --source, too, or set VREPLICATION_SOURCE.",
        )
    if _answers(source, move):
        raise Refused(f"The source of workflow {workflow} answers.", cure="Leave --source-lost out.")
    return move


def _answers(source: SourceUrl, move: Move) -> bool:
    """Raises Refused where what answers lets no one in."""
    try:
        with connect(source, use_database=False, read_timeout=BEAT_SECONDS) as session, _heard_of(source):
            return identity(inspect(session)) == move.source_server
    except ServerFull as error:
        # As alive as can be: its application has all of its connections.
        raise Refused(
            f"A server answers at {source}: {error.message}", cure="Try again when it has one free."
        ) from None
    except Silent as error:
        raise _silent(source, error) from None
    except Transient:
        return False
    except VReplicationError as error:
        raise Refused(
            f"A server answers at {source}, and whether it is the source cannot be asked: {error.message}",
            cure="Give a login that it accepts.",
        ) from None


@contextlib.contextmanager
def _heard_of(source: SourceUrl) -> Iterator[None]:
    """Raises Refused for one that has let us in, and says no more."""
    try:
        yield
    except Transient as error:
        raise _silent(source, error) from None


def _silent(source: SourceUrl, error: VReplicationError) -> Refused:
    """A disk that hangs, a host that swaps: it goes on with its application's writes when that is over."""
    return Refused(
        f"A server lets us in at {source}, and then says nothing: {error.message}",
        cure="Try again when it answers, or end that server first if it never will.",
    )


def _take_back(session: Session, our_lease: Lease, by: str) -> str:
    """What the source was to serve the target serves again; returns what is to be said of it."""
    workflow = our_lease.workflow
    if _serving(moves.load(session, workflow)) is Side.TARGET:
        return ""
    # In the row first: whoever goes on behind a crash must not open the source.
    moves.take_back(session, our_lease, by)
    reach("lost.taken_back")
    workflows.set_fields(session, workflow, is_cut=1, cancel_requested=0)
    journal.write(session, workflow, "switched", "to the target; what the source took is lost", actor=by)
    return _ACCEPTED


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
