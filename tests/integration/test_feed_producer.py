"""A feed into a real Kafka: what stands in the topic is what the log says, once each, whatever happens in between."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds, soaked
from tests.support.flow import wait_until
from tests.support.running_feed import (
    Running,
    check_numbers,
    content,
    logged,
    make_tables,
    rows,
    seeds,
    sent,
    start_feed,
    write_history,
)
from vreplication.errors import Refused, Superseded, Transient
from vreplication.feed import feed as feed_module
from vreplication.feed import producer as producer_module
from vreplication.feed import running
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import read_ddl, read_row
from vreplication.feed.messages import Kind
from vreplication.feed.producer import FeedProducer
from vreplication.feed.terms import Feed

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


def test_rows_and_ddl_stand_in_the_topic_as_in_the_log(begin: Callable[..., Running], database: Database) -> None:
    """They come although no interval is over: nothing more is there that could go with them."""
    feed = begin(commit_seconds=3600.0)
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


def test_commits_keep_the_gap_that_was_asked_for(begin: Callable[..., Running], database: Database) -> None:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    feed = begin(commit_seconds=0.5, gap_seconds=0.5)
    feed.wait_begun()
    began = time.monotonic()
    for id in range(40):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({id})")
    feed.wait_sent(database)
    most = (time.monotonic() - began) / 0.5 + 3
    assert sum(tags.kind is Kind.RESOLVED for tags, _, _ in content(feed.feed)[0]) <= most


class _Killed(Transient):
    """What a pause point raises in these tests: the run ends there, and the next one begins at the progress."""


POINTS = ("feed.commit", "feed.before_flush", "feed.before_progress", "feed.before_commit", "feed.after_commit")
_MOST_KILLS = 3
"""At one point."""
SCALING = ("feed.scale.resolved", "feed.scale.intent", "feed.scale.grown", "feed.scale.done")


class Killer:
    """Ends a run at drawn pause points, without a word to the broker; not for ever at one of them."""

    def __init__(self, seed: int, points: tuple[str, ...], share: float) -> None:
        self._draw, self._points, self._share = random.Random(seed), points, share
        self.killed: list[str] = []
        self.is_on = True

    def __call__(self, point: str) -> None:
        if self.is_on and point in self._points and self._draw.random() < self._share:
            if self.killed.count(point) >= _MOST_KILLS:
                return
            self.killed.append(point)
            raise _Killed(f"killed at {point}")


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Killer]]:
    """A producer that is killed aborts nothing: what it had open is ended by the fence of the next."""

    def begin(seed: int, points: tuple[str, ...] = POINTS, share: float = 0.2) -> Killer:
        killer = Killer(seed, points, share)
        for module in (feed_module, producer_module):
            monkeypatch.setattr(module, "reach", killer)
        monkeypatch.setattr(FeedProducer, "close", _drop)
        monkeypatch.setattr(running, "_PAUSES", (0.01,))
        return killer

    yield begin
    while _ZOMBIES:
        producer_module.let_go(_ZOMBIES.pop(), abort=False)


_ZOMBIES: list[Any] = []


def _drop(producer: FeedProducer) -> None:
    """It lives on, as one that does not know yet that it was replaced, and sends what it has."""
    if producer._producer is not None:
        _ZOMBIES.append(producer._producer)
    producer._producer = None


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.in_turn
def test_each_change_is_sent_once_wherever_the_feed_is_killed(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database, seed: int
) -> None:
    draw = random.Random(seed)
    make_tables(database, "t", "u", "v")
    start = feeds.here(database)
    rule = Rule(way=("table", "index-value", "ts")[seed % 3])
    feed = begin(rule=rule, partitions=3)
    feed.wait_begun()
    killer = kill(seed, share=0.3)
    while len(killer.killed) < 8 and feed.error is None:
        write_history(database, draw, 4, ("t", "u", "v"))
    killer.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    told = [tags.dispatch for messages in content(feed.feed).values() for tags, _, _ in messages]
    assert set(filter(None, told)) == {rule.way}
    soaked.note("rows of one server", database.server.flavor, len(killer.killed), feed)


@pytest.mark.parametrize("seed", seeds(1))
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
        wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == wanted), "not scaled", 150)  # noqa: B023
        write_history(database, draw, 20, ("t", "u"))
    killer.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    assert feed.status is not None
    assert feed.status.progress.generation == 4
    check_generations(feed.feed)
    soaked.note("partitions 2 → 5 → 2 → 3", database.server.flavor, len(killer.killed), feed)


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
    wait_until(lambda: len(killer.killed) >= 3 or feed.error, "never killed")
    killer.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_whoever_comes_next_fences_the_one_before(begin: Callable[..., Running], database: Database) -> None:
    make_tables(database, "t")
    start = feeds.here(database)
    first = begin(is_alone=False)
    first.wait_begun()
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    first.wait_sent(database)
    second = begin(is_alone=False)

    def is_one_gone() -> bool:
        database.admin.execute_raw("UPDATE t SET n=n+1")
        return bool(first.error or second.error)

    wait_until(is_one_gone, "both go on")
    survivor = second if first.error else first
    loser = first if first.error else second
    assert isinstance(loser.error, Superseded)
    survivor.wait_sent(database)
    assert sent(first.feed) == logged(database, start)
    check_numbers(first.feed)


@pytest.mark.in_turn("mariadb")
def test_partitions_wait_for_a_transaction_that_is_half_sent(
    begin: Callable[..., Running], kill: Callable[..., Killer], database: Database
) -> None:
    """Scaled in between, its rows would be in two generations, or behind an Admin that consumers drop them at."""
    make_tables(database, "t")
    start = feeds.here(database)
    feed = begin(rule=Rule(way="index-value"), partitions=2, commit_seconds=0.01)
    feed.wait_begun()
    killer = kill(3, ("feed.after_commit",), share=1.0)
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) "
        "SELECT a.i*1000+b.i, 'x', 0 FROM n a JOIN n b WHERE a.i<=30"
    )
    wait_until(lambda: killer.killed or feed.error, "it was not killed")
    feed.wanted = 4
    wait_until(lambda: len(killer.killed) > 2 or feed.error, "it was not killed again")
    killer.is_on = False
    wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == 4), "not scaled")
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_rows_that_were_committed_without_progress_are_not_sent_again(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request to end the transaction before does that comes late; twice over, with more rows in between."""
    draw = random.Random(4)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    commit, late = FeedProducer.commit, [2, 5, 6]

    def early(producer: FeedProducer, topic: str, progress: Any) -> None:
        late[:] = [each - 1 for each in late]
        if late and late[0] <= 0 and producer.rows:
            late.pop(0)
            producer._own.commit_transaction(30)
            producer._is_open = False
            raise _Killed("ended too early")
        commit(producer, topic, progress)

    feed = begin(rule=Rule(way="index-value"), partitions=3)
    feed.wait_begun()
    monkeypatch.setattr(FeedProducer, "commit", early)

    def has_written() -> bool:
        write_history(database, draw, 3, ("t", "u"))
        return not late or feed.error is not None

    wait_until(has_written, "it was not ended too early", 60, 0.1)
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_what_stands_behind_the_progress_is_found_until_all_of_it_was_gone_by(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a transaction was committed without progress; the next run commits within that half, and is killed."""
    make_tables(database, "t")
    start = feeds.here(database)
    commit, ends = FeedProducer.commit, iter(("early", "killed"))

    def cut(producer: FeedProducer, topic: str, progress: Any) -> None:
        end = next(ends, None) if producer.rows else None
        if end == "early":
            producer._own.commit_transaction(30)
            producer._is_open = False
            monkeypatch.setattr(feed_module, "_MOST_ROWS", 500)
            raise _Killed("ended too early")
        commit(producer, topic, progress)
        if end == "killed":
            raise _Killed("killed behind its commit")

    feed = begin(rule=Rule(way="index-value"), partitions=3)
    feed.wait_begun()
    monkeypatch.setattr(feed_module, "_MOST_ROWS", 3_000)
    monkeypatch.setattr(FeedProducer, "commit", cut)
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) "
        "SELECT a.i*1000+b.i, 'x', 0 FROM n a JOIN n b WHERE a.i<=5"
    )
    feed.wait_sent(database)
    assert next(ends, None) is None
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)


def test_an_id_is_one_feeds(begin: Callable[..., Running], database: Database) -> None:
    first = begin()
    first.wait_begun()
    other = begin(address=parse(f"{first.feed.address}-two"))
    wait_until(lambda: other.error, "it goes on")
    assert isinstance(other.error, Refused)
    make_tables(database, "t")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    first.wait_sent(database)
    assert len(sent(first.feed)) == 1


def test_a_row_stays_where_its_key_was_when_it_was_written(begin: Callable[..., Running], database: Database) -> None:
    """The key is another one by the time that the feed reads the rows."""
    sql = database.admin.execute_raw
    sql("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL, n INT)")
    feed = begin(rule=Rule(way="index-value"), partitions=8)
    feed.wait_begun()
    sql("INSERT INTO t VALUES (1,11,0),(2,12,0),(3,13,0),(4,14,0)")
    feed.wait_sent(database)
    feed.stop()
    sql("UPDATE t SET n=1")
    sql("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
    again = begin(rule=Rule(way="index-value"), partitions=8)
    again.wait_sent(database)
    for messages in rows(feed.feed).values():
        ids = [after["a"] for _, _, after in messages]
        assert all(ids.count(each) == 2 for each in ids)


def test_bad_starts_are_refused_before_anything_is_sent(begin: Callable[..., Running], database: Database) -> None:
    for start in ("a:b", "0-1-x", "garbage", "3e11fa47-71ca-11e1-9e33-c80aa9429562:z"):
        feed = begin(start=start, id=f"x{secrets.token_hex(3)}")
        wait_until(lambda: feed.error, "it goes on")  # noqa: B023
        assert isinstance(feed.error, Refused), feed.error


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
    wait_until(lambda: killer.killed, "it was not killed")
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
    Broker(feed.feed.address).grow([feed.feed.address.topic], 3)
    again = begin()
    wait_until(lambda: again.error, "it goes on")
    assert "has 3 partitions, the feed uses 1" in str(again.error)
    cured = begin(wanted=3)
    wait_until(lambda: cured.error or (cured.status and cured.status.progress.partitions == 3), "not scaled")
    assert cured.error is None


def test_a_topic_that_holds_something_is_refused(begin: Callable[..., Running], database: Database) -> None:
    first = begin()
    first.wait_begun()
    first.stop()
    other = begin(id="another")
    wait_until(lambda: other.error, "it goes on")
    assert isinstance(other.error, Refused)
