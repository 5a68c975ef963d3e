"""The matcher: rows wait here until it is known what becomes of their transaction.

Transaction-level, as TiKV's design on large transactions asks of a change feed ("map[start_ts][]row"): here under the
branch's name (format id, gtrid, bqual). Two kinds wait. A transaction too large to be handed on at once comes in parts
and waits for its last one. An XA branch shows its rows first (XA PREPARE) and its outcome later, as a group of its own:
XA COMMIT moves it on as one transaction with the commit's own position and time; XA ROLLBACK drops it.

Where a restart goes on: at the checkpoint. Rows of branches that were prepared before it are either on disk still
(`restore`), or are read again from the oldest PREPARE that is missing; on the way to the checkpoint nothing is handed
on, for it has been applied.

What must stay true: no row leaves before its transaction has committed; an unfinished one never leaves; after the first
chunk has opened, the commit of a branch whose PREPARE was not read ends the workflow, because its rows are in neither
stream (docs/correctness.md, XA); memory is bounded, whatever the number and size of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.binlog.gtids import MysqlGtids
from vreplication.changes.sorter import DiskSorter
from vreplication.changes.stream import count_changes
from vreplication.changes.waiting import Budget, Rows
from vreplication.errors import SourceChanged, Terminal
from vreplication.mysql.server import Xid
from vreplication.settings import MATCHER_BUDGET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A branch whose outcome is open, as a checkpoint remembers it.

    place: the run and the number under which the sorter has its rows; fragments: how many in each. prepared: when, µs
    by the source's clock; 0: not known.
    """

    xid: Xid
    start: Position
    changes: int
    rows: int
    place: tuple[str, int] | None
    fragments: tuple[int, ...]
    prepared: int = 0

    def fields(self) -> dict[str, Any]:
        """For the checkpoint."""
        format_id, gtrid, bqual = self.xid
        return {
            "xid": [format_id, gtrid.hex(), bqual.hex()],
            # The whole place, with its GTIDs: file and offset alone say nothing on a promoted replica.
            "start": self.start.saved,
            "changes": self.changes,
            "rows": self.rows,
            "place": self.place,
            "fragments": self.fragments,
            "prepared": self.prepared,
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Held:
        format_id, gtrid, bqual = fields["xid"]
        return cls(
            xid=Xid(format_id, bytes.fromhex(gtrid), bytes.fromhex(bqual)),
            start=Position.parse(fields["start"]),
            changes=fields["changes"],
            rows=fields["rows"],
            place=tuple(fields["place"]) if fields["place"] else None,
            fragments=tuple(fields["fragments"]),
            # An earlier version noted none.
            prepared=fields.get("prepared", 0),
        )


@dataclass(slots=True)
class _Branch:
    start: Position
    rows: Rows
    prepared: int


class Matcher:
    """Feed it groups in log order; it yields what has committed, in commit order. Not thread-safe.

    sorter: where rows past the budget go; None: more than the budget is an error. on_applied: is told the rows of what
    is read again and was applied before; on_lost: that a branch is among it whose rows were not read again.
    """

    def __init__(
        self,
        *,
        is_strict: bool = False,
        budget_bytes: int = MATCHER_BUDGET_BYTES,
        sorter: DiskSorter | None = None,
        on_applied: Callable[[Sequence[RowChange]], None] = lambda items: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._budget = Budget(budget_bytes, sorter)
        self._on_applied, self._on_lost = on_applied, on_lost
        self._branches: dict[Xid, _Branch] = {}
        self._given_up: set[Xid] = set()
        self._pending: Rows | None = None
        self._is_strict = is_strict
        self._applied_to: Position | None = None
        self._is_applied = False
        """Of the group that is being fed."""
        self.not_queued = 0
        """Changes that were read and are not waiting to be applied: held in branches, or rolled back."""

    # What came before.

    def restore(self, held: Sequence[Held], position: Position, again_from: Position | None = None) -> Position:
        """Take over the branches of a checkpoint at `position`; returns from where the log has to be read.

        again_from: what has been applied since is to be read once more, for `on_applied`.
        """
        missing = [branch for branch in held if not self._adopt(branch)]
        if self._budget.sorter is not None:
            self._budget.sorter.flush()
            # Until a checkpoint names our own copy, another restart finds the rows in those that this one names.
            self._budget.sorter.forget_others({branch.place[0] for branch in held if branch.place})
        # MariaDB's numbers may go back where several servers write one domain; unless we read again, nothing asks them.
        starts = [branch.start for branch in missing] + ([again_from] if again_from else [])
        self._applied_to = position if starts else None
        for start in starts:
            position = start if start.is_within(position) else position
        return position

    def _adopt(self, held: Held) -> bool:
        """False when it has rows that are not here, all of them."""
        rows = Rows(self._budget)
        if held.rows and not (held.place and rows.adopt(*held.place, held.fragments, held.changes)):
            rows.drop()
            return False
        self._branches[held.xid] = _Branch(held.start, rows, held.prepared)
        return True

    # The stream.

    def is_alone(self, group: Group) -> bool:
        """It goes on as it is, whatever else waits here: one that need not be fed."""
        is_whole = group.is_last and group.kind is GroupKind.COMMIT
        return is_whole and self._pending is None and self._applied_to is None

    def feed(self, group: Group) -> Iterator[Group]:
        """Raises SourceChanged (an unknown branch was committed) or Terminal (too much is held)."""
        self._is_applied = group.is_last and self._has_been_applied(group)
        if self._pending is None and group.is_last and group.kind is GroupKind.COMMIT:
            if not self._is_applied:
                yield group
            else:
                self._on_applied(group.items)
                # Who read them has counted them as backlog already, and the applier will never take them off.
                self.not_queued += count_changes(group.items)
            return
        rows = self._gathered(group)
        if rows is None:
            return
        if group.kind is GroupKind.XA_PREPARE:
            self._hold(group, rows)
        else:
            rows = self._settled(group, rows)
        yield from self._moved_on(group, rows)

    def _gathered(self, group: Group) -> Rows | None:
        """The transaction's own rows once all of them are here."""
        # Not by its truth: one whose rows were all rolled back is empty, and has its room on disk still.
        if self._pending is None:
            self._pending = Rows(self._budget)
        rows = self._pending
        before = rows.changes
        # `keep` speaks of the parts before this one.
        if group.keep is not None:
            rows.cut(group.keep)
        self.not_queued += before - rows.changes
        rows.add(group.items, group.nbytes)
        if not group.is_last:
            return None
        self._pending = None
        # The server died while it wrote the transaction: it never committed, and no end of it will come.
        if group.kind is GroupKind.UNFINISHED:
            self._drop(rows)
            return None
        return rows

    def _hold(self, group: Group, rows: Rows) -> None:
        """Read again on the way to the checkpoint, a branch takes the place of what is there."""
        self._forget(_xid(group))
        self._given_up.discard(_xid(group))
        if rows.fragments and self._budget.sorter:
            # The next checkpoint says that they are on disk. In part would be as good as not at all: a restart would
            # read the log again from the PREPARE.
            rows.put_aside()
            self._budget.sorter.flush()
        self._branches[_xid(group)] = _Branch(group.start, rows, group.time_micros)
        self.not_queued += rows.changes

    def _settled(self, group: Group, own: Rows) -> Rows:
        """The rows that move on with an outcome. A committed branch counts as held until the last of them does."""
        if group.kind is GroupKind.COMMIT:
            return own
        self._drop(own)
        branch = self._branches.get(_xid(group))
        if branch is None:
            self._refuse_unknown(group)
        elif group.kind is GroupKind.XA_COMMIT:
            if self._is_applied and not branch.start.is_within(group.start):
                # A later branch of the same name, that the checkpoint holds: this one's rows were not read again.
                # Its rows go with this commit all the same: its own PREPARE stands before the checkpoint, and brings
                # them again.
                self._on_lost()
            self.not_queued -= branch.rows.changes
            return branch.rows
        else:
            # Not by `_drop`: a held branch has been counted already. The rollback of an unknown one has left nothing
            # anywhere.
            self._branches.pop(_xid(group)).rows.drop()
        return Rows(self._budget)

    def _moved_on(self, group: Group, rows: Rows) -> Iterator[Group]:
        """The transaction in parts that fit a batch; of one that is held, only its place."""
        settled = replace(group, kind=GroupKind.COMMIT, items=(), nbytes=0, xid=None, keep=None)
        if group.kind is GroupKind.XA_PREPARE:
            # The branch waits and the place goes on: the checkpoint lists what is held (chunk protocol, rule 5), so a
            # branch that stays open for days keeps no log from being purged.
            if not self._is_applied:
                yield settled
        elif self._is_applied:
            self._leave(group)
            for part in rows.parts():
                self._on_applied(part)
            self._drop(rows)
        else:
            yield from self._in_parts(group, replace(settled, changes=rows.changes), rows)

    def _in_parts(self, group: Group, settled: Group, rows: Rows) -> Iterator[Group]:
        """A checkpoint between two of them lists the branch still, one behind the last does not."""
        parts = rows.parts()
        part = next(parts, [])
        for following in parts:
            yield replace(settled, items=part, end=group.start, is_last=False)
            part = following
        self._leave(group)
        yield replace(settled, items=part)
        rows.drop()

    def _leave(self, group: Group) -> None:
        if group.kind is GroupKind.XA_COMMIT:
            self._branches.pop(_xid(group), None)

    def _has_been_applied(self, group: Group) -> bool:
        """True on the way from a missing branch to the checkpoint; the first group that comes to it ends the way.

        Asked so, numbers that go back (MariaDB, several servers in one domain) let too much through, never too little.
        MySQL's sets have each name, for a replica's log may have another order than the one that was read before.
        """
        if (applied := self._applied_to) is None:
            return False
        is_before = True
        if applied.is_within(group.end):
            self._applied_to, is_before = None, group.end.is_within(applied)
        named = _is_named(applied, group)
        return is_before if named is None else named

    def _refuse_unknown(self, group: Group) -> None:
        if group.kind is GroupKind.XA_COMMIT and group.xid in self._given_up:
            raise SourceChanged(
                f"XA branch {group.xid} committed at {group.end}, and had been taken for lost in a crash.",
                cure="Cancel this workflow and start again.",
            )
        if group.kind is GroupKind.XA_COMMIT and (self._is_applied or not self._is_strict):
            # Without a copy it may be right (the branch is of before the stream); all rows are compared again.
            self._on_lost()
        # R19: before the first chunk opens every read shows what such a branch has written; from then on its rows may
        # be in neither. MariaDB's log may also have a commit twice, with a crash in between; which is not told apart.
        if group.kind is GroupKind.XA_COMMIT and self._is_strict and not self._is_applied:
            raise SourceChanged(
                f"XA branch {_xid(group)} committed at {group.end} and was not prepared since: it was prepared before "
                "this workflow began, so its rows were in neither the copy nor the log; or the server crashed as it "
                "committed it before.",
                cure="Cancel this workflow and start again while no XA branch is prepared.",
            )

    def give_up(self, xid: Xid) -> None:
        """As one that is rolled back: it is known that it has no outcome any more."""
        self._branches.pop(xid).rows.drop()
        self._given_up.add(xid)

    def _forget(self, xid: Xid) -> None:
        branch = self._branches.pop(xid, None)
        if branch is not None:
            self.not_queued -= branch.rows.changes
            branch.rows.drop()

    def _drop(self, rows: Rows) -> None:
        """Rows that were read and will not be applied."""
        self.not_queued += rows.changes
        rows.drop()

    # What is open.

    def be_strict(self) -> None:
        """From here on (the first chunk has opened) an unknown branch's commit is an error."""
        self._is_strict = True

    def held(self) -> tuple[Held, ...]:
        """Branches whose outcome has not been read, as of the last group that was fed."""
        return tuple(_held(xid, branch) for xid, branch in self._branches.items())

    def held_with_rows(self) -> tuple[Xid, ...]:
        """Those of them that changed the watched table."""
        return tuple(xid for xid, branch in self._branches.items() if len(branch.rows))

    @property
    def held_bytes(self) -> int:
        """In memory."""
        return self._budget.used

    @property
    def pending_changes(self) -> int:
        """Of a transaction whose end has not been read."""
        return 0 if self._pending is None else self._pending.changes


def _held(xid: Xid, branch: _Branch) -> Held:
    rows = branch.rows
    return Held(
        xid=xid,
        start=branch.start,
        changes=rows.changes,
        rows=len(rows),
        place=rows.place,
        fragments=rows.fragments,
        prepared=branch.prepared,
    )


def _xid(group: Group) -> Xid:
    if group.xid is None:
        raise Terminal(f"An XA group without a name at {group.start}.")
    return group.xid


def _is_named(place: Position, group: Group) -> bool | None:
    """Whether it stands before the place, by its name; None: names do not tell."""
    if not isinstance(place.gtids, MysqlGtids) or group.gtid is None or len(group.gtid) != 2:
        return None
    return place.gtids.has(group.gtid)
