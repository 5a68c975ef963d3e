"""Splits tile the key range, and hold about equal numbers of rows whatever the keys look like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rowcopy_setup import CopyCase, make_case, whole

from sandbox.databases import Database
from vreplication.mysql.session import Session
from vreplication.rowcopy import splits
from vreplication.rowcopy.probes import within
from vreplication.rowcopy.splits import cut, key_range
from vreplication.schema.model import TableMapping
from vreplication.state.ledger import KeyRange, Split

THOUSAND = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) "


def doubled(column: str, step: int, times: int) -> tuple[str, ...]:
    """Statements that double a table of one integer column, `step` apart."""
    return tuple(f"INSERT INTO t SELECT {column} + {step * 1000 << k} FROM t" for k in range(times))


def counts(case: CopyCase, found: list[Split]) -> list[int]:
    """Rows of each split; that they tile is checked too."""
    edges = [(s.range.lower, s.range.upper) for s in found]
    assert [e[0] for e in edges[1:]] == [e[1] for e in edges[:-1]]
    assert [s.range.has_lower for s in found] == [True] + [False] * (len(found) - 1)
    numbers = [int(case.session.value(f"SELECT COUNT(*) FROM t WHERE {within(case.mapping, s.range)}")) for s in found]
    assert sum(numbers) == case.session.value("SELECT COUNT(*) FROM t")
    return numbers


def test_empty_table_has_no_range(database: Database) -> None:
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY)")
    assert key_range(case.session, case.mapping) is None


@pytest.mark.parametrize("rows", [1, 50])
def test_small_table_is_one_split(database: Database, rows: int) -> None:
    fill = f"INSERT INTO t {THOUSAND} SELECT i FROM n WHERE i < {rows}"
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY)", fill=(fill,))
    found = cut(case.session, case.mapping, whole(case), 16)
    assert [s.range for s in found] == [KeyRange(lower=("0",), upper=(str(rows - 1),), has_lower=True)]


KEYS = {
    "integer": ("id BIGINT PRIMARY KEY", "SELECT i * 3 FROM n"),
    "insensitive": ("id VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY", "SELECT CONCAT('Ab', HEX(i)) FROM n"),
    "binary": ("id VARBINARY(32) PRIMARY KEY", "SELECT UNHEX(SHA2(i, 256)) FROM n"),
    "date": ("id DATE PRIMARY KEY", "SELECT '1990-01-01' + INTERVAL i * 7 DAY FROM n"),
    "composite": ("a INT, id VARCHAR(9), PRIMARY KEY (a, id)", "SELECT i % 2, i FROM n"),
    "one leading value": ("a INT, id INT, PRIMARY KEY (a, id)", "SELECT 5, i FROM n"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_walked_splits_are_even(database: Database, kind: str) -> None:
    columns, select = KEYS[kind]
    case = make_case(
        database, f"CREATE TABLE t ({columns}) DEFAULT CHARSET=utf8mb4", fill=(f"INSERT INTO t {THOUSAND} {select}",)
    )
    numbers = counts(case, cut(case.session, case.mapping, whole(case), 3))
    assert len(numbers) in (3, 4)
    assert max(numbers) <= 500


@pytest.mark.parametrize(
    ("wanted", "estimate", "made"), [(16, 0, 4), (16, 32_000, 4), (16, 2_000_000, 4), (2, 21_000, 1)]
)
def test_walk_corrects_its_step(database: Database, wanted: int, estimate: int, made: int) -> None:
    """Whatever the statistics say; and of a middling table a quarter of the splits that are wanted is enough."""
    fill = (f"INSERT INTO t {THOUSAND} SELECT i FROM n", *doubled("id", 1, 5))
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY)", fill=fill)
    mapping = replace(case.mapping, source=replace(case.mapping.source, estimated_rows=estimate))
    numbers = counts(case, cut(case.session, mapping, whole(case), wanted))
    assert len(numbers) == made
    assert max(numbers) <= 32_000 / made * 1.3


SKEWED = {
    "even": doubled("id", 1, 5),
    "gap of ten million": (*doubled("id", 1, 4), "INSERT INTO t SELECT id + 10000000 FROM t"),
    "far ends": (*doubled("id", 1, 5), "INSERT INTO t VALUES (-9223372036854775808), (9223372036854775807)"),
    "one corner": (*doubled("id", 1, 5), "INSERT INTO t SELECT 1000000000 + id * 1000000 FROM t WHERE id < 50"),
}


@pytest.mark.parametrize("kind", SKEWED)
def test_bisected_splits_are_even(database: Database, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = (f"INSERT INTO t {THOUSAND} SELECT i FROM n", *SKEWED[kind], "ANALYZE TABLE t")
    case = make_case(database, "CREATE TABLE t (id BIGINT PRIMARY KEY)", fill=fill)
    monkeypatch.setattr(splits, "WALK_ROWS", 1_000)
    monkeypatch.setattr(splits, "_walked", lambda *_: pytest.fail("bisecting was enough"))
    numbers = counts(case, cut(case.session, case.mapping, whole(case), 8))
    assert 6 <= len(numbers) <= 12
    assert max(numbers) <= 32_000 / 8 * 2


def test_a_table_far_larger_than_its_statistics_is_not_walked_to_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = "CREATE TABLE t (id INT PRIMARY KEY)"
    case = make_case(database, create, fill=(f"INSERT INTO t {THOUSAND} SELECT i FROM n", *doubled("id", 1, 4)))
    walked: list[int] = []
    nth_key = splits.nth_key

    def counted(session: Session, mapping: TableMapping, bounds: KeyRange, n: int) -> object:
        walked.append(n)
        return nth_key(session, mapping, bounds, n)

    monkeypatch.setattr(splits, "_is_large", lambda *_: False)
    monkeypatch.setattr(splits, "WALK_ROWS", 1_000)
    monkeypatch.setattr(splits, "_FAR", 2)
    monkeypatch.setattr(splits, "nth_key", counted)
    found = cut(case.session, case.mapping, whole(case), 8)
    assert sum(walked) <= 4_000
    assert len(found) >= 4
    assert max(counts(case, found)) <= 2 * 16_000 // 4


def test_heavy_leading_value_is_walked(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of the rows share the first column's value: key space cannot be halved there."""
    fill = (
        f"INSERT INTO t {THOUSAND} SELECT 7, i FROM n",
        *(f"INSERT INTO t SELECT 7, id + {1000 << k} FROM t" for k in range(4)),
        "INSERT INTO t SELECT id, 0 FROM t WHERE id BETWEEN 100 AND 1699",
        "ANALYZE TABLE t",
    )
    case = make_case(database, "CREATE TABLE t (a INT, id INT, PRIMARY KEY (a, id))", fill=fill)
    monkeypatch.setattr(splits, "WALK_ROWS", 1_000)
    numbers = counts(case, cut(case.session, case.mapping, whole(case), 8))
    assert max(numbers) <= 17_600 / 8 * 2


