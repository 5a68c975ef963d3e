"""Tables that a snapshot cannot read at one moment: they are passed over only where they are not there any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.integration import test_feed_values as values
from tests.integration.test_feed_snapshot import is_filled, state, there
from tests.support import feeds
from tests.support.flow import settings, wait_until
from tests.support.running_feed import Running, make_tables, start_feed
from vreplication.errors import Transient
from vreplication.feed import catalog, snapshot
from vreplication.feed.progress import Filled
from vreplication.mysql.session import SqlError
from vreplication.settings import SIDECAR
from vreplication.state import layout

pytestmark = pytest.mark.either


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with database.server.admin() as session:
        layout.install(session)
    yield from start_feed(kafka, database, tmp_path)


def test_a_killed_query_leaves_no_table_out(
    begin: Callable[..., Running], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined, killed = snapshot._TableReader._defined, iter([True])

    def kill(reader: Any) -> str:
        if next(killed, False):
            raise SqlError("Query execution was interrupted", code=1317)
        return defined(reader)

    monkeypatch.setattr(snapshot._TableReader, "_defined", kill)
    make_tables(database, "t")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'a',1),(2,'b',2)")
    feed = begin(is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert feed.error is None
    assert state(feed) == there(database, "t")


def read(database: Database, monkeypatch: pytest.MonkeyPatch, table: str) -> list[int]:
    """Rows of each chunk that is read of it."""
    chunks: list[int] = []
    read = snapshot.Snapshot(database.url, "f", feeds.catalog(database), Filled())
    monkeypatch.setattr(snapshot.Snapshot, "_mark", lambda read, session, chunk: chunks.append(len(chunk.rows)))
    with database.server.admin() as session:
        read._read_table(session, Filled(schema=database.name, table=table))
    return chunks


@pytest.mark.parametrize("code", [1016, 1033, 1142, 1932])
def test_a_table_that_cannot_be_read_ends_it(database: Database, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(reader: Any) -> str:
        raise SqlError("no", code=code)

    make_tables(database, "t")
    monkeypatch.setattr(snapshot._TableReader, "_defined", refuse)
    with pytest.raises(SqlError, match="no"):
        read(database, monkeypatch, "t")


@pytest.mark.parametrize(
    ("behind", "is_gone"), [((), True), (("CREATE VIEW t AS SELECT 1",), False), (("DROP DATABASE {0}",), True)]
)
def test_a_table_that_is_dropped_as_it_is_looked_at_is_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch, behind: tuple[str, ...], is_gone: bool
) -> None:
    defined, statements = snapshot._TableReader._defined, ["DROP TABLE t", *behind]

    def drop(reader: Any) -> str:
        found = defined(reader)
        while statements:
            database.admin.execute_raw(statements.pop(0).format(database.name))
        return found

    make_tables(database, "t")
    monkeypatch.setattr(snapshot._TableReader, "_defined", drop)
    if is_gone:
        assert read(database, monkeypatch, "t") == [0]
        return
    with pytest.raises(Transient, match="defined anew"):
        read(database, monkeypatch, "t")


def test_the_urls_schema_may_be_gone(database: Database) -> None:
    """Tables of others are followed, and read."""
    with database.server.admin() as session:
        layout.install(session)
    url = replace(database.url, database=f"{database.name}_gone")
    made = snapshot.Snapshot(url, "f", feeds.catalog(database), Filled())
    made.watch()
    made.start()
    try:
        wait_until(lambda: made._error or made._chunks, "no marker is written")
    finally:
        made.close()
    assert made._error is None


def test_a_source_that_takes_no_writes_holds_the_marker_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ended at each try, and what had been sent by then was taken back."""
    written, tried = snapshot.markers.write, list[bool]()

    def count(*given: Any, **more: Any) -> str:
        tried.append(True)
        return written(*given, **more)

    monkeypatch.setattr(snapshot.markers, "write", count)
    with database.server.admin() as session:
        layout.install(session)
    made = snapshot.Snapshot(database.url, "f", feeds.catalog(database), Filled())
    made.watch()
    try:
        with settings(database, {"read_only": 1}):
            made.start()
            wait_until(lambda: made._error or len(tried) > 1, "it is not tried again")
            made.look()
        sql = f"SELECT 1 FROM {SIDECAR}.marker WHERE workflow='f'"
        wait_until(lambda: made._error or database.admin.value(sql), "no marker is written")
    finally:
        made.close()
    assert made._error is None


def test_a_killed_query_tells_no_row_otherwise(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table is is asked once until its next DDL."""
    introspect, killed = catalog.introspect, iter([True])

    def kill(*of: Any) -> Any:
        if next(killed, False):
            raise SqlError("Query execution was interrupted", code=1317)
        return introspect(*of)

    monkeypatch.setattr(catalog, "introspect", kill)
    feeds.describe_fully(database)
    tables, start = feeds.catalog(database), feeds.here(database)
    values.make_table(database, "v INT UNSIGNED ZEROFILL", ["7"])
    with pytest.raises(Transient, match="was killed"):
        feeds.read(database, tables, start)
    (row,) = (after for name, _, after in feeds.read(database, tables, start) if name == "t")
    assert row["v"] == 7
    assert tables.layouts[0].columns[1].column_type.endswith("zerofill")
