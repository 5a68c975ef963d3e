"""The world of the model of copying between two servers: rules, bounds, and all that is kept anywhere as one value.

The source has the table, its log and our marker rows; the target has the rows, the ledger, tombstones, lease and
checkpoint. Two variants: "marker" (a row is written on the source, whose place in the log says when a chunk was opened)
and "position" (nothing is written on the source).

What must stay true: as in rows_world.py, whose words for rows, keys and changes are used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.models.rows_world import Changes, Entry, Rows, Stale

MARKER, POSITION = "marker", "position"

# -- the ledger -------------------------------------------------------------------------------------------------------
UNOPENED, OPEN, LANDED, MATCHED = range(4)

# -- a copy task: an attempt at a chunk -------------------------------------------------------------------------------
EARLY, MARKING, MARKED, OPENED, READ, CHECKED, WRITING, LATE, GONE = range(9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """M… and R… are the numbers of the design; a flag that is True is what our code, or the server, does."""

    # Opening
    opened_first: bool = True
    """The chunk is open in the ledger, committed, before its rows are read (M1)."""
    ledger_before_marker: bool = True
    """Marker: ... and before the marker is written on the source (M1, R10)."""
    marker_returned: bool = True
    """Marker: its commit has returned, then SELECT (M4)."""
    ordered_commits: bool = True
    """The source makes commits visible in the order of its log (R2); a precondition that is watched."""
    checkpoint_locked: bool = True
    """Position: the transaction that opens locks the checkpoint's row, and so do all of catch-up's (M2)."""
    ledger_read_behind_lock: bool = True
    """Position: catch-up reads which chunks are open only when it has that lock (M2)."""
    end_noted: bool = True
    """Position: with several workers the batch's end is noted before the first of them writes (M2)."""
    position_contained: bool = True
    """Position: SELECT waits until what is visible contains where catch-up was at "open" (M3)."""
    # Tombstones
    tombstones: bool = True
    """While a chunk is unmatched the keys of deletes are noted, and deleted again when it has landed (R4)."""
    tombstones_of_old_keys: bool = True
    """... of a key change's old side as well."""
    tombstones_cleared: bool = True
    """A later row image takes its key off the list."""
    tombstones_durable: bool = True
    """They are in a table (M6)."""
    tombstones_with_rows: bool = True
    """They are written in the transaction that deletes the row (M6)."""
    tombstones_never_reset: bool = True
    """Marker: another "opened" of the chunk leaves them as they are (M4, R9)."""
    pruned_behind_oldest: bool = True
    """What is kept for one unmatched chunk is not forgotten when another one is matched."""
    # Attempts
    fence_attempt: bool = True
    """The landing transaction looks whether its attempt is the chunk's newest (R8)."""
    fence_open: bool = True
    """... and whether the chunk is still open (R8)."""
    fence_locks: bool = True
    """... and keeps that row locked to its end (R8)."""
    bump_spares_landed: bool = True
    """No attempt opens a chunk again that has landed (R11)."""
    attempts_numbered: bool = True
    """Every attempt has a number of its own."""
    # Landing
    rows_before_landed: bool = True
    """"landed" is not committed before the rows (R7)."""
    landed_with_rows: bool = True
    """Rows and "landed" are one transaction (R7)."""
    polled_fresh: bool = True
    """"landed" is read as it is now, not in an older snapshot (M5, R12)."""
    deleted_behind_poll: bool = True
    """Tombstoned keys are deleted again when "landed" has been read, not before (M5, R12)."""
    deleted_in_stream: bool = True
    """... between two groups of the stream, not by a side thread (M5, R5)."""
    locking_deletes: bool = True
    """... blind, and waiting for rows that a landing transaction holds (M5, R6)."""
    locking_writes: bool = True
    """So is every write of catch-up: it is not left out where no row can be seen."""
    matched_with_deletes: bool = True
    """... and "matched" is set in that transaction (M5)."""
    matched_ignored: bool = True
    """Marker: an "opened" of a chunk that is matched is ignored (R12)."""
    matched_by_ledger: bool = True
    """Marker: ... as the ledger says at that moment, not as catch-up remembers."""
    # Checkpoint
    checkpoint_behind_rows: bool = True
    """The checkpoint is saved with or after the rows before it (R13)."""
    checkpoint_with_rows: bool = True
    """... by one worker in the rows' own transaction (M6)."""
    applier_lease: bool = True
    """Every transaction of catch-up looks whether the lease is still its own (R16)."""
    applier_lease_locks: bool = True
    """... and keeps that row locked to its end (R16)."""


MARKER_ONLY = frozenset(
    (
        "ledger_before_marker",
        "marker_returned",
        "ordered_commits",
        "tombstones_never_reset",
        "matched_ignored",
        "matched_by_ledger",
    )
)
POSITION_ONLY = frozenset(("checkpoint_locked", "ledger_read_behind_lock", "end_noted", "position_contained"))


class Task(NamedTuple):
    """locks: keys of the target that it has locked. waits: groups that have to become visible before it may SELECT."""

    chunk: int
    attempt: int
    phase: int
    rows: Rows = ()
    inserted: int = 0
    locks: int = 0
    waits: int = 0


class State(NamedTuple):
    """source: the table with all that is in the log; seen: what a SELECT finds; hidden: in the log, not yet visible.

    log: from the checkpoint on, of which `applied` entries have been. todo: changes of a batch that are still to be
    written. opened: chunks that catch-up takes for open. is_begun: its transaction (position) has begun. noted: the
    end of the batch in hand, as the checkpoint's row says. tombs: for each key the chunks for whose sake it is kept.
    pending: keys still to be deleted before the stream goes on; late: those of a side thread; deleted: chunks for which
    it was done too early; remembered: those that catch-up remembers as matched."""

    source: Rows
    seen: Rows
    target: Rows
    writes: int
    log: tuple[Entry, ...] = ()
    hidden: tuple[Entry, ...] = ()
    applied: int = 0
    todo: Changes = ()
    opened: int = 0
    is_begun: bool = False
    noted: int = 0
    tombs: Rows = ()
    chunks: tuple[tuple[int, int], ...] = ()
    tasks: tuple[Task, ...] = ()
    crashes: int = 0
    stale: Stale | None = None
    pending: int = 0
    late: int = 0
    deleted: int = 0
    remembered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. ranges: the keys of each chunk. attempts: at each chunk.

    is_lazy: the checkpoint may stay behind the rows for any time, so that a restart applies them again. workers: a
    batch of two groups is written key by key.
    """

    variant: str = MARKER
    starts: tuple[Rows, ...] = ((1,),)
    ranges: Rows = (1,)
    writes: int = 2
    attempts: int = 2
    key_changes: bool = True
    crashes: int = 0
    is_lazy: bool = False
    workers: bool = False
    has_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rules: Rules
    bounds: Bounds

    @property
    def is_marker(self) -> bool:
        return self.bounds.variant == MARKER


Steps = Iterator[tuple[str, State]]
