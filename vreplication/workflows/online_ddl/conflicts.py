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

from vreplication.clock import SYSTEM
from vreplication.engine.driver import Driver
from vreplication.engine.job import Job
from vreplication.errors import BadValue
from vreplication.mysql.session import Session
from vreplication.planning.duplicates import find_duplicates
from vreplication.settings import TABLE_SECONDS
from vreplication.state import dirty, since
from vreplication.state.dirty import DirtyKey
from vreplication.state.ledger import Bound

CONFLICT_SECONDS = 900.0
"""After so long with the same conflicts the workflow ends: its writers bring them faster than they can be copied."""
_ROUND_SECONDS = 60.0
"""A round of some hundred keys counts for so long at most: it waits where the workflow is paused or throttled."""
_SUSPICIOUS = 3
"""A key that is dirty for the third time may be a real duplicate, which costs a look at the whole table to know."""
_SHOWN = 5


def resolve(driver: Driver, job: Job, copy_again: Callable[[Sequence[Bound]], None]) -> None:
    """Copy dirty keys again until none is left. Raises BadValue naming real duplicates, or what never ends."""
    seconds, times = 0.0, Counter[str]()
    while found := dirty.some(driver.session, job.mapping, driver.workflow):
        began = SYSTEM.monotonic()
        left = max(0, round(CONFLICT_SECONDS - seconds))
        words = f"{len(found)} rows conflict with the new unique key and are copied again"
        driver.report(waiting_for=f"{words}; {len(times)} so far, for at most {left} s more")
        times.update(entry.key for entry in found)
        if max(times[entry.key] for entry in found) == _SUSPICIOUS:
            _refuse_duplicates(driver.session, job)
        if seconds > CONFLICT_SECONDS:
            raise _no_end(found, seconds)
        # Their rows are compared again, whatever a verification has seen before.
        since.add_dirty(driver.session, driver.workflow)
        copy_again([entry.bound for entry in found])
        # Only now: a crash in between leaves them dirty.
        dirty.forget(driver.session, job.mapping, driver.workflow, found)
        seconds += min(SYSTEM.monotonic() - began, _ROUND_SECONDS)
    if times:
        driver.notify(f"{len(times)} rows that conflicted with the new unique key were copied again")
        driver.report(waiting_for=None)


def _no_end(found: Sequence[DirtyKey], seconds: float) -> BadValue:
    shown = ", ".join(f"({entry.key})" for entry in found[:_SHOWN])
    return BadValue(
        f"Rows keep conflicting with the new unique key after {seconds:.0f} s, now {len(found)} of them: {shown}.",
        cure="The source table is untouched. Look for writes that reuse its values, then start again.",
    )


def _refuse_duplicates(session: Session, job: Job) -> None:
    for unique in job.mapping.added_unique:
        with session.patient(TABLE_SECONDS):
            found = find_duplicates(session, job.mapping, unique, limit=10)
        if found:
            raise BadValue(
                f"The source holds duplicates under the new unique key {unique.name}: {', '.join(found)}.",
                cure="The source table is untouched. Remove them, cancel this workflow and start again.",
            )
