"""A lake made of a real Kafka's topic, message by message: what its readers see, and what ends it."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.kafka import Cluster
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from tests.support.lakes import LakeServer
from vreplication.errors import Refused, Terminal
from vreplication.feed.lake.manifest import Store
from vreplication.feed.large import Fit, parse
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Encoded
from vreplication.feed.spoken import Spoken
from vreplication.schema.model import Column

pytestmark = [pytest.mark.spark, pytest.mark.either]


def column(name: str, type: str = "int", at: int = 1) -> Column:
    return Column(name=name, ordinal=at, data_type=type, column_type=type, is_nullable=True)


def layout(table: str, *columns: tuple[str, str], key: tuple[str, ...] = ("id",)) -> Layout:
    made = tuple(column(name, type, at) for at, (name, type) in enumerate(columns, 1))
    names = tuple(each.name for each in made)
    return Layout(number=1, schema="shop", table=table, columns=made, key=key or names, has_key=bool(key))


T = layout("t", ("id", "int"), ("a", "int"))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def pairs(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in names or ("id", "a")) for row in rows]
    return sorted(found, key=lambda row: [(value is None, value) for value in row])


def read(lakes: LakeServer, lake: Path, *names: str, table: str = "shop.t", at: int | None = None) -> Any:
    return pairs(lakes.rows(lake, table, at), *names)


def test_rows_come_and_go(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Also as of each time before, whatever the number of manifests."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 10))
        feed.row(1, T, 1, None, (2, 20), seq=1)
        feed.row(0, T, 2, (1, 10), (1, 11))
        feed.row(1, T, 3, (2, 20), None)
        feed.row(1, T, 4, None, (3, 30))
        feed.row(1, T, 5, (3, 30), (4, None))
        feed.resolved(5)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.row(0, T, 6, (1, 11), None)
        feed.row(0, T, 7, None, (5, 50))
        feed.resolved(6)
    assert [each["watermark"] for each in lakes.fill(feed.address(), lake)] == [6]
    states = {t: read(lakes, lake, at=t) for t in range(1, 7)}
    assert states[1] == [(1, 10), (2, 20)]
    assert states[3] == [(1, 11)]
    assert states[5] == [(1, 11), (4, None)]
    assert states[6] == read(lakes, lake) == [(4, None)]
    with pytest.raises(Refused, match=r"has come to .* not yet to"):
        lakes.rows(lake, "shop.t", 7)
    assert lakes.fill(feed.address(), lake) == []
    with feed.transaction():
        feed.resolved(7)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(4, None), (5, 50)]
    changes = sorted(pairs(lakes.changes(lake, "shop.t"), "_vr_t", "_vr_seq", "_vr_op", "id"))
    assert changes[5:] == [(5, 0, "D", 3), (5, 0, "U", 4), (6, 0, "D", 1), (7, 0, "I", 5)]


def test_what_was_aborted_is_never_seen(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction(is_aborted=True):
        feed.row(0, T, 1, None, (1, 66))
        feed.resolved(1)
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(1, 1)]


@pytest.mark.seldom
def test_a_duplicate_is_dropped_and_a_gap_ends_it(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.row(0, T, 2, (1, 1), (1, 2))
        feed.n[0] -= 2
        feed.row(0, T, 1, None, (1, 1))
        feed.row(0, T, 2, (1, 1), (1, 2))
        feed.resolved(2)
        # Of the one that is told apart by its number alone.
        feed.n[0] -= 1
        feed.row(0, T, 3, None, (7, 7))
        feed.row(0, T, 3, None, (3, 3))
        feed.resolved(3)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(1, 2), (3, 3)]
    assert len(lakes.changes(lake, "shop.t")) == 3
    with feed.transaction():
        feed.n[0] += 1
        feed.row(0, T, 4, None, (4, 4))
        feed.resolved(4)
    for _ in range(2):
        with pytest.raises(Terminal, match=r"Partition 0 of topic \S+ at offset \d+ has message 6 where 5 was to come"):
            lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(1, 2), (3, 3)]


def test_messages_that_break_a_rule_end_it(kafka: Cluster, lakes: LakeServer, tmp_path: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.n[0] += 1
        feed.resolved(2)
    with pytest.raises(Terminal, match="what is between is lost"):
        lakes.fill(feed.address(), tmp_path / "lost")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, T, 5, None, (1, 1))
        feed.resolved(5)
        feed.row(0, T, 4, None, (2, 2))
    with pytest.raises(Terminal, match="something of 4 behind what says that all up to 5 came"):
        lakes.fill(feed.address(), tmp_path / "late")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.send_raw(0, Encoded(key=b"k", value=b"v"), [])
    with pytest.raises(Terminal, match="without the headers of a feed"):
        lakes.fill(feed.address(), tmp_path / "foreign")
    feed = FeedWriter(kafka, 1, begins=False)
    feed.generation, feed.partitions, feed.n = 1, 1, [5]
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.resolved(1)
    with pytest.raises(Terminal, match="what is between is lost"):
        lakes.fill(feed.address(), tmp_path / "headless")


@pytest.mark.seldom
def test_another_protocol_is_refused(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        tags = [("vr-kind", b"row"), ("vr-t", b"1"), ("vr-seq", b"0"), ("vr-n", b"2"), ("vr-gen", b"1")]
        feed.send_raw(0, Encoded(key=b'{"id":1}', value=b'{"before":null,"after":{"id":1},"op":"c"}'), tags)
        feed.n[0] += 1
        feed.resolved(1)
    with pytest.raises(Terminal, match="the topic is not of protocol open"):
        lakes.fill(feed.address(), lake)


@pytest.mark.seldom
def test_a_topic_that_is_another_one(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    with pytest.raises(Refused, match=f"The lake is made of topic {feed.topic}"):
        lakes.fill(FeedWriter(kafka, 1).address(), lake)
    admin = kafka.admin()
    admin.delete_topics([feed.topic])[feed.topic].result(30)
    wait_until(lambda: feed.topic not in admin.list_topics(timeout=10).topics, "the topic stays")
    kafka.create_topic(feed.topic, 1)
    with pytest.raises(Terminal, match="deleted and made again"):
        lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(1, 1)]


@pytest.mark.seldom
def test_a_value_in_parts(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Also where it is cut between two batches, inside of a letter, with a Resolved of earlier rows between."""
    big = layout("big", ("id", "int"), ("a", "longtext"))
    feed = FeedWriter(kafka, 1)
    long = "ä" * 300_000
    with feed.transaction():
        feed.row(0, big, 1, None, (1, "x"))
        feed.row(0, big, 2, None, (2, long), parts=7, until=3)
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake, table="shop.big") == [(1, "x")]
    with feed.transaction():
        feed.row(0, big, 2, None, (2, long), parts=7, since=3)
        feed.row(0, big, 3, None, (3, "y"))
        feed.resolved(3)
    lakes.fill(feed.address(), lake, most=3)
    assert read(lakes, lake, table="shop.big") == [(1, "x"), (2, long), (3, "y")]
    with feed.transaction():
        feed.row(0, big, 4, None, (4, long), parts=7, until=3)
        feed.resolved(4)
    with pytest.raises(Terminal, match="parts of it are missing"):
        lakes.fill(feed.address(), lake)


