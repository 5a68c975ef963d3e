"""The tailer against real logs: groups, XA, savepoints, compression, large things, and everything that must end it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.changes import Effect, effects
from tests.support.flow import purge_logs
from tests.support.tailing import apply, changes, groups, here, open_tailer, rows, watch
from vreplication.binlog import position
from vreplication.binlog.events import Group, GroupKind, Heartbeat
from vreplication.binlog.watch import Watch
from vreplication.changes.codecs import PlainValues, SqlText
from vreplication.changes.matcher import Matcher
from vreplication.errors import SourceChanged, Transient, VReplicationError
from vreplication.mysql.server import Xid
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.schema.introspect import introspect

T = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)"
A, B = "_utf8mb4 X'61'", "_utf8mb4 X'62'"


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    """The application's connection."""
    with connect(database.app_url) as session:
        yield session


@pytest.fixture
def source(database: Database) -> Watch:
    database.admin.execute_raw(T)
    database.admin.execute_raw("CREATE TABLE other (id INT PRIMARY KEY, v VARCHAR(20))")
    return watch(database, "t")


def run(session: Session, *statements: str) -> None:
    for statement in statements:
        session.execute_raw(statement)


def keys(found: list[Group]) -> list[list[str]]:
    """Keys of each group that has any."""
    return [[c.key for c in effects(g.items)] for g in found if g.items]


@contextlib.contextmanager
def setting(database: Database, name: str, value: str) -> Iterator[None]:
    """A global setting for the time of a block; sessions opened inside have it."""
    before = database.admin.value(f"SELECT @@global.{name}")
    database.admin.execute_raw(f"SET GLOBAL {name}={value}")
    try:
        yield
    finally:
        database.admin.execute_raw(
            f"SET GLOBAL {name}='{before}'" if isinstance(before, str) else f"SET GLOBAL {name}={before}"
        )


