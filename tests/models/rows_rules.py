"""The rules of the rows model: each a flag that can be taken out, named as in docs/correctness.md.

What must stay true: a flag that is True is what our code does (or, where it says so, what the server does for us).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    # Reading
    opened_before_read: bool = True
    """A chunk's rows are read behind "opened", not before."""
    opened_has_returned: bool = True
    """... and its commit has returned by then (R1, F1)."""
    ordered_commits: bool = True
    """The server makes commits visible in the order of its log (R2); a precondition that is watched."""
    branches_awaited: bool = True
    """MariaDB: behind "opened" the branches that XA RECOVER lists are waited for (F1b)."""
    copy_without_limit: bool = True
    """The copying statement has both bounds and no LIMIT (F2)."""
    # Preparation
    start_marker: bool = True
    """A marker is committed between the start position and what is read from the table (R3)."""
    range_behind_marker: bool = True
    """The key's min and max are read behind the start marker (F1)."""
    # Tombstones
    tombstones: bool = True
    """While a chunk is open the keys of deletes are noted, and deleted again when it lands (R4)."""
    tombstones_of_old_keys: bool = True
    """... of a key change's old side as well."""
    tombstones_cleared: bool = True
    """A later row image takes its key off the list."""
    tombstones_durable: bool = True
    """They are in a table (else the checkpoint must stay before open chunks)."""
    tombstones_with_rows: bool = True
    """They are written in the transaction that deletes the row."""
    tombstones_never_reset: bool = True
    """Another "opened" of the same chunk leaves the list as it is (R9)."""
    pruned_behind_oldest: bool = True
    """What is kept for one open chunk is not forgotten when another one is matched."""
    # Landing
    rows_before_landed: bool = True
    """"landed" is not committed before the rows (R7)."""
    landed_with_rows: bool = True
    """Rows and "landed" are one transaction (R7)."""
    landed_in_stream: bool = True
    """The tombstoned keys are deleted at landed's place in the stream, not by a side thread (R5)."""
    locking_deletes: bool = True
    """Deletes are blind and wait for rows that a landing transaction holds (R6)."""
    matched_with_deletes: bool = True
    """What the ledger calls landed behind a restart's fresh marker is not called matched without deleting again."""
    # Attempts
    fence_attempt: bool = True
    """The landing transaction looks whether its attempt is the chunk's newest (R8)."""
    fence_locks: bool = True
    """... and keeps that row locked to its end (R8)."""
    fence_open: bool = True
    """... and looks whether the chunk is still open (R8)."""
    claim_spares_landed: bool = True
    """A claim leaves chunks that have landed as they are (R11)."""
    claim_bumps: bool = True
    """Every claim of a split takes a new attempt number."""
    landing_lease: bool = True
    """The landing transaction looks whether the workflow is still its driver's (F9c)."""
    opening_lease: bool = True
    """So do the transactions that claim a split and open a chunk (F9c)."""
    not_cleaned: bool = True
    """A chunk's range is not cleaned by the transaction that lands it (R15)."""
    cleared_before_opened: bool = True
    """A repair clears its range before its chunk is opened (R15)."""
    clearing_lease: bool = True
    """Clearing looks whether the workflow is still its driver's (F9c)."""
    # Checkpoint
    checkpoint_behind_rows: bool = True
    """The checkpoint is saved with or after the rows before it (R13)."""
    branches_remembered: bool = True
    """A restart has the rows of the branches that were held at the checkpoint (R13)."""
    nothing_applied_twice: bool = True
    """... and what it reads again to get them is not applied again, nor judged again."""
    checkpoint_in_order: bool = True
    """Who can read a checkpoint can read the ledger's rows before it: one server's commits, and it is read first."""
    applier_lease: bool = True
    """Every transaction of catch-up looks whether the lease is still its own (R16)."""
    applier_lease_locks: bool = True
    """... and keeps that row locked to its end, so that a takeover waits or ends it (R16)."""
    # Branches
    rows_held: bool = True
    """Rows of a prepared branch wait for its outcome (R17)."""
    branches_ended_at_start: bool = True
    """No chunk opens before the branches listed at the start have ended (R18)."""
    unknown_refused: bool = True
    """The commit of a branch whose PREPARE was not read ends the workflow, once a chunk is open (R19)."""
    # Order
    full_barrier: bool = True
    """A batch is flushed whole before anything of the next one (U1)."""
    nothing_dropped: bool = True
    """Changes of rows that the copy has not come to are applied like all others (U2, F5)."""
    pushed_out_noted: bool = True
    """Under a new unique key what a write pushes out, or an INSERT IGNORE swallows, is noted as dirty (U4)."""
    # The gate
    gate_copied: bool = True
    """The cut-over waits until every split has been walked to its end."""
    gate_matched: bool = True
    """... and until every chunk is matched, not only landed."""
    gate_dirty: bool = True
    """... and until nothing is dirty: what was pushed out or swallowed is copied again (U4)."""
    dirty_under_lock: bool = True
    """... which is looked at once more under the lock."""
    pushed_out_tombstoned: bool = True
    """A row that is pushed out becomes a tombstone (U4)."""
    forgets_older: bool = True
    """A key that is pushed out while it is copied again stays dirty."""
