"""DDL of clients with another character set than UTF-8: on a target it makes what it has made on the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import twin
from tests.support.running_feed import Running, start_feed

pytestmark = pytest.mark.either

WRITTEN = (
    ("latin1", b"ADD COLUMN b VARCHAR(9) NOT NULL DEFAULT '\xe9', COMMENT '\xe9'"),
    ("latin1", b"ADD COLUMN c VARCHAR(40) AS (HEX(CONCAT('\xe9'))) STORED"),
    ("utf8mb4", b"ADD COLUMN `\xc3\xa9` VARBINARY(9) NOT NULL DEFAULT '\xc3\xa9'"),
)
BINARY = (
    ("latin1", b"ADD COLUMN a VARBINARY(9) NOT NULL DEFAULT '\xe9'"),
    ("cp1251", b"ADD COLUMN a VARBINARY(9) NOT NULL DEFAULT '\xe6'"),
)
UNREADABLE = (
    # No letter of latin1, and none of a character set that we know.
    ("latin1", b"ADD COLUMN a VARCHAR(40) NOT NULL DEFAULT '\xc3\x9d'"),
    ("dec8", b"ADD COLUMN a VARCHAR(9) NOT NULL DEFAULT '\xe9'"),
)


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def target(database: Database, _pair_servers: None) -> Iterator[Database]:
    yield from twin(database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")


def alter(database: Database, *alters: tuple[str, bytes]) -> None:
    for charset, clause in alters:
        with database.server.admin(database.name) as session:
            session.execute_raw(f"SET NAMES {charset}")
            session.execute_raw(b"ALTER TABLE t " + clause)
    database.admin.execute_raw("CREATE TABLE done (id INT)")


def come(one: Consuming, target: Database) -> None:
    wait_until(lambda: one.error or target.admin.rows("SHOW TABLES LIKE 'done'"), "the last DDL is not run", 30)


def seen(database: Database) -> list[object]:
    with database.server.admin(database.name) as session:
        return [*session.rows("SHOW COLUMNS FROM t"), *session.rows("SELECT * FROM t")]


def test_a_literal_is_in_the_clients_character_set(
    begin: Callable[..., Running], database: Database, target: Database
) -> None:
    feed = begin()
    feed.wait_begun()
    alter(database, *WRITTEN)
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        come(one, target)
    assert seen(target) == seen(database)


@pytest.mark.parametrize(("charset", "clause"), BINARY)
def test_bytes_of_a_literal_are_those_of_the_clients_character_set(
    begin: Callable[..., Running], database: Database, target: Database, charset: str, clause: bytes
) -> None:
    """MariaDB shows such a DEFAULT as no client can read it, and the consumer says so at the next look."""
    feed = begin()
    feed.wait_begun()
    alter(database, (charset, clause), ("utf8mb4", b"COMMENT 'x'"))
    one = Consuming(feed.feed.address, target.url, "transaction")
    if target.server.is_mariadb:
        assert "has bytes that are no text" in str(one.failed())
        target.admin.execute_raw("ALTER TABLE t ALTER COLUMN a DROP DEFAULT")
        one = Consuming(feed.feed.address, target.url, "transaction")
    with one:
        come(one, target)
    assert target.admin.rows("SELECT * FROM t") == database.admin.rows("SELECT * FROM t")


@pytest.mark.parametrize("written", UNREADABLE, ids=["latin1", "dec8"])
def test_text_that_cannot_be_read_is_not_run(
    begin: Callable[..., Running], database: Database, target: Database, written: tuple[str, bytes]
) -> None:
    feed = begin()
    feed.wait_begun()
    alter(database, written)
    for _ in range(2):
        failure = Consuming(feed.feed.address, target.url, "transaction").failed()
        assert "a client's character set that cannot be read" in str(failure)
    assert target.admin.rows("SELECT * FROM t") == [(1,)]
    with target.server.admin(target.name) as session:
        session.execute_raw(f"SET NAMES {written[0]}")
        session.execute_raw(b"ALTER TABLE t " + written[1])
    with Consuming(feed.feed.address, target.url, "transaction") as one:
        come(one, target)
    assert seen(target) == seen(database)
