"""Writes are denied on real servers: nobody writes after `deny` has returned, and whoever may, goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cutover_setup import Background, Points, until, waiting_for_lock

from sandbox.databases import Database
from tests.support.tailing import changes, groups, here, watch
from vreplication.cutover import deny as denying
from vreplication.cutover.blockers import branch_names
from vreplication.cutover.deny import Denied, Table, allow, denied_tables, deny, exempt, is_denied
from vreplication.errors import Terminal, Transient
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import inspect
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError, connect
from vreplication.pausepoints import VARIABLE

WORKFLOW = "shop-1"
TOKEN = "4711"
MESSAGE = "shop has moved to the new server; writes are denied here"
BRANCH = "'branch','b',1"
WRITERS = 20


@pytest.fixture(autouse=True)
def _trusted(database: Database) -> Iterator[None]:
    """The user of sql/grants/ has no SUPER."""
    with trust(database, True):
        yield


@contextmanager
def trust(database: Database, is_on: bool) -> Iterator[None]:
    before = database.admin.value("SELECT @@GLOBAL.log_bin_trust_function_creators")
    database.admin.execute_raw(f"SET GLOBAL log_bin_trust_function_creators={int(is_on)}")
    try:
        yield
    finally:
        database.admin.execute_raw(f"SET GLOBAL log_bin_trust_function_creators={before}")


@pytest.fixture
def ours(database: Database) -> Iterator[Session]:
    with connect(database.url) as session:
        yield session


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        yield session


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Points(tmp_path)


def make(database: Database, *tables: str) -> list[Table]:
    """Each with the rows 1 to 3."""
    for table in tables or ("t",):
        database.admin.execute_raw(
            f"CREATE TABLE {ident(table)} (id INT PRIMARY KEY AUTO_INCREMENT, v INT) ENGINE=InnoDB"
        )
        database.admin.execute_raw(f"INSERT INTO {ident(table)} VALUES (1, 10), (2, 20), (3, 30)")
    return [(database.name, table) for table in tables or ("t",)]


def denied(session: Session, tables: list[Table], **options: object) -> Denied:
    calls = {"workflow": WORKFLOW, "token": TOKEN, "message": MESSAGE, **options}
    return deny(session, tables, **calls)  # type: ignore[arg-type]


def is_refused(session: Session, sql: str) -> bool:
    """With our number and our words; False when it is done."""
    try:
        session.execute_raw(sql)
    except SqlError as error:
        if error.code != denying.ERRNO or MESSAGE not in error.message:
            raise
        return True
    return False


def triggers(database: Database) -> int:
    return int(database.admin.value("SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema=DATABASE()"))


def rows(database: Database, table: str = "t") -> list[tuple[object, ...]]:
    return database.admin.rows(f"SELECT * FROM {ident(table)} ORDER BY id")


def test_every_way_to_write_is_refused_and_reading_goes_on(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    make(database, "other")
    app.execute_raw("PREPARE p FROM 'INSERT INTO t (v) VALUES (1)'")
    app.execute_raw("EXECUTE p")
    before = rows(database)
    denied(ours, tables).release()
    for statement in (
        "EXECUTE p",
        "INSERT INTO t (v) VALUES (1)",
        "INSERT IGNORE INTO t VALUES (1, 2)",
        "INSERT INTO t VALUES (1, 2) ON DUPLICATE KEY UPDATE v=9",
        "INSERT INTO t SELECT id + 50, v FROM other",
        "REPLACE INTO t VALUES (1, 2)",
        "UPDATE t SET v=9 WHERE id=1",
        "UPDATE IGNORE t SET v=9",
        "UPDATE t JOIN other USING (id) SET t.v=9, other.v=9",
        "DELETE FROM t WHERE id=1",
        "DELETE IGNORE FROM t",
        "DELETE t, other FROM t JOIN other USING (id)",
    ):
        assert is_refused(app, statement), statement
    assert rows(database) == before
    assert rows(database, "other") == [(1, 10), (2, 20), (3, 30)]
    with app.transaction():
        assert len(app.rows("SELECT * FROM t FOR UPDATE")) == len(before)
    assert not is_refused(app, "UPDATE other JOIN t USING (id) SET other.v=9")


def test_load_data_is_refused(database: Database, ours: Session) -> None:
    tables = make(database)
    file = Path(str(database.admin.value("SELECT @@tmpdir"))) / "deny_rows"
    file.write_text("77\t1\n")
    file.chmod(0o644)
    denied(ours, tables).release()
    for how in ("", "IGNORE", "REPLACE"):
        assert is_refused(database.admin, f"LOAD DATA INFILE '{file}' {how} INTO TABLE t")
    assert len(rows(database)) == 3


def test_an_exempt_session_writes(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    denied(ours, tables).release()
    for guess in ("0", "''", "NULL", "X'00'", f"'{TOKEN}'"):
        app.execute_raw(f"SET @vreplication={guess}")
        assert is_refused(app, "INSERT INTO t VALUES (4, 40)"), guess
    exempt(app, "another token")
    assert is_refused(app, "INSERT INTO t VALUES (4, 40)")
    exempt(app, TOKEN)
    for statement in ("REPLACE INTO t VALUES (4, 40)", "UPDATE t SET v=11 WHERE id=1", "DELETE FROM t WHERE id=2"):
        assert not is_refused(app, statement)
    assert rows(database) == [(1, 11), (3, 30), (4, 40)]


def test_writes_are_allowed_again(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    denied(ours, tables).release()
    assert denied_tables(ours, tables, workflow=WORKFLOW) == set(tables)
    assert denied_tables(ours, tables, workflow="another") == set()
    allow(ours, tables, workflow="another")
    assert is_refused(app, "DELETE FROM t")
    for _ in range(2):
        allow(ours, tables, workflow=WORKFLOW)
        assert not is_denied(ours, tables[0], workflow=WORKFLOW)
    assert not is_refused(app, "DELETE FROM t")
    assert triggers(database) == 0


def test_allowed_under_an_open_transaction_later(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    denied(ours, tables).release()
    app.execute_raw("BEGIN")
    app.rows("SELECT * FROM t FOR UPDATE")
    with pytest.raises(LockWait):
        allow(ours, tables, workflow=WORKFLOW)
    assert is_denied(ours, tables[0], workflow=WORKFLOW)
    app.execute_raw("COMMIT")
    allow(ours, tables, workflow=WORKFLOW)
    assert triggers(database) == 0


def test_a_denial_again_takes_the_new_token(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    denied(ours, tables).release()
    denied(ours, tables, token="newer").release()
    assert triggers(database) == 3
    exempt(app, TOKEN)
    assert is_refused(app, "DELETE FROM t")
    exempt(app, "newer")
    assert not is_refused(app, "DELETE FROM t")


def test_not_one_write_after_it(database: Database, ours: Session) -> None:
    """Many writers that never stop; the rows that stand when `deny` returns are all that there will ever be."""
    tables = make(database, "t", "u")
    ends: list[SqlError] = []
    stop = threading.Event()

    def write(number: int) -> None:
        table = "tu"[number % 2]
        with connect(database.app_url) as session:
            session.execute_raw(f"PREPARE p FROM 'INSERT INTO {table} (v) VALUES (1)'")
            while not stop.is_set():
                try:
                    session.execute_raw("EXECUTE p" if number % 4 < 2 else f"INSERT INTO {table} (v) VALUES (2)")
                except SqlError as error:
                    ends.append(error)
                    return

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    until(lambda: len(rows(database)) > 100 and len(rows(database, "u")) > 100)
    locked = denied(ours, tables)
    # Whoever waits now waits without an error, and has written nothing.
    seen = [int(ours.value(f"SELECT COUNT(*) FROM {name}")) for name in "tu"]
    locked.check_locked()
    locked.release()
    until(lambda: len(ends) == WRITERS)
    stop.set()
    for thread in threads:
        thread.join()
    assert {error.code for error in ends} == {denying.ERRNO}
    assert [len(rows(database, name)) for name in "tu"] == seen


def test_the_log_is_read_on_behind_the_triggers(database: Database, ours: Session, app: Session) -> None:
    """They are in the log as DDL that names the table; anybody else's would end whatever follows it."""
    tables = make(database, "größe `x`")
    start, followed = here(database), watch(database, tables[0][1])
    denied(ours, tables).release()
    exempt(app, TOKEN)
    app.execute_raw(f"INSERT INTO {ident(tables[0][1])} VALUES (4, 40)")
    allow(ours, tables, workflow=WORKFLOW)
    app.execute_raw(f"DELETE FROM {ident(tables[0][1])} WHERE id=1")
    found = groups(database, start, followed)
    assert len(changes(found)) == 2
    assert found[-1].end == here(database)


