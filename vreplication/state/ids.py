"""Ids that stand for parts of others: a move keeps state of its tables and streams under ID.1, ID.s2 and ID.s2.1, and
the workflows of a group's tables are called ID.1.

What must stay true: no workflow begins under an id that is a part of another one's, or has parts that are there: the
end of the one would take away what the other needs; nor under one that the queue has for something else.
"""

from __future__ import annotations

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import groups, layout, moves, queue, workflows

CURE = "Choose another id."


def moving(session: Session, workflow: str) -> str:
    """Why it cannot be begun under this id: a move, which may have ended, has its state there; '' where it can."""
    found = next((whole for whole in names.wholes(workflow) if moves.find(session, whole)), None)
    return f"Workflow {found}, which moves tables, keeps state of its own as {workflow}." if found else ""


def queued(session: Session, workflow: str, asked: tuple[object, ...]) -> str:
    """Why it cannot be begun for this, as of `queue.about`: the queue has the id for something else, whose end it would
    be taken for; '' where it can, or goes on."""
    entry = queue.find(session, workflow)
    if entry is None or entry.asked == asked or workflows.existing(session, [workflow]):
        return ""
    return f"{workflow} is the id of a workflow in the queue, for another table or ALTER: {entry.schema}.{entry.table}."


def taken(session: Session, workflow: str, *, is_move: bool = False) -> str:
    """As `moving`, of one that is no table of a group; is_move: it would keep state under ids with more behind."""
    if why := moving(session, workflow):
        return why
    if groups.find(session, workflow):
        return f"{workflow} is the id of several tables that are changed together."
    if group := groups.of_member(session, workflow):
        return f"{workflow} is the id of one of the tables of {group.id}."
    parts = _parts(session, workflow) if is_move else []
    return f"There is a workflow {parts[0]}, and a move {workflow} may keep its state under that id." if parts else ""


def check_free(session: Session, workflow: str, *, is_move: bool = False) -> None:
    """Raises Refused with what `taken` says."""
    if why := taken(session, workflow, is_move=is_move):
        raise Refused(why, cure=CURE)


def _parts(session: Session, workflow: str) -> list[str]:
    """Workflows that have an id under which a move of this one would keep state."""
    begin = f"{workflow}."
    # No LIKE: an id may have an underscore, which stands for any character there.
    sql = f"SELECT id FROM {SIDECAR}.workflow WHERE LEFT(id, %s) = %s ORDER BY id"
    found = layout.look(session, lambda: session.rows(sql, (len(begin), begin))) or ()
    return [str(each) for (each,) in found if workflow in names.wholes(str(each))]
