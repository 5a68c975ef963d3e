"""Verification under live writes: what is wrong is found, what is busy is not called wrong."""

from __future__ import annotations

from typing import Any

import pytest
from rowcopy_setup import WORKFLOW
from verify_setup import VerifyCase, ready, run_here

from sandbox.databases import Database
from vreplication import names
from vreplication.errors import Interrupted, Refused, Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import ConnectionLost, connect
from vreplication.settings import SIDECAR, VERIFY_ROUNDS
from vreplication.state import markers, progress, since, verdicts
from vreplication.verify import disorder, ranges, rounds, scan
from vreplication.verify import verify as verification
from vreplication.verify.hot import compare_hot
from vreplication.verify.rounds import Examiner
from vreplication.verify.since import SinceRounds

CREATE = "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, n BIGINT NOT NULL, w VARCHAR(20)) DEFAULT CHARSET=utf8mb4"
FILL = "INSERT INTO t SELECT 10*seq.i, seq.i, CONCAT('w',seq.i) FROM ({numbers}) seq"
ROWS = 1_000


def numbers(count: int) -> str:
    digit = (
        "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 "
        "UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
    )
    tables = ", ".join(f"{digit} d{p}" for p in range(4))
    return f"SELECT d0.d+10*d1.d+100*d2.d+1000*d3.d+1 AS i FROM {tables} HAVING i<={count}"


@pytest.fixture(autouse=True)
def _without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "spark" not in request.fixturenames:
        monkeypatch.setattr(verification, "run_all", run_here)


@pytest.fixture
def case(database: Database) -> VerifyCase:
    return ready(database, CREATE, FILL.format(numbers=numbers(ROWS)), alter="MODIFY n DECIMAL(30,4), ADD KEY (w)")


def test_equal_tables_are_clean(case: VerifyCase) -> None:
    seen: list[int] = []
    verdict = case.verify(on_tick=seen.append)
    assert (verdict.verdict, verdict.rows_compared, verdict.mismatches) == (verdicts.CLEAN, ROWS, 0)
    assert seen[-1] == ROWS
    assert case.markers_seen == [markers.SINCE]
    assert verdicts.load(case.copy.session, WORKFLOW) == verdict
    assert case.copy.session.value(f"SELECT COUNT(*) FROM {SIDECAR}.marker") == 0


FAULTS = (
    "UPDATE {u} SET n=n+1 WHERE id=5000",
    "UPDATE {u} SET w=NULL WHERE id=10",
    "DELETE FROM {u} WHERE id=10000",
    "INSERT INTO {u} VALUES (7,1,'below')",
    "INSERT INTO {u} VALUES (999999,1,'above the range')",
    "UPDATE {u} SET id=15 WHERE id=20",
    "UPDATE {u} SET w=IF(id=100,'w20','w10') WHERE id IN (100,200)",
)


def test_faults_are_found(case: VerifyCase) -> None:
    for fault in FAULTS:
        case.break_shadow(fault)
        verdict = case.verify()
        assert (verdict.verdict, verdict.repaired) == (verdicts.BAD, 0), fault
        assert 1 <= verdict.mismatches <= 2, fault
        assert "still do" in verdict.details
        case.break_shadow("DELETE FROM {u}")
        case.break_shadow("INSERT INTO {u} SELECT * FROM t")


def test_faults_are_found_in_a_busy_table(case: VerifyCase) -> None:
    """So much is written that spans are compared in pieces from the beginning."""
    progress.write_replicate(case.copy.session, WORKFLOW, applied_per_second=1e6)
    test_faults_are_found(case)


