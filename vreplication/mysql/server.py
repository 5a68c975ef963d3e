"""What server this is: flavor, version, and the settings that decide what we may do.

What must stay true: nothing here changes a setting; a setting that a server does not have reads as None.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from vreplication.errors import SourceChanged, Terminal
from vreplication.mysql.session import Session

ASKED = frozenset(
    {
        "binlog_expire_logs_seconds", "binlog_format", "binlog_order_commits", "binlog_row_image",
        "binlog_row_metadata", "binlog_row_value_options", "binlog_transaction_compression", "datadir",
        "expire_logs_days", "explicit_defaults_for_timestamp", "group_replication_single_primary_mode", "gtid_mode",
        "hostname", "innodb_autoinc_lock_mode", "innodb_flush_log_at_trx_commit", "innodb_native_foreign_keys",
        "innodb_read_only", "log_bin", "log_bin_basename", "log_bin_compress", "log_replica_updates",
        "log_slave_updates", "lower_case_table_names", "max_allowed_packet", "max_write_lock_count", "pid_file", "port",
        "read_only", "server_id", "server_uuid", "sql_mode", "super_read_only", "system_time_zone", "time_zone",
        "version", "sql_require_primary_key", "sync_binlog", "thread_pool_size", "wsrep_on",
    }
)  # fmt: skip
"""The settings that somebody here wants to know: a server has hundreds, and to read all of them takes milliseconds."""


_FEWEST_LOCKS = 1_000_000
"""Below this max_write_lock_count is a choice of somebody's, and weaker locks go before RENAME now and then."""
_LOG_STATUS_SINCE = (8, 2, 0)
_TRIES = 5
"""At reading two things of one moment; over a slow line there is none."""


class Flavor(StrEnum):
    MYSQL = "mysql"
    MARIADB = "mariadb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Flavor and version of a server, with its global variables (names in lower case), as far as they are `ASKED`."""

    flavor: Flavor
    version: tuple[int, int, int]
    version_text: str
    variables: dict[str, str]

    @property
    def is_mariadb(self) -> bool:
        return self.flavor is Flavor.MARIADB

    @property
    def log_status(self) -> str:
        """The statement that tells where the log ends and what is kept out of it."""
        return "SHOW MASTER STATUS" if self.is_mariadb or self.version < _LOG_STATUS_SINCE else "SHOW BINARY LOG STATUS"

    def setting(self, name: str) -> str | None:
        """Raises KeyError for one that is not `ASKED`."""
        if name not in ASKED:
            raise KeyError(f"{name} is not asked of servers")
        return self.variables.get(name)

    def is_on(self, name: str) -> bool:
        return (self.setting(name) or "").upper() in ("1", "ON", "YES", "TRUE")

    def __str__(self) -> str:
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {'.'.join(map(str, self.version))}"


def inspect(session: Session) -> Server:
    """Read flavor, version and settings."""
    names = ",".join(f"'{name}'" for name in sorted(ASKED))
    # SHOW leaves out what a server does not have, where SELECT @@name would fail for all of them.
    found = session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    variables = {str(k).lower(): str(v) for k, v in found}
    text = variables["version"]
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    version = tuple(map(int, numbers.groups())) if numbers else (0, 0, 0)
    flavor = Flavor.MARIADB if "mariadb" in text.lower() else Flavor.MYSQL
    return Server(flavor=flavor, version=version, version_text=text, variables=variables)  # type: ignore[arg-type]


def is_mariadb(session: Session) -> bool:
    return "mariadb" in session.lasting("version", lambda: str(session.value("SELECT VERSION()"))).lower()


def started_at(session: Session) -> int:
    """When the server was started, seconds since the epoch: by the clock that it had then, however that was set since.

    For its uptime is told as the present time less that moment, modulo 2^64 where the clock is behind it. Never too
    early, and over a line that answers within half a second a second too late at the most.
    """
    return session.lasting("started_at", lambda: _started_at(session))


