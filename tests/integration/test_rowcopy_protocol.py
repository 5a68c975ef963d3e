"""The chunk protocol under forced races: each is held at a pause point until the other side has acted."""

from __future__ import annotations

import pytest
from rowcopy_setup import PATHS, WORKFLOW, Background, CopyCase, Held, make_case, wait_until

from sandbox.databases import Database
from vreplication.errors import BadValue, Cancelled, Superseded
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import connect
from vreplication.rowcopy import chunker
from vreplication.rowcopy.chunker import copy_split
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import gate, lease, ledger, markers, workflows
from vreplication.state.ledger import Chunk

TEN = "INSERT INTO t VALUES " + ",".join(f"({i * 10},{i})" for i in range(1, 11))


@pytest.fixture
def case(database: Database) -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=(TEN,))


def ids(case: CopyCase) -> list[int]:
    return [row[0] for row in case.rows(case.shadow)]


@pytest.mark.parametrize("path", PATHS)
def test_insert_between_probe_and_copy_pushes_nothing_out(case: CopyCase, held: Held, path: str) -> None:
    case.cut()
    held.hold("copy.after_probe")
    copying = Background(lambda: case.copy(0, path, chunk_rows=5))
    held.wait("copy.after_probe")
    case.app.execute("INSERT INTO t VALUES (11,0),(12,0),(13,0)")
    held.let_go("copy.after_probe")
    assert copying.result().error is None
    assert ids(case) == [10, 11, 12, 13, *range(20, 101, 10)]
    assert case.chunks()[0].range.upper == ("50",)


def test_the_server_path_waits_for_no_row_lock_on_the_source(case: CopyCase) -> None:
    case.cut()
    with case.app.transaction():
        assert case.app.rows("SELECT v FROM t WHERE id=50 FOR UPDATE") == [(5,)]
        case.app.execute("UPDATE t SET v=-5 WHERE id=50")
        assert Background(lambda: case.copy(0, "server")).result(30).error is None
        assert case.chunks()[0].state == ledger.LANDED
    assert case.rows(case.shadow) == [(i * 10, i) for i in range(1, 11)]


@pytest.mark.parametrize("path", PATHS)
def test_a_chunk_makes_no_writer_of_the_source_wait(case: CopyCase, held: Held, path: str) -> None:
    """Its rows are written and not committed; the transaction holds no lock on those it has read."""
    case.cut()
    held.hold("copy.before_land")
    copying = Background(lambda: case.copy(0, path))
    held.wait("copy.before_land")
    case.app.execute("SET SESSION innodb_lock_wait_timeout=1")
    assert case.app.execute("UPDATE t SET v=v+100 WHERE id=50") == 1
    assert case.app.execute("DELETE FROM t WHERE id=100") == 1
    assert case.app.execute("INSERT INTO t VALUES (55,0)") == 1
    held.let_go("copy.before_land")
    assert copying.result().error is None
    assert case.rows(case.shadow) == [(i * 10, i) for i in range(1, 11)]


def test_rows_are_read_behind_opened(case: CopyCase, held: Held) -> None:
    """A write that commits before the chunk is opened is in the copy; the rows path reads before it inserts."""
    case.cut()
    held.hold("copy.before_open")
    held.hold("copy.after_select")
    copying = Background(lambda: case.copy(0, "rows"))
    held.wait("copy.before_open")
    case.app.execute("UPDATE t SET v=100 WHERE id=10")
    held.let_go("copy.before_open")
    held.wait("copy.after_select")
    case.app.execute("UPDATE t SET v=200 WHERE id=20")
    held.let_go("copy.after_select")
    copying.result()
    assert case.rows(case.shadow)[:2] == [(10, 100), (20, 2)]


