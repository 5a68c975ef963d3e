"""What one consumer sees of the groups that a reader hands on for several.

What must stay true: every consumer gets every group, in order, for it moves its position; of a group it gets the rows
of its own tables, and of ours those of its own workflow; what was rolled back after it had been handed on (`keep`) is
counted in its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vreplication.binlog.events import Group, RowChange
from vreplication.changes.stream import owner_of


class View:
    """Feed it every group, in log order. Not thread-safe.

    workflow: whose rows of our tables are let through. numbers: of the watches whose rows are.
    """

    def __init__(self, workflow: str, numbers: frozenset[int]) -> None:
        self._workflow, self._numbers = workflow, numbers
        self._handed: list[list[int]] = []
        """Of the transaction that comes in parts, in turns: [rows of others, rows of ours behind them]."""

    def of(self, group: Group) -> Group:
        """The group as this consumer sees it; the very same where nothing in it is another's."""
        # Before this part is noted: `keep` counts rows of the parts before it.
        keep = None if group.keep is None else self._cut(group.keep)
        items = [item for item in group.items if self._is_mine(item)]
        if group.is_last:
            self._handed.clear()
        else:
            self._note(group.items)
        if len(items) == len(group.items) and keep == group.keep:
            return group
        # Its share by count, for what each row weighs is not known. Undivided, each follower of a giant transaction
        # would go to disk for rows that are another's.
        nbytes = group.nbytes * len(items) // len(group.items) if group.items else group.nbytes
        return replace(group, items=items, keep=keep, nbytes=nbytes)

    def _is_mine(self, item: RowChange) -> bool:
        if item.table >= 0:
            return item.table in self._numbers
        return owner_of(item.after or item.before) == self._workflow

    def _note(self, items: Sequence[RowChange]) -> None:
        # Turns and not rows: a transaction of a million rows of one table is one of them.
        turns = self._handed
        for item in items:
            if self._is_mine(item):
                turns = turns or self._begin()
                turns[-1][1] += 1
            elif turns and not turns[-1][1]:
                turns[-1][0] += 1
            else:
                turns.append([1, 0])

    def _begin(self) -> list[list[int]]:
        self._handed.append([0, 0])
        return self._handed

    def _cut(self, keep: int) -> int:
        """Of what was handed on the first `keep` rows stay; returns how many of them are this consumer's."""
        left, mine, turns = keep, 0, []
        for others, ours in self._handed:
            if not left:
                break
            stays = [min(others, left), min(ours, max(0, left - others))]
            left, mine = left - sum(stays), mine + stays[1]
            turns.append(stays)
        self._handed[:] = turns
        return mine
