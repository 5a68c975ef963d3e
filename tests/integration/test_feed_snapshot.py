"""Rows that were there before a feed began: read beside the log, so that what a consumer makes of both is the table."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.integration import test_feed_values as values
from tests.integration.test_feed_producer import POINTS, SCALING, Killer, kill  # noqa: F401
from tests.support import feeds, soaked
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, content, make_tables, seeds, start_feed, write_history
from vreplication.errors import Refused, Transient
from vreplication.feed import snapshot
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import read_row
from vreplication.feed.messages import Kind
from vreplication.feed.topics import followed
from vreplication.state import layout

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with database.server.admin() as session:
        layout.install(session)
    yield from start_feed(kafka, database, tmp_path)


@pytest.mark.parametrize("name", [*values.GROUPS, "TEXTS"])
def test_a_row_is_the_same_from_the_table_and_from_the_log(database: Database, name: str) -> None:
    definition, rows = values.GROUPS.get(name) or (values.TEXTS, values.TEXT_ROWS)
    feeds.describe_fully(database)
    tables, start = feeds.catalog(database), feeds.here(database)
    tables.is_asking = True
    values.make_table(database, definition, rows)
    logged = [list(after.values()) for name, _, after in feeds.read(database, tables, start) if name == "t"]
    with database.server.admin() as session:
        session.execute("SET time_zone='+00:00'")
        reader = snapshot._TableReader(session, tables, database.name, "t")
        read, _ = reader.next(None)
    assert [[(type(each), each) for each in row] for row in read] == [
        [(type(each), each) for each in row] for row in logged
    ]
    (log_layout,) = (each for each in tables.layouts)
    assert reader.layout is log_layout


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("definition", ["a TEXT NOT NULL, UNIQUE (a)", "a INT NOT NULL, UNIQUE (a) USING HASH"])
def test_a_table_whose_key_the_log_does_not_tell_is_not_read(database: Database, definition: str) -> None:
    """Its rows of before would go to other partitions than what changes them."""
    feeds.describe_fully(database)
    tables, start = feeds.catalog(database), feeds.here(database)
    tables.is_asking = True
    database.admin.execute_raw(f"CREATE TABLE t ({definition})")
    database.admin.execute_raw("INSERT INTO t VALUES (1)")
    feeds.read(database, tables, start)
    assert not tables.layouts[0].has_key
    with database.server.admin() as session, pytest.raises(Refused, match="no unique key without NULLs"):
        snapshot._TableReader(session, tables, database.name, "t")


@pytest.mark.only_on("mysql")
def test_a_zero_keeps_its_sign(database: Database) -> None:
    """MariaDB takes it off a literal's."""
    values.make_table(database, "a FLOAT, b DOUBLE, c FLOAT(9,3)", ["-0e0,-0e0,-0.125"])
    with database.server.admin() as session:
        reader = snapshot._TableReader(session, feeds.catalog(database), database.name, "t")
        ((_, *row),), _ = reader.next(None)
    assert list(map(str, row)) == ["-0.0", "-0.0", "-0.125"]


def state(feed: Running) -> dict[str, dict[Any, Any]]:
    """What a consumer has of each table: rows by key, as all messages in order make them."""
    found: dict[str, dict[Any, Any]] = {}
    rows = [
        (tags.t, tags.seq, read_row(key, value))
        for messages in content(feed.feed).values()
        for tags, key, value in messages
        if tags.kind is Kind.ROW
    ]
    for _, _, change in sorted(rows, key=lambda row: (row[:2], row[2].after is not None)):
        table = found.setdefault(change.table, {})
        if change.before is not None:
            table.pop(change.before["id"].value, None)
        if change.after is not None:
            table[change.after["id"].value] = tuple(cell.value for cell in change.after.values())
    return found


def there(database: Database, *tables: str) -> dict[str, dict[Any, Any]]:
    return {table: {row[0]: row for row in database.admin.rows(f"SELECT * FROM {table}")} for table in tables}


def is_filled(feed: Running) -> bool:
    found = feed.status.progress.sources[0].filled if feed.status else None
    return found is not None and found.is_done


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.in_turn
def test_what_was_there_and_what_is_written_make_the_table(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],  # noqa: F811
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(snapshot, "_ROWS", 2 + seed % 3)
    make_tables(database, "t", "u", "v")
    for table in ("t", "v"):
        database.admin.execute_raw(
            f"INSERT INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<35) "
            "SELECT i, 'before', 0 FROM n"
        )
    feed = begin(rule=Rule(way="index-value"), partitions=2, is_snapshot=True)
    feed.wait_begun()
    killer = kill(seed, (*POINTS, *SCALING) if seed else (), share=0.1)
    is_over = threading.Event()
    writer = threading.Thread(target=_write, args=(database, seed, is_over))
    writer.start()
    try:
        if seed % 3 == 2:
            wait_until(lambda: feed.error or feed.status, "it does not begin")
            feed.wanted = 3
        wait_until(lambda: feed.error or is_filled(feed) or len(killer.killed) > 8, "the snapshot does not end")
        killer.is_on = False
        wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    finally:
        is_over.set()
        writer.join()
    assert feed.error is None
    feed.wait_sent(database)
    assert state(feed) == {name: rows for name, rows in there(database, "t", "u", "v").items() if rows or name != "u"}
    check_numbers(feed.feed)
    for number, messages in content(feed.feed).items():
        told = [tags.snapshot for tags, _, _ in messages if tags.snapshot]
        # The third partition may come when the snapshot is done.
        assert told[-1:] == ["done"] or (number == 2 and not told)
    soaked.note("snapshot beside writes", database.server.flavor, len(killer.killed), feed)


