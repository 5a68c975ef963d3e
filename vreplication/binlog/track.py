"""Follows where in the log we are: file, offset by our own count, and the transactions that have been read.

What must stay true: a place says whose file it is only where that file's first event has been read, a second has passed
since (a file that a RESET begins anew is told apart by that second), and the offset is by the server's own words;
headers tell the end of an event as four bytes, so beyond 4 GiB only the count here is right; a
transaction counts as read when its group has ended, not before; where the log names its transactions, those names say
where a restart begins, and file and offset only where they were seen.
"""

from __future__ import annotations

from dataclasses import replace

from vreplication.binlog import gtids, origin
from vreplication.binlog.events import Origin, Position
from vreplication.binlog.framing import ARTIFICIAL, Event, Type
from vreplication.errors import SourceChanged

MAX_OFFSET = (1 << 32) - 1
"""The last place that a dump by file and offset can be asked for, and that a header can tell."""
_FILE_START = 4
_MAX_GAP = 1 << 31
"""Servers leave out events that nobody asked for; more than this in one piece is a step back."""
_NOT_IN_FILE = (Type.HEARTBEAT, Type.HEARTBEAT_V2)


class Track:
    """The place behind the last event, from `start` on.

    server: the identity of who sends. is_proven: False where the dump begins by file and offset, until the first
    transaction is seen to be the one behind `start`.
    """

    def __init__(self, start: Position, *, server: str = "", is_proven: bool = True) -> None:
        self.is_proven = is_proven
        self._server = server
        self._origin: Origin | None = None
        self._young: Origin | None = None
        """The same, of a file from whose first second nothing else has been read yet."""
        self._start = self._file = start
        self._offset = self._event_start = start.offset
        self._gtids = start.gtids
        self._has_place = True
        self._last: Position | None = None
        """The one that was asked for last."""
        self._is_early = start.gtids is None and start.offset > MAX_OFFSET

    def __str__(self) -> str:
        return f"{self._file.file}:{self._event_start}"

    @property
    def at(self) -> Position:
        """Just behind the last event that has been read."""
        return self._position(self._offset)

    @property
    def event_start(self) -> Position:
        return self._position(self._event_start)

    def _position(self, offset: int) -> Position:
        file, origin, last = self._file, self._origin if self._has_place else None, self._last
        # A transaction begins where the one before it has ended, so of two places one is made.
        if last is not None and last.offset == offset and last.gtids is self._gtids and last.origin is origin:
            return last
        self._last = found = Position(
            number=file.number,
            offset=offset,
            stem=file.stem,
            digits=file.digits,
            gtids=self._gtids,
            origin=origin,
        )
        return found

    def move(self, event: Event) -> bool:
        """Follow one event. False: it stands before the place to begin at and says nothing to us."""
        end = self._offset + event.size
        if event.end == end and not self._is_early and not event.flags & ARTIFICIAL:
            # Nearly always.
            self._event_start, self._offset, self._has_place = self._offset, end, True
            return True
        return self._move_far(event)

    def _move_far(self, event: Event) -> bool:
        if event.flags & ARTIFICIAL or event.type in _NOT_IN_FILE or self._is_of_beginning(event):
            return True
        # An event that ends at 4 GiB exactly tells 0, as one does that tells nothing.
        if event.end or not _low(self._offset + event.size):
            self._has_place = True
            self._event_start, self._offset = self._span(event)
        else:
            # MariaDB from 11.4 on tells no place within a transaction (binlog_legacy_event_pos=OFF): our count goes on.
            self._has_place = False
            self._event_start, self._offset = self._offset, self._offset + event.size
        return not self._is_early or self._has_come(event)

    def _is_of_beginning(self, event: Event) -> bool:
        """The description of a file that is read from its middle: it is sent first, and does not stand here."""
        return event.type == Type.FORMAT_DESCRIPTION and (not event.end or self._offset > _FILE_START)

    def _span(self, event: Event) -> tuple[int, int]:
        """Begin and end. The header tells the low four bytes of the end."""
        least = self._offset + event.size
        gap = _low(event.end - least)
        if gap > _MAX_GAP and self._gtids is None:
            raise SourceChanged(
                f"The binary log goes back to place {event.end} from {self.at}.",
                cure="Cancel this workflow and start again; report it if it happens again.",
            )
        return least + gap - event.size, least + gap

    def _has_come(self, event: Event) -> bool:
        """A dump can begin at 4 GiB at most: then it begins with the file, and what is before our place is left out."""
        self._is_early = self._offset <= self._start.offset
        # In the middle of an event: the file is another one, or was cut and has grown again.
        if self._offset > self._start.offset > self._event_start:
            raise SourceChanged(f"No event of the binary log begins at {self._start}.")
        return not self._is_early or event.type in (Type.FORMAT_DESCRIPTION, Type.ROTATE)

    def rotate(self, to: Position) -> None:
        """The log goes on there."""
        if self._is_early and to.number != self._start.number:
            raise SourceChanged(f"The binary log file {self._start.file} ends before {self._start}.")
        self._file, self._origin, self._young, self._last = to, None, None, None
        self._offset = self._event_start = to.offset

    def begun(self, event: Event) -> None:
        """The first event of a file that a server writes by itself. Raises LogReplaced."""
        found = Origin(self._server, event.timestamp, event.server_id)
        # Only of the file that the dump was asked to begin in is it known what it has to be.
        if not self.is_proven and self._file.number == self._start.number:
            origin.check(self._start, found)
            self._origin = found
        else:
            # Not counted yet: a RESET within the same second makes a file of the same name and the same beginning.
            self._young = found if self._server else None

    def idle(self, told: Position, *, is_whole: bool) -> Position:
        """The source has nothing newer. `is_whole`: the offset is told in full and not by its low four bytes."""
        is_here = told.number == self._file.number
        if is_here and not is_whole:
            ahead = _low(told.offset - self._offset)
            told = replace(told, offset=self._offset + (ahead if ahead <= _MAX_GAP else 0))
        if told > self.at:
            # Of the file that the heartbeat names the first event was not seen, so nobody knows whose it is.
            if not is_here:
                self._origin = self._young = None
            self._file, self._offset, self._last = told, told.offset, None
        return self.at

    def require_place(self) -> None:
        """Groups begin and end at places that a restart can find."""
        if not self._has_place and self._gtids is None:
            raise SourceChanged(
                "The binary log does not tell where its transactions end.",
                cure="Set binlog_legacy_event_pos=ON on the server, and start the workflow again.",
            )

    def opens(self, name: gtids.Name | None, timestamp: int) -> None:
        """A transaction of this name begins. Raises Doubt when it is not the first one behind the start."""
        # A RESET from now on begins a file that tells a later second.
        if self._young and timestamp > self._young.born:
            self._origin, self._young = self._young, None
        if not self.is_proven:
            if self._gtids is None or not gtids.follows(name, self._gtids):
                raise origin.Doubt(f"What stands at {self} of the binary log is not what follows {self._gtids}.")
            self.is_proven = True

    def has_read(self, name: gtids.Name | None) -> None:
        """The transaction of this name has ended."""
        # At the group's end: a restart in the middle of it must be sent the whole of it.
        self._gtids = gtids.plus(self._gtids, name)


def _low(number: int) -> int:
    return number & MAX_OFFSET
