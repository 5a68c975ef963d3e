"""Every pair of types: both ways to the target and a plain ALTER TABLE agree, value by value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pytest

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.private_server import VECTORS, is_older
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.schema.conversions import convert_template
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import literal_sql
from vreplication.schema.model import Column

ZONE = "+02:00"
LATIN = "VARCHAR(40) CHARACTER SET latin1"
TYPES: dict[str, list[str]] = {
    "INT": ["0", "-5", "20200102", "12"],
    "BIGINT UNSIGNED": ["18446744073709551615", "20200102030405", "7"],
    "INT(5) ZEROFILL": ["42", "1234567"],
    "DECIMAL(10,2)": ["1.50", "-2.25", "20200102.00"],
    "FLOAT": ["1.1e0", "-2.5e0", "16777216e0", "1e20"],
    "DOUBLE": ["1.1e0", "2.5e0", "1e16", "0.1e0+0.2e0", "-1.2345678901234567e-200"],
    "DOUBLE(10,2)": ["1.1e0", "2.5e0"],
    "BIT(9)": ["5", "300"],
    "YEAR": ["2024", "0"],
    "DATE": ["'2020-01-02'", "'0000-00-00'", "'2020-02-31'"],
    "TIME": ["'10:11:12'", "'-838:59:59'"],
    "TIME(3)": ["'10:11:12.567'"],
    "DATETIME": ["'2020-01-02 03:04:05'", "'0000-00-00 00:00:00'", "'2020-02-31 01:02:03'", "'1960-01-01 00:00:00'"],
    "DATETIME(6)": ["'2020-01-02 23:59:59.987654'", "'2020-07-02 03:04:05.000000'"],
    "TIMESTAMP": ["'2020-01-02 23:04:05'", "'0000-00-00 00:00:00'"],
    "TIMESTAMP(3)": ["'2020-01-02 03:04:05.678'"],
    "CHAR(20) CHARACTER SET utf8mb4": ["'abc'", "'12'", "'2020-01-02 03:04:05'", "''", "'{\"a\": 1}'", "'x'"],
    LATIN: ["'abc'", "_latin1 X'e9'", "'12'", "'2020-01-02 03:04:05'", "'a '", "''", "'10:11:12'"],
    "VARCHAR(40) CHARACTER SET utf16": ["'abc'", "'12'"],
    "TEXT CHARACTER SET utf8mb4": ["'é'", "'12'", "'[1, 2.50]'"],
    "BINARY(4)": ["'12'", "X'00010000'"],
    "VARBINARY(40)": ["'12'", "X'e9'", "'2020-01-02 03:04:05'", "'abc'"],
    "BLOB": ["'abc'", "'12'"],
    "ENUM('x','y','12')": ["'x'", "'12'"],
    "ENUM('b','y','x') CHARACTER SET latin1": ["'x'", "'b'"],
    "SET('x','y')": ["'x'", "'x,y'", "''"],
    "GEOMETRY": ["ST_GeomFromText('POINT(1 2)')"],
    "JSON": ["'{\"a\": 1}'", "'[1, 2.50]'", "'5'", "'\"abc\"'"],
}
ONLY = {
    "mariadb": {
        "UUID": ["'11111111-2222-3333-8444-555555555555'"],
        "INET6": ["'::1'"],
        "INET4": ["'1.2.3.4'"],
    },
    "mysql": {} if is_older("mysql", VECTORS) else {"VECTOR(2)": ["STRING_TO_VECTOR('[1,2]')"]},
}


class Lab:
    """o: values of the source's type; u…: one of each type, filled by us; t: altered by the server."""

    def __init__(self, database: Database, session: Session, kinds: Iterable[str]) -> None:
        self.session, self.schema = session, database.name
        self._targets = {kind: f"u{number}" for number, kind in enumerate(kinds)}
        for kind, table in self._targets.items():
            session.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, c {kind})")
        self._columns = {kind: self.column(table) for kind, table in self._targets.items()}

    def prepare(self, kind: str, values: list[str]) -> None:
        self.session.execute_raw("DROP TABLE IF EXISTS o")
        self.session.execute_raw(f"CREATE TABLE o (id INT PRIMARY KEY, c {kind})")
        rows = ",".join(f"({i},{value})" for i, value in enumerate([*values, "NULL"]))
        self.session.execute_raw(f"INSERT INTO o VALUES {rows}")

    def target(self, kind: str) -> Column:
        """What is filled next; empty."""
        self.session.execute_raw(f"DELETE FROM {self._targets[kind]}")
        return self._columns[kind]

    def column(self, table: str) -> Column:
        return introspect(self.session, self.schema, table).column("c")

    def copy_on_server(self, kind: str, template: str) -> list[int]:
        """Returns the rows that the target takes; it takes one that it refuses by the ALTER, too, never silently."""
        insert = f"INSERT INTO {self._targets[kind]} SELECT id,{template.format('c')} FROM o WHERE id={{}}"
        ids = [int(row[0]) for row in self.session.rows("SELECT id FROM o")]
        return [i for i in ids if self._try(insert.format(i))]

    def _try(self, sql: str) -> bool:
        try:
            self.session.execute_raw(sql)
        except VReplicationError:
            return False
        return True

    def copy_by_literals(self, source: Column, kind: str, template: str, ids: list[int]) -> None:
        for i in ids:
            literal = self.session.value(f"SELECT {literal_sql(source, 'c')} FROM o WHERE id={i}")
            text = literal.decode() if isinstance(literal, bytes) else str(literal)
            self.session.execute_raw(f"INSERT INTO {self._targets[kind]} VALUES ({i},{template.format(text)})")

    def alter(self, kind: str, ids: list[int]) -> None:
        """A temporary table: values are converted as in any other, without its files and its dictionary."""
        self.session.execute_raw("DROP TEMPORARY TABLE IF EXISTS t")
        self.session.execute_raw("CREATE TEMPORARY TABLE t LIKE o")
        self.session.execute_raw(f"INSERT INTO t SELECT * FROM o WHERE id IN ({','.join(map(str, ids))})")
        self.session.execute_raw(f"SET time_zone='{ZONE}'")
        try:
            self.session.execute_raw(f"ALTER TABLE t MODIFY c {kind}")
        finally:
            self.session.execute_raw("SET time_zone='+00:00'")

    def copied(self, kind: str) -> list[tuple[object, ...]]:
        return self._values(self._targets[kind], kind)

    def altered(self, kind: str) -> list[tuple[object, ...]]:
        return self._values("t", kind)

    def _values(self, table: str, kind: str) -> list[tuple[object, ...]]:
        shown = "HEX(c)" if kind.startswith("VECTOR") else "HEX(c),CONCAT(c)"
        return list(self.session.rows(f"SELECT id,{shown} FROM {table} ORDER BY id"))


