"""The source of a feed dies while the feed is away, a replica is promoted, and the feed goes on there by GTID.

What must stay true: the new server's log, which has all of both times, is what the topic holds, each change once; a
server that lacks what was sent, or holds it in another order, is refused before anything is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from sandbox import replicas
from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.integration.test_feed_producer import Killer, kill  # noqa: F401
from tests.resume.test_failover import _one_more, purge
from tests.support import feeds
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.private_server import private_server
from tests.support.promoted import Promoting
from tests.support.running_feed import check_numbers, content, logged, make_tables, sent, write_history
from vreplication.binlog.events import Position
from vreplication.engine.result import Result
from vreplication.errors import Refused, Transient
from vreplication.feed import failover
from vreplication.feed import feed as feed_module
from vreplication.feed import producer as producer_module
from vreplication.feed.address import parse
from vreplication.feed.check import check
from vreplication.feed.messages import Kind
from vreplication.feed.progress import Progress
from vreplication.feed.running import read_progress
from vreplication.feed.terms import Feed
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import SqlError, connect
from vreplication.state import journal, workflows
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.slow
KEPT, DROPPED = "X'6b00ff',X'01',7", "X'64',X'',1"


@dataclass(slots=True, kw_only=True)
class Scene:
    """A feed of one source. `database` is where the application is at home now."""

    promoting: Promoting
    database: Database
    sink: str
    id: str = field(default_factory=lambda: f"f{secrets.token_hex(4)}")
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    result: Result | None = None

    def begin(self, **more: Any) -> None:
        asked = {"sink": self.sink, "workflow": self.id, "partitions": 2, "dispatch": "index-value", **more}
        spec = make_feed_spec(**asked, commit_interval=50)
        self._start(lambda: feeding.run(spec, (self.database.url,), stop=self.stop, notify=lambda text: None))

    def resume(self) -> None:
        urls = (self.database.url,)
        self._start(lambda: feeding.resume(urls, self.id, "", stop=self.stop, notify=lambda text: None))

    def _start(self, act: Callable[[], Result | None]) -> None:
        def run() -> None:
            self.result = act()

        self.stop.clear()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        if self.thread:
            self.thread.join(60)

    def end_in_the_midst(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a transaction, of which a part was sent then."""
        monkeypatch.setattr(feed_module, "_MOST_ROWS", 3)
        monkeypatch.setattr(producer_module, "reach", lambda point: self.stop.set() if self._is_half_sent() else None)
        rows = ",".join(f"({number},'big',1)" for number in range(300, 310))
        self.database.admin.execute_raw(f"INSERT INTO t VALUES {rows}")
        wait_until(lambda: self.result is not None, "the feed does not end")
        assert self._is_half_sent()

    def _is_half_sent(self) -> bool:
        found = self.read()
        return found is not None and found.sources[0].inside is not None

    @property
    def feed(self) -> Feed:
        with connect(self.database.url) as session:
            spec = feeding.resumed(session, workflows.load(session, self.id))
        return feeding.feed_of(spec, (self.database.url,), "")

    def progress(self) -> Progress:
        found = self.read()
        assert found is not None
        return found

    def read(self) -> Progress | None:
        with contextlib.suppress(Transient):
            return read_progress(parse(self.sink), self.id)
        return None

    def wait_sent(self) -> None:
        """All that is in the log of the server by now."""
        end, server = feeds.here(self.database), identity_of(self.database.admin)
        wait_until(lambda: self.result or self._is_behind(server, end), "the feed does not come on")
        assert self.result is None, self.result

    def _is_behind(self, server: str, end: Position) -> bool:
        found = self.read()
        return found is not None and found.sources[0].source == server and _place(found) >= end

    def fail_over(self) -> None:
        self.database.close()
        self.promoting.fail_over()
        self.database = dataclasses.replace(self.database, server=self.promoting.source, _admin=None)

    def turn_round(self) -> None:
        """The source replicates from its replica, too, and takes writes."""
        replicas.follow(self.promoting.source, self.promoting.replica)

    def take_over(self) -> None:
        """The replica is the source now."""
        self.database.close()
        both = self.promoting
        replicas.wait_level(both.source, both.replica)
        replicas.promote(both.replica)
        both.source, both.replica = both.replica, both.source
        self.database = dataclasses.replace(self.database, server=both.source, _admin=None)

    def prepare(self, xid: str, statement: str) -> None:
        """A branch that outlives its connection."""
        with self.database.server.admin(self.database.name) as session:
            for each in (f"XA START {xid}", statement, f"XA END {xid}", f"XA PREPARE {xid}"):
                session.execute_raw(each)

    def finish(self, statement: str) -> None:
        def is_taken() -> bool:
            try:
                self.database.admin.execute_raw(statement)
            except SqlError:
                return False
            return True

        wait_until(is_taken, f"{statement} is not taken")

    def refusal(self, progress: Progress | None = None) -> str:
        with pytest.raises(Refused) as refused:
            failover.moved(progress or self.progress(), [self.database.admin])
        return str(refused.value)


