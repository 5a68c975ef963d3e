"""The cut-over on real servers: no write is lost, nobody sees a gap, and what is not as we left it is left alone."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cutover_setup import WORKFLOW, Points, Ready, app, attempt, points, prepare, ready, start, until, waiting_for_lock

from sandbox.databases import Database
from vreplication.cutover import sentry
from vreplication.cutover.decide import decide, settle
from vreplication.cutover.finish import analyze, drop_table
from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import comment, create_sentry, remove_sentry
from vreplication.errors import SourceChanged, Terminal, Transient
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import journal, verdicts, workflows
from vreplication.state.verdicts import Verdict
from vreplication.workflows.online_ddl import failover

__all__ = ["app", "points", "ready"]

RUNS = 20
WRITERS = 4


def test_the_new_table_takes_the_name(ready: Ready) -> None:
    analyze(ready.session, ready.database.name, ready.row.shadow_table)
    outcome = attempt(ready)
    assert outcome.is_switched, outcome.reason
    assert ready.is_switched()
    assert ready.tables() == {"t", ready.row.retired_table}
    assert ready.session.rows("SELECT * FROM t ORDER BY id") == [(1, 10, 7), (2, 20, 7), (3, 30, 7)]
    assert 0 < outcome.lock_millis <= outcome.total_millis < 3000
    assert len(ready.announced[0]) == 4
    assert ready.announced[-1] == ()
    assert decide(ready.session, ready.row) == settle(ready.session, ready.row) == "switched"
    assert ready.row.retired_table in ready.tables()


def test_nothing_is_decided_on_another_server(ready: Ready) -> None:
    """Two servers number their tables alike, so the same identity there means nothing."""
    for about in (decide, settle):
        with pytest.raises(SourceChanged, match="on another server"):
            about(ready.session, dataclasses.replace(ready.row, server_identity="another"))
    here = identity(inspect(ready.session))
    assert decide(ready.session, dataclasses.replace(ready.row, server_identity=here)) == "not switched"


def test_who_is_killed_while_it_moves_has_not_moved(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new server is noted together with all that follows from it: whoever finds it noted looks no further."""
    session, write = ready.session, journal.write
    counts = Verdict(verdict=verdicts.CLEAN, rows_compared=3, mismatches=0, repaired=0, hot_keys=(), details="")
    verdicts.save(session, WORKFLOW, counts)
    workflows.set_fields(session, WORKFLOW, server_identity="another", rows_total=3)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        failover.adopt(session, workflows.load(session, WORKFLOW))
    monkeypatch.setattr(journal, "write", write)
    for _ in range(2):
        failover.adopt(session, workflows.load(session, WORKFLOW))
    here = identity(inspect(session))
    assert workflows.load(session, WORKFLOW).server_identity == here
    assert verdicts.load(session, WORKFLOW) is None
    moved = [each["details"] for each in journal.read(session, WORKFLOW) if each["event"] == journal.MOVED]
    assert moved == [f"from server another to {here}"]


