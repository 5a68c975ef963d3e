"""Applying under a new or narrowed UNIQUE key: no row is pushed out unseen.

REPLACE deletes every row that is in its way. Under a unique key that the source does not have, that is another row,
which may be right (its own change is still to come) or the loss of a row (a real duplicate). So a row in the way is
found before it goes, and its key becomes *dirty* (it is copied again before the gate) and a tombstone (no open chunk
may bring its old image back). Source: docs/correctness.md, new unique keys; protocol rule U4.

A batch's rows are all taken out before the first of them is written again, each once (apply/batch.py); by several
connections in a round of its own, with tombstones, for a chunk may bring such a row back in between. So rows of one
batch that exchanged their values are not in each other's way, and what still is stays so at the end of the batch.

What must stay true: no row leaves the shadow here without its key being in the dirty table, in the same transaction,
unless its own change is in that batch, whose checkpoint is behind it; a key leaves that table before its own change is
written, never behind it, for what pushes that row out again notes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vreplication import names
from vreplication.apply.batch import Step
from vreplication.apply.writer import (
    LostValue,
    Marks,
    Target,
    bad_value,
    delete_keys,
    lost_value,
    touch_suspects,
    write_rows,
)
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import DUPLICATE, LockWait, Session, SqlError
from vreplication.pausepoints import reach
from vreplication.schema.bounds import as_source
from vreplication.schema.model import Key
from vreplication.state import dirty, keytables, stage

_IN_VAIN = 20
_TRIED_AT_ONCE = 250
"""Rows of one INSERT. Where something is in the way of one of them, they are written one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueWriter:
    """Writes steps as `writer.write_steps` does, but sees what stands in the way. `number`: of the connection."""

    target: Target
    number: int
    vain: dict[str, int] = field(default_factory=dict)
    """How often in a row nothing was found in the way of a key that the server says is in another's."""

    def create_probe(self, session: Session) -> None:
        keytables.create_probe(session, self.target.mapping, self._workflow, self.number)

    @property
    def _probe(self) -> str:
        return keytables.probe(self._workflow, self.number)

    @property
    def _workflow(self) -> str:
        return self.target.table_id

    def write_steps(self, session: Session, steps: list[Step], marks: Marks) -> int:
        """Returns how many rows were pushed out. To be called inside a transaction."""
        pushed = 0
        for step in steps:
            if step.values is None:
                self._delete(session, step.keys, marks)
            else:
                pushed += self._write(session, step, marks)
            if marks.has_suspects:
                touch_suspects(session, self.target, step.keys)
        return pushed

    def _delete(self, session: Session, keys: list[str], marks: Marks) -> None:
        # A row's own next change takes its key off the list: what the row is now, that change has said.
        self._discard(session, self.dirty, keys)
        delete_keys(session, self.target, keys)
        if marks.batch is not None:
            keytables.put(session, self.target.tombstones, keys, str(marks.batch))

    def _write(self, session: Session, step: Step, marks: Marks) -> int:
        """Many rows at once where nothing is in the way, else row by row.

        The keys leave the lists first: a row of this very step may be pushed out by a later one, and is noted then.
        """
        self._discard(session, self.dirty, step.keys)
        if marks.has_tombstones:
            self._discard(session, self.target.tombstones, step.keys)
        delete_keys(session, self.target, step.keys)
        return sum(self._write_rows(session, keys, rows, marks) for keys, rows in _slices(step))

    def _write_rows(self, session: Session, keys: list[str], rows: list[str], marks: Marks) -> int:
        if self._try_insert(session, keys, rows):
            return 0
        return sum(self._write_row(session, key, row, marks) for key, row in zip(keys, rows, strict=True))

    @property
    def dirty(self) -> str:
        return names.dirty_table(self._workflow)

    def _discard(self, session: Session, table: str, keys: list[str]) -> None:
        """Whatever a list says of these keys, their own change says it anew."""
        if not keytables.is_empty(session, table):
            keytables.discard(session, table, keys, len(self.target.key_columns))

    def _try_insert(self, session: Session, keys: list[str], rows: list[str]) -> bool:
        # INSERT and not REPLACE, which would push rows out unseen (U4). The savepoint, because many rows are several
        # statements, of which the server takes back only the one that failed.
        session.execute_raw("SAVEPOINT run")
        try:
            self._insert(session, rows)
        except LostValue as error:
            raise lost_value(error, keys) from None
        except SqlError as error:
            if error.code != DUPLICATE:
                raise bad_value(error, keys) from None
            session.execute_raw("ROLLBACK TO SAVEPOINT run")
            return False
        return True

    def _insert(self, session: Session, rows: list[str]) -> None:
        write_rows(session, self.target, "INSERT", self.target.table, rows)

    def _write_row(self, session: Session, key: str, row: str, marks: Marks) -> int:
        # Taken out already, but the copy may have brought it meanwhile.
        delete_keys(session, self.target, [key])
        pushed = 0
        while True:
            try:
                self._insert(session, [row])
                self.vain.pop(key, None)
                return pushed
            except LostValue as error:
                raise lost_value(error, [key]) from None
            except SqlError as error:
                if error.code != DUPLICATE or self.vain.get(key, 0) >= _IN_VAIN:
                    raise bad_value(error, [key]) from None
            pushed += self._push_out(session, key, row, marks)

    def _push_out(self, session: Session, key: str, row: str, marks: Marks) -> int:
        """Delete the rows in the way of `row`, noting each."""
        probe = self._probe
        with stage.computing(session, self.target.mapping):
            session.execute_raw(f"DELETE FROM {probe}")
        write_rows(session, self.target, "INSERT", probe, [row])
        found = 0
        # By each key in turn: the row may be in several others' ways, and each of these has to be noted.
        for unique in self.target.mapping.target.keys:
            if unique.is_unique:
                found += self._move_to_dirty(session, probe, unique, marks)
        return found or self.in_vain(key)

    def in_vain(self, key: str) -> int:
        """It was being inserted or taken back by another connection at that moment (as in writer._replace)."""
        self.vain[key] = self.vain.get(key, 0) + 1
        raise LockWait(f"the row in the way of ({key}) is gone again")

    def _move_to_dirty(self, session: Session, probe: str, unique: Key, marks: Marks) -> int:
        """Note the row in the way under one key, then delete it.

        The first statement locks it: else another connection could push it out in between and write a row of its own
        in its place, which would be deleted unseen.
        """
        on = " AND ".join(_same(p.column, p.prefix) for p in unique.parts)
        keys = ", ".join(as_source(p, f"s.{ident(p.target.name)}") for p in self.target.mapping.key)
        source = f"FROM {probe} AS p STRAIGHT_JOIN {self.target.table} AS s ON {on}"
        with stage.computing(session, self.target.mapping):
            found = dirty.note_found(session, self._workflow, keys, f"{source} FOR UPDATE")
            if found:
                reach(f"apply.before_push.{unique.name}")
            if found and marks.batch is not None:
                # U4 (b): an open chunk that has read the row before its last change would insert that older image, and
                # the copy of the dirty key would find it there and leave it
                # (test_an_old_image_does_not_come_back_behind_the_row_that_pushed_it_out).
                keytables.put_found(session, self.target.tombstones, str(marks.batch), keys, source)
            if found:
                session.execute_raw(f"DELETE s {source}")
        return found


def _slices(step: Step) -> Iterator[tuple[list[str], list[str]]]:
    rows = step.values or []
    for i in range(0, len(rows), _TRIED_AT_ONCE):
        yield step.keys[i : i + _TRIED_AT_ONCE], rows[i : i + _TRIED_AT_ONCE]


def _same(column: str, prefix: int | None) -> str:
    name = ident(column)
    return f"LEFT(s.{name},{prefix})=LEFT(p.{name},{prefix})" if prefix else f"s.{name}=p.{name}"