@pytest.mark.seldom
def test_a_large_transaction_comes_whole(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """It is many batches of Spark's and two Kafka transactions; the other partition's watermark does not help."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, T, 1, None, (0, 0))
        feed.resolved(1)
        for number in range(1, 3001):
            feed.row(number % 2, T, 2, None, (number, number), seq=number)
        feed.resolved(9, to=(1,))
    told = lakes.fill(feed.address(), lake, most=500)
    assert {each["watermark"] for each in told} == {1}
    assert read(lakes, lake) == [(0, 0)]
    with feed.transaction():
        for number in range(3001, 4001):
            feed.row(0, T, 2, None, (number, number), seq=number)
        feed.resolved(9, to=(0,))
    told = lakes.fill(feed.address(), lake, most=500)
    assert [(each["watermark"], each["rows"]) for each in told] == [(9, 4000)]
    assert read(lakes, lake) == [(number, number) for number in range(4001)]


@pytest.mark.seldom
def test_the_number_of_partitions_changes(kafka: Cluster, lakes: LakeServer, lake: Path, tmp_path: Path) -> None:
    """2 → 3 → 2 → 3: rows move, rows behind the old one's time come again, Admin comes to one partition later."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, T, 1, None, (0, 1))
        feed.row(1, T, 2, None, (1, 2))
        feed.resolved(2)
        feed.row(0, T, 3, (0, 1), (0, 3))
        feed.row(1, T, 3, (1, 2), (1, 3), seq=1)
    lakes.fill(feed.address(), lake)
    feed.grow(3)
    with feed.transaction():
        feed.admin(2, 3, to=(0, 2))
        feed.row(2, T, 3, (1, 2), (1, 3), seq=1)
        feed.resolved(3, to=(0, 2))
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(0, 1), (1, 2)]
    with feed.transaction():
        feed.admin_again(2, 3, to=(1,))
        feed.row(1, T, 3, (0, 1), (0, 3))
        feed.row(0, T, 4, None, (2, 4))
        feed.row(2, T, 5, (1, 3), (1, 5))
        feed.resolved(5)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(0, 3), (1, 5), (2, 4)]
    with feed.transaction():
        feed.admin(5, 2)
        feed.row(0, T, 6, (1, 5), (1, 6))
        feed.row(1, T, 7, None, (3, 7))
        feed.resolved(7)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.admin(7, 3)
        feed.row(2, T, 8, (3, 7), None)
        feed.resolved(8)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(0, 3), (1, 6), (2, 4)]
    other = tmp_path / "from_earliest"
    told = lakes.fill(feed.address(), other)
    assert [each["watermark"] for each in told] == [8]
    for t in range(1, 9):
        assert read(lakes, other, at=t) == read(lakes, lake, at=t), t
    assert len(lakes.changes(other, "shop.t")) == len(lakes.changes(lake, "shop.t")) == 9


