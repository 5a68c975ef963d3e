"""The gate's count, what a blocker says, names in file-name encoding, the watchdog: no server needed."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vreplication.cutover.blockers import METADATA_LOCK, OLD_SNAPSHOT, PREPARED_BRANCH, Blocker, blockers
from vreplication.cutover.filenames import encode
from vreplication.cutover.reasons import Gate, Reason
from vreplication.cutover.sentry import comment
from vreplication.cutover.watchdog import Watchdog
from vreplication.errors import Terminal

REASON = Reason(code="lag", sentence="Catch-up is behind.")
SESSION = Blocker(
    kind=METADATA_LOCK,
    connection_id=42,
    user="app",
    host="10.0.0.1:999",
    age_seconds=61.4,
    statement="SELECT 1 FROM t",
    table="shop.t",
)


def test_gate_opens_after_three_clear_reads_running() -> None:
    reads = iter([[], [], [REASON], [], [], [], []])
    gate = Gate(lambda: list(next(reads)))
    assert [gate.is_open() for _ in range(7)] == [False, False, False, False, False, True, True]


def test_gate_keeps_the_reasons_of_the_last_read() -> None:
    reads = iter([[REASON], []])
    gate = Gate(lambda: list(next(reads)), reads=1)
    assert not gate.is_open()
    assert gate.reasons == [REASON]
    assert gate.is_open()
    assert gate.reasons == []


def test_blocker_says_who_since_when_and_what_to_do() -> None:
    assert str(SESSION) == (
        "connection 42 (app@10.0.0.1:999) holds a lock on shop.t, for 61 s, running 'SELECT 1 FROM t'; "
        "wait for it, or KILL 42."
    )


def test_idle_session_and_old_snapshot() -> None:
    idle = dataclasses.replace(SESSION, kind=OLD_SNAPSHOT, statement="", table="")
    assert str(idle) == (
        "connection 42 (app@10.0.0.1:999) has read a snapshot from before the copy was complete, for 61 s, idle; "
        "wait for it, or KILL 42."
    )


def test_branch_without_a_connection_is_named_by_its_xid() -> None:
    branch = dataclasses.replace(SESSION, kind=PREPARED_BRANCH, connection_id=None, statement="'g1'")
    assert str(branch) == "XA branch 'g1' is prepared and holds a lock on shop.t; XA COMMIT or XA ROLLBACK it."


@dataclasses.dataclass(frozen=True)
class LockOfNoConnection:
    """Asked for the holders of a table's lock it names none; recovered: what XA RECOVER gives."""

    recovered: list[tuple[object, ...]] | None

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        if not sql.startswith("XA RECOVER"):
            return [(None,)]
        if self.recovered is None:
            raise Terminal("not allowed")
        return self.recovered


@pytest.mark.parametrize(
    ("recovered", "named"),
    [([], []), (None, [""]), ([(1, 2, 0, "0x6731")], ["X'6731',X'',1"])],
    ids=["none is prepared", "not allowed to know", "one is prepared"],
)
def test_a_lock_of_no_connection_is_a_branch_only_where_one_may_be_prepared(
    recovered: list[tuple[object, ...]] | None, named: list[str]
) -> None:
    """Or it is that of a connection which came or went while MySQL was asked."""
    session, server = (cast(Any, each) for each in (LockOfNoConnection(recovered), SimpleNamespace(is_mariadb=False)))
    found = blockers(session, server, "shop", "t", own=frozenset())
    assert [(each.kind, each.statement) for each in found] == [(PREPARED_BRANCH, name) for name in named]


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain_1", "plain_1"),
        ("a b", "a@0020b"),
        ("größe", "gr@1i@1je"),
        ("Жж", "@M0@m0"),
        ("ΛΚ", "@6V@8W"),
        ("漢字", "@6f22@5b57"),
        ("Ａⓐ", "@A@@@a"),
        ("t@#$", "t@0040@0023@0024"),
    ],
)
def test_names_as_the_servers_store_them(name: str, encoded: str) -> None:
    assert encode(name) == encoded


def test_sentry_comment_needs_no_escaping() -> None:
    assert not set("'\\") & set(comment("shop.t-1_2"))


class _Spare:
    def __init__(self) -> None:
        self.killed: list[int] = []
        self.is_done = threading.Event()

    def kill(self, connection_id: int) -> None:
        self.killed.append(connection_id)
        if len(self.killed) == 1:
            raise RuntimeError("a victim that cannot be killed does not save the next one")
        self.is_done.set()


@dataclasses.dataclass
class _Victim:
    id: int


def test_watchdog_ends_its_victims_in_order_at_the_deadline() -> None:
    spare = _Spare()
    watchdog = Watchdog(spare, 0.01)  # type: ignore[arg-type]
    with watchdog.started(_Victim(2), _Victim(1)):  # type: ignore[arg-type]
        assert spare.is_done.wait(10)
    assert spare.killed == [2, 1]
    assert watchdog.has_fired
    assert watchdog.remaining_seconds == 0


def test_watchdog_lets_go_in_time() -> None:
    spare = _Spare()
    watchdog = Watchdog(spare, 60)  # type: ignore[arg-type]
    with watchdog.started(_Victim(1)):  # type: ignore[arg-type]
        assert 59 < watchdog.remaining_seconds <= 60
    assert spare.killed == []
    assert not watchdog.has_fired
