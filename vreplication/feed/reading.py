"""One source's log as a feed sends it: rows and DDL with the times that they go out under.

Times: each transaction gets the time that the log says of it, or the next one where that would not rise. Of several
sources each has times of its own: those that, divided by the number of sources, leave the source's number. So no two
transactions of a feed have one time, and nothing but a source's own log decides which it has.

What must stay true: the same log gives the same pieces, whoever reads it and when, but for where a transaction is cut;
a mark says no more than what stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vreplication.binlog.events import Group, GroupKind, Heartbeat, Position, RowChange, Stopped
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import DEFINED, Following
from vreplication.changes.matcher import Held, Matcher
from vreplication.changes.sorter import DiskSorter
from vreplication.errors import SourceChanged
from vreplication.feed.catalog import Tables
from vreplication.feed.dispatch import Dispatcher
from vreplication.feed.lost import Lost
from vreplication.feed.messages import Ddl, Format, Header
from vreplication.feed.progress import Branch, Filled, Followed
from vreplication.feed.snapshot import MARKED, Snapshot, running
from vreplication.feed.spoken import Spoken
from vreplication.mysql.server import Xid
from vreplication.settings import MATCHER_BUDGET_BYTES

_MANY = 500
"""Rows of one piece, for which the dispatcher asks the server at once."""
_ROW_BYTES, _PIECE_BYTES = 300, 200
# For each transaction: a NamedTuple's own constructor is a Python function in between.
_new = tuple.__new__

OpenLog = Callable[[Position], Tailer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """number: of `count`. tables, dispatcher, format: its own, for names, collations and flavor are its server's.

    tables_ahead: makes another catalog, for who reads the log beside (ahead.py).

    home: where its sorter's files go; budget_bytes: what open transactions may take in memory. snapshot: of the rows
    that are there, or None. is_folded: the server tells tables by names in lower case. check_ddl: raises what ends the
    feed before a statement is sent. spoken: a header of what a statement's session was.
    """

    number: int = 0
    count: int = 1
    tables: Tables
    dispatcher: Dispatcher
    format: Format
    open_log: OpenLog
    home: Path
    budget_bytes: int = MATCHER_BUDGET_BYTES
    tables_ahead: Callable[[], Tables] | None = None
    snapshot: Snapshot | None = None
    is_folded: bool = False
    check_ddl: Callable[[Ddl], None] = lambda ddl: None
    spoken: Callable[[Mapping[str, Any]], Header] = lambda said: Spoken().header


class Mark(NamedTuple):
    """Behind a transaction. t: what comes is of later times; end: where the log goes on; filled: a snapshot."""

    t: int
    end: Position | str
    branches: tuple[Branch, ...]
    filled: Filled | None

    @property
    def position(self) -> str:
        """The end as text, which few of many transactions need."""
        return self.end if isinstance(self.end, str) else self.end.saved


class Piece(NamedTuple):
    """Rows of one time, or one DDL, or nothing but a mark. seq: of the first row; nbytes: about what it weighs.

    commit: when the source says that it was, µs. mark: where this is the end of a transaction. is_snapshot: rows that
    were read from the table.
    """

    source: int
    t: int
    seq: int
    changes: Sequence[RowChange]
    gtid: str
    commit: int
    nbytes: int
    mark: Mark | None
    is_snapshot: bool = False

    @property
    def is_ddl(self) -> bool:
        return bool(self.changes) and self.changes[0].table == DEFINED


@dataclass(slots=True)
class _Transaction:
    """The one that is being read. is_fresh: nothing has its time yet."""

    t: int
    seq: int
    gtid: str
    commit: int
    is_fresh: bool = True


class Reading:
    """From what was sent on. `pieces` may be gone through once."""

    def __init__(self, name: str, source: Source, sent: Followed) -> None:
        self._name, self.source = name, source
        self.sorter = DiskSorter(source.home)
        # R19: strict from the beginning, for no snapshot of a copy shows the rows of a branch that was prepared before.
        self._matcher = Matcher(is_strict=True, budget_bytes=source.budget_bytes, sorter=self.sorter)
        self._assigned = sent.assigned
        self._sent = sent
        self._half = (sent.inside_of, sent.inside[0]) if sent.inside and sent.inside_of else None
        """The transaction of which rows were sent already, until it comes: its name, and the time that they have."""
        self._open: _Transaction | None = None
        self.waiting = ""
        """Name of the transaction whose end has not been read, where it comes in parts."""
        self._branches: tuple[Branch, ...] | None = None
        """None: to be asked for."""
        self._tailer: Tailer | None = None
        self._lost: Lost | None = None
        self._filled = sent.filled
        self._snapshot = source.snapshot

    def open(self) -> None:
        """Ask for the log. Raises Transient, SourceChanged."""
        sent = self._sent
        position = Position.parse(sent.position)
        again = Position.parse(sent.again_from) if sent.again_from else None
        start = self._matcher.restore([_held(branch) for branch in sent.branches], position, again)
        self._tailer = self.source.open_log(start)
        watches = (self._snapshot.watch(),) if self._snapshot else ()
        self._tailer.join(Following(name=self._name, watches=watches, catalog=self.source.tables))
        # The catalog's connection is this thread's.
        session, is_mariadb = (lambda: self.source.tables.session), self._tailer.is_mariadb
        self._lost = Lost(session, self._matcher, self._dropped, is_mariadb=is_mariadb)

    def pieces(self) -> Iterator[Piece | None]:
        """None: between two items of the log. Raises what ends it."""
        assert self._tailer is not None
        with running(self._snapshot):
            for item in self._tailer:
                yield from self.take(item)
                if self._lost is not None:
                    self._lost.look(item)
                yield None

    def _dropped(self, xid: Xid) -> None:
        """The server has lost the branch: the next mark says so."""
        self._branches = None

    @property
    def has_branches(self) -> bool:
        """Prepared ones, whose end has not been read."""
        return bool(self._matcher.held())

    @property
    def waiting_rows(self) -> int:
        """Of a transaction whose end has not been read."""
        return self._matcher.pending_changes

    def is_drained(self, seconds: float) -> bool:
        """All that the source has sent was handed on, and nothing more comes for so long. Raises Transient."""
        return self._tailer is not None and self._tailer.is_drained(seconds)

    def close(self) -> None:
        """From any thread: who waits in `pieces` gets Transient."""
        if self._tailer is not None:
            self._tailer.close()

    def remove(self) -> None:
        """What was put aside is read again."""
        self.sorter.remove()

    def next_head(self, number: int) -> int:
        """As of a Merge: one source is sent as it is read, and nothing waits."""
        return 0

    def take(self, item: Group | Heartbeat | Stopped) -> Iterator[Piece]:
        if isinstance(item, Stopped):
            raise item.error
        if self._snapshot is not None:
            # A snapshot that has ended by an error writes no marker any more. On a quiet source no row comes either
            # that could tell, so it is asked at each heartbeat.
            self._snapshot.look()
        if isinstance(item, Group):
            # Only what is no plain commit begins or ends a branch.
            if item.kind is not GroupKind.COMMIT:
                self._branches = None
            self.waiting = "" if item.is_last else gtid_text(item)
            if self._is_plain(item):
                # Nearly always.
                yield self._whole(item)
                return
            for group in self._matcher.feed(item):
                yield from self._cut(group)

    def _is_plain(self, group: Group) -> bool:
        """A transaction of few rows, and nothing but rows of tables that are followed."""
        items = group.items
        is_alone = self._open is None and self._half is None and self._snapshot is None
        return is_alone and len(items) < _MANY and self._matcher.is_alone(group) and _are_rows(items)

    def _whole(self, group: Group) -> Piece:
        """As `_cut` gives it, in less time."""
        items, commit, t = group.items, group.time_micros, self._next(group.time_micros)
        nbytes = _PIECE_BYTES + max(_ROW_BYTES * len(items), group.nbytes)
        mark = _new(Mark, (t, group.end, self._held_branches(), self._filled))
        return _new(Piece, (self.source.number, t, 0, items, gtid_text(group), commit, nbytes, mark, False))

    def _cut(self, group: Group) -> Iterator[Piece]:
        """A transaction, or a part of one."""
        self._check_first(group)
        self._open = open_one = self._open or self._new(group)
        # A short row takes more as objects of Python than as bytes of the log, and memory is counted by this.
        each = max(_ROW_BYTES, group.nbytes // max(1, len(group.items)))
        rows: list[RowChange] = []
        for change in group.items:
            if change.table == DEFINED:
                if rows:
                    yield self._piece(open_one, rows, each)
                rows = []
                yield self._defined(open_one, change)
            elif change.table == MARKED:
                yield from self._marked(open_one, change, each)
            elif change.table >= 0:
                self._note(change)
                rows.append(change)
                if len(rows) >= _MANY:
                    yield self._piece(open_one, rows, each)
                    rows = []
        # Also without rows: the place in the log moves behind transactions of tables that are not followed, or it would
        # be purged some day.
        if rows or group.is_last:
            yield self._piece(open_one, rows, each, self._mark(group))

    def _new(self, group: Group) -> _Transaction:
        """Of one that was sent in part the rest has the same time, whatever the log of another server says of it."""
        name, commit = gtid_text(group), group.time_micros
        if self._half is None:
            return _Transaction(self._next(commit), 0, name, commit)
        # Nothing of ours is in it (`_check_first`), so it takes no time.
        if name != self._half[0]:
            return _Transaction(self._assigned, 0, name, commit)
        (_, t), self._half = self._half, None
        return _Transaction(self._next(t), 0, name, commit)

    def _check_first(self, group: Group) -> None:
        """Nothing of ours comes before the one that was sent in part. Raises SourceChanged."""
        if self._half is None or gtid_text(group) == self._half[0]:
            return
        if any(change.table >= 0 or change.table == DEFINED for change in group.items):
            raise SourceChanged(
                f"Of transaction {self._half[0]} a part was sent, and this server's log has {gtid_text(group)} first.",
                cure="Start the former server once more, until the feed has sent it; or begin another feed.",
            )

    def _next(self, micros: int) -> int:
        at = max(self._assigned + 1, micros)
        self._assigned = at + (self.source.number - at) % self.source.count
        return self._assigned

    def _piece(self, of: _Transaction, rows: list[RowChange], each: int, mark: Mark | None = None) -> Piece:
        found = Piece(self.source.number, of.t, of.seq, rows, of.gtid, of.commit, _PIECE_BYTES + each * len(rows), mark)
        if rows:
            of.seq, of.is_fresh = of.seq + len(rows), False
        return found

    def _defined(self, of: _Transaction, change: RowChange) -> Piece:
        """DDL has a time of its own, behind the rows before it (P8)."""
        if not of.is_fresh:
            of.t = self._next(of.commit)
        found = Piece(self.source.number, of.t, 0, [change], of.gtid, of.commit, _ROW_BYTES, None)
        tables = [(schema, table) for schema, table in change.after["tables"]]
        self.source.tables.redefined(tables)
        if self._snapshot is not None:
            self._redefine(self._snapshot, change.after["verb"], self.source.tables.stored(tables))
        # Rows of the same transaction behind it (CREATE TABLE … SELECT) have a later time (docs/feed.md, Time): a
        # consumer applies them behind the DDL by that.
        of.t, of.seq, of.is_fresh = self._next(of.commit), 0, True
        return found

    # Rows that were there before.

    def _redefine(self, snapshot: Snapshot, verb: str, tables: Sequence[tuple[str, str]]) -> None:
        if verb in ("RENAME", "ALTER") and len(tables) > 1 and self._filled is not None:
            self._filled = snapshot.moved(tables, self._filled)
        else:
            snapshot.defined(tables)

    def _note(self, change: RowChange) -> None:
        if self._snapshot is not None:
            self._snapshot.note(self.source.tables.layout(change.table), change)

    def _marked(self, of: _Transaction, change: RowChange, each: int) -> Iterator[Piece]:
        """A chunk of them, under the time of its marker."""
        chunk = self._snapshot.marked(change, self._held) if self._snapshot is not None else None
        if chunk is None:
            return
        self._filled = chunk.filled
        for at in range(0, len(chunk.rows), _MANY):
            assert chunk.layout is not None
            rows = [RowChange(chunk.layout.number, None, row) for row in chunk.rows[at : at + _MANY]]
            yield self._piece(of, rows, each)._replace(is_snapshot=True)
        if chunk.filled.is_done:
            self._snapshot = None

    def _held(self) -> frozenset[Xid]:
        return frozenset(held.xid for held in self._matcher.held())

    def _mark(self, group: Group) -> Mark | None:
        if not group.is_last:
            return None
        self._open = None
        return Mark(self._assigned, group.end, self._held_branches(), self._filled)

    def _held_branches(self) -> tuple[Branch, ...]:
        if self._branches is None:
            self._branches = tuple(_branch(held) for held in self._matcher.held())
        return self._branches


def _are_rows(items: Sequence[RowChange]) -> bool:
    for change in items:  # noqa: SIM110
        if change[0] < 0:
            return False
    return True


def gtid_text(group: Group) -> str:
    name = group.gtid
    if name is None:
        # Where it begins is a name as well: the same each time that this log is read.
        return str(group.start)
    return f"{name[0]}-{name[1]}-{name[2]}" if len(name) == 3 else f"{name[0]}:{name[1]}"


def _branch(held: Held) -> Branch:
    format_id, gtrid, bqual = held.xid
    return Branch(format_id=format_id, gtrid=gtrid.hex(), bqual=bqual.hex(), start=held.start.saved, rows=held.rows)


def _held(branch: Branch) -> Held:
    """Its rows are read again, if there were any."""
    return Held(
        xid=Xid(branch.format_id, bytes.fromhex(branch.gtrid), bytes.fromhex(branch.bqual)),
        start=Position.parse(branch.start),
        changes=0,
        rows=branch.rows,
        place=None,
        fragments=(),
    )
