"""A feed of two servers, MariaDB and MySQL: one order, each change once, and no row before its time."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.integration.test_feed_cli import call, running
from tests.integration.test_feed_producer import POINTS, SCALING, Killer, kill  # noqa: F401
from tests.support import feeds, soaked
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import (
    Running,
    check_numbers,
    content,
    logged,
    make_tables,
    origin,
    seeds,
    sent,
    start_feed,
    write_history,
)
from vreplication.feed import merge
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import read_row
from vreplication.feed.messages import Kind
from vreplication.mysql.server import identity_of
from vreplication.state import feeds as sidecar
from vreplication.state import layout
from vreplication.workflows.changefeed.pulse import Pulse


@pytest.fixture
def both(_pair_servers: None) -> Iterator[tuple[Database, Database]]:
    first = create_database(server_of("mysql", "source"), grants="feed_source")
    made = [first, create_database(server_of("mariadb", "source"), first.name, grants="feed_source")]
    for each in made:
        feeds.describe_fully(each)
        with each.server.admin() as session:
            layout.install(session)
    try:
        yield made[0], made[1]
    finally:
        for each in made:
            each.drop()


@pytest.fixture
def pulse(both: tuple[Database, Database]) -> Iterator[Pulse]:
    """What moves the time of a source that is silent."""
    made = Pulse([each.url for each in both], "feed-of-two", 0.1)
    made.start()
    yield made
    made.close()


@pytest.fixture
def begin(kafka: Cluster, both: tuple[Database, Database], tmp_path: Path) -> Iterator[Callable[..., Running]]:
    origins = tuple(map(origin, both))
    yield from (functools.partial(start, sources=origins) for start in start_feed(kafka, both[0], tmp_path))


def times(feed: Running) -> list[tuple[int, str]]:
    """Of all rows: t and source, by t."""
    found = [
        (tags.t, tags.source)
        for messages in content(feed.feed).values()
        for tags, _, _ in messages
        if tags.kind is Kind.ROW
    ]
    return sorted(found)


def check_each(feed: Running, both: tuple[Database, Database], starts: list[Any]) -> None:
    """Each source's rows are what its log says; no two of them have a time of the other."""
    for database, start in zip(both, starts, strict=True):
        assert sent(feed.feed, identity_of(database.admin)) == logged(database, start)
    check_numbers(feed.feed)
    numbers = {identity_of(database.admin): number for number, database in enumerate(both)}
    assert all(t % 2 == numbers[source] for t, source in times(feed))


@pytest.mark.parametrize("seed", seeds(1))
def test_both_logs_stand_in_the_topic_once_wherever_it_is_killed(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],  # noqa: F811
    both: tuple[Database, Database],
    pulse: Pulse,
    seed: int,
) -> None:
    for each in both:
        make_tables(each, "t", "u")
    starts = [feeds.here(each) for each in both]
    feed = begin(rule=Rule(way=("index-value", "table")[seed % 2]), partitions=2)
    feed.wait_begun()
    killer = kill(seed, (*POINTS, *SCALING), share=0.1)
    for wanted in (4, 2, 3):
        feed.wanted = wanted
        writers = [
            threading.Thread(target=write_history, args=(each, random.Random(seed + wanted), 25, ("t", "u")))
            for each in both
        ]
        for writer in writers:
            writer.start()
        wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == wanted), "not scaled", 150)  # noqa: B023
        for writer in writers:
            writer.join()
    killer.is_on = False
    for number, each in enumerate(both):
        feed.wait_sent(each, number=number)
    assert killer.killed
    check_each(feed, both, starts)
    soaked.note("two servers, partitions 2 → 4 → 2 → 3", "both", len(killer.killed), feed)


