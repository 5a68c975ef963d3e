"""A feed into a real Kafka: what stands in the topic is what the log says, once each, whatever happens in between."""

from __future__ import annotations

import functools
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import feeds
from tests.support.flow import wait_until
from vreplication.binlog.events import Position
from vreplication.errors import Interrupted, Refused, Superseded, Transient, VReplicationError
from vreplication.feed import feed as feed_module
from vreplication.feed import producer as producer_module
from vreplication.feed import running
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.feed.catalog import Filter
from vreplication.feed.dispatch import Rule
from vreplication.feed.feed import Hooks, Status
from vreplication.feed.formats.open import Open, read_ddl, read_row
from vreplication.feed.messages import Kind, Tags, read_tags
from vreplication.feed.producer import FeedProducer
from vreplication.feed.running import Feed, Service

TABLE = Rule(way="table")


class Running:
    """A feed in a thread of its own."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.stopping = threading.Event()
        self.status: Status | None = None
        self.error: VReplicationError | None = None
        self.wanted: int | None = None
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        hooks = Hooks(check=self._check, wanted=lambda: self.wanted, told=self._told)
        try:
            Service(feed=self.feed, hooks=hooks, notify=self.said.append, stop=self.stopping).run()
        except VReplicationError as error:
            self.error = error

    def _check(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("Interrupted.")

    def _told(self, status: Status) -> None:
        self.status = status

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(60)

    def wait_begun(self) -> None:
        asked = functools.partial(running.read_progress, self.feed.address, self.feed.id)
        wait_until(lambda: self.error is not None or asked() is not None, "the feed does not begin", 30)
        assert self.error is None, self.error

    def wait_sent(self, database: Database, seconds: float = 30) -> None:
        """Until everything that is in the log by now has been committed."""
        end = feeds.here(database)
        wait_until(lambda: self.error is not None or self._has_come(end), "the feed does not come on", seconds)
        assert self.error is None, self.error

    def _has_come(self, end: Any) -> bool:
        return self.status is not None and Position.parse(self.status.progress.position) >= end


@pytest.fixture
def begin(kafka: Any, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    feeds.describe_fully(database)
    started: list[Running] = []
    topic = f"t{secrets.token_hex(4)}"

    def start(rule: Rule = TABLE, partitions: int = 1, **more: Any) -> Running:
        feed = Feed(
            source=database.server.plain(database.server.url(database.name)),
            address=parse(f"kafka://{kafka.bootstrap}/{topic}"),
            filter=Filter(tables=(f"{database.name}.*",)),
            rule=rule,
            format=Open(),
            home=tmp_path / "spool",
            **{"id": f"feed-{topic}", "partitions": partitions, "commit_seconds": 0.05, **more},
        )
        started.append(Running(feed))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def content(feed: Feed) -> dict[int, list[tuple[Tags, bytes | None, bytes | None]]]:
    """Committed messages by partition."""
    broker = Broker(feed.address)
    topic = broker.find(feed.address.topic)
    assert topic is not None
    found: dict[int, list[tuple[Tags, bytes | None, bytes | None]]] = {n: [] for n in range(topic.partitions)}
    for message in broker.behind(topic.name, dict.fromkeys(found, 0)):
        found[message.partition() or 0].append((read_tags(message.headers()), message.key(), message.value()))
    return found


def rows(feed: Feed) -> dict[int, list[tuple[str, Any, Any]]]:
    return {
        number: [_row(key, value) for tags, key, value in messages if tags.kind is Kind.ROW]
        for number, messages in content(feed).items()
    }


def _row(key: bytes | None, value: bytes | None) -> tuple[str, Any, Any]:
    change = read_row(key, value)
    return change.table, *(_plain(image) for image in (change.before, change.after))


def _plain(image: Any) -> Any:
    return None if image is None else {name: cell.value for name, cell in image.items()}


def check_numbers(feed: Feed) -> None:
    """Without gaps in each partition; places rise; nothing up to a Resolved comes behind it."""
    for messages in content(feed).values():
        counted = [tags for tags, _, _ in messages if tags.kind in (Kind.ROW, Kind.DDL, Kind.ADMIN)]
        assert [tags.n for tags in counted] == list(range(1, len(counted) + 1))
        places = [(tags.t, tags.seq) for tags, _, _ in messages if tags.kind is Kind.ROW]
        assert places == sorted(places)
        resolved = 0
        for tags, _, _ in messages:
            if tags.kind is Kind.RESOLVED:
                resolved = tags.t
            elif tags.kind is not Kind.ADMIN:
                assert tags.t > resolved


def test_rows_and_ddl_stand_in_the_topic_as_in_the_log(begin: Callable[..., Running], database: Database) -> None:
    feed = begin()
    sql = database.admin.execute_raw
    feed.wait_begun()
    sql("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9))")
    sql("INSERT INTO t VALUES (1,'x'),(2,NULL)")
    sql("UPDATE t SET a='y' WHERE id=1")
    sql("ALTER TABLE t ADD COLUMN b INT DEFAULT 7")
    sql("DELETE FROM t WHERE id=2")
    feed.wait_sent(database)
    assert rows(feed.feed)[0] == [
        ("t", None, {"id": 1, "a": "x"}),
        ("t", None, {"id": 2, "a": None}),
        ("t", {"id": 1, "a": "x"}, {"id": 1, "a": "y"}),
        ("t", {"id": 2, "a": None, "b": 7}, None),
    ]
    ddl = [read_ddl(key, value)[1] for tags, key, value in content(feed.feed)[0] if tags.kind is Kind.DDL]
    assert [text.split()[0] for text in ddl] == ["CREATE", "ALTER"]
    check_numbers(feed.feed)


class _Killed(Transient):
    """What a pause point raises in these tests: the run ends there, and the next one begins at the progress."""


POINTS = ("feed.commit", "feed.before_flush", "feed.before_progress", "feed.before_commit", "feed.after_commit")
SCALING = ("feed.scale.resolved", "feed.scale.intent", "feed.scale.grown", "feed.scale.done")


class Killer:
    """Ends a run at drawn pause points, without a word to the broker."""

    def __init__(self, seed: int, points: tuple[str, ...], share: float) -> None:
        self._draw, self._points, self._share = random.Random(seed), points, share
        self.killed: list[str] = []
        self.is_on = True

    def __call__(self, point: str) -> None:
        if self.is_on and point in self._points and self._draw.random() < self._share:
            self.killed.append(point)
            raise _Killed(f"killed at {point}")


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Killer]:
    """A producer that is killed aborts nothing: what it had open is ended by the fence of the next."""

    def begin(seed: int, points: tuple[str, ...] = POINTS, share: float = 0.2) -> Killer:
        killer = Killer(seed, points, share)
        for module in (feed_module, producer_module):
            monkeypatch.setattr(module, "reach", killer)
        monkeypatch.setattr(FeedProducer, "close", _drop)
        monkeypatch.setattr(running, "_PAUSES", (0.01,))
        return killer

    return begin


def _drop(producer: FeedProducer) -> None:
    producer._producer = None


def write_history(database: Database, draw: random.Random, transactions: int, tables: tuple[str, ...]) -> None:
    """Transactions of one to six rows over several tables, some of which are rolled back or go to a savepoint."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET autocommit=0")
        for _ in range(transactions):
            for _ in range(draw.randint(1, 6)):
                session.execute_raw(_statement(draw, draw.choice(tables)))
            session.execute_raw("ROLLBACK" if draw.random() < 0.1 else "COMMIT")


