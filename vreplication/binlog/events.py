"""What the tailer hands on: groups of row changes in commit order, and heartbeats.

What must stay true: a group is handed on whole, or in parts, of which the last tells what becomes of them all; nothing
here knows how a log is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from vreplication.schema.model import Column


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Position:
    """A place in the binary log. Ordered: files are numbered."""

    number: int
    offset: int
    stem: str = field(compare=False)
    digits: int = field(compare=False, default=6)

    @property
    def file(self) -> str:
        return f"{self.stem}.{self.number:0{self.digits}d}"

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @classmethod
    def of(cls, file: str, offset: int) -> Position:
        stem, _, number = file.rpartition(".")
        return cls(stem=stem, number=int(number), offset=offset, digits=len(number))

    @classmethod
    def parse(cls, text: str) -> Position:
        file, _, offset = text.rpartition(":")
        return cls.of(file, int(offset))


class Xid(NamedTuple):
    """Name of an XA branch."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


class Change(NamedTuple):
    """One effect on one row of the watched source table, as SQL text ready for the target.

    `key` is the comma list of the key's literals (without parentheses), `values` that of all mapped target columns,
    conversions included; None: the row with this key is deleted. An UPDATE that moves a row to another key is two
    changes: the deletion of the old key, then the new image.
    """

    key: str
    values: str | None


class TableRow(NamedTuple):
    """A row event on a watched sidecar table: column name → int, str, bytes or None. `after` None: deleted."""

    table: str
    before: dict[str, object] | None
    after: dict[str, object] | None


class GroupKind(Enum):
    COMMIT = "commit"
    XA_PREPARE = "xa_prepare"
    XA_COMMIT = "xa_commit"
    XA_ROLLBACK = "xa_rollback"
    UNFINISHED = "unfinished"
    """The end of a transaction is missing, because the server died while writing it: it never committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One transaction of the log, or a part of a large one (`is_last` False on all parts but the last).

    kind: of a part that is not the last it says nothing yet.
    start: where the group begins (a restart re-reads it from there); end: just behind it. Of a part that is not the
    last the end is the start: no restart can begin inside.
    time_micros: commit time by the source's clock, microseconds since the epoch (whole seconds on MariaDB).
    items: changes and sidecar rows in log order; a group without any is still handed on (it moves the position).
    nbytes: about what the items weigh in memory.
    changes: of one that leaves the matcher in parts, how many changes there are in all.
    keep: of the items in the parts before this one the first so many; the others were rolled back. None: all.
    """

    kind: GroupKind
    start: Position
    end: Position
    time_micros: int
    items: Sequence[Change | TableRow]
    nbytes: int
    xid: Xid | None = None
    is_last: bool = True
    keep: int | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The source has nothing newer than `position`."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWatch:
    """The table whose rows become `Change`s.

    columns: all columns of the table by ordinal (generated and invisible ones are in the row image too).
    key, values: (ordinal, template) for each literal of `Change.key` and `Change.values`; a template is a format
    string with one `{}` for the literal of that column.
    hidden: columns behind those that no schema shows: MariaDB has one for each UNIQUE key by hash (BIGINT).
    """

    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[tuple[int, str], ...]
    values: tuple[tuple[int, str], ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarWatch:
    """A table of ours whose rows become `TableRow`s (integers, strings, binaries and DATETIME as text only)."""

    schema: str
    table: str
    columns: tuple[Column, ...]
