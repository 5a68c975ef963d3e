"""Every common type arrives as it was, on the same flavor and across flavors, and a difference in each is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from backfill_setup import DAY, Case

from sandbox import binaries
from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.private_server import private_server
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident

pytestmark = pytest.mark.either

COLUMNS = {
    "ti": ("TINYINT", ["-128", "127"]),
    "bu": ("BIGINT UNSIGNED", ["18446744073709551615", "0"]),
    "bs": ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    "de": ("DECIMAL(40,20)", ["-99999999999999999999.00000000000000000001", "0"]),
    "fl": ("FLOAT", ["1.1", "-3.4028234e38", "1e-38", "16777216"]),
    "db": ("DOUBLE", ["0.1e0+0.2e0", "2.2250738585072014e-308", "-1.2345678901234567e-200", "1e16"]),
    "bi": ("BIT(64)", ["18446744073709551615", "1"]),
    "bo": ("BOOLEAN", ["1", "0"]),
    "ye": ("YEAR", ["1901", "2155"]),
    "da": ("DATE", ["'2020-02-29'", "'9999-12-31'"]),
    "tm": ("TIME(6)", ["'-838:59:59.000000'", "'-00:00:00.500000'"]),
    "dt": ("DATETIME(6)", ["'0001-01-01 00:00:00.000001'", "'2020-01-01'"]),
    "ts": ("TIMESTAMP(3) NULL", ["'2038-01-19 03:14:07.999'", "'1970-01-01 00:00:01'"]),
    "ch": ("CHAR(10) CHARACTER SET utf8mb4", ["'a'", "'😀'", "''"]),
    "vl": ("VARCHAR(10) CHARACTER SET latin1", ["_latin1 X'81E9'", "'a '", "''"]),
    "vu": ("VARCHAR(10) CHARACTER SET utf8mb4", ["'é'", "'''\\\\%s'", "'NULL'"]),
    "tx": ("MEDIUMTEXT CHARACTER SET utf8mb4", ["REPEAT('é',70000)", "'\\0\\n'"]),
    "bn": ("BINARY(5)", ["X'0100'", "''", "X'FF00FF'"]),
    "vn": ("VARBINARY(5)", ["X'0100'", "''"]),
    "bl": ("LONGBLOB", ["REPEAT(X'00FF',100000)", "''"]),
    "en": ("ENUM('a','b''c','é') CHARACTER SET utf8mb4", ["'é'", "'b''c'"]),
    "se": ("SET('x','y','z')", ["'x,z'", "''"]),
    "js": ("JSON", ['\'{"b": [1, 2.5, null, "é"], "a": 1.0}\'', "'[]'", "'\"x\"'"]),
}
ROWS = 5
UNIQUE = {"with another unique key": ", UNIQUE (u)", "plain": ""}


def create(unique: str = "") -> str:
    body = ",".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    return f"CREATE TABLE {{}} (id INT PRIMARY KEY, at DATETIME, u INT, {body}{unique}, KEY (at)) CHARACTER SET utf8mb4"


def fill(case: Case) -> None:
    for i in range(ROWS):
        values = [texts[i] if i < len(texts) else "NULL" for _, texts in COLUMNS.values()]
        case.write(f"INSERT INTO s VALUES ({i},'2026-03-01 0{i}:00',{i},{','.join(values)})")


def shown(name: str) -> str:
    """A column so that equal texts are equal values, on both flavors."""
    if name in ("fl", "db"):
        return f"JSON_ARRAY({name}+0e0)"
    return name if name in ("js", "de") else f"HEX({name})"


def values(case: Case, table: str) -> dict[str, list[Any]]:
    found = {name: [row[1] for row in case.rows(table, f"id,{shown(name)}")] for name in COLUMNS}
    for name in ("js", "fl", "db"):
        found[name] = [None if v is None else json.loads(v) for v in found[name]]
    return found


def check_all(case: Case) -> None:
    """Copy, compare, and break each column of the target in turn: the next run sees and repairs it."""
    fill(case)
    first = case.run()
    assert (first.inserted, first.verified) == (ROWS, True)
    assert values(case, "t") == values(case, "s")
    assert case.run().unchanged == ROWS
    for name in COLUMNS:
        case.target.admin.execute_raw(f"UPDATE t SET {ident(name)}=NULL WHERE id=0")
        result = case.run()
        assert (result.updated, result.verified) == (1, True), name
    for name in COLUMNS:
        case.target.admin.execute_raw(f"UPDATE t SET {ident(name)}={COLUMNS[name][1][1]} WHERE id=0")
    assert case.run().updated == 1
    assert values(case, "t") == values(case, "s")
    assert case.rows(columns="MAX(id)") == [(ROWS - 1,)]


@pytest.mark.parametrize("unique", UNIQUE)
def test_types_on_one_flavor(database: Database, unique: str) -> None:
    with closing(Case(source=database, target=database, create=create(UNIQUE[unique]))) as case:
        check_all(case)


@pytest.fixture(scope="module")
def other_server(server: RunningServer) -> Iterator[RunningServer]:
    """One of the other flavor."""
    with private_server(next(f for f in binaries.FLAVORS if f != server.flavor)) as started:
        yield started


@pytest.fixture
def other(other_server: RunningServer) -> Iterator[Database]:
    made = create_database(other_server)
    try:
        yield made
    finally:
        made.drop()


def test_types_across_flavors(database: Database, other: Database) -> None:
    with closing(Case(source=database, target=other, create=create())) as case:
        check_all(case)


def test_a_comparison_alone_sees_a_difference(database: Database, other: Database) -> None:
    """Also in columns that two flavors do not print alike."""
    from vreplication.backfill import run
    from vreplication.backfill.compare import Comparer
    from vreplication.backfill.interval import walls
    from vreplication.backfill.slices import Slice
    from vreplication.mysql.session import connect

    with closing(Case(source=database, target=other, create=create())) as case:
        fill(case)
        case.run()
        span = Slice(span=walls(*DAY, "UTC"))
        with connect(case.reader) as source, connect(case.writer) as target:
            comparer = Comparer(source=source, target=target, tables=run.check(case.job(), source, target), slice=span,
                                is_mirror=False, batch_rows=10)  # fmt: skip
            assert comparer.run().differing == 0
            for name, (_, texts) in COLUMNS.items():
                other.admin.execute_raw(f"UPDATE t SET {ident(name)}={texts[1]} WHERE id=0")
                assert comparer.run().differing == 1, name
                assert comparer.run().differing == 0, name


GENERATED = "CREATE TABLE {} (id INT PRIMARY KEY, at DATETIME, v INT, g %s)"


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        ("INT", "INT AS (v+1) STORED", r"Column g is generated as .*v.* on the target and an ordinary column"),
        ("INT AS (v+2)", "INT AS (v+1) STORED", r"Column g is generated as .*1.* on the target and as .*2.* on the"),
        ("DECIMAL(9,4) AS (v/3)", "DECIMAL(9,2) AS (v/3)", r"Column g is decimal\(9,4\) on the source and decimal"),
    ],
)  # fmt: skip
def test_what_the_target_computes_in_its_own_way_is_refused(
    database: Database, ours: str, theirs: str, sentence: str
) -> None:
    """Its values would be others than the source's, and are in no comparison."""
    with closing(Case(source=database, target=database, create=GENERATED % ours)) as case:
        database.admin.execute_raw("DROP TABLE t")
        database.admin.execute_raw((GENERATED % theirs).format("t"))
        with pytest.raises(Refused, match=sentence):
            case.run()
        assert case.rows() == []


@pytest.mark.parametrize("ours", ["INT AS (v+1) VIRTUAL", "INT AS (v+1) STORED"])
def test_what_is_generated_alike_is_taken(database: Database, other: Database, ours: str) -> None:
    """Between two flavors, too, which write the expression in two ways."""
    for target in (database, other):
        with closing(Case(source=database, target=target, create=GENERATED % ours)) as case:
            if target is database:
                target.admin.execute_raw("ALTER TABLE t DROP g, ADD g BIGINT AS (v+1) STORED")
            case.write("INSERT INTO s (id,at,v) VALUES (1,'2026-03-01',4)")
            assert case.run().inserted == 1
            assert case.rows(columns="g") == [(5,)]
            for table, where in (("s", database), ("t", target)):
                where.admin.execute_raw(f"DROP TABLE {table}")
