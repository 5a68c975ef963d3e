"""Bulk in real logs: compressed events, packets of many megabytes, and transactions that come in parts."""

from __future__ import annotations

import os

import pytest
from stream_setup import B, app, keys, loose_gtids, run, setting, source

from sandbox.databases import Database
from tests.support.changes import Effect
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog.events import Group
from vreplication.binlog.watch import Watch
from vreplication.changes.matcher import Matcher
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid, inspect
from vreplication.mysql.session import Session, connect

__all__ = ["app", "loose_gtids", "source"]

COMPRESSION = {"mysql": ("binlog_transaction_compression", "ON"), "mariadb": ("log_bin_compress", "ON")}


def test_compressed_events(database: Database, source: Watch) -> None:
    start = here(database)
    with setting(database, *COMPRESSION[database.server.flavor]), connect(database.app_url) as app:
        run(app, "INSERT INTO t SELECT seq, REPEAT('a', 20) FROM " + sequence(300))
        run(
            app, "UPDATE t SET v = 'b'", "BEGIN", "DELETE FROM t WHERE id > 1", "SAVEPOINT s", "DELETE FROM t", "COMMIT"
        )
        run(
            app,
            "XA START 'a'",
            "INSERT INTO t SELECT seq, 'c' FROM " + sequence(300),
            "XA END 'a'",
            "XA PREPARE 'a'",
            "XA COMMIT 'a'",
        )
    found = groups(database, start, source)
    assert [(g.kind.value, len(g.items)) for g in found] == [
        ("commit", 300),
        ("commit", 300),
        ("commit", 300),
        ("xa_prepare", 300),
        ("xa_commit", 0),
    ]
    assert changes(found)[300:302] == [Effect("1", f"1,{B}"), Effect("2", f"2,{B}")]
    assert found[-1].end == here(database)


def test_compressed_rows_count_with_their_whole_text(database: Database, app: Session) -> None:
    """Else a part would hold a thousand times what memory was given for it."""
    run(app, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    source, start = watch(database, "t"), here(database)
    with setting(database, *COMPRESSION[database.server.flavor]), connect(database.app_url) as session:
        run(session, "BEGIN")
        for number in range(8):
            run(session, f"INSERT INTO t VALUES ({number},REPEAT('x',1000000))")
        run(session, "UPDATE t SET v=REPEAT('y',1000000) WHERE id < 2", "DELETE FROM t WHERE id > 5", "COMMIT")
    found = groups(database, start, source, part_bytes=3_000_000)
    assert [len(part.items) for part in found if len(part.items) > 2] == []
    for part in found:
        assert part.nbytes >= sum(len(effect.values or "") for effect in changes([part]))


@pytest.mark.only_on("mysql")
def test_one_session_may_compress(database: Database, app: Session, source: Watch) -> None:
    """No global setting tells of it."""
    start = here(database)
    with database.server.admin(database.name) as alone:
        run(alone, "SET SESSION binlog_transaction_compression=ON", "BEGIN", "INSERT INTO t VALUES (1,'a'),(2,'a')")
        run(app, "INSERT INTO t VALUES (3,'a')")
        run(alone, "UPDATE t SET v='b', id=4 WHERE id=2", "DELETE FROM t WHERE id=1", "COMMIT")
    events = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    assert [str(e[2]) for e in events].count("Transaction_payload") == 1
    assert keys(groups(database, start, source)) == [["3"], ["1", "2", "2", "4", "1"]]


@pytest.mark.only_on("mysql")
def test_a_large_compressed_transaction(database: Database) -> None:
    """What cannot be made smaller comes in an envelope all the same, of more than one packet of the protocol."""
    values = [os.urandom(7 << 20) for _ in range(3)]
    with database.server.admin(database.name) as app:
        run(app, "CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)", "SET SESSION binlog_transaction_compression=ON")
        source, start = watch(database, "t"), here(database)
        run(app, "BEGIN")
        for number, value in enumerate(values):
            app.execute_raw(b"INSERT INTO t VALUES (%d,X'%s')" % (number, value.hex().encode()))
        run(app, "COMMIT")
    found = groups(database, start, source)
    assert [g.is_last for g in found] == [False] * (len(found) - 1) + [True]
    assert len(found) > 1
    assert changes(found) == [Effect(str(n), f"{n},X'{v.hex().upper()}'") for n, v in enumerate(values)]


def test_compressed_statements_are_read(database: Database, source: Watch) -> None:
    start = here(database)
    with setting(database, *COMPRESSION[database.server.flavor]), connect(database.app_url) as app:
        run(app, "ALTER TABLE t COMMENT='" + "x" * 1000 + "'")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source)


def sequence(count: int) -> str:
    """1 … count as a derived table, on both servers."""
    return f"(WITH RECURSIVE n AS (SELECT 1 seq UNION ALL SELECT seq + 1 FROM n WHERE seq < {count}) SELECT * FROM n) q"


