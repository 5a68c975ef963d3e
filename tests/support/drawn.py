"""Draws a table, its rows, writes and an ALTER: for the property that an online DDL gives what a plain ALTER gives.

What must stay true: what is drawn is legal for the server (a draw that it refuses is told apart by the caller); names,
types and values are mixed so that no column is always of one kind; a case is plain data and can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from vreplication.mysql.quoting import ident

NAMES = ("c", "select", "Odd Name", "näme", "per%cent", "x" * 64)


@dataclass(frozen=True, slots=True)
class Kind:
    """A column type: its SQL, values as SQL, and types that hold all of those values."""

    sql: str
    values: Any
    wider: tuple[str, ...] = ()


def _text(most: int) -> Any:
    letters = st.text(alphabet="aAbBäÄé'\\%_ ☃\U0001f600", max_size=most)
    return letters.map(lambda s: f"_utf8mb4 X'{s.encode().hex()}'" if s else "''")


def _numbers(low: int, high: int) -> Any:
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, 1])).map(str)


def _approximate(value: float) -> str:
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def _moment(day: datetime) -> str:
    return f"'{day.year:04}-{day:%m-%d %H:%M:%S}.{day.microsecond // 1000:03}'"


def _time(seconds: int) -> str:
    sign, rest = "-" if seconds < 0 else "", abs(seconds)
    return f"'{sign}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}.25'"


def _hex(value: bytes) -> str:
    return f"X'{value.hex()}'" if value else "''"


_U = "CHARACTER SET utf8mb4"
KINDS = (
    Kind("INT", _numbers(-(2**31), 2**31 - 1), ("BIGINT", "DECIMAL(20,0)", "DOUBLE")),
    Kind("TINYINT UNSIGNED", _numbers(0, 255), ("SMALLINT", "INT UNSIGNED", "VARCHAR(5)")),
    Kind("BIGINT UNSIGNED", _numbers(0, 2**64 - 1), ("DECIMAL(30,2)",)),
    Kind("DECIMAL(12,3)", st.decimals(-99999, 99999, places=3).map(str), ("DECIMAL(20,6)",)),
    Kind("DOUBLE", st.floats(-1e100, 1e100, allow_nan=False).map(_approximate)),
    Kind("FLOAT", st.floats(-(2.0**90), 2.0**90, width=32).map(_approximate), ("DOUBLE",)),
    Kind(f"VARCHAR(40) {_U}", _text(12), (f"TEXT {_U}", "VARCHAR(60) CHARACTER SET utf16")),
    Kind(f"CHAR(12) {_U}", _text(12), (f"VARCHAR(30) {_U}",)),
    Kind("VARBINARY(20)", st.binary(max_size=20).map(_hex), ("BLOB",)),
    Kind("BINARY(6)", st.binary(max_size=6).map(_hex), ("VARBINARY(9)",)),
    Kind("DATE", st.dates().map(lambda d: f"'{d.isoformat()}'"), ("DATETIME",)),
    Kind("DATETIME(3)", st.datetimes().map(_moment), ("DATETIME(6)",)),
    Kind("TIME(2)", st.integers(-3020398, 3020398).map(_time), ("TIME(6)",)),
    Kind(
        f"ENUM('a','B','c d') {_U}",
        st.sampled_from(["'a'", "'B'", "'c d'"]),
        (f"ENUM('x','c d','B','a') {_U}", f"VARCHAR(9) {_U}"),
    ),
    Kind("SET('p','q','r')", st.sampled_from(["''", "'p'", "'q,r'", "'p,q,r'"])),
    Kind("BIT(9)", st.integers(0, 511).map(str), ("BIT(20)",)),
    Kind("YEAR", st.sampled_from(["0", "1901", "1999", "2155"])),
    Kind("JSON", st.sampled_from(["'{\"a\":[1,2.5,null]}'", "'[]'", "'\"ü\"'", "'18446744073709551615'"])),
)
_SMALL = st.integers(0, 60)
KEYS = (
    ("INT", _SMALL.map(str)),
    ("BIGINT UNSIGNED", st.integers(2**63, 2**63 + 60).map(str)),
    (f"VARCHAR(10) {_U} COLLATE utf8mb4_bin", _SMALL.map(lambda n: f"'k{n}'")),
    (f"VARCHAR(10) {_U} COLLATE utf8mb4_general_ci", _SMALL.map(lambda n: f"'{'kK'[n % 2]}{n // 2}'")),
    ("VARBINARY(8)", _SMALL.map(lambda n: f"X'{n:04x}'")),
    ("DATE", st.integers(1, 28).map(lambda n: f"'2024-02-{n:02}'")),
    ("DECIMAL(10,2)", _SMALL.map(lambda n: f"{n - 30}.50")),
)


@dataclass(frozen=True, slots=True)
class Case:
    """create: without the table's name; rows: value lists; writes: statements with {t} for the table."""

    create: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    writes: tuple[str, ...]
    alter: str
    path: str
    chunk_rows: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case; the key is one column `k`, or `k` and `k2`."""
    key_sql, key_value = draw(st.sampled_from(KEYS))
    is_composite = draw(st.booleans())
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    names = draw(st.permutations(NAMES))[: len(kinds)]
    null = [draw(st.booleans()) for _ in kinds]
    columns = [f"`k` {key_sql} NOT NULL", *(["`k2` INT NOT NULL"] if is_composite else [])]
    columns += [f"{ident(n)} {k.sql} {'NULL' if o else 'NOT NULL'}" for n, k, o in zip(names, kinds, null, strict=True)]
    keys = "`k`,`k2`" if is_composite else "`k`"
    unique = draw(st.sampled_from([f"PRIMARY KEY ({keys})", f"UNIQUE KEY the_key ({keys})"]))

    def value(i: int) -> str:
        return "NULL" if null[i] and draw(st.integers(0, 4)) == 0 else str(draw(kinds[i].values))

    def row() -> str:
        parts = [draw(key_value), *([str(draw(st.integers(0, 2)))] if is_composite else [])]
        return ",".join([*parts, *(value(i) for i in range(len(kinds)))])

    def write() -> str:
        some = draw(st.integers(0, len(kinds) - 1))
        where = f"`k`={draw(key_value)}"
        return draw(
            st.sampled_from(
                [
                    f"REPLACE INTO {{t}} VALUES ({row()})",
                    f"DELETE FROM {{t}} WHERE {where}",
                    f"UPDATE {{t}} SET {ident(names[some])}={value(some)} WHERE {where}",
                    f"UPDATE IGNORE {{t}} SET `k`={draw(key_value)} WHERE {where}",
                    "BEGIN",
                    "COMMIT",
                    "ROLLBACK",
                ]
            )
        )

    rows = tuple(row() for _ in range(draw(st.integers(0, 50))))
    writes = tuple(write() for _ in range(draw(st.integers(0, 10))))
    return Case(
        create=f"({', '.join(columns)}, {unique}) ENGINE=InnoDB CHARACTER SET utf8mb4",
        columns=tuple(names),
        rows=rows,
        writes=writes,
        alter=draw(_alters(names, kinds, null)),
        path=draw(st.sampled_from(["server", "rows"])),
        chunk_rows=draw(st.integers(1, 9)),
    )


def _alters(names: tuple[str, ...], kinds: list[Kind], null: list[bool]) -> Any:
    """One to three clauses on different columns."""
    clauses = []
    for name, kind, optional in zip(names, kinds, null, strict=True):
        option = "NULL" if optional else "NOT NULL"
        own = [f"DROP COLUMN {ident(name)}", f"CHANGE {ident(name)} `renamed {name[:9]}` {kind.sql} {option}"]
        own += [f"MODIFY {ident(name)} {wider} {option} FIRST" for wider in kind.wider]
        own += [f"RENAME COLUMN {ident(name)} TO `other {name[:9]}`"]
        clauses.append(st.sampled_from(own))
    added = st.sampled_from(
        [
            "ADD COLUMN a1 INT NOT NULL DEFAULT 7 FIRST",
            "ADD COLUMN a2 VARCHAR(9) CHARACTER SET latin1",
            "ADD COLUMN a3 INT AS (1 + 1) STORED",
            "ADD INDEX by_k (`k`)",
            "COMMENT='drawn'",
            "ROW_FORMAT=DYNAMIC",
        ]
    )
    picked = st.lists(st.sampled_from(range(len(clauses))), max_size=min(2, len(clauses) - 1), unique=True)
    mine = picked.flatmap(lambda which: st.tuples(*(clauses[i] for i in which)))
    return st.tuples(mine, added).map(lambda both: ", ".join([*both[0], both[1]]))
