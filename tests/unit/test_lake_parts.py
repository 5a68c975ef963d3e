"""What a lake does without Spark and Kafka: how far it goes, names, manifests, the Java client's options."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox import kafka_jars
from vreplication.errors import Refused, Terminal
from vreplication.feed.address import parse
from vreplication.feed.lake import java_client, types
from vreplication.feed.lake.ddl import Catalog, Statement
from vreplication.feed.lake.deciding import Admin, Known, Span
from vreplication.feed.lake.manifest import FOREVER, Alter, Column, File, Manifest, Name, Retired, Store, Table, Version
from vreplication.feed.lake.spark_compacting import compact
from vreplication.feed.lake.spark_files import _Cell, _Group, _version
from vreplication.feed.lake.spark_reading import find, microseconds, shown
from vreplication.feed.lake.stream import Filling, Stream
from vreplication.spark import sql

EMPTY = Manifest(topic="t", topic_id="x", number=1)


# How far.


def test_the_slowest_partition_decides() -> None:
    known = Known(1, 2, 5)
    known.resolve(1, 0, 9)
    assert known.go_on() == []
    known.resolve(1, 1, 7)
    assert known.go_on() == [Span(1, 5, 7)]
    known.resolve(1, 1, 8)
    assert (known.go_on(), known.watermark) == ([Span(1, 7, 8)], 8)


def test_who_begins_looks_for_the_first_generation() -> None:
    known = Known(0, 1, 0)
    known.admin(1, 0, Admin(0, 2))
    known.resolve(1, 0, 4)
    assert (known.go_on(), known.generation) == ([], 0)
    known.admin(1, 1, Admin(0, 2))
    known.resolve(1, 1, 3)
    assert (known.go_on(), known.generation, known.partitions) == ([Span(1, 0, 3)], 1, 2)


def test_a_partition_whose_head_is_gone_ends_it() -> None:
    """A busy one may have lost its Admin to the topic's retention while partition 0 still has its own."""
    for known, number in ((Known(0, 1, 0), 1), (Known(1, 1, 2), 2)):
        known.admin(number, 0, Admin(2, 2))
        with pytest.raises(Terminal, match=f"Partition 1 does not begin generation {number}"):
            known.resolve(number, 1, 5)


@pytest.mark.parametrize("count", [1, 3])
def test_a_generation_begins_when_all_stand_at_it(count: int) -> None:
    """Grown and shrunk: partition 0 had resolved more than the generation was to have."""
    known = Known(1, 2, 1)
    known.resolve(1, 0, 9)
    known.admin(2, 0, Admin(4, count))
    known.resolve(2, 0, 9)
    assert known.go_on() == []
    known.resolve(1, 1, 3)
    assert known.go_on() == [Span(1, 1, 3)]
    known.admin(2, 1, Admin(4, count))
    if count == 3:
        # What stands in the new partition counts from its Admin on.
        assert (known.go_on(), known.generation) == ([Span(1, 3, 4)], 1)
        known.admin(2, 2, Admin(4, count))
        assert (known.go_on(), known.generation) == ([], 2)
    else:
        assert (known.go_on(), known.generation) == ([Span(1, 3, 4), Span(2, 4, 9)], 2)


def test_an_admin_that_says_other_things_ends_it() -> None:
    known = Known(1, 2, 1)
    known.admin(2, 0, Admin(4, 3))
    with pytest.raises(Terminal, match="says other things"):
        known.admin(2, 1, Admin(4, 5))
    known = Known(1, 1, 6)
    known.admin(2, 0, Admin(4, 1))
    with pytest.raises(Terminal, match="begins at 4, before 6"):
        known.go_on()


# Names.


def made(*columns: str, key: tuple[str, ...] = ("id",)) -> Table:
    version = Version(
        number=1,
        t=1,
        columns=tuple(Column(name=name, kind="Long", type="bigint") for name in columns),
        key=key,
        sources={},
    )
    return Table(folder="x", versions=(version,))


