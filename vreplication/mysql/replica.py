"""Reading on a replica as if on its source: whether it follows, and whether it has applied what the source has logged.

What must stay true: `has_applied` says yes only when every transaction of the asked ones is committed on the replica,
in whatever order its workers commit and whatever domains they are in. On MariaDB an XA COMMIT may be visible later than
that; its branch stands in the replica's XA RECOVER until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from vreplication.errors import Transient
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session

_LOGGED = {True: "gtid_binlog_pos", False: "gtid_executed"}
_APPLIED = {True: "gtid_slave_pos", False: "gtid_executed"}
_WAIT = {True: "MASTER_GTID_WAIT", False: "WAIT_FOR_EXECUTED_GTID_SET"}
_STATUS = {True: "SHOW ALL SLAVES STATUS", False: "SHOW REPLICA STATUS"}


def logged(source: Session) -> str:
    """GTIDs of all that is in the source's log now."""
    return _variable(source, _LOGGED)


def applied(replica: Session) -> str:
    """GTIDs of all that the replica has applied."""
    return _variable(replica, _APPLIED)


def _variable(session: Session, names: dict[bool, str]) -> str:
    return str(session.value(f"SELECT @@GLOBAL.{names[is_mariadb(session)]}"))


def has_applied(replica: Session, gtids: str, seconds: float) -> bool:
    """Waits so long for it. Raises Transient where the server cannot say."""
    answer = replica.value(f"SELECT {_WAIT[is_mariadb(replica)]}(%s,%s)", (gtids, seconds))
    if answer is None:
        raise Transient(f"The replica {replica.url} does not tell what it has applied.")
    # Where the time is up MariaDB answers -1, and MySQL 1.
    return int(answer) == 0


def channels(replica: Session) -> list[dict[str, str]]:
    """What the server says of each of its sources, names in lower case. Raises SqlError without the privilege."""
    rows = replica.named_rows(_STATUS[is_mariadb(replica)])
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


def follows(channel: dict[str, str], source: Session) -> bool:
    """Is `source` what the channel replicates from?"""
    if is_mariadb(source):
        return channel["master_server_id"] == str(source.value("SELECT @@GLOBAL.server_id"))
    return channel["source_uuid"] == str(source.value("SELECT @@server_uuid"))


def is_running(channel: dict[str, str]) -> bool:
    return all(value == "Yes" for name, value in channel.items() if name.endswith(("_io_running", "_sql_running")))


def is_at_work(channel: dict[str, str]) -> bool:
    """It fetches the other server's log, or applies what it has of it."""
    return any(value == "Yes" for name, value in channel.items() if name.endswith(("_io_running", "_sql_running")))


def delay_seconds(channel: dict[str, str]) -> int:
    """By which it is told to stay behind."""
    return int(channel.get("sql_delay") or 0)


def filters(channel: dict[str, str]) -> Iterator[str]:
    """What keeps something of the source's log from being applied, as the status names it."""
    return (f"{name}={value}" for name, value in channel.items() if name.startswith("replicate_") and value)
