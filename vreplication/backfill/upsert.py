"""Rows as SQL text into the target: INSERT … ON DUPLICATE KEY UPDATE, and what it did.

What must stay true: a row of the target is changed only where its primary key is the written row's (never one that
holds the same value of another unique key); writing a row that is there already changes nothing and counts as
unchanged; a statement that lost a lock is done again whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from vreplication.backfill.tables import Tables
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.schema.literals import is_character
from vreplication.schema.model import Column

STATEMENT_BYTES = 1 << 20
_HEADROOM = 1 << 14
_ATTEMPTS = 8
_DUPLICATE = 1062
_DUPLICATES = re.compile(rb"Duplicates: (\d+)")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rows read from the source and what became of them; rows that are read are inserted, updated or unchanged."""

    read: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def unchanged(self) -> int:
        return self.read - self.inserted - self.updated

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            read=self.read + other.read,
            inserted=self.inserted + other.inserted,
            updated=self.updated + other.updated,
            deleted=self.deleted + other.deleted,
        )


def upsert(session: Session, tables: Tables, rows: Iterable[str | None], batch_rows: int, *, guard: str = "") -> Counts:
    """Write rows, each `(literal,…)`. `guard`: what must hold of a row of the target for it to be changed."""
    target = tables.mapping.target
    names = idents(pair.target.name for pair in tables.mapping.pairs)
    head = f"INSERT INTO {qualified(target.schema, target.name)} ({names}) VALUES "
    tail = f" ON DUPLICATE KEY UPDATE {_assignments(tables, guard)}"
    limit = max(1024, tables.packet - len(head) - len(tail) - _HEADROOM)
    done = Counts()
    for batch in _batches(rows, batch_rows, limit):
        done += _written(session, head, batch, tail)
    return done


def _written(session: Session, head: str, rows: list[str], tail: str) -> Counts:
    """A row whose unique value another row still holds is left to the comparison, and holds up no other row."""
    try:
        return _write(session, f"{head}{','.join(rows)}{tail}", len(rows))
    except SqlError as error:
        if error.code != _DUPLICATE:
            raise
    if len(rows) == 1:
        return Counts(read=1)
    middle = len(rows) // 2
    return _written(session, head, rows[:middle], tail) + _written(session, head, rows[middle:], tail)


def _batches(rows: Iterable[str | None], most: int, limit: int) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for row in rows:
        if row is None or len(row) > limit:
            raise BadValue(
                "A row is longer than max_allowed_packet.", cure="Raise it on both servers to three times the row."
            )
        if part and (len(part) >= most or size + len(row) > min(STATEMENT_BYTES, limit)):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row) + 1
    if part:
        yield part


def _assignments(tables: Tables, guard: str) -> str:
    """`column=VALUES(column)` for each. The time column comes last: the guard reads it, and they are done in turn."""
    mapping = tables.mapping
    keys = {pair.target.name for pair in mapping.key}
    same = " AND ".join(f"{ident(name)}=VALUES({ident(name)})" for name in sorted(keys)) + (guard and f" AND {guard}")
    columns = [p.target for p in mapping.pairs if p.target.name not in keys or is_character(p.target)]
    columns.sort(key=lambda column: column.name == tables.time.target.name)
    if not columns:
        name = ident(mapping.key[0].target.name)
        return f"{name}={name}"
    return ",".join(_assignment(c, same if guard or mapping.has_other_unique else "") for c in columns)


def _assignment(column: Column, condition: str) -> str:
    name = ident(column.name)
    return f"{name}=IF({condition},VALUES({name}),{name})" if condition else f"{name}=VALUES({name})"


def _write(session: Session, sql: str, rows: int) -> Counts:
    """An inserted row counts once in the affected rows, an updated one twice, one that was the same not at all."""
    affected = again(lambda: session.execute_raw(sql))
    updated = affected // 2 if rows == 1 else _duplicates(session)
    return Counts(read=rows, inserted=affected - 2 * updated, updated=updated)


def _duplicates(session: Session) -> int:
    """The rows that were updated."""
    found = _DUPLICATES.search(session.info)
    return int(found[1]) if found else 0


def again(act: Callable[[], T]) -> T:
    """Do it again after a deadlock or a lock wait."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return act()
        except LockWait:
            time.sleep(0.05 * 2**attempt)
    return act()
