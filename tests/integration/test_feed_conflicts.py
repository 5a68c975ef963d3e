"""Dispatch by conflicts, from one server through Kafka into one of the other flavor, by several processes, row by row.

What must stay true: the table has two unique keys beside its primary one, and their values move between rows.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.integration.test_feed_producer import Killer
from tests.integration.test_feed_producer import kill as _kill  # noqa: F401
from tests.support import feeds, running_feed
from tests.support.feed_consumers import Consuming, ConsumingProcess
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import Running, check_numbers, content, logged, seeds, sent, start_feed
from vreplication.errors import Transient
from vreplication.feed import running
from vreplication.feed.address import Address, parse
from vreplication.feed.check import check
from vreplication.feed.conflicts import Conflicts
from vreplication.feed.consume import waiting
from vreplication.feed.dispatch import Rule
from vreplication.feed.messages import Kind
from vreplication.feed.producer import FeedProducer
from vreplication.planning.facts import Verdict
from vreplication.workflows.changefeed.plan import make_feed_plan
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.either

CONFLICT = Rule(way="conflict")
TABLE = "(id INT PRIMARY KEY, u VARCHAR(9) COLLATE utf8mb4_general_ci, n INT, w INT, UNIQUE (u), UNIQUE (n))"
POINTS = ("consume.before_apply", "consume.before_commit", "consume.after_commit", "consume.read")


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    """On a server of the other flavor, under the same name."""
    made = create_database(server_of("mysql" if database.server.is_mariadb else "mariadb", "target"), database.name)
    try:
        yield made
    finally:
        made.drop()


def exchange(database: Database, draw: random.Random, transactions: int) -> None:
    """Values of both keys move from row to row."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET autocommit=0")
        for _ in range(transactions):
            for _ in range(draw.randint(1, 3)):
                session.execute_raw(_statement(draw))
            session.execute_raw("COMMIT" if draw.random() < 0.9 else "ROLLBACK")


def _statement(draw: random.Random) -> str:
    id, kind = draw.randint(1, 12), draw.random()
    u = draw.choice(("NULL", "'a'", "'A'", "'b'", "'c'", "'c '", "'d'"))
    n = draw.choice(("NULL", *map(str, range(6))))
    if kind < 0.6:
        return f"REPLACE INTO t VALUES ({id},{u},{n},{draw.randint(0, 999)})"
    if kind < 0.7:
        return f"DELETE FROM t WHERE id={id}"
    if kind < 0.8:
        return f"UPDATE IGNORE t SET id=13-id WHERE id={id}"
    return f"UPDATE t SET w=w+1 WHERE id BETWEEN {id} AND {id + 3}"


def rows(database: Database) -> list[Any]:
    return database.admin.rows("SELECT id, u, n, w FROM t ORDER BY id")


def make(*databases: Database) -> None:
    for database in databases:
        database.admin.execute_raw(f"CREATE TABLE t {TABLE}")


def address_of(feed: Running, **options: Any) -> Address:
    more = "&".join(f"{name.replace('_', '.')}={value}" for name, value in options.items())
    return parse(f"{feed.feed.address}?{more}")


class Processes:
    """Consumers, two at a time, that are killed where they reach a point."""

    def __init__(self, start: Callable[[], ConsumingProcess], folder: Path, stack: ExitStack) -> None:
        self._start, self._folder, self._stack = start, folder, stack
        self.killed: list[str] = []
        self._all = [self._begin(), self._begin()]

    def _begin(self) -> ConsumingProcess:
        return self._stack.enter_context(self._start())

    def kill_at(self, point: str) -> None:
        """Whoever comes there first; another one begins."""
        asked, reached = self._folder / point, self._folder / f"{point}.reached"
        asked.touch()
        wait_until(lambda: reached.exists() and reached.read_text(), f"nobody comes to {point}")
        pid = int(reached.read_text())
        for each in self._all:
            if each.pid == pid:
                each.send(signal.SIGKILL)
        self._all = [each for each in self._all if each.pid != pid]
        asked.unlink()
        reached.unlink()
        self.killed.append(point)
        self._all.append(self._begin())

    def said(self) -> list[str]:
        return [each.kill() for each in self._all]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.in_turn("mariadb")