def names(catalog: Catalog) -> dict[str, int]:
    return {f"{each.schema}.{each.name}": each.table for each in catalog.names if each.until == FOREVER}


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("RENAME TABLE a TO x, b TO a, x TO b", {"s.a": 2, "s.b": 1}),
        ("RENAME TABLE a TO x, b TO a", {"s.x": 1, "s.a": 2}),
        # The new one is not followed: rows go on.
        ("RENAME TABLE a TO _a_del, _a_gho TO a, b TO c", {"s.a": 1, "s.c": 2}),
        ("rename table if exists `a` wait 5 to z.`a`", {"z.a": 1, "s.b": 2}),
        ("ALTER TABLE a RENAME x, ENGINE=InnoDB", {"s.x": 1, "s.b": 2}),
        ("ALTER TABLE s.a RENAME INDEX i TO j", {"s.a": 1, "s.b": 2}),
        ("DROP TABLE IF EXISTS a, no_such, b", {}),
        ("TRUNCATE a", {"s.a": 3, "s.b": 2}),
        ("CREATE TABLE IF NOT EXISTS a (id INT)", {"s.a": 1, "s.b": 2}),
        ("CREATE OR REPLACE TABLE a (id INT)", {"s.a": 3, "s.b": 2}),
        ("CREATE TABLE c LIKE a", {"s.a": 1, "s.b": 2, "s.c": 3}),
        ("DROP DATABASE s", {}),
        ("DROP INDEX i ON a", {"s.a": 1, "s.b": 2}),
        ("RENAME TABLE no_such TO b", {"s.a": 1, "s.b": 2}),
        ("RENAME TABLE A TO c", {"s.c": 1, "s.b": 2}),
        ("what is this 'unended", {"s.a": 1, "s.b": 2}),
        # As MariaDB has it in its log.
        (
            "SET STATEMENT lock_wait_timeout=1, sql_mode=(SELECT 'x' FOR UPDATE) FOR RENAME TABLE a TO c",
            {"s.c": 1, "s.b": 2},
        ),
        ("SET STATEMENT max_statement_time=9 FOR CREATE OR REPLACE TABLE a (id INT)", {"s.a": 3, "s.b": 2}),
        ("ALTER TABLE a NOWAIT RENAME TO c", {"s.c": 1, "s.b": 2}),
        ('ALTER TABLE "s"."a" WAIT 5 RENAME "c"', {"s.c": 1, "s.b": 2}),
        ('RENAME TABLE "a" TO "c"', {"s.c": 1, "s.b": 2}),
    ],
)
def test_what_a_statement_does_to_names(sql: str, left: dict[str, int]) -> None:
    catalog = Catalog(EMPTY)
    for name in ("a", "b"):
        catalog.begin("s", name, 0)
    catalog.run(Statement(t=5, schema="s", sql=sql))
    assert names(catalog) == left


@pytest.mark.parametrize(
    ("mode", "sql", "left"),
    [
        ("NO_BACKSLASH_ESCAPES", r"ALTER TABLE a ADD p VARCHAR(9) DEFAULT 'C:\', RENAME TO c", {"s.c": 1, "s.b": 2}),
        ("NO_BACKSLASH_ESCAPES", r"CREATE TABLE c (p VARCHAR(9) DEFAULT 'C:\')", {"s.a": 1, "s.b": 2, "s.c": 3}),
        ("ANSI_QUOTES", """RENAME TABLE "a" TO "c'" """, {"s.c'": 1, "s.b": 2}),
        ("", r"ALTER TABLE a COMMENT 'it\'s', RENAME c", {"s.c": 1, "s.b": 2}),
        (None, r"ALTER TABLE a COMMENT 'it\'s', RENAME c", {"s.c": 1, "s.b": 2}),
    ],
)
def test_a_statement_is_read_by_the_mode_of_its_session(mode: str | None, sql: str, left: dict[str, int]) -> None:
    catalog = Catalog(EMPTY)
    for name in ("a", "b"):
        catalog.begin("s", name, 0)
    catalog.run(Statement(t=5, schema="s", sql=sql, sql_mode=mode))
    assert names(catalog) == left