def test_given_up_under_the_lock_nobody_sees_an_error(database: Database, ours: Session) -> None:
    tables = make(database)
    locked = denied(ours, tables)
    with connect(database.app_url) as writer:
        waiting = Background(lambda: writer.execute_raw("INSERT INTO t VALUES (4, 40)"))
        until(lambda: waiting_for_lock(database.admin, writer.id))
        allow(ours, tables, workflow=WORKFLOW)
        locked.release()
        assert waiting.result() == 1
    assert triggers(database) == 0


def test_an_open_transaction_makes_it_wait_and_fails_afterwards(
    database: Database, ours: Session, app: Session
) -> None:
    tables = make(database, "t", "u")
    app.execute_raw("BEGIN")
    app.execute_raw("UPDATE u SET v=21 WHERE id=2")
    with pytest.raises(LockWait):
        denied(ours, tables)
    with connect(database.app_url) as other:
        # Neither table is held any more, and no transaction of ours is open.
        other.execute_raw("UPDATE t SET v=11 WHERE id=1")
    assert triggers(database) == 0
    app.execute_raw("COMMIT")
    # One that has read and not yet written has the lock on another table alone.
    app.execute_raw("BEGIN")
    app.execute_raw("DELETE FROM u WHERE id=3")
    denied(ours, tables[:1]).release()
    assert is_refused(app, "UPDATE t SET v=12 WHERE id=1")
    app.execute_raw("COMMIT")
    assert rows(database, "u") == [(1, 10), (2, 21)]