def _statement(draw: random.Random, table: str) -> str:
    key = draw.randint(1, 30)
    kind = draw.random()
    if kind < 0.5:
        return f"REPLACE INTO {table} VALUES ({key},'{secrets.token_hex(3)}',{draw.randint(0, 9)})"
    if kind < 0.7:
        return f"DELETE FROM {table} WHERE id={key}"
    if kind < 0.8:
        return f"UPDATE IGNORE {table} SET id=id+{draw.randint(1, 5)} WHERE id={key}"
    return f"UPDATE {table} SET n=n+1 WHERE id BETWEEN {key} AND {key + 4}"


def make_tables(database: Database, *names: str) -> None:
    for name in names:
        database.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY, a VARCHAR(9), n INT NOT NULL)")


def logged(database: Database, start: Any) -> list[tuple[str, Any, Any]]:
    """What the log says, rows only. The reader hands out rolled-back rows of none."""
    found = feeds.read(database, feeds.catalog(database), start)
    return [each for each in found if each[0] != "DDL"]


def sent(feed: Feed) -> list[tuple[str, Any, Any]]:
    """All rows by place; a DELETE and an INSERT of one place are the UPDATE that left its partition."""
    found: dict[tuple[int, int], tuple[str, Any, Any]] = {}
    for messages in content(feed).values():
        for tags, key, value in messages:
            if tags.kind is Kind.ROW:
                table, before, after = _row(key, value)
                _, old, new = found.get((tags.t, tags.seq), (table, None, None))
                assert old is None or before is None, "sent twice"
                assert new is None or after is None, "sent twice"
                found[tags.t, tags.seq] = (table, before or old, after or new)
    return [found[place] for place in sorted(found)]


@pytest.mark.parametrize("seed", range(3))
def test_each_change_is_sent_once_wherever_the_feed_is_killed(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database, seed: int
) -> None:
    draw = random.Random(seed)
    make_tables(database, "t", "u", "v")
    start = feeds.here(database)
    feed = begin(rule=Rule(way=("table", "index-value", "ts")[seed]), partitions=3)
    feed.wait_begun()
    killer = kill(seed, share=0.3)
    while len(killer.killed) < 8 and feed.error is None:
        write_history(database, draw, 4, ("t", "u", "v"))
    killer.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


