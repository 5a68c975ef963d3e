"""Under a new unique key: what was pushed out or swallowed is copied again, and real duplicates are told.

A conflict alone proves nothing: the source may never have held two such rows at one time. So each dirty key, and each
chunk that swallowed a row, is copied again; what conflicts for good shows as a duplicate on the source itself, found in
one statement (docs/correctness.md, new unique keys).

What must stay true: the gate opens only when nothing is dirty; a key leaves the dirty table only when it has been
copied again and has not been pushed out once more since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vreplication import names
from vreplication.errors import BadValue
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.planning.duplicates import find_duplicates
from vreplication.schema.literals import key_literal_sql
from vreplication.settings import SIDECAR, TABLE_SECONDS
from vreplication.state import keytables, ledger
from vreplication.state.ledger import Chunk, KeyRange
from vreplication.workflows.driver import Driver
from vreplication.workflows.job import Job

_ROUNDS = 20


def settle(driver: Driver, job: Job, copy_again: Callable[[Sequence[KeyRange]], None]) -> None:
    """Copy dirty keys and chunks again until none is left. Raises BadValue naming real duplicates."""
    for _ in range(_ROUNDS):
        found, chunks = keys(driver.session, job), _chunks(driver.session, driver.workflow)
        if not found and not chunks:
            return
        driver.notify(f"{len(found)} rows and {len(chunks)} chunks met the new unique key and are copied again")
        _refuse_duplicates(driver.session, job)
        newest = _newest(driver.session, job)
        copy_again([*(c.range for c in chunks), *map(_single, found)])
        # Only now: a crash in between leaves them dirty. What was pushed out again meanwhile has a higher number.
        _forget(driver.session, job, found, chunks, newest)
    raise BadValue(
        f"Rows go on colliding under the new unique key after {_ROUNDS} rounds.",
        cure="The source table is untouched. Look for writes that reuse its values, then start again.",
    )


def is_any(session: Session, workflow: str) -> bool:
    """Is there anything that `settle` would look at? Answered without the tables' definitions."""
    if ledger.totals(session, workflow).dirty:
        return True
    return session.row(f"SELECT 1 FROM {qualified(SIDECAR, names.dirty_table(workflow))} LIMIT 1") is not None


def keys(session: Session, job: Job) -> list[str]:
    """Dirty keys as comma lists of literals."""
    table = qualified(SIDECAR, names.dirty_table(job.row.id))
    columns = tuple(p.target for p in job.mapping.key)
    sql = key_literal_sql(columns, [ident(keytables.key_column(i)) for i in range(len(columns))])
    return [_text(r[0]) for r in session.rows(f"SELECT {sql} FROM {table} LIMIT 10000")]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _chunks(session: Session, workflow: str) -> list[Chunk]:
    return [c for c in ledger.chunks(session, workflow, states=(ledger.LANDED, ledger.MATCHED)) if c.is_dirty]


def _single(key: str) -> KeyRange:
    bound = tuple(split_literals(key))
    return KeyRange(lower=bound, upper=bound, has_lower=True)


def _newest(session: Session, job: Job) -> int:
    """Number of the newest batch that pushed a row out."""
    table = qualified(SIDECAR, names.dirty_table(job.row.id))
    return int(session.value(f"SELECT COALESCE(MAX(seen), 0) FROM {table}"))


def _forget(session: Session, job: Job, found: list[str], chunks: list[Chunk], newest: int) -> None:
    columns = [keytables.key_column(i) for i in range(len(job.mapping.key))]
    table = qualified(SIDECAR, names.dirty_table(job.row.id))
    for start in range(0, len(found), keytables.KEYS_PER_STATEMENT):
        predicate = keytables.key_predicate(columns, found[start : start + keytables.KEYS_PER_STATEMENT])
        session.execute_raw(f"DELETE FROM {table} WHERE seen <= {newest} AND ({predicate})")
    ledger.clear_dirty(session, job.row.id, chunks)


def _refuse_duplicates(session: Session, job: Job) -> None:
    for unique in job.mapping.added_unique:
        with session.patient(TABLE_SECONDS):
            found = find_duplicates(session, job.mapping, unique, limit=10)
        if found:
            raise BadValue(
                f"The source holds duplicates under the new unique key {unique.name}: {', '.join(found)}.",
                cure="The source table is untouched. Remove them, cancel this workflow and start again.",
            )
