"""A new unique key that rows of the table break: which of them the new table keeps, in all interleavings.

Three tables. The *full copy* has every row of the source, and the new key as an index that is not unique: it is kept by
the chunk protocol (rows_model.py), so here it is rows that change. The *new table* has of each value the row with the
lowest key. It is written by one process, which looks anew at what others have touched: triggers of the full copy note
the keys and values, in the transaction that changes the row. What is left over is the side table.

    write, commit            what the chunk protocol does to the full copy: `apply.writer.write_steps`
    make_triggers            `state.touched.make_triggers`
    read_to_fill, fill       `apply.lowest.Lowest.fill`, by `workflows.online_ddl.dedup.fill`
    read_notes, want, look, settle    `apply.lowest.Lowest.settle`
    lock, switch             `workflows.online_ddl.dedup.settle_locked`, by `workflows.online_ddl.switching.attempt`
    set_aside, finish        `workflows.online_ddl.dedup.set_aside`
    crash, give_up, live_write    what happens; begin_fill, read_early, settle_late: what rules do away with

What must stay true: a write is two steps, for a row gets its place among the notes before others see it; whatever reads
the full copy has read it at one moment, and what it writes may come much later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Step

NONE, NULL = 0, 9
"""No row; a row whose value is NULL. Others are values of the new key."""
Rows = tuple[int, ...]
"""Value by key."""
Note = tuple[int, int, int, bool]
"""Number, key, value, and whether others see it."""
Changes = tuple[tuple[int, int], ...]

COPYING, FILLING, FILLED, LOCKED, SWITCHED, DONE = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    noted_within: bool = True
    """A note is of the transaction that changes the row, and not of one before it."""
    old_noted: bool = True
    """The value that a row leaves is noted."""
    new_noted: bool = True
    """The value that a row comes to is noted."""
    triggers_first: bool = True
    """No row is written to the new table before all changes are noted."""
    triggers_wait: bool = True
    """Making them waits for transactions that have changed rows already (the table's metadata lock)."""
    notes_read_first: bool = True
    """The full copy is read when the notes have been."""
    heirs_looked_for: bool = True
    """Of a value that was touched the row is looked for that is the lowest now, not only what was touched."""
    losers_left_out: bool = True
    """A row that was touched is written only if it is the lowest of its value."""
    keys_cleared: bool = True
    """The new table's row of a key that is looked at goes, before what stays is written."""
    others_replaced: bool = True
    """A row that is in the way of another one goes (REPLACE)."""
    only_read_removed: bool = True
    """Those notes are removed that have been read, not all up to their last number."""
    removed_with_rows: bool = True
    """Notes are removed by the transaction that writes the rows."""
    fenced: bool = True
    """Who has lost the lease writes nothing."""
    drained: bool = True
    """The tables are switched when no note is left, under the lock."""
    barrier: bool = True
    """And when nothing is under way in the full copy."""
    left_over_by_copy: bool = True
    """What is left over is told by the full copy alone: the new table has other rows by then."""
    copy_kept_whole: bool = True
    """The full copy loses no row before all that is left over is in the side table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    keys: int = 2
    values: int = 2
    writes: int = 3
    writers: int = 2
    """Transactions under way at a time."""
    batch: int = 2
    crashes: int = 0
    has_null: bool = False
    key_changes: bool = False
    starts: tuple[Rows, ...] = ((1, 1),)
    live_writes: int = 1
    """Of the application, to the new table behind the cut-over."""
    gives_up: bool = False
    """An attempt at the cut-over may be given up."""


class Settling(NamedTuple):
    """A transaction of the process that writes the new table. seen: what it has read of the full copy."""

    notes: tuple[tuple[int, int, int], ...]
    wanted: frozenset[int] | None = None
    seen: Changes | None = None
    before: Rows | None = None
    """The full copy as it was read before the notes, where that is how it is done."""


class State(NamedTuple):
    stage: int
    full: Rows
    new: Rows
    notes: tuple[Note, ...]
    number: int
    open: tuple[Changes, ...]
    """Transactions on the full copy that are not committed."""
    has_triggers: bool
    filled: int
    """Keys below it have been looked at by the fill."""
    filling: tuple[int, int] | None
    """A key that the fill has read, and its value where it is the lowest, else NONE."""
    settling: Settling | None
    stale: Settling | None
    """Of a process whose lease is another's now."""
    side: Rows
    aside: int
    """Keys below it have been looked at for the side table."""
    left: Rows
    """What the full copy has kept of its rows at the cut-over."""
    truth: tuple[Rows, Rows] | None
    """At the cut-over: what the new table and the side table have to hold."""
    writes: int
    crashes: int
    live: int


def lowest(rows: Rows, value: int) -> int | None:
    """f: the key that stays of a value."""
    return next((key for key, found in enumerate(rows) if found == value), None)


def stays(rows: Rows, key: int) -> bool:
    value = rows[key]
    return value != NONE and (value == NULL or lowest(rows, value) == key)


def kept(rows: Rows) -> Rows:
    return tuple(value if stays(rows, key) else NONE for key, value in enumerate(rows))


def rest(rows: Rows) -> Rows:
    return tuple(NONE if stays(rows, key) else value for key, value in enumerate(rows))


def put(rows: Rows, key: int, value: int) -> Rows:
    return (*rows[:key], value, *rows[key + 1 :])


def changed(rows: Rows, changes: Changes) -> Rows:
    for key, value in changes:
        rows = put(rows, key, value)
    return rows


class DedupModel:
    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.b, self.r = bounds, rules

    @property
    def actions(self) -> Sequence[Callable[[State], Iterable[Step[State]]]]:
        return tuple(getattr(self, name) for name in ACTIONS)

    def initial(self) -> Iterator[State]:
        none = (NONE,) * self.b.keys
        for rows in self.b.starts:
            yield State(
                COPYING, rows, none, (), 0, (), False, 0, None, None, None, none, 0, none, None,
                self.b.writes, self.b.crashes, self.b.live_writes,
            )  # fmt: skip

    # -- the full copy ------------------------------------------------------------------------------------------------

    def write(self, s: State) -> Iterator[Step[State]]:
        """A transaction has changed rows and noted it; nobody sees it yet."""
        if not s.writes or s.stage >= LOCKED or len(s.open) >= self.b.writers:
            return
        locked = {key for changes in s.open for key, _ in changes}
        for changes in self._changes(s.full, locked):
            notes, number = s.notes, s.number
            for key, value in self._noted(s, changes):
                notes, number = (*notes, (number, key, value, not self.r.noted_within)), number + 1
            after = s._replace(open=(*s.open, changes), writes=s.writes - 1, notes=notes, number=number)
            yield f"full copy: {_said(changes)} (not committed)", after

    def _changes(self, rows: Rows, locked: set[int]) -> Iterator[Changes]:
        free = [key for key in range(self.b.keys) if key not in locked]
        values = [NONE, *range(1, self.b.values + 1), *([NULL] if self.b.has_null else [])]
        for key in free:
            yield from (((key, value),) for value in values if value != rows[key])
        if self.b.key_changes:
            for old in free:
                yield from (((old, NONE), (new, rows[old])) for new in free if rows[old] != NONE and rows[new] == NONE)

    def _noted(self, s: State, changes: Changes) -> Iterator[tuple[int, int]]:
        if not s.has_triggers:
            return
        for key, value in changes:
            if self.r.old_noted and s.full[key] != NONE:
                yield key, s.full[key]
            if self.r.new_noted and value != NONE:
                yield key, value

    def commit(self, s: State) -> Iterator[Step[State]]:
        for place, changes in enumerate(s.open):
            mine = {key for key, _ in changes}
            notes = tuple((n, k, v, seen or k in mine) for n, k, v, seen in s.notes)
            open_ = s.open[:place] + s.open[place + 1 :]
            yield (
                f"full copy: {_said(changes)} committed",
                s._replace(full=changed(s.full, changes), notes=notes, open=open_),
            )

    # -- the fill -----------------------------------------------------------------------------------------------------

    def make_triggers(self, s: State) -> Iterator[Step[State]]:
        if s.has_triggers or (self.r.triggers_wait and s.open):
            return
        if self.r.triggers_first and s.stage != COPYING:
            return
        yield "the triggers are made", s._replace(has_triggers=True, stage=max(s.stage, FILLING))

    def begin_fill(self, s: State) -> Iterator[Step[State]]:
        if s.stage == COPYING and not self.r.triggers_first:
            yield "the fill begins", s._replace(stage=FILLING)

    def read_to_fill(self, s: State) -> Iterator[Step[State]]:
        if s.stage == FILLING and s.filling is None and s.filled < self.b.keys and s.settling is None:
            key = s.filled
            value = s.full[key] if stays(s.full, key) else NONE
            yield f"fill: reads {_name(key)}={value}", s._replace(filling=(key, value))

    def fill(self, s: State) -> Iterator[Step[State]]:
        if s.filling is None:
            return
        key, value = s.filling
        new = s.new if value == NONE else self._replaced(s.new, ((key, value),))
        filled = key + 1
        stage = FILLED if filled == self.b.keys and s.has_triggers else s.stage
        yield f"fill: writes {_name(key)}", s._replace(new=new, filled=filled, filling=None, stage=stage)

    def _replaced(self, new: Rows, rows: Changes) -> Rows:
        for key, value in rows:
            other = None if value == NULL else lowest(new, value)
            if other is not None and other != key:
                if not self.r.others_replaced:
                    continue
                new = put(new, other, NONE)
            if new[key] != NONE and not self.r.others_replaced:
                continue
            new = put(new, key, value)
        return new

    # -- settling -----------------------------------------------------------------------------------------------------

    def read_early(self, s: State) -> Iterator[Step[State]]:
        if not self.r.notes_read_first and self._may_settle(s) and s.settling is None:
            yield f"settle: reads {_rows(s.full)}", s._replace(settling=Settling((), before=s.full))

    def _may_settle(self, s: State) -> bool:
        return s.filling is None and s.stage in (FILLED, LOCKED)

    def read_notes(self, s: State) -> Iterator[Step[State]]:
        begun = Settling(()) if self.r.notes_read_first and s.settling is None else s.settling
        if not self._may_settle(s) or begun is None or begun.notes:
            return
        seen = [(n, k, v) for n, k, v, is_seen in s.notes if is_seen]
        for count in range(1, min(self.b.batch, len(seen)) + 1):
            batch = tuple(seen[:count])
            after = s if self.r.removed_with_rows else s._replace(notes=self._without(s.notes, batch))
            yield f"settle: reads notes {_notes(batch)}", after._replace(settling=begun._replace(notes=batch))
        if s.settling is not None and not seen:
            yield "settle: nothing is noted", s._replace(settling=None)

    def _without(self, notes: tuple[Note, ...], batch: tuple[tuple[int, int, int], ...]) -> tuple[Note, ...]:
        read, last = {n for n, _, _ in batch}, max(n for n, _, _ in batch)
        if self.r.only_read_removed:
            return tuple(note for note in notes if note[0] not in read)
        return tuple(note for note in notes if note[0] > last)

    def want(self, s: State) -> Iterator[Step[State]]:
        """The keys to be looked at."""
        if s.settling is None or not s.settling.notes or s.settling.wanted is not None:
            return
        full = s.full if s.settling.before is None else s.settling.before
        wanted = {key for _, key, _ in s.settling.notes}
        if self.r.heirs_looked_for:
            heirs = (lowest(full, value) for _, _, value in s.settling.notes if value != NULL)
            wanted |= {heir for heir in heirs if heir is not None}
        yield "settle: looks for the lowest", s._replace(settling=s.settling._replace(wanted=frozenset(wanted)))

    def look(self, s: State) -> Iterator[Step[State]]:
        if s.settling is None or s.settling.wanted is None or s.settling.seen is not None:
            return
        full = s.full if s.settling.before is None else s.settling.before
        there = [key for key in sorted(s.settling.wanted) if full[key] != NONE]
        mine = [key for key in there if stays(full, key) or not self.r.losers_left_out]
        seen = tuple((key, full[key]) for key in mine)
        yield f"settle: reads {_said(seen)}", s._replace(settling=s.settling._replace(seen=seen))

    def settle(self, s: State) -> Iterator[Step[State]]:
        """Rows are written and notes removed, in one transaction."""
        if s.settling is not None and s.settling.seen is not None:
            yield "settle: commits", self._settled(s, s.settling)._replace(settling=None)

    def settle_late(self, s: State) -> Iterator[Step[State]]:
        if s.stale is not None:
            yield "settle: the former process commits", self._settled(s, s.stale)._replace(stale=None)

    def _settled(self, s: State, settling: Settling) -> State:
        new = s.new
        for key in (settling.wanted or ()) if self.r.keys_cleared else ():
            new = put(new, key, NONE)
        new = self._replaced(new, settling.seen or ())
        notes = self._without(s.notes, settling.notes) if self.r.removed_with_rows else s.notes
        return s._replace(new=new, notes=notes)

    # -- ends of processes --------------------------------------------------------------------------------------------

    def crash(self, s: State) -> Iterator[Step[State]]:
        """kill -9, or the server's: what is not committed is rolled back; who comes next begins where tables say."""
        if not s.crashes or s.stage == DONE:
            return
        filled = s.filled if s.stage >= FILLED else 0
        aside = 0 if s.stage == SWITCHED else s.aside
        stage = FILLED if s.stage == LOCKED else s.stage
        after = s._replace(filled=filled, filling=None, settling=None, aside=aside, stage=stage, crashes=s.crashes - 1)
        yield "crash, and another process goes on", after
        if not self.r.fenced and s.settling is not None and s.settling.seen is not None:
            yield "stopped, and another process goes on", after._replace(stale=s.settling)

    # -- the cut-over -------------------------------------------------------------------------------------------------

    def lock(self, s: State) -> Iterator[Step[State]]:
        if s.stage == FILLED and s.settling is None and not (self.r.barrier and s.open):
            yield "the source is locked, the full copy level", s._replace(stage=LOCKED)

    def give_up(self, s: State) -> Iterator[Step[State]]:
        if s.stage == LOCKED and self.b.gives_up and s.settling is None:
            yield "the attempt is given up", s._replace(stage=FILLED)

    def switch(self, s: State) -> Iterator[Step[State]]:
        if s.stage != LOCKED or s.settling is not None:
            return
        if self.r.drained and any(seen for _, _, _, seen in s.notes):
            return
        # What is under way has been committed on the source, whose rows the tables have to hold.
        rows = s.full
        for changes in s.open:
            rows = changed(rows, changes)
        yield "the tables are switched", s._replace(stage=SWITCHED, truth=(kept(rows), rest(rows)), left=s.full)

    def live_write(self, s: State) -> Iterator[Step[State]]:
        """The application's, to the table that was new."""
        if s.stage == SWITCHED and s.live:
            for key in range(self.b.keys):
                if s.new[key] != NONE:
                    yield (
                        f"application: DELETE {_name(key)}",
                        s._replace(new=put(s.new, key, NONE), live=s.live - 1),
                    )

    def set_aside(self, s: State) -> Iterator[Step[State]]:
        if s.stage != SWITCHED or s.aside == self.b.keys:
            return
        key, side, left = s.aside, s.side, s.left
        is_loser = left[key] != NONE and not stays(left, key)
        if not self.r.left_over_by_copy:
            is_loser = left[key] != NONE and s.new[key] == NONE
        if is_loser:
            side = put(side, key, left[key])
        if not self.r.copy_kept_whole:
            left = put(left, key, NONE)
        yield f"set aside: looks at {_name(key)}", s._replace(side=side, left=left, aside=key + 1)

    def finish(self, s: State) -> Iterator[Step[State]]:
        if s.stage == SWITCHED and s.aside == self.b.keys:
            yield "the full copy is dropped", s._replace(stage=DONE)

    # -- what has to hold ---------------------------------------------------------------------------------------------

    def wrong(self, s: State) -> str | None:
        if s.stage in (FILLED, LOCKED) and s.settling is None and (alarm := self._alarm(s)):
            return alarm
        if s.truth is not None and s.live == self.b.live_writes and s.new != s.truth[0]:
            return f"the new table is {_rows(s.new)} and not {_rows(s.truth[0])}"
        if s.stage == DONE and s.truth is not None and s.side != s.truth[1]:
            return f"the side table is {_rows(s.side)} and not {_rows(s.truth[1])}"
        return None

    def _alarm(self, s: State) -> str | None:
        """What the comparison says at this moment: rows that no note explains are wrong for certain."""
        keys = {k for _, k, _, seen in s.notes if seen}
        values = {v for _, _, v, seen in s.notes if seen}
        for key, (has, should) in enumerate(zip(s.new, kept(s.full), strict=True)):
            if has != should and key not in keys and not {has, s.full[key]} - {NONE, NULL} & values:
                return f"{_name(key)} is {has} in the new table, which no note explains; it should be {should}"
        return None

    def is_end(self, s: State) -> bool:
        return s.stage == DONE


ACTIONS = (
    "write", "commit", "make_triggers", "begin_fill", "read_to_fill", "fill",
    "read_early", "read_notes", "want", "look", "settle", "settle_late",
    "crash", "lock", "give_up", "switch", "live_write", "set_aside", "finish",
)  # fmt: skip


def _name(key: int) -> str:
    return "ABCDEFG"[key]


def _said(changes: Changes) -> str:
    words = (f"DELETE {_name(k)}" if v == NONE else f"{_name(k)}={'NULL' if v == NULL else v}" for k, v in changes)
    return ", ".join(words) or "nothing"


def _notes(batch: tuple[tuple[int, int, int], ...]) -> str:
    return ", ".join(f"{_name(key)}:{'NULL' if value == NULL else value}" for _, key, value in batch)


def _rows(rows: Rows) -> str:
    return "{" + ", ".join(f"{_name(k)}={v}" for k, v in enumerate(rows) if v != NONE) + "}"
