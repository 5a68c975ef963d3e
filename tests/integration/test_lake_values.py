"""Values in a lake: in parts, in files, and those that do not fit a column, which becomes wider."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from lake_setup import lake, layout, read

from sandbox.kafka import Cluster
from tests.support.feed_producer import FeedWriter
from tests.support.lakes import LakeServer
from vreplication.errors import Terminal
from vreplication.feed.lake.manifest import Store
from vreplication.feed.lake.spark_reading import microseconds
from vreplication.feed.large import Fit, parse

__all__ = ["lake"]

pytestmark = [pytest.mark.spark, pytest.mark.either]


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


def test_a_time_of_another_type_is_the_same_wherever_it_is_read(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Also in an hour that a reader's clocks have twice, which is two keys, and before they had a time zone."""
    feed = FeedWriter(kafka, 1)
    before = layout("z", ("ts", "timestamp"), ("at", "timestamp"), ("to", "datetime"), key=("ts",))
    behind = layout("z", ("ts", "timestamp"), ("at", "datetime"), ("to", "timestamp"), key=("ts",))
    times = [f"{text}.500000" for text in ("1850-01-01 00:00:00", *TWICE, "2038-01-19 03:14:07")]
    with feed.transaction():
        for seq, text in enumerate(times):
            feed.row(0, before, 1, None, (text, text, text), seq=seq)
        feed.resolved(1)
    lakes.fill(feed.address(), lake)
    with feed.transaction():
        feed.ddl(2, "shop", "ALTER TABLE z MODIFY `at` DATETIME(6), MODIFY `to` TIMESTAMP(6)")
        feed.row(0, behind, 3, None, ("0000-00-00 00:00:00.000000", None, None))
        feed.row(0, behind, 4, (times[-1], times[-1], times[-1]), None)
        feed.resolved(4)
    lakes.fill(feed.address(), lake)
    assert types_of(lake, 1) == ["string", "timestamp_ntz", "timestamp"]
    none, *found = sorted(lakes.rows(lake, "shop.z", zone="Europe/Berlin"), key=lambda row: str(row["ts"]))
    assert none == {"ts": "0000-00-00 00:00:00", "at": None, "to": None}
    assert [row["ts"] for row in found] == [text[:-5] for text in times[:-1]]
    assert [row["at"] for row in found] == [text.replace(" ", "T") for text in times[:-1]]
    assert [microseconds(row["to"]) for row in found[1:]] == [microseconds(text) for text in times[1:-1]]


TWICE = ("2024-10-27 00:30:00", "2024-10-27 01:30:00")


def types_of(lake: Path, table: int) -> list[str]:
    return [column.type for column in Store(lake).open().tables[table].versions[-1].columns]


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