@pytest.mark.parametrize(
    ("sql", "columns", "sources"),
    [
        ("ALTER TABLE a CHANGE COLUMN `b` c BIGINT", ("id", "c"), {"id": "id", "c": "b"}),
        ("ALTER TABLE a RENAME COLUMN id TO nr, ADD INDEX (b)", ("nr", "b"), {"nr": "id", "b": "b"}),
        ("ALTER TABLE a RENAME COLUMN id TO b, RENAME COLUMN b TO id", ("b", "id"), {"b": "id", "id": "b"}),
        ("ALTER TABLE a DROP b, ADD b TEXT", ("id",), {"id": "id"}),
        ("ALTER TABLE a WAIT 5 DROP b", ("id",), {"id": "id"}),
        (
            "SET STATEMENT max_statement_time=9 FOR ALTER TABLE a NOWAIT CHANGE b c INT",
            ("id", "c"),
            {"id": "id", "c": "b"},
        ),
        ("ALTER TABLE a ADD c INT, MODIFY b TEXT", ("id", "b"), None),
        ("ALTER TABLE a ADD B INT, ADD c INT", ("id", "b"), None),
        ("ALTER TABLE a DROP PARTITION p0", ("id", "b"), None),
        # Another of several sources has told it before.
        ("ALTER TABLE a ADD COLUMN b INT", ("id", "b"), None),
        ("ALTER TABLE a ADD COLUMN b INT, DROP id", ("b",), {"b": "b"}),
    ],
)
def test_what_alter_does_to_columns(sql: str, columns: tuple[str, ...], sources: dict[str, str] | None) -> None:
    catalog = Catalog(EMPTY)
    number = catalog.begin("s", "a", 0, like=made("id", "b"))
    catalog.run(Statement(t=5, schema="s", sql=sql))
    table = catalog.tables[number]
    last = table.versions[-1]
    assert tuple(column.name for column in last.columns) == columns
    assert (last.sources if len(table.versions) > 1 else None) == sources
    assert [each.t for each in table.alters] == [5]
    if len(table.versions) > 1:
        assert last.key == tuple(new for new, old in last.sources.items() if old == "id")


def rows_of(catalog: Catalog, name: str) -> int:
    """As rows that come find their table."""
    found = catalog.of_rows("s", name)
    return catalog.begin("s", name, 0, rows=("s", name)) if found is None else found


@pytest.mark.parametrize(
    "statement", ["", "CREATE TABLE Orders (id INT)", "CREATE TABLE IF NOT EXISTS Orders (id INT)"]
)
@pytest.mark.parametrize("order", [("orders", "Orders"), ("Orders", "orders")])
def test_names_that_differ_in_case_are_two_tables(statement: str, order: tuple[str, str]) -> None:
    """Where the server tells them apart, which rows of both say, or capitals in one of them."""
    catalog = Catalog(EMPTY)
    if statement:
        catalog.run(Statement(t=1, schema="s", sql=statement))
    numbers = [rows_of(catalog, name) for name in order]
    assert len(set(numbers)) == 2
    assert [rows_of(catalog, name) for name in order] == numbers
    assert names(catalog) == {f"s.{name}": number for name, number in zip(order, numbers, strict=True)}
    catalog.run(Statement(t=2, schema="s", sql="DROP TABLE ORDERS"))
    catalog.run(Statement(t=3, schema="s", sql="RENAME TABLE Orders TO x"))
    assert names(catalog) == {"s.orders": rows_of(catalog, "orders"), "s.x": numbers[order.index("Orders")]}