def _place(progress: Progress) -> Position:
    return Position.parse(progress.sources[0].position)


@pytest.fixture
def scene(promoting: Promoting, kafka: Cluster) -> Iterator[Scene]:
    for server in (promoting.source, promoting.replica):
        with server.admin() as session:
            session.execute_raw("SET GLOBAL binlog_row_metadata=FULL")
    database = create_database(promoting.source, grants="feed_source")
    made = Scene(promoting=promoting, database=database, sink=f"kafka://{kafka.bootstrap}/{database.name}")
    try:
        yield made
    finally:
        made.end()
        made.database.drop()


def test_a_source_that_becomes_a_replica_is_written_to_no_more(scene: Scene) -> None:
    """The former process is still there, and a scheduler would start it again: either would end that replication.

    The first in this file: others leave numbers behind that a strict replica refuses.
    """
    make_tables(scene.database, "t")
    scene.begin()
    wait_until(lambda: scene.read() is not None, "the feed does not begin")
    former, url = scene.promoting.source, scene.database.url
    scene.turn_round()
    wait_until(lambda: scene.result is not None, "the feed goes on there")
    assert scene.result is not None
    assert scene.result.event == "refused"
    assert "replicates from" in str(scene.result.reason)
    with pytest.raises(Refused, match="replicates from"):
        feeding.resume((url,), scene.id, "", stop=scene.stop, notify=lambda text: None)
    scene.take_over()
    write_history(scene.database, random.Random(1), 5, ("t",))
    replicas.wait_level(scene.promoting.source, former)
    scene.result = None
    scene.resume()
    scene.wait_sent()