def test_rows_and_landed_are_one_transaction(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.before_land")
    copying = Background(case.copy)
    held.wait("copy.before_land")
    assert ids(case) == []
    assert [c.state for c in case.chunks()] == ["open"]
    held.let_go("copy.before_land")
    copying.result()
    assert len(ids(case)) == 10
    assert [c.state for c in case.chunks()] == ["landed"]


def test_a_chunk_whose_statement_somebody_kills_is_copied_again(case: CopyCase) -> None:
    """KILL QUERY, as from a tool that ends what runs for long."""
    case.cut()
    killing = case.database.admin
    with connect(case.database.url) as blocker, blocker.transaction():
        blocker.execute(f"INSERT INTO {ident(case.shadow)} (id, v) VALUES (50, 0)")
        copying = Background(lambda: case.copy(0, "server", lock_wait_seconds=50))
        statement = "SELECT id FROM information_schema.processlist WHERE info LIKE 'INSERT IGNORE INTO%'"
        wait_until(lambda: killing.value(statement) is not None)
        killing.execute_raw(f"KILL QUERY {killing.value(statement)}")
        wait_until(lambda: killing.value(statement) is None or not copying.is_running)
        blocker.rollback()
    assert copying.result().error is None
    assert case.rows(case.shadow) == [(i * 10, i) for i in range(1, 11)]


def test_superseded_attempt_that_wakes_up_late_writes_nothing(case: CopyCase, held: Held) -> None:
    """a1 has read row 10; it is deleted, and a2 copies the split; then a1 goes on."""
    case.cut()
    held.hold("copy.after_select")
    first = Background(lambda: case.copy(0, "rows"))
    held.wait("copy.after_select")
    case.app.execute("DELETE FROM t WHERE id=10")
    assert ledger.claim_split(case.session, WORKFLOW, 0) == 2
    held.let_go("copy.after_select")
    result = first.result()
    assert isinstance(result.error, Superseded)
    assert ids(case) == []
    assert case.copy(0, "rows").error is None
    assert ids(case) == list(range(20, 101, 10))
    assert [(c.attempt, c.state) for c in case.chunks()] == [(3, "landed")]


def test_attempt_superseded_between_chunks_opens_no_more(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.after_land")
    first = Background(lambda: case.copy(0, chunk_rows=4))
    held.wait("copy.after_land")
    ledger.claim_split(case.session, WORKFLOW, 0)
    held.let_go("copy.after_land")
    assert isinstance(first.result().error, Superseded)
    assert [(c.state, c.attempt) for c in case.chunks()] == [("landed", 1), ("open", 2)]
    assert ids(case) == [10, 20, 30, 40]


def test_next_chunk_is_opened_by_the_commit_that_lands_the_one_before(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.before_land")
    copying = Background(lambda: case.copy(0, chunk_rows=4))
    held.wait("copy.before_land")
    assert [c.state for c in case.chunks()] == ["open"]
    held.let_go("copy.before_land")
    assert copying.result().error is None
    opened, landed = (f"SELECT {c} FROM {SIDECAR}.chunk ORDER BY ordinal" for c in ("opened_at", "landed_at"))
    assert all(a[0] >= b[0] for a, b in zip(case.session.rows(opened)[1:], case.session.rows(landed), strict=False))
    assert len(ids(case)) == 10


def test_gate_that_closes_during_a_chunk_lets_it_land_and_opens_no_other(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.before_land")
    copying = Background(lambda: case.copy(0, chunk_rows=4))
    held.wait("copy.before_land")
    workflows.set_paused(case.session, WORKFLOW, True)
    held.let_go("copy.before_land")
    wait_until(lambda: [c.state for c in case.chunks()] == ["landed"])
    assert copying.is_running
    assert len(case.chunks()) == 1
    workflows.set_paused(case.session, WORKFLOW, False)
    assert copying.result().error is None
    assert len(ids(case)) == 10


def test_next_attempt_goes_on_behind_the_last_chunk_with_the_same_bounds(case: CopyCase, held: Held) -> None:
    case.cut()
    attempt = ledger.claim_split(case.session, WORKFLOW, 0)
    bounds = ledger.KeyRange(lower=("10",), upper=("35",), has_lower=True)
    assert ledger.open_chunk(
        case.session, WORKFLOW, Chunk(split=0, ordinal=0, attempt=attempt, state="open", range=bounds)
    )
    assert case.copy(0, chunk_rows=100).error is None
    assert [c.range.upper for c in case.chunks()] == [("35",), ("100",)]
    assert len(ids(case)) == 10


def test_taken_over_lease_stops_the_copy(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.after_select")
    first = Background(case.copy)
    held.wait("copy.after_select")
    case.session.execute(f"UPDATE {SIDECAR}.lease SET token=token+1 WHERE role='driver'")
    held.let_go("copy.after_select")
    assert isinstance(first.result().error, Superseded)
    assert ids(case) == []


def _is_waiting_at_gate(case: CopyCase) -> bool:
    return ledger.find_split(case.session, WORKFLOW, 0).attempt == 1


@pytest.mark.parametrize("how", ["closed", "stale", "paused"])
def test_closed_gate_holds_the_copy(case: CopyCase, how: str) -> None:
    case.cut()
    if how == "paused":
        workflows.set_paused(case.session, WORKFLOW, True)
    if how == "stale":
        case.session.execute(f"UPDATE {SIDECAR}.gate SET written_at=NOW(6) - INTERVAL 3 SECOND")
    if how == "closed":
        gate.write(case.session, case.replicate, is_open=False, reason="backlog", beat=9)
    copying = Background(lambda: copy_split(case.route, case.driver, case.mapping, case.job(), 0))
    wait_until(lambda: _is_waiting_at_gate(case))
    # Three more looks of the copy at the gate: each is a statement of its session.
    before = _questions(case)
    wait_until(lambda: _questions(case) > before + 30)
    assert case.chunks() == []
    workflows.set_paused(case.session, WORKFLOW, False)
    case.beat()
    assert copying.result().error is None
    assert len(ids(case)) == 10


def _questions(case: CopyCase) -> int:
    row = case.database.admin.row("SHOW GLOBAL STATUS LIKE 'Questions'")
    assert row is not None
    return int(row[1])


def test_cancelled_workflow_ends_the_wait_at_the_gate(case: CopyCase) -> None:
    case.cut()
    gate.write(case.session, case.replicate, is_open=False, reason="backlog", beat=9)
    copying = Background(lambda: copy_split(case.route, case.driver, case.mapping, case.job(), 0))
    wait_until(lambda: _is_waiting_at_gate(case))
    workflows.request_cancel(case.session, WORKFLOW)
    assert isinstance(copying.result().error, Cancelled)


@pytest.mark.parametrize("path", PATHS)
def test_lock_wait_repeats_the_whole_transaction(case: CopyCase, path: str) -> None:
    """Catch-up holds a key of the chunk; after 1205 neither "landed" nor half of the rows may stay."""
    case.cut()
    with connect(case.database.url) as applier:
        with applier.transaction():
            applier.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (60, 600)")
            copying = Background(lambda: case.copy(0, path))
            # InnoDB serves this table from a cache that is renewed only when nobody has read it for 100 ms.
            wait_until(lambda: _lock_waits(case) > 0, poll_seconds=0.2)
            wait_until(lambda: [c.state for c in case.chunks()] == ["open"])
            assert copying.is_running
    assert copying.result().error is None
    assert (60, 600) in case.rows(case.shadow)
    assert len(ids(case)) == 10


def _lock_waits(case: CopyCase) -> int:
    """Transactions that wait for a row lock now."""
    found = case.database.admin.value("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'")
    return int(found)


def test_lost_connection_is_replaced(case: CopyCase, held: Held) -> None:
    """The connection is killed in the landing transaction: nothing of it stays, and the split is claimed again."""
    case.cut()
    held.hold("copy.before_land")
    copying = Background(case.copy)
    held.wait("copy.before_land")
    _kill_copier(case)
    held.let_go("copy.before_land")
    assert copying.result().error is None
    assert len(ids(case)) == 10
    assert [(c.attempt, c.state) for c in case.chunks()] == [(2, "landed")]


_WRITERS = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_modified >= 10"


def _kill_copier(case: CopyCase) -> None:
    """The transaction that has written to the shadow. innodb_trx is renewed only for who has not read it for 0.1 s."""
    admin = case.database.admin
    wait_until(lambda: admin.rows(_WRITERS), poll_seconds=0.3)
    (found,) = admin.rows(_WRITERS)
    admin.kill(int(found[0]))
    wait_until(lambda: not admin.rows("SELECT 1 FROM information_schema.processlist WHERE id=%s", (found[0],)))


def test_lost_connection_does_not_take_a_split_back_from_a_newer_attempt(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.before_land")
    copying = Background(case.copy)
    held.wait("copy.before_land")
    _kill_copier(case)
    assert ledger.claim_split(case.session, WORKFLOW, 0) == 2
    held.let_go("copy.before_land")
    assert isinstance(copying.result().error, Superseded)
    assert ledger.find_split(case.session, WORKFLOW, 0).attempt == 2


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("end", ["XA COMMIT", "XA ROLLBACK"])
def test_prepared_branch_holds_the_read_until_it_has_ended(case: CopyCase, end: str) -> None:
    case.cut()
    copying = _with_branch_open(case)
    assert ids(case) == []
    case.app.execute(f"{end} 'g','b',7")
    assert copying.result().error is None
    assert dict(case.rows(case.shadow))[10] == (99 if end == "XA COMMIT" else 1)
    assert case.session.value(f"SELECT COUNT(*) FROM {SIDECAR}.marker") == 0


@pytest.mark.only_on("mariadb")
def test_prepared_branch_that_catch_up_holds_does_not_stop_the_copy(case: CopyCase) -> None:
    case.cut()
    copying = _with_branch_open(case)
    marker = case.session.value(f"SELECT id FROM {SIDECAR}.marker")
    markers.record_applied(case.session, WORKFLOW, marker, (f"X'{b'g'.hex()}',X'{b'b'.hex()}',7",), is_holding=False)
    assert copying.result().error is None
    assert dict(case.rows(case.shadow))[10] == 1
    case.app.execute("XA ROLLBACK 'g','b',7")


def _with_branch_open(case: CopyCase) -> Background:
    """A copy that waits for a prepared branch: it has opened its chunk and written its marker."""
    case.app.execute("XA START 'g','b',7")
    case.app.execute("UPDATE t SET v=99 WHERE id=10")
    case.app.execute("XA END 'g','b',7")
    case.app.execute("XA PREPARE 'g','b',7")
    copying = Background(case.copy)
    wait_until(lambda: case.session.value(f"SELECT COUNT(*) FROM {SIDECAR}.marker") == 1)
    assert [c.state for c in case.chunks()] == ["open"]
    return copying


def test_terminal_error_is_handed_back_and_leaves_the_chunk_open(database: Database) -> None:
    case = make_case(
        database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "MODIFY v TINYINT", (TEN, "UPDATE t SET v=300")
    )
    case.cut()
    assert isinstance(case.copy().error, BadValue)
    assert [c.state for c in case.chunks()] == ["open"]
    assert ids(case) == []
    assert lease.holder_of(case.session, WORKFLOW, lease.DRIVER) is not None


@pytest.mark.parametrize("point", ["copy.before_open", "copy.after_probe"])
def test_a_task_of_a_former_driver_opens_nothing(case: CopyCase, held: Held, point: str) -> None:
    """It wakes up behind a takeover while its split has not been claimed again."""
    case.cut()
    held.hold(point)
    copying = Background(lambda: case.copy())
    held.wait(point)
    take_over(case)
    held.let_go(point)
    assert isinstance(copying.result().error, Superseded)
    assert case.chunks() == []


def test_a_task_of_a_former_driver_claims_nothing(case: CopyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the living attempt at that split would find itself superseded."""

    def taken_over_meanwhile(*_: object) -> tuple[Tuning, None]:
        take_over(case)
        return Tuning(), None

    case.cut()
    monkeypatch.setattr(chunker, "check_standing", taken_over_meanwhile)
    assert isinstance(case.copy().error, Superseded)
    assert ledger.find_split(case.session, WORKFLOW, 0).attempt == 0


def take_over(case: CopyCase) -> None:
    case.session.execute(f"UPDATE {SIDECAR}.lease SET token=token+1 WHERE role='driver'")