def test_nothing_is_lost_whoever_is_killed(
    begin: Callable[..., Running],
    _kill: Callable[..., Killer],  # noqa: F811, PT019
    database: Database,
    target: Database,
    tmp_path: Path,
    seed: int,
) -> None:
    draw = random.Random(seed)
    make(database, target)
    start = feeds.here(database)
    feed = begin(rule=CONFLICT, partitions=3)
    feed.wait_begun()
    killer = _kill(seed, share=0.15)
    pauses = tmp_path / "pauses"
    pauses.mkdir()
    address = address_of(feed, session_timeout_ms=6000, heartbeat_interval_ms=500)
    with ExitStack() as stack:
        processes = Processes(lambda: ConsumingProcess(address, target.url, "row", pauses), pauses, stack)
        for point in POINTS:
            exchange(database, draw, 15)
            processes.kill_at(point)
        database.admin.execute_raw("ALTER TABLE t DROP KEY n, ADD COLUMN z INT")
        database.admin.execute_raw("ALTER TABLE t DROP COLUMN z, ADD UNIQUE (w, id)")
        feed.wanted = 4
        exchange(database, draw, 30)
        killer.is_on = False
        feed.wait_sent(database)
        try:
            wait_until(lambda: rows(target) == rows(database), "the target is not level")
        except AssertionError:
            raise AssertionError(f"{rows(target)} is not {rows(database)}: {processes.said()}") from None
    assert killer.killed
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    report = check(feed.feed.address)
    assert report.generations == 2
    assert report.aligns > 10


