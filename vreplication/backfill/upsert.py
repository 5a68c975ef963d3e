"""Rows as SQL text into the target: INSERT … ON DUPLICATE KEY UPDATE, and what it did.

What must stay true: a row of the target is changed only where its primary key is the written row's, byte by byte: never
one that holds the same value of another unique key, and never one whose key the target's collation takes for the same;
which rows could not be written is said. Writing a row that is there already changes nothing and counts as unchanged. A
value that the target would cut is an error, also where the server only has a note for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vreplication.backfill.rows import Row, any_sql, shown, target_key_sql, text
from vreplication.backfill.tables import Tables
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.mysql.session import DUPLICATE, Session, SqlError
from vreplication.rowcopy.warned import BAD_VALUES
from vreplication.schema.literals import is_character
from vreplication.schema.model import Column

STATEMENT_BYTES = 1 << 20
KEYS_AT_ONCE = 200
_HEADROOM = 1 << 14
_DUPLICATES = re.compile(rb"Duplicates: (\d+)")
_AT_ROW = re.compile(r" at row (\d+)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Writes rows to the target. `guard`: what must hold of a row of the target for it to be changed.

    blocked: rows that another row of the target kept out, the first of them.
    """

    session: Session
    tables: Tables
    batch_rows: int
    blocked: list[Row]
    guard: str = ""

    def write(self, rows: Iterable[Row]) -> Counts:
        head, tail = self._head(), self._tail(exact=True)
        # A server allows max_allowed_packet to be as low as 1024, which is less than the headroom.
        limit = max(1024, self.tables.packet - len(head) - len(tail) - _HEADROOM)
        done = Counts()
        for batch in _batches(rows, self.batch_rows, limit):
            done += self._written(head, batch, tail)
        return done

    def respell(self, row: Row) -> Counts:
        """Write over the row that the target's collation takes for the same: it is the same row, spelled anew."""
        try:
            # One at a time: where a third row holds another unique value of it, no other row is held up, and the next
            # comparison finds it again.
            done = self._insert(self._head(), [row], self._tail(exact=False))
        except SqlError as error:
            if error.code != DUPLICATE:
                raise
            return Counts()
        return Counts(inserted=done.inserted, updated=done.updated)

    def _head(self) -> str:
        target = self.tables.mapping.target
        names = idents(pair.target.name for pair in self.tables.mapping.pairs)
        return f"INSERT INTO {qualified(target.schema, target.name)} ({names}) VALUES "

    def _tail(self, *, exact: bool) -> str:
        return f" ON DUPLICATE KEY UPDATE {_assignments(self.tables, self.guard, exact=exact)}"

    def _written(self, head: str, rows: list[Row], tail: str) -> Counts:
        """A row whose unique value another row still holds holds up no other row."""
        try:
            done = self._insert(head, rows, tail)
        except SqlError as error:
            if error.code != DUPLICATE:
                raise
        else:
            # A row that the statement met under a key not the very same keeps its values, and counts as unchanged.
            if self.tables.may_collide and done.unchanged:
                self._note(self._absent(rows))
            return done
        # A statement that fails leaves nothing of itself in InnoDB, so its halves can be sent anew until the row stands
        # alone.
        if len(rows) == 1:
            self._note(rows)
            return Counts(read=1)
        middle = len(rows) // 2
        return self._written(head, rows[:middle], tail) + self._written(head, rows[middle:], tail)

    def _note(self, rows: Sequence[Row]) -> None:
        # Each of these costs several questions on both servers; those beyond are met by the next comparison.
        self.blocked.extend(rows[: KEYS_AT_ONCE - len(self.blocked)])

    def _absent(self, rows: Sequence[Row]) -> list[Row]:
        """Rows whose very key the target does not have: the statement met another one's."""
        there: set[str] = set()
        target = self.tables.mapping.target
        for start in range(0, len(rows), KEYS_AT_ONCE):
            where = any_sql(self.tables.target_key, [row.key for row in rows[start : start + KEYS_AT_ONCE]])
            sql = f"SELECT {target_key_sql(self.tables)} FROM {qualified(target.schema, target.name)} WHERE {where}"
            there.update(text(found[0]) for found in self.session.rows(sql))
        return [row for row in rows if row.ident not in there]

    def _insert(self, head: str, rows: Sequence[Row], tail: str) -> Counts:
        """An inserted row counts once in the affected rows, an updated one twice, one that was the same not at all."""
        try:
            affected = self.session.execute_raw(f"{head}{','.join(str(row.text) for row in rows)}{tail}")
        except SqlError as error:
            if error.code in BAD_VALUES:
                raise self._bad_value(error.message, rows) from None
            raise
        # Only of a statement with several rows does the server's info tell the duplicates.
        updated = affected // 2 if len(rows) == 1 else _duplicates(self.session)
        self._judge_warnings(rows)
        # This holds without CLIENT_FOUND_ROWS alone: with it the server counts a row that stayed the same as one.
        return Counts(read=len(rows), inserted=affected - 2 * updated, updated=updated)

    def _judge_warnings(self, rows: Sequence[Row]) -> None:
        """Trailing spaces and digits of a DECIMAL are cut with a note in strict mode, too."""
        if not self.session.warning_count:
            return
        for _, code, message in self.session.warnings():
            if code in BAD_VALUES:
                raise self._bad_value(f"{message} ({code})", rows)

    def _bad_value(self, message: str, rows: Sequence[Row]) -> BadValue:
        found = _AT_ROW.search(message)
        row = rows[0] if len(rows) == 1 else rows[int(found[1]) - 1] if found else None
        which = f"the row with {shown(self.tables, row.key)}" if row else "a row"
        return BadValue(
            f"The target cannot hold {which}: {_AT_ROW.sub('', message)}.",
            cure="Change the value, or give the column on the target the definition that it has on the source.",
        )


