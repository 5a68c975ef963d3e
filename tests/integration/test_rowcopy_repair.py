"""Ranges that are copied again."""

from __future__ import annotations

import pytest
from rowcopy_setup import PATHS, WORKFLOW, Background, CopyCase, Held, make_case

from sandbox.databases import Database
from vreplication.errors import BadValue, Superseded
from vreplication.mysql.quoting import ident
from vreplication.rowcopy.repair import copy_ranges
from vreplication.settings import SIDECAR
from vreplication.state import ledger
from vreplication.state.ledger import KeyRange


@pytest.fixture
def case(database: Database) -> CopyCase:
    made = make_case(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        fill=("INSERT INTO t VALUES (1,1),(2,2),(3,3),(4,4),(5,5)",),
    )
    made.copy_all()
    return made


def one(key: str) -> KeyRange:
    return KeyRange(lower=(key,), upper=(key,), has_lower=True)


def repair(case: CopyCase, ranges: list[KeyRange], *, clear: bool, path: str = "server") -> None:
    with case.gate_kept_open():
        copy_ranges(case.route, case.driver, case.mapping, case.job(path), ranges, clear=clear)


@pytest.mark.parametrize("path", PATHS)
def test_range_is_rebuilt(case: CopyCase, path: str) -> None:
    """A wrong value, a missing row and a row too many; what lies outside is not touched."""
    for statement in (
        "UPDATE {} SET v=99 WHERE id IN (2,5)",
        "DELETE FROM {} WHERE id=3",
        "UPDATE {} SET id=1000 WHERE id=4",
    ):
        case.database.admin.execute(statement.format(ident(case.shadow)))
    case.app.execute("INSERT INTO t VALUES (2000, 1)")
    repair(case, [KeyRange(lower=("1",), upper=("4",), has_lower=False)], clear=True, path=path)
    assert case.rows(case.shadow) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 99), (1000, 4)]
    repair(case, [KeyRange(lower=("4",), upper=("2000",), has_lower=False)], clear=True, path=path)
    case.assert_same()
    assert all(s.is_done for s in ledger.splits(case.session, WORKFLOW))


def test_keys_are_copied_again_without_clearing(case: CopyCase) -> None:
    case.session.execute(f"DELETE FROM {ident(case.shadow)} WHERE id IN (2,4)")
    case.database.admin.execute(f"UPDATE {ident(case.shadow)} SET v=99 WHERE id=5")
    repair(case, [one("2"), one("4"), one("5"), one("77")], clear=False)
    assert case.rows(case.shadow) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 99)]
    assert [s.number for s in ledger.splits(case.session, WORKFLOW)] == [0, *range(1_000_000, 1_000_004)]


def test_clearing_comes_before_opening(case: CopyCase, held: Held) -> None:
    """A write applied between the two must survive: it would be deleted for good by a late clearing."""
    held.hold("copy.before_open")
    mending = Background(lambda: repair(case, [one("2")], clear=True))
    held.wait("copy.before_open")
    assert [row[0] for row in case.rows(case.shadow)] == [1, 3, 4, 5]
    assert ledger.chunks(case.session, WORKFLOW, split=1_000_000) == []
    case.app.execute("UPDATE t SET v=22 WHERE id=2")
    case.session.execute(f"REPLACE INTO {ident(case.shadow)} VALUES (2,22)")
    held.let_go("copy.before_open")
    mending.result()
    case.assert_same()


def test_error_of_a_range_is_raised(database: Database) -> None:
    case = make_case(
        database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "MODIFY v TINYINT", ("INSERT INTO t VALUES (1,1)",)
    )
    case.copy_all()
    case.app.execute("UPDATE t SET v=1000")
    with pytest.raises(BadValue):
        repair(case, [one("1")], clear=True)


def test_old_lease_clears_nothing(case: CopyCase) -> None:
    case.session.execute(f"UPDATE {SIDECAR}.lease SET token=token+1 WHERE role='driver'")
    with pytest.raises(Superseded):
        repair(case, [one("1")], clear=True)
    case.assert_same()


def test_key_of_another_order_is_cleared_alone(database: Database) -> None:
    case = make_case(
        database,
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
        "MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL",
        ("INSERT INTO t VALUES ('b',1),('C',2)",),
    )
    case.copy_all()
    case.database.admin.execute(f"UPDATE {ident(case.shadow)} SET v=9")
    assert not case.mapping.has_same_order
    repair(case, [one("_utf8mb4 X'62'")], clear=True)
    assert case.rows(case.shadow) == [("b", 1), ("C", 9)]
