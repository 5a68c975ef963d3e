"""Which table is which: by InnoDB's own TABLE_ID, which RENAME keeps and every rebuild changes.

What must stay true: an identity is read from the server, never inferred from an exception or a name; a partitioned
table's identity holds the ids of all its partitions. Reading it scans InnoDB's dictionary, so several names are asked
for at once. It holds for an InnoDB table only: other engines have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from vreplication.cutover.filenames import encode
from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import text
from vreplication.mysql.session import Session
from vreplication.state.workflows import WorkflowRow

# InnoDB appends this to names that Windows reserves for devices (con, nul, com1 …).
_RESERVED = "@@@"
_PARTITION = "#p#"
_MOST = 255
"""Characters that a table of ours holds: some forty partitions. Of more the digest says as much."""


def table_identity(session: Session, schema: str, table: str, is_mariadb: bool) -> str | None:
    """TABLE_ID of a table (of all its partitions, sorted, joined by commas; of many a digest); None: there is none."""
    return table_identities(session, schema, (table,), is_mariadb)[table]


def table_identities(session: Session, schema: str, tables: Iterable[str], is_mariadb: bool) -> dict[str, str | None]:
    """Identities of several tables of a schema, read in one statement."""
    wanted = {table: _stored_names(session, schema, table) for table in tables}
    rows = session.rows(_query(wanted.values(), is_mariadb))
    found = [(int(table_id), str(name)) for table_id, name in rows]
    return {table: _identity(found, names) for table, names in wanted.items()}


def _identity(rows: list[tuple[int, str]], names: tuple[str, ...]) -> str | None:
    ids = sorted(table_id for table_id, name in rows if _whole(name) in names)
    listed = ",".join(map(str, ids))
    return (listed if len(listed) <= _MOST else hashlib.sha256(listed.encode()).hexdigest()) or None


def _whole(name: str) -> str:
    """A partition's name without its partition: '#' of a table's own name is encoded, so this one is InnoDB's."""
    at = name.lower().find(_PARTITION)
    return name if at < 0 else name[:at]


def _stored_names(session: Session, schema: str, table: str) -> tuple[str, ...]:
    """How the dictionary may spell `schema`.`table`."""
    # With 1 and 2 InnoDB's dictionary has the names in lower case, however the tables were named.
    if int(session.lasting("folding", lambda: session.value("SELECT @@lower_case_table_names"))):
        schema, table = schema.lower(), table.lower()
    folder, name = encode(schema), encode(table)
    return tuple(f"{f}/{n}" for f in (folder, folder + _RESERVED) for n in (name, name + _RESERVED))


def _query(wanted: Iterable[tuple[str, ...]], is_mariadb: bool) -> str:
    """The server compares without regard to case, and `_` in LIKE is any character: `_identity` is exact."""
    source = "innodb_sys_tables" if is_mariadb else "innodb_tables"
    names = [name for group in wanted for name in group]
    conditions = [
        f"name IN ({','.join(map(text, names))})",
        *(f"name LIKE {text(n + _PARTITION + '%')}" for n in names),
    ]
    return f"SELECT table_id, name FROM information_schema.{source} WHERE {' OR '.join(conditions)}"


def identities_of(session: Session, rows: Sequence[WorkflowRow], is_mariadb: bool) -> dict[tuple[str, str], str | None]:
    """Of the workflows' tables and shadows, by schema and name; one statement a schema, for writers may be waiting."""
    found: dict[tuple[str, str], str | None] = {}
    for schema in dict.fromkeys(row.source_schema for row in rows):
        names = [n for r in rows if r.source_schema == schema for n in (r.source_table, r.shadow_table)]
        seen = table_identities(session, schema, names, is_mariadb)
        found |= {(schema, name): identity for name, identity in seen.items()}
    return found


def check_recorded(row: WorkflowRow, found: Mapping[tuple[str, str], str | None]) -> None:
    """Table and shadow are those that the workflow knows. found: as of `identities_of`. Raises SourceChanged."""
    for name, recorded in ((row.source_table, row.source_identity), (row.shadow_table, row.shadow_identity)):
        seen = found[row.source_schema, name]
        if seen is None or seen != recorded:
            raise SourceChanged(
                f"Table {row.source_schema}.{name} is not the one that workflow {row.id} knows "
                f"(found {seen or 'none'}, recorded {recorded}).",
                cure="Somebody has rebuilt or replaced it; cancel the workflow and begin again.",
            )
