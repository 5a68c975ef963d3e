"""Foreign keys that come while a feed runs: what they delete is in the log, or the feed says that it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support import feeds
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, logged, sent, start_feed
from vreplication.errors import Terminal
from vreplication.mysql.server import inspect
from vreplication.planning.foreign import are_logged

ACTING = "FOREIGN KEY (p) REFERENCES parents (id) ON DELETE SET NULL"


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


def test_a_foreign_key_that_comes_later_is_looked_at(begin: Callable[..., Running], database: Database) -> None:
    """By ALTER, CREATE and RENAME. A feed that has stopped goes on when the key does nothing, or that is accepted."""
    sql = database.admin.execute_raw
    sql("CREATE TABLE parents (id INT PRIMARY KEY)")
    sql("CREATE TABLE kids (id INT PRIMARY KEY, p INT)")
    start = feeds.here(database)
    feed = begin()
    feed.wait_begun()
    sql("ALTER TABLE kids ADD CONSTRAINT a FOREIGN KEY (p) REFERENCES parents (id)")
    sql("INSERT INTO parents VALUES (1)")
    feed.wait_sent(database)
    sql(f"ALTER TABLE kids DROP FOREIGN KEY a, ADD CONSTRAINT b {ACTING}")
    sql("INSERT INTO kids VALUES (1,1)")
    if are_logged(inspect(database.admin)):
        sql("DELETE FROM parents")
        feed.wait_sent(database)
        assert ("kids", {"id": 1, "p": 1}, {"id": 1, "p": None}) in sent(feed.feed)
        assert not feed.warned
        return
    wait_until(lambda: feed.error, "it goes on")
    assert isinstance(feed.error, Terminal)
    assert f"rows of {database.name}.kids" in str(feed.error)
    assert f"--workflow {feed.feed.id} --cascades ignore" in str(feed.error)
    accepted = begin(are_cascades_ignored=True)
    sql("RENAME TABLE kids TO moved")
    sql(f"CREATE TABLE later (id INT PRIMARY KEY, p INT, {ACTING})")
    accepted.wait_sent(database)
    told = [next(name for name in ("kids", "moved", "later") if f".{name} " in words) for words in accepted.warned]
    # By the time that it is asked the first of them is called otherwise, or not yet.
    assert told[-2:] == ["moved", "later"]
    accepted.stop()
    for table, name in (("moved", "b"), ("later", "later_ibfk_1")):
        sql(f"ALTER TABLE {table} DROP FOREIGN KEY {name}")
    sql(f"CREATE TABLE brief (id INT PRIMARY KEY, p INT, CONSTRAINT c {ACTING})")
    sql("ALTER TABLE brief DROP FOREIGN KEY c")
    cured = begin()
    cured.wait_sent(database)
    assert any(f"{database.name}.brief was given a foreign key" in words for words in cured.warned), cured.warned
    assert sent(feed.feed) == logged(database, start)
    check_numbers(feed.feed)
