"""Dirty keys: rows that gave way to another one under a new unique key, until they have been copied again.

What must stay true: a key is put here in the transaction that pushes its row out or lands the chunk that lacks it; it
leaves when it has been copied again and has not given way once more since (`seen` tells), or by its own change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.mysql.values import split_literals
from vreplication.schema.bounds import same_row
from vreplication.schema.model import TableMapping
from vreplication.settings import SIDECAR
from vreplication.state import keytables
from vreplication.state.ledger import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyKey:
    """number: of this entry; the same key made dirty anew has another one."""

    key: str
    number: int

    @property
    def bound(self) -> Bound:
        return tuple(split_literals(self.key))


def is_any(session: Session, workflow: str) -> bool:
    """Answered without the tables' definitions."""
    return not keytables.is_empty(session, names.dirty_table(workflow))


def count(session: Session, workflow: str) -> int:
    """0 where the workflow has no such table (yet)."""
    try:
        return int(session.value(f"SELECT COUNT(*) FROM {_table(workflow)}"))
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return 0


def some(session: Session, mapping: TableMapping, workflow: str) -> list[DirtyKey]:
    """As many as one chunk takes."""
    limit = keytables.KEYS_PER_STATEMENT
    sql = f"SELECT {keytables.literal_sql(mapping)}, seen FROM {_table(workflow)} LIMIT {limit}"
    return [DirtyKey(key=_text(key), number=int(number)) for key, number in session.rows(sql)]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def among(session: Session, mapping: TableMapping, workflow: str, asked: Sequence[str]) -> set[str]:
    """Those of the keys that are dirty; they are copied again at the gate."""
    return keytables.listed(session, mapping, names.dirty_table(workflow), "1=1", asked)


def forget(session: Session, mapping: TableMapping, workflow: str, found: Sequence[DirtyKey]) -> None:
    """What has been made dirty anew since has another number, and stays."""
    columns = [keytables.key_column(i) for i in range(len(mapping.key))]
    numbers = ",".join(str(entry.number) for entry in found)
    # forgets_older: a key that gave way again while it was copied has a new number, and its row has to be copied once
    # more.
    predicate = keytables.key_predicate(columns, [entry.key for entry in found])
    session.execute_raw(f"DELETE FROM {_table(workflow)} WHERE ({predicate}) AND seen IN ({numbers})")


def note_missing(session: Session, mapping: TableMapping, workflow: str, where: str) -> int:
    """Keys of the source's rows (alias `s`) that `where` picks and of which the shadow has none.

    By what is there and not by the server's words, which do not tell whether the row in the way was the same one, come
    by catch-up. To be called before the chunk lands. Returns how many there are.
    """
    key = [ident(pair.source.name) for pair in mapping.key]
    # By the source's bytes where the collation changes: by the target's, 'A' would be found in the row of 'a'.
    values = [f"CAST(s.{k} AS BINARY)" if p.is_recollated else f"s.{k}" for p, k in zip(mapping.key, key, strict=True)]
    on = _all(same_row(p, f"t.{ident(p.target.name)}", v) for p, v in zip(mapping.key, values, strict=True))
    target = qualified(mapping.target.schema, mapping.target.name)
    source = qualified(mapping.source.schema, mapping.source.name)
    # The join compares this column, so in a row that it has found there is a value.
    is_missing = f"t.{ident(mapping.key[0].target.name)} IS NULL"
    rows = f"FROM {source} AS s LEFT JOIN {target} AS t ON {on} WHERE {where} AND {is_missing}"
    return note_found(session, workflow, ",".join(values), rows)


def _all(predicates: Iterable[str]) -> str:
    return " AND ".join(predicates)


def note_found(session: Session, workflow: str, columns: str, source: str) -> int:
    """Keys that a query finds, as `keytables.put_found`."""
    return keytables.put_found(session, names.dirty_table(workflow), keytables.NEW_NUMBER, columns, source)


def _table(workflow: str) -> str:
    return qualified(SIDECAR, names.dirty_table(workflow))
