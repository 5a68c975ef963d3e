"""Messages that are larger than a topic takes, by each policy: what the source has is what the target gets."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from sandbox.servers import RunningServer
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import Running, check_numbers, content, start_feed
from vreplication.errors import Refused, Terminal, Transient
from vreplication.feed import claims, running
from vreplication.feed import feed as feed_module
from vreplication.feed.broker import Broker
from vreplication.feed.check import Broken, check
from vreplication.feed.consume import asking
from vreplication.feed.dispatch import Rule
from vreplication.feed.large import OVERHEAD, parse
from vreplication.feed.messages import Kind
from vreplication.mysql.session import Session, SqlError, connect

pytestmark = pytest.mark.either

KEYS = Rule(way="index-value")
LIMIT = 20_000
LETTERS = 'zß水🍌"\\\x00\n'
TABLE = (
    "CREATE TABLE docs (id INT PRIMARY KEY, t LONGTEXT CHARACTER SET utf8mb4, b LONGBLOB, j JSON, ts TIMESTAMP(6) NULL,"
    " f FLOAT, s SET('x','y') CHARACTER SET latin1)"
)


@pytest.fixture
def source(server: RunningServer) -> Iterator[Database]:
    made = create_database(server, grants="feed_source")
    made.admin.execute_raw(TABLE)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def target(server: RunningServer, source: Database, _pair_servers: None) -> Iterator[Database]:
    made = create_database(server_of("mariadb" if server.is_mariadb else "mysql", "target"), source.name)
    made.admin.execute_raw(TABLE)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def begin(kafka: Cluster, source: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    (tmp_path / "claims").mkdir()
    yield from start_feed(kafka, source, tmp_path)


@pytest.fixture
def writing(source: Database) -> Iterator[Session]:
    with source.server.admin(source.name) as session:
        yield session


def policy(way: str, folder: Path) -> Any:
    return parse(f"claim-check:{folder / 'claims'}" if way == "claim-check" else way)


def write(session: Session, draw: random.Random, count: int) -> None:
    """Rows that fit and rows that do not, in transactions of a few."""
    for _ in range(count):
        with session.transaction():
            for _ in range(draw.randint(1, 3)):
                _change(session, draw)


def _change(session: Session, draw: random.Random) -> None:
    key, kind = draw.randint(1, 8), draw.random()
    text = "".join(draw.choices(LETTERS, k=draw.choice([3, 3, 5_000])))
    data = draw.randbytes(draw.choice([0, 30, 40_000]))
    document = '{"a":["' + "ü\\\\" * draw.choice([1, 4_000]) + '"]}'
    if kind < 0.4:
        sql = "REPLACE INTO docs VALUES (%s,%s,%s,%s,NOW(6),0.1,'x,y')"
        session.execute(sql, (key, text, data, document))
    elif kind < 0.55:
        session.execute("DELETE FROM docs WHERE id=%s", (key,))
    elif kind < 0.7:
        session.execute("UPDATE IGNORE docs SET id=%s WHERE id=%s", (draw.randint(1, 8), key))
    else:
        session.execute("UPDATE docs SET t=%s, b=%s, f=f+1 WHERE id=%s", (text, data, key))


def level(source: Database, target: Database) -> bool:
    sql = "SELECT id, SHA2(t,256), SHA2(b,256), CAST(j AS CHAR), ts, f, s FROM docs ORDER BY id"
    found: list[list[Any]] = []
    for each in (source, target):
        with each.server.admin(each.name) as session:
            session.execute("SET time_zone='+00:00'")
            found.append(session.rows(sql))
    return found[0] == found[1]


class _Killed(Transient):
    """What a pause point raises here: the run ends there, and the next begins at the progress."""


POINTS = ("feed.claim.begin", "feed.claim.written", "feed.claim.synced", "feed.commit")


def kill_at_times(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> list[str]:
    killed: list[str] = []

    def reach(point: str) -> None:
        if point in POINTS and len(killed) < 12 and draw.random() < 0.2:
            killed.append(point)
            raise _Killed(f"killed at {point}")

    for module in (claims, feed_module):
        monkeypatch.setattr(module, "reach", reach)
    monkeypatch.setattr(running, "_PAUSES", (0.01,))
    return killed


@pytest.mark.parametrize("way", ["parts", "claim-check", "key-only"])
@pytest.mark.in_turn
def test_the_target_gets_what_the_source_has(
    begin: Callable[..., Running],
    source: Database,
    target: Database,
    writing: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    draw = random.Random(way)
    feed = begin(KEYS, partitions=2, large=policy(way, tmp_path), most_bytes=LIMIT)
    feed.wait_begun()
    killed = kill_at_times(monkeypatch, draw)
    write(writing, draw, 15)
    more = {"sources": (source.url,)} if way == "key-only" else {}
    with Consuming(feed.feed.address, target.url, "row", more=more) as one:
        write(writing, draw, 40)
        said = "ß" * (0 if way == "key-only" else LIMIT)
        writing.execute_raw(f"ALTER TABLE docs /* {said} */ COMMENT 'a statement that is too large'")
        write(writing, draw, 15)
        feed.wait_sent(source)
        wait_until(lambda: one.error or level(source, target), "the target is not level")
        one.raise_error()
    check_numbers(feed.feed)
    sizes = [len(key or b"") + len(value or b"") for each in content(feed.feed).values() for _, key, value in each]
    assert max(sizes) <= LIMIT - OVERHEAD
    report = check(feed.feed.address)
    tags = [tags for each in content(feed.feed).values() for tags, _, _ in each]
    assert any(each.part for each in tags) == (way == "parts")
    assert any(each.is_key_only for each in tags) == (way == "key-only")
    named = {each.claim for each in tags if each.claim}
    files = sorted((tmp_path / "claims").rglob("*.json"))
    if way == "claim-check":
        assert {"feed.claim.written", "feed.claim.synced"}.intersection(killed)
        assert report.claims == sum(bool(each.claim) for each in tags) > 10
        assert len(files) == len(named), "each file is named, and a replay writes the same one"
    assert bool(files) == bool(named) == (way == "claim-check")
    _check_transactions(feed, source, target, tmp_path, way)


def _check_transactions(feed: Running, source: Database, target: Database, folder: Path, way: str) -> None:
    """From the beginning, in mode transaction, and with the files elsewhere."""
    target.admin.execute_raw("DELETE FROM docs")
    (folder / "claims").rename(folder / "moved")
    more = {"claims": folder / "moved"}
    if way == "key-only":
        with pytest.raises(Terminal, match=r"has the key of a row alone.*--mode row with --source"):
            raise Consuming(feed.feed.address, target.url, "transaction", "g2", more=more).failed(60)
        return
    with Consuming(feed.feed.address, target.url, "transaction", "g2", more=more) as one:
        wait_until(lambda: one.error or level(source, target), "the target is not level")
    if way == "claim-check":
        with pytest.raises(Broken, match=r"its value cannot be had: There is no directory .*claims"):
            check(feed.feed.address)
        next((folder / "moved").rglob("*.json")).unlink()
        with pytest.raises(Broken, match=r"its value cannot be had: File .* is gone"):
            check(feed.feed.address, claims=folder / "moved")


def test_a_row_that_does_not_fit_stops_the_feed_until_it_may_go(
    begin: Callable[..., Running], kafka: Cluster, source: Database, target: Database, writing: Session, tmp_path: Path
) -> None:
    feed = begin(large=policy("stop", tmp_path))
    feed.wait_begun()
    _set_limit(kafka, feed, LIMIT)
    feed.stop()
    feed = begin(large=policy("stop", tmp_path))
    with writing.transaction():
        writing.execute("INSERT INTO docs (id,t) VALUES (1,'small')")
        writing.execute("INSERT INTO docs (id,t) VALUES (2,%s)", ("ß" * 30_000,))
    writing.execute("INSERT INTO docs (id,t) VALUES (3,'behind it')")
    wait_until(lambda: feed.error, "it does not stop")
    said = str(feed.error)
    assert f"A row of {source.name}.docs (transaction " in said
    assert "Nothing is lost: raise max.message.bytes" in said
    assert not [tags for tags, _, _ in content(feed.feed)[0] if tags.kind is Kind.ROW]
    again = begin(large=policy("claim-check", tmp_path))
    again.wait_sent(source)
    assert len(list((tmp_path / "claims").rglob("*.json"))) == 1
    writing.execute("UPDATE docs SET t=CONCAT(t,'x') WHERE id=2")
    again.wait_sent(source)
    again.stop()
    last = begin(large=policy("stop", tmp_path))
    writing.execute("UPDATE docs SET t=CONCAT(t,'y') WHERE id=2")
    wait_until(lambda: last.error, "it does not stop")
    _set_limit(kafka, feed, 1_000_000)
    last = begin(large=policy("stop", tmp_path))
    last.wait_sent(source)
    check_numbers(last.feed)
    assert check(last.feed.address).rows == 5
    with Consuming(last.feed.address, target.url, "transaction") as one:
        wait_until(lambda: one.error or level(source, target), "the target is not level")


def _set_limit(kafka: Cluster, feed: Running, most: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, feed.feed.address.topic, incremental_configs=[entry])
    admin = kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(30)
    broker = Broker(feed.feed.address)

    def is_set() -> bool:
        found = broker.find(feed.feed.address.topic)
        return found is not None and found.most_bytes == most

    wait_until(is_set, "the topic's limit is not set")


def test_a_row_is_never_read_from_the_source_as_it_was_before_its_message(
    begin: Callable[..., Running], source: Database, target: Database, writing: Session, tmp_path: Path
) -> None:
    """A server puts a transaction into its log a moment before others see it. Who asks then has to wait for it."""
    feed = begin(large=policy("key-only", tmp_path), most_bytes=LIMIT)
    feed.wait_begun()
    writing.execute("INSERT INTO docs (id,t) VALUES (1,%s),(2,%s),(3,%s)", ("a" * 30_000,) * 3)
    feed.wait_sent(source)
    writing.execute("DELETE FROM docs WHERE id=2")
    writing.execute("UPDATE docs SET id=4 WHERE id=3")
    feed.wait_sent(source)
    writing.execute_raw("BEGIN")
    writing.execute("UPDATE docs SET t='new' WHERE id=1")
    away = dataclasses.replace(source.url, port=1)
    with Consuming(feed.feed.address, target.url, "row", more={"sources": (away, source.url)}) as one:
        waits = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state='LOCK WAIT'"
        wait_until(lambda: one.error or source.admin.value(waits), "nobody waits for the row")
        assert target.admin.rows("SELECT id FROM docs") == []
        # A tool that ends what waits: it is asked again, and waits again.
        asked = source.admin.value(
            "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state='LOCK WAIT'"
        )
        source.admin.execute_raw(f"KILL QUERY {asked}")
        is_asked = f"{waits} AND trx_mysql_thread_id<>{asked}"
        wait_until(lambda: one.error or source.admin.value(is_asked), "it is not asked again")
        writing.execute_raw("COMMIT")
        wait_until(lambda: one.error or level(source, target), "the target is not level")
    assert [(id, text[:3]) for id, text in target.admin.rows("SELECT id, t FROM docs")] == [(1, "new"), (4, "aaa")]


def test_a_row_that_was_asked_may_have_a_value_that_another_one_has_given_up(
    begin: Callable[..., Running],
    source: Database,
    target: Database,
    writing: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the other one out, which comes again; nothing is wrong with values that the target has computed."""
    table = "id INT PRIMARY KEY, u INT UNIQUE, at TIMESTAMP NOT NULL, v DATE AS (DATE(at)) STORED, t LONGTEXT"
    writing.execute_raw("SET time_zone='+00:00'")
    for each in (writing, target.admin):
        each.execute_raw(f"CREATE TABLE stamped ({table})")
    feed = begin(large=policy("key-only", tmp_path), most_bytes=LIMIT)
    feed.wait_begun()
    sql = "INSERT INTO stamped (id,u,at,t) VALUES (1,1,'2024-05-06',%s),(2,2,'2024-05-06','small')"
    writing.execute(sql, ("a" * 30_000,))
    feed.wait_sent(source)
    changes = ["UPDATE stamped SET u=2 WHERE id=1", "UPDATE stamped SET u=3 WHERE id=2"]

    def has_both() -> bool:
        return target.admin.rows("SELECT id, u FROM stamped ORDER BY id") == [(1, 2), (2, 3)]

    monkeypatch.setattr(asking, "reach", lambda _: [writing.execute_raw(changes.pop()) for _ in range(len(changes))])
    with Consuming(feed.feed.address, target.url, "row", more={"sources": (source.url,)}) as one:
        wait_until(lambda: one.error or has_both(), "the target is not level")


