"""A transaction of which a part was sent is read again from a promoted replica, whose log has other times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.errors import SourceChanged
from vreplication.feed.progress import Followed
from vreplication.feed.reading import Reading, Source

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def group(number: int, micros: int, rows: int) -> Group:
    at = Position.of("binlog.000001", number * 100)
    items = [RowChange(1, None, (n,)) for n in range(rows)]
    return Group(
        kind=GroupKind.COMMIT, start=at, end=at, time_micros=micros, items=items, nbytes=1, gtid=(UUID, number)
    )


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    """Of the second of three sources; of transaction 7 rows 0 to 2 were sent, at 1000."""
    anything: Any = None
    source = Source(
        number=1, count=3, tables=anything, dispatcher=anything, format=anything, open_log=anything, home=tmp_path
    )
    sent = Followed(source="s", position="binlog.000001:4", assigned=900, inside=(1000, 2), inside_of=f"{UUID}:7")
    return Reading("f", source, sent)


def test_the_rest_has_the_time_of_the_part_and_what_follows_a_later_one(reading: Reading) -> None:
    """What was logged before it, and is nothing of ours, takes no time."""
    pieces = [piece for one in (group(6, 5000, 0), group(7, 6000, 4), group(8, 10, 1)) for piece in reading._cut(one)]
    assert [(piece.t, piece.seq, len(piece.changes)) for piece in pieces] == [(900, 0, 0), (1000, 0, 4), (1003, 0, 1)]


def test_another_order_of_the_log_ends_the_feed(reading: Reading) -> None:
    with pytest.raises(SourceChanged, match=f"Of transaction {UUID}:7 a part was sent"):
        list(reading._cut(group(8, 5000, 1)))
