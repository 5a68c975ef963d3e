"""The measured table, and a server brought to rest between two measurements.

What must stay true: a measured step begins with every page of the buffer pool clean, purging done and the binary log
short, so that nothing of the step before is paid for by the next one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table that is measured. It has an `id` and a `sig VARCHAR(40)`; values: of a new row, out of the text `s`."""

    name: str
    create: str
    columns: str
    values: str


NARROW = Shape(name=NAME, create=CREATE, columns="sig, c", values="s, LEFT(s, 8)")
WIDE = Shape(
    name="stress_test_wide",
    create="""CREATE TABLE {name} (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sig VARCHAR(40) NOT NULL,
  customer INT NOT NULL,
  made_at DATETIME NOT NULL,
  body VARCHAR(1000) NOT NULL,
  KEY (customer),
  KEY (sig)
) ENGINE=InnoDB""",
    columns="sig, customer, made_at, body",
    values="s, CONV(LEFT(s, 5), 16, 10), '2026-01-01' + INTERVAL CONV(LEFT(s, 6), 16, 10) SECOND, REPEAT(s, 24)",
)
"""Rows of 1 KB with two secondary indexes, of which the writers change one."""


def fill(session: Session, rows: int, shape: Shape = NARROW) -> None:
    """Doubling by INSERT … SELECT leaves gaps in the ids, as the table had that this one is modeled on."""
    session.execute_raw("SET SESSION sql_log_bin=0")
    session.execute_raw(shape.create.format(name=ident(shape.name)))
    _double(session, shape, "SELECT REPEAT('0', 40) AS s")
    have = 1
    while have < rows:
        more = min(have, rows - have)
        _double(session, shape, f"SELECT LOWER(HEX(RANDOM_BYTES(20))) AS s FROM {ident(shape.name)} LIMIT {more}")
        have += more
    session.rows(f"ANALYZE TABLE {ident(shape.name)}")
    session.execute_raw("SET SESSION sql_log_bin=1")


def _double(session: Session, shape: Shape, texts: str) -> None:
    into = f"{ident(shape.name)} ({shape.columns})"
    session.execute_raw(f"INSERT INTO {into} SELECT {shape.values} FROM ({texts}) AS fresh")


def warm(session: Session, name: str = NAME) -> None:
    """Read the table into the buffer pool."""
    session.value(f"SELECT SUM(LENGTH(sig)) FROM {ident(name)}")


def content(session: Session, shape: Shape = NARROW) -> tuple[int, int]:
    """How many rows there are, and a checksum over them: the same as long as nobody writes."""
    rows = session.rows(
        f"SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('#', id, {shape.columns}))) FROM {ident(shape.name)}"
    )
    return int(rows[0][0]), int(rows[0][1])


def rest(session: Session) -> None:
    """Write every dirty page, wait for purge, drop old binary logs."""
    _purge_logs(session)
    with contextlib.ExitStack() as stack:
        # At the capacity that servers come with, 200 pages a second, this would take minutes.
        for name, value in (("io_capacity_max", 40_000), ("io_capacity", 40_000), ("max_dirty_pages_pct", 0)):
            stack.enter_context(_set(session, f"innodb_{name}", value))
        deadline = time.monotonic() + _REST_SECONDS
        while (_status(session, "Innodb_buffer_pool_pages_dirty") > 200 or _history(session) > 1000) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)


@contextlib.contextmanager
def _set(session: Session, name: str, value: int) -> Iterator[None]:
    """A setting of the server, for the time of a block."""
    before = session.value(f"SELECT @@global.{name}")
    session.execute_raw(f"SET GLOBAL {name}={value}")
    try:
        yield
    finally:
        session.execute_raw(f"SET GLOBAL {name}={before}")


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