def test_packets_of_many_megabytes(database: Database, app: Session) -> None:
    with setting(database, "max_allowed_packet", str(128 << 20)), connect(database.app_url) as big:
        run(big, "CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
        source, start = watch(database, "t"), here(database)
        # 2^24 - 1 bytes of payload is where a packet ends exactly.
        sizes = (40 << 20, 16777215 - 60, *range(16777215 - 50, 16777215 - 40))
        run(big, "INSERT INTO t VALUES (1, REPEAT('ab', 20 << 20))")
        for number, size in enumerate(sizes[1:], 2):
            run(big, f"INSERT INTO t VALUES ({number}, REPEAT('x', {size}))")
        found = changes(groups(database, start, source))
    assert [len(c.values or "") for c in found] == [2 * s + len(f"{n},X''") for n, s in enumerate(sizes, 1)]
    assert (found[0].values or "").startswith("1,X'61626162")


def test_large_transactions_come_in_parts(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t SELECT seq, 'a' FROM " + sequence(5000).replace("5000", "900"), "SAVEPOINT s")
    run(app, "UPDATE t SET v = 'b'", "COMMIT", "INSERT INTO t VALUES (9999,'a')")
    found = groups(database, start, source, part_bytes=50_000)
    large = found[:-1]
    assert len(large) > 3
    assert [g.is_last for g in large] == [False] * (len(large) - 1) + [True]
    assert {g.start for g in large} == {start}
    assert {g.end for g in large[:-1]} == {start}
    assert len(changes(large)) == 1800
    assert changes(large) == changes(groups(database, start, source))[:1800]
    assert found[-1].is_last
    assert_extent(database, large)


def assert_extent(database: Database, parts: list[Group]) -> None:
    """Each part but the last tells how much has been read, of how much in all where the server tells that."""
    read = [part.read for part in parts[:-1] if part.read]
    whole = parts[-1].end.offset - parts[-1].start.offset
    assert len(read) == len(parts) - 1
    assert {extent.total for extent in read} == {None if database.server.is_mariadb else whole}
    assert sorted({extent.done for extent in read}) == [extent.done for extent in read]
    assert 0 < read[0].done <= read[-1].done < whole
    assert parts[-1].read is None


def test_a_large_branch_comes_in_parts(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(
        app,
        "XA START 'a'",
        "INSERT INTO t SELECT seq, 'a' FROM " + sequence(900),
        "XA END 'a'",
        "XA PREPARE 'a'",
        "XA COMMIT 'a'",
    )
    run(app, "XA START 'b'", "DELETE FROM t", "XA END 'b'", "XA COMMIT 'b' ONE PHASE")
    found = groups(database, start, source, part_bytes=50_000)
    ends = [i for i, g in enumerate(found) if g.is_last]
    assert [found[i].kind.value for i in ends] == ["xa_prepare", "xa_commit", "commit"]
    assert found[ends[0]].xid == found[ends[1]].xid == Xid(1, b"a", b"")
    assert ends[0] > 0
    assert len(changes(found[: ends[0] + 1])) == 900
    assert len(changes(found)) == 1800


@pytest.mark.usefixtures("loose_gtids")
def test_a_split_transaction_that_goes_back_in_part(database: Database, app: Session, source: Watch) -> None:
    """MariaDB logs what was rolled back where a table without transactions was written, too; MySQL does not."""
    run(app, "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t VALUES (1,'a')", "SAVEPOINT s", "INSERT INTO m VALUES (1)")
    run(app, "INSERT INTO t SELECT seq + 1, 'a' FROM " + sequence(900), "INSERT INTO m VALUES (2)", "ROLLBACK TO s")
    run(app, "COMMIT")
    for part_bytes in (50_000, 1 << 24):
        matcher = Matcher()
        found = [g for part in groups(database, start, source, part_bytes=part_bytes) for g in matcher.feed(part)]
        assert [c.key for c in changes(found)] == ["1"]


@pytest.mark.only_on("mysql", since=(8, 3))
def test_tagged_gtids(database: Database, app: Session, source: Watch) -> None:
    if not inspect(database.admin).is_on("gtid_mode"):
        pytest.skip("the default before 9.0: no GTIDs")
    with database.server.admin(database.name) as session:
        start = here(database)
        run(session, "SET gtid_next='AUTOMATIC:some_tag'", "INSERT INTO t VALUES (1,'a')", "SET gtid_next='AUTOMATIC'")
        run(session, "INSERT INTO t VALUES (2,'a')")
    tagged, plain = groups(database, start, source)
    assert 0 <= plain.time_micros - tagged.time_micros < 10_000_000
    assert keys([tagged, plain]) == [["1"], ["2"]]
    run(app, "INSERT INTO t SELECT seq + 2, 'a' FROM " + sequence(900))
    with database.server.admin(database.name) as session:
        start = here(database)
        run(session, "SET gtid_next='AUTOMATIC:some_tag'", "DELETE FROM t")
    assert_extent(database, groups(database, start, source, part_bytes=50_000))