@pytest.mark.parametrize("sql", ["DROP TABLE Orders", "RENAME TABLE Orders TO x", "TRUNCATE Orders", "DROP DATABASE S"])
def test_a_table_of_which_nothing_has_come_is_not_one_that_differs_in_case(sql: str) -> None:
    """Where the feed tells that the source keeps them apart; else, and without a word of it, they may be one."""
    for is_folded in (False, True):
        catalog = Catalog(EMPTY)
        number = rows_of(catalog, "orders")
        catalog.run(Statement(t=5, schema="s", sql=sql, is_folded=is_folded))
        assert (names(catalog) == {"s.orders": number}) is not is_folded


def test_names_that_are_the_same_to_the_server_are_one_table() -> None:
    """It keeps them in lower case, and statements say them as they like."""
    catalog = Catalog(EMPTY)
    catalog.run(Statement(t=1, schema="s", sql="CREATE TABLE Orders (id INT)"))
    number = rows_of(catalog, "orders")
    catalog.run(Statement(t=2, schema="s", sql="RENAME TABLE ORDERS TO Bills"))
    assert (rows_of(catalog, "bills"), names(catalog)) == (number, {"s.Bills": number})
    catalog.run(Statement(t=3, schema="s", sql="TRUNCATE bILLS"))
    assert rows_of(catalog, "bills") == number + 1
    catalog.run(Statement(t=4, schema="s", sql="DROP TABLE BILLS"))
    assert names(catalog) == {}


@pytest.mark.parametrize(("name", "left"), [("orders", {}), ("Orders", {"s.Orders": 1, "s.bills": 2})])
def test_a_schema_goes_with_all_its_tables(name: str, left: dict[str, int]) -> None:
    """To a server that keeps no case S is s, however its tables were called; to another one it is another schema."""
    catalog = Catalog(EMPTY)
    rows_of(catalog, name)
    catalog.run(Statement(t=1, schema="s", sql="CREATE TABLE bills (id INT)"))
    catalog.run(Statement(t=2, schema="S", sql="CREATE TABLE more (id INT)"))
    catalog.run(Statement(t=3, schema="", sql="DROP DATABASE S"))
    assert names(catalog) == left


def test_an_exchange_of_rows_is_noted_at_both_tables() -> None:
    catalog = Catalog(EMPTY)
    for name in "abc":
        catalog.begin("s", name, 0, like=made("id"))
    catalog.run(Statement(t=5, schema="s", sql="ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b"))
    catalog.run(Statement(t=6, schema="s", sql="ALTER TABLE c RENAME d"))
    assert [[each.t for each in table.alters] for table in catalog.tables.values()] == [[5], [5], [6]]


def cells(*told: tuple[str, str]) -> Any:
    found = tuple(_Cell(k=name, y=kind, u=name == "id") for name, kind in told)
    return _Group(schema="s", name="a", at=0, looks=0, cells=found, first=9, last=9, count=1)


@pytest.mark.parametrize(
    ("told", "number", "columns"),
    [
        ((("id", "Long"), ("b", "Long")), 1, ("id", "b")),
        # A source that does not have b yet: what others have of it stays.
        ((("id", "Long"),), 2, ("id", "b")),
        ((("id", "Long"), ("b", "Text")), 2, ("id", "b")),
        ((("id", "Long"), ("b", "Text"), ("c", "Long")), 3, ("id", "b", "c")),
        ((("b", "Text"), ("id", "Long")), 3, ("b", "id")),
    ],
)
def test_rows_of_several_sources_share_versions(
    told: tuple[tuple[str, str], ...], number: int, columns: tuple[str, ...]
) -> None:
    (first,) = made("id", "b").versions
    other = replace(first, number=2, columns=(first.columns[0], replace(first.columns[1], kind="Text")))
    table = replace(made("id", "b"), versions=(first, replace(other, sources={"id": "id", "b": "b"})))
    found = _version(table, cells(*told))
    assert (found.number, tuple(column.name for column in found.columns)) == (number, columns)


X, Y, OF_A_TOOL = "ALTER TABLE a ADD UNIQUE (b)", "ALTER TABLE a DROP INDEX b", "RENAME TABLE a TO _a, _b TO a"


