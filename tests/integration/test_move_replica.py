"""Moves whose rows are read on a replica of the source: what it shows may be old, and catch-up may be past it.

Its workers apply several transactions at a time; XA branches are among them.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox import replicas, servers
from sandbox.databases import create_database
from sandbox.servers import RunningServer
from tests.support import histories, in_memory
from tests.support.flow import paused_at, pauses, wait_reached, wait_until
from tests.support.histories import Writers
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, server_of
from tests.support.private_server import private_server
from vreplication.errors import Refused
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.facts import Verdict
from vreplication.rowcopy import chunker
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import copying, operate
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import make_move_plan
from vreplication.workflows.move_tables.spec import make_move_spec

__all__ = ["_pair_servers", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.timeout(240)]

OTHER = {"mariadb": "mysql", "mysql": "mariadb"}
WORKERS = {"mariadb": {"slave-parallel-threads": 4}, "mysql": {"replica-parallel-workers": 4}}
PLAIN = "CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(40)) COLLATE utf8mb4_unicode_ci"
MANY = "INSERT INTO t SELECT seq.n, seq.n, 'first' FROM (WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n+1 FROM s"
MANY += " WHERE n<400) SELECT n FROM s) seq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A pair whose source has a replica."""

    pair: Pair
    replica: RunningServer
    admin: Session

    @property
    def url(self) -> SourceUrl:
        """Our user is there by replication, with what it may on the source."""
        return replace(self.pair.source.url, port=self.replica.port)

    def thread(self, act: str) -> None:
        """STOP or START what applies."""
        word = "SLAVE" if self.replica.is_mariadb else "REPLICA"
        self.admin.execute_raw(f"{act} {word} SQL_THREAD")

    def level(self) -> None:
        replicas.wait_level(self.pair.source.server, self.replica)


_SERVERS: dict[str, tuple[RunningServer, RunningServer]] = {}


@pytest.fixture(scope="module")
def running() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack
    _SERVERS.clear()


@pytest.fixture(params=["mariadb", "mysql"])
def replicated(
    request: pytest.FixtureRequest, running: contextlib.ExitStack, _pair_servers: None
) -> Iterator[Replicated]:
    """By the flavor of the source; the target is of the other one."""
    flavor = request.param
    if flavor not in _SERVERS:
        _SERVERS[flavor] = _start(flavor, running)
    source, replica = _SERVERS[flavor]
    pair = Pair(
        source=create_database(source, grants="move_source"),
        target=create_database(server_of(OTHER[flavor], "target"), grants="move_target"),
    )
    replicas.wait_level(source, replica)
    try:
        with replica.admin(pair.source.name) as admin:
            yield Replicated(pair=pair, replica=replica, admin=admin)
    finally:
        pair.source.drop()
        pair.target.drop()


def _start(flavor: str, running: contextlib.ExitStack) -> tuple[RunningServer, RunningServer]:
    gtid = replicas.GTID_OPTIONS[flavor]
    more = {"server-id": 101, "log-bin-trust-function-creators": "ON"}
    source = running.enter_context(private_server(flavor, {**gtid, **more}))
    folder = running.enter_context(in_memory.temporary("vreplication-"))
    replica = servers.start(flavor, Path(folder) / flavor, options={**gtid, **WORKERS[flavor], "server-id": 103})
    running.callback(replica.kill)
    replicas.follow(replica, source)
    return source, replica


def test_what_the_replica_shows_late_is_not_taken_for_new(replicated: Replicated, pauses: Path) -> None:
    """It stands still while rows are changed and deleted, and catch-up is past all that when the chunks are opened.

    Without the wait the copy would bring back what was deleted, and only the verification would see it.
    """
    source = replicated.pair.source.admin
    source.execute_raw(PLAIN)
    source.execute_raw(MANY)
    try:
        with paused_at(pauses, "copy.before_open"):
            move = begin(replicated.pair, "t", replica=replicated.url, cutover="manual", chunk_rows=50)
            wait_reached(pauses, "copy.before_open", move)
            replicated.level()
            replicated.thread("STOP")
            source.execute_raw("DELETE FROM t WHERE id % 3 = 0")
            source.execute_raw("UPDATE t SET id=id+1000 WHERE id % 3 = 1")
            move.catch_up()
        wait_until(
            lambda: any("on which the copy reads" in words for words in move.said), f"it does not say: {move.said}"
        )
    finally:
        replicated.thread("START")
    move.wait_for_release()
    move.check_right_at_once()
    assert copied(move) == source.rows("SELECT * FROM t ORDER BY id")
    move.stop.set()
    move.result()


