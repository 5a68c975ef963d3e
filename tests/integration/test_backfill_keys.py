"""Backfilling into a target that takes two keys of the source for the same, or holds less than the source's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backfill_setup import Case, counts, utc

from sandbox.databases import Database, create_database
from tests.support.private_server import private_server
from vreplication.errors import BadValue, Refused
from vreplication.mysql.session import connect

pytestmark = pytest.mark.either

Make = Callable[..., Case]
NEXT = (utc("2026-03-02"), utc("2026-03-03"))
BIN = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
COARSE = ["utf8mb4_unicode_ci", "utf8mb4_general_ci"]
NO_PAD = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}
TEXT_KEY = f"CREATE TABLE {{}} (k VARCHAR(20) {BIN} PRIMARY KEY, v INT, at DATETIME, KEY (at))"


@pytest.fixture
def make(database: Database) -> Iterator[Make]:
    made: list[Case] = []

    def case(create: str = TEXT_KEY, *statements: str, **given: Any) -> Case:
        made.append(Case(source=database, target=database, create=create, given=given))
        made[-1].write(*statements)
        return made[-1]

    yield case
    for one in made:
        one.close()


def modify(column: str, collation: str) -> str:
    return f"ALTER TABLE t MODIFY {column} VARCHAR(20) CHARACTER SET utf8mb4 COLLATE {collation}"


@pytest.mark.parametrize("collation", COARSE)
def test_a_row_of_an_earlier_interval_is_not_replaced(make: Make, collation: str) -> None:
    """Both keys are named, nothing of the slice is written, and the earlier interval is what it was."""
    case = make(TEXT_KEY, modify("k", collation))
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01'),('B',2,'2026-03-02'),('A',3,'2026-03-02')")
    assert case.run().verified
    before = case.rows()
    with pytest.raises(BadValue, match=r"k='A' and k='a' are two rows of .*key PRIMARY .*same") as caught:
        case.run(*NEXT)
    assert caught.value.exit_code == 1
    assert case.rows() == before
    assert case.run().verified


@pytest.mark.parametrize("is_mirror", [False, True])
@pytest.mark.parametrize("batch_rows", [1, 1000])
def test_two_keys_of_one_slice(make: Make, is_mirror: bool, batch_rows: int) -> None:
    case = make(TEXT_KEY, modify("k", COARSE[0]), mirror=is_mirror, batch_rows=batch_rows)
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01'),('b',2,'2026-03-01'),('á',3,'2026-03-01')")
    with pytest.raises(BadValue, match=r"k='(a|á)' and k='(a|á)'"):
        case.run()
    assert case.rows() == []


def test_a_row_that_was_pushed_out_is_missed_by_its_own_interval(make: Make) -> None:
    """The target holds 'A' alone, as whatever else writes there may have left it."""
    case = make(TEXT_KEY, modify("k", COARSE[0]))
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01'),('A',3,'2026-03-02')")
    case.write("INSERT INTO t VALUES ('A',3,'2026-03-02')")
    with pytest.raises(BadValue, match="k='a' and k='A'"):
        case.run()
    assert case.rows(columns="k,v") == [("A", 3)]


def test_trailing_spaces_that_the_target_does_not_tell_apart(make: Make, database: Database) -> None:
    collation = NO_PAD[database.server.flavor]
    create = f"CREATE TABLE {{}} (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE {collation} PRIMARY KEY, v INT, at DATE)"
    case = make(create, modify("k", "utf8mb4_bin"))
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01'),('a ',2,'2026-03-02')")
    assert case.run().verified
    with pytest.raises(BadValue, match="k='a ' and k='a'"):
        case.run(*NEXT)
    assert case.rows(columns="k,v") == [("a", 1)]


def test_another_spelling_of_the_same_row_is_written(make: Make) -> None:
    """The source itself takes both spellings for one key: its row was renamed."""
    case = make(TEXT_KEY.replace("utf8mb4_bin", "utf8mb4_unicode_ci"))
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01'),('b',2,'2026-03-01')")
    case.run()
    case.write("UPDATE s SET k='A', v=5 WHERE k='a'")
    result = case.run()
    assert (result.verified, result.updated, result.inserted, result.extra_rows) == (True, 1, 0, 0)
    assert case.rows(columns="k,v") == [("A", 5), ("b", 2)]


@pytest.mark.parametrize("is_mirror", [False, True])
def test_a_key_that_is_gone_from_the_source_gives_way_only_to_mirror(make: Make, is_mirror: bool) -> None:
    case = make(TEXT_KEY, modify("k", COARSE[0]), mirror=is_mirror)
    case.write("INSERT INTO s VALUES ('a',1,'2026-03-01')")
    case.run()
    case.write("UPDATE s SET k='A', v=5")
    result = case.run()
    assert result.verified is is_mirror
    assert case.rows(columns="k,v") == [("A", 5) if is_mirror else ("a", 1)]
    if not is_mirror:
        assert "k='a'" in result.reason
        assert "k='A'" in result.reason
        assert "the source does not have" in result.reason


UNIQUE = f"CREATE TABLE {{}} (id INT PRIMARY KEY, v VARCHAR(20) {BIN}, at DATETIME, KEY (at), UNIQUE u (v))"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_unique_key_of_the_target_that_takes_two_values_for_one(make: Make, is_known: bool) -> None:
    """Also where the row is there already, and only its value would change."""
    case = make(UNIQUE, modify("v", COARSE[0]))
    case.write("INSERT INTO s VALUES (1,'x','2026-03-01'),(2,'y','2026-03-02'),(3,'X','2026-03-02')")
    if is_known:
        case.write("INSERT INTO t VALUES (3,'old','2026-03-02')")
    assert case.run().verified
    before = case.rows()
    with pytest.raises(BadValue, match=r"id=3 and id=1 are two rows of .*key u .*same"):
        case.run(*NEXT)
    assert case.rows() == before


def test_a_key_in_another_charset_is_the_same_key(make: Make) -> None:
    """A row that moved to another interval and cannot be written yet is not taken for one that is gone."""
    create = "CREATE TABLE {} (k VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, v INT, at DATETIME, UNIQUE (v))"
    case = make(create, modify("k", "utf8mb4_general_ci"), mirror=True)
    case.write("INSERT INTO s VALUES ('é',1,'2026-03-05'),('ü',2,'2026-03-01')")
    case.write("INSERT INTO t VALUES ('é',9,'2026-03-01'),('z',1,'2026-03-09')")
    result = case.run()
    assert not result.verified
    assert "k='z'" in result.reason
    assert sorted(case.rows(columns="k,v")) == [("z", 1), ("é", 9), ("ü", 2)]


@pytest.mark.parametrize(
    ("kind", "narrow", "value"),
    [
        ("VARCHAR(3)", "VARCHAR(2)", "'ab '"),
        ("TEXT", "VARCHAR(2)", "'ab '"),
        ("DECIMAL(6,3)", "DECIMAL(6,2)", "1.555"),
        ("DECIMAL(6,3)", "DECIMAL(6,2)", "-0.001"),
    ],
)
def test_a_value_that_would_be_cut_with_a_note_only(make: Make, kind: str, narrow: str, value: str) -> None:
    case = make(f"CREATE TABLE {{}} (id INT PRIMARY KEY, v {kind}, at DATE)", f"ALTER TABLE t MODIFY v {narrow}")
    case.write(f"INSERT INTO s VALUES (1,'1','2026-03-01'),(2,{value},'2026-03-01')")
    with pytest.raises(BadValue, match=r"The target cannot hold the row with id=2: Data truncated for column 'v'"):
        case.run()
    assert case.rows() == []


@pytest.mark.parametrize(
    ("kind", "narrow"),
    [
        ("DATETIME(6)", "DATETIME"),
        ("TIMESTAMP(3) NULL", "TIMESTAMP(2) NULL"),
        ("TIME(1)", "TIME"),
        ("DOUBLE", "FLOAT"),
        ("BIGINT", "DOUBLE"),
        ("INT", "FLOAT"),
        ("DECIMAL(20,2)", "DOUBLE"),
    ],
)
def test_a_type_that_rounds_without_a_word_is_refused(make: Make, kind: str, narrow: str) -> None:
    case = make(f"CREATE TABLE {{}} (id INT PRIMARY KEY, v {kind}, at DATE)", f"ALTER TABLE t MODIFY v {narrow}")
    with pytest.raises(Refused, match="Column v is"):
        case.run()


@pytest.mark.parametrize(
    ("key", "other"),
    [
        (f"k ENUM('a','A') {BIN}", "MODIFY k ENUM('a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"),
        ("k VARCHAR(9) CHARACTER SET sjis", "MODIFY k VARCHAR(9) CHARACTER SET utf8mb4"),
    ],
)
def test_a_key_that_cannot_be_told_to_be_the_same_is_refused(make: Make, key: str, other: str) -> None:
    case = make(f"CREATE TABLE {{}} ({key}, v INT NOT NULL, at DATE, PRIMARY KEY (k))", f"ALTER TABLE t {other}")
    with pytest.raises(Refused, match="k is"):
        case.run()


@pytest.mark.only_on("mysql")
def test_a_key_that_the_target_computes_is_refused(make: Make) -> None:
    case = make("CREATE TABLE {} (k INT PRIMARY KEY, v INT NOT NULL, at DATE)")
    case.write("ALTER TABLE t DROP PRIMARY KEY, DROP k, ADD k INT AS (v) STORED PRIMARY KEY")
    with pytest.raises(Refused, match="k is generated on the target"):
        case.run()


GENERATED = "CREATE TABLE {} (id INT PRIMARY KEY, ts TIMESTAMP NULL, at DATETIME)"


@pytest.mark.parametrize(
    ("addition", "is_refused"),
    [
        ("ADD g DATE AS (DATE(ts)) STORED", True),
        ("ADD g DATE AS (DATE(ts)) VIRTUAL, ADD KEY (g)", True),
        ("ADD g DATE AS (DATE(ts)) VIRTUAL, ADD h INT AS (DAY(g)) STORED", True),
        ("ADD g DATE AS (DATE(ts)) VIRTUAL", False),
        ("ADD g DATE AS (DATE(at)) STORED", False),
    ],
)
def test_a_stored_value_that_depends_on_the_time_zone(database: Database, addition: str, is_refused: bool) -> None:
    """Our sessions are in UTC; who else writes there is not."""
    with private_server(database.server.flavor, {"default_time_zone": "+02:00"}) as server:
        other = create_database(server)
        case = Case(source=database, target=other, create=GENERATED)
        try:
            other.admin.execute_raw(f"ALTER TABLE t {addition}")
            case.write("INSERT INTO s VALUES (1,'2026-02-28 23:30','2026-03-01')")
            if not is_refused:
                assert case.run().verified
                return
            with pytest.raises(Refused, match=r"generated column [gh], .* time zone"):
                case.run()
            other.admin.execute_raw("SET GLOBAL time_zone='+00:00'")
            assert case.run().verified
        finally:
            case.close()


def test_words_name_the_rows(make: Make) -> None:
    """Keys of several columns and in any charset are readable."""
    create = f"CREATE TABLE {{}} (n INT, k VARCHAR(20) {BIN}, at DATETIME, PRIMARY KEY (n,k))"  # two columns of the key
    case = make(create, modify("k", COARSE[0]))
    case.write("INSERT INTO s VALUES (7,'ß','2026-03-01'),(7,'ss','2026-03-02'),(8,'SS','2026-03-02')")
    case.run()
    with pytest.raises(BadValue) as caught:
        case.run(*NEXT)
    assert re.search(r"n=7, k='ss' and n=7, k='ß'", str(caught.value))


@pytest.mark.parametrize("setting", ["completion_type='CHAIN'", "completion_type='RELEASE'", "sql_select_limit=3"])
def test_settings_that_a_server_hands_to_every_session(database: Database, setting: str) -> None:
    """CHAIN leaves a transaction open behind each COMMIT, RELEASE no connection; the limit cuts every answer."""
    with private_server(database.server.flavor) as server:
        with server.admin() as admin:
            admin.execute_raw(f"SET GLOBAL {setting}")
        other = create_database(server)
        case = Case(source=other, target=other)
        try:
            case.write(*(f"INSERT INTO s VALUES ({i},'x','2026-03-01')" for i in range(10)))
            assert counts(case.run()) == (10, 10, 0, 0, 0)
            with connect(case.writer) as session:
                with session.transaction():
                    session.execute_raw("UPDATE t SET v='y' WHERE id=1")
                session.execute_raw("UPDATE t SET v='z' WHERE id=2")
            assert [row[1] for row in case.rows()[1:3]] == ["y", "z"]
        finally:
            case.close()
