"""Sidecar tables of row keys, one set a workflow: tombstones, dirty keys, suspects, keys written since.

What must stay true: their key columns have the shadow's own definitions, so the server's collation decides what is the
same key; but text that the shadow compares by another collation than the source is kept as the source's bytes: there
two rows of the source may be one key. Keys come and go as comma lists of SQL literals (`changes.codecs.SqlText`).

    tombstone_*  key, batch    keys whose latest event is a delete, while a chunk is open
    dirty_*      key, seen     keys whose row gave way to another one under a new unique key; to be copied again
    suspect_*    key, touched  keys that a verification looks at again; touched: an event came for it in the window
    since_*      key, round    keys written since the verification began (state/since.py)
    probe_*                    one row like the shadow's, for each connection that applies under a new unique key

Statements that join one of them to the shadow or the source are built here, too; the caller says with which rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vreplication import names
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.bounds import as_source, as_target, same_row
from vreplication.schema.literals import key_literal_sql
from vreplication.schema.model import TableMapping
from vreplication.settings import MAX_APPLY_PARALLELISM, SIDECAR

KEYS_PER_STATEMENT = 500
NEW_NUMBER = "UUID_SHORT()"
"""SQL of a number that no entry has had before: who acted on an entry knows by it whether it was made anew since."""


def create_all(session: Session, mapping: TableMapping, workflow: str) -> None:
    """Create the tables. To be called once, while the shadow is empty."""
    _create(session, mapping, names.tombstone_table(workflow), "batch BIGINT NOT NULL DEFAULT 0")
    _create(session, mapping, names.dirty_table(workflow), "seen BIGINT UNSIGNED NOT NULL DEFAULT 0")
    _create(session, mapping, names.suspect_table(workflow), "touched TINYINT NOT NULL DEFAULT 0")
    _create(session, mapping, names.since_table(workflow), "round BIGINT NOT NULL DEFAULT 0")


def drop_all(session: Session, workflow: str) -> None:
    for table in (
        names.tombstone_table,
        names.dirty_table,
        names.suspect_table,
        names.since_table,
        names.touched_table,
    ):
        session.execute_raw(f"DROP TABLE IF EXISTS {qualified(SIDECAR, table(workflow))}")
    probes = (probe(workflow, number) for number in range(MAX_APPLY_PARALLELISM))
    session.execute_raw(f"DROP TABLE IF EXISTS {', '.join(probes)}")


def probe(workflow: str, number: int) -> str:
    """Quoted name of a connection's table of one row: the server computes its generated columns and compares them.

    One for each connection, by its number: they would wait for each other's row.
    """
    name = names.dirty_table(workflow).replace("dirty", "probe")
    return qualified(SIDECAR, f"{name}_{number}" if number else name)


def create_probe(session: Session, mapping: TableMapping, workflow: str, number: int) -> None:
    shadow = qualified(mapping.target.schema, mapping.target.name)
    session.execute_raw(f"CREATE TABLE IF NOT EXISTS {probe(workflow, number)} LIKE {shadow}")


def _create(session: Session, mapping: TableMapping, name: str, extra: str) -> None:
    """CREATE … SELECT takes types and collations over from the shadow."""
    shadow = qualified(mapping.target.schema, mapping.target.name)
    # CREATE … SELECT puts the column that is named before those that are selected: `put` and `put_found`, which name
    # none, give their values in that order.
    columns = ", ".join(f"{as_source(p, ident(p.target.name))} AS {key_column(i)}" for i, p in enumerate(mapping.key))
    keys = ", ".join(key_column(i) for i in range(len(mapping.key)))
    session.execute_raw(
        f"CREATE TABLE IF NOT EXISTS {qualified(SIDECAR, name)} ({extra}, PRIMARY KEY ({keys})) ENGINE=InnoDB "
        f"SELECT {columns} FROM {shadow} LIMIT 0"
    )


def key_column(index: int) -> str:
    return f"k{index}"


def literal_sql(mapping: TableMapping) -> str:
    """SQL that gives a key of such a table as a comma list of literals."""
    columns = tuple(pair.source if pair.is_recollated else pair.target for pair in mapping.key)
    return key_literal_sql(columns, [key_column(i) for i in range(len(columns))])


def on_row(mapping: TableMapping, row: str, key: str) -> str:
    """Predicate: the shadow's row (alias `row`) is the one of the key (alias `key` of such a table)."""
    pairs = enumerate(mapping.key)
    return " AND ".join(same_row(p, f"{row}.{ident(p.target.name)}", f"{key}.{key_column(i)}") for i, p in pairs)


def row_predicate(mapping: TableMapping, keys: Iterable[str]) -> str:
    """SQL that is true for the shadow's rows that are the source's rows of these keys, and no others."""
    keys = list(keys)
    columns = [ident(p.target.name) for p in mapping.key]
    if not mapping.is_recollated:
        return key_predicate(columns, keys)
    # Converted by us: a key that the target's character set does not hold is an error else, and not "no such row".
    templates = [as_target(p, "{}") for p in mapping.key]
    found = key_predicate(columns, (in_templates(key, templates) for key in keys))
    exact = key_predicate([as_source(p, ident(p.target.name)) for p in mapping.key], keys)
    return f"({found}) AND ({exact})"


