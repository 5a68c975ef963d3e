"""Copying in the driver's own process while Spark starts, which takes seconds.

What must stay true: it is the copy as Spark's tasks do it, under the same chunk protocol and lease; a split that is
left when Spark is there is left between two chunks, and a task goes on behind the last one. What fails here and may
succeed when it is done again is left to those tasks, which repeat it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from vreplication.errors import Transient
from vreplication.mysql.ends import Route
from vreplication.mysql.session import connect
from vreplication.rowcopy.chunker import Terms, copy_split
from vreplication.rowcopy.job import CopyJob
from vreplication.schema.model import TableMapping
from vreplication.settings import AHEAD_ROWS
from vreplication.state import ledger
from vreplication.state.lease import Lease

log = logging.getLogger(__name__)

LEAST_ROWS = AHEAD_ROWS
SHARE = 4
"""One split of so many is begun here, at the most: the bulk is Spark's."""


def copy_ahead(
    route: Route,
    lease: Lease,
    mapping: TableMapping,
    job: CopyJob,
    *,
    is_over: Callable[[], bool],
    check: Callable[[], None],
) -> None:
    """Copy the first splits one after the other until `is_over`. `check` is called while waiting; it may raise."""
    try:
        with connect(route.home) as session:
            numbers = [s.number for s in ledger.splits(session, job.table) if not s.is_done]
        for number in numbers[: max(1, len(numbers) // SHARE)]:
            if is_over():
                return
            # Under the chunk protocol like a task's, claim included: a task of Spark's that comes while we are at this
            # split takes a newer attempt, and what we would still land is refused.
            result = copy_split(route, lease, mapping, job, number, Terms(check=check, is_over=is_over))
            if result.error is not None:
                raise result.error
            log.info("split %d: %d rows in %d chunks before Spark came", number, result.rows_copied, result.chunks)
    except Transient as error:
        log.warning("the copy is left to Spark: %s", error)