def test_a_table_that_gets_the_name_of_one_that_was_read_is_sent(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are read in the order of their names: one before it is read, one in the midst, one for another.

    No row is written that could tell of an error in the reading.
    """
    monkeypatch.setattr(snapshot, "_ROWS", 3)
    due = {
        "m": "RENAME TABLE z TO a",
        "m behind a key": "RENAME TABLE m TO aa",
        "u": "RENAME TABLE b TO bb, u TO b, bb TO u",
    }
    read, lost = snapshot._TableReader.next, [Transient("The connection was lost.")]

    def next_rows(reader: Any, after: Any) -> Any:
        if lost:
            raise lost.pop()
        statement = due.pop(reader.layout.table + (" behind a key" if after else ""), None)
        if statement:
            database.admin.execute_raw(statement)
        return read(reader, after)

    monkeypatch.setattr(snapshot._TableReader, "next", next_rows)
    make_tables(database, *"bmuz")
    for table in "bmuz":
        database.admin.execute_raw(
            f"INSERT INTO {table} VALUES (1,'{table}',1),(2,'{table}',2),(3,'{table}',3),(4,'',4)"
        )
    feed = begin(is_snapshot=True)
    feed.wait_begun()
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert not due
    feed.wait_sent(database)
    expected = there(database, "a", "aa", "b", "u")
    assert {name: rows for name, rows in state(feed).items() if name in expected} == expected
    check_numbers(feed.feed)


@pytest.mark.only_on("mariadb")
def test_a_versioned_table_is_not_passed_over(begin: Callable[..., Running], database: Database) -> None:
    """What it was before is in no row that could be read; and the server calls it no BASE TABLE."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
    database.admin.execute_raw("INSERT INTO t VALUES (1)")
    feed = begin(is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert f"Table {database.name}.t is system-versioned" in str(feed.error)
    with database.server.admin() as session:
        assert list(followed(session, feed.feed.sources[0].filter)) == [(database.name, "t")]


def _write(database: Database, seed: int, is_over: threading.Event) -> None:
    """Histories until the end, with a branch that is prepared now and then and one that stays so."""
    draw = random.Random(seed)
    sessions = []
    while not is_over.is_set():
        write_history(database, draw, 3, ("t", "u", "v"))
        is_over.wait(0.01)
        if len(sessions) < 3:
            session = database.server.admin(database.name)
            sessions.append(session)
            number = len(sessions)
            session.execute_raw(f"XA START 's{number}'")
            session.execute_raw(f"REPLACE INTO v VALUES ({1000 + number},'xa',{number})")
            session.execute_raw(f"XA END 's{number}'")
            session.execute_raw(f"XA PREPARE 's{number}'")
        elif len(sessions) == 3:
            sessions[0].execute_raw("XA COMMIT 's1'")
            sessions[1].execute_raw("XA ROLLBACK 's2'")
            sessions.append(sessions[2])
    for number, session in enumerate(sessions[:3], 1):
        if len(sessions) == 3 or number == 3:
            session.execute_raw(f"XA COMMIT 's{number}'")


def test_a_table_that_is_altered_meanwhile_is_read_again(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_ROWS", 10)
    make_tables(database, "t")
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<200) SELECT i, 'b', 0 FROM n"
    )
    altered = iter([True])
    defined = snapshot._TableReader._defined

    def alter_behind_it(reader: Any) -> str:
        if hasattr(reader, "layout") and next(altered, False):
            database.admin.execute_raw("ALTER TABLE t ADD COLUMN z INT DEFAULT 5")
        return defined(reader)

    monkeypatch.setattr(snapshot._TableReader, "_defined", alter_behind_it)
    feed = begin(is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert feed.error is None
    assert state(feed)["t"] == there(database, "t")["t"]


def test_a_row_that_changes_behind_its_reading_is_not_sent_as_it_was(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(database, "t")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'old',0),(2,'old',0),(3,'old',0)")
    read = snapshot._TableReader.next

    def change_behind_it(reader: Any, after: Any) -> Any:
        found = read(reader, after)
        if after is None:
            database.admin.execute_raw("UPDATE t SET a='new' WHERE id=1")
            database.admin.execute_raw("DELETE FROM t WHERE id=2")
            database.admin.execute_raw("UPDATE t SET id=4 WHERE id=3")
        return found

    monkeypatch.setattr(snapshot._TableReader, "next", change_behind_it)
    feed = begin(is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert state(feed)["t"] == there(database, "t")["t"] == {1: (1, "new", 0), 4: (4, "old", 0)}


def test_wide_rows_come_in_few_at_a_time(database: Database) -> None:
    """Memory holds some chunks, whatever a row weighs."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)")
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<60) "
        "SELECT i, REPEAT('x', 500000) FROM n"
    )
    with database.server.admin() as session:
        reader, after, counts = snapshot._TableReader(session, feeds.catalog(database), database.name, "t"), None, []
        while (found := reader.next(after))[0]:
            counts.append(len(found[0]))
            after = found[1]
    assert (sum(counts), max(counts[1:])) == (60, 4)