def test_a_large_transaction_of_one_does_not_lose_what_the_other_writes(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],  # noqa: F811
    both: tuple[Database, Database],
    pulse: Pulse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has to wait does not fit into memory; it is killed inside, again and again."""
    monkeypatch.setattr(merge, "_CHUNK_BYTES", 4_000)
    monkeypatch.setattr(merge.Merge.__init__, "__kwdefaults__", {"memory_bytes": 20_000, "disk_bytes": 200_000})
    for each in both:
        make_tables(each, "t")
    starts = [feeds.here(each) for each in both]
    feed = begin(rule=Rule(way="index-value"), partitions=3, commit_seconds=0.01)
    feed.wait_begun()
    killer = kill(2, ("feed.before_commit", "feed.after_commit"), share=0.2)
    for each in both:
        each.admin.execute_raw(
            "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) "
            "SELECT a.i*1000+b.i, 'x', 0 FROM n a JOIN n b WHERE a.i<=40"
        )
        write_history(each, random.Random(1), 30, ("t",))
    wait_until(lambda: len(killer.killed) >= 2 or feed.error, "never killed")
    killer.is_on = False
    for number, each in enumerate(both):
        feed.wait_sent(each, 90, number=number)
    check_each(feed, both, starts)


def test_rows_wait_for_a_source_that_is_silent_until_its_time_goes_on(
    begin: Callable[..., Running], both: tuple[Database, Database]
) -> None:
    mysql, mariadb = both
    for each in both:
        make_tables(each, "t")
    feed = begin(commit_seconds=3600.0)
    feed.wait_begun()
    mysql.admin.execute_raw("INSERT INTO t VALUES (1,'a',0)")
    status = feed.status
    wait_until(lambda: feed.status is not status or feed.error, "the other's silence ended the feed", 10, 0.05)
    assert not times(feed)
    with mariadb.server.admin() as session:
        session.execute_raw("RENAME TABLE _vreplication.feed TO _vreplication.feed_away")
        mute = Pulse([mariadb.url], "feed-of-two", 0.05)
        mute.start()
        wait_until(lambda: mute.waits, "it does not say for whom the feed waits")
        session.execute_raw("RENAME TABLE _vreplication.feed_away TO _vreplication.feed")
        wait_until(lambda: not mute.waits, "it says so still")
        mute.close()
        beat = Pulse([mariadb.url], "feed-of-two", 0.05)
        beat.start()
        wait_until(lambda: feed.error or times(feed), "the row does not come")
        beat.close()
        assert sidecar.find(session, "feed-of-two") is not None
    (found,) = content(feed.feed).values()
    (change,) = [read_row(key, value) for tags, key, value in found if tags.kind is Kind.ROW]
    assert change.after is not None
    assert change.after["id"].value == 1


def test_a_source_with_a_time_that_is_still_to_be_is_named(
    begin: Callable[..., Running], both: tuple[Database, Database], pulse: Pulse
) -> None:
    """Its rows wait for the other source's to come to that time: nothing else would tell."""
    my, maria = both
    for each in both:
        make_tables(each, "t")
    feed = begin()
    feed.wait_begun()
    with maria.server.admin(maria.name) as session:
        session.execute_raw("INSERT INTO t VALUES (1,'now',1)")
        assert feed.warned == []
        session.execute_raw("SET timestamp=UNIX_TIMESTAMP('2037-01-02 03:04:05')")
        session.execute_raw("INSERT INTO t VALUES (2,'then',1)")
        session.execute_raw("SET timestamp=DEFAULT")
        session.execute_raw("INSERT INTO t VALUES (3,'behind',1)")
    wait_until(lambda: feed.error or feed.warned, "nothing is told")
    my.admin.execute_raw("INSERT INTO t VALUES (4,'other',1)")
    feed.wait_sent(my)
    (told,) = feed.warned
    assert f"Source {identity_of(maria.admin)} has committed transaction" in told
    assert "at 2037-01-02 03:04:05 UTC" in told
    assert {after["id"] for _, _, after in sent(feed.feed)} == {1, 4}


def test_two_servers_by_command_into_a_third(both: tuple[Database, Database], kafka: Cluster, tmp_path: Path) -> None:
    mysql, mariadb = both
    mysql.admin.execute_raw("CREATE TABLE orders (id INT PRIMARY KEY, a VARCHAR(9))")
    mariadb.admin.execute_raw("CREATE TABLE people (id INT PRIMARY KEY, a VARCHAR(9))")
    files = [tmp_path / "mysql", tmp_path / "mariadb"]
    for file, each in zip(files, both, strict=True):
        url = each.url
        file.write_text(
            f"mysql+pymysql://{url.user}:{each.password}@{url.host}:{url.port}/{each.name}?ssl_disabled=true"
        )
        file.chmod(0o600)
    sink, feed = f"kafka://{kafka.bootstrap}/{mysql.name}", f"f{mysql.name}"
    servers = [word for file in files for word in ("--source-file", str(file))]
    twice = ["--source-file", str(files[0])] * 2
    code, _, err = call("changefeed", *twice, "--sink", sink, "--workflow", feed, "--yes")
    assert (code, "Two of the sources are one server" in err) == (2, True), err
    target = create_database(server_of("mariadb", "target"), mysql.name)
    try:
        target.admin.execute_raw("CREATE TABLE orders (id INT PRIMARY KEY, a VARCHAR(9))")
        _follow(both, target, servers, sink, feed)
    finally:
        target.drop()


def _follow(both: tuple[Database, Database], target: Database, servers: list[str], sink: str, feed: str) -> None:
    mysql, mariadb = both
    asked = (*servers, "--sink", sink, "--workflow", feed, "--partitions", "2", "--dispatch", "index-value", "--yes")
    with running("changefeed", *asked):
        wait_until(lambda: _told(mysql, feed).get("topic"), "the feed does not begin", 60, 0.5)
        mysql.admin.execute_raw("INSERT INTO orders VALUES (1,'a'),(2,'b')")
        mariadb.admin.execute_raw("INSERT INTO people VALUES (1,'c')")
        mariadb.admin.execute_raw("ALTER TABLE people ADD COLUMN z INT DEFAULT 5")
    code, _, err = call("resume", feed, *servers[:2])
    assert (code, "was begun with 2 source servers" in err) == (2, True), err
    mysql.admin.execute_raw("DELETE FROM orders WHERE id=2")
    with running("resume", feed, *servers):
        mariadb.admin.execute_raw("INSERT INTO people VALUES (2,'d',6)")
        target.admin.execute_raw("CREATE TABLE people (id INT PRIMARY KEY, a VARCHAR(9))")
        with running("consume", "--from", sink, "--mode", "transaction", target=target):
            wait_until(lambda: _are_level(both, target), "the target is not level")
    code, out, err = call("feed-check", "--from", sink)
    assert code == 0, out + err


def _told(database: Database, feed: str) -> dict[str, Any]:
    with database.server.admin() as session:
        found = sidecar.find(session, feed)
    return found[1] if found else {}


def _are_level(both: tuple[Database, Database], target: Database) -> bool:
    pairs = zip(both, ("orders", "people"), strict=True)
    return all(
        each.admin.rows(f"SELECT * FROM {table} ORDER BY id") == target.admin.rows(f"SELECT * FROM {table} ORDER BY id")
        for each, table in pairs
    )
