"""Settings that refuse, grants that are read, words of a spec: no server needed."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest

import vreplication
from vreplication.errors import Refused
from vreplication.mysql.disk import Disk, size
from vreplication.mysql.server import ASKED, Flavor, Server
from vreplication.mysql.session import ConnectionLost, LockWait, Session
from vreplication.mysql.url import parse
from vreplication.planning import server_checks, space, strategy, table_checks, throttle_checks
from vreplication.planning.checks import copy_path_reason, holds_counter
from vreplication.planning.facts import Check, Facts, Verdict, looked
from vreplication.planning.privileges import missing, parse_grants
from vreplication.planning.spec import Spec, make_spec, seconds_of, split_table
from vreplication.schema.alter import AlterClauses
from vreplication.schema.model import Column, Table

GOOD = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_order_commits": "ON"}


def server(flavor: Flavor = Flavor.MYSQL, version: tuple[int, int, int] = (9, 7, 4), **variables: str) -> Server:
    return Server(flavor=flavor, version=version, version_text="", variables={**GOOD, **variables})


def test_every_setting_that_is_wanted_is_asked() -> None:
    """What is not asked is a KeyError, which a user must not be the first to see."""
    package = Path(vreplication.__file__).parent
    calls = [n for p in package.rglob("*.py") for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.Call)]
    wanted = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("setting", "is_on")
        and isinstance(call.args[0], ast.Constant)
    }
    assert len(wanted) > 10
    assert wanted - ASKED == set()


def facts(on: Server, *, counts: bool = False, path: str = "server") -> Facts:
    column = Column(
        name="id",
        ordinal=1,
        data_type="int",
        column_type="int",
        is_nullable=False,
        is_auto_increment=counts,
    )
    table = Table(schema="s", name="t", engine="InnoDB", columns=(column,), keys=(), create_sql="")
    return Facts(
        session=cast(Session, None),
        server=on,
        spec=Spec(table="t", alter="FORCE"),
        source=table,
        clauses=AlterClauses(text="FORCE"),
        target=table,
        mapping=None,
        copy_path=path,
    )


class Answering:
    """In a session's place: every statement has these rows."""

    url = parse("mysql://u@127.0.0.1/s")

    def __init__(self, *rows: tuple[object, ...]) -> None:
        self.answer = list(rows)
        self.asked: list[str] = []

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        self.asked.append(sql)
        return self.answer


@pytest.mark.parametrize(("flavor", "statement"), [(Flavor.MARIADB, "SHOW ALL SLAVES"), (Flavor.MYSQL, "SHOW REPLICA")])
@pytest.mark.parametrize(
    ("status", "variables", "verdict"),
    [
        ((), {}, "ok"),
        ((("x",),), {}, "refuse"),
        ((("x",),), {"log_slave_updates": "OFF"}, "refuse"),
        ((("x",),), {"log_slave_updates": "ON"}, "ok"),
        ((("x",),), {"log_replica_updates": "ON"}, "ok"),
    ],
)
def test_replicas(
    flavor: Flavor, statement: str, status: tuple[tuple[object]], variables: dict[str, str], verdict: str
) -> None:
    session = Answering(*status)
    on = replace(facts(server(flavor, **variables)), session=cast(Session, session))
    found = server_checks.replica(on)
    assert found.verdict == verdict
    assert session.asked[0].startswith(statement)
    assert verdict == "ok" or ("log_slave_updates" in found.sentence and "primary" in found.cure)
    altered = server_checks.altered_replica(on)
    assert altered == found or (verdict == "ok" and status and "not to its primary" in altered.sentence), altered
    assert altered.verdict == ("warn" if status and verdict == "ok" else verdict)


KIB = 1 << 10


