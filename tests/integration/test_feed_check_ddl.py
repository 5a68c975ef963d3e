"""What feed-check says of a topic whose tables were altered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.running_feed import Running, start_feed
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


def test_a_row_may_go_elsewhere_behind_an_alter_of_its_key(begin: Callable[..., Running], database: Database) -> None:
    """Other texts are the same to it then. All of its changes before stand before the DDL, in all partitions."""
    feed = begin(Rule(way="index-value"), partitions=8)
    feed.wait_begun()
    database.admin.execute_raw("CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)")
    database.admin.execute_raw("INSERT INTO t VALUES ('a',1),('b',1),('c',1),('d',1)")
    database.admin.execute_raw("ALTER TABLE t MODIFY k VARCHAR(9) COLLATE utf8mb4_bin")
    database.admin.execute_raw("UPDATE t SET n=2")
    feed.wait_sent(database)
    report = check(feed.feed.address)
    assert (report.rows, report.ddl, report.are_keys_checked) == (8, 16, True)