def test_a_row_that_catch_up_brings_in_time_is_not_listed(case: VerifyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    progress.write_replicate(case.copy.session, WORKFLOW, applied_per_second=1e6)
    looks: list[bool] = []
    look = scan._look

    def level(ends: Ends, *rest: Any) -> Any:
        found = look(ends, *rest)
        looks.append(found.is_equal)
        if not found.is_equal:
            case.apply_pending(ends.home)
        return found

    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id=5000", "5000")
    monkeypatch.setattr(scan, "_look", level)
    monkeypatch.setattr(scan, "_unequal_in", lambda *_: pytest.fail("its rows are listed"))
    assert case.verify().verdict == verdicts.CLEAN
    assert looks.count(False) == 1


def test_many_rows_too_many_in_one_place_are_found(case: VerifyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_LISTED", 50)
    extra = "INSERT INTO {u} SELECT 5000+i, 1, 'extra' FROM (" + numbers(9) + ") seq"
    case.break_shadow(extra)
    case.break_shadow("INSERT INTO {u} SELECT 20000+i, 1, 'extra' FROM (" + numbers(300) + ") seq")
    verdict = case.verify(repair=True)
    assert verdict.verdict == verdicts.CLEAN
    assert verdict.mismatches >= 300
    case.copy.assert_same("id, n, w")


def test_faults_are_repaired_and_reported(case: VerifyCase) -> None:
    case.break_shadow("UPDATE {u} SET n=n+1 WHERE id IN (10,5000)")
    case.break_shadow("INSERT INTO {u} VALUES (7,1,'too many')")
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 3, 3)
    assert "(10)" in verdict.details
    assert {r.lower for r in case.repaired} == {("7",), ("10",), ("5000",)}
    case.copy.assert_same("id, n, w")


def test_many_wrong_rows_are_repaired_as_a_range(case: VerifyCase) -> None:
    case.break_shadow("UPDATE {u} SET w='wrong' WHERE id<=3000")
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 300, 300)
    assert len(case.repaired) <= 4
    case.copy.assert_same("id, n, w")


def test_range_too_wide_to_list_is_repaired(case: VerifyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_LISTED", 50)
    monkeypatch.setattr(scan, "SAMPLE", 20)
    case.break_shadow("UPDATE {u} SET w='wrong'")
    verdict = case.verify(repair=True)
    assert verdict.verdict == verdicts.CLEAN
    assert verdict.mismatches >= ROWS - 2
    case.copy.assert_same("id, n, w")


@pytest.mark.parametrize("alter", ["ADD KEY (n)", "MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL"])
def test_what_was_not_listed_is_not_called_equal(
    database: Database, monkeypatch: pytest.MonkeyPatch, alter: str
) -> None:
    """More differs than is listed, and what is listed is equal by then: a batch of the application is over."""
    create = CREATE.replace("id INT", "id VARCHAR(9) COLLATE utf8mb4_bin")
    case, faults = ready(database, create, FILL.format(numbers=numbers(300)), alter=alter), range(40, 80, 10)
    place: Any = scan if case.copy.mapping.has_same_order else disorder
    choose, others = (
        place.choose,
        [f"_utf8mb4 X'{str(i).encode().hex()}'" for i in range(10, 3001, 10) if i not in faults],
    )

    def late(*of: Any) -> Any:
        chosen = choose(*of)
        with case._turn:
            case.apply_pending(case.copy.session)
        return chosen

    def batch(kind: str) -> None:
        case.at_marker = lambda kind: None
        case.app("UPDATE t SET n=n+1 WHERE id NOT IN (40,50,60,70)", *others)

    monkeypatch.setattr(place, "choose", late)
    monkeypatch.setattr(place, "MAX_LISTED", 1)
    case.break_shadow("UPDATE {u} SET w='wrong' WHERE id IN (40,50,60,70)")
    case.at_marker = batch
    assert case.verify().verdict == verdicts.BAD


def test_fault_that_comes_back_is_bad(case: VerifyCase) -> None:
    case.break_shadow("UPDATE {u} SET n=n+1 WHERE id=5000")
    heal = case.repair

    def in_vain(found: object) -> None:
        heal(found)  # type: ignore[arg-type]
        case.break_shadow("UPDATE {u} SET n=n+1 WHERE id=5000")

    case.repair = in_vain  # type: ignore[method-assign]
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.BAD, 1, 0)
    assert len(case.repaired) == 2


