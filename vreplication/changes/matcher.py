"""The matcher: rows that are prepared but not committed wait here for their outcome.

Ordinary transactions appear in a binary log whole, at commit; only an XA branch shows its rows first (XA PREPARE) and
its outcome later, as a group of its own. XA COMMIT moves the branch on as one group with the commit's own position and
time; XA ROLLBACK drops it.

What must stay true: no row of a branch leaves before its XA COMMIT; the checkpoint does not pass the XA PREPARE of a
branch that is held (`hold_position`); after the first chunk has opened, the commit of a branch whose PREPARE was not
read ends the workflow, because its rows are in neither stream (docs/correctness.md, XA). Rows held are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vreplication.binlog.events import Change, Group, GroupKind, Position, TableRow, Xid
from vreplication.errors import SourceChanged, Terminal
from vreplication.settings import MATCHER_BUDGET_BYTES


@dataclass(slots=True)
class _Branch:
    start: Position
    items: list[Change | TableRow] = field(default_factory=list)
    nbytes: int = 0


class Matcher:
    """Feed it groups in log order; it yields groups that have committed, in commit order."""

    def __init__(self, *, is_strict: bool = False, budget_bytes: int = MATCHER_BUDGET_BYTES) -> None:
        self._branches: dict[Xid, _Branch] = {}
        self._is_strict = is_strict
        self._budget = budget_bytes

    def feed(self, group: Group) -> Iterator[Group]:
        """Raises SourceChanged (an unknown branch was committed) or Terminal (too much is held)."""
        if group.kind is GroupKind.COMMIT:
            yield group
        elif group.kind is GroupKind.XA_PREPARE:
            self._hold(group)
            yield replace(group, kind=GroupKind.COMMIT, items=(), xid=None)
        elif group.kind is GroupKind.XA_COMMIT:
            yield self._commit(group)
        else:
            self._branches.pop(_xid(group), None)
            yield replace(group, kind=GroupKind.COMMIT, items=(), xid=None)

    def be_strict(self) -> None:
        """From here on (the first chunk has opened) an unknown branch's commit is an error."""
        self._is_strict = True

    def held(self) -> tuple[Xid, ...]:
        """Branches whose outcome has not been read."""
        return tuple(self._branches)

    def held_with_rows(self) -> tuple[Xid, ...]:
        """Those of them that changed the watched table; the others hold nothing up but the checkpoint."""
        return tuple(xid for xid, branch in self._branches.items() if branch.items)

    def hold_position(self) -> Position | None:
        """Where the oldest held branch was prepared: a restart must read from there."""
        return min((b.start for b in self._branches.values()), default=None)

    @property
    def held_bytes(self) -> int:
        return sum(b.nbytes for b in self._branches.values())

    def _hold(self, group: Group) -> None:
        branch = self._branches.setdefault(_xid(group), _Branch(start=group.start))
        branch.items.extend(group.items)
        branch.nbytes += group.nbytes if group.items else 0
        if self.held_bytes > self._budget:
            raise Terminal(
                f"Prepared XA branches hold more than {self._budget // 2**20} MiB of changes to this table.",
                cure=f"Commit or roll back branch {_xid(group)}, then run the same command again.",
            )

    def _commit(self, group: Group) -> Group:
        branch = self._branches.pop(_xid(group), None)
        if branch is None and self._is_strict:
            raise SourceChanged(
                f"XA branch {_xid(group)} was prepared before this workflow began and committed at {group.end}, "
                "so its rows were in neither the copy nor the log.",
                cure="Cancel this workflow and start again while no XA branch is prepared.",
            )
        items = branch.items if branch else []
        nbytes = branch.nbytes if branch else 0
        return replace(group, kind=GroupKind.COMMIT, items=items, nbytes=nbytes, xid=None)


def _xid(group: Group) -> Xid:
    if group.xid is None:
        raise Terminal(f"An XA group without a name at {group.start}.")
    return group.xid
