"""How far a source was sent, as the progress tells it.

What must stay true: the place only moves behind a transaction of which all was sent; of one that was sent in part it is
known which row was the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from vreplication.feed.messages import Header, Place
from vreplication.feed.progress import Followed
from vreplication.feed.reading import Mark, Piece, Source


def changed(value: Any, fields: dict[str, Any]) -> Any:
    return msgspec.structs.replace(value, **fields)


@dataclass(slots=True)
class Sending:
    """What was sent of a source. done: the last place that an earlier run has sent; last: of the open transaction.

    of: name of that, as in `Followed.inside_of`.
    """

    source: Source
    _at: Followed
    done: Place
    last: Place | None = None
    of: str = ""
    is_open: bool = False
    _mark: Mark | None = None
    """The last one, until somebody asks where we are: few of many transactions are asked for."""

    @property
    def name(self) -> str:
        return self._at.source

    def tags(self, piece: Piece) -> tuple[Header, ...]:
        """Of each message of the transaction; of a DDL also what its session was."""
        found = ("vr-source", self._at.source.encode()), ("vr-gtid", piece.gtid.encode())
        return (*found, self.source.spoken(piece.changes[0].after)) if piece.is_ddl else found

    @property
    def assigned(self) -> int:
        return self._at.assigned if self._mark is None else self._mark.t

    @property
    def at(self) -> Followed:
        mark = self._mark
        if mark is not None:
            position = mark.position
            # The log is read again only on the way to the first place behind it.
            again = self._at.again_from if position == self._at.position else None
            fields = {"position": position, "assigned": mark.t, "again_from": again, "branches": mark.branches}
            self._at, self._mark = changed(self._at, {**fields, "filled": mark.filled}), None
        return self._at

    def take(self, piece: Piece) -> None:
        """Of a transaction. With a DDL in it its rows have several times; a chunk's rows are in no log."""
        if not self.is_open:
            self.of = piece.gtid
        if piece.is_ddl or piece.is_snapshot:
            self.of = ""
        self.is_open = True

    def end(self, mark: Mark) -> None:
        """Of a transaction."""
        self.is_open, self.last, self._mark = False, None, mark

    @property
    def is_half_sent(self) -> bool:
        """Of the transaction that comes, or is being read, an earlier run has sent rows, and this one none yet."""
        return self.done.t > self.assigned

    @property
    def inside(self) -> tuple[int, int] | None:
        """The last row that was sent of a transaction of which not all were."""
        if self.is_open and self.last is not None:
            return self.last.t, self.last.seq
        return (self.done.t, self.done.seq) if self.is_half_sent else None

    @property
    def told(self) -> Followed:
        """Where it is, for the progress."""
        is_ours = self.is_open and self.last is not None
        inside = self.inside
        of = "" if inside is None else self.of if is_ours else self._at.inside_of
        found: Followed = changed(self.at, {"inside": inside, "inside_of": of})
        return found