@pytest.fixture(scope="module")
def lab(server: RunningServer) -> Iterator[Lab]:
    """One for all tests: most of what they took was to make tables of thirty types, each for itself."""
    database = create_database(server)
    try:
        with connect(database.app_url) as session:
            yield Lab(database, session, {**TYPES, **ONLY[server.flavor]})
    finally:
        database.drop()


@pytest.mark.parametrize("before", [*TYPES, "UUID", "INET6", "INET4", "VECTOR(2)"])
def test_conversions(lab: Lab, server: RunningServer, before: str) -> None:
    types = {**TYPES, **ONLY[server.flavor]}
    if before not in types:
        pytest.skip(f"{before} is not a type of this server")
    lab.prepare(before, types[before])
    source = lab.column("o")
    tried = [after for after in types if after != before and _agrees(lab, source, after)]
    assert len(tried) >= 2


def _agrees(lab: Lab, source: Column, after: str) -> bool:
    """False where the conversion is refused."""
    try:
        template = convert_template(source, lab.target(after), zone=ZONE)
    except Refused:
        return False
    ids = lab.copy_on_server(after, template)
    by_server = lab.copied(after)
    lab.target(after)
    lab.copy_by_literals(source, after, template, ids)
    by_literals = lab.copied(after)
    lab.alter(after, ids)
    altered = lab.altered(after)
    assert by_server == altered, f"{source.column_type} to {after} by the server"
    assert by_literals == altered, f"{source.column_type} to {after} by literals"
    return True


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("TIME", "DATETIME"),
        ("BIT(9)", "DATE"),
        ("SET('a')", "INT"),
        (LATIN, "TIMESTAMP"),
        ("INT", "DATE"),
        # '' may be the label or the error value, whose number is 0.
        ("ENUM('a','')", "INT"),
        ("ENUM('a','')", "DECIMAL(10,2)"),
        ("ENUM('a','')", "DOUBLE"),
    ],
)
def test_what_cannot_be_said_is_refused(lab: Lab, before: str, after: str) -> None:
    lab.prepare(before, [])
    with pytest.raises(Refused, match="cannot be done online"):
        convert_template(lab.column("o"), lab.target(after), zone=ZONE)


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ("'a',''", "'','a'", True),
        ("'a','b'", "'','a','b'", True),
        ("'a',''", "'a','','b'", False),
        ("'a','','b'", "'a',''", False),
        ("'a','b'", "'b','a'", False),
    ],
)
def test_an_error_value_does_not_become_a_label(lab: Lab, before: str, after: str, is_refused: bool) -> None:
    """Catch-up made a label '' of it, and the comparison called them equal."""
    columns = []
    for labels in (before, after):
        lab.prepare(f"ENUM({labels})", [])
        columns.append(lab.column("o"))
    with pytest.raises(Refused, match="cannot be done online") if is_refused else contextlib.nullcontext():
        convert_template(columns[0], columns[1], zone=ZONE)


def test_hour_that_the_zone_does_not_have(lab: Lab) -> None:
    """CONVERT_TZ moves it in silence; a plain ALTER refuses it."""
    lab.prepare("DATETIME", ["'2020-02-31 01:00:00'", "'2020-03-01 01:00:00'"])
    template = convert_template(lab.column("o"), lab.target("TIMESTAMP"), zone=ZONE)
    assert lab.copy_on_server("TIMESTAMP", template) == [1, 2]
