"""The matcher over real logs: what of every shape of transaction comes out, when, and what stays inside.

What must stay true: what is wanted here is what the table itself holds in the end (`agrees`), never what our own code
says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sandbox import servers
from sandbox.databases import Database, create_database
from tests.support.flow import until_taken
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog.events import Group, GroupKind
from vreplication.binlog.watch import Watch
from vreplication.changes.matcher import Matcher
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid
from vreplication.mysql.session import Session, SqlError, connect

pytestmark = pytest.mark.either

T = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"
LONG = f"X'{'ab' * 64}',X'{'cd' * 64}',2147483647"
BINARY = "X'00FF2C275C',X'01',0"
GONE = "'gone','',0"
"""Of the same format id: of others MySQL loses some in a crash (docs/limits.md)."""


def branch(xid: str, *statements: str, end: str = "") -> tuple[str, ...]:
    """XA START … XA PREPARE, and its end when one is given."""
    more = (f"XA {end} {xid}",) if end else ()
    return (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}", *more)


def insert(*numbers: int) -> str:
    return f"INSERT INTO t VALUES {','.join(f'({n},{n})' for n in numbers)}"


SHAPES: dict[str, tuple[tuple[str, ...], list[int]]] = {
    "committed": (branch(BINARY, insert(1, 2), end="COMMIT"), [1, 2]),
    "rolled back": (branch(BINARY, insert(3), end="ROLLBACK"), []),
    "the same name again": ((*branch("'a'", insert(4), end="ROLLBACK"), *branch("'a'", insert(5), end="COMMIT")), [5]),
    "long names": (branch(LONG, insert(6), end="COMMIT"), [6]),
    "one phase": (("XA START 'a'", insert(7), "XA END 'a'", "XA COMMIT 'a' ONE PHASE"), [7]),
    "read only": (branch("'a'", "SELECT * FROM t", end="COMMIT"), []),
    "read only, one phase": (("XA START 'a'", "SELECT 1", "XA END 'a'", "XA COMMIT 'a' ONE PHASE"), []),
    "empty": (branch("'a'", end="COMMIT"), []),
    "changes nothing": (branch("'a'", "UPDATE t SET v=1 WHERE id=1", end="COMMIT"), []),
    "rolled back before it was prepared": (("XA START 'a'", insert(8), "XA END 'a'", "XA ROLLBACK 'a'"), []),
    "a savepoint inside": (
        branch("'a'", insert(9), "SAVEPOINT s", insert(10), "ROLLBACK TO s", insert(11), end="COMMIT"),
        [9, 11],
    ),
    "all of it rolled back to a savepoint": (
        branch("'a'", "SAVEPOINT s", insert(12), "ROLLBACK TO s", end="COMMIT"),
        [],
    ),
    "several statements": (branch("'a'", insert(13), "UPDATE t SET id=14 WHERE id=13", end="COMMIT"), [13, 13, 14]),
    "another table only": (branch("'a'", "INSERT INTO other VALUES (1)", end="COMMIT"), []),
    "savepoints of one name": (
        ("BEGIN", insert(20), "SAVEPOINT s", insert(21), "SAVEPOINT s", insert(22), "ROLLBACK TO s", "COMMIT"),
        [20, 21],
    ),
    "savepoints in each other": (
        ("BEGIN", "SAVEPOINT a", insert(23), "SAVEPOINT b", insert(24), "ROLLBACK TO a", insert(25), "COMMIT"),
        [25],
    ),
    "a released savepoint": (
        ("BEGIN", "SAVEPOINT a", insert(26), "RELEASE SAVEPOINT a", insert(27), "COMMIT"),
        [26, 27],
    ),
    "rolled back as a whole": (("BEGIN", insert(28), "ROLLBACK"), []),
    "DDL inside": (("BEGIN", insert(29), "ALTER TABLE other COMMENT 'x'", insert(30), "ROLLBACK"), [29, 30]),
    "DDL of nothing inside": (
        ("BEGIN", insert(31), "DROP TABLE IF EXISTS nobody", "BEGIN", insert(32), "ROLLBACK"),
        [31],
    ),
    "a temporary table inside": (
        ("BEGIN", insert(33), "CREATE TEMPORARY TABLE tmp (i INT)", insert(34), "DROP TEMPORARY TABLE tmp", "COMMIT"),
        [33, 34],
    ),
    "CREATE TABLE … SELECT": (("CREATE TABLE made SELECT * FROM t", insert(35)), [35]),
    "CREATE TABLE … SELECT inside": (
        ("BEGIN", insert(36), "CREATE TABLE made2 SELECT 1 a", insert(37), "COMMIT"),
        [36, 37],
    ),
    "standalone statements": (("CREATE VIEW w AS SELECT 1 a", "DROP VIEW w", "ANALYZE TABLE t", "FLUSH TABLES"), []),
    "LOCK TABLES": (("LOCK TABLES t WRITE", insert(38), "UNLOCK TABLES"), [38]),
    "SET autocommit=0": (("SET autocommit=0", insert(39), "SET autocommit=1"), [39]),
    "a statement that fails in its middle": ((insert(40), insert(41, 40)), [40]),
    "several tables": (("BEGIN", "INSERT INTO other VALUES (2)", insert(42), "DELETE FROM other", "COMMIT"), [42]),
}  # fmt: skip


@pytest.fixture
def source(database: Database) -> Watch:
    database.admin.execute_raw(T)
    database.admin.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    database.admin.execute_raw("CREATE TABLE mirror LIKE t")
    return watch(database, "t")


def run(session: Session, *statements: str) -> None:
    """What the server refuses is part of the shape."""
    for statement in statements:
        with contextlib.suppress(SqlError):
            session.rows(statement)


def matched(found: Iterable[Group], matcher: Matcher | None = None) -> list[Group]:
    matcher = matcher or Matcher(is_strict=True)
    return [out for group in found for out in matcher.feed(group)]


def keys(found: Iterable[Group]) -> list[int]:
    return [int(change.key) for change in changes(found)]


def agrees(database: Database, out: Iterable[Group], before: Iterable[int] = ()) -> bool:
    found = {int(i) for (i,) in database.admin.rows("SELECT id FROM t")}
    there = set(before)
    for change in changes(out):
        (there.discard if change.values is None else there.add)(int(change.key))
    return there == found


def test_every_shape(database: Database, source: Watch) -> None:
    """One after the other on one connection; each is read on its own, and all are read once more together."""
    begin, wrong = here(database), {}
    for name, (statements, wanted) in SHAPES.items():
        start = here(database)
        with connect(database.app_url) as app:
            run(app, *statements)
        matcher = Matcher(is_strict=True)
        found = keys(matched(groups(database, start, source), matcher))
        if found != wanted or matcher.held():
            wrong[name] = (found, matcher.held())
    assert wrong == {}
    out = matched(groups(database, begin, source))
    assert keys(out) == [key for _, wanted in SHAPES.values() for key in wanted]
    assert agrees(database, out)
    assert all(group.kind is GroupKind.COMMIT and group.xid is None for group in out)


def test_what_the_matcher_is_given_of_a_branch(database: Database, source: Watch) -> None:
    """One phase: MySQL writes it as a prepared branch that commits at once, MariaDB as an ordinary transaction."""
    start = here(database)
    with connect(database.app_url) as app:
        run(app, *branch(BINARY, insert(1), end="COMMIT"), *branch(LONG, insert(2), end="ROLLBACK"))
        run(app, "XA START 'a'", insert(3), "XA END 'a'", "XA COMMIT 'a' ONE PHASE")
    first, second = Xid(0, b"\x00\xff,'\\", b"\x01"), Xid(2147483647, b"\xab" * 64, b"\xcd" * 64)
    assert [(g.kind.value, g.xid, keys([g])) for g in groups(database, start, source)] == [
        ("xa_prepare", first, [1]),
        ("xa_commit", first, []),
        ("xa_prepare", second, [2]),
        ("xa_rollback", second, []),
        ("commit", None, [3]),
    ]


def test_branches_between_each_other(database: Database, source: Watch) -> None:
    """Branches of one global transaction, ended in another order, in other files, after a restart of ours."""
    xids = [f"X'67',X'0{n}',1" for n in range(4)]
    start = here(database)
    admin = database.admin
    with connect(database.app_url) as app:
        for number, xid in enumerate(xids):
            run(app, *branch(xid, insert(10 + number), f"UPDATE t SET v='x' WHERE id={10 + number}"))
            app.close()
            app = connect(database.app_url)
            run(app, insert(20 + number))
            admin.execute_raw("FLUSH BINARY LOGS")
        for number, end in ((2, "COMMIT"), (0, "ROLLBACK"), (3, "COMMIT")):
            until_taken(admin, f"XA {end} {xids[number]}")
            admin.execute_raw("FLUSH BINARY LOGS")
        run(app, insert(30))
        app.close()
    matcher = Matcher(is_strict=True)
    found = groups(database, start, source)
    out = matched(found, matcher)
    assert keys(out) == [20, 21, 22, 23, 12, 12, 13, 13, 30]
    assert [branch.xid for branch in matcher.held()] == [Xid(1, b"g", b"\x01")]
    for number in (2, 3):
        prepared, settled = (g for g in found if g.xid == Xid(1, b"g", bytes([number])))
        [moved] = (g for g in out if 10 + number in keys([g]))
        assert (moved.end, moved.time_micros) == (settled.end, settled.time_micros)
        assert (prepared.kind, settled.kind) == (GroupKind.XA_PREPARE, GroupKind.XA_COMMIT)
    prepared = next(g for g in found if g.xid == Xid(1, b"g", b"\x01"))
    until_taken(admin, f"XA COMMIT {xids[1]}")
    # A restart of ours reads from the oldest branch that is held; what has been applied is not handed on again.
    restarted = Matcher(is_strict=True)
    assert restarted.restore(matcher.held(), found[-1].end) == prepared.start
    again = matched(groups(database, prepared.start, source), restarted)
    assert keys(again) == [11, 11]


def test_a_branch_of_before_our_start(database: Database, source: Watch) -> None:
    with connect(database.app_url) as app:
        run(app, *branch("'early'", insert(1)))
        start = here(database)
        run(app, "XA COMMIT 'early'")
    found = groups(database, start, source)
    assert keys(matched(found, Matcher())) == []
    with pytest.raises(SourceChanged, match=r"X'6561726c79'.*prepared before this workflow"):
        matched(found)


@pytest.fixture
def loose_gtids(database: Database) -> Iterator[None]:
    """MySQL's GTIDs forbid transactions that mix engines."""
    if database.server.is_mariadb:
        yield
        return
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    run(database.admin, *(f"SET GLOBAL gtid_mode={s}" for s in steps), "SET GLOBAL enforce_gtid_consistency=OFF")
    try:
        yield
    finally:
        run(database.admin, "SET GLOBAL enforce_gtid_consistency=ON")
        run(database.admin, *(f"SET GLOBAL gtid_mode={s}" for s in ["OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]))


MIXED = (
    ("BEGIN", insert(1), "INSERT INTO m VALUES (1)", insert(2), "COMMIT"),
    ("BEGIN", insert(3), "INSERT INTO m VALUES (2)", "ROLLBACK"),
    ("BEGIN", "INSERT INTO m VALUES (3)", "SAVEPOINT s", insert(4), "INSERT INTO m VALUES (4)", "ROLLBACK TO s"),
    branch("'a'", insert(5), "INSERT INTO m VALUES (5)", insert(6), end="COMMIT"),
    branch("'a'", insert(7), "INSERT INTO m VALUES (6)", end="ROLLBACK"),
    branch("'a'", "INSERT INTO m VALUES (7)", end="ROLLBACK"),
    ("BEGIN", insert(9), "INSERT INTO m VALUES (8)", "ROLLBACK"),
    ("INSERT INTO m SELECT id + 100 FROM t", "UPDATE t, m SET t.v='both', m.id=m.id+1000 WHERE t.id=1 AND m.id=101"),
    ("BEGIN", "CREATE TEMPORARY TABLE tmp ENGINE=MyISAM SELECT * FROM t", insert(8), "DROP TEMPORARY TABLE tmp"),
    (insert(10),),
)  # fmt: skip


@pytest.mark.usefixtures("loose_gtids")
def test_mixed_engines(database: Database, source: Watch) -> None:
    """What cannot be rolled back is written early, or the roll-back behind it; the table says who is right."""
    database.admin.execute_raw("CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
    begin = here(database)
    for statements in MIXED:
        start, before = here(database), [int(i) for (i,) in database.admin.rows("SELECT id FROM t")]
        with connect(database.app_url) as app:
            run(app, *statements, "COMMIT")
        matcher = Matcher(is_strict=True)
        out = matched(groups(database, start, source), matcher)
        assert agrees(database, out, before), statements
        assert matcher.held() == ()
    assert agrees(database, matched(groups(database, begin, source)))


@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_restart_of_the_server(flavor: str, tmp_path: Path) -> None:
    """A branch outlives it and ends in another file; a transaction that its log holds in part was never committed."""
    server = servers.start(flavor, tmp_path / "server")
    try:
        database = create_database(server)
        database.admin.execute_raw(T)
        source, start = watch(database, "t"), here(database)
        for statements in (branch(BINARY, insert(1, 2)), branch(GONE, insert(3)), (insert(4), insert(5))):
            with connect(database.app_url) as app:
                run(app, *statements)
        commit = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}'")[-1]
        assert commit[2] == "Xid"
        database.close()
        server.kill()
        # As a crash leaves it that lost the end of the file: rows of the last transaction, not its commit.
        log = tmp_path / "server" / "data" / start.file
        log.write_bytes(log.read_bytes()[: int(commit[1])])
        database.server = server.restart()
        until_taken(database.admin, f"XA COMMIT {BINARY}")
        until_taken(database.admin, f"XA ROLLBACK {GONE}")
        database.admin.execute_raw(insert(6))
        found = groups(database, start, source)
        assert found[-1].start.number > start.number
        matcher = Matcher(is_strict=True)
        assert keys(matched(found, matcher)) == [4, 1, 2, 6]
        assert matcher.held() == ()
    finally:
        server.kill()
