"""Blockers and reasons on real servers."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cutover_setup import Background, Ready, prepare, until

from sandbox import binaries, servers
from sandbox.databases import Database, create_database
from vreplication.cutover.blockers import (
    METADATA_LOCK,
    OLD_SNAPSHOT,
    OPEN_TRANSACTION,
    PREPARED_BRANCH,
    Blocker,
    blockers,
    old_snapshots,
)
from vreplication.cutover.reasons import why_closed
from vreplication.cutover.transactions import utc_of_system
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.settings import SIDECAR
from vreplication.state import gate, ledger, progress, verdicts, workflows
from vreplication.state.ledger import Chunk, KeyRange, Landing, Split
from vreplication.state.verdicts import Verdict

NO_ONE: frozenset[int] = frozenset()
RENEWED = 0.15
"""InnoDB renews its list of transactions only when nobody has read it for 100 ms."""
CLEAN = Verdict(verdict=verdicts.CLEAN, rows_compared=3, mismatches=0, repaired=0, hot_keys=(), details="")


@pytest.fixture
def ready(database: Database) -> Iterator[Ready]:
    made = prepare(database)
    _open_gate(made)
    yield made
    made.session.close()


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        yield session


def _open_gate(ready: Ready) -> None:
    """All copied and matched, verified, caught up."""
    session, workflow = ready.session, ready.row.id
    bounds = KeyRange(lower=("1",), upper=("3",), has_lower=True)
    gate.write(session, ready.lease, is_open=True, reason="", beat=1)
    ledger.add_splits(session, workflow, [Split(number=0, range=bounds, estimated_rows=3, attempt=1)])
    first = Chunk(split=0, ordinal=0, attempt=1, state=ledger.OPEN, range=bounds)
    assert ledger.open_chunk(session, workflow, first)
    [chunk] = ledger.chunks(session, workflow)
    ledger.land(session, workflow, chunk, Landing(rows_read=3, rows_copied=3, swallowed=0, millis=1))
    ledger.match(session, workflow, 0, 0)
    ledger.finish_split(session, workflow, 0, 1)
    verdicts.save(session, workflow, CLEAN)
    session.execute_raw(
        f"INSERT INTO {SIDECAR}.since (workflow,first_round,round,collected,is_verified) VALUES ('{workflow}',1,2,'',1)"
    )
    _caught_up(ready)


def _caught_up(ready: Ready, **columns: object) -> None:
    known = {"lag_seconds": 0.1, "backlog": 3, "held_branches": 0, **columns}
    progress.write_replicate(ready.session, ready.row.id, **known)


def _codes(ready: Ready, *, own: frozenset[int] = NO_ONE, ignore: bool = False, release: bool = False) -> list[str]:
    found = why_closed(
        ready.session,
        ready.server,
        ready.row,
        own_connections=own,
        ignore_old_snapshots=ignore,
        needs_release=release,
    )
    return [r.code for r in found]


def test_open_gate(ready: Ready) -> None:
    assert _codes(ready) == []


def test_unmatched_and_unwalked(ready: Ready) -> None:
    ready.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET state='landed'")
    assert _codes(ready) == ["not_matched"]
    ready.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET state='matched'")
    ready.session.execute_raw(f"UPDATE {SIDECAR}.split SET is_done=0")
    assert _codes(ready) == ["not_matched"]


@pytest.mark.parametrize("column", ["is_void=1", "is_verified=0"])
def test_a_verification_after_which_changes_are_not_known_does_not_count(ready: Ready, column: str) -> None:
    ready.session.execute_raw(f"UPDATE {SIDECAR}.since SET {column}")
    assert _codes(ready) == ["not_verified"]
    verdicts.save(ready.session, ready.row.id, replace(CLEAN, verdict=verdicts.WAIVED))
    assert _codes(ready) == []


def test_dirty_keys(ready: Ready) -> None:
    from vreplication import names

    table = f"{SIDECAR}.{names.dirty_table(ready.row.id)}"
    ready.session.execute_raw(f"CREATE TABLE {table} (seen BIGINT NOT NULL, k0 INT PRIMARY KEY)")
    assert _codes(ready) == []
    ready.session.execute_raw(f"INSERT INTO {table} VALUES (1, 1)")
    assert _codes(ready) == ["dirty"]


@pytest.mark.parametrize(("verdict", "codes"), [("bad", ["not_verified"]), ("waived", []), ("clean", [])])
def test_verdict(ready: Ready, verdict: str, codes: list[str]) -> None:
    ready.session.execute(f"UPDATE {SIDECAR}.verification SET verdict=%s", (verdict,))
    assert _codes(ready) == codes


def test_no_verdict(ready: Ready) -> None:
    ready.session.execute_raw(f"DELETE FROM {SIDECAR}.verification")
    assert _codes(ready) == ["not_verified"]


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        ({"lag_seconds": 1.0}, ["lag"]),
        ({"lag_seconds": 0.99}, []),
        ({"backlog": 1000}, ["lag"]),
        ({"backlog": 999}, []),
        ({"lag_seconds": None}, ["lag"]),
        ({"backlog": None}, ["lag"]),
        ({"held_branches": 1}, ["prepared"]),
    ],
)
def test_lag_and_branches(ready: Ready, columns: dict[str, object], codes: list[str]) -> None:
    _caught_up(ready, **columns)
    assert _codes(ready) == codes


def test_catch_up_that_says_nothing_is_not_running(ready: Ready) -> None:
    stale = f"UPDATE {SIDECAR}.progress SET replicate_at = NOW(6) - INTERVAL 3 SECOND"
    ready.session.execute_raw(stale)
    assert _codes(ready) == ["not_running"]
    ready.session.execute_raw(f"DELETE FROM {SIDECAR}.progress")
    assert _codes(ready) == ["not_running"]


def test_paused_is_read_afresh(ready: Ready) -> None:
    workflows.set_paused(ready.session, ready.row.id, True)
    assert _codes(ready) == ["paused"]


def test_release(ready: Ready) -> None:
    assert _codes(ready, release=True) == ["not_released"]
    gate.release(ready.session, ready.row.id, "ann")
    assert _codes(ready, release=True) == []


# -- old snapshots ---


@pytest.mark.parametrize("has_read", [True, False])
def test_snapshot_from_before_the_last_match_holds_the_gate(ready: Ready, app: Session, has_read: bool) -> None:
    app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    _open_snapshot(app, has_read=has_read)
    _match_later(ready)
    found = _wait_for_snapshot(ready, app)
    assert (found.kind, found.connection_id) == (OLD_SNAPSHOT, app.id)
    assert _codes(ready) == ["old_snapshot"]
    assert _codes(ready, ignore=True) == []
    assert _codes(ready, own=frozenset({app.id})) == []
    app.rollback()
    until(lambda: _caught_up(ready) or _codes(ready) == [], every=RENEWED)


def test_younger_snapshot_is_no_matter(ready: Ready, app: Session) -> None:
    ready.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET matched_at = NOW(6) - INTERVAL 3 SECOND")
    _open_snapshot(app, has_read=False)
    later = datetime.datetime(2999, 1, 1)
    until(lambda: app.id in _ids(old_snapshots(ready.session, later, NO_ONE)), every=RENEWED)
    assert _codes(ready) == []


def test_read_committed_keeps_no_snapshot(ready: Ready, app: Session) -> None:
    app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
    app.execute_raw("BEGIN")
    app.rows("SELECT * FROM other")
    trx = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id=%s"
    until(lambda: ready.session.row(trx, (app.id,)) is not None, every=RENEWED)
    assert old_snapshots(ready.session, "2999-01-01", NO_ONE) == []


def test_without_a_copied_row_there_is_no_old_snapshot(ready: Ready, app: Session) -> None:
    _open_snapshot(app, has_read=False)
    assert old_snapshots(ready.session, None, NO_ONE) == []


@pytest.mark.slow
@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_a_server_far_from_utc(flavor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trx_started is in the operating system's time zone; taken for UTC, the young one would be hours from now.

    In this one an hour of the second of March comes twice.
    """
    monkeypatch.setenv("TZ", "IST-5:30XST-6:30,J60/0,J61/1")
    server = servers.start(flavor, tmp_path / "server")
    monkeypatch.delenv("TZ")
    try:
        database = create_database(server)
        with connect(database.app_url) as app, connect(database.url) as session:
            _open_snapshot(app, has_read=False)
            moment = "SELECT NOW(6) + INTERVAL %s SECOND"
            before, after = (session.value(moment, (n,)) for n in (-60, 60))
            until(lambda: bool(old_snapshots(session, after, NO_ONE)), every=RENEWED)
            [found] = old_snapshots(session, after, NO_ONE)
            assert found.age_seconds < 30
            assert old_snapshots(session, before, NO_ONE) == []
            asked = [utc_of_system(f"'2025-03-02 {clock}'") for clock in ("00:30:00", "01:30:00")]
            told = [str(session.value(f"SELECT {each}"))[:16] for each in asked]
            assert told == ["2025-03-01 18:00", "2025-03-01 20:00"]
    finally:
        server.stop()


