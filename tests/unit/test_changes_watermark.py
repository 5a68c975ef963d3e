"""Watermark and channel."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.changes.channel import Channel, Closed
from vreplication.changes.watermark import Watermark


def test_lag_is_unknown_before_the_first_beat_is_applied() -> None:
    mark = Watermark()
    mark.received_beat(1_000_000)
    assert mark.reading(2_000_000).lag_seconds is None


def test_lag_counts_from_the_last_applied_beat() -> None:
    mark = Watermark()
    mark.resolved_beat(1_000_000)
    mark.received_beat(5_000_000)
    reading = mark.reading(6_500_000)
    assert (reading.lag_seconds, reading.received_micros, reading.resolved_micros) == (5.5, 5_000_000, 1_000_000)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000))))
def test_never_backwards_and_resolved_never_passes_received(steps: list[tuple[bool, int]]) -> None:
    mark, before = Watermark(), (-1, -1)
    for is_resolved, micros in steps:
        (mark.resolved_beat if is_resolved else mark.received_beat)(micros)
        reading = mark.reading(10_000)
        now = (reading.received_micros or 0, reading.resolved_micros if reading.resolved_micros is not None else -1)
        assert now[0] >= before[0]
        assert now[1] >= before[1]
        assert now[1] <= now[0]
        before = now


def test_backlog_is_what_was_read_and_not_applied() -> None:
    mark = Watermark()
    mark.received_changes(10)
    mark.applied_changes(4)
    assert mark.reading(0).backlog == 6
    mark.forget_queued()
    assert mark.reading(0).backlog == 0


def test_an_error_comes_behind_what_was_read_before_it() -> None:
    channel: Channel[int] = Channel()
    channel.put(1, 1)
    channel.fail(RuntimeError("gone"))
    assert channel.take(0) == [1]
    with pytest.raises(RuntimeError, match="gone"):
        channel.take(0)


def test_an_item_larger_than_the_budget_passes_alone() -> None:
    channel: Channel[int] = Channel(budget_bytes=10)
    channel.put(1, 100)
    assert channel.take(0) == [1]


def test_the_reader_waits_for_room_and_learns_of_the_end() -> None:
    channel: Channel[int] = Channel(budget_bytes=10)
    channel.put(1, 10)
    ended = threading.Event()

    def put_more() -> None:
        with pytest.raises(Closed):
            channel.put(2, 10)
        ended.set()

    thread = threading.Thread(target=put_more)
    thread.start()
    channel.close()
    thread.join(5)
    assert ended.is_set()