@pytest.mark.parametrize(
    ("log_folder", "free", "verdict", "said"),
    [
        ("data", {"data": 329 * KIB}, "refuse", "329 KiB are free"),
        ("data", {"data": 330 * KIB}, "ok", "330 KiB are free"),
        ("logs", {"data": 219 * KIB, "logs": 900 * KIB}, "refuse", "219 KiB are free"),
        ("logs", {"data": 900 * KIB, "logs": 109 * KIB}, "refuse", "109 KiB are free"),
        ("logs", {"data": 220 * KIB, "logs": 110 * KIB}, "ok", "KiB are free"),
        ("beside", {"data": 329 * KIB, "beside": 329 * KIB}, "refuse", "329 KiB are free"),
        ("beside", {"data": 330 * KIB, "beside": 330 * KIB}, "ok", "330 KiB are free"),
        ("data", {}, "ok", "cannot be seen"),
    ],
)
def test_disk(monkeypatch: pytest.MonkeyPatch, log_folder: str, free: dict[str, int], verdict: str, said: str) -> None:
    """Copy and log each on a disk of their own, or both on one; "beside" is another folder on that of "data"."""
    paths = ("data", log_folder) if free else ()
    disks = tuple(Disk(path=p, device={"logs": "2"}.get(p, "1"), free=free[p]) for p in paths)
    monkeypatch.setattr("vreplication.mysql.disk.disks", lambda _: disks)
    on = facts(server())
    found = space.check(replace(on, source=replace(on.source, data_bytes=100 * KIB, index_bytes=100 * KIB)))
    assert found.verdict == verdict
    assert "The copy needs about 220 KiB and the binary log about 110 KiB" in found.sentence
    assert said in found.sentence
    assert bool(found.cure) is (verdict == "refuse")


@pytest.mark.parametrize(
    "options",
    [
        "ENGINE=InnoDB DATA DIRECTORY='/data/' COMMENT='it''s'",
        "ENGINE=InnoDB /*!50100 PARTITION BY HASH (`id`) (PARTITION p0 DATA DIRECTORY = '/data' ENGINE = InnoDB) */",
    ],
)
def test_data_directory_is_refused(options: str) -> None:
    on = facts(server())
    table = replace(on.source, create_sql=f"CREATE TABLE `t` (\n  `id` int NOT NULL COMMENT 'x)'\n) {options}")
    found = table_checks.features(replace(on, source=table))
    assert found.verdict is Verdict.REFUSE
    assert "DATA DIRECTORY" in found.sentence


@pytest.mark.parametrize(
    ("check", "variables", "verdict"),
    [
        (server_checks.binary_log, {}, "ok"),
        (server_checks.binary_log, {"log_bin": "OFF"}, "refuse"),
        (server_checks.log_format, {}, "ok"),
        (server_checks.log_format, {"binlog_format": "MIXED"}, "refuse"),
        (server_checks.log_format, {"binlog_format": "STATEMENT"}, "refuse"),
        (server_checks.row_image, {}, "ok"),
        (server_checks.row_image, {"binlog_row_image": "NOBLOB"}, "refuse"),
        (server_checks.row_image, {"binlog_row_image": "MINIMAL"}, "refuse"),
        (server_checks.row_image, {"binlog_row_image": "FULL_NODUP"}, "refuse"),
        (server_checks.partial_json, {}, "ok"),
        (server_checks.partial_json, {"binlog_row_value_options": "PARTIAL_JSON"}, "refuse"),
        (server_checks.commit_order, {}, "ok"),
        (server_checks.lock_order, {}, "ok"),
        (server_checks.lock_order, {"max_write_lock_count": "18446744073709551615"}, "ok"),
        (server_checks.lock_order, {"max_write_lock_count": "1000"}, "refuse"),
        (server_checks.commit_order, {"binlog_order_commits": "OFF"}, "refuse"),
        (server_checks.writable, {}, "ok"),
        (server_checks.writable, {"read_only": "ON"}, "refuse"),
        (server_checks.writable, {"super_read_only": "1"}, "refuse"),
        (server_checks.cluster, {}, "ok"),
        (server_checks.cluster, {"wsrep_on": "ON"}, "refuse"),
        (server_checks.cluster, {"group_replication_single_primary_mode": "ON"}, "ok"),
        (server_checks.cluster, {"group_replication_single_primary_mode": "OFF"}, "refuse"),
        (server_checks.retention, {"binlog_expire_logs_seconds": "3600"}, "warn"),
        (server_checks.retention, {"expire_logs_days": "0.5"}, "warn"),
        (server_checks.retention, {"binlog_expire_logs_seconds": "2592000"}, "ok"),
        (server_checks.compression, {"binlog_transaction_compression": "ON"}, "ok"),
    ],
)
def test_settings(check: object, variables: dict[str, str], verdict: str) -> None:
    found: Check = check(facts(server(**variables)))  # type: ignore[operator]
    assert found.verdict == verdict
    assert found.sentence.endswith(".")
    assert bool(found.cure) == (verdict != "ok")


