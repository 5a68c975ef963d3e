"""The rules of the switch model; as rows_rules.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    # The order of an attempt
    lock_before_marker: bool = True
    """The table is locked before the marker is written (R21)."""
    marker_applied: bool = True
    """The marker is applied, not only in the log (R22)."""
    branches_looked_at: bool = True
    """No branch was held when the marker was applied (R21)."""
    table_lock: bool = True
    """LOCK TABLES takes InnoDB's table lock too: a prepared branch makes it wait, with or without a metadata lock."""
    holds: bool = True
    """Catch-up stands still behind the marker."""
    sentry: bool = True
    """A sentry under the retired name."""
    rename_seen: bool = True
    """The sentry is dropped when RENAME is seen waiting (R23)."""
    dropped_by_holder: bool = True
    """... by the session that holds the lock, so not when the lock has gone."""
    names_sort_after: bool = True
    """RENAME's first lock is the table's own (R24, F18)."""
    # The end of an attempt
    looked_up: bool = True
    """The result is told by table identity, not by the answer (F20)."""
    rename_gone: bool = True
    """... when the session that renames has gone."""
    # Drivers
    connections_ended: bool = True
    """Who takes over ends the old one's connections first (F9c)."""
    lease_checked: bool = True
    """RENAME is sent under the lease (F9c)."""
    lease_locked: bool = True
    """... whose row stays locked until RENAME has answered."""
    list_is_newest: bool = True
    """Who takes over finds out under the lease row's lock whether the old one has come back with new connections."""
    marker_fenced: bool = True
    """The marker is written under the lease."""
    removed_under_lease: bool = True
    """An old sentry is removed under the lease."""
    # Catch-up
    nothing_applied_twice: bool = True
    """A restart begins at what has been applied, however far back the oldest open branch was prepared."""
