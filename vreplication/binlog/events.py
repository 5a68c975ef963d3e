"""What the tailer hands on: groups of row changes in commit order, and heartbeats.

What must stay true: a group is handed on whole, or in parts, of which the last tells what becomes of them all; nothing
here knows how a log is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from vreplication.binlog.gtids import Gtids, Name, is_within
from vreplication.binlog.gtids import parse as parse_gtids
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid

_SAVED = re.compile(r"(?:([^@/]*)@(\d+)\.(\d+)/)?(.*?):(\d+)(?: (\S+))?", re.DOTALL)


class Origin(NamedTuple):
    """Which server's file a place was seen in. Its name alone may be another's, or come again after a RESET.

    server: identity of the server; born: second of the file's first event; by: the server id in that event.
    """

    server: str
    born: int
    by: int

    def __str__(self) -> str:
        return f"{self.server}@{self.born}.{self.by}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Position:
    """A place in the binary log. Ordered: files are numbered.

    gtids: everything that stands before this place, where the log names its transactions; then the same place can be
    found on any server of the history, and file and offset only tell where it was seen. Positions of different servers
    are not to be compared.
    origin: whose file it is, where that is known; with it nothing stands before this place that is not in `gtids`.
    """

    number: int
    offset: int
    stem: str = field(compare=False)
    digits: int = field(compare=False, default=6)
    gtids: Gtids | None = field(compare=False, default=None)
    origin: Origin | None = field(compare=False, default=None)

    @property
    def file(self) -> str:
        return f"{self.stem}.{self.number:0{self.digits}d}"

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @property
    def saved(self) -> str:
        """All of it as text, for `parse`. An older program takes the origin for a part of the file's name.

        So it stands only where nobody needs that name, beside GTIDs.
        """
        if not self.gtids:
            return str(self)
        return f"{self.origin}/{self} {self.gtids}" if self.origin else f"{self} {self.gtids}"

    def is_within(self, other: Position) -> bool:
        """True when everything that stands before this place stands before `other`, too."""
        # By names where there are any: on a promoted replica the same place has another file and offset.
        if self.gtids is not None and other.gtids is not None:
            return is_within(self.gtids, other.gtids)
        return self <= other

    @classmethod
    def of(cls, file: str, offset: int, gtids: Gtids | None = None) -> Position:
        stem, _, number = file.rpartition(".")
        return cls(stem=stem, number=int(number), offset=offset, digits=len(number), gtids=gtids)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError."""
        found = _SAVED.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no place in a binary log")
        server, born, by, file, offset, gtids = found.groups()
        place = cls.of(file, int(offset), parse_gtids(gtids or ""))
        return replace(place, origin=Origin(server, int(born), int(by))) if server else place


class RowChange(NamedTuple):
    """What became of one row of a watched table: INSERT (no `before`), DELETE (no `after`) or UPDATE.

    table: number of its watch. What a row is, and how much of either image it holds, the watch's codec says.
    """

    table: int
    before: Any
    after: Any


class GroupKind(Enum):
    COMMIT = "commit"
    XA_PREPARE = "xa_prepare"
    XA_COMMIT = "xa_commit"
    XA_ROLLBACK = "xa_rollback"
    UNFINISHED = "unfinished"
    """The end of a transaction is missing, because the server died while writing it: it never committed."""


class Extent(NamedTuple):
    """Bytes of the log: so many of a transaction, of so many in all. MariaDB does not tell the second (None)."""

    done: int
    total: int | None


# Made for each transaction, which a dataclass would take four times as long for; never part of a cycle (gc=False).
class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transaction of the log, or a part of a large one (`is_last` False on all parts but the last).

    kind: of a part that is not the last it says nothing yet.
    start: where the group begins (a restart re-reads it from there); end: just behind it. Of a part that is not the
    last the end is the start: no restart can begin inside.
    time_micros: commit time by the source's clock, microseconds since the epoch (whole seconds on MariaDB).
    items: rows of the application's tables and of ours in log order; a group without any is still handed on (it moves
    the position).
    nbytes: about what the items weigh in memory.
    changes: of one that leaves the matcher in parts, how many rows of the application's tables there are in all.
    read: of a part that is not the last, how much of the transaction has been read with it.
    keep: of the items in the parts before this one the first so many; the others were rolled back. None: all.
    is_others: a table was written to that is neither the sidecar's nor the copy, up to here.
    gtid: its name, where the log names its transactions.
    """

    kind: GroupKind
    start: Position
    end: Position
    time_micros: int
    items: Sequence[RowChange]
    nbytes: int
    xid: Xid | None = None
    is_last: bool = True
    keep: int | None = None
    changes: int | None = None
    read: Extent | None = None
    is_others: bool = False
    gtid: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Everything before `position` has been read: the source has nothing newer, or left out what was not asked for."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """One of several consumers of a reader can follow its tables no further; the others go on."""

    name: str
    error: SourceChanged
