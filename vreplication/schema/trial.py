"""Try an ALTER on a temporary table, of which nothing reaches the binary log.

What must stay true: a plan touches nothing; the temporary table is dropped whatever happens; where the server cannot
make a temporary table of this kind the answer is None, and never a guess.
"""

from __future__ import annotations

import contextlib

from vreplication import names
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.schema.alter import AlterClauses
from vreplication.schema.introspect import introspect_temporary
from vreplication.schema.model import Table
from vreplication.schema.shadow import constraint_names, keys_not_asked_for

# Access denied: to the schema, to the table, for want of a privilege.
_DENIED = frozenset({1044, 1142, 1227})
_NOT_BY_ALGORITHM = frozenset({1845, 1846})
_WITHOUT_ALGORITHM = (
    "Leave ALGORITHM and LOCK out: a temporary table, on which it is tried, takes fewer of them than the table;"
    " --strategy instant or inplace asks for them."
)
# What a server says of a temporary table only: partitions (1562), FULLTEXT (1214, 1795, 1796), encryption, tablespace
# and row format (1478, 3749), compression (1031), AUTOEXTEND_SIZE (4026), "not supported for temporary tables" (1235,
# 4039, 3190), versioning (4137).
_ONLY_TEMPORARY = frozenset(
    {1562, 3500, 4047, 1214, 1795, 1796, 1478, 3749, 1031, 4026, 1235, 4039, 3190, 4137, 1005, 3161, 3508}
)


def trial_alter(session: Session, table: Table, alter: AlterClauses) -> Table | None:
    """The table as the ALTER would make it; None: it can only be known at prepare. Raises Refused."""
    # For its session a temporary table hides the one that has its name, so it has none of the application's.
    name = names.shadow_table(table.name)
    trial = qualified(table.schema, name)
    try:
        with keys_not_asked_for(session, table):
            session.execute_raw(f"CREATE TEMPORARY TABLE {trial} LIKE {qualified(table.schema, table.name)}")
    except SqlError as error:
        if error.code in _DENIED:
            raise _denied(error, table) from None
        # Whatever else a temporary table is refused for: the real one may be made all the same, and prepare tells
        # before a row is copied.
        return None
    try:
        return _altered(session, table, alter, name)
    finally:
        # A session that is lost takes it along.
        with contextlib.suppress(VReplicationError):
            session.execute_raw(f"DROP TEMPORARY TABLE {trial}")


def _altered(session: Session, table: Table, alter: AlterClauses, name: str) -> Table | None:
    text = alter.with_constraints(constraint_names(session, table, name))
    try:
        with session.as_the_server():
            session.execute_raw(f"ALTER TABLE {qualified(table.schema, name)} {text}")
    except SqlError as error:
        if error.code in _ONLY_TEMPORARY:
            return None
        cure = _WITHOUT_ALGORITHM if error.code in _NOT_BY_ALGORITHM else "Correct the clauses given by --alter."
        raise Refused(f"The server refuses the ALTER: {error.message}", cure=cure) from None
    return introspect_temporary(session, table.schema, name)


def _denied(error: SqlError, table: Table) -> Refused:
    return Refused(
        f"The ALTER cannot be tried on a temporary table: {error.message}",
        cure=f"GRANT CREATE TEMPORARY TABLES ON {qualified(table.schema, '*').replace('`*`', '*')} TO the user.",
    )