def test_what_admin_takes_back_comes_again(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Partition 0 had said that all up to 3 was there when the next generation begins behind 2."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, T, 1, None, (0, 1))
        feed.resolved(2)
        feed.row(0, T, 3, (0, 1), (0, 3))
        feed.row(1, T, 3, None, (1, 3), seq=1)
        feed.resolved(3, to=(0,))
        feed.admin(2, 2)
        feed.row(1, T, 3, (0, 1), (0, 3))
        feed.row(0, T, 3, None, (1, 3), seq=1)
        feed.resolved(3)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(0, 3), (1, 3)]
    assert len(lakes.changes(lake, "shop.t")) == 3


def test_names_move_and_tables_end(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """In one batch as in several; what was there before can still be read as of before."""
    feed = FeedWriter(kafka, 2)
    u = replace(T, table="u")
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 1))
        feed.row(1, u, 2, None, (2, 2))
        feed.ddl(3, "shop", "RENAME TABLE t TO x, u TO t, x TO `u`")
        feed.row(0, T, 4, None, (3, 3))
        feed.row(1, u, 5, (1, 1), (1, 5))
        feed.resolved(5)
    lakes.fill(feed.address(), lake)
    assert (read(lakes, lake, at=2), read(lakes, lake, table="shop.u", at=2)) == ([(1, 1)], [(2, 2)])
    assert (read(lakes, lake, at=3), read(lakes, lake, table="shop.u", at=3)) == ([(2, 2)], [(1, 1)])
    assert (read(lakes, lake), read(lakes, lake, table="shop.u")) == ([(2, 2), (3, 3)], [(1, 5)])
    with feed.transaction():
        feed.ddl(6, "", "TRUNCATE TABLE shop.t")
        feed.row(0, T, 7, None, (4, 4))
        feed.ddl(8, "shop", "DROP TABLE `u` /* generated by server */")
        feed.ddl(9, "shop", "ALTER TABLE t RENAME TO u, ADD INDEX (a)")
        feed.ddl(10, "shop", "CREATE TABLE IF NOT EXISTS u (id INT PRIMARY KEY)")
        feed.row(1, u, 11, None, (5, 5))
        # Another one, of a server that tells them apart, of which no row has come.
        feed.ddl(12, "shop", "DROP TABLE U", spoken=Spoken(is_folded=False))
        feed.resolved(12)
    lakes.fill(feed.address(), lake)
    assert (read(lakes, lake, at=6), read(lakes, lake, at=8)) == ([], [(4, 4)])
    assert read(lakes, lake, table="shop.u", at=7) == [(1, 5)]
    for name, t in (("shop.u", 8), ("shop.t", 9), ("shop.x", None)):
        with pytest.raises(Refused, match=f"has no table {name}"):
            lakes.rows(lake, name, t)
    assert read(lakes, lake, table="shop.u", at=10) == [(4, 4)]
    assert read(lakes, lake, table="shop.u") == [(4, 4), (5, 5)]