@pytest.mark.parametrize(
    ("told", "number"),
    [
        # One of several sources that has not changed its key yet, whatever the others have run of that change.
        (((2, X),), 1),
        (((2, X), (5, X)), 1),
        (((2, X), (5, Y)), 3),
        (((2, OF_A_TOOL), (5, OF_A_TOOL)), 3),
    ],
)
def test_rows_of_a_key_that_is_back_come_behind_those_of_the_other(
    told: tuple[tuple[int, str], ...], number: int
) -> None:
    (first,) = made("id", "b").versions
    other = replace(first, number=2, t=3, key=("id", "b"), sources={"id": "id", "b": "b"})
    alters = tuple(Alter(t=t, sql=sql) for t, sql in told)
    table = replace(made("id", "b"), versions=(first, other), alters=alters)
    assert _version(table, cells(("id", "Long"), ("b", "Long"))).number == number


def test_a_table_that_cannot_be_read_by_state_is_not_folded(tmp_path: Path) -> None:
    """Its key came with a column; the lake is folded all the same, and its changes stay."""
    (first,) = made("id").versions
    (by_n,) = made("id", "n", key=("n",)).versions
    file = File(path="tables/x/w-1.parquet", version=1, rows=1, nbytes=1, first=1, last=1)
    table = replace(made("id"), versions=(first, replace(by_n, number=2, t=5, sources={"id": "id"})))
    table = replace(table, files=(file, replace(file, path="tables/x/w-2.parquet", version=2, first=6, last=6)))
    dropped = replace(made("id"), folder="y", files=(replace(file, path="tables/y/w-1.parquet"),))
    live = Name(schema="s", name="a", table=1, since=0)
    store = Store(tmp_path / "lake")
    store.create()
    names = (live, replace(live, name="b", table=2, until=7))
    store.put(replace(EMPTY, watermark=10, tables={1: table, 2: dropped}, names=names))
    done = compact(store, lambda: None, fold_before=8)
    assert (done.horizon, done.files_before, done.files_after) == (8, 3, 2)
    assert store.open().tables == {1: table}


# Manifests.


def test_of_two_who_write_one_begins_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    store.create()
    assert store.put(EMPTY)
    seen = []

    def change(newest: Manifest) -> Manifest:
        seen.append(newest.number)
        if len(seen) == 1:
            store.commit(lambda before: replace(before, horizon=3))
        return replace(newest, watermark=9)

    done = store.commit(change)
    assert (seen, done.number, done.previous) == ([1, 2], 3, 2)
    assert (done.watermark, done.horizon) == (9, 3)
    assert store.open() == done
    assert list((tmp_path / "lake" / "_work").iterdir()) == []


def test_old_manifests_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    store.create()
    store.put(EMPTY)
    for _ in range(50):
        store.commit(lambda before: before)
    assert store.open().number == 51
    assert len(list((tmp_path / "lake" / "manifests").iterdir())) == 20


def test_a_directory_that_cannot_be_a_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(Refused, match="holds something else"):
        Store(tmp_path).create()
    with pytest.raises(Refused, match="takes for patterns"):
        Store(tmp_path / "a[b]")
    with pytest.raises(Refused, match="There is no lake"):
        Store(tmp_path / "none").open()
    store = Store(tmp_path / "lake")
    store.create()
    with store.alone("writer", "Another one fills"), pytest.raises(Refused, match="Another one fills"):
        with Store(tmp_path / "lake").alone("writer", "Another one fills"):
            pass


def test_a_batch_begins_with_what_a_compaction_has_replaced(tmp_path: Path) -> None:
    """Files of before are removed after a while, and rows that are there may be looked at in the batch."""
    store, stop = Store(tmp_path / "lake"), threading.Event()
    store.create()
    store.put(EMPTY)
    filling = Filling(address=parse("kafka://x:1/t"), store=store, seconds=1.0, until_caught_up=True)
    stream = Stream(filling, None, stop, lambda told: None)
    stream._manifest = EMPTY
    store.commit(lambda newest: replace(newest, retired=(Retired(path="tables/a", at=1.0),)))
    assert stream._fresh().number == 2
    store.commit(lambda newest: replace(newest, watermark=7))
    assert stream._fresh() == EMPTY, "it is another process's, which the commit says"


