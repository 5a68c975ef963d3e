"""Inserting by turns on MariaDB: one after the other, and nobody for long behind a holder that does not let go."""

from __future__ import annotations

import threading

import pytest
from rowcopy_setup import Background, CopyCase, Held, make_case, wait_until

from sandbox.databases import Database
from vreplication.apply.writer import in_transaction
from vreplication.mysql.session import Session, connect
from vreplication.rowcopy import turns

SIX = "INSERT INTO t (v) VALUES (1),(2),(3),(4),(5),(6)"


@pytest.fixture
def case(database: Database) -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", fill=(SIX,))


@pytest.mark.only_on("mariadb")
def test_second_inserts_when_the_first_has(case: CopyCase, held: Held) -> None:
    case.cut()
    with connect(case.database.url) as other, turns.turn_for(other, case.mapping, is_wanted=True).taken():
        copying = Background(case.copy)
        wait_until(lambda: case.database.admin.rows(_WAITING))
        assert case.rows(case.shadow) == []
    assert copying.result().error is None
    assert len(case.rows(case.shadow)) == 6


@pytest.mark.only_on("mariadb")
def test_holder_that_does_not_let_go_costs_a_second_and_no_more(
    case: CopyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.2)
    case.cut()
    with connect(case.database.url) as other, turns.turn_for(other, case.mapping, is_wanted=True).taken():
        assert case.copy().error is None
        assert len(case.rows(case.shadow)) == 6


def test_nobody_waits_where_no_turns_are_wanted(case: CopyCase) -> None:
    assert turns.turn_for(case.session, case.mapping, is_wanted=False).name is None


@pytest.mark.only_on("mariadb")
def test_catch_up_and_a_chunk_that_wait_for_one_another_both_end(case: CopyCase) -> None:
    """The chunk has the counter and waits for a row; catch-up has that row and waits for the counter."""
    case.cut()
    is_begun, may_go_on = threading.Event(), threading.Event()

    def write(session: Session) -> None:
        session.execute_raw(f"REPLACE INTO `{case.shadow}` (id,v) VALUES (6,6)")
        is_begun.set()
        assert may_go_on.wait(60)
        session.execute_raw(f"REPLACE INTO `{case.shadow}` (id,v) VALUES (100,100)")

    with connect(case.database.url) as session:
        catching_up = Background(lambda: in_transaction(session, case.replicate, lambda: write(session)))
        assert is_begun.wait(60)
        copying = Background(lambda: case.copy(path="server"))
        # What the server tells of transactions is as of 0.1 s after it was last asked.
        wait_until(lambda: bool(case.database.admin.rows(_BLOCKED)), poll_seconds=0.2)
        before = _deadlocks(case)
        may_go_on.set()
        catching_up.result()
        assert copying.result().error is None
    assert _deadlocks(case) > before, "they have not met"
    assert case.rows(case.shadow) == [*case.rows("t"), (100, 100)]


def _deadlocks(case: CopyCase) -> int:
    return int(case.database.admin.rows("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")[0][1])


_BLOCKED = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT' AND trx_query LIKE 'INSERT IGNORE%'"
_WAITING = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT GET_LOCK%' AND state LIKE 'User lock%'"
