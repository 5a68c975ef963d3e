"""Under a new unique key: rows that gave way to another one are copied again, and real duplicates are reported.

A conflict alone proves nothing: the source may never have held two such rows at one time, and the row's own next change
takes its key off the list (apply/unique.py). What stays on it is copied again, some hundred keys in one chunk. What
conflicts for good shows as a duplicate on the source itself, found in one statement (docs/correctness.md, new unique
keys).

What must stay true: the gate opens only when nothing is dirty; a key leaves the list only when it has been copied again
and has not given way once more since, or by its own change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.clock import SYSTEM
from vreplication.errors import BadValue
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.planning.duplicates import find_duplicates
from vreplication.settings import SIDECAR, TABLE_SECONDS
from vreplication.state import keytables, since
from vreplication.state.ledger import Bound
from vreplication.workflows.driver import Driver
from vreplication.workflows.job import Job

SETTLE_SECONDS = 900.0
"""After so long with the same conflicts the workflow ends: its writers bring them faster than they can be copied."""
_SUSPICIOUS = 3
"""A key that is dirty for the third time may be a real duplicate, which costs a look at the whole table to know."""
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyKey:
    """number: of this entry; the same key made dirty anew has another one."""

    key: str
    number: int

    @property
    def bound(self) -> Bound:
        return tuple(split_literals(self.key))


def settle(driver: Driver, job: Job, copy_again: Callable[[Sequence[Bound]], None]) -> None:
    """Copy dirty keys again until none is left. Raises BadValue naming real duplicates, or keys that never settle."""
    began, times = SYSTEM.monotonic(), Counter[str]()
    while found := keys(driver.session, job):
        seconds = SYSTEM.monotonic() - began
        left = max(0, round(SETTLE_SECONDS - seconds))
        words = f"{len(found)} rows conflict with the new unique key and are copied again"
        driver.report(waiting_for=f"{words}; {len(times)} so far, for at most {left} s more")
        times.update(entry.key for entry in found)
        if max(times[entry.key] for entry in found) == _SUSPICIOUS:
            _refuse_duplicates(driver.session, job)
        if seconds > SETTLE_SECONDS:
            raise _never_settles(found, seconds)
        # Their rows are compared again, whatever a verification has seen before.
        since.add_dirty(driver.session, driver.workflow)
        copy_again([entry.bound for entry in found])
        _forget(driver.session, job, found)
    if times:
        driver.notify(f"{len(times)} rows that conflicted with the new unique key were copied again")
        driver.report(waiting_for=None)


def _never_settles(found: Sequence[DirtyKey], seconds: float) -> BadValue:
    shown = ", ".join(f"({entry.key})" for entry in found[:_SHOWN])
    return BadValue(
        f"Rows keep conflicting with the new unique key after {seconds:.0f} s, now {len(found)} of them: {shown}.",
        cure="The source table is untouched. Look for writes that reuse its values, then start again.",
    )


def is_any(session: Session, workflow: str) -> bool:
    """Is there anything that `settle` would look at? Answered without the tables' definitions."""
    return session.row(f"SELECT 1 FROM {qualified(SIDECAR, names.dirty_table(workflow))} LIMIT 1") is not None


def keys(session: Session, job: Job) -> list[DirtyKey]:
    """As many as one chunk takes."""
    table = qualified(SIDECAR, names.dirty_table(job.row.id))
    sql = f"SELECT {keytables.literal_sql(job.mapping)}, seen FROM {table} LIMIT {keytables.KEYS_PER_STATEMENT}"
    return [DirtyKey(key=_text(key), number=int(number)) for key, number in session.rows(sql)]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _forget(session: Session, job: Job, found: Sequence[DirtyKey]) -> None:
    """Only now: a crash in between leaves them dirty. What gave way again meanwhile has another number."""
    columns = [keytables.key_column(i) for i in range(len(job.mapping.key))]
    numbers = ",".join(str(entry.number) for entry in found)
    predicate = keytables.key_predicate(columns, [entry.key for entry in found])
    table = qualified(SIDECAR, names.dirty_table(job.row.id))
    session.execute_raw(f"DELETE FROM {table} WHERE ({predicate}) AND seen IN ({numbers})")


def _refuse_duplicates(session: Session, job: Job) -> None:
    for unique in job.mapping.added_unique:
        with session.patient(TABLE_SECONDS):
            found = find_duplicates(session, job.mapping, unique, limit=10)
        if found:
            raise BadValue(
                f"The source holds duplicates under the new unique key {unique.name}: {', '.join(found)}.",
                cure="The source table is untouched. Remove them, cancel this workflow and start again.",
            )