def copied(move: Move) -> list[tuple[object, ...]]:
    return move.pair.target.admin.rows("SELECT * FROM t__vr_new ORDER BY id")


def end_right(move: Move, writers: Writers) -> None:
    move.release()
    move.wait_serving(Side.TARGET, 2)
    assert {int(n) for (n,) in move.pair.target.admin.rows("SELECT n FROM done")} == writers.committed
    wait_until(lambda: not histories.difference(move.pair), histories.difference(move.pair))
    move.stop.set()
    move.result()


def test_writes_beside_a_copy_from_the_replica(replicated: Replicated) -> None:
    pair, seed = replicated.pair, random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    histories.create(pair, random.Random(seed))
    writers = Writers(pair, seed)
    writers.play(60)
    with writers.playing(120):
        move = begin(pair, *histories.TABLES, replica=replicated.url, cutover="manual", chunk_rows=3)
        wait_until(lambda: move.state() is not None, "it does not begin")
        for _ in range(4):
            replicated.thread("STOP")
            writers_done = sum(writer.counted for writer in writers.writers)
            wait_until(
                lambda done=writers_done: sum(w.counted for w in writers.writers) >= min(done + 20, 360),
                "nobody writes",
            )
            replicated.thread("START")
    move.wait_for_release()
    move.check_right_at_once()
    end_right(move, writers)


def test_what_the_replica_alone_holds_is_found_and_read_again_on_the_source(replicated: Replicated) -> None:
    replicated.pair.source.admin.execute_raw(PLAIN)
    replicated.pair.source.admin.execute_raw(MANY)
    replicated.level()
    replicated.admin.execute_raw("SET SESSION sql_log_bin=0")
    replicated.admin.execute_raw("UPDATE t SET v='by hand' WHERE id=7")
    replicated.admin.execute_raw("DELETE FROM t WHERE id=8")
    move = begin(replicated.pair, "t", replica=replicated.url, cutover="manual")
    move.wait_for_release()
    move.release()
    move.wait_serving(Side.TARGET, 2)
    with connect(replicated.pair.target.url) as session:
        assert session.rows("SELECT COUNT(*), SUM(v='first') FROM t") == [(400, 400)]
    move.stop.set()
    move.result()


def test_a_replica_that_stands_still_ends_the_copy_and_the_source_takes_over(
    replicated: Replicated, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunker, "REPLICA_SECONDS", 1.0)
    source = replicated.pair.source
    source.admin.execute_raw(PLAIN)
    source.admin.execute_raw(MANY)
    replicated.level()
    try:
        with paused_at(pauses, "copy.before_open"):
            move = begin(replicated.pair, "t", replica=replicated.url, cutover="manual")
            wait_reached(pauses, "copy.before_open", move)
            replicated.thread("STOP")
            source.admin.execute_raw("UPDATE t SET n=n+1")
        result = move.result()
        assert (result.event, result.exit_code) == ("interrupted", 1)
        assert "has applied nothing" in (result.reason or "")
        with pytest.raises(Refused, match="Replication has stopped"):
            operate.check_resume(replicated.pair.target.url, source.url, move.workflow, replicated.url)
        move.replica = None
        move.start().wait_for_release()
    finally:
        replicated.thread("START")
    move.stop.set()
    move.result()


