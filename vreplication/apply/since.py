"""The keys that the applier writes while a verification counts, kept until they can be put into the sidecar.

What must stay true (state/since.py): a key is noted once its change is written, and is in the table before `collected`
passes that change; so a crash costs reading the log again, from `collected` to the checkpoint, and no key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vreplication.apply.batch import keys_of
from vreplication.apply.writer import in_transaction
from vreplication.binlog.events import Position, RowChange
from vreplication.clock import SYSTEM
from vreplication.mysql.session import Session
from vreplication.state import since
from vreplication.state.lease import Lease

MAX_KEYS = 200_000
"""In memory: some tens of megabytes. More are put into the table at once."""
SAVE_SECONDS = 60.0
"""How much of the log a restart may have to read again."""


@dataclass(slots=True, kw_only=True)
class SinceKeys:
    """session: the applier's own, for it saves in its transactions. round: 0 while nothing is collected."""

    session: Session
    workflow: str
    round: int = 0
    collected: Position | None = None
    keys: set[str] = field(default_factory=set)
    saved_at: float = field(default_factory=SYSTEM.monotonic)

    def load(self) -> None:
        """Where the last holder of the lease stopped."""
        found = since.load(self.session, self.workflow)
        if found is not None and not found.is_void:
            self.round, self.collected = found.round, Position.parse(found.collected)

    @property
    def is_active(self) -> bool:
        return self.round > 0

    @property
    def is_due(self) -> bool:
        is_late = SYSTEM.monotonic() - self.saved_at >= SAVE_SECONDS
        return self.is_full or (self.is_active and is_late)

    @property
    def is_full(self) -> bool:
        return self.is_active and len(self.keys) >= MAX_KEYS

    def note(self, keys: Iterable[str]) -> None:
        if self.round:
            self.keys.update(keys)

    def note_items(self, items: Iterable[RowChange]) -> None:
        """Of a group that is read again and was applied before."""
        if self.round:
            self.keys.update(key for item in items for key in keys_of(item))

    def save(self, position: Position) -> None:
        """Inside a transaction; `position`: everything before it has been noted. `saved` is to be called then."""
        number = self.round
        # The keys stay in memory until `saved`: a lock wait rolls this transaction back and runs it again.
        since.save(self.session, self.workflow, self.keys, position.saved, number=number, next_number=number)

    def put_aside(self) -> None:
        """Inside a transaction that stays open for long; `saved` is to be called then.

        The keys alone: who holds the row that says up to where they are would hold up catch-up's heartbeat, which
        writes to it each second.
        """
        since.put_aside(self.session, self.workflow, list(self.keys), self.round)

    def make_room(self, lease: Lease) -> None:
        """Before `end_round`: of a collection that counts no more there may be tens of millions of keys."""
        # In transactions of their own: one of all of them may take longer than its answer is waited for, again and
        # again.
        left = 0 if self.round else 1

        def slice_() -> None:
            nonlocal left
            left = since.clear_slice(self.session, self.workflow)

        while left:
            in_transaction(self.session, lease, slice_)

    def end_round(self, position: Position) -> int:
        """As `save`, at a marker: returns the new round, the first where none is under way or it is void."""
        found = since.load(self.session, self.workflow)
        if found is None or found.is_void or not self.round:
            return since.begin(self.session, self.workflow, position.saved)
        number = self.round + 1
        since.save(self.session, self.workflow, self.keys, position.saved, number=self.round, next_number=number)
        return number

    def saved(self, number: int) -> None:
        """The transaction has committed; keys get this number from here on."""
        self.keys.clear()
        self.round = number
        self.saved_at = SYSTEM.monotonic()

    def make_void(self) -> None:
        """Changes of a branch that was prepared before `collected` cannot be read again."""
        if self.round:
            since.make_void(self.session, self.workflow)
        self.round, self.collected = 0, None
        self.keys.clear()


def first_collected(tables: Iterable[SinceKeys]) -> Position | None:
    """Up to where the keys of all that collect them are in the sidecar; None: none of them does."""
    found = [each.collected for each in tables if each.is_active and each.collected is not None]
    if not found:
        return None
    first = found[0]
    for other in found[1:]:
        first = first if first.is_within(other) else other
    return first
