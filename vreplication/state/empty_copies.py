"""Empty copies of users' tables, on which an ALTER is tried that a temporary table cannot try (ALGORITHM=INSTANT).

They are in our own schema: no application sees them, and whatever is left of them is ours to drop.

What must stay true: a copy holds no row and lives as long as the block; one whose process was killed is dropped by the
next that makes one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.errors import VReplicationError
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR

_PREFIX = "tried_"


@contextlib.contextmanager
def empty_copy(session: Session, schema: str, table: str) -> Iterator[tuple[str, str]]:
    """(schema, name) of a copy by CREATE TABLE … LIKE: without rows, foreign keys and triggers. Raises SqlError."""
    # By the connection, so that two plans at a time do not meet, and a copy whose maker is gone is known by the process
    # list.
    name = f"{_PREFIX}{session.id}"
    session.execute_raw(f"CREATE DATABASE IF NOT EXISTS {ident(SIDECAR)}")
    _drop_orphans(session)
    session.execute_raw(f"CREATE TABLE {qualified(SIDECAR, name)} LIKE {qualified(schema, table)}")
    try:
        yield SIDECAR, name
    finally:
        # What stays is dropped by whoever makes the next one.
        with contextlib.suppress(VReplicationError):
            session.execute_raw(f"DROP TABLE IF EXISTS {qualified(SIDECAR, name)}")


def _drop_orphans(session: Session) -> None:
    """Of connections that have ended, and an earlier one of our own number."""
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME LIKE %s"
    found = [str(name) for (name,) in session.rows(sql, (SIDECAR, _PREFIX.replace("_", r"\_") + "%"))]
    # Our own number, too: ids begin again at 1 with each start of the server.
    alive = set(processes(session)) - {session.id} if found else set()
    for name in found:
        number = name.removeprefix(_PREFIX)
        if number.isdigit() and int(number) not in alive:
            session.execute_raw(f"DROP TABLE IF EXISTS {qualified(SIDECAR, name)}")
