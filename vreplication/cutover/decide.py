"""Has the cut-over happened? Told by table identity, whatever the connection that asked for it said.

What must stay true: the answer comes from the two identities that were recorded when the tables were made; a table that
is neither of them is an error, not a guess, unless the original has its retired name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import remove_sentry
from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session
from vreplication.schema.in_place import digest
from vreplication.schema.introspect import read_create_sql
from vreplication.schema.shadow import definition_digest
from vreplication.state.workflows import WorkflowRow

Decision = Literal["switched", "not switched"]
SWITCHED: Decision = "switched"
NOT_SWITCHED: Decision = "not switched"


def decide(session: Session, row: WorkflowRow) -> Decision:
    """Which table carries the name now. Raises SourceChanged when it is neither the source nor our shadow."""
    _check_server(session, row)
    if row.is_in_place:
        return _decide_in_place(session, row)
    # A table that is gone has no identity, and one that was not made has none recorded: None equals nothing here.
    found = table_identity(session, row.source_schema, row.source_table, is_mariadb(session))
    if found is not None and found == row.shadow_identity:
        return SWITCHED
    if found is not None and found == row.source_identity:
        return NOT_SWITCHED
    if found is not None and _is_retired(session, row):
        return SWITCHED
    raise SourceChanged(
        f"Table {row.source_schema}.{row.source_table} is neither the one that workflow {row.id} began with nor the "
        f"one that it made (found {found or 'none'}, began with {row.source_identity}, made {row.shadow_identity}).",
        cure=f"Look at {qualified(row.source_schema, row.shadow_table)} and "
        f"{qualified(row.source_schema, row.retired_table)}, then cancel the workflow.",
    )


def _decide_in_place(session: Session, row: WorkflowRow) -> Decision:
    """By the definition: an ALTER may keep the table's identity."""
    found = read_create_sql(session, row.source_schema, row.source_table)
    # Of an ALTER in place this holds the digest of the definition that the empty copy had afterwards.
    if digest(found, row.source_table) == row.shadow_identity:
        return SWITCHED
    if definition_digest(found, row.source_table) == row.source_definition:
        return NOT_SWITCHED
    raise SourceChanged(
        f"Table {row.source_schema}.{row.source_table} has neither the definition that workflow {row.id} began with nor"
        " the one that it makes: somebody else has altered it.",
        cure="Look at SHOW CREATE TABLE, then cancel the workflow.",
    )


def decide_together(session: Session, rows: Sequence[WorkflowRow]) -> Decision:
    """The same of tables that one RENAME switches: it is atomic, so what one of them tells holds for all.

    Raises SourceChanged when none of them can tell, or when two tell otherwise.
    """
    found, unknown = set(), []
    for row in rows:
        try:
            found.add(decide(session, row))
        except SourceChanged as error:
            # Somebody may have rebuilt one of them since: the others still tell what the one statement has done.
            unknown.append(error)
    if len(found) == 1:
        return found.pop()
    raise unknown[0] if unknown and not found else _contradiction(rows)


def _contradiction(rows: Sequence[WorkflowRow]) -> SourceChanged:
    names = ", ".join(f"{row.source_schema}.{row.source_table}" for row in rows)
    return SourceChanged(
        f"Of {names}, which are switched in one statement, some are switched and some are not.",
        cure="Somebody else has renamed some of them: look at them, then cancel what is not switched.",
    )


def _check_server(session: Session, row: WorkflowRow) -> None:
    """Two servers number their tables alike: on another one the same number is likely, and means nothing."""
    if not is_of(session, row):
        raise SourceChanged(
            f"Workflow {row.id} noted its tables on another server than this one.",
            cure="Run the same command again, which says whether the workflow can go on here.",
        )


def is_of(session: Session, row: WorkflowRow) -> bool:
    """The tables were noted on this server."""
    return row.server_identity in (None, identity_of(session))


def _is_retired(session: Session, row: WorkflowRow) -> bool:
    """Our RENAME alone gives the original that name; what is called as it was may be rebuilt since (TRUNCATE)."""
    retired = table_identity(session, row.source_schema, row.retired_table, is_mariadb(session))
    return retired is not None and retired == row.source_identity


def settle(session: Session, row: WorkflowRow) -> Decision:
    """`decide` for a newcomer, which also removes a sentry that a dead attempt left behind.

    To be called when the connections of the former holder are gone (a RENAME of theirs may still be waiting otherwise).
    """
    decision = decide(session, row)
    # Only then: behind a RENAME that has happened the name is the retired table's, which has the rows.
    if decision == NOT_SWITCHED:
        remove_sentry(session, row.source_schema, row.retired_table, row.id)
    return decision
