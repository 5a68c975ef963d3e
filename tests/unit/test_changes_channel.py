"""The queue between reader and applier, in memory and on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.changes import gone, put
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes import channel as module
from vreplication.changes.channel import Channel, Closed
from vreplication.changes.sorter import DiskSorter
from vreplication.mysql.server import Xid


def group(number: int) -> Group:
    items = [
        gone(str(number)) if number % 3 == 0 else put(str(number), f"{number},'ü'", str(number - number % 2)),
        RowChange(table=-2, before=None, after={"beat": number, "raw": b"\xff", "none": None}),
    ]
    place = Position.of("binlog.000001", number)
    return Group(
        kind=GroupKind.XA_PREPARE if number % 2 else GroupKind.COMMIT,
        start=place,
        end=place,
        time_micros=number,
        items=items,
        nbytes=10,
        xid=Xid(1, b"\x00", b"\xff") if number % 2 else None,
        is_last=number % 5 != 0,
        keep=number if number % 7 == 0 else None,
    )


@pytest.fixture
def sorter(tmp_path: Path) -> Iterator[DiskSorter]:
    made = DiskSorter(tmp_path)
    yield made
    made.remove()


def test_an_error_comes_behind_what_was_read_before_it() -> None:
    channel = Channel()
    channel.put(group(1), 1)
    channel.fail(RuntimeError("gone"))
    assert channel.take(0) == [group(1)]
    with pytest.raises(RuntimeError, match="gone"):
        channel.take(0)


def test_an_item_larger_than_the_budget_passes_alone() -> None:
    channel = Channel(budget_bytes=10)
    channel.put(group(1), 100)
    assert channel.take(0) == [group(1)]


def test_without_a_disk_the_reader_waits_for_room_and_learns_of_the_end() -> None:
    channel = Channel(budget_bytes=10)
    channel.put(group(1), 10)
    ended = threading.Event()

    def put_more() -> None:
        with pytest.raises(Closed):
            channel.put(group(2), 10)
        ended.set()

    thread = threading.Thread(target=put_more)
    thread.start()
    channel.close()
    thread.join(5)
    assert ended.is_set()


def test_past_the_budget_it_goes_on_disk_and_past_that_the_reader_waits(sorter: DiskSorter) -> None:
    channel = Channel(budget_bytes=1 << 20, sorter=sorter, disk_bytes=10 << 20)
    for number in range(11):
        channel.put(group(number), 1 << 20)
    assert channel.disk_bytes >= 8 << 20
    channel.put(group(11), 2 << 20)
    waited = threading.Event()

    def put_more() -> None:
        channel.put(group(12), 1)
        waited.set()

    thread = threading.Thread(target=put_more)
    thread.start()
    assert not waited.is_set()
    taken: list[Group] = []
    while len(taken) < 13:
        taken += channel.take(1.0)
    thread.join(5)
    assert waited.is_set()
    assert taken == [group(n) for n in range(13)]


@settings(max_examples=50, deadline=None)
@given(acts=st.lists(st.one_of(st.integers(1, 1 << 20), st.none()), max_size=60))
def test_groups_leave_in_the_order_in_which_they_came(
    tmp_path_factory: pytest.TempPathFactory, acts: list[int]
) -> None:
    """Numbers are sizes to put, None takes."""
    sorter = DiskSorter(tmp_path_factory.mktemp("spool"))
    channel, put, taken = Channel(budget_bytes=1 << 18, sorter=sorter), 0, list[Group]()
    module_block = module._BLOCK_BYTES
    try:
        module._BLOCK_BYTES = 1 << 19
        for act in acts:
            if act is None:
                taken += channel.take(0)
            else:
                channel.put(group(put), act)
                put += 1
        while len(taken) < put:
            taken += channel.take(0)
    finally:
        module._BLOCK_BYTES = module_block
        sorter.remove()
    assert taken == [group(n) for n in range(put)]
