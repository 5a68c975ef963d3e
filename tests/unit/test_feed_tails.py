"""What stands in a topic behind the progress is what the feed has sent, or the feed stops: no gap, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import Terminal
from vreplication.feed.lanes import Lanes, lanes_of
from vreplication.feed.messages import Kind, Place, headers
from vreplication.feed.progress import End, Progress
from vreplication.feed.topics import find_tails

RECORDED = End(offset=10, n=5)
"""Its Resolved is at 10, the mark of its transaction at 11."""
_Partition = tuple[str, int]


def resolved(offset: int, n: int) -> Any:
    return message(offset, n, Kind.RESOLVED, Place(100 + n, 0))


def row(offset: int, n: int, generation: int = 2) -> Any:
    return message(offset, n, Kind.ROW, Place(100 + n, 0), generation)


def message(offset: int, n: int, kind: Kind, place: Place, generation: int = 2) -> Any:
    said = headers(kind, place, n, generation)
    return SimpleNamespace(offset=lambda: offset, partition=lambda: 0, topic=lambda: "t", headers=lambda: said)


class Holding:
    """A broker with one partition. low, high: its first offset, and the one behind the last."""

    def __init__(self, messages: Sequence[Any], low: int, high: int, *, is_compacted: bool) -> None:
        self._messages, self._bounds, self._is_compacted = messages, (low, high), is_compacted

    def bounds_of(self, wanted: Iterable[_Partition], *, is_committed: bool = True) -> dict[_Partition, Any]:
        return {each: self._bounds for each in wanted}

    def behind_each(self, starts: Mapping[_Partition, int]) -> Iterator[Any]:
        return (each for each in self._messages for start in starts.values() if each.offset() >= start)

    def find(self, name: str) -> Any:
        return SimpleNamespace(name=name, is_compacted=self._is_compacted)


def look(messages: Sequence[Any], low: int = 0, *, is_compacted: bool = False, intent: int | None = None) -> Lanes:
    fields: dict[str, Any] = {"feed": "f", "sources": (), "topic": "t", "topic_id": "x", "partitions": 1}
    progress = Progress(**fields, generation=2, ends=(RECORDED,), intent=intent)
    lanes = lanes_of(progress, is_each=False)
    high = max([12, low, *(each.offset() + 2 for each in messages)])
    broker: Any = Holding(messages, low, high, is_compacted=is_compacted)
    find_tails(broker, lanes, is_scaling=intent is not None)
    return lanes


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([resolved(10, 5), row(12, 7)], "Messages of partition 0 of t are missing: behind number 5 comes 7"),
        ([resolved(10, 5), row(12, 6), resolved(13, 5)], "Partition 0 of t holds number 5 behind 6"),
        ([resolved(10, 5), row(12, 5)], "Partition 0 of t holds number 5 behind 5"),
        ([resolved(10, 4)], "Partition 0 of t does not hold what the feed has written last"),
        ([row(12, 6)], "Partition 0 of t does not hold what the feed has written last"),
        ([], "Partition 0 of t does not hold what the feed has written last"),
        ([resolved(10, 5), row(12, 6, 3)], "Partition 0 of t is of generation 3, and the feed's progress of 2"),
    ],
)
def test_a_topic_that_lost_or_got_messages_stops_the_feed(messages: Sequence[Any], said: str) -> None:
    with pytest.raises(Terminal, match=said):
        look(messages)


def test_what_retention_or_compaction_has_taken_is_not_missed() -> None:
    assert look([], low=12).main.sent.ends == [RECORDED]
    (end,) = look([row(20, 9), row(21, 10)], low=20).main.sent.ends
    assert end == End(offset=21, n=10)
    with pytest.raises(Terminal, match="behind number 9 comes 11"):
        look([row(20, 9), row(21, 11)], low=20)
    for messages in ([], [row(13, 7), row(15, 9)]):
        look(messages, is_compacted=True)


def test_a_generation_that_is_being_begun_may_stand_there() -> None:
    begun = message(12, 6, Kind.ADMIN, Place(105, 0), 3)
    look([resolved(10, 5), begun], intent=4)
    with pytest.raises(Terminal, match="generation 3"):
        look([resolved(10, 5), begun])