def test_columns_change(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Added, called otherwise, dropped and added anew; each time has its own."""
    feed = FeedWriter(kafka, 1)
    wide = layout("t", ("id", "int"), ("a", "int"), ("b", "varchar"))
    other = layout("t", ("id", "int"), ("c", "int"), ("b", "varchar"))
    fresh = layout("t", ("id", "int"), ("c", "varchar"), ("b", "varchar"))
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 10))
        feed.row(0, T, 1, None, (2, 20), seq=1)
        feed.ddl(2, "shop", "ALTER TABLE t ADD COLUMN b VARCHAR(9) DEFAULT 'z'")
        feed.row(0, wide, 3, None, (3, 30, "x"))
        feed.resolved(3)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.ddl(4, "shop", "ALTER TABLE `t` CHANGE COLUMN a c INT")
        feed.resolved(4)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake, "id", "c", "b") == [(1, 10, None), (2, 20, None), (3, 30, "x")]
    with feed.transaction():
        feed.row(0, other, 5, (1, 10, "z"), (1, 11, "z"))
        feed.ddl(6, "shop", "ALTER TABLE t DROP COLUMN c, ADD COLUMN c VARCHAR(9) AFTER id")
        feed.row(0, fresh, 7, None, (4, "new", "y"))
        feed.resolved(7)
    lakes.fill(feed.address(), lake)
    assert lakes.rows(lake, "shop.t", 1)[0].keys() == {"id", "a"}
    assert read(lakes, lake, "id", "a", "b", at=3) == [(1, 10, None), (2, 20, None), (3, 30, "x")]
    assert read(lakes, lake, "id", "c", "b", at=5) == [(1, 11, "z"), (2, 20, None), (3, 30, "x")]
    assert read(lakes, lake, "id", "c", "b") == [
        (1, None, "z"), (2, None, None), (3, None, "x"), (4, "new", "y"),
    ]  # fmt: skip


@pytest.mark.seldom
def test_the_key_changes(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    by_a = replace(T, key=("a",))
    with feed.transaction():
        feed.row(0, T, 1, None, (1, 10))
        feed.row(0, T, 1, None, (2, 20), seq=1)
        feed.ddl(2, "shop", "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)")
        feed.row(0, by_a, 3, (1, 10), (2, 10))
        feed.row(0, by_a, 4, (2, 20), None)
        feed.resolved(4)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake, at=2) == [(1, 10), (2, 20)]
    assert read(lakes, lake, at=3) == [(2, 10), (2, 20)]
    assert read(lakes, lake) == [(2, 10)]
    new = layout("t", ("id", "int"), ("a", "int"), ("n", "int"), key=("n",))
    with feed.transaction():
        feed.ddl(5, "shop", "ALTER TABLE t DROP PRIMARY KEY, ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY")
        feed.row(0, new, 6, (2, 10, 1), (2, 11, 1))
        feed.resolved(6)
    lakes.fill(feed.address(), lake)
    with pytest.raises(Refused, match=r"key n of the table was added at .* in no log"):
        lakes.rows(lake, "shop.t")
    assert read(lakes, lake, at=5) == [(2, 10)]


def test_rows_without_a_key_are_counted(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 2)
    bare = layout("bare", ("id", "int"), ("a", "int"), key=())
    with feed.transaction():
        for seq in range(3):
            feed.row(seq % 2, bare, 1, None, (1, None), seq=seq)
        feed.row(0, bare, 2, (1, None), (2, 2))
        feed.row(1, bare, 3, (1, None), None)
        feed.resolved(3)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake, table="shop.bare", at=1) == [(1, None)] * 3
    assert read(lakes, lake, table="shop.bare", at=2) == [(1, None)] * 2 + [(2, 2)]
    assert read(lakes, lake, table="shop.bare") == [(1, None), (2, 2)]
    lakes.compact(lake, fold_before=3)
    assert read(lakes, lake, table="shop.bare") == [(1, None), (2, 2)]


def test_a_rows_changes_may_be_in_any_partition(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """The order of the log decides; of one change that was split, the old image goes first."""
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(1, T, 1, None, (1, 1))
        feed.row(0, T, 1, (1, 1), (1, 2), seq=1)
        feed.row(0, T, 1, None, (2, 1), seq=2)
        feed.row(1, T, 2, None, (2, 2))
        feed.row(0, T, 2, (2, 1), None)
        feed.resolved(2)
    lakes.fill(feed.address(), lake)
    assert read(lakes, lake) == [(1, 2), (2, 2)]


def test_values_that_do_not_fit_make_a_column_wider(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    columns = (("id", "int"), ("big", "bigint"), ("d", "date"), ("dec", "decimal"), ("ts", "datetime"))
    table, feed = layout("w", *columns), FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, table, 1, None, (1, 5, "2024-02-29", "-1.50", "2024-02-29 10:00:00.250000"))
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    assert types_of(lake, 1) == ["bigint", "bigint", "date", "decimal(38,2)", "timestamp_ntz"]
    with feed.transaction():
        feed.row(0, table, 2, None, (2, 2**64 - 1, "0000-00-00", "9" * 36 + ".75", "2024-00-00 00:00:00"))
        feed.row(0, table, 3, None, (3, None, None, "9" * 38 + ".125", None))
        feed.resolved(3)
    lakes.fill(feed.address(), lake)
    assert types_of(lake, 1) == ["bigint", "decimal(20,0)", "string", "string", "string"]
    names = ("id", "big", "d", "dec", "ts")
    assert read(lakes, lake, *names, table="shop.w") == [
        (1, 5, "2024-02-29", "-1.50", "2024-02-29 10:00:00.25"),
        (2, 2**64 - 1, "0000-00-00", "9" * 36 + ".75", "2024-00-00 00:00:00"),
        (3, None, None, "9" * 38 + ".125", None),
    ]


@pytest.mark.seldom
def test_a_value_that_a_wider_column_has_no_room_for_is_an_error(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    table, feed, largest = layout("x", ("id", "int"), ("dec", "decimal")), FeedWriter(kafka, 1), "9" * 38
    for at, text in ((1, largest), (2, "0.25")):
        with feed.transaction():
            feed.row(0, table, at, None, (at, text))
            feed.resolved(at)
        lakes.fill(feed.address(), lake)
    assert types_of(lake, 1) == ["bigint", "decimal(38,2)"]
    assert str(read(lakes, lake, "id", "dec", table="shop.x", at=1)[0][1]) == largest
    with pytest.raises(Exception, match="too many digits for it"):
        read(lakes, lake, "id", "dec", table="shop.x")


@pytest.mark.seldom
def test_a_row_without_a_key_is_the_same_when_its_column_has_become_text(
    kafka: Cluster, lakes: LakeServer, lake: Path
) -> None:
    table, feed = layout("k", ("ts", "datetime"), ("n", "int"), key=()), FeedWriter(kafka, 1)
    first, second = ("2024-02-29 10:00:00.250000", 1), ("2024-02-29 10:00:00.000000", 2)
    with feed.transaction():
        feed.row(0, table, 1, None, first)
        feed.row(0, table, 1, None, second, seq=1)
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.row(0, table, 2, None, ("0000-00-00 00:00:00.000000", 3))
        feed.row(0, table, 3, first, ("2024-02-29 10:00:00.125000", 4))
        feed.row(0, table, 4, second, None)
        feed.resolved(4)
    lakes.fill(feed.address(), lake)
    left = [("0000-00-00 00:00:00", 3), ("2024-02-29 10:00:00.125", 4)]
    assert read(lakes, lake, "ts", "n", table="shop.k") == left


def types_of(lake: Path, table: int) -> list[str]:
    return [column.type for column in Store(lake).open().tables[table].versions[-1].columns]


@pytest.mark.seldom
def test_odd_names(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Of tables and columns, as MySQL takes them."""
    odd = ("it's", 'a"b', "c`d", "e.f, g", "\\n", "ü 😀", "*", "%s{0}", "value")
    table = replace(layout("x", ("id", "int"), *((name, "varchar") for name in odd)), schema="s/h", table="t'`ä.%")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.row(0, table, 1, None, (1, *odd))
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    assert lakes.rows(lake, "s/h.t'`ä.%") == [{"id": 1, **{name: name for name in odd}}]


def test_compaction_changes_no_state(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Files are merged, then history is folded; old files stay for those who read, as long as they are kept."""
    feed = FeedWriter(kafka, 1)
    gone = replace(T, table="gone")
    for at in range(1, 7):
        with feed.transaction():
            feed.row(0, T, at * 10, None, (at, at))
            if at > 1:
                feed.row(0, T, at * 10 + 1, (at - 1, at - 1), (at - 1, -at))
            if at == 4:
                feed.row(0, T, 42, (1, -2), None)
            if at == 1:
                feed.row(0, gone, 12, None, (1, 1))
                feed.ddl(13, "shop", "DROP TABLE gone")
            feed.resolved(at * 10 + 5)
        lakes.fill(feed.address(), lake)
    times = [10, 11, 20, 21, 41, 42, 55, 65]
    before = {t: read(lakes, lake, at=t) for t in times}
    old = Store(lake).open()
    done = lakes.compact(lake)
    assert (done["files_before"], done["files_after"]) == (7, 2)
    assert {t: read(lakes, lake, at=t) for t in times} == before
    assert read(lakes, lake, table="shop.gone", at=12) == [(1, 1)]
    assert all((lake / path).exists() for path in old.paths())
    with pytest.raises(Refused, match="not yet to"):
        lakes.compact(lake, fold_before=10_000)
    done = lakes.compact(lake, fold_before=42)
    assert done["horizon"] == 42
    assert {t: read(lakes, lake, at=t) for t in times[5:]} == {t: before[t] for t in times[5:]}
    with pytest.raises(Refused, match=r"folded: what was before .* can no longer be told"):
        lakes.rows(lake, "shop.t", 41)
    assert "gone" not in {each.name for each in Store(lake).open().names}
    with feed.transaction():
        feed.row(0, T, 70, (6, 6), (6, 7))
        feed.resolved(70)
    lakes.fill(feed.address(), lake)
    assert len(lakes.changes(lake, "shop.t")) < 3 + 6
    done = lakes.compact(lake, keep_seconds=0)
    assert done["removed"] == 8
    assert not any((lake / path).exists() for path in old.paths())
    lakes.compact(lake, keep_seconds=0)
    named = Store(lake).open().paths()
    assert {str(path.relative_to(lake)) for path in lake.glob("tables/*/*.parquet")} == named
    assert read(lakes, lake) == [*before[65][:-1], (6, 7)]


@pytest.mark.seldom
def test_values_in_files_are_fetched(kafka: Cluster, lakes: LakeServer, lake: Path, tmp_path: Path) -> None:
    table = layout("docs", ("id", "int"), ("doc", "longblob"))
    fit = Fit(policy=parse(f"claim-check:{tmp_path}"), piece=5_000, feed="f", topic="t")
    data = bytes(range(256)) * 5_000
    feed = FeedWriter(kafka, 2)
    with feed.transaction():
        feed.row(0, table, 1, None, (1, data), fit=fit)
        feed.row(0, table, 2, (1, data), (1, data[1:]), fit=fit)
        feed.row(1, table, 3, None, (2, b"small"), fit=fit)
        feed.row(1, table, 4, None, (3, data), fit=fit)
        feed.row(1, table, 5, (3, data), None, fit=fit)
        feed.resolved(5)
    lakes.fill(feed.address(), lake)
    found = read(lakes, lake, "id", "doc", table="shop.docs")
    assert [(id, base64.b64decode(doc)) for id, doc in found] == [(1, data[1:]), (2, b"small")]
    with feed.transaction():
        feed.row(1, table, 6, None, (3, data), fit=fit)
        feed.resolved(6)
    next(tmp_path.rglob("6-0-*.json")).unlink()
    with pytest.raises(Terminal, match=r"File .*6-0-.* is gone"):
        lakes.fill(feed.address(), lake)


def test_a_lake_asks_no_source(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    feed = FeedWriter(kafka, 1)
    fit = Fit(policy=parse("key-only"), piece=0, feed="f", topic="t")
    with feed.transaction():
        feed.row(0, layout("w", ("id", "int"), ("a", "text")), 1, None, (1, "x" * 2_000), fit=fit)
        feed.resolved(1)
    with pytest.raises(Terminal, match="has the key of a row alone"):
        lakes.fill(feed.address(), lake)
