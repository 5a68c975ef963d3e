"""Puts the rows of a transaction together until its end shows what becomes of them.

What must stay true: a group is handed on when its last event is read, or in parts when it is large; rows that were
rolled back inside it are taken out, and where parts have already been handed on that ends the workflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vreplication.binlog.events import Group, GroupKind, Position, Xid
from vreplication.errors import SourceChanged

_ROW_BYTES = 200
"""What a row costs in memory besides its text."""
_TEXT_FACTOR = 2
"""Bytes of text for a byte of the log, at most: hexadecimal."""
_SPLIT_CURE = "Cancel the workflow and start it again when such transactions are done."


class OpenGroup:
    """The transaction that is being read."""

    __slots__ = ("has_begun", "is_split", "items", "nbytes", "part_bytes", "savepoints", "start", "time_micros", "xid")

    def __init__(self, start: Position, time_micros: int, xid: Xid | None, *, has_begun: bool, part_bytes: int) -> None:
        self.start = start
        self.time_micros = time_micros
        self.xid = xid
        self.has_begun = has_begun
        self.part_bytes = part_bytes
        self.items: list[Any] = []
        self.nbytes = 0
        self.is_split = False
        self.savepoints: dict[str, int] = {}

    def add_rows(self, decode: Callable[[Callable[[Any], None]], None], nbytes: int) -> None:
        """Take the items that `decode` gives from a row event of `nbytes`."""
        before = len(self.items)
        decode(self.items.append)
        self.nbytes += _TEXT_FACTOR * nbytes + _ROW_BYTES * (len(self.items) - before)

    def is_large(self) -> bool:
        return self.nbytes > self.part_bytes

    def part(self) -> Group:
        """What has come so far. A restart begins at the group's start, so that is the part's end too."""
        self.is_split = True
        self.savepoints = dict.fromkeys(self.savepoints, -1)
        return self._group(self._kind(), self.start, is_last=False)

    def finished(self, kind: GroupKind, end: Position) -> Group:
        return self._group(kind, end, is_last=True)

    def _kind(self) -> GroupKind:
        return GroupKind.XA_PREPARE if self.xid else GroupKind.COMMIT

    def _group(self, kind: GroupKind, end: Position, *, is_last: bool) -> Group:
        items, nbytes = self.items, self.nbytes
        self.items, self.nbytes = [], 0
        return Group(
            kind=kind,
            start=self.start,
            end=end,
            time_micros=self.time_micros,
            items=items,
            nbytes=nbytes,
            xid=None if kind is GroupKind.COMMIT else self.xid,
            is_last=is_last,
        )

    def set_savepoint(self, name: str) -> None:
        """A name that is set again counts from its new place. (`part` marks those whose place is gone.)"""
        self.savepoints[name.lower()] = len(self.items)

    def roll_back_to(self, name: str) -> None:
        place = self.savepoints.get(name.lower())
        if place is None:
            raise SourceChanged(f"A transaction goes back to savepoint {name!r}, which the log does not show.")
        if place < 0:
            raise SourceChanged(
                "A large transaction was rolled back in part after its rows were read.", cure=_SPLIT_CURE
            )
        del self.items[place:]

    def roll_back(self) -> None:
        if self.is_split:
            raise SourceChanged("A large transaction was rolled back after its rows were read.", cure=_SPLIT_CURE)
        self.items, self.nbytes = [], 0