@pytest.mark.parametrize("seed", range(2))
def test_partitions_grow_and_shrink_under_load_wherever_it_is_killed(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database, seed: int
) -> None:
    draw = random.Random(seed)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.wait_begun()
    killer = kill(seed, (*POINTS, *SCALING), share=0.2)
    for wanted in (5, 2, 3):
        feed.wanted = wanted
        write_history(database, draw, 20, ("t", "u"))
        wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == wanted), "not scaled", 60)  # noqa: B023
        write_history(database, draw, 20, ("t", "u"))
    killer.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert feed.status is not None
    assert feed.status.progress.generation == 4
    check_generations(feed.feed)


def check_generations(feed: Feed) -> None:
    """A partition outside of a generation holds none of its rows, and generations never go back."""
    partitions = {1: 2, 2: 5, 3: 2, 4: 3}
    for number, messages in content(feed).items():
        generations = [tags.generation for tags, _, _ in messages if tags.kind is not Kind.ADMIN]
        assert generations == sorted(generations)
        assert all(number < partitions[each] for each in generations)


def test_a_large_transaction_goes_in_several_and_goes_on_where_it_was_killed(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database
) -> None:
    make_tables(database, "t")
    start = feeds.here(database)
    feed = begin(rule=Rule(way="index-value"), partitions=3, commit_seconds=0.01)
    feed.wait_begun()
    killer = kill(5, ("feed.before_commit", "feed.after_commit", "feed.before_flush"), share=0.3)
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) "
        "SELECT a.i*1000+b.i, 'x', 0 FROM n a JOIN n b WHERE a.i<=50"
    )
    database.admin.execute_raw("UPDATE t SET n=1 WHERE id<2000")
    killer.is_on = len(killer.killed) < 12
    wait_until(lambda: len(killer.killed) >= 3 or feed.error, "never killed", 60)
    killer.is_on = False
    feed.wait_sent(database, 60)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_whoever_comes_next_fences_the_one_before(begin: Callable[..., Running], database: Database) -> None:
    make_tables(database, "t")
    start = feeds.here(database)
    first = begin()
    first.wait_begun()
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    first.wait_sent(database)
    second = begin()

    def is_one_gone() -> bool:
        database.admin.execute_raw("UPDATE t SET n=n+1")
        return bool(first.error or second.error)

    wait_until(is_one_gone, "both go on", 30)
    survivor = second if first.error else first
    loser = first if first.error else second
    assert isinstance(loser.error, Superseded)
    survivor.wait_sent(database)
    assert sent(first.feed) == logged(database, start)
    check_numbers(first.feed)


def test_xa_is_sent_when_it_commits_or_never(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database
) -> None:
    make_tables(database, "t")
    feed = begin()
    feed.wait_begun()
    sessions = [database.server.admin(database.name) for _ in range(3)]
    for number, session in enumerate(sessions):
        session.execute_raw(f"XA START 'x{number}'")
        session.execute_raw(f"INSERT INTO t VALUES ({number},'xa',0)")
        session.execute_raw(f"XA END 'x{number}'")
        session.execute_raw(f"XA PREPARE 'x{number}'")
    database.admin.execute_raw("INSERT INTO t VALUES (9,'plain',0)")
    feed.wait_sent(database)
    killer = kill(1, ("feed.commit",), share=1.0)
    sessions[0].execute_raw("XA COMMIT 'x0'")
    wait_until(lambda: killer.killed, "it was not killed", 30)
    killer.is_on = False
    sessions[1].execute_raw("XA ROLLBACK 'x1'")
    sessions[2].execute_raw("XA COMMIT 'x2'")
    feed.wait_sent(database)
    assert [after["id"] for _, _, after in sent(feed.feed)] == [9, 0, 2]
    check_numbers(feed.feed)


def test_a_value_too_large_for_a_message_comes_in_parts(begin: Callable[..., Running], database: Database) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)")
    feed = begin()
    feed.wait_begun()
    database.admin.execute_raw("INSERT INTO t VALUES (1, REPEAT('ab', 1500000))")
    feed.wait_sent(database)
    messages = [each for each in content(feed.feed)[0] if each[0].kind is Kind.ROW]
    assert [tags.part for tags, _, _ in messages] == [(i, len(messages)) for i in range(len(messages))]
    change = read_row(messages[0][1], b"".join(value or b"" for _, _, value in messages))
    assert change.after is not None
    assert change.after["b"].value == b"ab" * 1500000
    check_numbers(feed.feed)


def test_partitions_that_somebody_else_has_added_stop_the_feed(
    begin: Callable[..., Running], database: Database
) -> None:
    make_tables(database, "t")
    feed = begin()
    feed.wait_begun()
    feed.stop()
    Broker(feed.feed.address).grow(feed.feed.address.topic, 3)
    again = begin()
    wait_until(lambda: again.error, "it goes on", 30)
    assert "has 3 partitions, the feed uses 1" in str(again.error)


def test_a_topic_that_holds_something_is_refused(begin: Callable[..., Running], database: Database) -> None:
    first = begin()
    first.wait_begun()
    first.stop()
    other = begin(id="another")
    wait_until(lambda: other.error, "it goes on", 30)
    assert isinstance(other.error, Refused)