def test_no_write_is_lost_and_no_reader_sees_a_gap(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Writers and readers never stop; what the lock's holder saw is all that the retired table ever holds."""
    queued = 0
    longest = 0.0
    for run in range(RUNS):
        ready = prepare(database, f"t{run}", f"wf-{run}")
        with _traffic(database, f"t{run}") as traffic:
            traffic.wait_for_writes(8)
            under_lock: list[set[int]] = []

            def barrier(_: float, traffic: _Traffic = traffic, ready: Ready = ready) -> None:
                until(lambda: traffic.waiting(ready.session) == WRITERS)

            def look(locker: Session, table: str = f"t{run}", seen: list[set[int]] = under_lock) -> None:
                seen.append(_ids(locker, table))

            outcome = attempt(ready, barrier=barrier, check_locked=look)
            assert outcome.is_switched, outcome.reason
            longest = max(longest, outcome.total_millis)
            traffic.wait_for_writes(8)
        retired, new = _ids(ready.session, ready.row.retired_table), _ids(ready.session, f"t{run}")
        assert retired == under_lock[0]
        assert traffic.acknowledged <= retired | new
        assert traffic.errors == []
        queued += WRITERS
        ready.session.close()
    with capsys.disabled():
        print(f" [{database.server.flavor}: {RUNS} switches, {queued} queued writes, longest {longest:.0f} ms]", end="")


def test_auto_increment_is_carried_over(ready: Ready, app: Session) -> None:
    app.execute_raw("INSERT INTO t (id, v) VALUES (500, 1)")
    app.execute_raw("DELETE FROM t WHERE id = 500")
    assert attempt(ready).is_switched
    app.execute_raw("INSERT INTO t (v) VALUES (1)")
    assert app.value("SELECT MAX(id) FROM t") == 501
    assert ready.is_switched()


def test_a_higher_counter_of_the_shadow_stays(ready: Ready, app: Session) -> None:
    ready.session.execute_raw(f"ALTER TABLE {ready.row.shadow_table} AUTO_INCREMENT=900")
    assert attempt(ready).is_switched
    app.execute_raw("INSERT INTO t (v) VALUES (1)")
    assert app.value("SELECT MAX(id) FROM t") == 900


def test_views_and_grants_go_by_name(ready: Ready, app: Session) -> None:
    admin, schema = ready.database.admin, ready.database.name
    reader = f"rd{schema[-8:]}"
    app.execute_raw("CREATE VIEW vw AS SELECT id, v FROM t")
    admin.execute_raw(f"CREATE USER {reader}@'%' IDENTIFIED BY 'pw-reader-1'")
    try:
        admin.execute_raw(f"GRANT SELECT ON `{schema}`.t TO {reader}@'%'")
        admin.execute_raw(f"GRANT SELECT ON `{schema}`.vw TO {reader}@'%'")
        if not ready.server.is_mariadb:
            admin.execute_raw(f"GRANT SESSION_VARIABLES_ADMIN ON *.* TO {reader}@'%'")
        assert attempt(ready).is_switched
        with connect(ready.database.server.url(schema, user=reader, password="pw-reader-1")) as session:
            assert session.value("SELECT SUM(added) FROM t") == 21
            assert session.value("SELECT SUM(v) FROM vw") == 60
            with pytest.raises(Terminal, match="denied"):
                session.rows(f"SELECT * FROM {ready.row.retired_table}")
    finally:
        admin.execute_raw(f"DROP USER {reader}@'%'")


def test_left_over_sentry_is_cleared(ready: Ready) -> None:
    create_sentry(ready.session, ready.database.name, ready.row.retired_table, ready.row.id)
    assert settle(ready.session, ready.row) == "not switched"
    assert ready.is_untouched()
    create_sentry(ready.session, ready.database.name, ready.row.retired_table, ready.row.id)
    assert attempt(ready).is_switched


def test_nobody_takes_over_while_a_sentry_is_removed(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has taken over may have placed one of the same name, for a RENAME that is under way."""
    was_taken_over: list[bool] = []

    def late(*args: Any) -> bool:
        was_taken_over.append(is_taken_over(ready))
        return remove_sentry(*args)

    def barrier(seconds: float) -> None:
        monkeypatch.setattr(sentry, "remove_sentry", late)
        raise Transient("not now")

    assert not attempt(ready, barrier=barrier).is_switched
    assert was_taken_over == [False]
    assert ready.is_untouched()


def is_taken_over(ready: Ready) -> bool:
    with connect(ready.database.url, lock_wait_seconds=1) as other:
        try:
            return other.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1") > 0
        except LockWait:
            return False


@pytest.mark.parametrize("kind", ["foreign", "other workflow", "not empty"])
def test_what_is_not_an_empty_sentry_of_ours_stays(ready: Ready, kind: str) -> None:
    name = ready.row.retired_table
    words = {"foreign": "mine", "other workflow": comment("wf-2"), "not empty": comment(ready.row.id)}[kind]
    ready.session.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY) COMMENT='{words}'")
    if kind == "not empty":
        ready.session.execute_raw(f"INSERT INTO {name} VALUES (1)")
    assert settle(ready.session, ready.row) == "not switched"
    assert not remove_sentry(ready.session, ready.database.name, name, ready.row.id)
    with pytest.raises(Terminal, match="is not ours"):
        attempt(ready)
    assert name in ready.tables()


@pytest.mark.parametrize("statement", ["ALTER TABLE t FORCE", "TRUNCATE TABLE t__vr_new", "DROP TABLE t__vr_new"])
def test_replaced_table_is_seen_under_the_lock(ready: Ready, statement: str, app: Session) -> None:
    app.execute_raw(statement)
    with pytest.raises(SourceChanged):
        attempt(ready)
    assert {"t"} <= ready.tables()
    if "vr_new" in statement:
        assert ready.is_untouched()


def test_names_that_sort_before_the_table_are_refused(ready: Ready) -> None:
    for wrong in ({"shadow_table": "_t_new"}, {"retired_table": "_t_old"}):
        other = dataclasses.replace(ready, row=dataclasses.replace(ready.row, **wrong))
        with pytest.raises(Terminal, match="do not sort after"):
            other.cut_over()


def test_long_and_odd_name(database: Database) -> None:
    ready = prepare(database, "ü`#%" + "~" * 10 + "x" * 50)
    outcome = attempt(ready)
    assert outcome.is_switched, outcome.reason
    assert ready.is_switched()
    ready.session.close()


def test_rename_waits_on_the_table_itself(ready: Ready, points: Points) -> None:
    if ready.server.is_mariadb:
        pytest.skip("MariaDB does not show who waits for which metadata lock")
    sql = (
        "SELECT object_name FROM performance_schema.metadata_locks m JOIN performance_schema.threads t "
        "ON t.thread_id = m.owner_thread_id WHERE t.processlist_id=%s AND object_type='TABLE' AND lock_status='PENDING'"
    )
    running = start(ready, points, "rename_pending")
    assert ready.session.rows(sql, (ready.ids[1],)) == [("t",)]
    points.let_go("cutover.rename_pending")
    assert running.result().is_switched


def test_a_table_is_dropped_only_by_its_identity(ready: Ready) -> None:
    assert attempt(ready).is_switched
    schema, name, mariadb = ready.database.name, ready.row.retired_table, ready.server.is_mariadb
    assert ready.row.source_identity is not None
    assert ready.row.shadow_identity is not None
    assert not drop_table(ready.session, schema, name, ready.row.shadow_identity, is_mariadb=mariadb)
    assert not drop_table(ready.session, schema, "t", ready.row.source_identity, is_mariadb=mariadb)
    assert drop_table(ready.session, schema, name, ready.row.source_identity, is_mariadb=mariadb)
    assert not drop_table(ready.session, schema, name, ready.row.source_identity, is_mariadb=mariadb)
    assert ready.tables() == {"t"}
    assert table_identity(ready.session, schema, "t", mariadb) == ready.row.shadow_identity


def _ids(session: Session, table: str) -> set[int]:
    return {int(r[0]) for r in session.rows(f"SELECT id FROM {table}")}


class _Traffic:
    """Writers that insert and readers that count, until the block is left."""

    def __init__(self, database: Database, table: str) -> None:
        self.errors: list[str] = []
        self.acknowledged: set[int] = set()
        self.reads = 0
        self._table = table
        self._over = threading.Event()
        self._sessions = [connect(database.app_url) for _ in range(WRITERS + 2)]
        calls = [self._write] * WRITERS + [self._read] * 2
        self._threads = [
            threading.Thread(target=self._loop, args=pair, daemon=True)
            for pair in zip(calls, self._sessions, strict=True)
        ]

    def __enter__(self) -> _Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread, session in zip(self._threads, self._sessions, strict=True):
            thread.join(20)
            session.close()

    def wait_for_writes(self, count: int) -> None:
        seen, reads = len(self.acknowledged), self.reads
        until(lambda: bool(self.errors) or (len(self.acknowledged) >= seen + count and self.reads > reads))

    def waiting(self, session: Session) -> int:
        return sum(waiting_for_lock(session, s.id) for s in self._sessions[:WRITERS])

    def _loop(self, call: Callable[[Session], None], session: Session) -> None:
        while not self._over.is_set():
            try:
                call(session)
            except Exception as error:
                self.errors.append(str(error))
                return

    def _write(self, session: Session) -> None:
        session.execute_raw(f"INSERT INTO {self._table} (v) VALUES (1)")
        self.acknowledged.add(int(session._connection.insert_id()))

    def _read(self, session: Session) -> None:
        session.rows(f"SELECT COUNT(*) FROM {self._table}")
        self.reads += 1


def _traffic(database: Database, table: str) -> _Traffic:
    return _Traffic(database, table)
