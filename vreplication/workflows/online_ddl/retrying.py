"""The pause between two attempts at the cut-over: until its time is over, or who blocked the last one is gone.

What must stay true: an attempt makes writers wait for up to a second, so attempts become rarer whatever is seen here;
on a server that cannot say who holds the table, a session that is gone need not have been the one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from vreplication.clock import SYSTEM
from vreplication.cutover.blockers import Blocker, blockers
from vreplication.engine.driver import Driver
from vreplication.mysql.server import Server
from vreplication.settings import CUTOVER_RETRY_SECONDS
from vreplication.state import lease
from vreplication.state.workflows import WorkflowRow

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_LOCK_SECONDS = 1.0
"""Who blocked has been there for at least as long as the lock was waited for."""
# The pause never ends sooner than this in the long run, whoever is gone: each attempt holds all writers up.
_RAREST_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt of this number that came to nothing. blocked_by: by whom, as far as that could be seen."""

    number: int
    why: str | None = None
    blocked_by: tuple[Blocker, ...] = ()


def pause(driver: Driver, server: Server, row: WorkflowRow, failed: Failed) -> None:
    """After the first attempt 0 seconds, then 5, 10, 30, 60, 60, …"""
    seconds = CUTOVER_RETRY_SECONDS[min(failed.number, len(CUTOVER_RETRY_SECONDS)) - 1]
    held = _holding(row, failed)
    began, least = SYSTEM.monotonic(), min(float(failed.number), _RAREST_SECONDS)
    while (passed := SYSTEM.monotonic() - began) < seconds:
        if held and passed >= least and not held & _blocking(driver, server, row):
            log.info("who blocked the cut-over is gone")
            break
        if failed.why:
            # What nobody has written for some seconds is not shown.
            driver.report(waiting_for=failed.why)
        driver.wait(min(_LOOK_SECONDS, seconds - passed))
    driver.check()


def _holding(row: WorkflowRow, failed: Failed) -> set[object]:
    """Of whom can be seen that they are gone: not who holds a relative, or a table that a trigger uses."""
    table = f"{row.source_schema}.{row.source_table}"
    return {_who(b) for b in failed.blocked_by if b.table == table and b.age_seconds >= _LOCK_SECONDS}


def _blocking(driver: Driver, server: Server, row: WorkflowRow) -> set[object]:
    own = frozenset(driver.connections) | lease.connections(driver.session, row.id)
    return {_who(b) for b in blockers(driver.session, server, row.source_schema, row.source_table, own=own)}


def _who(blocker: Blocker) -> object:
    """A prepared branch has no connection, but a name."""
    return blocker.connection_id or blocker.statement
