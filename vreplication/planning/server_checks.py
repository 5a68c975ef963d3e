"""Checks of the server: is the binary log complete, readable and ours to write through?

What must stay true: a setting under which the log may lack a change, or hold it in a form that we do not read, refuses
(docs/correctness.md, P3); we never change a setting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

from vreplication.mysql.server import Server, out_of_turn, prepared_branches
from vreplication.mysql.session import SqlError
from vreplication.planning.facts import Check, OfServer, looked, ok, refuse, warn
from vreplication.planning.throttle_checks import free_disk, held_back, replica_lag

# MySQL: SHOW REPLICA STATUS and SHOW REPLICAS came with it.
# MariaDB: so did the rights that sql/grants/ names (BINLOG MONITOR and the like).
_OLDEST = {"mariadb": (10, 5, 0), "mysql": (8, 0, 22)}
_DAY = 86_400.0
_FLUSHED = ("1", "3")
"""Values of innodb_flush_log_at_trx_commit; the second is MariaDB's alone."""
_LOGS_ALL = "A replica that logs all changes."
SEE_PRIVILEGES = "The check of privileges says what to grant."


def version(facts: OfServer) -> Check:
    oldest = _OLDEST[facts.server.flavor.value]
    if facts.server.version < oldest:
        return refuse(
            "version",
            f"{facts.server} is older than what we know ({'.'.join(map(str, oldest))}).",
            "Upgrade the server first.",
        )
    return ok("version", f"{facts.server}.")


def binary_log(facts: OfServer) -> Check:
    if not facts.server.is_on("log_bin"):
        return refuse("binary log", "The binary log is off.", "Start the server with log_bin and server_id.")
    return ok("binary log", "The binary log is on.")


def log_format(facts: OfServer) -> Check:
    # The server's own value: a session that has another one is found out by what it writes into the log
    # (docs/limits.md).
    found = facts.server.setting("binlog_format") or "ROW"
    if found.upper() != "ROW":
        return refuse(
            "log format", f"binlog_format is {found}.", "SET GLOBAL binlog_format=ROW and reconnect all clients."
        )
    return ok("log format", "Changes are logged as rows.")


def is_unwritable(server: Server) -> bool:
    """Not even our own schema can be written then, which is what proves an ALTER that the server does in place: both
    servers refuse to log a statement of a READ COMMITTED session.
    """
    return server.is_on("log_bin") and (server.setting("binlog_format") or "").upper() == "STATEMENT"


def row_image(facts: OfServer) -> Check:
    found = facts.server.setting("binlog_row_image") or "FULL"
    if found.upper() != "FULL":
        return refuse(
            "row image",
            f"binlog_row_image is {found}: rows are logged without all of their columns.",
            "SET GLOBAL binlog_row_image=FULL and reconnect all clients.",
        )
    return ok("row image", "Rows are logged whole.")


def partial_json(facts: OfServer) -> Check:
    found = facts.server.setting("binlog_row_value_options") or ""
    if found:
        return refuse(
            "partial JSON",
            f"binlog_row_value_options is {found}: JSON values are logged as differences.",
            "SET GLOBAL binlog_row_value_options='' and reconnect all clients.",
        )
    return ok("partial JSON", "JSON values are logged whole.")


def commit_order(facts: OfServer) -> Check:
    found = facts.server.setting("binlog_order_commits")
    # R2, F1: "opened" and the markers count on it. It is dynamic, so it is watched to the end; MariaDB has no such
    # setting.
    if found is not None and not facts.server.is_on("binlog_order_commits"):
        return refuse(
            "commit order",
            "binlog_order_commits is off: what is in the log may not be visible yet.",
            "SET GLOBAL binlog_order_commits=ON, and leave it on until the workflow ends.",
        )
    return ok("commit order", "Commits become visible in the order of the log.")


def lock_order(facts: OfServer) -> Check:
    # After so many strong locks the server lets weaker ones go first: a writer before RENAME, whose write would be
    # lost.
    if unusual := out_of_turn(int(facts.server.setting("max_write_lock_count") or sys.maxsize)):
        return refuse("lock order", unusual, "SET GLOBAL max_write_lock_count=DEFAULT until the workflow has ended.")
    return ok("lock order", "RENAME goes before waiting writers.")


def log_filters(facts: OfServer) -> Check:
    statement = facts.server.log_status
    try:
        row = (facts.session.named_rows(statement) or [{}])[0]
    except SqlError as error:
        return refuse("log filters", f"{statement} is refused: {error.message}.", SEE_PRIVILEGES)
    found = [f"{name}={row[name]}" for name in ("binlog_do_db", "binlog_ignore_db") if row.get(name)]
    if found:
        # A statement goes by the session's default schema, whatever schema it names: TRUNCATE, say.
        return refuse(
            "log filters",
            f"{' and '.join(found)}: what sessions in other schemas do to the table may not be in the binary log.",
            "Take the filter out of the server's configuration and restart it.",
        )
    return ok("log filters", "No filter keeps anything out of the log.")


