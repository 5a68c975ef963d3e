"""Writes the steps of a batch to the shadow table, with the tombstones that belong to them.

What must stay true: rows and their tombstones are one transaction that begins with the lease's fence; deletes are
blind, locking statements (they wait for a chunk that is landing, they never look first); a lock wait, a deadlock or a
statement that was killed repeats the whole transaction; a value that the new definition cannot hold ends the workflow
and names the row's key, also where the server only gives a note; what the server computes from a row is computed in its
own time zone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from vreplication import names
from vreplication.apply.batch import Step
from vreplication.clock import SYSTEM
from vreplication.errors import BadValue, Transient
from vreplication.mysql import values
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.mysql.session import (
    DUPLICATE,
    NO_SUCH_SCHEMA,
    NO_SUCH_TABLE,
    QUERY_KILLED,
    LockWait,
    Session,
    SqlError,
    is_passing,
)
from vreplication.schema.losses import loss
from vreplication.schema.model import TableMapping
from vreplication.settings import TABLE_SECONDS
from vreplication.state import keytables, stage
from vreplication.state.lease import Lease, fence

_ATTEMPTS = 50
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.1
_NO_VALUES = frozenset(
    {NO_SUCH_TABLE, NO_SUCH_SCHEMA, 1412, QUERY_KILLED}  # 1412: defined anew since the transaction began
    | {1021, 1026, 1030, 1037, 1038, 1041, 1114, 1197, 1206}  # no room, on disk, in memory, in a cache
    | {1142, 1143, 1227, 1290, 1836}  # a right is gone, or the server is read-only
)
"""No fault of a row's value, so no row is named."""
_ROW = re.compile(r"at row (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a writer writes to: the shadow table, its key, and how long a statement may be.

    number: of the table's watch. id: under which the table's own rows and key tables are kept; '': the workflow's.
    """

    mapping: TableMapping
    lease: Lease
    packet: int
    number: int = 0
    id: str = ""

    @property
    def table_id(self) -> str:
        return self.id or self.lease.workflow

    @property
    def table(self) -> str:
        return qualified(self.mapping.target.schema, self.mapping.target.name)

    @property
    def key_columns(self) -> list[str]:
        return [ident(p.target.name) for p in self.mapping.key]

    @property
    def columns(self) -> str:
        return idents(p.target.name for p in self.mapping.pairs)

    @property
    def tombstones(self) -> str:
        return names.tombstone_table(self.table_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is to be noted of each change in the transaction that writes it.

    number: of the batch. batch: the same, as the number that a tombstone gets; None while no chunk is open.
    has_tombstones: written keys have to be taken off the list. has_suspects: a verification wants to know which of its
    suspects are touched.
    """

    number: int
    batch: int | None
    has_tombstones: bool
    has_suspects: bool


def in_transaction(session: Session, lease: Lease, work: Callable[[], None]) -> None:
    """Fence, work, commit; again and whole where `is_passing`. Raises Transient when that does not end."""
    fenced(session, lambda: fence(session, lease), work)


def fenced(session: Session, first: Callable[[], None], work: Callable[[], None]) -> None:
    """As `in_transaction`; `first` is the fence."""
    for attempt in range(_ATTEMPTS):
        try:
            with session.transaction():
                first()
                work()
            return
        except (LockWait, SqlError) as error:
            if not is_passing(error):
                raise
            # Not at once: whom it met has to get on, or they meet again.
            SYSTEM.sleep(random.uniform(0.0, min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**attempt)))
    raise Transient(f"A transaction of catch-up met a lock wait, a deadlock or a KILL QUERY {_ATTEMPTS} times.")


def write_steps(session: Session, target: Target, steps: list[Step], marks: Marks) -> None:
    """Write the steps in order. To be called inside a transaction."""
    for step in steps:
        # R6: no look which rows exist. A chunk that is landing has rows which no SELECT shows yet; a DELETE waits for
        # their locks, a look would pass over them, and they would stay for ever.
        if step.values is None:
            delete_keys(session, target, step.keys)
            if marks.batch is not None:
                # R4: with the rows. A chunk that was read before this delete still brings the row; without its
                # tombstone nobody deletes it again when that chunk lands.
                keytables.put(session, target.tombstones, step.keys, str(marks.batch))
        else:
            _replace(session, target, step.keys, step.values)
            if marks.has_tombstones:
                # R4: a key that was deleted and written again is no tombstone any more; left there, the next landing
                # would delete it.
                keytables.discard(session, target.tombstones, step.keys, len(target.key_columns))
        if marks.has_suspects:
            touch_suspects(session, target, step.keys)