def test_rows_that_come_and_go_while_cutting_do_not_break_the_tiling(database: Database) -> None:
    """The range was read; then its ends are deleted and rows appear below and above."""
    case = make_case(
        database, "CREATE TABLE t (id INT PRIMARY KEY)", fill=(f"INSERT INTO t {THOUSAND} SELECT i FROM n",)
    )
    before = whole(case)
    case.app.execute("DELETE FROM t WHERE id < 100 OR id > 900")
    case.app.execute("INSERT INTO t VALUES (-50), (5000)")
    found = cut(case.session, case.mapping, before, 3)
    assert (found[0].range.lower, found[-1].range.upper) == (before.lower, before.upper)
    assert [s.range.lower for s in found[1:]] == [s.range.upper for s in found[:-1]]


def test_statistics_of_an_empty_table_cost_no_scan(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are just after a table was filled: the servers take it for one page, which is read whole in no time."""
    fill = (f"INSERT INTO t {THOUSAND} SELECT i, 0, i, NULL FROM n", *doubled_beside(4))
    definition = "CREATE TABLE t (a BIGINT, b INT, v INT, body TEXT, PRIMARY KEY (a, b)) STATS_AUTO_RECALC=0"
    case = make_case(database, definition, fill=fill)
    forget_statistics(case)
    monkeypatch.setattr(splits, "WALK_ROWS", 1_000)
    before = rows_read(case)
    found = cut(case.session, case.mapping, whole(case), 8)
    assert rows_read(case) - before <= 16_000
    numbers = counts(case, found)
    assert len(numbers) >= 6
    assert max(numbers) <= 16_000 / 4


def doubled_beside(times: int) -> tuple[str, ...]:
    return tuple(f"INSERT INTO t SELECT a + {1000 << k}, b, v, body FROM t" for k in range(times))


def forget_statistics(case: CopyCase) -> None:
    tables = {"table": "n_rows=0, clustered_index_size=1", "index": "stat_value=IF(stat_name LIKE 'n_diff%', 0, 1)"}
    with case.database.server.admin(case.database.name) as admin:
        for kind, values in tables.items():
            of_table = "database_name=DATABASE() AND table_name='t'"
            admin.execute_raw(f"UPDATE mysql.innodb_{kind}_stats SET {values} WHERE {of_table}")
        admin.execute_raw("FLUSH TABLE t")


def rows_read(case: CopyCase) -> int:
    """Index entries that the session's statements have stepped over."""
    found = case.session.rows("SHOW SESSION STATUS LIKE 'Handler_read_%'")
    return sum(int(row[1]) for row in found if str(row[0]).endswith(("next", "prev", "rnd_next")))