def test_a_row_is_not_taken_from_another_table_that_has_the_name_by_now(
    begin: Callable[..., Running], source: Database, target: Database, writing: Session, tmp_path: Path
) -> None:
    """Asked behind the RENAME it would be missing, for good. Asked before it, nothing is wrong."""
    feed = begin(large=policy("key-only", tmp_path), most_bytes=LIMIT)
    feed.wait_begun()

    def consuming() -> Consuming:
        return Consuming(feed.feed.address, target.url, "row", more={"sources": (source.url,)})

    def change(id: int) -> str:
        writing.execute("INSERT INTO docs (id,t) VALUES (%s,%s)", (id, "a" * 30_000))
        return f"RENAME TABLE docs TO docs_{id}, docs_new TO docs"

    with consuming() as one:
        rename = change(1)
        wait_until(lambda: one.error or level(source, target), "the target is not level")
        writing.execute_raw("CREATE TABLE docs_new LIKE docs")
        writing.execute_raw(rename)
        wait_until(lambda: one.error or target.admin.rows("SHOW TABLES LIKE 'docs_1'"), "the RENAME does not come")
    assert target.admin.rows("SELECT id FROM docs_1") == [(1,)]
    rename = change(2)
    writing.execute_raw("CREATE TABLE docs_new LIKE docs")
    writing.execute_raw(rename)
    writing.execute("INSERT INTO docs (id,t) VALUES (3,'small')")
    feed.wait_sent(source)
    for _ in range(2):
        with pytest.raises(Terminal, match="asked of the source when it had run this already"):
            raise consuming().failed(60)
    target.admin.execute_raw(rename)
    with consuming() as again:
        wait_until(lambda: again.error or level(source, target), "by hand it is not found done")
    # What is dropped takes along what was asked of it.
    writing.execute("INSERT INTO docs (id,t) VALUES (4,%s)", ("a" * 30_000,))
    for sql in ("CREATE TABLE docs_new LIKE docs", "DROP TABLE docs", "RENAME TABLE docs_new TO docs"):
        writing.execute_raw(sql)
    writing.execute("INSERT INTO docs (id,t) VALUES (5,'small')")
    feed.wait_sent(source)

    def is_level() -> bool:
        # For a moment there is none.
        with contextlib.suppress(SqlError):
            return level(source, target)
        return False

    with consuming() as last:
        wait_until(lambda: last.error or is_level(), "the table that was made anew is not level")


