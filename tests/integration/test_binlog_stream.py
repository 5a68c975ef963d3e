"""The tailer against real logs: groups and their places, savepoints, XA, rotation, columns and names."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from stream_setup import A, B, app, keys, loose_gtids, run, setting, source

from sandbox.databases import Database
from tests.support.changes import Effect
from tests.support.tailing import apply, changes, groups, here, rows, watch
from vreplication.binlog.events import GroupKind
from vreplication.binlog.watch import Watch
from vreplication.changes.codecs import PlainValues, SqlText
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.schema.introspect import introspect

__all__ = ["app", "loose_gtids", "source"]


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


def test_odd_names(database: Database, app: Session) -> None:
    name = "sélect `x` '\"\\ " + "é" * 40
    run(app, f"CREATE TABLE `{name.replace('`', '``')}` (`a b` INT, `order` INT, PRIMARY KEY (`order`))")
    source, start = watch(database, name, ["order"]), here(database)
    run(app, f"INSERT INTO `{name.replace('`', '``')}` VALUES (1,2)")
    assert changes(groups(database, start, source)) == [Effect("2", "1,2")]
    run(app, f"TRUNCATE `{name.replace('`', '``')}`")
    with pytest.raises(SourceChanged, match="TRUNCATE"):
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
