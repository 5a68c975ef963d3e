"""A topic for each table in the formats of others: whoever reads one topic as such a reader does has one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, content, start_feed, topics
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats import make_format
from vreplication.feed.messages import Kind


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path, is_each=True)


def _debezium(said: Any) -> tuple[str, str, Any]:
    image = said["after"] or said["before"]
    return said["source"]["table"], said["op"], image and image["id"]


def _canal(said: Any) -> tuple[str, str, Any]:
    return said["table"], said["type"], int(said["data"][0]["id"])


def _maxwell(said: Any) -> tuple[str, str, Any]:
    return said["table"], said["type"], said["data"]["id"]


SHOWN: dict[str, Callable[[Any], tuple[str, str, Any]]] = {
    "debezium": _debezium,
    "canal-json": _canal,
    "maxwell": _maxwell,
}
OPERATIONS = {
    "debezium": ("c", "u", "d"),
    "canal-json": ("INSERT", "UPDATE", "DELETE"),
    "maxwell": ("insert", "update", "delete"),
}


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("protocol", list(SHOWN))
def test_a_topic_holds_its_table_in_any_format(
    begin: Callable[..., Running], kafka: Cluster, database: Database, protocol: str
) -> None:
    """A table comes, and partitions. Its topic is compacted where keys last: of Debezium's, TRUNCATE has none."""
    sql = database.admin.execute_raw
    sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    feed = begin(rule=Rule(way="index-value"), partitions=2, format=make_format(protocol))
    feed.wait_begun()
    sql("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
    prefix = feed.feed.address.topic
    if protocol != "canal-json":
        Broker(feed.feed.address).create(f"{prefix}.{database.name}.late", 2, cleanup_policy="compact")
    sql("CREATE TABLE late (id INT PRIMARY KEY)")
    sql("INSERT INTO late VALUES (7)")
    sql("TRUNCATE TABLE late")
    feed.wanted = 3
    wait_until(lambda: feed.error or (feed.status and feed.status.progress.partitions == 3), "not scaled")
    sql("UPDATE t SET a=9 WHERE id=1")
    sql("DELETE FROM t WHERE id=2")
    feed.wait_sent(database)
    insert, update, delete = OPERATIONS[protocol]
    assert topics(feed.feed) == [prefix, f"{prefix}.{database.name}.t", f"{prefix}.{database.name}.late"]
    rows = [("t", insert, n) for n in (1, 2, 3)] + [("t", update, 1), ("t", delete, 2)]
    ddl = ["CREATE TABLE late (id INT PRIMARY KEY)", "TRUNCATE TABLE late"]
    for name, wanted, defined in (("", [], ddl), ("t", rows, []), ("late", [("late", insert, 7)], ddl)):
        topic = f"{prefix}.{database.name}.{name}" if name else prefix
        messages = [each for found in content(feed.feed, topic).values() for each in found]
        values = [(tags, json.loads(value)) for tags, _, value in messages if value]
        places = {(tags.t, tags.seq): SHOWN[protocol](said) for tags, said in values if tags.kind is Kind.ROW}
        assert [places[place] for place in sorted(places)] == wanted
        said_ddl = {said.get("ddl") or said.get("sql") for tags, said in values if tags.kind is Kind.DDL}
        assert said_ddl - {None} == set(defined)
        report = check(parse(f"kafka://{kafka.bootstrap}/{topic}"), has_keys=False)
        assert (report.partitions, report.generations) == (3, 2 if name != "late" else report.generations)
    check_numbers(feed.feed)
    if protocol == "debezium":
        sql("ALTER TABLE late DROP PRIMARY KEY")
        sql("INSERT INTO late VALUES (8)")
        wait_until(lambda: feed.error, "it goes on")
        assert f"late has no key, and topic {prefix}.{database.name}.late is compacted" in str(feed.error)