def _started_at(session: Session) -> int:
    found = 0
    for _ in range(_TRIES):
        before = _server_seconds(session)
        uptime = session.row("SHOW GLOBAL STATUS LIKE 'Uptime'") or ("", 0)
        after = _server_seconds(session)
        found = (after - int(uptime[1])) % (1 << 64)
        # Or something stood still in between, and this is remembered.
        if 0 <= after - before <= 1:
            break
    return found


def _server_seconds(session: Session) -> int:
    return int(session.value("SELECT UNIX_TIMESTAMP()"))


def identity_of(session: Session) -> str:
    """`identity` of the server, without reading its settings."""
    # The same parts in the same order as in `identity`: what one of them has noted is compared with the other.
    if not is_mariadb(session):
        return str(session.value("SELECT @@server_uuid"))
    # The global one: MariaDB's server_id can be set for a session.
    names = session.rows("SELECT @@hostname, @@port, @@datadir, @@GLOBAL.server_id")[0]
    return _digest([str(name) for name in names])


def identity(server: Server) -> str:
    """MySQL's server_uuid; MariaDB has none, so what is least likely to be shared."""
    uuid = server.setting("server_uuid")
    if uuid:
        return uuid
    return _digest([server.setting(n) or "" for n in ("hostname", "port", "datadir", "server_id")])


def _digest(parts: list[str]) -> str:
    if not any(parts):
        raise Terminal("The server does not tell who it is.")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:36]


class Xid(NamedTuple):
    """Name of an XA branch; as text what XA COMMIT takes."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


def prepared_branches(session: Session, *, is_mariadb: bool) -> list[Xid]:
    """XA RECOVER. MySQL needs XA_RECOVER_ADMIN."""
    # By default both servers print the names' bytes as if they were text.
    if is_mariadb:
        return [_from_sql(row) for row in session.rows("XA RECOVER FORMAT='SQL'")]
    return [_from_hex(row) for row in session.rows("XA RECOVER CONVERT XID")]


def _from_sql(row: tuple[object, ...]) -> Xid:
    """MariaDB: 'gt1','bq1',7 when all is printable (quotes are not escaped there), else X'677431',X'627131',7."""
    format_id, gtrid_length, bqual_length = (int(str(n)) for n in row[:3])
    data = str(row[3])
    if data.startswith("X"):
        parts = [bytes.fromhex(h) for h in re.findall(r"X'([0-9A-Fa-f]*)'", data)]
        return Xid(format_id, parts[0], parts[1] if len(parts) > 1 else b"")
    second = 1 + gtrid_length + len("','")
    return Xid(format_id, data[1 : 1 + gtrid_length].encode(), data[second : second + bqual_length].encode())


def _from_hex(row: tuple[object, ...]) -> Xid:
    """MySQL: 0x677431627131 with both lengths beside it."""
    raw = bytes.fromhex(str(row[3])[2:])
    cut = int(str(row[1]))
    return Xid(int(str(row[0])), raw[:cut], raw[cut:])


def check_commit_order(session: Session) -> None:
    """MySQL: the setting is dynamic, and with it off a row can be in the log long before it can be read.

    Raises SourceChanged.
    """
    if not is_mariadb(session) and not int(session.value("SELECT @@GLOBAL.binlog_order_commits")):
        raise SourceChanged(
            "binlog_order_commits was switched off while the workflow was under way: what was copied since cannot be "
            "trusted.",
            cure="SET GLOBAL binlog_order_commits=ON, cancel this workflow and start again.",
        )


def out_of_turn(max_write_lock_count: int) -> str:
    """'' where a waiting RENAME goes before writers, as the cut-over needs it; else a sentence on why it may not."""
    if max_write_lock_count >= _FEWEST_LOCKS:
        return ""
    return (
        f"max_write_lock_count is {max_write_lock_count}: the server may let a waiting writer go before the RENAME of "
        "the cut-over, and its write would be lost."
    )
