"""Several tables that one command changes: what was asked for each, and what the operator wants of all of them.

What must stay true: each table is a workflow of its own, whose id follows from the group's and from the table's place
in the list; so whatever holds for a workflow holds for it, and nothing about its tables is kept here. What is asked of
the group is noted here before any of its workflows is told, so that one that begins in between finds it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.session import DUPLICATE, Session, SqlError
from vreplication.state import layout, rows, sidecar
from vreplication.state.sidecar import now

_t = sidecar.workflow_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """specs: the requests as plain data (no password, no URL), a table each. at_once: so many are copied at a time.

    is_atomic: all of them are switched in one statement, or none is.
    """

    id: str
    specs: tuple[dict[str, Any], ...]
    at_once: int
    is_atomic: bool = False
    is_paused: bool = False
    is_cancel_requested: bool = False
    released_by: str | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the tables' workflows, in order."""
        return members(self.id, len(self.specs))


def members(group: str, count: int) -> tuple[str, ...]:
    """Ids of the workflows of so many tables. Raises Refused where the group's id is too long for them."""
    try:
        return tuple(names.check_workflow(f"{group}.{number}") for number in range(1, count + 1))
    except Refused:
        raise Refused(
            f"Workflow id {group!r} is too long for {count} tables.",
            cure="Each table's workflow has it with a dot and a number behind it; 48 characters are the most.",
        ) from None


def create(session: Session, group: Group) -> None:
    """Raises Refused when the id was taken at this moment."""
    fields = {
        "tables": json.dumps(group.specs),
        "at_once": group.at_once,
        "atomic": int(group.is_atomic),
        "created_at": now(),
    }
    try:
        with session.transaction():
            rows.add(session, _t, id=group.id, **fields)
    except SqlError as error:
        if error.code != DUPLICATE:
            raise
        raise Refused(f"Workflow {group.id} was started by another process at this moment.") from None


def change(session: Session, group: Group) -> None:
    """What is asked for from now on of tables that have not begun."""
    with session.transaction():
        rows.change(session, _t, {"id": group.id}, tables=json.dumps(group.specs), at_once=group.at_once)


def find(session: Session, group: str) -> Group | None:
    found = layout.look(session, lambda: rows.find(session, _t, id=group))
    if not found:
        return None
    return Group(
        id=found["id"],
        specs=tuple(json.loads(found["tables"])),
        at_once=int(found["at_once"]),
        is_atomic=bool(found["atomic"]),
        is_paused=bool(found["paused"]),
        is_cancel_requested=bool(found["cancel_requested"]),
        released_by=found["released_by"],
    )


def of_member(session: Session, workflow: str) -> Group | None:
    """The group that the workflow is a table's of."""
    group, dot, _ = workflow.rpartition(".")
    found = find(session, group) if dot else None
    # A user may have called a workflow ID.7 that has nothing to do with a group ID of three tables.
    return found if found and workflow in found.members else None


def ask(session: Session, group: str, **columns: Any) -> None:
    """paused, cancel_requested, released_by."""
    with session.transaction():
        rows.change(session, _t, {"id": group}, **columns)
