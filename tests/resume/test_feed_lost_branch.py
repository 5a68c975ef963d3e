"""A feed of a server that has lost an XA branch in a crash: it needs the log from there on no longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.resume.test_crash_within_xa import branch, crash, forget, listed
from tests.resume.test_lost_branch_mysql import KEPT, LOST, end, prepare
from tests.support import feeds, flow, in_memory
from tests.support.flow import wait_until
from tests.support.private_server import private_server
from tests.support.running_feed import Running, origin, sent, start_feed
from vreplication.changes import lost_branches
from vreplication.mysql.server import prepared_branches


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """On a disk: in memory MariaDB's log is the file itself."""
    monkeypatch.setattr(in_memory, "_is_plenty", lambda: False)
    monkeypatch.setattr(lost_branches, "LOOK_SECONDS", 0.2)
    with private_server("mariadb", {"innodb-flush-log-at-timeout": 2700}) as server:
        made = create_database(server, grants="feed_source")
        made.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        yield made


def held(feed: Running, database: Database) -> int:
    """Branches, by the progress behind one more transaction."""
    database.admin.execute_raw("INSERT INTO t SELECT MAX(id)+1 FROM t")
    feed.wait_sent(database)
    assert feed.status is not None
    return len(feed.status.progress.sources[0].branches)


def has_branches(feed: Running, database: Database) -> bool:
    return held(feed, database) > 0


def test_a_lost_branch_is_given_up_and_its_log_may_go(kafka: Cluster, database: Database, tmp_path: Path) -> None:
    begins = start_feed(kafka, database, tmp_path)
    begin, of = next(begins), replace(origin(database), url=database.url)
    feed = begin(sources=(of,))
    feed.wait_begun()
    database.admin.execute_raw("INSERT INTO t VALUES (1)")
    with database.server.admin(database.name) as session:
        forget(database)
        branch(session, "INSERT INTO t VALUES (1000)")
        feed.wait_sent(database)
        assert has_branches(feed, database)
        crash(database)
    assert listed(database) == 0
    feeds.describe_fully(database)
    # A log is not purged before InnoDB has written down what it names.
    database.admin.execute_raw("SET GLOBAL innodb_flush_log_at_timeout=1")
    database.admin.execute_raw("REPLACE INTO t VALUES (500)")
    wait_until(lambda: not has_branches(feed, database), "the branch is not given up", 60)
    feed.stop()
    flow.purge_logs(database)
    feed = begin(sources=(of,))
    assert not has_branches(feed, database)
    ids = {after["id"] for _, _, after in sent(feed.feed)}
    assert ids & {1, 500, 1000} == {1, 500}
    for _ in begins:
        pass


@pytest.fixture
def mysql(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(lost_branches, "LOOK_SECONDS", 0.2)
    with private_server("mysql") as server:
        made = create_database(server, grants="feed_source")
        made.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        yield made


def test_one_that_mysql_has_rolled_back_as_it_started_is_given_up(
    kafka: Cluster, mysql: Database, tmp_path: Path
) -> None:
    """As in test_lost_branch_mysql.py. One that is listed is held, and is sent with its commit."""
    begins = start_feed(kafka, mysql, tmp_path)
    begin, of = next(begins), replace(origin(mysql), url=mysql.url)
    feed = begin(sources=(of,))
    feed.wait_begun()
    mysql.admin.execute_raw("INSERT INTO t VALUES (1)")
    for name, id in ((KEPT, 1000), (LOST, 2000)):
        prepare(mysql, name, f"INSERT INTO t VALUES ({id})")
    assert has_branches(feed, mysql)
    crash(mysql)
    feeds.describe_fully(mysql)
    mysql.admin.execute_raw("SET sql_log_bin=0")
    end(mysql.admin, LOST, "ROLLBACK")
    mysql.admin.execute_raw("SET sql_log_bin=1")
    wait_until(lambda: held(feed, mysql) <= 1, "the branch is held still", 60)
    is_listed = bool(prepared_branches(mysql.admin, is_mariadb=False))
    end(mysql.admin, KEPT, "COMMIT")
    wait_until(lambda: held(feed, mysql) == 0, "a branch is held", 60)
    ids = {after["id"] for _, _, after in sent(feed.feed)}
    assert ids & {1, 1000, 2000} == ({1, 1000} if is_listed else {1})
    for _ in begins:
        pass
