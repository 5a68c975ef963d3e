"""A table's definition before an online DDL, and the one that it is to have: kept for those who look later.

What must stay true: it is for people alone; nothing that is decided is read from here.
"""

from __future__ import annotations

from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.schema.difference import Definitions
from vreplication.state import rows, sidecar

_t = sidecar.definition


def save(session: Session, workflow: str, found: Definitions) -> None:
    columns = {"before_sql": found.before, "after_sql": found.after, "has_foreign": int(found.has_foreign)}
    rows.put(session, _t, {"workflow": workflow}, **columns)


def load(session: Session, workflow: str) -> Definitions | None:
    """None: it was not kept, as of a move, or by an earlier release, whose sidecar lacks the table."""
    try:
        row = rows.find(session, _t, workflow=workflow)
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return None
    if row is None:
        return None
    return Definitions(before=row["before_sql"], after=row["after_sql"], has_foreign=bool(row["has_foreign"]))