def replica(facts: OfServer) -> Check:
    statement = "SHOW ALL SLAVES STATUS" if facts.server.is_mariadb else "SHOW REPLICA STATUS"
    try:
        is_replica = bool(facts.session.rows(statement))
    except SqlError as error:
        return refuse("replica", f"{statement} is refused: {error.message}.", SEE_PRIVILEGES)
    # Without it what the replica applies is in no log of its own, and catch-up would not see it.
    logs_all = facts.server.is_on("log_slave_updates") or facts.server.is_on("log_replica_updates")
    if is_replica and not logs_all:
        return refuse(
            "replica",
            "The server is a replica and does not log what it replicates (log_slave_updates is off).",
            "Run against the primary, or start this server with log_slave_updates.",
        )
    return ok("replica", _LOGS_ALL if is_replica else "The server is no replica.")


def altered_replica(facts: OfServer) -> Check:
    """A feed may read a replica. Who alters one alone, as gh-ost may be pointed at a replica, is told what that is."""
    found = replica(facts)
    if found.sentence != _LOGS_ALL:
        return found
    return warn(
        found.name,
        "The server is a replica: the change comes to its own replicas and not to its primary, "
        "whose writes it goes on applying to the new definition.",
        "Run against the primary, unless that is what you want, or the two replicate from each other.",
    )


def writable(facts: OfServer) -> Check:
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if facts.server.is_on(name):
            return refuse("writable", f"The server is read-only ({name}).", "Run against the primary.")
    return ok("writable", "The server takes writes.")


def cluster(facts: OfServer) -> Check:
    if facts.server.is_on("wsrep_on"):
        return refuse(
            "cluster",
            "The server is a Galera node (wsrep_on): LOCK TABLES does not hold on the other nodes.",
            "Use the cluster's own rolling schema upgrade.",
        )
    if (facts.server.setting("group_replication_single_primary_mode") or "ON").upper() in ("OFF", "0"):
        return refuse(
            "cluster",
            "The server's group has several primaries (group_replication_single_primary_mode is OFF): LOCK TABLES does"
            " not hold on the others.",
            "SELECT group_replication_switch_to_single_primary_mode(); until the workflow has ended.",
        )
    return ok("cluster", "No cluster in which others write, too.")


def places(facts: OfServer) -> Check:
    """By GTID where every transaction has one; MariaDB always gives them out."""
    if facts.server.is_mariadb or (facts.server.setting("gtid_mode") or "").upper() == "ON":
        return ok("places in the log", "By GTID: the workflow may go on on a promoted replica of this server.")
    return ok(
        "places in the log",
        f"By file and position (gtid_mode is {facts.server.setting('gtid_mode') or 'OFF'}): "
        "the workflow ends if this server is lost.",
    )


def retention(facts: OfServer) -> Check:
    seconds = float(facts.server.setting("binlog_expire_logs_seconds") or 0)
    seconds = seconds or float(facts.server.setting("expire_logs_days") or 0) * _DAY
    # 0 is for ever, on both servers.
    if 0 < seconds < _DAY:
        return warn(
            "log retention",
            f"Binary logs are purged after {seconds / 3600:.1f} hours; a workflow paused for longer cannot go on.",
            "Raise binlog_expire_logs_seconds for the time of the workflow.",
        )
    kept = "until they are purged by hand" if not seconds else f"for {seconds / _DAY:.0f} days"
    return ok("log retention", f"Binary logs are kept {kept}.")


def prepared(facts: OfServer) -> Check:
    try:
        found = prepared_branches(facts.session, is_mariadb=facts.server.is_mariadb)
    except SqlError as error:
        return refuse("prepared transactions", f"XA RECOVER is refused: {error.message}.", SEE_PRIVILEGES)
    # No refusal: what was prepared before the start marker is in neither stream, so the preparation waits for each
    # branch to end (F10).
    if found:
        return warn(
            "prepared transactions",
            f"{len(found)} XA transactions are prepared; the workflow starts when they have ended"
            f" and waits at most {facts.spec.xa_wait_seconds:.0f} s.",
            "Commit or roll back the ones that XA RECOVER lists.",
        )
    return ok("prepared transactions", "No XA transaction is prepared.")


def compression(facts: OfServer) -> Check:
    names = ("binlog_transaction_compression", "log_bin_compress")
    on = [name for name in names if facts.server.is_on(name)]
    return ok("compression", f"{on[0]} is on; we read compressed logs." if on else "The log is not compressed.")


def crash(facts: OfServer) -> Check:
    """No refusal: what is lost is compared or copied again, or the workflow ends and says so."""
    flush, log = facts.server.setting("innodb_flush_log_at_trx_commit"), facts.server.setting("sync_binlog")
    if flush in _FLUSHED and log == "1":
        return ok("crash", "Commits and the log are on the disk when they return.")
    sentence = (
        f"innodb_flush_log_at_trx_commit is {flush} and sync_binlog {log}: a crash of the whole machine may take the"
        " last commits, or the end of the log. Rows are compared again then, or the workflow ends and begins again."
    )
    return ok("crash", sentence)


_ALL: tuple[Callable[[OfServer], Check], ...] = (
    version,
    binary_log,
    log_format,
    row_image,
    partial_json,
    commit_order,
    lock_order,
    log_filters,
    compression,
    crash,
    places,
    retention,
    replica,
    writable,
    cluster,
    prepared,
    held_back,
    replica_lag,
    free_disk,
)
OF_ALTER = tuple(altered_replica if each is replica else each for each in _ALL)


def run(facts: OfServer, checks: tuple[Callable[[OfServer], Check], ...] = _ALL) -> Iterator[Check]:
    """All of them, unless some are named; one that cannot be made refuses."""
    return (looked(check.__name__.replace("_", " "), partial(check, facts)) for check in checks)
