"""A lake made of a real Kafka's topic, message by message: what its readers see, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lake_setup import T, lake, layout, pairs, read

from sandbox.kafka import Cluster
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from tests.support.lakes import LakeServer
from vreplication.errors import Refused, Terminal
from vreplication.feed.lake.manifest import Store
from vreplication.feed.messages import Encoded

__all__ = ["lake"]

pytestmark = [pytest.mark.spark, pytest.mark.either]


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


def test_compaction_changes_no_state(kafka: Cluster, lakes: LakeServer, lake: Path) -> None:
    """Files are merged, then history is folded; old files stay for those who read, as long as they are kept.

    Of `bare`, which has no key, a row was there before the feed: it goes, and later one like it comes.
    """
    feed = FeedWriter(kafka, 1)
    gone, bare = replace(T, table="gone"), layout("bare", ("id", "int"), ("a", "int"), key=())
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
                feed.row(0, bare, 14, (9, 9), None)
            if at == 6:
                feed.row(0, bare, 62, None, (9, 9))
            feed.resolved(at * 10 + 5)
        lakes.fill(feed.address(), lake)
    times = [10, 11, 20, 21, 41, 42, 55, 65]
    before = {t: read(lakes, lake, at=t) for t in times}
    old = Store(lake).open()
    done = lakes.compact(lake)
    assert (done["files_before"], done["files_after"]) == (9, 3)
    assert {t: read(lakes, lake, at=t) for t in times} == before
    assert read(lakes, lake, table="shop.gone", at=12) == [(1, 1)]
    assert [read(lakes, lake, table="shop.bare", at=t) for t in (42, 65)] == [[], [(9, 9)]]
    assert all((lake / path).exists() for path in old.paths())
    with pytest.raises(Refused, match="not yet to"):
        lakes.compact(lake, fold_before=10_000)
    done = lakes.compact(lake, fold_before=42)
    assert done["horizon"] == 42
    assert {t: read(lakes, lake, at=t) for t in times[5:]} == {t: before[t] for t in times[5:]}
    assert [read(lakes, lake, table="shop.bare", at=t) for t in (42, 65)] == [[], [(9, 9)]]
    with pytest.raises(Refused, match=r"folded: what was before .* can no longer be told"):
        lakes.rows(lake, "shop.t", 41)
    assert "gone" not in {each.name for each in Store(lake).open().names}
    with feed.transaction():
        feed.row(0, T, 70, (6, 6), (6, 7))
        feed.resolved(70)
    lakes.fill(feed.address(), lake)
    assert len(lakes.changes(lake, "shop.t")) < 3 + 6
    done = lakes.compact(lake, keep_seconds=0)
    assert done["removed"] == 11
    assert not any((lake / path).exists() for path in old.paths())
    lakes.compact(lake, keep_seconds=0)
    named = Store(lake).open().paths()
    assert {str(path.relative_to(lake)) for path in lake.glob("tables/*/*.parquet")} == named
    assert read(lakes, lake) == [*before[65][:-1], (6, 7)]
