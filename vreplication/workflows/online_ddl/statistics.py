"""The optimizer's statistics on the new table, so that plans do not change at the cut-over.

What must stay true: nothing that goes wrong with a histogram holds the cut-over up, and it is said; a cancel or an
interrupt ends a statement that is under way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

from vreplication.cutover import finish
from vreplication.engine import job
from vreplication.engine.driver import Driver
from vreplication.errors import VReplicationError
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.schema import statistics
from vreplication.schema.statistics import Statistics
from vreplication.settings import TABLE_SECONDS
from vreplication.state import journal, lease
from vreplication.state.workflows import WorkflowRow

T = TypeVar("T")

_EVENT = "statistics"
_POLL_SECONDS = 0.1
_COMPLAINTS = ("error", "warning")
_MARGIN_SECONDS = 60
"""The server gives up this much before we would take the connection for lost."""


def collect(driver: Driver, row: WorkflowRow) -> None:
    """Those of the engine, and those that the source has because a person had them collected."""
    with connect(driver.url, read_timeout=TABLE_SECONDS) as session:
        driver.announce((session.id,))
        _watched(driver, session, lambda: finish.analyze(session, row.source_schema, row.shadow_table))
        if trouble := "; ".join(_carry(driver, session, row)):
            _tell(driver, f"the new table lacks statistics that the old one has: {trouble}")


def _carry(driver: Driver, session: Session, row: WorkflowRow) -> Iterator[str]:
    """Yields what could not be collected. What an earlier look at the gate has collected is there."""
    flavor = is_mariadb(session)
    found = statistics.collected(session, row.source_schema, row.source_table, is_mariadb=flavor)
    there = statistics.collected(session, row.source_schema, row.shadow_table, is_mariadb=flavor)
    if not found:
        return
    mapping = job.load(driver.session, driver.workflow).mapping
    wanted = statistics.carried(found, mapping, is_mariadb=flavor).without(there or Statistics())
    # MySQL's histograms need no limit: they are made from a sample, in 0.5 s for two columns of 1,000,000 rows
    # (docs/cut-over.md).
    if flavor:
        session.execute_raw(f"SET SESSION max_statement_time={TABLE_SECONDS - _MARGIN_SECONDS}")
    # Which the rows may not go to directly (--on-duplicate).
    new = replace(mapping.target, name=row.shadow_table)
    for sql in statistics.statements(wanted, new, is_mariadb=flavor):
        try:
            answers = _watched(driver, session, functools.partial(session.rows, sql))
            yield from (str(words) for _, _, kind, words in answers if str(kind).lower() in _COMPLAINTS)
        except (SqlError, LockWait) as error:
            yield error.message


def _watched(driver: Driver, session: Session, work: Callable[[], T]) -> T:
    """MariaDB reads the whole table for it, and each waits for locks: meanwhile the operator is listened to."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        try:
            while wait([running], _POLL_SECONDS).not_done:
                driver.check()
        except BaseException:
            with contextlib.suppress(VReplicationError):
                # An ANALYZE that nobody waits for any more would go on reading the whole table.
                driver.session.kill(session.id)
            session.abort()
            raise
        return running.result()


def _tell(driver: Driver, words: str) -> None:
    """Once: the gate is passed again before each attempt at the cut-over."""
    before = journal.latest(driver.session, driver.workflow, _EVENT)
    if before is None or before["details"] != words:
        journal.write(driver.session, driver.workflow, _EVENT, words, actor=lease.me())
        driver.notify(words)