def _batches(rows: Iterable[Row], most: int, limit: int) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        # A row's text is ASCII (bytes are hexadecimal), so its characters are the bytes of the packet.
        if row.text is None or len(row.text) > limit:
            raise BadValue(
                "A row is longer than max_allowed_packet.", cure="Raise it on both servers to three times the row."
            )
        if part and (len(part) >= most or size + len(row.text) > min(STATEMENT_BYTES, limit)):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.text) + 1
    if part:
        yield part


def _assignments(tables: Tables, guard: str, *, exact: bool) -> str:
    """`column=VALUES(column)` for each. The time column comes last: the guard reads it, and they are done in turn."""
    mapping = tables.mapping
    keys = {pair.target.name for pair in mapping.key}
    same = " AND ".join(_same(pair.target, exact=exact) for pair in mapping.key) + (guard and f" AND {guard}")
    columns = [p.target for p in mapping.pairs if p.target.name not in keys or not exact]
    columns.sort(key=lambda column: column.name == tables.time.target.name)
    if not columns:
        # All columns are the key's: nothing is to be changed, and the statement wants an assignment.
        name = ident(mapping.key[0].target.name)
        return f"{name}={name}"
    return ",".join(_assignment(c, same if guard or tables.may_collide else "") for c in columns)


def _same(column: Column, *, exact: bool) -> str:
    name = ident(column.name)
    if exact and is_character(column):
        return f"CAST({name} AS BINARY)=CAST(VALUES({name}) AS BINARY)"
    return f"{name}=VALUES({name})"


def _assignment(column: Column, condition: str) -> str:
    name = ident(column.name)
    # VALUES() and no alias of the new row: MariaDB has none. MySQL calls it deprecated (1287), which is no bad value.
    return f"{name}=IF({condition},VALUES({name}),{name})" if condition else f"{name}=VALUES({name})"


def _duplicates(session: Session) -> int:
    """The rows that were updated."""
    found = _DUPLICATES.search(session.info)
    return int(found[1]) if found else 0