def test_an_unknown_setting_of_the_other_flavor_is_no_reason_to_refuse() -> None:
    maria = replace(server(Flavor.MARIADB, (10, 11, 19)), variables={"log_bin": "ON", "binlog_format": "ROW"})
    assert server_checks.commit_order(facts(maria)).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("flavor", "version", "statement"),
    [
        (Flavor.MYSQL, (8, 0, 46), "SHOW MASTER STATUS"),
        (Flavor.MYSQL, (8, 4, 11), "SHOW BINARY LOG STATUS"),
        (Flavor.MARIADB, (11, 8, 9), "SHOW MASTER STATUS"),
    ],
)
def test_filters_of_the_log_are_asked_for_as_the_server_knows_it(
    flavor: Flavor, version: tuple[int, int, int], statement: str
) -> None:
    """MySQL 8.0 does not know the new name, and 8.4 not the old one."""
    asked = MagicMock()
    asked.named_rows.return_value = [{"binlog_ignore_db": "x"}]
    found = server_checks.log_filters(replace(facts(server(flavor, version)), session=asked))
    asked.named_rows.assert_called_once_with(statement)
    assert found.verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    ("flush", "log", "said"),
    [("1", "1", "are on the disk"), ("3", "1", "are on the disk"), ("1", "0", "sync_binlog 0:")],
)
def test_what_a_crash_of_the_machine_may_take_is_said(flush: str, log: str, said: str) -> None:
    """MariaDB's defaults are among them, so it is no refusal, and nothing that a doctor would find."""
    found = server_checks.crash(facts(server(innodb_flush_log_at_trx_commit=flush, sync_binlog=log)))
    assert found.verdict is Verdict.OK
    assert said in found.sentence


def test_how_places_are_told() -> None:
    by_gtid = [facts(server(gtid_mode="ON")), facts(server(Flavor.MARIADB, (10, 11, 19)))]
    assert all(server_checks.places(f).sentence.startswith("By GTID") for f in by_gtid)
    for mode in ("OFF", "ON_PERMISSIVE", "OFF_PERMISSIVE"):
        found = server_checks.places(facts(server(gtid_mode=mode)))
        assert (found.verdict, mode in found.sentence) == (Verdict.OK, True)
        assert found.sentence.startswith("By file and position")


def test_old_servers_are_refused() -> None:
    assert server_checks.version(facts(server(version=(8, 0, 21)))).verdict is Verdict.REFUSE
    assert server_checks.version(facts(server(Flavor.MARIADB, (10, 4, 30)))).verdict is Verdict.REFUSE


@pytest.mark.parametrize(("mode", "counts", "holds"), [("1", True, True), ("2", True, False), ("1", False, False)])
def test_who_holds_the_counter(mode: str, counts: bool, holds: bool) -> None:
    found = facts(server(innodb_autoinc_lock_mode=mode), counts=counts)
    assert holds_counter(found) is holds
    assert ("by turns" in copy_path_reason(found)) is holds


