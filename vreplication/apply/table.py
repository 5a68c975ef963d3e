"""One table of a stream: the changes that wait to be written to it, its open chunks, and what is noted of its keys.

What must stay true: tombstones are kept from a chunk's first "opened" until it is matched, whatever attempts come; a
tombstone is forgotten only when no chunk is open that was open when its key was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication import names
from vreplication.apply import writer
from vreplication.apply.batch import Batch, Share, keys_of
from vreplication.apply.since import SinceKeys
from vreplication.apply.unique import UniqueWriter
from vreplication.apply.writer import Marks, Target
from vreplication.binlog.events import RowChange
from vreplication.mysql.session import Session
from vreplication.schema import nulls
from vreplication.state import keytables, ledger

Place = tuple[int, int]
"""Split and ordinal of a chunk."""


class _KnownKeys(Batch):
    """Of a table whose key may be NULL: a row with NULL in it has no key, and ends the workflow at its place."""

    def __init__(self, target: Target, *, is_exact_key: bool, takes_out: bool) -> None:
        super().__init__(is_exact_key=is_exact_key, takes_out=takes_out)
        self._target = target

    def add(self, change: RowChange) -> None:
        # At its place in the log, not at the next flush: a row that is deleted again in the same transaction ends the
        # workflow, too (docs/correctness.md, a key that may be NULL).
        for key in keys_of(change):
            if nulls.is_in(key):
                raise nulls.written(self._target.mapping, key, self._target.table_id)
        super().add(change)


class TableWork:
    """Not thread-safe. main: the session with the state; writers: those that write rows."""

    def __init__(self, target: Target, main: Session, writers: Sequence[Session]) -> None:
        self.target, self._main = target, main
        self.id = target.table_id
        self.open: dict[Place, int] = {}
        """Chunks that are open or not matched yet → the first batch that ran since."""
        self.landed: list[Place] = []
        """Chunks whose landing has been taken in and that are matched with the next flush."""
        self.has_tombstones = self.has_suspects = False
        self.since = SinceKeys(session=main, workflow=self.id)
        self.batch = self.new_batch()
        self._unique = [UniqueWriter(target=target, number=i) for i in range(len(writers))]
        self._load(writers)

    def _load(self, writers: Sequence[Session]) -> None:
        """Chunks not yet matched count as open: more tombstones than are needed do no harm."""
        unmatched = ledger.chunks(self._main, self.id, states=(ledger.OPEN, ledger.LANDED))
        # 0 is below every batch: a match may forget no tombstone of before the restart while one of these is open.
        self.open = {(c.split, c.ordinal): 0 for c in unmatched}
        self.has_tombstones = writer.prune_tombstones(self._main, self.target, 0)
        self.has_suspects = not keytables.is_empty(self._main, names.suspect_table(self.id))
        self.since.load()
        for session, unique in zip(writers, self._unique, strict=True):
            writer.prepare(session, self.target)
            if self.may_collide:
                unique.create_probe(session)

    @property
    def may_collide(self) -> bool:
        return self.target.mapping.may_collide

    @property
    def may_share(self) -> bool:
        """Connections that lock the whole table in turns would only wait for each other."""
        return not self.may_collide or self.target.mapping.is_found_by_index

    def new_batch(self) -> Batch:
        is_exact_key = self.target.mapping.is_exact_key
        if self.target.mapping.may_have_null:
            return _KnownKeys(self.target, is_exact_key=is_exact_key, takes_out=self.may_collide)
        return Batch(is_exact_key=is_exact_key, takes_out=self.may_collide)

    def marks(self, batch: Batch, number: int) -> Marks:
        """What is to be noted of the batch's changes; from here on there may be tombstones of it."""
        # Under a new unique key a write may push another row out, which is a delete, too.
        makes_tombstones = bool(self.open) and (batch.has_deletes or self.may_collide)
        # Stays true until a match finds the table empty: a later write of any key has to take it off the list (R4).
        self.has_tombstones = self.has_tombstones or makes_tombstones
        return Marks(
            number=number,
            # Without an open chunk nobody holds an old image that could bring a deleted row back.
            batch=number if self.open else None,
            has_tombstones=self.has_tombstones,
            has_suspects=self.has_suspects,
        )

    def write_steps(self, number: int, session: Session, steps: Share, marks: Marks) -> None:
        """By the connection of this number, inside its transaction."""
        if self.may_collide:
            self._unique[number].write_steps(session, steps, marks)
        else:
            writer.write_steps(session, self.target, steps, marks)

    def touch(self, batch: Batch) -> None:
        """Mark the suspects among the batch's keys, where their table is not on the server of the rows."""
        writer.touch_suspects(self._main, self.target, list(batch.keys()))

    def note_landed(self, places: Sequence[Place]) -> None:
        self.landed = list(dict.fromkeys([*self.landed, *places]))

    def oldest_but(self, places: Sequence[Place], otherwise: int) -> int:
        """The first batch that ran while a chunk was open that is not one of these."""
        return min((number for place, number in self.open.items() if place not in places), default=otherwise)

    def match(self, places: Sequence[Place], oldest: int) -> bool:
        """Delete the tombstoned keys again, then the chunks are matched. Returns whether tombstones are left."""
        # The order is R5 and R12: deleted again, then forgotten, then matched. Forgotten first, or with the chunk
        # matched by another transaction, a crash would leave a row that the copy brought back, and nobody to delete it.
        is_left = self.has_tombstones
        if is_left:
            writer.delete_again(self._main, self.target)
            # Not all of them (pruned_behind_oldest): a chunk that was open beside this one may still land the same
            # key's old image.
            is_left = writer.prune_tombstones(self._main, self.target, oldest)
        for split, ordinal in places:
            ledger.match(self._main, self.id, split, ordinal)
        return is_left

    def matched(self, places: Sequence[Place], *, is_left: bool) -> None:
        """`match` has been committed."""
        self.has_tombstones = is_left
        self.landed = [place for place in self.landed if place not in places]
        for place in places:
            self.open.pop(place, None)