@pytest.mark.parametrize("table", ["größe `x`'\"\\", "ä" * 64, "t" * 64, "日本 %s"])
def test_names(database: Database, ours: Session, app: Session, table: str) -> None:
    tables = make(database, table, "plain")
    denied(ours, tables, message=f"{table} has moved: 'ä' \\ 😀" + "x" * 200).release()
    assert denied_tables(ours, tables, workflow=WORKFLOW) == set(tables)
    for statement in ("INSERT INTO {} (v) VALUES (1)", "UPDATE {} SET v=1", "DELETE FROM {}"):
        with pytest.raises(SqlError) as caught:
            app.execute_raw(statement.format(ident(table)))
        assert caught.value.code == denying.ERRNO
        assert table in caught.value.message
    allow(ours, tables, workflow=WORKFLOW)
    assert triggers(database) == 0


def test_a_table_that_was_renamed_is_allowed_again(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    denied(ours, tables).release()
    database.admin.execute_raw("RENAME TABLE t TO elsewhere")
    make(database)
    assert not is_denied(ours, tables[0], workflow=WORKFLOW)
    allow(ours, tables, workflow=WORKFLOW)
    assert not is_refused(app, "DELETE FROM elsewhere")


@pytest.mark.parametrize(("point", "left"), [("deny.locked", 0), ("deny.table_denied", 1)])
def test_a_lost_lock(database: Database, ours: Session, app: Session, points: Points, point: str, left: int) -> None:
    """What stands is looked up, and can be removed or made whole."""
    tables = make(database, "t", "u")
    points.hold(point)
    running = Background(lambda: denied(ours, tables))
    points.wait(point)
    database.admin.kill(ours.id)
    points.let_go(point)
    with pytest.raises(ConnectionLost):
        running.result()
    with connect(database.url) as session:
        assert denied_tables(session, tables, workflow=WORKFLOW) == set(tables[:left])
        assert is_refused(app, "DELETE FROM t") is bool(left)
        assert not is_refused(app, "DELETE FROM u")
        denied(session, tables).release()
        assert denied_tables(session, tables, workflow=WORKFLOW) == set(tables)
        allow(session, tables, workflow=WORKFLOW)
    assert triggers(database) == 0


def test_nothing_comes_late(database: Database, ours: Session, app: Session, points: Points) -> None:
    """The one that denies stands still before its first trigger; nobody would drop what it makes when it wakes up."""
    tables = make(database)
    points.hold("deny.locked")
    running = Background(lambda: denied(ours, tables))
    points.wait("deny.locked")
    with connect(database.url) as session:
        allow(session, tables, workflow=WORKFLOW, former=(ours.id,))
    points.let_go("deny.locked")
    with pytest.raises(ConnectionLost):
        running.result()
    assert triggers(database) == 0
    assert not is_refused(app, "DELETE FROM t")


def test_a_lock_that_is_held_no_more_is_seen(database: Database, ours: Session) -> None:
    tables = make(database, "t", "u")
    locked = denied(ours, tables)
    locked.check_locked()
    ours.execute_raw("UNLOCK TABLES")
    with pytest.raises(Transient, match="lost"):
        locked.check_locked()
    ours.execute_raw("LOCK TABLES t WRITE")
    with pytest.raises(SqlError):
        locked.check_locked()


def test_half_way_nothing_stays(database: Database, ours: Session, app: Session) -> None:
    """The second table is a view, which can be locked and can have no triggers."""
    make(database, "t", "u")
    database.admin.execute_raw("CREATE VIEW w AS SELECT * FROM u")
    tables = [(database.name, "t"), (database.name, "w")]
    with pytest.raises(SqlError):
        denied(ours, tables)
    assert triggers(database) == 0
    assert not is_refused(app, "DELETE FROM t")
    # And no lock: the session answers for tables that it had not locked.
    assert ours.value("SELECT COUNT(*) FROM u") == 3


def test_a_user_who_may_not(database: Database, ours: Session, app: Session) -> None:
    tables = make(database)
    assert denying.may_create_triggers(ours) == ""
    with trust(database, False):
        assert "SUPER" in denying.may_create_triggers(ours)
        with pytest.raises(Terminal) as caught:
            denied(ours, tables)
        assert "log_bin_trust_function_creators" in caught.value.cure
        assert not is_refused(app, "DELETE FROM t")
        database.admin.execute_raw(f"GRANT SUPER ON *.* TO '{database.user}'@'%'")
        with connect(database.url) as session:
            assert denying.may_create_triggers(session) == ""
            denied(session, tables).release()
            allow(session, tables, workflow=WORKFLOW)


def test_ddl_that_waits_is_seen(database: Database, ours: Session) -> None:
    """No trigger stops it: let go, it would run on the table that has been left."""
    tables = make(database, "t", "u")
    locked = denied(ours, tables)
    assert denying.definitions(database.admin, tables, [ours.id]) == []
    with connect(database.app_url) as other:
        waiting = Background(lambda: other.execute_raw("TRUNCATE TABLE u"))
        until(lambda: waiting_for_lock(database.admin, other.id))
        assert [p.id for p in denying.definitions(database.admin, tables, [ours.id])] == [other.id]
        assert denying.definitions(database.admin, tables[:1], [ours.id]) == []
        locked.release()
        waiting.result()
    assert rows(database, "u") == []


@pytest.mark.parametrize("is_detached", [False, True], ids=["attached", "detached"])
def test_a_prepared_branch_that_changed_the_table_keeps_it_from_being_locked(
    database: Database, ours: Session, is_detached: bool
) -> None:
    tables = make(database)
    with connect(database.app_url) as owner:
        _prepare(owner, "INSERT INTO t VALUES (55, 5)")
        if is_detached:
            owner.close()
            until(lambda: _is_gone(database, owner.id))
        with pytest.raises(LockWait):
            denied(ours, tables)
        assert triggers(database) == 0
        (branch,) = branch_names(ours, inspect(ours))
        assert not is_refused(database.admin if is_detached else owner, f"XA COMMIT {branch}")
        locked = denied(ours, tables)
        assert branch_names(ours, inspect(ours)) == []
        assert ours.value("SELECT COUNT(*) FROM t") == 4
        locked.release()


def test_a_prepared_branch_of_another_table_is_no_matter(database: Database, ours: Session, app: Session) -> None:
    """So the list of branches alone says nothing; under the lock none of them holds a change of these tables."""
    tables = make(database)
    make(database, "other")
    _prepare(app, "INSERT INTO other VALUES (55, 5)")
    locked = denied(ours, tables)
    assert len(branch_names(ours, inspect(ours))) == 1
    locked.check_locked()
    locked.release()
    app.execute_raw(f"XA COMMIT {BRANCH}")
    assert len(rows(database, "other")) == 4


def _prepare(session: Session, statement: str) -> None:
    for sql in (f"XA START {BRANCH}", statement, f"XA END {BRANCH}", f"XA PREPARE {BRANCH}"):
        session.execute_raw(sql)


def _is_gone(database: Database, connection_id: int) -> bool:
    return connection_id not in {int(row[0]) for row in database.admin.rows("SHOW PROCESSLIST")}