GRANTS = [
    "GRANT PROCESS, REPLICATION CLIENT ON *.* TO `u`@`%`",
    "GRANT SELECT (a, b), INSERT, LOCK TABLES ON `shop\\_1`.* TO `u`@`%` WITH GRANT OPTION",
    "GRANT SELECT ON `app%`.* TO `u`@`%`",
    "GRANT `role`@`%` TO `u`@`%`",
    "GRANT PROXY ON ``@`%` TO `u`@`%`",
    "GRANT SELECT ON `performance_schema`.`threads` TO `u`@`%`",
]


@pytest.mark.parametrize(
    ("wanted", "schema", "table", "lacks"),
    [
        ({"SELECT", "INSERT"}, "shop_1", "*", []),
        ({"SELECT"}, "shopx1", "*", ["SELECT"]),
        ({"SELECT", "DROP"}, "app7", "*", ["DROP"]),
        ({"PROCESS", "BINLOG MONITOR"}, "*", "*", []),
        ({"PROCESS"}, "shop_1", "*", []),
        ({"SELECT"}, "*", "*", ["SELECT"]),
        ({"SELECT"}, "performance_schema", "threads", []),
        ({"SELECT"}, "performance_schema", "*", ["SELECT"]),
    ],
)
def test_grants_are_read(wanted: set[str], schema: str, table: str, lacks: list[str]) -> None:
    assert missing(parse_grants(GRANTS), frozenset(wanted), schema, table) == lacks


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        # Taken back for the schema (partial_revokes): without TRIGGER triggers are hidden, and would be lost.
        (["GRANT SELECT, TRIGGER ON *.* TO `u`@`%`", "REVOKE TRIGGER ON `a_b`.* FROM `u`@`%`"], ["TRIGGER"]),
        (["GRANT SELECT, TRIGGER ON *.* TO `u`@`%`", "REVOKE TRIGGER ON `axb`.* FROM `u`@`%`"], []),
        # The server takes the most specific one alone.
        (["GRANT SELECT ON `a\\_b`.* TO `u`@`%`", "GRANT SELECT, TRIGGER ON `a%`.* TO `u`@`%`"], ["TRIGGER"]),
        (["GRANT SELECT ON `a%`.* TO `u`@`%`", "GRANT SELECT, TRIGGER ON `%`.* TO `u`@`%`"], ["TRIGGER"]),
        (["GRANT SELECT, TRIGGER ON `a\\_b`.* TO `u`@`%`", "GRANT SELECT ON `a%`.* TO `u`@`%`"], []),
        (["GRANT SELECT ON `a_b`.* TO `u`@`%`", "GRANT SELECT, TRIGGER ON `a%`.* TO `u`@`%`"], ["TRIGGER"]),
        # A role has its own.
        (["GRANT SELECT ON `a\\_b`.* TO `u`@`%`", "GRANT TRIGGER ON `a%`.* TO `r`"], []),
    ],
)
def test_grants_that_the_server_does_not_add_up(lines: list[str], lacks: list[str]) -> None:
    assert missing(parse_grants(lines), frozenset({"SELECT", "TRIGGER"}), "a_b") == lacks


@pytest.mark.parametrize(("is_mariadb", "lacks"), [(True, ["TRIGGER"]), (False, [])])
def test_of_two_patterns_each_server_takes_another_one(is_mariadb: bool, lacks: list[str]) -> None:
    lines = ["GRANT SELECT ON `app_prod`.* TO `u`@`%`", "GRANT ALL PRIVILEGES ON `app\\_%`.* TO `u`@`%`"]
    grants = parse_grants(lines, is_mariadb=is_mariadb)
    assert missing(grants, frozenset({"SELECT", "TRIGGER"}), "app_prod") == lacks


