"""Copy ranges again: what a new unique key pushed out, or what a checksum found different.

What must stay true (docs/correctness.md, R15): a range is cleared, if at all, before its chunk is opened and never
after, and only once the attempt that might still land in it is superseded; the copy itself runs under the same chunk
protocol as the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vreplication.errors import Terminal
from vreplication.mysql.ends import Route
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.rowcopy.chunker import Terms, copy_split
from vreplication.rowcopy.job import CopyJob
from vreplication.schema.bounds import order_sql, range_sql
from vreplication.schema.model import TableMapping
from vreplication.settings import WORK_SECONDS
from vreplication.state import keytables, ledger, stage
from vreplication.state.lease import Lease, fence
from vreplication.state.ledger import Bound, KeyRange, Split

DELETE_ROWS = 2_000
"""Rows that one statement of the clearing deletes."""


def copy_ranges(
    route: Route,
    lease: Lease,
    mapping: TableMapping,
    job: CopyJob,
    ranges: Sequence[KeyRange],
    *,
    clear: bool,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Copy each range again, here and now. A key alone is a range with lower == upper and has_lower.

    `check` is called wherever this waits, and may raise. What differed is read on the source: a replica of it, where
    the copy may have been, can be what differs.
    """
    route = replace(route, replica=None)
    for number in _add_splits(route, lease, job, ranges):
        check()
        # R15: cleared before the copy opens its chunk. A DELETE behind "opened" takes out changes that were applied
        # since, and the older image that the copy has read would stay.
        if clear:
            _clear(route, lease, mapping, job, number, check)
        result = copy_split(route, lease, mapping, job, number, Terms(check=check))
        if result.error is not None:
            raise result.error


def copy_keys(
    route: Route,
    lease: Lease,
    mapping: TableMapping,
    job: CopyJob,
    keys: Sequence[Bound],
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Copy the rows of these keys again, all in one chunk, which the ledger knows by the first of them.

    A crash leaves a chunk of that one key to be copied again; the caller still has the others on its list.
    """
    first = KeyRange(lower=keys[0], upper=keys[0], has_lower=True)
    terms = Terms(check=check, beside=tuple(keys[1:]))
    for number in _add_splits(route, lease, job, [first]):
        result = copy_split(route, lease, mapping, job, number, terms)
        if result.error is not None:
            raise result.error


def _add_splits(route: Route, lease: Lease, job: CopyJob, ranges: Sequence[KeyRange]) -> list[int]:
    with connect(route.home) as session, session.transaction():
        fence(session, lease)
        first = ledger.next_repair_split(session, job.table)
        splits = [Split(number=first + i, range=r, estimated_rows=0) for i, r in enumerate(ranges)]
        ledger.add_splits(session, job.table, splits)
    return [split.number for split in splits]


def _clear(
    route: Route, lease: Lease, mapping: TableMapping, job: CopyJob, number: int, check: Callable[[], None]
) -> None:
    """Delete the split's rows from the shadow, slice by slice, each slice committed."""
    with connect(route.home, read_timeout=WORK_SECONDS, lock_wait_seconds=job.limits.lock_wait_seconds) as session:
        bounds = ledger.find_split(session, job.table, number).range
        # R15: the attempt before ours may still be at work here; without the claim it could land old rows behind the
        # DELETE.
        ledger.claim_split(session, job.table, number, our_lease=lease)
        where = target_range(mapping, bounds)
        while _delete_slice(session, lease, mapping, where):
            check()


def _delete_slice(session: Session, lease: Lease, mapping: TableMapping, where: str) -> bool:
    """True while there may be more."""
    target = qualified(mapping.target.schema, mapping.target.name)
    order = order_sql(tuple(pair.target for pair in mapping.key))
    try:
        with session.transaction():
            # clearing_lease: a driver that was stopped here and wakes up behind a takeover would empty a range that is
            # in use.
            fence(session, lease)
            with stage.computing(session, mapping):
                sql = f"DELETE FROM {target} WHERE {where} ORDER BY {order} LIMIT {DELETE_ROWS}"
                return session.execute_raw(sql) > 0
    except LockWait:
        # Each wait has lasted lock_wait_seconds already; the applier is at work on these rows.
        return True


def target_range(mapping: TableMapping, bounds: KeyRange) -> str:
    """Predicate for the shadow's rows of a range of the source's key."""
    if mapping.is_recollated and bounds.lower == bounds.upper:
        return keytables.row_predicate(mapping, [",".join(bounds.lower)])
    columns = tuple(pair.target for pair in mapping.key)
    if not mapping.has_same_order and bounds.lower != bounds.upper:
        raise Terminal(
            "A range of the key cannot be cleared, because the new definition sorts the key in another way.",
            cure="Repair key by key.",
        )
    lower, upper = _converted(mapping, bounds.lower), _converted(mapping, bounds.upper)
    return range_sql(columns, lower, upper, lo_inclusive=bounds.has_lower)


def _converted(mapping: TableMapping, bound: Bound) -> Bound:
    return tuple(pair.convert.format(literal) for pair, literal in zip(mapping.key, bound, strict=True))