# -- blockers ---


def test_holder_of_the_table_holds_the_gate(ready: Ready, app: Session) -> None:
    if ready.server.is_mariadb:
        pytest.skip("without its plugin MariaDB cannot say who holds a metadata lock")
    app.execute_raw("LOCK TABLES t READ")
    until(lambda: _caught_up(ready) or _codes(ready) == ["blocked"])
    [found] = _blockers(ready)
    assert (found.kind, found.connection_id, found.is_certain) == (METADATA_LOCK, app.id, True)
    assert _blockers(ready, own=frozenset({app.id})) == []
    app.execute_raw("UNLOCK TABLES")
    assert _codes(ready) == []


def test_everyday_statements_do_not_hold_the_gate(ready: Ready, app: Session) -> None:
    """A transaction of an instant holds its lock for an instant: LOCK waits for it as long."""
    with app.transaction():
        app.rows("SELECT * FROM t")
        until(lambda: bool(_blockers(ready)), every=0.15)
    quick = 0
    for _ in range(15):
        began = time.monotonic()
        with app.transaction():
            app.rows("SELECT * FROM t")
            _caught_up(ready)
            codes = _codes(ready)
        if time.monotonic() - began < 1:
            quick += 1
            assert codes == []
    assert quick


@pytest.mark.only_on("mariadb")
def test_mariadb_names_every_open_transaction_as_a_possible_one(ready: Ready, app: Session) -> None:
    app.execute_raw("BEGIN")
    app.rows("SELECT * FROM t")
    until(lambda: app.id in _ids(_blockers(ready)), every=RENEWED)
    [found] = [b for b in _blockers(ready) if b.connection_id == app.id]
    assert (found.kind, found.is_certain) == (OPEN_TRANSACTION, False)
    assert "may have used" in str(found)
    assert "blocked" not in _codes(ready)