def test_changes_in_order(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a'),(2,'')", "UPDATE t SET v='b' WHERE id=1", "UPDATE t SET id=3 WHERE id=1")
    run(app, "DELETE FROM t WHERE id=2", "INSERT INTO other VALUES (1,'x')")
    found = groups(database, start, source)
    assert changes(found) == [
        Effect("1", f"1,{A}"),
        Effect("2", "2,''"),
        Effect("1", f"1,{B}"),
        Effect("1", None),
        Effect("3", f"3,{B}"),
        Effect("2", None),
    ]
    assert [len(g.items) for g in found] == [2, 1, 1, 1, 0]
    assert all(g.kind is GroupKind.COMMIT and g.is_last for g in found)


def test_positions_are_places_to_begin_at(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    for number in range(4):
        run(app, f"INSERT INTO t VALUES ({number},'a')")
    found = groups(database, start, source)
    assert found[0].start == start
    assert found[-1].end == here(database)
    for index, group in enumerate(found):
        assert keys(groups(database, group.start, source)) == [[str(i)] for i in range(index, 4)]
        assert keys(groups(database, group.end, source)) == [[str(i)] for i in range(index + 1, 4)]


def test_times_are_those_of_the_commit(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    before = database.admin.value("SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)))")
    run(app, "INSERT INTO t VALUES (1,'a')")
    after = database.admin.value("SELECT CEIL(UNIX_TIMESTAMP(NOW(6)))")
    (group,) = groups(database, start, source)
    assert int(before) * 1_000_000 <= group.time_micros <= int(after) * 1_000_000


def test_templates_go_around_the_literals(database: Database, app: Session, source: Watch) -> None:
    key = ((2, "{}"), (1, "ABS({})"))
    values = ((1, "CONCAT('{{',{},'\\\\%''')"), (2, "IF({0}='',NULL,{0})"))
    given = dataclasses.replace(source, codec=SqlText(key=key, values=values))
    start = here(database)
    run(app, "INSERT INTO t VALUES (-1,'a')")
    (change,) = changes(groups(database, start, given))
    assert change == Effect(f"{A},ABS(-1)", f"CONCAT('{{',-1,'\\\\%'''),IF({A}='',NULL,{A})")


def test_savepoints_and_rollbacks(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t VALUES (1,'a')", "SAVEPOINT s", "INSERT INTO t VALUES (2,'a')", "ROLLBACK TO s")
    run(app, "SAVEPOINT `S p`", "INSERT INTO t VALUES (3,'a')", "RELEASE SAVEPOINT `S p`", "COMMIT")
    run(app, "BEGIN", "INSERT INTO t VALUES (9,'a')", "ROLLBACK")
    assert keys(groups(database, start, source)) == [["1", "3"]]


@pytest.fixture
def loose_gtids(database: Database) -> Iterator[None]:
    """MySQL's GTIDs forbid transactions that mix engines."""
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    mode = None if database.server.is_mariadb else database.admin.value("SELECT @@global.gtid_mode")
    if mode != "ON":
        yield
        return
    run(database.admin, *(f"SET GLOBAL gtid_mode={step}" for step in steps), "SET GLOBAL enforce_gtid_consistency=OFF")
    try:
        yield
    finally:
        run(database.admin, "SET GLOBAL enforce_gtid_consistency=ON")
        run(database.admin, *(f"SET GLOBAL gtid_mode={step}" for step in ["OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]))


@pytest.mark.usefixtures("loose_gtids")
def test_mixed_engines(database: Database, app: Session, source: Watch) -> None:
    """With a MyISAM change in between, MariaDB logs what was rolled back, and the roll-back after it."""
    run(app, "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t VALUES (1,'a')", "SAVEPOINT s", "INSERT INTO m VALUES (1)")
    run(
        app,
        "INSERT INTO t VALUES (2,'a')",
        "INSERT INTO m VALUES (2)",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3,'a')",
        "COMMIT",
    )
    run(app, "BEGIN", "INSERT INTO t VALUES (4,'a')", "INSERT INTO m VALUES (3)", "ROLLBACK")
    run(app, "INSERT INTO t VALUES (5,'a')")
    found = groups(database, start, source)
    assert keys(found) == [["1", "3"], ["5"]]


@pytest.mark.only_on("mariadb")
def test_savepoints_whose_names_are_one_to_the_server_stop(database: Database, app: Session, source: Watch) -> None:
    run(app, "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
    for number, names in enumerate((("e", "é", "e"), ("é", "é"), ("e", "E", "e"))):
        start = here(database)
        run(app, "DELETE FROM t", "BEGIN", "INSERT INTO t VALUES (0,'a')")
        for id_, name in enumerate(names[:-1], 1):
            run(app, f"SAVEPOINT `{name}`", f"INSERT INTO t VALUES ({id_},'a')")
        run(app, f"INSERT INTO m VALUES ({number})", f"ROLLBACK TO `{names[-1]}`", "COMMIT")
        kept = app.rows("SELECT id FROM t ORDER BY id")
        if names[:2] == ("e", "é"):
            # To MariaDB 11.8 they are two; the reader stops all the same.
            assert kept in ([(0,), (1,)], [(0,)])
            with pytest.raises(SourceChanged, match="one of several"):
                groups(database, start, source)
        else:
            assert keys(groups(database, start, source))[-1] == [str(id_) for (id_,) in kept]


def test_create_table_select(database: Database, app: Session, source: Watch) -> None:
    run(app, "INSERT INTO t VALUES (1,'a')")
    start = here(database)
    run(app, "CREATE TABLE c (PRIMARY KEY (id)) SELECT * FROM t", "INSERT INTO t VALUES (2,'a')")
    found = groups(database, start, source)
    assert keys(found) == [["2"]]
    created = watch(database, "c")
    with pytest.raises(SourceChanged, match="CREATE TABLE"):
        groups(database, start, created)


XID = "X'6700FF',X'62',7"


def test_xa_commit_and_rollback(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    for number, outcome in ((1, "COMMIT"), (2, "ROLLBACK")):
        run(app, f"XA START {XID}", f"INSERT INTO t VALUES ({number},'a')", f"XA END {XID}", f"XA PREPARE {XID}")
        run(app, f"XA {outcome} {XID}")
    run(app, "XA START 'one'", "INSERT INTO t VALUES (3,'a')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
    run(app, "XA START 'z'", "INSERT INTO t VALUES (9,'a')", "XA END 'z'", "XA ROLLBACK 'z'")
    found = groups(database, start, source)
    xid = Xid(7, b"g\0\xff", b"b")
    assert [(g.kind, g.xid, len(g.items)) for g in found] == [
        (GroupKind.XA_PREPARE, xid, 1),
        (GroupKind.XA_COMMIT, xid, 0),
        (GroupKind.XA_PREPARE, xid, 1),
        (GroupKind.XA_ROLLBACK, xid, 0),
        (GroupKind.COMMIT, None, 1),
    ]


def test_xa_branches_between_each_other(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "XA START 'a'", "INSERT INTO t VALUES (1,'a')", "XA END 'a'", "XA PREPARE 'a'")
    with connect(database.app_url) as second:
        run(second, "XA START 'b','q'", "INSERT INTO t VALUES (2,'a')", "XA END 'b','q'", "XA PREPARE 'b','q'")
        run(second, "XA COMMIT 'b','q'")
    run(database.admin, "FLUSH BINARY LOGS")
    run(app, "XA COMMIT 'a'")
    found = groups(database, start, source)
    a, b = Xid(1, b"a", b""), Xid(1, b"b", b"q")
    assert [(g.kind.value, g.xid) for g in found] == [
        ("xa_prepare", a),
        ("xa_prepare", b),
        ("xa_commit", b),
        ("xa_commit", a),
    ]
    assert found[-1].start.number == found[0].start.number + 1


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


METADATA = {"mysql": ("MINIMAL", "FULL"), "mariadb": ("NO_LOG", "MINIMAL", "FULL")}


def test_metadata_comes_from_our_schema(database: Database) -> None:
    """Names, signs, character sets and labels are the same whatever the log tells of them."""
    found = []
    with database.server.admin(database.name) as app:
        run(
            app,
            "CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, e ENUM('ä','b') CHARACTER SET latin1, s SET('x','y'), "
            "c VARCHAR(9) CHARACTER SET utf16, n TINYINT, g GEOMETRY, i INT INVISIBLE DEFAULT 4294967)",
        )
    for metadata in METADATA[database.server.flavor]:
        with setting(database, "binlog_row_metadata", metadata), database.server.admin(database.name) as app:
            source, start = watch(database, "t"), here(database)
            run(app, "INSERT INTO t (id,e,s,c,n,g) VALUES (18446744073709551615,'ä','x,y','é',-1,POINT(1,2))")
            run(app, "UPDATE t SET id=1, n=NULL", "DELETE FROM t")
            found.append(changes(groups(database, start, source)))
    labels, point = "_utf8mb4 X'c3a4',_utf8mb4 X'782c79'", "X'000000000101000000000000000000F03F0000000000000040'"
    assert found[0] == [
        Effect(str(2**64 - 1), f"{2**64 - 1},{labels},_utf16 X'00E9',-1,{point},4294967"),
        Effect(str(2**64 - 1), None),
        Effect("1", f"1,{labels},_utf16 X'00E9',NULL,{point},4294967"),
        Effect("1", None),
    ]
    assert all(other == found[0] for other in found)


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


def test_rotation(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a')")
    run(database.admin, "FLUSH BINARY LOGS")
    run(app, "INSERT INTO t VALUES (2,'a')")
    run(database.admin, "FLUSH BINARY LOGS")
    found = groups(database, start, source)
    assert keys(found) == [["1"], ["2"]]
    assert found[1].start.number == found[0].start.number + 1


def test_checksums_may_be_switched(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a')")
    with setting(database, "binlog_checksum", "NONE"):
        run(app, "INSERT INTO t VALUES (2,'a')")
        assert keys(groups(database, start, source)) == [["1"], ["2"]]
    run(app, "INSERT INTO t VALUES (3,'a')")
    assert keys(groups(database, start, source)) == [["1"], ["2"], ["3"]]


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


def test_sidecar_rows(database: Database, app: Session, source: Watch) -> None:
    run(
        app, "CREATE TABLE s (id BIGINT UNSIGNED PRIMARY KEY, n VARCHAR(9), b VARBINARY(9), d DATETIME(3), x BINARY(2))"
    )
    columns = introspect(database.admin, database.name, "s").columns
    ours = Watch(number=-5, schema=database.name, table="s", columns=columns, codec=PlainValues())
    start = here(database)
    run(app, "INSERT INTO s VALUES (18446744073709551615,'é',X'00FF','2020-01-02 03:04:05.678',X'0100')")
    run(app, "UPDATE s SET n=NULL,b='',id=1,d=NULL", "DELETE FROM s")
    first = {"id": 2**64 - 1, "n": "é", "b": b"\0\xff", "d": "2020-01-02 03:04:05.678", "x": b"\1\0"}
    second = {"id": 1, "n": None, "b": b"", "d": None, "x": b"\1\0"}
    found = rows(groups(database, start, source, [ours]))
    assert [(r.table, r.before, r.after) for r in found] == [
        (-5, None, first),
        (-5, first, second),
        (-5, second, None),
    ]


STOPPING = [
    ("ALTER TABLE t COMMENT='x'", "ALTER TABLE"),
    ("CREATE INDEX i ON t (v)", "CREATE INDEX"),
    ("TRUNCATE t", "TRUNCATE"),
    ("TRUNCATE TABLE `t`", "TRUNCATE"),
    ("RENAME TABLE other TO x, t TO y", "RENAME TABLE"),
    ("ALTER TABLE other ADD FOREIGN KEY (id) REFERENCES t (id)", "ALTER TABLE"),
    ("DROP TABLE other, t", "DROP TABLE"),
    ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.v='x'", "CREATE TRIGGER"),
    ("CREATE OR REPLACE VIEW w AS SELECT 1", None),
    ("ANALYZE TABLE t", None),
    ("ALTER TABLE other ADD COLUMN t INT, ALGORITHM=COPY", None),
    ("CREATE TABLE IF NOT EXISTS t (id INT)", None),
    ("CREATE TABLE u LIKE t", None),
    ("DROP TABLE IF EXISTS tt", None),
    ("CREATE PROCEDURE p() BEGIN DELETE FROM t; END", None),
    ("CREATE TEMPORARY TABLE t (id INT)", None),
    ("OPTIMIZE TABLE t", "OPTIMIZE TABLE"),
    ("OPTIMIZE TABLE other, t", "OPTIMIZE TABLE"),
    ("OPTIMIZE TABLE other", None),
    ("CREATE TRIGGER g BEFORE INSERT ON other FOR EACH ROW SET NEW.v='t'", None),
]


@pytest.mark.parametrize(("statement", "why"), STOPPING, ids=[s for s, _ in STOPPING])
def test_definitions(database: Database, app: Session, source: Watch, statement: str, why: str | None) -> None:
    start = here(database)
    with setting(database, "log_bin_trust_function_creators", "1"):
        app.rows(statement)
    app.close()
    with connect(database.app_url) as second, contextlib.suppress(SqlError):
        run(second, "INSERT INTO other (id) VALUES (1)")
    if why:
        with pytest.raises(SourceChanged, match=why) as caught:
            groups(database, start, source)
        assert f"event at {start.file}:" in str(caught.value)
    else:
        found = groups(database, start, source)
        assert found[-1].end == here(database)


def test_guarded_tables_and_other_schemas(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(
        database.admin,
        f"CREATE DATABASE {database.name}x",
        f"CREATE TABLE {database.name}x.t (id INT)",
        f"DROP DATABASE {database.name}x",
    )
    run(app, "ALTER TABLE other COMMENT 'x'")
    groups(database, start, source)
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source, guarded=frozenset({(database.name, "other")}))
    start = here(database)
    run(database.admin, f"DROP DATABASE {database.name}", f"CREATE DATABASE {database.name}", f"USE {database.name}")
    with pytest.raises(SourceChanged, match="DROP DATABASE"):
        groups(database, start, source)


def test_statement_format_stops(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "SET SESSION binlog_format='STATEMENT'", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        start = here(database)
        run(app, "UPDATE t SET v='x'")
    with pytest.raises(SourceChanged, match="written as a statement"):
        groups(database, start, source)


def test_row_images_that_are_not_full_stop(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "INSERT INTO t VALUES (1,'a')", "SET SESSION binlog_row_image='MINIMAL'")
        start = here(database)
        run(app, "UPDATE t SET v='x'")
    with pytest.raises(SourceChanged, match="binlog_row_image=FULL"):
        groups(database, start, source)


@pytest.mark.only_on("mysql")
def test_parts_of_json_documents_stop(database: Database) -> None:
    with database.server.admin(database.name) as app:
        run(app, "CREATE TABLE j (id INT PRIMARY KEY, j JSON)", 'INSERT INTO j VALUES (1,\'{"a":"0123456789"}\')')
        source = watch(database, "j")
        run(app, "SET SESSION binlog_row_value_options='PARTIAL_JSON'")
        start = here(database)
        run(app, "UPDATE j SET j = JSON_SET(j, '$.a', 'x')")
    with pytest.raises(SourceChanged, match="parts of JSON documents"):
        groups(database, start, source)


@pytest.mark.only_on("mysql")
def test_tagged_gtids(database: Database, app: Session, source: Watch) -> None:
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


@pytest.mark.only_on("mariadb")
def test_alter_in_two_phases(database: Database, source: Watch) -> None:
    with database.server.admin(database.name) as app:
        run(app, "SET SESSION binlog_alter_two_phase=1")
        start = here(database)
        run(app, "ALTER TABLE other ADD COLUMN z INT", "INSERT INTO t VALUES (1,'a')")
        run(app, "INSERT INTO other (id) VALUES (1),(2)")
        with pytest.raises(SqlError, match="Duplicate"):
            app.execute_raw("ALTER TABLE other ADD COLUMN y INT NOT NULL, ADD UNIQUE (y), ALGORITHM=COPY")
        run(app, "INSERT INTO t VALUES (2,'a')")
        assert keys(groups(database, start, source)) == [["1"], ["2"]]
        log = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
        told = " ".join(str(event[5]) for event in log)
        assert "START ALTER" in told
        assert "COMMIT ALTER" in told
        assert "ROLLBACK ALTER" in told
        run(app, "ALTER TABLE t ADD COLUMN z INT")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source)


@pytest.mark.only_on("mariadb")
def test_sequences_and_set_statement(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(
        app,
        "CREATE SEQUENCE q",
        "SELECT NEXTVAL(q)",
        "SET STATEMENT max_statement_time=9 FOR ALTER TABLE other COMMENT 'x'",
    )
    run(app, "INSERT INTO t VALUES (1,'a')")
    assert keys(groups(database, start, source)) == [["1"]]
    run(app, "SET STATEMENT max_statement_time=9 FOR ALTER TABLE t COMMENT 'x'")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        groups(database, start, source)


def test_a_table_with_another_shape_stops(database: Database, app: Session, source: Watch) -> None:
    run(app, "ALTER TABLE t ADD COLUMN z INT")
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a',1)")
    with pytest.raises(SourceChanged, match="3 columns, not 2"):
        groups(database, start, source)
    run(app, "DELETE FROM t", "ALTER TABLE t DROP COLUMN z, MODIFY v BIGINT")
    start = here(database)
    run(app, "INSERT INTO t VALUES (2,1)")
    with pytest.raises(SourceChanged, match="type 8, not varchar"):
        groups(database, start, source)


def test_a_begin_inside_a_transaction_stops(database: Database, app: Session, source: Watch) -> None:
    """From behind the first row event there is no way to tell what the transaction did."""
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t VALUES (1,'a')", "INSERT INTO t VALUES (2,'a')", "COMMIT")
    events = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    # MariaDB 11 does not tell where an event inside a transaction ends.
    first = next(i for i, row in enumerate(events) if str(row[2]).startswith("Write_rows"))
    inside = int(events[first + 1][1])
    with pytest.raises(SourceChanged, match="whose beginning was not read"):
        groups(database, position.Position.of(start.file, inside), source)


def test_a_purged_log_is_told(database: Database, source: Watch) -> None:
    start = here(database)
    assert position.exists(database.admin, start)
    purge_logs(database)
    assert not position.exists(database.admin, start)
    with pytest.raises(SourceChanged, match=r"Could not find first log file.*Changes in between are lost"):
        groups(database, start, source)


def test_a_place_beyond_the_log_is_told(database: Database, source: Watch) -> None:
    start = here(database)
    beyond = position.Position.of(start.file, start.offset + 1_000_000)
    assert not position.exists(database.admin, beyond)
    with pytest.raises(SourceChanged, match="1236"):
        groups(database, beyond, source)


def test_a_killed_dump_is_transient_and_goes_on_elsewhere(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a')")
    with open_tailer(database, start, source) as tailer:
        items = iter(tailer)
        last = next(items)
        assert isinstance(last, Group)
        kill_dump(database)
        with pytest.raises(Transient):
            for _ in items:
                pass
    run(app, "INSERT INTO t VALUES (2,'a')")
    assert keys(groups(database, last.end, source)) == [["2"]]


def kill_dump(database: Database) -> None:
    """KILL every dump connection of our user."""
    listed = database.admin.rows("SELECT id, user, command FROM information_schema.processlist")
    dumps = [int(i) for i, user, command in listed if user == database.user and command == "Binlog Dump"]
    assert dumps
    for dump in dumps:
        database.admin.kill(dump)


def test_close_wakes_a_waiting_reader(database: Database, source: Watch) -> None:
    tailer = open_tailer(database, here(database), source, heartbeat_seconds=0.25)
    beating, ended = threading.Event(), []

    def read() -> None:
        try:
            for item in tailer:
                assert isinstance(item, Heartbeat)
                beating.set()
        except VReplicationError as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert beating.wait(20)
    tailer.close()
    reader.join(20)
    assert not reader.is_alive()
    assert [type(e) for e in ended] == [Transient]


def test_heartbeats_come_when_idle(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    with open_tailer(database, start, source) as tailer:
        items = iter(tailer)
        assert next(items) == Heartbeat(position=start)
        run(app, "INSERT INTO other VALUES (1,'a')")
        group = next(i for i in items if isinstance(i, Group))
        assert next(items) == Heartbeat(position=group.end)
        assert tailer.read_position == group.end == here(database)


def test_a_second_reader_with_the_same_id_ends_the_first_as_transient(database: Database, source: Watch) -> None:
    from vreplication.binlog.tailer import Tailer

    start, drawn = here(database), position.draw_server_id(database.admin)
    options = {"server_id": drawn, "is_mariadb": database.server.is_mariadb}
    with Tailer(database.url, start, [source], **options) as first:  # type: ignore[arg-type]
        items = iter(first)
        next(items)
        with Tailer(database.url, start, [source], **options) as second:  # type: ignore[arg-type]
            next(iter(second))
            with pytest.raises(Transient):
                for _ in items:
                    pass


def test_a_drawn_server_id_avoids_those_in_use(database: Database, source: Watch) -> None:
    with open_tailer(database, here(database), source) as tailer:
        next(iter(tailer))
        listed = database.admin.rows("SHOW SLAVE HOSTS" if database.server.is_mariadb else "SHOW REPLICAS")
        assert len(listed) == 1
        assert 2**31 <= int(listed[0][0]) < 2**32


def test_without_the_privilege_it_is_told(database: Database, source: Watch) -> None:
    from vreplication.binlog.tailer import Tailer

    with pytest.raises(VReplicationError, match="GRANT REPLICATION SLAVE"):
        Tailer(database.app_url, here(database), [source], server_id=2**31 + 5, is_mariadb=database.server.is_mariadb)


def test_retention(database: Database) -> None:
    found = position.retention(database.admin)
    assert found.total_bytes > 0
    assert found.oldest <= here(database)


def test_odd_names(database: Database, app: Session) -> None:
    name = "sélect `x` '\"\\ " + "é" * 40
    run(app, f"CREATE TABLE `{name.replace('`', '``')}` (`a b` INT, `order` INT, PRIMARY KEY (`order`))")
    source, start = watch(database, name, ["order"]), here(database)
    run(app, f"INSERT INTO `{name.replace('`', '``')}` VALUES (1,2)")
    assert changes(groups(database, start, source)) == [Effect("2", "1,2")]
    run(app, f"TRUNCATE `{name.replace('`', '``')}`")
    with pytest.raises(SourceChanged, match="TRUNCATE"):
        groups(database, start, source)


def test_names_in_other_character_sets(database: Database, app: Session) -> None:
    run(app, "CREATE TABLE `café` (id INT PRIMARY KEY)")
    source, start = watch(database, "café"), here(database)
    run(app, "SET NAMES latin1")
    app.execute_raw("TRUNCATE `café`".encode("latin-1"))
    with pytest.raises(SourceChanged, match=r"TRUNCATE|cannot read"):
        groups(database, start, source)


def test_replay_gives_the_same_table(database: Database, app: Session, source: Watch) -> None:
    run(app, "CREATE TABLE copy LIKE t")
    start = here(database)
    with contextlib.suppress(SqlError):
        run(app, "INSERT INTO t VALUES (1,'a'),(2,'b'),(1,'c')")
    run(app, "INSERT INTO t VALUES (1,'a'),(2,'b'),(3,NULL)", "UPDATE t SET id = id + 10 ORDER BY id DESC")
    run(app, "REPLACE INTO t VALUES (11,'z')", "INSERT INTO t VALUES (12,'q') ON DUPLICATE KEY UPDATE v='up'")
    run(app, "DELETE FROM t WHERE id = 13")
    apply(database, source, "copy", changes(groups(database, start, source)))
    assert database.admin.rows("SELECT * FROM copy ORDER BY id") == database.admin.rows("SELECT * FROM t ORDER BY id")
