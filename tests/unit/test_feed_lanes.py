"""Topics of tables without a broker: their names, which get Resolved, and what the progress says of them."""

from __future__ import annotations

import json
import math
import time
from base64 import b64encode
from hashlib import sha256
from itertools import pairwise

import pytest

from vreplication.errors import Refused
from vreplication.feed import broker
from vreplication.feed.lanes import EVERYTHING, QUIET_SECONDS, Sent, check_names, lanes_of, topic_name
from vreplication.feed.messages import Kind, Place, Tags
from vreplication.feed.progress import End, Progress, TableTopic, decode
from vreplication.feed.topics import unfit
from vreplication.workflows.changefeed.spec import make_feed_spec


def progress(tables: int = 3, *, partitions: int = 2) -> Progress:
    ids = [b64encode(sha256(b"%d" % n).digest()[:16]).decode() for n in range(tables)]
    topics = [TableTopic("s", f"t{n}", id, 1, 5, (7, 3) * partitions) for n, id in enumerate(ids)]
    return Progress(
        feed="f", sources=(), topic="p", topic_id="x", partitions=partitions, generation=4, topics=tuple(topics)
    )


def test_names_are_as_debezium_gives_them() -> None:
    assert topic_name("p", "shop", "a$b c-ä.d") == "p.shop.a_b_c-_.d"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([("s", "a$b"), ("s", "a#b")], "Tables s.a$b and s.a#b would have one topic"),
        # Kafka makes no topic beside another that differs by dot and underscore only.
        ([("s_a", "b"), ("s", "a_b")], "Tables s_a.b and s.a_b would have one topic"),
        ([("s" * 64, "t" * 64)], "more than 249"),
        ([("s", "t"), ("S", "t"), ("s", "u")], ""),
    ],
)
def test_tables_that_cannot_have_a_topic_each_are_told(tables: list[tuple[str, str]], said: str) -> None:
    assert said in check_names("p" * 150, tables)
    assert bool(said) == bool(unfit("p" * 150, tables, 1))


def test_too_many_partitions_are_told() -> None:
    assert not unfit("p", [("s", f"t{n}") for n in range(99)], 100)
    assert "more than 10,000 partitions" in unfit("p", [("s", f"t{n}") for n in range(100)], 100)


def test_partitions_are_made_in_requests_that_the_controller_takes() -> None:
    """Kafka refuses one that makes more than about 10,000 records."""
    have, requests = {"p": 0, "q": 9_999, "more": 10_001, **{f"t{n}": 9_999 for n in range(700)}}, []
    while some := broker._steps(have, 10_000):
        requests.append(sum(count - have[name] for name, count in some.items()))
        assert len(some) <= 500
        have |= some
    assert set(have.values()) == {10_000, 10_001}
    assert max(requests) <= 2_000
    assert sum(requests) == 10_000 + 701


def test_a_request_that_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match="does not go with --dispatch conflict"):
        make_feed_spec(sink="kafka://h:1/t", topic_per_table=True, dispatch="conflict")


def test_progress_of_many_topics_is_short_and_is_read_again() -> None:
    """A record of more than about 1 MB is refused by the broker."""
    found = progress(5_000)
    assert decode(found.encoded()) == found
    assert len(found.encoded()) < 400_000


def test_progress_of_the_version_before_is_read() -> None:
    old = json.loads(Progress(feed="f", sources=(), topic="p", topic_id="x", partitions=1, ends=(End(),)).encoded())
    del old["topics"]
    found = decode(json.dumps({**old, "version": 2}).encode())
    assert (found.topics, found.ends) == ((), (End(),))
    assert [lane.name for lane in lanes_of(found, is_each=False)] == ["p"]


def test_each_topic_counts_generations_from_its_own_beginning() -> None:
    lanes = lanes_of(progress(1), is_each=True)
    assert [(lane.generation, lane.sent.ends) for lane in lanes] == [(4, []), (3, [End(offset=7, n=3)] * 2)]
    assert lanes.recorded(EVERYTHING) == progress(1).topics


def test_resolved_goes_where_something_went_and_to_the_others_in_turn() -> None:
    lanes = lanes_of(progress(100), is_each=True)
    now = time.monotonic()
    assert len(lanes.resolvable(now)) == 101
    for lane in lanes:
        lane.resolved, lane.resolved_at = 10, now
    lanes.spread(now)
    lanes.of_row("s", "t1").last = 11
    found = {lane.name for lane in lanes.resolvable(now)}
    assert {"p", "p.s.t1"} <= found
    each = [len(lanes.resolvable(now + second)) for second in range(math.ceil(QUIET_SECONDS) + 1)]
    assert max(later - before for before, later in pairwise(each)) <= 12
    assert each[-1] == 101


def test_ddl_goes_to_the_topics_of_its_tables_and_to_the_one_of_all() -> None:
    lanes = lanes_of(progress(3), is_each=True)

    def of(*tables: tuple[str, str]) -> list[str]:
        return [lane.name for lane in lanes.of_ddl(tables)]

    assert of(("s", "t1")) == ["p", "p.s.t1"]
    assert of(("s", "t1"), ("s", "gone"), ("s", "t2")) == ["p", "p.s.t1", "p.s.t2"]
    assert of(("s", "")) == of() == ["p", "p.s.t0", "p.s.t1", "p.s.t2"]
    assert of(("other", "")) == ["p"]


def test_what_was_sent_ahead_counts_as_found_and_its_end_is_kept_until_its_turn_comes() -> None:
    sent = Sent([End(offset=1, n=1), End(offset=2, n=2)])
    sent.go_ahead(1, Place(7, 3))
    sent.ends = [End(offset=5, n=4), End(offset=9, n=8)]
    assert sent.told(Place(7, 2)) == (End(offset=5, n=4), End(offset=2, n=2))
    assert sent.latest == Place(7, 3)
    assert [sent.is_before_cut(1, Place(7, seq)) for seq in (3, 4)] == [True, False]
    assert not sent.is_before_cut(0, Place(7, 3))
    assert sent.told(Place(7, 3)) == (End(offset=5, n=4), End(offset=9, n=8))
    assert not sent.is_kept


def test_what_was_found_stays_found_when_less_of_it_is_sent_ahead_once_more() -> None:
    """A run was ahead, and died; the next one comes to the giant transaction's end before it is as far ahead again."""
    sent = Sent([End(offset=1, n=1), End(offset=2, n=2)])
    for n, t in enumerate((7, 8, 9), 3):
        sent.take(1, n, Tags(kind=Kind.ROW, t=t, seq=0, n=n, generation=1))
    sent.go_ahead(1, Place(7, 0))
    assert sent.latest == Place(9, 0)
    assert sent.told(Place(8, 0))[1] == End(offset=2, n=2)
    assert [sent.rows(1, Place(t, 0)) for t in (8, 9)] == [1, 1]
    assert sent.told(Place(9, 0))[1] == End(offset=5, n=5)


def test_of_a_partition_with_more_behind_the_progress_the_end_is_kept() -> None:
    """That of another one is not, or a start would read all of a giant transaction that others were ahead of."""
    sent = Sent([End(offset=1, n=1), End(offset=2, n=2)])
    sent.take(1, 3, Tags(kind=Kind.ROW, t=9, seq=0, n=3, generation=1))
    sent.ends[0] = End(offset=8, n=6)
    assert sent.told(Place(8, 0)) == (End(offset=8, n=6), End(offset=2, n=2))
    assert sent.told(Place(9, 0)) == (End(offset=8, n=6), End(offset=3, n=3))