def test_a_time_is_refused_that_the_lake_does_not_hold() -> None:
    manifest = replace(EMPTY, watermark=2_000_000, horizon=1_000_000)
    with pytest.raises(Refused, match=r"come to 1970-01-01T00:00:02\.000000Z, not yet to 1970-01-01T00:00:02\.000001Z"):
        find(manifest, "s.a", 2_000_001)
    with pytest.raises(Refused, match="was folded"):
        find(manifest, "s.a", "1970-01-01T00:00:00.999999Z")
    with pytest.raises(Refused, match="has no table"):
        find(manifest, "s.a")
    assert shown(microseconds("2026-11-24T12:00:00.000001+01:00")) == "2026-11-24T11:00:00.000001Z"


# Types.


@pytest.mark.parametrize(
    ("kind", "type", "digits", "wider"),
    [
        ("LongLong", "bigint", (20, 0), "decimal(20,0)"),
        ("LongLong", "decimal(20,0)", (21, 0), "string"),
        ("Decimal", "decimal(38,0)", (5, 2), "decimal(38,2)"),
        ("Decimal", "decimal(38,4)", (5, 2), "decimal(38,4)"),
        ("Decimal", "decimal(38,4)", (35, 2), "string"),
        ("Date", "date", (4, 0), "string"),
    ],
)
def test_a_type_gives_way(kind: str, type: str, digits: tuple[int, int], wider: str) -> None:
    assert types.wider(kind, type, whole=digits[0], fraction=digits[1]) == wider


# The Java client.


def test_the_jars_are_looked_for_where_they_are_fetched_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(sql.JARS, raising=False)
    assert sql.jars_folder() == kafka_jars.SPARK_CONNECTOR.folder
    monkeypatch.setenv(sql.JARS, str(tmp_path))
    with pytest.raises(Refused, match=f"Spark's Kafka connector is not in {tmp_path}"):
        sql.kafka_jars()


def options(query: str, password: str = "") -> dict[str, str]:
    found = java_client.options(parse(f"kafka://b:1,c:2/t?{query}", password))
    fixed = {"kafka.bootstrap.servers", "kafka.isolation.level", "subscribe", "includeHeaders", "failOnDataLoss"}
    fixed |= {"kafka.request.timeout.ms", "kafka.default.api.timeout.ms", "fetchOffset.numRetries"}
    assert found["kafka.isolation.level"] == "read_committed"
    assert found["failOnDataLoss"] == "true"
    return {name: value for name, value in found.items() if name not in fixed}


def test_options_are_translated(tmp_path: Path) -> None:
    assert options("") == {}
    pem = tmp_path / "ca.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    found = options(
        f"security.protocol=sasl_ssl&sasl.mechanism=SCRAM-SHA-512&sasl.username=me&ssl.ca.location={pem}"
        "&ssl.endpoint.identification.algorithm=none&session.timeout.ms=6000",
        'a"b\\c',
    )
    assert found == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="me" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\n",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl.cipher.suites=x", "The option ssl.cipher.suites has no counterpart"),
        ("sasl.mechanisms=OAUTHBEARER", "mechanism OAUTHBEARER cannot be used"),
        ("sasl.username=me", "mechanism GSSAPI cannot be used"),
        ("enable.ssl.certificate.verification=false", "cannot leave the broker's certificate unchecked"),
        ("ssl.ca.location=/no/such", "The file of ssl.ca.location cannot be read"),
        ("ssl.key.location=/no/such", "needs ssl.certificate.location and ssl.key.location"),
    ],
)
def test_what_cannot_be_translated_is_refused(query: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        options(query)
