"""A feed and its consumer as commands, by the users of sql/grants/: from one server into another."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from sandbox.servers import RunningServer
from tests.support import feeds
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.private_kafka import private_kafka
from tests.support.rows import make_feed, workflow_row
from tests.support.running_airflow import free_port
from vreplication.errors import Refused, Transient
from vreplication.feed import snapshot
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.mysql import read_only
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import feeds as feeds_of
from vreplication.state import journal, layout, lease, markers, workflows
from vreplication.workflows import operate
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.changefeed.driver import FeedDriver
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.either


@pytest.fixture
def source(server: RunningServer) -> Iterator[Database]:
    made = create_database(server, grants="feed_source")
    feeds.describe_fully(made)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def target(server: RunningServer, source: Database, _pair_servers: None) -> Iterator[Database]:
    """On a server of the other flavor, under the same name."""
    other = server_of("mysql" if server.is_mariadb else "mariadb", "target")
    made = create_database(other, source.name, grants="feed_target")
    try:
        yield made
    finally:
        made.drop()


def _environment(source: Database | None = None, target: Database | None = None) -> dict[str, str]:
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name, database in (("VREPLICATION_SOURCE", source), ("VREPLICATION_TARGET", target)):
        if database is not None:
            found[name] = str(database.url)
            password = "VREPLICATION_PASSWORD" if name.endswith("SOURCE") else "VREPLICATION_TARGET_PASSWORD"
            found[password] = database.password
    return found


def call(*words: str, source: Database | None = None, target: Database | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "vreplication", *words],
        env=_environment(source, target), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@contextmanager
def running(*words: str, source: Database | None = None, target: Database | None = None) -> Iterator[Any]:
    log = subprocess.PIPE if "--log-format" in words else subprocess.STDOUT
    process: Any = subprocess.Popen(
        [sys.executable, "-m", "vreplication", *words],
        env=_environment(source, target), stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.said, process.logged = process.communicate(timeout=180)
        finally:
            process.kill()


def _status(source: Database, feed: str) -> dict[str, Any]:
    code, out, err = call("status", feed, "--json", source=source)
    found: dict[str, Any] = json.loads(out)["feed"] if code == 0 else {"missing": err}
    return found


def _rows(database: Database, table: str = "t") -> list[Any]:
    return database.admin.rows(f"SELECT * FROM {table} ORDER BY id")


def test_a_feed_into_a_database_of_the_other_flavor(source: Database, target: Database, kafka: Cluster) -> None:
    """One topic for all from MySQL, one for each table from MariaDB."""
    feed = f"f{secrets.token_hex(3)}"
    sink = f"kafka://{kafka.bootstrap}/{feed}"
    own, topic = (("--topic-per-table",), f".{source.name}.t") if source.server.is_mariadb else ((), "")
    asked = ("--sink", sink, "--workflow", feed, "--partitions", "2", "--dispatch", "index-value", *own)
    code, out, err = call("plan", "changefeed", *asked, source=source)
    assert code == 0, out + err
    assert "Nothing was touched" in out
    source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), n INT)")
    target.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), n INT, KEY there_already (n))")
    with running("changefeed", *asked, "--yes", "--log-format", "json", source=source) as process:
        wait_until(lambda: _status(source, feed).get("topic") or None, "the feed does not begin", 60, 0.5)
        source.admin.execute_raw("INSERT INTO t VALUES (1,'ä',1),(2,'b',2),(3,NULL,3)")
        source.admin.execute_raw("UPDATE t SET id=10 WHERE id=2")
        code, out, _ = call("scale", feed, "--partitions", "4", source=source)
        assert code == 0
        wait_until(lambda: _status(source, feed)["partitions"] == 4, "it is not scaled", 60, 0.5)
        source.admin.execute_raw("ALTER TABLE t ADD COLUMN z INT DEFAULT 5")
        source.admin.execute_raw("CREATE INDEX there_already ON t (n)")
        source.admin.execute_raw("DELETE FROM t WHERE id=3")
        with running("consume", "--from", sink + topic, "--mode", "transaction", target=target):
            wait_until(lambda: _rows(target) == _rows(source), "the target is not level")
            _check_metrics(source, target, feed, feed + topic)
        code, out, err = call("feed-check", "--from", sink + topic, "--json")
        report = json.loads(out)
        assert (code, report["event"], report["generations"], report["ddl"]) == (0, "checked", 2, 8), out + err
    logged = [json.loads(line) for line in process.logged.splitlines()]
    assert {(each["workflow"], each["phase"]) for each in logged} >= {(feed, "streaming")}, logged
    assert any("rows sent" in each["message"] for each in logged), logged
    code, out, err = call("cancel", feed, "--yes", source=source)
    assert (code, "the topic and what it holds stay" in out + err) == (0, True)
    code, _, err = call("changefeed", *asked, "--yes", source=source)
    assert (code, "has ended (cancelled)" in err) == (2, True), err


def test_what_a_foreign_key_deletes_is_logged_or_refused(source: Database, kafka: Cluster) -> None:
    """Otherwise a target would keep the children, and nothing would say so."""
    sql = source.admin.execute_raw
    sql("CREATE TABLE `pa-rent` (id INT PRIMARY KEY)")
    sql(
        "CREATE TABLE `chi-ld` (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES `pa-rent` (id) ON DELETE CASCADE)"
    )
    asked = ("plan", "changefeed", "--sink", f"kafka://{kafka.bootstrap}/{source.name}")
    code, out, err = call(*asked, source=source)
    if source.server.is_mariadb:
        assert (code, f"{source.name}.chi-ld" in out + err, "--cascades ignore" in out + err) == (2, True, True)
        assert call(*asked, "--exclude", f"{source.name}.chi-ld", source=source)[0] == 0
        assert call(*asked, "--cascades", "ignore", source=source)[0] == 0
        return
    assert code == 0, out + err
    sql("INSERT INTO `pa-rent` VALUES (1)")
    sql("INSERT INTO `chi-ld` VALUES (7, 1)")
    start = feeds.here(source)
    sql("DELETE FROM `pa-rent`")
    assert ("chi-ld", {"id": 7, "p": 1}, None) in feeds.read(source, feeds.catalog(source), start)


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_brokers_that_make_topics_by_themselves_make_none_of_ours(source: Database) -> None:
    """Where the feed stands would be in a topic that forgets: with Kafka's defaults a question makes one."""
    source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    feed = f"f{secrets.token_hex(3)}"
    with private_kafka(options={"auto.create.topics.enable": "true"}) as kafka:
        asked = ("changefeed", "--sink", f"kafka://{kafka.bootstrap}/{feed}", "--workflow", feed)
        code, out, err = call("plan", *asked, source=source)
        assert (code, list(kafka.admin().list_topics(timeout=10).topics)) == (0, []), out + err
        with running(*asked, "--yes", source=source):
            wait_until(lambda: _status(source, feed).get("topic") or None, "the feed does not begin", 60, 0.5)
        found = Broker(parse(f"kafka://{kafka.bootstrap}/{feed}")).find(f"_vreplication.{feed}")
        assert found is not None
        assert (found.is_compacted, found.is_cut) == (True, False)
        policy = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, f"_vreplication.{feed}", incremental_configs=[policy])
        admin = kafka.admin()
        admin.incremental_alter_configs([changed])[changed].result(30)
        code, out, err = call(*asked, "--yes", source=source)
        assert (code, "progress would be lost" in out + err) == (1, True), out + err


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
def test_a_feed_whose_kafka_is_gone_for_good_is_ended_by_force(
    source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nothing is known to be safe, so it is not cancelled; with it what is not known is said."""
    monkeypatch.setattr(feeding, "_FENCE_SECONDS", 1.0)
    source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    feed = f"f{secrets.token_hex(3)}"
    with private_kafka() as kafka:
        sink = ("--sink", f"kafka://{kafka.bootstrap}/{feed}")
        with running("changefeed", *sink, "--workflow", feed, "--yes", source=source):
            wait_until(lambda: _status(source, feed).get("topic") or None, "the feed does not begin", 60, 0.5)
        kafka.kill(0)
        words = f"not cancelled yet.*Cancel it again when Kafka answers; `vreplication cancel {feed} --force`"
        with pytest.raises(Transient, match=words):
            operate.cancel(source.url, feed, "me")
        assert _phase(source, feed) == "streaming"
        with running("resume", feed, source=source) as process:
            wait_until(lambda: _is_driven(source, feed), "nobody works on it")
            code, out, err = call("cancel", feed, "--force", "--yes", source=source)
            assert (code, "the producer is not fenced" in out + err) == (0, True), out + err
            assert process.wait(60) == 3
        assert _phase(source, feed) == "cancelled"
        kafka.start(0)
        code, _, err = call("resume", feed, source=source)
        assert (code, "has ended (cancelled)" in err) == (2, True), err
    with connect(source.url) as session:
        told = [each["details"] or "" for each in journal.read(session, feed) if each["event"] == "cancelled"]
    assert ["not known" in each for each in told] == [True]


def _phase(source: Database, feed: str) -> str:
    with connect(source.url) as session:
        return str(workflows.load(session, feed).phase)


def _is_driven(source: Database, feed: str) -> bool:
    with connect(source.url) as session:
        return lease.is_alive(session, feed, lease.DRIVER)


def _check_metrics(source: Database, target: Database, feed: str, topic: str) -> None:
    """Once, and over HTTP, of both servers."""
    port, said = free_port(), list[str]()
    with running("metrics", "--listen", f"127.0.0.1:{port}", source=source, target=target):
        wait_until(lambda: said or said.extend(_asked(f"http://127.0.0.1:{port}/metrics")), "nobody answers")
    found = dict(line.rsplit(" ", 1) for line in said if not line.startswith("#"))
    server = f'server="{source.url.host}:{source.url.port}"'
    mine = f'{server},topic="{feed}",workflow="{feed}"'
    assert found[f"vreplication_feed_generation{{{mine}}}"] == "2.0"
    assert found[f"vreplication_feed_partitions{{{mine}}}"] == "4.0"
    sent = sum(float(v) for k, v in found.items() if k.startswith("vreplication_feed_rows_sent_total") and mine in k)
    assert sent in (5, 6), "three rows, a changed key, which may be two of them, and a deleted row"
    of_topic = f'partition="3",{server},topic="{topic}",workflow="{feed}"'
    assert float(found[f"vreplication_feed_messages_total{{{of_topic}}}"]) >= 1
    assert 0 <= float(found[f"vreplication_feed_lag_seconds{{{mine}}}"]) < 30
    theirs = f'consumer_group="vreplication",server="{target.url.host}:{target.url.port}",topic="{topic}"'
    assert 0 <= float(found[f"vreplication_feed_consumer_lag_seconds{{{theirs}}}"]) < 30
    assert found[f"vreplication_feed_consumer_members{{{theirs}}}"] == "1.0"


def _asked(url: str) -> list[str]:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode()).splitlines()
    return []


@pytest.mark.in_turn
def test_a_feed_goes_on_and_ends_without_its_urls_schema(source: Database, kafka: Cluster) -> None:
    feed = f"f{secrets.token_hex(3)}"
    asked = ("--sink", f"kafka://{kafka.bootstrap}/{feed}", "--workflow", feed, "--yes")
    with running("changefeed", *asked, source=source):
        wait_until(lambda: _status(source, feed).get("topic"), "the feed does not begin", 60, 0.5)
    source.admin.execute_raw(f"DROP DATABASE {source.name}")
    dropped = int(source.admin.value("SELECT UNIX_TIMESTAMP()")) * 1_000_000
    with running("resume", feed, source=source):
        wait_until(lambda: _status(source, feed).get("resolved_micros", 0) >= dropped, "it does not go on", 60, 0.5)
        assert call("scale", feed, "--partitions", "2", source=source)[0] == 0
        code, out, err = call("cancel", feed, "--yes", source=source)
        assert code == 0, out + err
    code, _, err = call("plan", *("changefeed", *asked[:2]), source=source)
    assert (code, "Unknown database" in err) == (2, True), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sink", "mysql://x:1/t"), "does not begin with kafka://"),
        (("--sink", "kafka://x/t"), "names no broker as host:port"),
        (("--sink", "kafka://x:1/"), "is no name of a topic"),
        (("--sink", "kafka://x:1/t?sasl.password=geheim"), "holds a secret"),
        (("--sink", "kafka://x:1/t?acks=0"), "is set by the feed itself"),
        (("--sink", "kafka://x:1/t", "--dispatch", "columns:"), "is not known"),
        (
            ("--sink", "kafka://x:1/t", "--topic-per-table", "--dispatch", "conflict"),
            "does not go with --dispatch conflict",
        ),
        (("--sink", "kafka://x:1/t", "--tables", "shop"), "is no pattern like schema.table"),
        (("--sink", "kafka://x:1/t", "--columns", "shop.t"), "are not valid"),
        ((), "No sink is given"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    code, _, err = call("plan", "changefeed", "--source", "mysql+pymysql://u@127.0.0.1:1/d", *words)
    assert (code, said in err, "geheim" in err) == (2, True, False), err


@pytest.mark.parametrize("name", ["sasl.oauthbearer.client.secret", "ssl.key.pem"])
def test_a_secret_in_a_topics_address_is_not_shown_as_it_is_refused(name: str) -> None:
    asked = ("consume", "--from", f"kafka://x:1/t?{name}=geheim", "--target", "mysql+pymysql://u@127.0.0.1:1/d")
    code, out, err = call(*asked)
    assert (code, "holds a secret" in err, "geheim" in out + err) == (2, True, False), out + err


@pytest.mark.in_turn("mysql")
def test_a_feed_whose_process_is_gone_says_so(source: Database) -> None:
    with connect(source.url) as session:
        layout.install(session)
        make_feed(session, "gone", source.name)
        session.execute_raw(f"UPDATE {SIDECAR}.feed SET written_at=NOW(6) - INTERVAL 60 SECOND")
    code, out, err = call("status", "gone", source=source)
    assert code == 0, err
    assert "no sign of life for 6" in out
    assert "vreplication resume gone" in out
    assert "Lag" not in out
    told = _status(source, "gone")
    assert (told["lag_seconds"], told["rates"], told["rows_sent"]) == (None, None, 48_120_345)
    assert told["age_seconds"] > 60
    code, out, _ = call("status", "--json", source=source)
    assert (code, json.loads(out)["rows_copied"], json.loads(out)["lag_seconds"]) == (0, 48_120_345, None)


@pytest.mark.in_turn
def test_a_feed_goes_on_with_another_address_of_its_cluster(source: Database, kafka: Cluster) -> None:
    topic = FeedWriter(kafka, 1).topic
    known = Broker(parse(f"kafka://{kafka.bootstrap}/{topic}")).find(topic)
    assert known is not None
    with connect(source.url) as session:
        layout.install(session)
        make_feed(session, topic, source.name, topic=topic, topic_id=known.id)
        was = {"sink": f"kafka://gone.example:9092/{topic}"}
        workflows.set_spec(session, topic, was)
        workflows.set_fields(session, topic, server_identity=identity_of(session)[:64])
        asked = make_feed_spec(sink=f"kafka://{kafka.bootstrap}/{topic}", workflow=topic)
        # A process that runs goes on by its own.
        assert feeding.create_or_resume(asked, [source.url], "").sink == was["sink"]
        session.execute(f"DELETE FROM {SIDECAR}.heartbeat WHERE workflow=%s", (topic,))
        assert feeding.create_or_resume(asked, [source.url], "").sink == asked.sink
        assert workflows.load(session, topic).spec["sink"] == asked.sink
        workflows.set_spec(session, topic, was)
        session.execute(
            f"UPDATE {SIDECAR}.feed SET figures=JSON_SET(figures,'$.topic_id','x') WHERE workflow=%s", (topic,)
        )
        with pytest.raises(Refused, match="is not the one that feed"):
            feeding.create_or_resume(asked, [source.url], "")


def test_a_source_that_is_read_only_for_a_moment_is_waited_for(source: Database) -> None:
    """Of one that is switched over, say; a snapshot writes markers there, too."""
    with connect(source.url) as session:
        layout.install(session)
        workflows.create(session, workflow_row("calm", kind="changefeed", phase=Phase.STREAMING))
        feeds_of.begin(session, "calm")
    driver = FeedDriver(source.url, "calm", threading.Event())
    driver.start()
    try:
        source.admin.execute_raw("SET GLOBAL read_only=1")
        wait_until(lambda: "takes no writes" in (driver.figures.get("waiting_for") or ""), "it writes, or has ended")
        with connect(source.url) as session, pytest.raises(Transient), read_only.waited_for():
            markers.write(session, "calm", snapshot.KIND)
        source.admin.execute_raw("SET GLOBAL read_only=0")
        wait_until(lambda: driver.figures["waiting_for"] is None, "it does not go on")
        driver.check()
    finally:
        source.admin.execute_raw("SET GLOBAL read_only=0")
        driver.close()


def test_a_source_that_does_not_describe_its_rows_is_refused(source: Database, kafka: Cluster) -> None:
    source.admin.execute_raw("CREATE TABLE t (a INT, b INT UNIQUE)")
    source.admin.execute_raw("SET GLOBAL binlog_row_metadata=MINIMAL")
    try:
        asked = ("--sink", f"kafka://{kafka.bootstrap}/x{secrets.token_hex(3)}", "--dispatch", "index-value", "--yes")
        code, _, err = call("changefeed", *asked, source=source)
    finally:
        feeds.describe_fully(source)
    assert code == 2
    assert "binlog_row_metadata is MINIMAL" in err
    assert "has no unique key without NULLs" in err


def test_a_column_that_no_table_has_is_refused(source: Database, kafka: Cluster) -> None:
    """Of a slip of the pen in --exclude the plan warns."""
    source.admin.execute_raw("CREATE TABLE users (id INT PRIMARY KEY, Name INT, secret INT)")
    sink = ("--sink", f"kafka://{kafka.bootstrap}/x{secrets.token_hex(3)}")
    code, _, err = call("changefeed", *sink, "--columns", f"{source.name}.users:id,nam", "--yes", source=source)
    assert (code, f"{source.name}.users has no column nam. Write Name" in err) == (2, True), err
    asked = ("--columns", f"{source.name}.users:id,name", "--exclude", f"{source.name}.user")
    code, out, _ = call("plan", "changefeed", *sink, *asked, source=source)
    words = f"matches --exclude {source.name}.user (near it is {source.name}.users)"
    assert (code, words in " ".join(out.split())) == (0, True), out


def _is_in_journal(source: Database, feed: str, text: str) -> bool:
    found = source.admin.rows(
        "SELECT details FROM _vreplication.journal WHERE workflow=%s AND event='warning'", (feed,)
    )
    return any(text in str(details) for (details,) in found)


@pytest.mark.seldom
@pytest.mark.in_turn("mariadb")
def test_rows_that_can_be_too_large_are_refused_without_a_policy(
    source: Database, kafka: Cluster, tmp_path: Path
) -> None:
    """And allowed where they cannot; the policy of a feed that lives may become another one, and what is accepted."""
    feed = f"f{secrets.token_hex(3)}"
    sql = source.admin.execute_raw
    sql("CREATE TABLE small (id BIGINT PRIMARY KEY, a VARCHAR(255), b TEXT CHARACTER SET latin1)")
    asked = ("--sink", f"kafka://{kafka.bootstrap}/{feed}", "--protocol", "debezium", "--workflow", feed)
    code, out, err = call("plan", "changefeed", *asked, source=source)
    assert (code, "no row can have more" in out) == (0, True), out + err
    code, out, _ = call("plan", "changefeed", *asked, "--max-message-bytes", "20000", source=source)
    assert (code, f"Rows of {source.name}.small can have" in out) == (2, True), out
    sql("CREATE TABLE docs (doc LONGTEXT CHARACTER SET utf8mb4)")
    for words, said in (
        ((), f"Rows of {source.name}.docs can have"),
        (("--max-message", "key-only"), "has no key by which a row could be asked for"),
        (("--max-message", f"claim-check:{tmp_path}/none"), "is no directory"),
    ):
        code, _, err = call("changefeed", *asked, *words, "--yes", source=source)
        assert code == 2
        assert said in err
    with running("changefeed", *asked, "--max-message", "stop", "--yes", source=source):
        wait_until(lambda: _status(source, feed).get("topic") or None, "the feed does not begin", 60, 0.5)
        sql("INSERT INTO docs VALUES (REPEAT('ß', 1000000))")
        wait_until(lambda: json.loads(call("status", feed, "--json", source=source)[1])["phase"] == "failed", "-")
    code, out, _ = call("status", feed, source=source)
    assert f"A row of {source.name}.docs (transaction " in out
    again = ("--max-message", f"claim-check:{tmp_path}", "--cascades", "ignore", "--yes")
    with running("changefeed", *asked, *again, source=source):
        checked = ("feed-check", "--from", asked[1], "--dispatch", "ts", "--json")
        wait_until(lambda: json.loads(call(*checked)[1])["claims"] == 1, "no message names a file", 60, 0.5)
        if source.server.is_mariadb:
            key = "FOREIGN KEY (p) REFERENCES small (id) ON DELETE CASCADE"
            sql(f"CREATE TABLE kids (id INT PRIMARY KEY, p BIGINT, {key})")
            wait_until(lambda: _is_in_journal(source, feed, f"rows of {source.name}.kids"), "no word of it", 60, 0.2)
    code, _, err = call("changefeed", *asked, "--max-message", "parts", "--yes", source=source)
    assert code == 2
    assert "cannot become parts" in err