def test_all_privileges_are_all() -> None:
    grants = parse_grants(["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"])
    assert missing(grants, frozenset({"SELECT", "XA_RECOVER_ADMIN"}), "*") == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("d", "t")),
        ("s.t", ("s", "t")),
        ("`a.b`", ("d", "a.b")),
        ("`a``b`.`c`", ("a`b", "c")),
        ("s.`t 1`", ("s", "t 1")),
    ],
)
def test_table_names(text: str, parts: tuple[str, str]) -> None:
    assert split_table(text, "d") == parts


@pytest.mark.parametrize("text", ["a.b.c", "`a", ".t", "s.", "`a`b", "a\U0001f600", "s.`\U0001f600`"])
def test_wrong_table_names(text: str) -> None:
    with pytest.raises(Refused):
        split_table(text, "d")


@pytest.mark.parametrize(
    "given",
    [
        {"table": "", "alter": "x"},
        {"table": "t", "alter": "x", "spark_master": "local[x]"},
        {"table": "t", "alter": "x", "spark_master": "local[0]"},
        {"table": "t", "alter": " "},
        {"table": "t", "alter": "x", "chunk_rows": 0},
        {"table": "t", "alter": "x", "chunk_rows": 65_536},
        {"table": "t", "alter": "x", "cutover": "later"},
        {"table": "t", "alter": "x", "workflow": "-no-"},
        {"table": "t", "alter": "x", "unknown": 1},
    ],
)
def test_wrong_specs_are_one_sentence(given: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        make_spec(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["24", "h", "0h", "1.5h", "366d", "-1h", "1h 30m", ""])
def test_a_time_to_revert_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(Refused, match="write it as 90m, 24h or 7d"):
        make_spec(table="t", alter="ADD x INT", revert_window=words)
    assert [seconds_of(each) for each in ("90m", "24H", "7d")] == [5_400, 86_400, 604_800]


def test_a_spec_survives_json() -> None:
    spec = make_spec(table="s.t", alter="ADD x INT", workflow="w-1", chunk_rows=10, copy_path=None)
    assert Spec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.copy_path == "auto"


def test_sizes_in_words() -> None:
    assert [size(n) for n in (0, 1023, 2048, 5 << 30, 3 << 40)] == ["0 B", "1023 B", "2 KiB", "5 GiB", "3 TiB"]


def test_a_lost_connection_is_no_verdict_on_the_table() -> None:
    def away() -> Check:
        raise ConnectionLost("The connection to the server was lost.")

    def locked() -> Check:
        raise LockWait("Somebody holds a lock.")

    with pytest.raises(ConnectionLost):
        looked("space", away)
    assert looked("space", locked).verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    ("asked", "is_so"),
    [
        ({"alter": "ADD COLUMN x INT"}, False),
        ({"alter": "MODIFY a BIGINT, DROP INDEX i"}, False),
        ({"alter": "ADD COLUMN `add index` INT"}, False),
        ({"alter": "ADD COLUMN x INT, ADD UNIQUE (x)"}, True),
        ({"alter": "engine=InnoDB"}, True),
        ({"alter": "ADD COLUMN x INT", "strategy": "online"}, True),
        ({"alter": "ADD COLUMN x INT", "revert_window": "1h"}, True),
        ({"alter": "ADD INDEX (a)", "strategy": "inplace"}, False),
    ],
)
def test_what_is_copied_for_certain_has_spark_started_at_once(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], is_so: bool
) -> None:
    monkeypatch.delenv(strategy.AUTO_VARIABLE, raising=False)
    assert strategy.is_surely_online(make_spec(table="t", **asked)) is is_so


def test_replicas_whose_lag_counts_for_nothing_are_refused_while_it_runs() -> None:
    """Before any server is asked; that there is no limit any more is no reason to refuse another change."""
    asked = make_spec(table="t", alter="ADD x INT", lag_replicas="r1:3306")
    with pytest.raises(Refused, match="--lag-replicas says whose lag counts, but no lag is too much"):
        throttle_checks.demand(MagicMock(), asked, {"lag_replicas"})
    throttle_checks.demand(MagicMock(), asked, {"max_lag"})