@pytest.mark.only_on("mysql")
def test_a_source_is_asked_only_where_it_is_the_feeds(
    begin: Callable[..., Running], source: Database, target: Database, writing: Session, tmp_path: Path
) -> None:
    feed = begin(large=policy("key-only", tmp_path), most_bytes=LIMIT)
    feed.wait_begun()
    writing.execute("INSERT INTO docs (id,t) VALUES (1,%s)", ("a" * 30_000,))
    feed.wait_sent(source)
    with pytest.raises(Terminal, match=r"no source to ask.*--source"):
        raise Consuming(feed.feed.address, target.url, "row").failed(60)
    with pytest.raises(Terminal, match="which is none of the sources given"):
        raise Consuming(feed.feed.address, target.url, "row", more={"sources": (target.url,)}).failed(60)
    writing.execute("ALTER TABLE docs DROP COLUMN f")
    with pytest.raises(Terminal, match=r"has no column f any more.*begin again with a copy"):
        raise Consuming(feed.feed.address, target.url, "row", more={"sources": (source.url,)}).failed(60)
    with connect(target.url) as session:
        assert session.rows("SELECT * FROM docs") == []


@pytest.mark.parametrize(
    "changes",
    [
        ("UPDATE docs SET f=f+1 WHERE id<20",),
        ("DELETE FROM docs WHERE id<20", "INSERT INTO docs (id, f) SELECT id+1, f FROM docs WHERE id<20"),
        ("UPDATE docs SET id=id+100, f=f+1 WHERE id<20",),
    ],
    ids=["update", "delete", "key"],
)
def test_in_row_mode_a_key_that_may_come_in_another_partition_ends_it_before_it_is_written(
    begin: Callable[..., Running], source: Database, target: Database, writing: Session, changes: tuple[str, ...]
) -> None:
    """Dispatch by columns that are not of the key: with the DELETE behind the INSERT the row would be gone."""
    for each in (writing, target.admin):
        # A column that may hold NULL decides nothing.
        each.execute_raw("ALTER TABLE docs MODIFY f INT NOT NULL")
    writing.execute_raw("INSERT INTO docs (id, f) VALUES " + ",".join(f"({n},{n})" for n in range(1, 31)))
    feed = begin(Rule(way="columns", columns=("f",)), partitions=3)
    feed.wait_begun()
    writing.execute_raw("UPDATE docs SET b='1'")
    with Consuming(feed.feed.address, target.url, "row") as one:
        wait_until(lambda: one.error or level(source, target), "the target is not level")
        one.raise_error()
    for sql in changes:
        writing.execute_raw(sql)
    with pytest.raises(Refused, match=r"has a row that gives up its key.*--mode transaction"):
        raise Consuming(feed.feed.address, target.url, "row").failed(180)
    assert target.admin.value("SELECT COUNT(*) FROM docs") == 30
    with Consuming(feed.feed.address, target.url, "transaction", "g2") as other:
        wait_until(lambda: other.error or level(source, target), "the target is not level")
        other.raise_error()


@pytest.mark.parametrize("rule", [KEYS, Rule(way="columns", columns=("f",))], ids=str)
def test_in_row_mode_a_key_that_rows_are_sent_by_may_change(
    begin: Callable[..., Running], source: Database, target: Database, writing: Session, rule: Rule
) -> None:
    """Each of its values has one partition, also of text."""
    for each in (writing, target.admin):
        each.execute_raw("CREATE TABLE named (k VARCHAR(20), f INT, PRIMARY KEY (k, f))")
    feed = begin(rule, partitions=3)
    feed.wait_begun()
    writing.execute_raw("INSERT INTO named VALUES " + ",".join(f"('{n}',{n})" for n in range(30)))
    writing.execute_raw("UPDATE named SET k=CONCAT(k,'x')")
    writing.execute_raw("UPDATE named SET f=f+1")
    writing.execute_raw("DELETE FROM named WHERE f>20")
    sql = "SELECT k, f FROM named ORDER BY k"
    feed.wait_sent(source)
    with Consuming(feed.feed.address, target.url, "row") as one:
        wait_until(lambda: one.error or writing.rows(sql) == target.admin.rows(sql), "the target is not level")
        one.raise_error()
