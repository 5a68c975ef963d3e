"""A lake beside a feed from real servers, as commands: killed, scaled under, altered under, compacted under."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_producer import FeedWriter, layout_of
from tests.support.flow import wait_until
from tests.support.lakes import LakeCommand, LakeServer
from tests.support.private_kafka import private_kafka
from tests.support.running_feed import Running, content, make_tables, start_feed, write_history
from vreplication.feed.dispatch import Rule
from vreplication.feed.lake.manifest import Store
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Kind
from vreplication.mysql.session import connect
from vreplication.state import layout as sidecar

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.either]
KEYS = Rule(way="index-value")


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def bare(database: Database) -> Layout:
    """Without a key: a row that came twice would be seen."""
    with connect(database.server.plain(database.server.url(database.name))) as session:
        session.execute_raw("CREATE TABLE bare (a INT)")
        return layout_of(session, database.name, "bare")


def filling(address: object, lake: Path, *more: str, pauses: Path | None = None) -> LakeCommand:
    words = ("lake", "--from", str(address), "--to", str(lake), "--json", *more)
    return LakeCommand(*words, pauses=pauses)


def numbers(lakes: LakeServer, lake: Path, bare: Layout) -> list[int]:
    return sorted(row["a"] for row in lakes.rows(lake, bare.name))


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    "point",
    [
        "lake.before_manifest",
        *(
            pytest.param(point, marks=pytest.mark.seldom)
            for point in ("lake.before_stage", "lake.files_written", "lake.staged", "lake.after_manifest")
        ),
    ],
)
def test_killed_and_gone_on_with(
    kafka: Cluster, bare: Layout, lakes: LakeServer, lake: Path, tmp_path: Path, point: str
) -> None:
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        for partition in (0, 1):
            feed.row(partition, bare, 1, None, (1,), seq=partition)
            feed.row(partition, bare, 2, None, (2,), seq=partition)
        feed.resolved(1)
    (tmp_path / point).touch()
    with filling(feed.address(), lake, "--until-caught-up", pauses=tmp_path) as first:
        first.reaches(tmp_path, point)
        with pytest.raises(Exception, match="Another process fills the lake"):
            lakes.fill(feed.address(), lake)
        first.kill()
    with feed.transaction():
        feed.row(1, bare, 3, None, (3,))
        feed.resolved(3)
    wait_until(lambda: filled(lakes, feed, lake), "the lock stays")
    assert numbers(lakes, lake, bare) == [1, 1, 2, 2, 3]
    assert len(lakes.changes(lake, bare.name)) == 5
    named = Store(lake).open().paths()
    assert {str(path.relative_to(lake)) for path in lake.glob("tables/*/*")} == named
    assert list((lake / "_work").glob("run-*")) == []


def filled(lakes: LakeServer, feed: FeedWriter, lake: Path) -> bool:
    lakes.fill(feed.address(), lake)
    return True


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("lake.compact.before_removal", marks=pytest.mark.seldom),
        "lake.compact.before_manifest",
        pytest.param("lake.compact.after_manifest", marks=pytest.mark.seldom),
    ],
)
def test_a_compaction_that_is_killed(
    kafka: Cluster, bare: Layout, lakes: LakeServer, lake: Path, tmp_path: Path, point: str
) -> None:
    """It has old files to remove, files to merge, and history to fold; meanwhile the lake goes on."""
    feed = FeedWriter(kafka, 1)
    for t in range(1, 5):
        with feed.transaction():
            feed.row(0, bare, t, None, (t,))
            feed.resolved(t)
        lakes.fill(feed.address(), lake)
        if t == 2:
            lakes.compact(lake)
    (tmp_path / point).touch()
    words = ("lake-compact", "--of", str(lake), "--fold-before", "3", "--keep-minutes", "0")
    with LakeCommand(*words, pauses=tmp_path) as first:
        first.reaches(tmp_path, point)
        with pytest.raises(Exception, match="Another process compacts the lake"):
            lakes.compact(lake)
        with feed.transaction():
            feed.row(0, bare, 5, (1,), (5,))
            feed.resolved(5)
        lakes.fill(feed.address(), lake)
        assert numbers(lakes, lake, bare) == [2, 3, 4, 5]
        first.kill()
    for _ in range(3):
        # Folded, merged, and the old files removed.
        lakes.compact(lake, fold_before=3, keep_seconds=0)
    assert numbers(lakes, lake, bare) == [2, 3, 4, 5]
    named = Store(lake).open().paths()
    assert {str(path.relative_to(lake)) for path in lake.glob("tables/*/*")} == named
    assert len(named) == 1


@pytest.mark.only_on("mysql")
def test_the_lake_is_the_source_at_every_time(
    begin: Callable[..., Running], database: Database, lakes: LakeServer, lake: Path
) -> None:
    """Under a history with a snapshot, a large transaction, an added column, 2 → 4 → 1 partitions, and kills."""
    make_tables(database, "t", "u")
    database.admin.execute_raw("INSERT INTO t VALUES (5,'before',1),(777,'before',2)")
    with database.server.admin() as session:
        sidecar.install(session)
    feed = begin(KEYS, partitions=2, is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    draw, seen = random.Random(7), {}
    address = feed.feed.address
    for step in range(3):
        with filling(address, lake, "--every", "0.3") as command:
            write_history(database, draw, 30, ("t", "u") if step < 2 else ("t",))
            if step == 0:
                database.admin.execute_raw("CREATE TABLE many (id INT PRIMARY KEY, a INT)")
                database.admin.execute_raw(f"INSERT INTO many SELECT seq, seq FROM {sequence(database, 25_000)}")
            if step == 1:
                database.admin.execute_raw("ALTER TABLE u ADD COLUMN z INT")
                database.admin.execute_raw("UPDATE u SET z=n WHERE id<20")
                database.admin.execute_raw("DELETE FROM many WHERE id>10")
            feed.wanted = (4, 1, 1)[step]
            scaled(feed, (2, 3, 3)[step])
            write_history(database, draw, 20, ("t",))
            feed.wait_sent(database)
            t = last_time(feed)
            comes_to(command, t)
            seen[t] = {table: held(database, table) for table in ("t", "u", "many")}
            if step < 2:
                # Anywhere.
                write_history(database, draw, 20, ("t",))
                threading.Event().wait(draw.random())
                command.kill()
            else:
                command.send(signal.SIGINT)
                assert command.ended() == 130
    for t, tables in seen.items():
        for table, rows in tables.items():
            assert in_the_lake(lakes, lake, database, table, t) == rows, (t, table)
    lakes.compact(lake, fold_before=sorted(seen)[1])
    for t in sorted(seen)[1:2]:
        for table, rows in seen[t].items():
            assert in_the_lake(lakes, lake, database, table, t) == rows, (t, table)


def is_filled(feed: Running) -> bool:
    found = feed.status.progress.sources[0].filled if feed.status else None
    return found is not None and found.is_done


def sequence(database: Database, count: int) -> str:
    if database.server.is_mariadb:
        return f"seq_1_to_{count}"
    digits = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4)"
    tables = ", ".join(f"{digits} d{at}" for at in range(7))
    number = "+".join(f"d{at}.d*{5**at}" for at in range(7))
    return f"(SELECT 1+{number} AS seq FROM {tables} WHERE {number} < {count}) numbers"


def scaled(feed: Running, generation: int) -> None:
    def now() -> int:
        assert feed.error is None, feed.error
        return feed.status.progress.generation if feed.status else 0

    wait_until(lambda: now() == generation, "it is not scaled")


def comes_to(command: LakeCommand, t: int) -> None:
    with contextlib.suppress(AssertionError):
        wait_until(lambda: command.watermark >= t or not command.is_going, "the lake does not come on", 240)
    assert command.watermark >= t, command.text


def last_time(feed: Running) -> int:
    return max(tags.t for messages in content(feed.feed).values() for tags, _, _ in messages if tags.kind is Kind.ROW)


def held(database: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.admin.rows(f"SELECT * FROM {table}"))


def in_the_lake(lakes: LakeServer, lake: Path, database: Database, table: str, t: int) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lakes.rows(lake, f"{database.name}.{table}", t))


def test_values_of_every_kind(begin: Callable[..., Running], database: Database, lakes: LakeServer, lake: Path) -> None:
    database.admin.execute_raw(
        "CREATE TABLE k (id INT UNSIGNED PRIMARY KEY, b BIGINT UNSIGNED, d DECIMAL(20,4), f FLOAT, g DOUBLE,"
        " v VARCHAR(20) CHARACTER SET utf8mb4, x VARBINARY(9), y DATE, dt DATETIME(6), ts TIMESTAMP(3), tm TIME(2),"
        " e ENUM('a','ß'), s SET('p','q','r'), j JSON, bi BIT(5), yr YEAR)"
    )
    feed = begin()
    feed.wait_begun()
    database.admin.execute_raw("SET time_zone='+00:00'")
    database.admin.execute_raw(
        "INSERT INTO k VALUES (4294967295, 9223372036854775808, -12.3400, 0.1, 1e-7, 'ä😀''', X'00FF', '2024-02-29',"
        " '9999-12-31 23:59:59.999999', '2024-02-29 12:00:00.125', '-838:59:59', 'ß', 'p,r', '[1, \"x\"]', b'10101',"
        " 2024), (1" + ",NULL" * 15 + ")"
    )
    feed.wait_sent(database)
    lakes.fill(feed.feed.address, lake)
    one, two = sorted(lakes.rows(lake, f"{database.name}.k"), key=lambda row: row["id"])
    assert set(one.values()) == {1, None}
    assert two | {"j": json.loads(two["j"])} == {
        **{"id": 4294967295, "b": 9223372036854775808, "d": -12.34, "f": 0.1, "g": 1e-7, "v": "ä😀'", "x": "AP8="},
        **{"y": "2024-02-29", "dt": "9999-12-31T23:59:59.999999", "ts": "2024-02-29T12:00:00.125000Z"},
        **{"tm": "-838:59:59.00", "e": "ß", "s": ["p", "r"], "j": [1, "x"], "bi": 21, "yr": 2024},
    }


@pytest.mark.only_on("mysql")
@pytest.mark.seldom
def test_kafka_goes_away(bare: Layout, lakes: LakeServer, lake: Path) -> None:
    """It is waited for, by the same process."""
    with private_kafka() as cluster:
        feed = FeedWriter(cluster, 2)
        with feed.transaction():
            feed.row(0, bare, 1, None, (1,))
            feed.resolved(1)
        with filling(feed.address(), lake, "--every", "0.3") as command:
            comes_to(command, 1)
            cluster.kill(0)
            wait_until(lambda: "Waiting for it" in command.text or not command.is_going, "it says nothing", 240)
            cluster.start(0)
            with feed.transaction():
                feed.row(1, bare, 2, None, (2,))
                feed.resolved(2)
            comes_to(command, 2)
            command.send(signal.SIGTERM)
            assert command.ended() == 130, command.text
    assert numbers(lakes, lake, bare) == [1, 2]


@pytest.mark.only_on("mysql")
@pytest.mark.seldom
def test_commands(kafka: Cluster, bare: Layout, lakes: LakeServer, lake: Path, tmp_path: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, bare, 1, None, (1,))
        feed.row(0, bare, 2, None, (2,))
        feed.resolved(2)
    with LakeCommand("lake-read", "--from", str(lake)) as none:
        assert (none.ended(), "There is no lake in" in none.text) == (2, True), none.text
    with LakeCommand(
        "lake", "--from", str(feed.address()), "--to", str(lake), VREPLICATION_SPARK_KAFKA_JARS=str(tmp_path)
    ) as none:
        assert (none.ended(), "Spark's Kafka connector is not in" in none.text) == (2, True), none.text
    with filling(feed.address(), lake, "--until-caught-up") as one:
        assert one.ended() == 0, one.text
        assert json.loads(one.said[-1]) == {"event": "caught_up", "manifest": 2, "watermark": 2}
    with LakeCommand("lake-read", "--from", str(lake)) as one:
        assert one.ended() == 0
        assert json.loads(one.text)["tables"] == [{"table": bare.name, "files": 1, "changes": 2}]
    with LakeCommand("lake-read", "--from", str(lake), "--table", bare.name, "--as-of", "1") as one:
        assert (one.ended(), one.said) == (0, ['{"a":1}'])
    with LakeCommand("lake-read", "--from", str(lake), "--table", bare.name, "--as-of", "soon") as one:
        assert (one.ended(), "'soon' is no time" in one.text) == (2, True), one.text
