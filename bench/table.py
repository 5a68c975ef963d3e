"""The measured table, and a server brought to rest between two measurements.

What must stay true: a measured step begins with every page of the buffer pool clean, purging done and the binary log
short, so that nothing of the step before is paid for by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError

NAME = "stress_test_pk"
CREATE = """CREATE TABLE {name} (
  id BIGINT NOT NULL AUTO_INCREMENT,
  sig VARCHAR(40) NOT NULL,
  c CHAR(8) NOT NULL DEFAULT '',
  PRIMARY KEY (id, c)
) ENGINE=InnoDB"""
OPTIONS: dict[str, object] = {
    "innodb-buffer-pool-size": "2G",
    # None takes the sandbox's own setting away: at each commit both servers are as durable as they come.
    "innodb-flush-log-at-trx-commit": None,
    "sync-binlog": None,
}
FLAVOR_OPTIONS: dict[str, dict[str, object]] = {
    "mariadb": {"innodb-log-file-size": "2G"},
    "mysql": {"innodb-redo-log-capacity": "2G"},
}
"""The server's defaults, with a buffer pool and a redo log of a size that production has."""
_REST_SECONDS = 120.0


def options(flavor: str) -> Mapping[str, object]:
    return {**OPTIONS, **FLAVOR_OPTIONS[flavor]}


def fill(session: Session, rows: int) -> None:
    """Doubling by INSERT … SELECT leaves gaps in the ids, as the table had that this one is modeled on."""
    session.execute_raw("SET SESSION sql_log_bin=0")
    session.execute_raw(CREATE.format(name=ident(NAME)))
    session.execute_raw(f"INSERT INTO {ident(NAME)} (sig, c) VALUES (REPEAT('0', 40), '')")
    have = 1
    while have < rows:
        more = min(have, rows - have)
        session.execute_raw(
            f"INSERT INTO {ident(NAME)} (sig, c) SELECT s, LEFT(s, 8) FROM "
            f"(SELECT LOWER(HEX(RANDOM_BYTES(20))) AS s FROM {ident(NAME)} LIMIT {more}) AS fresh"
        )
        have += more
    session.rows(f"ANALYZE TABLE {ident(NAME)}")
    session.execute_raw("SET SESSION sql_log_bin=1")


def warm(session: Session) -> None:
    """Read the table into the buffer pool."""
    session.value(f"SELECT SUM(LENGTH(sig)) FROM {ident(NAME)}")


def rest(session: Session) -> None:
    """Write every dirty page, wait for purge, drop old binary logs."""
    _purge_logs(session)
    before = session.value("SELECT @@global.innodb_max_dirty_pages_pct")
    session.execute_raw("SET GLOBAL innodb_max_dirty_pages_pct=0")
    try:
        deadline = time.monotonic() + _REST_SECONDS
        while (_status(session, "Innodb_buffer_pool_pages_dirty") > 200 or _history(session) > 1000) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
    finally:
        session.execute_raw(f"SET GLOBAL innodb_max_dirty_pages_pct={before}")


def _purge_logs(session: Session) -> None:
    session.execute_raw("FLUSH BINARY LOGS")
    last = session.rows("SHOW BINARY LOGS")[-1][0]
    session.execute_raw(f"PURGE BINARY LOGS TO '{last}'")


def _status(session: Session, name: str) -> int:
    row = session.row("SHOW GLOBAL STATUS LIKE %s", (name,))
    return int(row[1]) if row else 0


def _history(session: Session) -> int:
    try:
        sql = "SELECT count FROM information_schema.innodb_metrics WHERE name='trx_rseg_history_len'"
        return int(session.value(sql) or 0)
    except SqlError:
        return 0


def busy_share(seconds: float = 1.0) -> float:
    """How much of the machine others use: the share of CPU time that is not idle, while we do nothing."""
    busy, total = _cpu()
    time.sleep(seconds)
    later_busy, later_total = _cpu()
    return (later_busy - busy) / max(later_total - total, 1)


def _cpu() -> tuple[int, int]:
    with open("/proc/stat") as file:
        times = [int(x) for x in file.readline().split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def wait_until_quiet(patience_seconds: float) -> float:
    """Wait until the machine is idle; the share that was busy at the end, also when patience ran out."""
    deadline = time.monotonic() + patience_seconds
    while (share := busy_share()) > 0.15 and time.monotonic() < deadline:
        pass
    return share


def load() -> float:
    return os.getloadavg()[0]
