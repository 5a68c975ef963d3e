"""The proof that nothing was lost and nothing invented: the altered table against a plain ALTER of what must be in it.

A copy of the table was taken before the workload began (`keep_copy`). The proof writes what the workload committed into
that copy, runs the same ALTER on it in the plain way, and compares: definitions, row counts, a checksum of all rows.

What must stay true: the altered table is only read; what must be in it comes from the workload's memory and the copy,
never from the altered table itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sandbox.orders import COLUMNS, Order
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session

_BATCH = 500
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two tables: what is compared."""

    rows: int
    checksum: str
    definition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Both sides, and what differs, in words."""

    altered: Side
    expected: Side
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences


def keep_copy(session: Session, table: str, copy: str) -> None:
    """Copy the table while nobody writes."""
    session.execute_raw(f"CREATE TABLE {ident(copy)} LIKE {ident(table)}")
    session.execute_raw(f"INSERT INTO {ident(copy)} SELECT * FROM {ident(table)}")


def prove(session: Session, table: str, copy: str, alter: str, expected: Mapping[int, Order | None]) -> Proof:
    """Compare. The copy is used up; the workload must have stopped."""
    _apply(session, copy, expected)
    session.execute_raw(f"ALTER TABLE {ident(copy)} {alter}")
    altered, wanted = _side(session, table), _side(session, copy)
    return Proof(
        altered=altered, expected=wanted, differences=tuple(_differences(session, table, copy, altered, wanted))
    )


def _apply(session: Session, copy: str, expected: Mapping[int, Order | None]) -> None:
    """All keys that were touched go first, so that unique values that changed hands meet nobody."""
    for keys in _batches(expected):
        marks = ",".join(["%s"] * len(keys))
        session.execute(f"DELETE FROM {ident(copy)} WHERE id IN ({marks})", keys)
    for rows in _batches(row for row in expected.values() if row is not None):
        marks = ",".join([f"({','.join(['%s'] * len(Order._fields))})"] * len(rows))
        values = [value for row in rows for value in row]
        session.execute(f"INSERT INTO {ident(copy)} ({COLUMNS}) VALUES {marks}", values)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _side(session: Session, table: str) -> Side:
    row = session.row(f"SELECT COUNT(*), {_checksum(_columns(session, table))} FROM {ident(table)}")
    assert row is not None
    return Side(rows=int(row[0]), checksum=f"{int(row[1] or 0):016x}", definition=_definition(session, table))


def _columns(session: Session, table: str) -> list[str]:
    return [str(row[0]) for row in session.rows(f"SHOW COLUMNS FROM {ident(table)}")]


def _row_text(columns: list[str], alias: str = "") -> str:
    """QUOTE marks NULL, and where a value ends."""
    return f"CONCAT_WS(',',{','.join(f'QUOTE({alias}{ident(c)})' for c in columns)})"


def _checksum(columns: list[str]) -> str:
    """64 bits of each row's SHA-256, joined by exclusive or; the key is in the row, so no two rows cancel out."""
    return f"BIT_XOR(CAST(CONV(LEFT(SHA2({_row_text(columns)},256),16),16,10) AS UNSIGNED))"


def _definition(session: Session, table: str) -> str:
    row = session.row(f"SHOW CREATE TABLE {ident(table)}")
    assert row is not None
    text = str(row[1]).replace(f"CREATE TABLE {ident(table)}", "CREATE TABLE", 1)
    return re.sub(r" AUTO_INCREMENT=\d+", "", text)


def _differences(session: Session, table: str, copy: str, altered: Side, wanted: Side) -> Iterator[str]:
    if altered.definition != wanted.definition:
        yield f"SHOW CREATE TABLE differs from that of a plain ALTER:\n{altered.definition}\n{wanted.definition}"
    if altered.rows != wanted.rows:
        yield f"{altered.rows} rows instead of {wanted.rows}"
    if altered.checksum != wanted.checksum and altered.definition == wanted.definition:
        yield from _different_rows(session, table, copy)
    yield from _auto_increment(session, table)


def _different_rows(session: Session, table: str, copy: str) -> Iterator[str]:
    """Up to five of each kind, by key."""
    columns = _columns(session, table)
    one, other = ident(table), ident(copy)
    joins = {
        "lost": f"SELECT b.id FROM {other} b LEFT JOIN {one} a USING (id) WHERE a.id IS NULL",
        "invented": f"SELECT a.id FROM {one} a LEFT JOIN {other} b USING (id) WHERE b.id IS NULL",
        "other content": f"SELECT a.id FROM {one} a JOIN {other} b USING (id) "
        f"WHERE NOT BINARY {_row_text(columns, 'a.')} <=> BINARY {_row_text(columns, 'b.')}",
    }
    for kind, sql in joins.items():
        keys = [int(row[0]) for row in session.rows(f"{sql} LIMIT 5")]
        if keys:
            yield f"{kind}: rows {keys}"


def _auto_increment(session: Session, table: str) -> Iterator[str]:
    """The next value must be beyond every key: SHOW CREATE TABLE reads the counter itself, not a cached statistic."""
    row = session.row(f"SHOW CREATE TABLE {ident(table)}")
    found = re.search(r" AUTO_INCREMENT=(\d+)", str(row[1]) if row else "")
    highest = session.value(f"SELECT MAX(id) FROM {ident(table)}")
    if highest is not None and int(highest) > 0 and (found is None or int(found.group(1)) <= int(highest)):
        yield f"AUTO_INCREMENT is {found.group(1) if found else 'not set'}, the highest key {highest}"
