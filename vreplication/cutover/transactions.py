"""Open InnoDB transactions and when they began.

What must stay true: "none" is never said where "not known" is meant. MySQL converts every transaction's statement to
utf8mb3 for information_schema.innodb_trx and ends our query with error 3854 while one holds a character of four bytes,
whatever columns are asked for (measured on 9.7). InnoDB's status text is no way out: it lists a transaction that has
only a snapshot as "not started". So we look again, and say so when that does not help.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from vreplication.clock import SYSTEM
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

_CANNOT_CONVERT = 3854
_KEEPS_NO_SNAPSHOT = ("READ COMMITTED", "READ UNCOMMITTED")
_LOOKS = 5
_PAUSE_SECONDS = 0.15
"""InnoDB renews what it shows when nobody has read it for 100 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """began: UTC by the server's clock, rounded down. keeps_snapshot: False for READ COMMITTED and below."""

    connection_id: int
    began: datetime
    age_seconds: float
    keeps_snapshot: bool
    rows_modified: int = 0
    id: str = ""
    """InnoDB's: of one that has written, another one each time. Of one that only reads it may come again."""

    def is_same(self, other: Transaction | None) -> bool:
        return other is not None and (self.id, self.began) == (other.id, other.began)


def open_transactions(session: Session) -> list[Transaction] | None:
    """All transactions that have a connection (a prepared branch without one is no reader). None: cannot be told."""
    for look in range(_LOOKS):
        if look:
            SYSTEM.sleep(_PAUSE_SECONDS)
        try:
            return _listed(session)
        except SqlError as error:
            if error.code != _CANNOT_CONVERT:
                raise
    return None


def fresh_transactions(url: SourceUrl) -> list[Transaction] | None:
    """As they are at this moment at the earliest. None: the server shows older ones, for others read them too often.

    A transaction of a new connection stands among them only where they were renewed since it began.
    """
    with connect(url) as probe:
        probe.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        for _ in range(_LOOKS):
            found = open_transactions(probe)
            if found is not None and any(each.connection_id == probe.id for each in found):
                return [each for each in found if each.connection_id != probe.id]
            SYSTEM.sleep(_PAUSE_SECONDS)
    return None


def utc_of_system(local: str) -> str:
    """SQL of a time that is told in the zone of the server's operating system, in UTC.

    Of an hour that comes twice in autumn the first: which of them the server takes depends on what it has been asked
    before, and an old snapshot must not be taken for a young one.
    """
    found = f"CONVERT_TZ({local}, 'SYSTEM', '+00:00')"
    earlier = f"{found} - INTERVAL 1 HOUR"
    return f"IF(CONVERT_TZ({earlier}, '+00:00', 'SYSTEM') = {local}, {earlier}, {found})"


def _listed(session: Session) -> list[Transaction]:
    # Of the operating system's zone, whatever our session's is.
    began = utc_of_system("trx_started")
    rows = session.rows(
        f"SELECT trx_mysql_thread_id, {began}, TIMESTAMPDIFF(SECOND, {began}, NOW()), trx_isolation_level, "
        "trx_rows_modified, trx_id "
        "FROM information_schema.innodb_trx WHERE trx_mysql_thread_id > 0"
    )
    return [
        Transaction(
            connection_id=int(number),
            began=started,
            age_seconds=float(age),
            keeps_snapshot=str(level) not in _KEEPS_NO_SNAPSHOT,
            rows_modified=int(changed),
            id=str(name),
        )
        for number, started, age, level, changed, name in rows
    ]
