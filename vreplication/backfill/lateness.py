"""Waits until the rows of an interval have been committed: by the source's clock, and by its open transactions.

What must stay true: nothing of an interval is read until `lateness_minutes` after its end, by the source's own clock,
nor while a transaction that began, or may have begun, before that end and has written is open, where the user may see
it; every wait can be interrupted, and has an end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from vreplication.backfill.interval import in_utc
from vreplication.backfill.job import Job
from vreplication.clock import SYSTEM
from vreplication.cutover.transactions import utc_of_system
from vreplication.errors import Refused, Transient
from vreplication.mysql.session import Row, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

POLL_SECONDS = 5.0
_SKEW = timedelta(minutes=5)
"""The scheduler's clock may be that much before the source's."""
_RECOVERY = timedelta(hours=1)
"""How long a server may recover at most, from its start until it has dated its prepared branches."""
_PATIENCE = 60
"""Seconds for each of `lateness_minutes` that an open transaction is waited for."""
# InnoDB renews what it shows when it has not been read for 100 ms.
_LOOKS, _LOOK_SECONDS = 5, 0.2
_NOT_ALLOWED, _CANNOT_CONVERT = 1227, 3854
"""Without PROCESS; and on MySQL while a statement has a character of four bytes (cutover/transactions.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """pause: sleeps for so many seconds, and raises when the run is interrupted."""

    session: Session
    job: Job
    end: datetime
    pause: Callable[[float], None]
    notify: Callable[[str], None]
    _kept: list[frozenset[str]] = field(default_factory=list)
    """Once looked at: branches that may be of before a restart."""

    def run(self) -> None:
        """Raises Refused when the interval is not over, and Transient when a transaction stays open."""
        if not self.job.lateness_minutes:
            return
        if _left(self.session, self.job, self.end) > 0:
            moment = in_utc(self.end) + timedelta(minutes=self.job.lateness_minutes)
            self._tell(f"waiting until {moment.isoformat()} (lateness_minutes), for rows that are committed late")
        while (left := _left(self.session, self.job, self.end)) > 0:
            self.pause(min(left, POLL_SECONDS))
        self._wait_for_transactions()

    def _wait_for_transactions(self) -> None:
        until = SYSTEM.monotonic() + _PATIENCE * self.job.lateness_minutes
        told = ""
        while found := self._oldest():
            if SYSTEM.monotonic() >= until:
                raise Transient(
                    f"Still open is {found}: what it commits would be missing.",
                    cure="End it or wait for it, then run this interval again.",
                )
            if found != told:
                self._tell(f"waiting for {found}")
            told = found
            self.pause(POLL_SECONDS)

    def _oldest(self) -> str:
        """The first transaction that began before the end and has written. '': none, or they cannot be seen."""
        # A new connection each time: only where its own transaction is listed was the list renewed after this look
        # began.
        with connect(self.session.url) as probe:
            probe.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for look in range(_LOOKS):
                if look:
                    self.pause(_LOOK_SECONDS)
                try:
                    found = _transactions(probe)
                except SqlError as error:
                    # PROCESS is not demanded: without it lateness_minutes alone has to be enough (docs/backfill.md).
                    if error.code == _NOT_ALLOWED:
                        return ""
                    if error.code != _CANNOT_CONVERT:
                        raise
                    continue
                # Where ours is missing, others ask so often that the server shows older ones (cutover/transactions.py).
                if any(each[0] == probe.id for each in found):
                    return _first(found, self.end) or self._kept_over_a_restart(probe, found)
        self._tell("the server does not show its open transactions now, so they are not waited for")
        return ""

    def _kept_over_a_restart(self, probe: Session, found: list[Row]) -> str:
        """A server that starts tells of each branch that it has found prepared that it began just then."""
        if not self._kept:
            # Which of them were found, and which began later, is told nowhere. So those of the first look count: with
            # all that come there would be one at each look, where an application prepares branches all the time.
            # It dates them when it recovers, which may take long and comes behind the start that it tells of.
            is_behind = _started(probe) >= in_utc(self.end) - _RECOVERY
            self._kept.append(frozenset(str(each[3]) for each in found if is_behind and _is_prepared(each)))
        left = [each for each in found if _is_prepared(each) and str(each[3]) in self._kept[0]]
        told = f"said to have begun at {left[0][1]} UTC" if left else ""
        return f"a prepared XA transaction that may be older than the server's start ({told})" if left else ""

    def _tell(self, text: str) -> None:
        self.notify(f"{self.job.name}: {text}")


def seconds_left(job: Job, source: SourceUrl, end: datetime) -> float:
    """Until the interval may be read, by the source's clock. Raises Refused when it is not over."""
    if not job.lateness_minutes:
        return 0.0
    with connect(source) as session:
        return _left(session, job, end)


def _left(session: Session, job: Job, end: datetime) -> float:
    now, end = _now(session), in_utc(end)
    if end - now > _SKEW:
        raise Refused(
            f"The interval ends at {end.isoformat()}, and on the source it is {now.isoformat(timespec='seconds')}: "
            "rows that come until then would be missing.",
            cure="Give an end that has passed, or set lateness_minutes: 0 in the job to copy what is there now.",
        )
    return (end + timedelta(minutes=job.lateness_minutes) - now).total_seconds()


def _now(session: Session) -> datetime:
    found: datetime = session.value("SELECT UTC_TIMESTAMP(6)")
    return found.replace(tzinfo=UTC)


def _started(session: Session) -> datetime:
    """The server, in whole seconds."""
    uptime = int(session.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1])
    return _now(session).replace(microsecond=0) - timedelta(seconds=uptime)


def _transactions(session: Session) -> list[Row]:
    """Connection, begin in UTC, rows changed and id, the oldest first."""
    began = utc_of_system("trx_started")
    sql = f"SELECT trx_mysql_thread_id,{began},trx_rows_modified,trx_id FROM information_schema.innodb_trx ORDER BY 2"
    return session.rows(sql)


def _is_prepared(found: Row) -> bool:
    """It has written, and is no connection's any more."""
    return not found[0] and bool(found[2])


def _first(found: list[Row], end: datetime) -> str:
    """One that has written nothing may be a dump of hours, which no interval has to wait for."""
    until = in_utc(end).replace(tzinfo=None)
    for connection, began, changed, _ in found:
        if changed and began and began < until:
            # A prepared branch has no connection.
            who = f"the transaction of connection {connection}" if connection else "a prepared XA transaction"
            return f"{who} that began at {began} UTC, before the interval's end"
    return ""
