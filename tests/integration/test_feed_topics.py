"""A topic for each table: every change once over all of them, and each by itself a feed's topic for who reads it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.integration.test_feed_conflicts import EndedEarly
from tests.integration.test_feed_faults import _delete as delete
from tests.integration.test_feed_producer import POINTS, SCALING, Killer, kill  # noqa: F401
from tests.support import feeds
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import (
    Running,
    check_numbers,
    content,
    logged,
    make_tables,
    seeds,
    sent,
    start_feed,
    topics,
    write_history,
)
from vreplication.feed import feed as feed_module
from vreplication.feed import running
from vreplication.feed.address import Address, parse
from vreplication.feed.broker import Broker
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import read_ddl, read_row
from vreplication.feed.messages import Kind
from vreplication.feed.terms import Feed
from vreplication.planning.facts import Verdict
from vreplication.workflows.changefeed.plan import make_feed_plan, plan_json
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.either

OPENING = ("feed.topic.made", "feed.topic.noted")


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path, is_each=True)


def of(feed: Feed, table: str, database: Database) -> Address:
    return parse(f"{feed.address}.{database.name}.{table}")


def check_each(feed: Feed) -> None:
    """By the numbers and by feed-check; each holds rows of its own table, and that of the address none."""
    check_numbers(feed)
    for name in topics(feed):
        check(parse(f"kafka://{feed.address.servers}/{name}"), has_keys=feed.rule.way != "ts")
        for messages in content(feed, name).values():
            tables = {read_row(key, value).table for tags, key, value in messages if tags.kind is Kind.ROW}
            assert tables <= ({name.rpartition(".")[2]} if name != feed.address.topic else set())


def ddl_of(feed: Feed, name: str) -> list[str]:
    messages = content(feed, name)[0]
    return [" ".join(read_ddl(k, v)[1].split()[:3]) for tags, k, v in messages if tags.kind is Kind.DDL]


@pytest.mark.in_turn("mysql")
def test_rows_and_ddl_go_to_the_topic_of_their_table(begin: Callable[..., Running], database: Database) -> None:
    """A table is made, renamed and dropped while the feed runs."""
    make_tables(database, "t", "quiet")
    start = feeds.here(database)
    feed = begin(partitions=2)
    feed.wait_begun()
    sql = database.admin.execute_raw
    sql("INSERT INTO t VALUES (1,'a',1)")
    make_tables(database, "u")
    sql("INSERT INTO u VALUES (1,'b',1)")
    sql("RENAME TABLE u TO v")
    sql("INSERT INTO v VALUES (2,'c',1)")
    sql("DROP TABLE IF EXISTS v, never")
    sql("CREATE TABLE `odd$name` (id INT PRIMARY KEY)")
    sql("INSERT INTO `odd$name` VALUES (1)")
    feed.wait_sent(database)
    prefix = f"{feed.feed.address.topic}.{database.name}"
    names = topics(feed.feed)
    assert sorted(names[1:]) == [f"{prefix}.{each}" for each in ("odd_name", "quiet", "t", "u", "v")]
    assert ddl_of(feed.feed, f"{prefix}.u") == ["CREATE TABLE u", "RENAME TABLE u"]
    assert [text.split()[0] for text in ddl_of(feed.feed, f"{prefix}.v")] == ["RENAME", "DROP"]
    assert len(ddl_of(feed.feed, feed.feed.address.topic)) == 4
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
    for name in names:
        check(parse(f"kafka://{feed.feed.address.servers}/{name}"))


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.in_turn("mariadb")
def test_each_change_is_in_its_topic_once_wherever_the_feed_is_killed(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],  # noqa: F811
    database: Database,
    seed: int,
) -> None:
    """Tables come meanwhile, and partitions grow and shrink."""
    draw = random.Random(seed)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin(rule=Rule(way=("index-value", "ts")[seed % 2]), partitions=2)
    feed.wait_begun()
    tables: tuple[str, ...] = ("t", "u")
    killer = kill(seed, OPENING, share=0.5)
    while len(set(killer.killed)) < len(OPENING):
        tables += (f"early{len(tables)}",)
        make_tables(database, tables[-1])
        database.admin.execute_raw(f"INSERT INTO {tables[-1]} VALUES (1,'a',1)")
        feed.wait_sent(database)
    killer = kill(seed, (*POINTS, *SCALING, *OPENING), share=0.2)
    for wanted, comes in ((4, "v"), (1, "w"), (3, "x")):
        feed.wanted = wanted
        make_tables(database, comes)
        tables += (comes,)
        write_history(database, draw, 10, tables)
        wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == wanted), "not scaled", 150)  # noqa: B023
        write_history(database, draw, 10, tables)
    killer.is_on = False
    feed.wait_sent(database)
    assert killer.killed
    assert sent(feed.feed) == logged(database, start)
    assert feed.status is not None
    assert feed.status.progress.generation == 4
    check_each(feed.feed)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.in_turn("mysql")
def test_what_was_committed_without_progress_is_found_in_every_topic(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of each partition of each topic another beginning; large transactions over all tables among them."""
    draw = random.Random(seed)
    make_tables(database, "t", "u")
    start = feeds.here(database)
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.wait_begun()
    monkeypatch.setattr(feed_module, "_MOST_ROWS", 40)
    ended = EndedEarly(monkeypatch, draw)
    tables: tuple[str, ...] = ("t", "u")
    for comes in ("v", "w", "x", "y"):
        make_tables(database, comes)
        tables += (comes,)
        write_history(database, draw, 3, tables)
        write_large(database, tables, 1000 * len(tables))
        feed.wait_sent(database)
    assert ended.times > 3
    ended.is_on = False
    feed.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_each(feed.feed)