def test_an_older_attempt_that_wakes_late_does_not_end_the_copy(
    replicated: Replicated, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before it had marked its chunk, and its mark comes over ours; a report that fails ends nothing."""
    monkeypatch.setattr(copying, "_LOOK_SECONDS", 0.1)
    source, genuine = replicated.pair.source.admin, MoveDriver.report
    source.execute_raw(PLAIN)
    source.execute_raw(MANY)
    refused: list[object] = []

    def report(self: MoveDriver, **figures: object) -> None:
        if "waiting_for" in figures and len(refused) < 3:
            refused.append(figures)
            raise ConnectionLost("as a restart of the target has it")
        genuine(self, **figures)

    with paused_at(pauses, "copy.after_open"):
        move = begin(replicated.pair, "t", replica=replicated.url, cutover="manual")
        wait_reached(pauses, "copy.after_open", move)
        monkeypatch.setattr(MoveDriver, "report", report)
        late = "detail=REPLACE(detail, '\"attempt\": ', '\"attempt\": 9')"
        assert source.execute(f"UPDATE _vreplication.stream_marker SET {late} WHERE kind='open'") > 0
        wait_until(lambda: len(refused) == 3, "nothing is reported")
    move.wait_for_release()
    # Else a second crew would have begun beside the first.
    assert not any("as a restart of the target has it" in words for words in move.said), move.said
    assert copied(move) == source.rows("SELECT * FROM t ORDER BY id")
    move.stop.set()
    move.result()
    replicated.thread("STOP")
    try:
        operate.check_resume(replicated.pair.target.url, replicated.pair.source.url, move.workflow, replicated.url)
    finally:
        replicated.thread("START")


def test_a_replica_that_leaves_out_a_schema_is_not_read(
    replicated: Replicated, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told so behind the plan."""
    monkeypatch.setattr(copying, "_LOOK_SECONDS", 60.0)
    monkeypatch.setattr(chunker, "MARK_SECONDS", 1.0)
    replicated.pair.source.admin.execute_raw(PLAIN)
    replicated.pair.source.admin.execute_raw(MANY)
    with paused_at(pauses, "copy.before_open"):
        move = begin(replicated.pair, "t", replica=replicated.url, cutover="manual")
        wait_reached(pauses, "copy.before_open", move)
        ignore(replicated, "_vreplication")
    try:
        result = move.result()
        assert (result.event, result.exit_code) == ("failed", 1)
        assert "does not hold what was written on the source" in (result.reason or "")
    finally:
        ignore(replicated, "")


def ignore(replicated: Replicated, schema: str) -> None:
    replicated.thread("STOP")
    if replicated.replica.is_mariadb:
        replicated.admin.execute_raw("STOP SLAVE")
        replicated.admin.execute_raw(f"SET GLOBAL replicate_ignore_db='{schema}'")
        replicated.admin.execute_raw("START SLAVE")
    else:
        replicated.admin.execute_raw(f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_DB=({schema})")
        replicated.thread("START")


def refusals(replicated: Replicated, url: SourceUrl, *verdicts: Verdict) -> dict[str, str]:
    pair = replicated.pair
    with connect(pair.source.url) as source, connect(pair.target.url) as target, connect(url) as replica:
        made = make_move_plan(source, target, make_move_spec(tables=("t",)), replica)
    wanted = verdicts or (Verdict.REFUSE,)
    return {c.name: c.sentence for c in made.checks if c.name.startswith("replica") and c.verdict in wanted}


def test_replicas_that_are_none(replicated: Replicated) -> None:
    pair = replicated.pair
    pair.source.admin.execute_raw(PLAIN)
    replicated.level()
    assert refusals(replicated, replicated.url) == {}
    assert "is no replica of" in refusals(replicated, pair.source.url)["replica: follows"]
    assert "The replica is M" in refusals(replicated, pair.target.url)["replica: follows"]
    other = "noted" + secrets.token_hex(2)
    ignore(replicated, other)
    assert f"replicate_ignore_db={other}" in refusals(replicated, replicated.url)["replica: follows"]
    ignore(replicated, "")
    replicated.thread("STOP")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1,1,'late')")
    found = refusals(replicated, replicated.url, Verdict.WARN, Verdict.REFUSE)
    assert "has stopped" in found["replica: follows"]
    assert "has not applied" in found["replica: level"]
    replicated.thread("START")
    replicated.admin.execute_raw("SET SESSION sql_log_bin=0")
    for change, words in (
        ("DROP PRIMARY KEY", "lacks the key PRIMARY"),
        ("ADD PRIMARY KEY (id), ENGINE=MyISAM", "is a table of MyISAM"),
        ("ENGINE=InnoDB, MODIFY v VARCHAR(41)", "has other columns there"),
    ):
        replicated.admin.execute_raw(f"ALTER TABLE t {change}")
        assert words in refusals(replicated, replicated.url)["replica: tables"]