def delete_keys(session: Session, target: Target, keys: list[str]) -> None:
    """Delete the source's rows of these keys, and no row that only the target's collation calls the same."""
    size = keytables.KEYS_PER_STATEMENT
    for i in range(0, len(keys), size):
        predicate = keytables.row_predicate(target.mapping, keys[i : i + size])
        with stage.computing(session, target.mapping):
            session.execute_raw(f"DELETE FROM {target.table} WHERE {predicate}")


def prepare(session: Session, target: Target) -> None:
    """Make ready a connection that is going to write rows; outside of any transaction."""
    if target.mapping.is_staged:
        stage.create(session, target.mapping, target.table_id)


def write_rows(session: Session, target: Target, verb: str, table: str, rows: list[str]) -> None:
    """Run `verb` (INSERT, REPLACE) INTO `table`, which has the shadow's columns. Raises SqlError or LostValue.

    Rows are literals in UTC; where the target computes values by the time zone, or keeps some of what it has, they go
    by way of state/stage.py.
    """
    mapping, workflow = target.mapping, target.table_id
    if not mapping.is_staged:
        _write_values(session, target, f"{verb} INTO {table} ({target.columns})", rows)
        return
    stage.clear(session, mapping, workflow)
    _write_values(session, target, stage.head(mapping, workflow), rows)
    with stage.computing(session, mapping):
        for statement in stage.moves(session, verb, table, mapping, workflow):
            session.execute_raw(statement)
            _refuse_losses(session, target, 0)


def _write_values(session: Session, target: Target, head: str, rows: list[str]) -> None:
    def look(written: int) -> None:
        _refuse_losses(session, target, written)

    values.write(session, head, (f"({row})" for row in rows), packet=target.packet, after=look)


class LostValue(Exception):
    """The server has cut a value with a note. `row`: its number among those that were written, from 0, if known."""

    def __init__(self, message: str, row: int | None) -> None:
        super().__init__(message)
        self.message, self.row = message, row


def _refuse_losses(session: Session, target: Target, first_row: int) -> None:
    """Read what the last statement was warned of; nearly always nothing."""
    if not session.warning_count:
        return
    for warning in session.warnings():
        if lost := loss(target.mapping.target, warning):
            at = _ROW.search(warning[2])
            # As an error, although the server did the write: a value is never cut (F8), so the transaction has to be
            # rolled back.
            raise LostValue(lost, first_row + int(at.group(1)) - 1 if at else None)


def _replace(session: Session, target: Target, keys: list[str], rows: list[str]) -> None:
    try:
        write_rows(session, target, "REPLACE", target.table, rows)
    except LostValue as error:
        raise lost_value(error, keys) from None
    except SqlError as error:
        if error.code == DUPLICATE:
            # REPLACE meets a row that another connection is inserting or taking back at this moment (MySQL, measured
            # beside a copy with a secondary unique key). There is no lasting duplicate to a REPLACE: do it again.
            raise LockWait(error.message) from None
        raise bad_value(error, keys) from None


def bad_value(error: SqlError, keys: list[str]) -> Exception:
    """The server's refusal as one that names the row: "… at row 3" counts within the statement."""
    if error.code in _NO_VALUES:
        return error
    row = _ROW.search(error.message)
    number = int(row.group(1)) - 1 if row else 0
    return _does_not_fit(error.message, keys, number if len(keys) <= values.STATEMENT_ROWS else None)


def lost_value(error: LostValue, keys: list[str]) -> BadValue:
    """The same for a value that the server has cut with a note."""
    return _does_not_fit(error.message, keys, error.row)


def _does_not_fit(message: str, keys: list[str], number: int | None) -> BadValue:
    key = values.readable_key(keys[number]) if number is not None and number < len(keys) else "one of a batch"
    return BadValue(
        f"A change to the row with key ({key}) does not fit the new definition: {message}",
        cure="The source table is untouched. Change the row or the ALTER, cancel this workflow and start again.",
    )


def touch_suspects(session: Session, target: Target, keys: list[str]) -> None:
    """Mark the suspects among these keys."""
    keytables.touch(session, target.table_id, keys, len(target.key_columns))


def delete_again(session: Session, target: Target) -> None:
    """A chunk has landed: every tombstoned key is deleted once more."""
    # As many as were deleted while chunks were open: no one knows how many that are.
    with session.patient(TABLE_SECONDS), stage.computing(session, target.mapping):
        keytables.delete_rows(session, target.mapping, target.tombstones)


def prune_tombstones(session: Session, target: Target, before_batch: int) -> bool:
    """Forget tombstones older than any open chunk; returns whether some are left."""
    keytables.prune(session, target.tombstones, before_batch)
    return not keytables.is_empty(session, target.tombstones)
