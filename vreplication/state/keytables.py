"""Sidecar tables of row keys, one set a workflow: tombstones, dirty keys and suspects.

What must stay true: their key columns have the shadow's own definitions, so the server's collation decides what is the
same key; keys come and go as comma lists of SQL literals (the shape of `binlog.events.Change.key`).

    tombstone_*  key, batch    keys whose latest event is a delete, while a chunk is open
    dirty_*      key           keys whose row was pushed out by another one under a new unique key; to be copied again
    suspect_*    key, touched  keys that a verification looks at again; touched: an event came for it in the window
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vreplication import names
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.model import TableMapping
from vreplication.settings import SIDECAR

KEYS_PER_STATEMENT = 500


def create_all(session: Session, mapping: TableMapping, workflow: str) -> None:
    """Create the three tables. To be called once, while the shadow is empty."""
    _create(session, mapping, names.tombstone_table(workflow), "batch BIGINT NOT NULL DEFAULT 0")
    _create(session, mapping, names.dirty_table(workflow), "seen BIGINT NOT NULL DEFAULT 0")
    _create(session, mapping, names.suspect_table(workflow), "touched TINYINT NOT NULL DEFAULT 0")


def drop_all(session: Session, workflow: str) -> None:
    for name in (names.tombstone_table(workflow), names.dirty_table(workflow), names.suspect_table(workflow)):
        session.execute_raw(f"DROP TABLE IF EXISTS {qualified(SIDECAR, name)}")


def _create(session: Session, mapping: TableMapping, name: str, extra: str) -> None:
    """CREATE … SELECT takes the columns' own types and collations over from the shadow."""
    shadow = qualified(mapping.target.schema, mapping.target.name)
    columns = ", ".join(f"{ident(p.target.name)} AS {key_column(i)}" for i, p in enumerate(mapping.key))
    keys = ", ".join(key_column(i) for i in range(len(mapping.key)))
    session.execute_raw(
        f"CREATE TABLE IF NOT EXISTS {qualified(SIDECAR, name)} ({extra}, PRIMARY KEY ({keys})) ENGINE=InnoDB "
        f"SELECT {columns} FROM {shadow} LIMIT 0"
    )


def key_column(index: int) -> str:
    return f"k{index}"


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


def discard(session: Session, table: str, keys: Sequence[str], width: int) -> None:
    """Delete keys; blind."""
    columns = [key_column(i) for i in range(width)]
    for part in _slices(keys):
        session.execute_raw(f"DELETE FROM {qualified(SIDECAR, table)} WHERE {key_predicate(columns, part)}")


def _slices(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[i : i + KEYS_PER_STATEMENT] for i in range(0, len(keys), KEYS_PER_STATEMENT))