class EndedEarly:
    """A request to end a transaction comes late: of what has been sent since, each partition has a beginning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
        self._draw, self._put, self._commit = draw, FeedProducer._put, FeedProducer.commit
        self._room: dict[tuple[str, int], int] = {}
        self._is_early = False
        self.times, self.is_on = 0, True
        monkeypatch.setattr(FeedProducer, "_put", lambda *given, **more: self.put(*given, **more))
        monkeypatch.setattr(FeedProducer, "commit", lambda *given: self.commit(*given))
        monkeypatch.setattr(running, "_PAUSES", (0.01,))

    def put(self, producer: FeedProducer, topic: str, partition: int, *given: Any, **more: Any) -> None:
        if not producer._is_open:
            self._is_early, self._room = self.is_on and self._draw.random() < 0.3, {}
            producer._begin()
        where = (topic, partition)
        if self._is_early:
            self._room[where] = self._room.get(where, self._draw.choice((0, 1, 3, 99))) - 1
        if self._room.get(where, 0) >= 0:
            self._put(producer, topic, partition, *given, **more)

    def commit(self, producer: FeedProducer, *given: Any) -> None:
        if not self._is_early:
            self._commit(producer, *given)
            return
        producer._own.commit_transaction(30)
        producer._is_open = False
        self.times += 1
        raise Transient("ended too early")


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.in_turn("mysql")
def test_what_a_dead_run_has_left_is_waited_for(
    begin: Callable[..., Running],
    database: Database,
    target: Database,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(waiting, "MOST_ROWS", 1)
    make(database, target)
    start = feeds.here(database)
    feed = begin(rule=CONFLICT, partitions=3)
    feed.wait_begun()
    ended = EndedEarly(monkeypatch, draw)
    with Consuming(feed.feed.address, target.url, "row") as one:
        while ended.times < 12 and feed.error is None:
            exchange(database, draw, 5)
            feed.wait_sent(database)
        ended.is_on = False
        feed.wait_sent(database)
        try:
            wait_until(lambda: one.error or rows(target) == rows(database), "the target is not level")
        except AssertionError:
            raise AssertionError(f"{rows(target)} is not {rows(database)}: {standing(target)}") from None
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert check(feed.feed.address).aligns > 20


def standing(target: Database) -> list[Any]:
    """Where the consumer is, for who reads of a failure."""
    return target.admin.rows(
        "SELECT number, next_offset, resolved, stand, aligned_epoch FROM _vreplication.feed_offset"
    )


def swap(database: Database) -> None:
    """Each of eight values goes from row to row.

    The last row of each is lost where another partition comes after it: only by chance are they all in the log's order.
    """
    with database.server.admin(database.name) as session:
        for step in range(20):
            for each in range(8):
                id = 100 + each * 30 + step
                session.execute_raw(f"UPDATE t SET u=NULL, n=NULL WHERE id={id - 1}")
                session.execute_raw(f"INSERT INTO t VALUES ({id},'v{each}',{each},0)")


@pytest.mark.parametrize("is_sent", [True, False], ids=["with Align", "without"])
def test_without_align_a_row_is_lost(
    begin: Callable[..., Running],
    database: Database,
    target: Database,
    monkeypatch: pytest.MonkeyPatch,
    is_sent: bool,
) -> None:
    """All stands in the topic when the consumer begins, which applies it row by row: of many it sees the last state."""
    monkeypatch.setattr(waiting, "MOST_ROWS", 1)
    if not is_sent:
        monkeypatch.setattr(Conflicts, "meet", lambda *_: None)
    make(database, target)
    feed = begin(rule=CONFLICT, partitions=3)
    feed.wait_begun()
    swap(database)
    database.admin.execute_raw("INSERT INTO t VALUES (999,NULL,NULL,0)")
    feed.wait_sent(database)
    with Consuming(feed.feed.address, target.url, "row") as one:
        wait_until(lambda: one.error or rows(target)[-1:] == [(999, None, None, 0)], "it does not come on")
        if is_sent:
            wait_until(lambda: one.error or rows(target) == rows(database), "the target is not level")
        else:
            wait_until(lambda: one.error or is_read(feed, target), "it does not read it all")
            assert rows(target) != rows(database)


def is_read(feed: Running, target: Database) -> bool:
    assert feed.status is not None
    (found,) = target.admin.rows("SELECT MIN(resolved) FROM _vreplication.feed_offset")
    return int(found[0]) >= feed.status.progress.resolved


def test_an_idle_value_costs_nothing(begin: Callable[..., Running], database: Database) -> None:
    """Rows whose values stay with them, and tables with one key: one Align, with which the run begins."""
    make(database)
    database.admin.execute_raw("CREATE TABLE plain (id INT PRIMARY KEY, a INT)")
    feed = begin(rule=CONFLICT, partitions=4)
    feed.wait_begun()
    for id in range(40):
        database.admin.execute_raw(f"INSERT INTO plain VALUES ({id},1)")
    feed.wait_sent(database)
    assert aligns(feed) == [0, 0, 0, 0]
    for id in range(40):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({id},'v{id}',NULL,0)")
    database.admin.execute_raw("UPDATE t SET w=1")
    feed.wait_sent(database)
    assert aligns(feed) == [1, 1, 1, 1]
    database.admin.execute_raw("DELETE FROM t WHERE id=3")
    database.admin.execute_raw("ALTER TABLE t ADD COLUMN z INT")
    for id in range(50, 60):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({id},'v{id}',{id},0,0)")
    feed.wait_sent(database)
    assert aligns(feed) == [1, 1, 1, 1]
    check_numbers(feed.feed)


def aligns(feed: Running) -> list[int]:
    return [sum(tags.kind is Kind.ALIGN for tags, _, _ in messages) for messages in content(feed.feed).values()]


def test_a_table_that_has_no_key_while_the_feed_runs_goes_by_table(
    begin: Callable[..., Running], database: Database, target: Database
) -> None:
    """It comes so, or an ALTER makes it so: the order of its rows holds, also across that."""
    make(database, target)
    start = feeds.here(database)
    feed = begin(rule=CONFLICT if database.server.is_mariadb else Rule(way="index-value"), partitions=3)
    feed.wait_begun()
    changes = ("REPLACE INTO t (id, w) VALUES " + ",".join(f"({n},0)" for n in range(40)), "UPDATE t SET w=w+1")
    alters = ("CREATE TABLE bare (a INT, b INT, UNIQUE (a))", "ALTER TABLE t DROP PRIMARY KEY")
    bare = ("INSERT INTO bare VALUES (1,1),(2,2),(3,3)", "UPDATE bare SET b=9-b", "DELETE FROM bare WHERE a=2")
    back = ("ALTER TABLE t ADD PRIMARY KEY (id)", changes[1])
    with Consuming(feed.feed.address, target.server.plain(target.server.url(target.name)), "row") as consuming:
        for statement in (*changes, *alters, *bare, "UPDATE t SET w=w+1", *back):
            database.admin.execute_raw(statement)

        def is_level() -> bool:
            consuming.raise_error()
            return rows(target) == rows(database) and _bare(target) == _bare(database)

        feed.wait_sent(database)
        wait_until(is_level, "the target is not level")
    assert sent(feed.feed) == logged(database, start)
    assert check(feed.feed.address).rows >= 40 * 4 + 7
    where: dict[tuple[str, Any], set[int]] = {}
    for number, found in running_feed.rows(feed.feed).items():
        for table, before, after in found:
            where.setdefault((table, (after or before).get("w")), set()).add(number)
    assert len(where["bare", None]) == len(where["t", 2]) == 1
    assert len(where["t", 1]) == len(where["t", 3]) == 3
    assert {words.split()[1].rpartition(".")[2] for words in feed.warned} == {"t", "bare"}, feed.warned


def _bare(database: Database) -> Any:
    return database.admin.rows("SHOW TABLES LIKE 'bare'") and database.admin.rows("SELECT * FROM bare ORDER BY a")


@pytest.mark.parametrize(
    ("dispatch", "definition", "verdict", "said"),
    [
        ("conflict", "id INT PRIMARY KEY, u VARCHAR(9), UNIQUE (u)", Verdict.OK, "Rows go by conflict"),
        (
            *("conflict", "id INT PRIMARY KEY, u VARCHAR(9) CHARACTER SET latin2 COLLATE latin2_czech_cs UNIQUE"),
            *(Verdict.WARN, "t and 0 more tables have a unique key whose values cannot be compared here"),
        ),
        ("conflict", "id INT, UNIQUE (id)", Verdict.REFUSE, "t has no unique key without NULLs"),
        ("index-value", "id INT PRIMARY KEY, u TEXT, UNIQUE (u(9))", Verdict.WARN, "Use --dispatch conflict or table"),
        ("columns:v", "id INT, v INT NOT NULL, PRIMARY KEY (v, id)", Verdict.OK, "Rows go by columns:v"),
        (
            "columns:v",
            "id INT PRIMARY KEY, v INT NOT NULL",
            Verdict.WARN,
            "t and 0 more tables have a unique key without v",
        ),
    ],
)
def test_the_plan_says_what_fits(
    kafka: Cluster, database: Database, dispatch: str, definition: str, verdict: Verdict, said: str
) -> None:
    database.admin.execute_raw(f"CREATE TABLE t ({definition})")
    spec = make_feed_spec(sink=f"kafka://{kafka.bootstrap}/plan", dispatch=dispatch, workflow="plan")
    with database.server.admin(database.name) as session:
        plan = make_feed_plan([session], spec)
    (found,) = (check for check in plan.checks if check.name == "dispatch")
    assert found.verdict is verdict
    assert said in f"{found}"
