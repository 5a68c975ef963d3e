"""What the reading thread tells of how far it has come, and what memory catch-up keeps."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

from tests.support.changes import put
from vreplication.binlog.events import Extent, Group, GroupKind, Position
from vreplication.changes.channel import Channel
from vreplication.changes.sorter import DiskSorter
from vreplication.changes.watermark import Watermark
from vreplication.engine import replicate
from vreplication.engine.catch_up import _note_read, _Run

PLACE = Position.of("binlog.000001", 4)


def part(micros: int, *, is_last: bool) -> Group:
    read = None if is_last else Extent(done=1, total=3)
    return Group(
        kind=GroupKind.COMMIT, start=PLACE, end=PLACE, time_micros=micros, items=[put("1", "1")], nbytes=10,
        is_last=is_last, read=read,
    )  # fmt: skip


def test_a_giant_transaction_is_received_with_its_last_part(tmp_path: Path) -> None:
    """Everything before it is received with its first one; all parts are in the backlog at once."""
    sorter = DiskSorter(tmp_path)
    run = _Run(stop=threading.Event(), watermark=Watermark(), sorter=sorter, channel=Channel())
    seen = []
    for group in (
        part(10, is_last=True), part(50, is_last=False), part(50, is_last=False), part(50, is_last=True)
    ):  # fmt: skip
        _note_read(group, run)
        reading = run.watermark.reading(1_000)
        seen.append((reading.received_micros, reading.backlog, reading.unread))
    unread = Extent(done=1, total=3)
    assert seen == [(10, 1, None), (49, 2, unread), (49, 3, unread), (50, 4, None)]
    sorter.remove()


class _Round:
    """One that was cut off: a cycle, as errors and frames make one."""

    def __init__(self) -> None:
        self.me = self


def test_the_memory_of_a_round_that_was_cut_off_comes_back() -> None:
    """Also where another table's catch-up begins in this process before it is collected."""
    before = gc.get_threshold()
    with replicate.collecting_rarely():
        cut_off = _Round()
        gone = weakref.ref(cut_off)
        with replicate.collecting_rarely():
            del cut_off
            gc.collect()
            # What pytest has loaded is frozen already (conftest.py), as what a process has that follows several.
            assert gone() is None
    assert gc.get_threshold() == before
