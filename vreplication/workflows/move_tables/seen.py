"""Which tables a verification has read: on both servers, told by InnoDB's ids.

Rows that are changed stand in the log that the stream reads. DDL on the side that rows go to stands in a log that
nobody reads, and some stands in none (OPTIMIZE LOCAL). TRUNCATE, a partition that is dropped, another table in its
place: each of them changes the id.

What must stay true: the ids are read before the first row is compared, and noted when all rows have been; where those
under the locks of the switch are others, the verification counts for nothing, and is made again.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication.cutover.identity import table_identities, table_identity
from vreplication.engine.job import StreamTable
from vreplication.errors import Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.schema.introspect import read_create_sql
from vreplication.schema.model import Table
from vreplication.schema.shadow import definition_digest
from vreplication.state import verdicts, workflows
from vreplication.workflows.move_tables import streams

Ids = tuple[str | None, str | None]
"""Where the stream reads, and where it writes."""


def ids(ends: Ends, table: StreamTable) -> Ids:
    """ends: of the way that rows go now."""
    mapping = table.mapping
    return _id(ends.source, mapping.source), _id(ends.target, mapping.target)


def _id(session: Session, table: Table) -> str | None:
    return table_identity(session, table.schema, table.name, is_mariadb(session))


def note(home: Session, workflow: str, number: int, table: StreamTable, found: Ids) -> None:
    """All rows of the table have been seen equal since these ids were read."""
    fields = dict(zip(_columns(number), found, strict=True))
    workflows.set_table_fields(home, workflow, table.number, **fields)


def _columns(number: int) -> tuple[str, str]:
    # Named by the first direction: the first is always of the server that the tables came from.
    columns = ("source_identity", "shadow_identity")
    return columns if streams.is_forward(number) else columns[::-1]


def check(
    home: Session, workflow: str, number: int, tables: Sequence[StreamTable], reading: Session, writing: Session
) -> None:
    """reading, writing: hold DDL off on either side. Raises Transient, having forgotten the verdict on what differs.

    A definition that was changed in place (a unique key, under which a row that is written pushes another one out) has
    left the id as it was: it is compared with the one that the tables were mapped by.
    """
    now = zip(
        _several(reading, [table.mapping.source for table in tables]),
        _several(writing, [table.mapping.target for table in tables]),
        strict=True,
    )
    noted = {row.number: row for row in workflows.tables(home, workflow)}
    verified = [tuple(getattr(noted[table.number], column) for column in _columns(number)) for table in tables]
    others = [table for table, one, other in zip(tables, now, verified, strict=True) if one != other]
    others += [table for table in tables if not _is_defined_alike(writing, table.mapping.target)]
    for table in others:
        verdicts.forget(home, table.id)
    if others:
        source = others[0].mapping.source
        raise Transient(
            f"{source.schema}.{source.name}, or its copy, was truncated or altered since it was verified: it is"
            " verified again"
        )


def _is_defined_alike(session: Session, table: Table) -> bool:
    found = read_create_sql(session, table.schema, table.name)
    return definition_digest(found, table.name) == definition_digest(table.create_sql, table.name)


def _several(session: Session, tables: Sequence[Table]) -> list[str | None]:
    """They are of one schema."""
    found = table_identities(session, tables[0].schema, [table.name for table in tables], is_mariadb(session))
    return [found[table.name] for table in tables]