@pytest.mark.only_on("mariadb")
def test_mariadb_with_its_plugin_knows(ready: Ready, app: Session) -> None:
    try:
        ready.database.admin.execute_raw("INSTALL SONAME 'metadata_lock_info'")
    except SqlError as error:
        pytest.skip(f"the plugin is not installed: {error}")
    try:
        app.execute_raw("CREATE TABLE other (id INT PRIMARY KEY)")
        with connect(ready.database.app_url) as elsewhere:
            elsewhere.execute_raw("BEGIN")
            elsewhere.rows("SELECT * FROM other")
            app.execute_raw("LOCK TABLES t READ")
            assert [(b.kind, b.connection_id) for b in _blockers(ready)] == [(METADATA_LOCK, app.id)]
            until(lambda: _caught_up(ready) or _codes(ready) == ["blocked"])
    finally:
        ready.database.admin.execute_raw("UNINSTALL SONAME 'metadata_lock_info'")


@pytest.mark.only_on("mysql")
def test_mysql_names_a_detached_branch(ready: Ready) -> None:
    with connect(ready.database.app_url) as session:
        session.execute_raw("XA START 'g2'")
        session.execute_raw("INSERT INTO t (v) VALUES (1)")
        session.execute_raw("XA END 'g2'")
        session.execute_raw("XA PREPARE 'g2'")
    until(lambda: PREPARED_BRANCH in [b.kind for b in _blockers(ready)])
    [found] = _blockers(ready)
    assert found.connection_id is None
    assert "X'6732'" in str(found)
    assert _codes(ready) == ["blocked"]
    ready.database.admin.execute_raw("XA ROLLBACK 'g2'")
    assert _codes(ready) == []


def test_running_statement_is_shown(ready: Ready, app: Session) -> None:
    slow = Background(lambda: app.rows("SELECT id, SLEEP(60)\n  FROM t"))
    until(lambda: "SELECT id, SLEEP(60) FROM t" in [b.statement for b in _blockers(ready)], every=RENEWED)
    ready.database.admin.kill(app.id)
    with pytest.raises(Exception, match=r"lost|interrupted|kill"):
        slow.result()


def test_least_privilege_is_enough(ready: Ready) -> None:
    """The user of sql/grants/ sees the same holders as an administrator does."""
    with connect(ready.database.app_url) as app:
        app.execute_raw("BEGIN")
        app.rows("SELECT * FROM t")
        until(lambda: app.id in _ids(_blockers(ready)), every=RENEWED)
        admin = ready.database.admin
        theirs = blockers(admin, inspect(admin), ready.database.name, "t", own=frozenset({ready.session.id}))
        assert app.id in _ids(theirs)


def _blockers(ready: Ready, own: frozenset[int] = NO_ONE) -> list[Blocker]:
    return blockers(ready.session, ready.server, ready.database.name, "t", own=own)


def _ids(found: list[Blocker]) -> list[int | None]:
    return [b.connection_id for b in found]


def _open_snapshot(app: Session, *, has_read: bool) -> None:
    app.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if has_read:
        app.execute_raw("BEGIN")
        app.rows("SELECT * FROM other")
    else:
        app.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")


def _match_later(ready: Ready) -> None:
    """As if the last chunk had been matched after what is open now."""
    ready.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET matched_at = NOW(6) + INTERVAL 1 SECOND")


def _wait_for_snapshot(ready: Ready, app: Session) -> Blocker:
    later = datetime.datetime(2999, 1, 1)
    until(lambda: app.id in _ids(old_snapshots(ready.session, later, NO_ONE)), every=RENEWED)
    [found] = [b for b in old_snapshots(ready.session, later, NO_ONE) if b.connection_id == app.id]
    return found
