"""Puts the rows of a transaction together until its end shows what becomes of them.

What must stay true: a group is handed on when its last event is read, or in parts when it is large; rows that were
rolled back inside it are taken out, or, where they have been handed on, `keep` of a later part says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from vreplication.binlog.control import Gtid
from vreplication.binlog.events import Extent, Group, GroupKind, Position
from vreplication.binlog.rows import Add
from vreplication.errors import SourceChanged

_ROW_BYTES = 300
"""What a row costs in memory besides its text."""
_TEXT_FACTOR = 2
"""Bytes of text for a byte of the log (uncompressed), at most: hexadecimal."""


class OpenGroup:
    """The transaction that is being read."""

    __slots__ = (
        "handed",
        "has_begun",
        "is_others",
        "is_padding",
        "is_split",
        "is_tentative",
        "items",
        "keep",
        "log_bytes",
        "name",
        "nbytes",
        "part_bytes",
        "savepoints",
        "start",
        "time_micros",
        "xid",
    )

    def __init__(self, start: Position, gtid: Gtid, *, has_begun: bool, part_bytes: int) -> None:
        self.start = start
        self.time_micros = gtid.time_micros
        self.name = gtid.name
        self.log_bytes = gtid.nbytes
        self.xid = gtid.xid
        self.is_tentative = gtid.is_tentative
        self.has_begun = has_begun
        self.part_bytes = part_bytes
        self.items: list[Any] = []
        self.nbytes = 0
        self.handed = 0
        self.is_split = self.is_others = self.is_padding = False
        self.keep: int | None = None
        self.savepoints: dict[str, int] = {}

    def add_rows(self, decode: Callable[[int, bytes, Add], int], kind: int, body: bytes) -> None:
        """Take the items that `decode` gives from a row event; none of them where it raises.

        decode: returns how many bytes of the log they were made of, uncompressed.
        """
        items = self.items
        before = len(items)
        try:
            nbytes = decode(kind, body, items.append)
        except BaseException:
            # The event may be left out for one follower and the transaction go on for the others: none of its rows may
            # stay behind.
            del items[before:]
            raise
        self.nbytes += _TEXT_FACTOR * nbytes + _ROW_BYTES * (len(items) - before)

    def is_large(self) -> bool:
        return self.nbytes > self.part_bytes

    def part(self, at: Position) -> Group:
        """What has come so far, up to `at`. A restart begins at the group's start, so that is the part's end too."""
        self.is_split = True
        read = Extent(at.offset - self.start.offset, self.log_bytes)
        return replace(self._group(GroupKind.COMMIT, self.start, is_last=False), read=read)

    def finished(self, kind: GroupKind, end: Position) -> Group:
        return self._group(kind, end, is_last=True)

    def unfinished(self) -> Group:
        """Nothing more will come of it."""
        return self._group(GroupKind.UNFINISHED, self.start, is_last=True)

    def _group(self, kind: GroupKind, end: Position, *, is_last: bool) -> Group:
        group = Group(
            kind=kind,
            start=self.start,
            end=end,
            time_micros=self.time_micros,
            items=self.items,
            nbytes=self.nbytes,
            xid=None if kind is GroupKind.COMMIT else self.xid,
            is_last=is_last,
            keep=self.keep,
            is_others=self.is_others,
            gtid=self.name,
        )
        self.handed += len(self.items)
        self.items, self.nbytes, self.keep = [], 0, None
        return group

    def set_savepoint(self, name: str) -> None:
        """A name that is set again counts from its new place."""
        # Servers take a savepoint's name for the same in either case.
        self.savepoints[name.lower()] = self.handed + len(self.items)

    def roll_back_to(self, name: str) -> None:
        place = self.savepoints.get(name.lower())
        # By a guess rows that were rolled back might be applied, or others be lost.
        if place is None:
            raise SourceChanged(f"A transaction goes back to savepoint {name!r}, which the log does not show.")
        if len(self.savepoints) > 1 and not all(known.isascii() for known in self.savepoints):
            # To the server `e` and `é` are one name, and the later of them counts.
            raise SourceChanged(f"A transaction goes back to savepoint {name!r}, which may be one of several.")
        self._cut(place)

    def roll_back(self) -> None:
        self._cut(0)

    def _cut(self, place: int) -> None:
        """Take out all items from `place` on, counted from the beginning of the transaction."""
        if place < self.handed:
            self.keep = place
            self.handed = place
            self.items = []
        else:
            del self.items[place - self.handed :]
        # What the remaining rows weigh is not known. To count too much only makes a part smaller.
        if not self.items:
            self.nbytes = 0