def test_counter_neither_fails_nor_holds_the_verification(case: VerifyCase) -> None:
    """Written to at each marker, so it differs in the scan and in every round."""
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id=5000", "5000")
    verdict = case.verify()
    assert (verdict.verdict, verdict.mismatches, verdict.hot_keys) == (verdicts.CLEAN, 0, (("5000",),))
    assert case.markers_seen.count(markers.SUSPECTS_CLOSE) == VERIFY_ROUNDS


def test_a_busy_row_is_not_called_wrong_where_time_sets_its_key(database: Database) -> None:
    """As tables that are partitioned by their time have it."""
    create = (
        "CREATE TABLE t (id INT NOT NULL, ts TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
        " n INT, PRIMARY KEY (id, ts))"
    )
    case = ready(database, create, "INSERT INTO t VALUES (1,'2020-01-01 00:00:00',1),(2,'2020-01-01 00:00:00',1)")
    busy = "1,'2020-01-01 00:00:00'"
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1, ts=ts WHERE id=1", busy)
    verdict = case.verify()
    assert (verdict.verdict, [",".join(key) for key in verdict.hot_keys]) == (verdicts.CLEAN, [busy])


def test_rows_that_calm_down_are_clean(case: VerifyCase) -> None:
    """Inserted, deleted, moved and updated once, behind the first marker."""

    def once(kind: str) -> None:
        if kind == markers.SINCE:
            case.app("INSERT INTO t VALUES (11,1,'new'), (999999,1,'new')", "11", "999999")
            case.app("DELETE FROM t WHERE id=10000", "10000")
            case.app("UPDATE t SET id=25 WHERE id=20", "20", "25")
            case.app("UPDATE t SET w=NULL WHERE id=30", "30")

    case.at_marker = once
    verdict = case.verify()
    assert (verdict.verdict, verdict.mismatches, verdict.hot_keys) == (verdicts.CLEAN, 0, ())
    assert case.markers_seen == [markers.SINCE, markers.SUSPECTS_OPEN, markers.SUSPECTS_CLOSE] + [
        markers.SUSPECTS_OPEN,
        markers.SUSPECTS_CLOSE,
    ] * (len(case.markers_seen) // 2 - 1)


def test_fault_beside_a_counter_is_found(case: VerifyCase) -> None:
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id=5000", "5000")
    case.break_shadow("UPDATE {u} SET n=n+1 WHERE id=5010")
    verdict = case.verify()
    assert (verdict.verdict, verdict.mismatches) == (verdicts.BAD, 1)
    assert "(5010)" in verdict.details


def test_too_many_busy_rows_end_with_an_error(case: VerifyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_HOT_KEYS", 1)
    monkeypatch.setattr(rounds, "_PAUSE_SECONDS", (0.001, 0.001))
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id IN (10,20)", "10", "20")
    with pytest.raises(Transient, match="change too often"):
        case.verify()


def test_fault_in_a_hot_row_is_found_under_the_lock(case: VerifyCase) -> None:
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id IN (5000,10)", "5000", "10")
    hot = case.verify().hot_keys
    case.apply_pending(case.copy.database.admin)
    with connect(case.copy.database.url) as locked, connect(case.copy.database.url) as other:
        locked.execute_raw("LOCK TABLES t WRITE")
        assert compare_hot(locked, other, case.copy.mapping, hot) == []
        case.break_shadow("UPDATE {u} SET n=n-1 WHERE id=5000")
        assert compare_hot(locked, other, case.copy.mapping, hot) == [("5000",)]
        case.break_shadow("DELETE FROM {u} WHERE id=10")
        assert sorted(compare_hot(locked, other, case.copy.mapping, hot)) == [("10",), ("5000",)]


def test_not_before_all_is_matched(case: VerifyCase) -> None:
    case.copy.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET state='landed' LIMIT 1")
    with pytest.raises(Refused, match="matched"):
        case.verify()


def test_check_stops_it(case: VerifyCase) -> None:
    def check() -> None:
        if case.markers_seen:
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        case.verify(check=check)


def test_empty_table_and_an_empty_ledger(database: Database) -> None:
    case = ready(database, CREATE)
    assert case.verify().verdict == verdicts.CLEAN
    case.app("INSERT INTO t VALUES (1,1,'a')", "1")
    verdict = case.verify()
    assert (verdict.verdict, verdict.rows_compared) == (verdicts.CLEAN, 1)
    case.break_shadow("UPDATE {u} SET n=7")
    assert case.verify().verdict == verdicts.BAD


def test_growing_end_is_walked(case: VerifyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_SPAN_ROWS", (50, 50))
    case.app(
        "INSERT INTO t SELECT id+10000, n, w FROM t WHERE id>5000", *[str(10_000 + 10 * i) for i in range(501, 1001)]
    )
    verdict = case.verify()
    assert (verdict.verdict, verdict.rows_compared) == (verdicts.CLEAN, 1_500)
    case.break_shadow("UPDATE {u} SET n=0 WHERE id=18000")
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 1, 1)


WORDS = "CREATE TABLE t (k VARCHAR(20) {collate} NOT NULL, g INT NOT NULL, v INT, PRIMARY KEY (k, g))"
WORDS_FILL = (
    "INSERT INTO t SELECT CONCAT(IF(seq.i%2,'a','B'),seq.i,IF(seq.i%3,'','é')), seq.i%5, seq.i FROM ({numbers}) seq"
)


@pytest.mark.parametrize(
    ("collate", "alter"),
    [
        ("COLLATE utf8mb4_general_ci", "ADD KEY (v)"),
        ("CHARACTER SET latin1", "ADD KEY (v)"),
        ("CHARACTER SET latin1 COLLATE latin1_bin", "MODIFY k VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL"),
        ("COLLATE utf8mb4_bin", "MODIFY k VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL"),
    ],
    ids=["same order", "latin1", "another character set", "another order"],
)
def test_string_keys(database: Database, collate: str, alter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_SPAN_ROWS", (100, 100))
    case = ready(
        database, WORDS.format(collate=collate) + " DEFAULT CHARSET=utf8mb4", WORDS_FILL.format(numbers=numbers(600)),
        alter=alter,
    )  # fmt: skip
    case.at_marker = lambda kind: case.app("UPDATE t SET v=v+1 WHERE k='a7'", "_utf8mb4 X'6137',2")
    verdict = case.verify()
    assert (verdict.verdict, verdict.rows_compared, len(verdict.hot_keys)) == (verdicts.CLEAN, 600, 1)
    case.at_marker = lambda kind: None
    case.break_shadow("UPDATE {u} SET v=0 WHERE k='a3é'")
    case.break_shadow("DELETE FROM {u} WHERE k='B4'")
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 2, 2)


def test_upper_case_of_a_key_counts(database: Database) -> None:
    """The key's collation calls both the same; the rows differ all the same."""
    case = ready(
        database,
        "CREATE TABLE t (k VARCHAR(9) NOT NULL PRIMARY KEY, v INT) CHARSET=utf8mb4",
        "INSERT INTO t VALUES ('a',1),('b',2)",
    )
    case.break_shadow("UPDATE {u} SET k='A' WHERE k='a'")
    verdict = case.verify(repair=True)
    assert (verdict.verdict, verdict.mismatches) == (verdicts.CLEAN, 2)
    case.app("UPDATE t SET k='B' WHERE k='b'", "_utf8mb4 X'62'", "_utf8mb4 X'42'")
    assert case.verify().verdict == verdicts.CLEAN


@pytest.mark.only_on("mariadb")
def test_waits_for_a_branch_that_is_committed_but_not_visible(case: VerifyCase) -> None:
    """Its change is on the target already: read too early, the source would seem to differ."""
    app = case.copy.app
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 20:
            app.execute_raw("XA COMMIT 'branch'")

    for statement in ("XA START 'branch'", "UPDATE t SET n=0 WHERE id=10", "XA END 'branch'", "XA PREPARE 'branch'"):
        app.execute_raw(statement)
    case.break_shadow("UPDATE {u} SET n=0 WHERE id=10")
    verdict = case.verify(check=check)
    assert looks > 20
    assert verdict.verdict == verdicts.CLEAN
    left = case.copy.database.admin.rows(f"SELECT kind FROM {SIDECAR}.marker WHERE workflow='{WORKFLOW}'")
    assert left == [], "each marker is taken back"


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark(case: VerifyCase, spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_SPAN_ROWS", (50, 50))
    seen: list[int] = []
    case.at_marker = lambda kind: case.app("UPDATE t SET n=n+1 WHERE id=5000", "5000")
    case.break_shadow("DELETE FROM {u} WHERE id=20")
    verdict = case.verify(spark, repair=True, on_tick=seen.append)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 1, 1)
    assert verdict.rows_compared == ROWS
    assert seen[-1] == ROWS


@pytest.mark.slow
@pytest.mark.spark
def test_error_on_an_executor_comes_out(case: VerifyCase, spark: object) -> None:
    from vreplication.mysql.session import SqlError

    case.copy.database.admin.execute_raw(f"ALTER TABLE {case.shadow} DROP COLUMN w")
    with pytest.raises(SqlError):
        case.verify(spark)


def test_a_row_that_gave_way_is_not_wrong_when_it_comes_back_behind_the_window(database: Database) -> None:
    """It is on the list of those to be copied again; its own change may be faster, and takes it off."""
    case = ready(database, CREATE, FILL.format(numbers=numbers(ROWS)), alter="ADD UNIQUE (n)")
    dirty = f"{SIDECAR}.{names.dirty_table(WORKFLOW)}"
    case.break_shadow("DELETE FROM {u} WHERE id=5000")
    case.copy.session.execute_raw(f"INSERT INTO {dirty} (k0, seen) VALUES (5000, 1)")

    def come_back(kind: str) -> None:
        if kind == markers.SUSPECTS_CLOSE and case.markers_seen.count(kind) == 1:
            case.break_shadow("INSERT INTO {u} SELECT * FROM t WHERE id=5000")
            database.admin.execute_raw(f"DELETE FROM {dirty}")

    case.at_marker = come_back
    verdict = case.verify()
    assert markers.SUSPECTS_CLOSE in case.markers_seen
    assert (verdict.verdict, verdict.mismatches) == (verdicts.CLEAN, 0)


def test_a_wrong_row_stays_on_the_list_when_its_round_is_cut_off(
    case: VerifyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed between two statements had taken the key off, and nobody looked at the row again."""
    session, forget = case.copy.session, since.forget

    def killed(*args: Any) -> None:
        forget(*args)
        raise ConnectionLost("killed")

    monkeypatch.setattr(since, "forget", killed)
    examiner = Examiner(
        ends=Ends.on(session),
        mapping=case.copy.mapping,
        table=WORKFLOW,
        markers=rounds.markers_of(Ends.on(session), WORKFLOW),
        is_mariadb=case.copy.database.server.is_mariadb,
        check=lambda: None,
    )
    again = SinceRounds(examiner=examiner)
    with case.replicating():
        again.hand_over()
        case.app("UPDATE t SET n=n+1 WHERE id IN (10, 20)", "10", "20")
        again.hand_over()
        case.break_shadow("UPDATE {u} SET n=n+1 WHERE id=10")
        with pytest.raises(ConnectionLost):
            again.compare()
    assert since.keys(session, case.copy.mapping, WORKFLOW, None, 9) == ["10"]