def in_templates(key: str, templates: Sequence[str]) -> str:
    """A comma list of literals, each put into its template."""
    return ",".join(t.format(x) for t, x in zip(templates, split_literals(key), strict=True))


def key_predicate(columns: Sequence[str], keys: Iterable[str]) -> str:
    """SQL that is true for the rows with one of these keys. `columns`: quoted names; `keys`: comma lists of literals.

    Composite keys are spelled out as OR of ANDs: both optimizers look each up, which they do not for row constructors.
    """
    if len(columns) == 1:
        return f"{columns[0]} IN ({','.join(keys)})"
    return " OR ".join(f"({_equal(columns, key)})" for key in keys)


def _equal(columns: Sequence[str], key: str) -> str:
    return " AND ".join(f"{c}={v}" for c, v in zip(columns, split_literals(key), strict=True))


def put(session: Session, table: str, keys: Sequence[str], extra: str) -> None:
    """Insert or update keys; `extra` is the literal of the last column."""
    name = qualified(SIDECAR, table)
    for part in _slices(keys):
        values = ",".join(f"({extra},{key})" for key in part)
        session.execute_raw(f"REPLACE INTO {name} VALUES {values}")


def put_found(session: Session, table: str, extra: str, columns: str, source: str) -> int:
    """Insert or update the keys that a query finds. columns: SQL of the key; source: from FROM on.

    Returns the affected rows: 0 when it found none.
    """
    # REPLACE: a key that is there gets the new number, by which `dirty.forget` leaves it, and `prune` keeps it.
    return session.execute_raw(f"REPLACE INTO {qualified(SIDECAR, table)} SELECT {extra}, {columns} {source}")


def is_empty(session: Session, table: str) -> bool:
    return session.row(f"SELECT 1 FROM {qualified(SIDECAR, table)} LIMIT 1") is None


def clear(session: Session, table: str) -> None:
    # No TRUNCATE, which would commit the caller's transaction.
    session.execute_raw(f"DELETE FROM {qualified(SIDECAR, table)}")


def listed(session: Session, mapping: TableMapping, table: str, where: str, asked: Sequence[str]) -> set[str]:
    """Those of the keys that the table has with `where`; the server compares them."""
    found: set[str] = set()
    columns = [key_column(i) for i in range(len(mapping.key))]
    size = KEYS_PER_STATEMENT // 5
    rows = f"FROM {qualified(SIDECAR, table)} WHERE {where}"
    for at in range(0, len(asked), size):
        part = asked[at : at + size]
        # A SELECT for each key and not one for all: the server may call the key by other bytes, and the number says
        # which of ours it was.
        selects = [f"SELECT {i} {rows} AND ({key_predicate(columns, [key])})" for i, key in enumerate(part)]
        found |= {part[int(row[0])] for row in session.rows(" UNION ALL ".join(selects))}
    return found


def touch(session: Session, workflow: str, keys: Sequence[str], width: int) -> None:
    """Mark the suspects among these keys; the server compares them."""
    columns = [key_column(i) for i in range(width)]
    name = qualified(SIDECAR, names.suspect_table(workflow))
    # The key to itself: one that has ON UPDATE CURRENT_TIMESTAMP has it here, too, and would become another key.
    set_sql = ",".join(("touched=1", *(f"{column}={column}" for column in columns)))
    for part in _slices(keys):
        session.execute_raw(f"UPDATE {name} SET {set_sql} WHERE {key_predicate(columns, part)}")


def delete_rows(session: Session, mapping: TableMapping, table: str) -> None:
    """Delete the shadow's rows whose keys are in the table; blind."""
    shadow = qualified(mapping.target.schema, mapping.target.name)
    # R6: blind. It waits for a row that a landing transaction still holds; a look would not see it.
    on = on_row(mapping, "s", "t")
    # Led by the keys: in the other order the server would read the whole shadow.
    session.execute_raw(f"DELETE s FROM {qualified(SIDECAR, table)} AS t STRAIGHT_JOIN {shadow} AS s ON {on}")


def prune(session: Session, table: str, before_batch: int) -> None:
    """Forget tombstones of earlier batches."""
    # pruned_behind_oldest: the caller names the oldest batch that an open chunk still needs.
    session.execute_raw(f"DELETE FROM {qualified(SIDECAR, table)} WHERE batch < {int(before_batch)}")


def discard(session: Session, table: str, keys: Sequence[str], width: int) -> None:
    """Delete keys; blind."""
    columns = [key_column(i) for i in range(width)]
    for part in _slices(keys):
        session.execute_raw(f"DELETE FROM {qualified(SIDECAR, table)} WHERE {key_predicate(columns, part)}")


def _slices(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[i : i + KEYS_PER_STATEMENT] for i in range(0, len(keys), KEYS_PER_STATEMENT))
