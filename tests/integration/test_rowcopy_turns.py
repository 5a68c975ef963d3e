"""Inserting by turns on MariaDB: one after the other, and nobody for long behind a holder that does not let go."""

from __future__ import annotations

import pytest
from rowcopy_setup import Background, CopyCase, Held, make_case, wait_until

from sandbox.databases import Database
from vreplication.mysql.session import connect
from vreplication.rowcopy import turns

SIX = "INSERT INTO t (v) VALUES (1),(2),(3),(4),(5),(6)"


@pytest.fixture
def case(database: Database) -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", fill=(SIX,))


@pytest.mark.only_on("mariadb")
def test_second_inserts_when_the_first_has(case: CopyCase, held: Held) -> None:
    case.cut()
    with connect(case.database.url) as other, turns.turn_for(other, case.mapping, is_mariadb=True).taken():
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
    with connect(case.database.url) as other, turns.turn_for(other, case.mapping, is_mariadb=True).taken():
        assert case.copy().error is None
        assert len(case.rows(case.shadow)) == 6


def test_turns_are_for_counted_tables_of_mariadb(case: CopyCase, database: Database) -> None:
    of_server = turns.turn_for(case.session, case.mapping, is_mariadb=database.server.is_mariadb)
    assert (of_server.name is not None) == database.server.is_mariadb
    assert turns.turn_for(case.session, case.mapping, is_mariadb=False).name is None


_WAITING = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT GET_LOCK%' AND state LIKE 'User lock%'"
