"""Connections that are cut on the way (reset, stalled, half-open), each kind of ours in turn: exact, never for ever.

Our read timeouts are shortened, and the pauses between two attempts at the cut-over; nothing else is: a connection
without a timeout would fail the shortening itself.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from live_setup import WORKFLOW, Live

from sandbox import orders
from tests.support import proxy
from tests.support.flow import Run, paused_at, wait_reached, wait_until
from tests.support.proxy import Cut, Manner, Proxy
from vreplication import settings
from vreplication.binlog import wire
from vreplication.engine import driver, replicate
from vreplication.mysql import session as sessions
from vreplication.mysql.url import SourceUrl
from vreplication.planning.spec import Spec
from vreplication.workflows.online_ddl import retrying

pytestmark = pytest.mark.either

PATIENCE_SECONDS = 1.5
BOUND_SECONDS = 90.0
"""Of a whole run, however often it is cut: it is far below any of our own timeouts."""
KINDS = {
    "control": rb"UPDATE \S*workflow\S* SET .*phase",
    "heartbeat": rb"INSERT INTO \S*heartbeat.*driver",
    "beat of catch-up": rb"INSERT INTO \S*gate\b",
    "dump": proxy.DUMP,
    "copy": rb"INSERT IGNORE INTO",
    "landing": rb"UPDATE \S*chunk\S* SET state='landed'",
    "apply": rb"REPLACE INTO \S*orders__vr_new",
    "checkpoint": rb"INSERT INTO \S*checkpoint",
    "verifier": rb"SELECT COUNT\(\*\).*CRC32",
    "marker": rb"INSERT INTO \S*marker\b",
}
BEFORE_THE_COPY: tuple[tuple[bytes, Manner], ...] = (
    (rb"information_schema", "stall"),
    (rb"INSERT INTO \S*workflow\b", "reset"),
    (rb"CREATE TABLE \S*orders__vr_new", "half-open"),
    (rb"ALTER TABLE \S*orders__vr_new", "stall"),
    (rb"INSERT INTO \S*marker\b", "reset"),
    (rb"INSERT INTO \S*split\b", "half-open"),
    (rb"UPDATE \S*workflow\S* SET .*rows_total", "reset"),
)
"""What is said while planning and preparing, in this order; there a lost connection ends the command."""
SWITCH = {
    "LOCK": rb"\x03LOCK TABLES .*orders` WRITE",
    "RENAME": rb"RENAME TABLE",
    "DROP": rb"DROP TABLE \S*orders__vr_old",
    "UNLOCK": rb"UNLOCK TABLES",
}
"""What the two sessions of the cut-over say, in this order."""
CUT_OVER: tuple[tuple[tuple[str, Manner, bool], ...], ...] = (
    (("LOCK", "reset", False), ("LOCK", "stall", True), ("RENAME", "reset", False), ("RENAME", "half-open", True)),
    (("DROP", "stall", False), ("DROP", "half-open", True)),
    (("UNLOCK", "stall", False),),
    (("UNLOCK", "reset", True),),
)
"""Cuts of one attempt at the cut-over after the other: all but the last of each leave the tables as they were."""
STALL_MILLIS = 8_000
"""What an application may wait while the cut-over is cut: the deadline, one second more until the server ends a session
that is silent (docs/cut-over.md), and what a busy machine adds."""


@pytest.fixture(autouse=True)
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is waited for longer than PATIENCE_SECONDS; where nobody has said how long to wait, this fails."""

    def limited(self: object) -> float:
        return min(float(vars(self)["patience"]), PATIENCE_SECONDS)

    def limit(self: object, seconds: float) -> None:
        vars(self)["patience"] = seconds

    monkeypatch.setattr(wire, "READ_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(settings, "LOCK_WAIT_SECONDS", 1)
    monkeypatch.setattr(replicate, "_RETRY_SECONDS", (0.1,))
    monkeypatch.setattr(retrying, "CUTOVER_RETRY_SECONDS", (0.0, 0.5))
    monkeypatch.setattr(sessions.Connection, "_read_timeout", property(limited, limit), raising=False)


@dataclass(slots=True, kw_only=True)
class Cutting:
    """A run behind a proxy, beside an application that is not."""

    live: Live
    proxy: Proxy
    runs: list[Run] = field(default_factory=list)

    def begin(self, *, is_direct: bool = False) -> Run:
        spec = Spec(table="orders", alter=orders.ALTER, workflow=WORKFLOW, chunk_rows=150)
        run = Run(spec).start(self.live.database.url if is_direct else self.proxy.url)
        self.runs.append(run)
        return run

    def complete(self, run: Run, *cuts: Cut) -> None:
        began = time.monotonic()
        result = run.result(BOUND_SECONDS)
        assert result.event == "complete", (result, run.said)
        assert [c.pattern for c in cuts if not c.reached.is_set()] == []
        assert time.monotonic() - began < BOUND_SECONDS
        self.live.prove()

    def end(self) -> None:
        for run in self.runs:
            run.stop.set()
        for run in self.runs:
            run.result(60.0)


@pytest.fixture
def cutting(live: Live) -> Iterator[Cutting]:
    with Proxy(live.database.url) as made:
        cutting = Cutting(live=live, proxy=made)
        try:
            yield cutting
        finally:
            cutting.end()


@pytest.mark.slow
@pytest.mark.parametrize("manner", proxy.MANNERS)
@pytest.mark.in_turn
def test_each_kind_of_connection_is_cut_once(cutting: Cutting, manner: Manner) -> None:
    with paused_at(cutting.live.pauses, "prepare.done"):
        run = cutting.begin()
        wait_reached(cutting.live.pauses, "prepare.done", run)
        cuts = [cutting.proxy.cut(pattern, manner) for pattern in KINDS.values()]
    cutting.complete(run, *cuts)


@pytest.mark.slow
def test_each_step_before_the_copy_is_cut(cutting: Cutting) -> None:
    """The command ends soon, with nothing lost, and the same command goes on or begins again."""
    for pattern, manner in BEFORE_THE_COPY:
        cut = cutting.proxy.cut(pattern, manner)
        ended = cutting.begin().result(BOUND_SECONDS)
        assert (ended.event, ended.exit_code) == ("failed", 1), (pattern, ended)
        assert "connection to the server was lost" in (ended.reason or ""), (pattern, ended)
        assert cut.reached.is_set(), pattern
        cutting.live.silence()
    cutting.complete(cutting.begin())


@pytest.mark.seldom
@pytest.mark.slow
def test_what_is_always_cut_is_given_up(cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in between lets no verification through: nothing gets on, and it does not go round for ever."""
    monkeypatch.setattr(driver, "_OUTAGES", 2)
    cut = cutting.proxy.cut(KINDS["verifier"], "reset", times=1_000)
    run = cutting.begin()
    ended = run.result(BOUND_SECONDS)
    assert (ended.event, ended.exit_code) == ("failed", 1), ended
    assert ended.resume_command == f"vreplication resume {WORKFLOW}"
    assert cut.done > 2
    cutting.complete(cutting.begin(is_direct=True))


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.parametrize(("is_interrupted", "event", "code"), [(False, "failed", 1), (True, "interrupted", 130)])
@pytest.mark.in_turn
def test_a_server_that_stays_away(
    cutting: Cutting, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool, event: str, code: int
) -> None:
    """It is waited for, but not for ever; then the command says how to go on, and that goes on."""
    monkeypatch.setattr(driver, "OUTAGE_SECONDS", 60.0 if is_interrupted else 2.0)
    with paused_at(cutting.live.pauses, "workflow.copied"):
        run = cutting.begin()
        wait_reached(cutting.live.pauses, "workflow.copied", run)
        cutting.proxy.go_away()
    wait_until(lambda: any("Going on as soon as" in line for line in run.said), "it does not say that it waits")
    if is_interrupted:
        run.stop.set()
    ended = run.result(BOUND_SECONDS)
    assert (ended.event, ended.exit_code) == (event, code)
    assert ended.resume_command == f"vreplication resume {WORKFLOW}"
    assert "connection to the server was lost" in (ended.reason or "")
    # What it held looks alive to the server, for some seconds.
    cutting.live.silence()
    cutting.complete(cutting.begin(is_direct=True))


@pytest.mark.slow
@pytest.mark.parametrize("attempts", CUT_OVER, ids=lambda found: " ".join(f"{word} {how}" for word, how, _ in found))
@pytest.mark.in_turn
def test_the_switch_is_cut(cutting: Cutting, attempts: tuple[tuple[str, Manner, bool], ...]) -> None:
    """F20: whatever the connection said, it is found out from the tables; and nobody waits for our lock for long."""
    with paused_at(cutting.live.pauses, "cutover.before_lock"):
        run = cutting.begin()
        wait_reached(cutting.live.pauses, "cutover.before_lock", run)
        cuts = [cutting.proxy.cut(SWITCH[word], manner, is_sent=is_sent) for word, manner, is_sent in attempts]
    cutting.complete(run, *cuts)
    assert cutting.live.workload.report().longest_stall_ms < STALL_MILLIS


@pytest.mark.slow
@pytest.mark.parametrize("point", ["cutover.locked", "cutover.rename_pending", "cutover.sentry_dropped"])
@pytest.mark.in_turn
def test_everything_stalls_in_the_middle_of_the_switch(cutting: Cutting, point: str) -> None:
    """Nobody of ours can let go of anything: the server does."""
    with paused_at(cutting.live.pauses, point):
        run = cutting.begin()
        wait_reached(cutting.live.pauses, point, run)
        cutting.proxy.cut_all("stall")
    cutting.complete(run)
    assert cutting.live.workload.report().longest_stall_ms < STALL_MILLIS


def test_a_server_that_takes_the_connection_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_LOGIN_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = SourceUrl(host="127.0.0.1", port=silent.getsockname()[1], user="u", password="", database="d")
        with pytest.raises(sessions.ConnectionLost, match="timed out"):
            sessions.connect(url)


def test_a_host_that_vanishes_is_noticed(live: Live) -> None:
    """By the kernel, also while a statement runs that may take an hour: within half a minute."""
    with sessions.connect(live.database.url, read_timeout=3600.0) as session:
        connected = session._connection._sock
        idle, interval, count = (
            connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle + interval * count <= 30
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