def write_large(database: Database, tables: tuple[str, ...], first: int) -> None:
    """One transaction, of several Kafka transactions."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET autocommit=0")
        for at in range(first, first + 60, 20):
            for table in tables:
                values = ",".join(f"({at + i},'x',{i})" for i in range(20))
                session.execute_raw(f"INSERT INTO {table} VALUES {values}")
        session.execute_raw("COMMIT")


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    """On a server of the other flavor, under the same name."""
    made = create_database(server_of("mysql" if database.server.is_mariadb else "mariadb", "target"), database.name)
    try:
        yield made
    finally:
        made.drop()


@pytest.mark.parametrize("mode", ["row", "transaction"])
def test_one_topic_is_enough_for_a_consumer(
    begin: Callable[..., Running], database: Database, target: Database, mode: str
) -> None:
    """From its beginning on, through a change of partitions, while the others are read by nobody."""
    draw = random.Random(7)
    make_tables(database, "t")
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.wait_begun()
    write_history(database, draw, 5, ("t",))
    feed.wanted = 3
    wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == 3), "not scaled")
    make_tables(database, "late")
    with Consuming(
        of(feed.feed, "late", database), target.server.plain(target.server.url(target.name)), mode
    ) as consuming:
        write_history(database, draw, 20, ("t", "late"))
        feed.wanted = 2
        wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == 2), "not scaled")
        database.admin.execute_raw("ALTER TABLE late ADD COLUMN more INT DEFAULT 5")
        write_history(database, draw, 20, ("t",))
        database.admin.execute_raw("INSERT INTO late VALUES (500,'end',1,6)")
        feed.wait_sent(database)

        def is_level() -> bool:
            consuming.raise_error()
            return "late" in tables_of(target) and rows_of(target) == rows_of(database)

        wait_until(is_level, "the consumer does not get level")
    assert tables_of(target) == {"late"}


def tables_of(database: Database) -> set[str]:
    return {name for (name,) in database.admin.rows("SHOW TABLES")}


def rows_of(database: Database) -> Any:
    return database.admin.rows("SELECT * FROM late ORDER BY id")


@pytest.mark.seldom
@pytest.mark.in_turn("mysql")
def test_a_topic_that_is_not_the_feeds_stops_it_until_it_is_away(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody has put into a table's topic would be taken for its rows; one that was deleted lacks some."""
    monkeypatch.setattr(running, "LOST_SECONDS", 1.0)
    make_tables(database, "t")
    start = feeds.here(database)
    feed = begin()
    feed.wait_begun()
    broker, theirs = Broker(feed.feed.address), of(feed.feed, "u", database).topic
    broker.create(theirs, 1)
    put(feed.feed.address, theirs)
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1)")
    make_tables(database, "u")
    wait_until(lambda: feed.error, "it goes on")
    assert f"Topic {theirs} holds messages already" in str(feed.error)
    delete(broker, theirs)
    again = begin()
    again.is_alone = True
    database.admin.execute_raw("INSERT INTO u VALUES (1,'a',1)")
    again.wait_sent(database)
    assert sent(feed.feed) == logged(database, start)
    check_each(feed.feed)
    delete(broker, of(feed.feed, "t", database).topic)
    database.admin.execute_raw("INSERT INTO t VALUES (2,'a',1)")
    wait_until(lambda: again.error, "it goes on")
    assert "was deleted" in str(again.error)


def put(address: Address, topic: str) -> None:
    producer = Producer(address.settings())
    producer.produce(topic, value=b"x")
    assert producer.flush(30) == 0


def test_the_plan_names_the_topics_and_what_is_in_their_way(kafka: Cluster, database: Database) -> None:
    make_tables(database, "t", "u")
    spec = make_feed_spec(sink=f"kafka://{kafka.bootstrap}/plan-{database.name}", topic_per_table=True, partitions=2)
    address = parse(spec.sink)
    broker, theirs = Broker(address), f"{address.topic}.{database.name}.u"

    def planned() -> Any:
        with database.server.admin(database.name) as session:
            plan = make_feed_plan([session], spec)
        assert plan_json(plan)["topics"] == [address.topic, theirs.removesuffix("u") + "t", theirs]
        return next(check for check in plan.checks if check.name == "topics")

    assert f"2 topics are made for tables ({theirs.removesuffix('u')}t, {theirs})" in planned().sentence
    assert not broker.look([address.topic, theirs])
    broker.create(theirs, 2)
    assert "1 are there, empty; each with 2 partitions" in planned().sentence
    broker.grow([theirs], 3)
    assert (planned().verdict, planned().sentence.split(",")[0]) == (Verdict.REFUSE, f"Topic {theirs} has 3 partitions")
    delete(broker, theirs)
    broker.create(theirs, 2)
    put(address, theirs)
    assert f"Topic {theirs} holds messages already" in planned().sentence
