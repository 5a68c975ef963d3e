"""What the shared reader of the log keeps in memory for a follower whose own dump is not level yet."""

from __future__ import annotations

from typing import Any

from vreplication.binlog.events import Group, GroupKind, Position
from vreplication.binlog.watch import Following
from vreplication.changes.router import View
from vreplication.engine import reading
from vreplication.engine.reading import SharedReader
from vreplication.errors import Transient

PLACE = Position.of("binlog.000001", 4)
MIB = 1 << 20


class Sink:
    """What came to it; it has room for all."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.error: BaseException | None = None

    def put(self, group: Group) -> None:
        self.nbytes += group.nbytes

    def has_room(self, nbytes: int) -> bool:
        return True

    def fail(self, error: BaseException) -> None:
        self.error = error


class Tailer:
    def leave(self, name: str) -> None:
        """No table is followed by it."""


def test_the_only_follower_keeps_no_more_than_any_other() -> None:
    """Its own dump waits for what is being applied; the log was read on without it, all of it into memory."""
    sink, reader = Sink(), SharedReader()
    tailer: Any = Tailer()
    gathering = reading._Gathering(sink)
    following = Following(name="t", watches=())
    reader._tailer = tailer
    reader._followers["t"] = reading._Follower(
        following=following, view=View("t", frozenset()), sink=gathering, not_before=PLACE
    )
    group = Group(kind=GroupKind.COMMIT, start=PLACE, end=PLACE, time_micros=1, items=[], nbytes=MIB)
    for _ in range(3 * reading._KEPT_BYTES // MIB):
        reader._hand_on(tailer, group, reading._Turn())
    gathering.open()
    assert sink.nbytes <= reading._KEPT_BYTES + MIB
    # It comes again by a dump of its own, behind all that was kept.
    assert isinstance(sink.error, Transient)
