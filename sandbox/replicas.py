"""Make one server the replica of another by GTID, and promote it when the other one is gone.

What must stay true: a replica logs what it applies, so that it can take the other's place; it has no transactions of
its own until it is promoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sandbox import servers
from sandbox.servers import RunningServer
from vreplication.mysql.session import Session

GTID_OPTIONS: dict[str, dict[str, object]] = {
    "mariadb": {"log-slave-updates": "ON", "gtid-strict-mode": "ON"},
    # With several workers MySQL 9.7 now and then loses the second of two branches that it recovered, and stops.
    "mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "replica-parallel-workers": 1},
}
"""A source takes them, too: it may become a replica, and MySQL gives out no GTIDs without."""


def start_replica(
    source: RunningServer, folder: Path, *, number: int = 2, options: Mapping[str, object] | None = None
) -> RunningServer:
    """A new server that follows `source` from its first transaction on; `source` has GTID_OPTIONS."""
    all_options = {**GTID_OPTIONS[source.flavor], "server-id": number, **(options or {})}
    replica = servers.start(source.flavor, folder, options=all_options)
    follow(replica, source)
    return replica


def follow(replica: RunningServer, source: RunningServer) -> None:
    """From where the replica's own log ends."""
    with replica.admin() as session:
        for statement in _MARIADB if replica.is_mariadb else _MYSQL:
            session.execute_raw(statement.format(host=source.host, port=source.port, password=source.password))


_MARIADB = (
    "SET GLOBAL gtid_slave_pos=@@global.gtid_binlog_pos",
    "CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='root', MASTER_PASSWORD='{password}', "
    "MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
    "START SLAVE",
)
# GET_SOURCE_PUBLIC_KEY: without TLS the login sends the password encrypted by the source's key, which it has to ask
# for.
_MYSQL = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST='{host}', SOURCE_PORT={port}, SOURCE_USER='root', "
    "SOURCE_PASSWORD='{password}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1",
    "START REPLICA",
)


def wait_level(source: RunningServer, replica: RunningServer, *, seconds: int = 60) -> None:
    """Wait until the replica has applied what the source has logged by now. Raises TimeoutError."""
    with source.admin() as ahead, replica.admin() as behind:
        logged = str(ahead.value(f"SELECT @@global.{_LOGGED[source.flavor]}"))
        if not _has_applied(behind, replica.is_mariadb, logged, seconds):
            raise TimeoutError(f"the replica does not catch up: {_status(behind, replica.is_mariadb)}")


_LOGGED = {"mariadb": "gtid_binlog_pos", "mysql": "gtid_executed"}


def promote(replica: RunningServer) -> None:
    """It applies what it has received, then follows nobody any more and takes writes."""
    word = "SLAVE" if replica.is_mariadb else "REPLICA"
    with replica.admin() as session:
        # First: what has been received by then is the whole of what can still be applied.
        session.execute_raw(f"STOP {word} IO_THREAD")
        received = str(_status(session, replica.is_mariadb)[_RECEIVED[replica.flavor]])
        if not _has_applied(session, replica.is_mariadb, received, 60):
            raise TimeoutError(f"the replica does not apply what it has received: {received}")
        session.execute_raw(f"STOP {word}")
        session.execute_raw(f"RESET {word} ALL")


_RECEIVED = {"mariadb": "gtid_io_pos", "mysql": "retrieved_gtid_set"}


def _has_applied(session: Session, is_mariadb: bool, gtids: str, seconds: int) -> bool:
    wait = "MASTER_GTID_WAIT" if is_mariadb else "WAIT_FOR_EXECUTED_GTID_SET"
    return int(session.value(f"SELECT {wait}(%s, %s)", (gtids, seconds))) == 0


def _status(session: Session, is_mariadb: bool) -> dict[str, object]:
    return session.named_rows("SHOW SLAVE STATUS" if is_mariadb else "SHOW REPLICA STATUS")[0]