@pytest.mark.in_turn("mysql")
def test_a_feed_goes_on_on_a_promoted_replica(
    scene: Scene,
    kill: Callable[..., Killer],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a transaction was sent. Killed before and behind the switch; of two XA branches one commits there."""
    draw, former = random.Random(7), identity_of(scene.database.admin)
    make_tables(scene.database, "t", "u")
    scene.begin()
    write = scene.database.admin.execute_raw
    wait_until(lambda: scene.read() is not None, "the feed does not begin")
    scene.prepare(KEPT, "INSERT INTO t VALUES (101,'kept',1),(102,'kept',1)")
    scene.prepare(DROPPED, "INSERT INTO t VALUES (103,'dropped',1)")
    write_history(scene.database, draw, 5, ("t", "u"))
    scene.wait_sent()
    scene.end_in_the_midst(monkeypatch)
    write_history(scene.database, draw, 5, ("t", "u"))
    write("ALTER TABLE u ADD COLUMN z INT DEFAULT 5")
    scene.fail_over()
    write_history(scene.database, draw, 5, ("t",))
    scene.finish(f"XA COMMIT {KEPT}")
    scene.finish(f"XA ROLLBACK {DROPPED}")
    _check_unfit(scene)
    scene.result = None
    killer = kill(1, ("feed.moving", "feed.moved"), share=1.0)
    scene.resume()
    scene.wait_sent()
    assert killer.killed == ["feed.moving"] * 3 + ["feed.moved"]
    _check(scene, former)
    _check_refused(scene, former)


@pytest.mark.in_turn("mariadb")
def test_a_consumer_asks_the_promoted_replica_for_rows_of_before(scene: Scene) -> None:
    """Of which the key alone was sent, and which no consumer had asked for when their server died.

    That one has come back, with a row that no other server has got.
    """
    table = "CREATE TABLE docs (id INT PRIMARY KEY, t LONGTEXT)"
    write, former, old = scene.database.admin.execute, identity_of(scene.database.admin), scene.database.url
    write(table)
    scene.begin(max_message="key-only", max_message_bytes=20_000)
    wait_until(lambda: scene.read() is not None, "the feed does not begin")
    write("INSERT INTO docs VALUES (1,%s),(2,%s),(3,%s)", ("a" * 30_000,) * 3)
    write("UPDATE docs SET id=4 WHERE id=3")
    scene.wait_sent()
    scene.end()
    scene.fail_over()
    with private_server(scene.database.server.flavor) as server:
        target = create_database(server, scene.database.name)
        target.admin.execute_raw(table)
        asked = parse(scene.sink), target.url, "row", "g"
        more = {"sources": (scene.database.url,)}
        with pytest.raises(Refused, match="nor does the feed go on with one of them"):
            raise Consuming(*asked, more=more).failed(60)
        with scene.promoting.replica.admin(scene.database.name) as session:
            wait_until(lambda: session.value("SELECT COUNT(*) FROM docs WHERE id=4"), "it has not come back")
            session.execute_raw("SET sql_log_bin=0")
            session.execute_raw("UPDATE docs SET t='of the former' WHERE id=4")
        scene.result = None
        scene.resume()
        scene.database.admin.execute("UPDATE docs SET t=%s WHERE id=1", ("b" * 30_000,))
        scene.database.admin.execute("DELETE FROM docs WHERE id=2")
        scene.wait_sent()
        with pytest.raises(Refused, match="in whose place it goes on with"):
            raise Consuming(*asked, more={"sources": (old,)}).failed(60)
        rows = "SELECT id, t FROM docs ORDER BY id"
        with Consuming(*asked, more={"sources": (old, scene.database.url)}) as one:
            wait_until(lambda: one.error or target.admin.rows(rows) == scene.database.admin.rows(rows), "not level")
    messages = [tags for each in content(scene.feed).values() for tags, _, _ in each if tags.is_key_only]
    assert {tags.source for tags in messages} == {former, identity_of(scene.database.admin)}


def _check_unfit(scene: Scene) -> None:
    """Settings of the new server, of which the plan has seen the other one's; nothing was touched."""
    sql, before = scene.database.admin.execute_raw, scene.progress()
    sql("SET GLOBAL read_only=1, GLOBAL binlog_row_metadata=MINIMAL")
    with pytest.raises(Refused, match=r"read-only.*binlog_row_metadata is MINIMAL"):
        feeding.resume((scene.database.url,), scene.id, "", stop=scene.stop, notify=lambda text: None)
    sql("SET GLOBAL read_only=0, GLOBAL binlog_row_metadata=FULL")
    if scene.database.server.is_mariadb:
        sql(f"SET GLOBAL replicate_ignore_db='{scene.database.name}'")
        with pytest.raises(Refused, match="replicate_ignore_db"):
            feeding.resume((scene.database.url,), scene.id, "", stop=scene.stop, notify=lambda text: None)
        sql("SET GLOBAL replicate_ignore_db=''")
    assert scene.progress() == before


def _check(scene: Scene, former: str) -> None:
    oldest = str(scene.database.admin.rows("SHOW BINARY LOGS")[0][0])
    found, log = sent(scene.feed), logged(scene.database, Position.of(oldest, 4))
    # The log shows rows of branches where they were prepared, whatever became of them.
    assert [each for each in found if not _is_of_branch(each)] == [each for each in log if not _is_of_branch(each)]
    assert [after["id"] for _, _, after in filter(_is_of_branch, found)] == [101, 102]
    check_numbers(scene.feed)
    assert check(scene.feed.address).rows > 0
    here = identity_of(scene.database.admin)
    messages = [tags for each in content(scene.feed).values() for tags, _, _ in each if tags.kind is Kind.ROW]
    sources = [tags.source for tags in sorted(messages, key=lambda tags: (tags.t, tags.seq))]
    assert sources == sorted(sources, key=[former, here].index)
    assert set(sources) == {former, here}
    assert len({tags.gtid for tags in messages}) == len({tags.t for tags in messages})
    wait_until(lambda: journal.latest(scene.database.admin, scene.id, "moved") is not None, "no word of it")
    assert workflows.load(scene.database.admin, scene.id).server_identity == here


def _is_of_branch(row: tuple[str, Any, Any]) -> bool:
    return row[2] is not None and row[2]["id"] in (101, 102, 103)


def _check_refused(scene: Scene, former: str) -> None:
    """As if the feed stood elsewhere, and came here."""
    scene.end()
    place, _, gtids = scene.progress().sources[0].position.partition(" ")

    def at(position: str, **more: Any) -> Progress:
        sent = msgspec.structs.replace(scene.progress().sources[0], source=former, position=position, **more)
        return msgspec.structs.replace(scene.progress(), sources=(sent,))

    place = place.rpartition("/")[2]
    assert failover.moved(at(f"{place} {gtids}"), [scene.database.admin]) is not None
    assert "by file and offset" in scene.refusal(at(place))
    assert "999999" in scene.refusal(at(f"{place} {_one_more(gtids)}"))
    assert "A part of a transaction was sent" in scene.refusal(at(f"{place} {gtids}", inside=(1, 1)))
    half = _one_more(gtids).rpartition(",")[2]
    assert "999999" in scene.refusal(at(f"{place} {gtids}", inside=(1, 1), inside_of=half))
    if scene.database.server.is_mariadb:
        _check_order(scene, at, place)
    for _ in range(2):
        scene.database.admin.execute_raw("FLUSH BINARY LOGS")
    purge(scene.database)
    early = "0-1-1" if scene.database.server.is_mariadb else f"{gtids[:36]}:1"
    assert "does not hold its binary log" in scene.refusal(at(f"{place} {early}"))


def _check_order(scene: Scene, at: Callable[..., Progress], place: str) -> None:
    """A transaction of its own, then one that the former source has given the same number, which the feed has sent."""
    sql = scene.database.admin.execute_raw
    sql("INSERT INTO t VALUES (201,'own',1)")
    domain, _, number = str(scene.database.admin.value("SELECT @@global.gtid_binlog_pos")).split("-")
    sql("SET GLOBAL gtid_strict_mode=OFF")
    try:
        sql(f"SET gtid_seq_no={number}, server_id=77")
        sql("INSERT INTO t VALUES (202,'late',1)")
        sent = at(f"{place} {domain}-77-{number}")
        assert "gtid_strict_mode OFF" in scene.refusal(sent)
    finally:
        sql("SET GLOBAL gtid_strict_mode=ON")
    assert "do not go on where the feed stands" in scene.refusal(sent)
