"""Where a workflow stands: one enum, one table of allowed moves. An unknown phase fails closed."""

from __future__ import annotations

from enum import StrEnum

from vreplication.errors import Terminal


class Phase(StrEnum):
    PLANNING = "planning"
    """Reading the table and the server; nothing is touched."""
    PREPARING = "preparing"
    """Sidecar, lease, shadow table, start position, key range."""
    COPYING = "copying"
    """Row copy and catch-up run beside each other; catch-up goes first."""
    CATCHING_UP = "catching_up"
    """Every chunk is copied; the log is being applied until we are level."""
    VERIFYING = "verifying"
    """Source and shadow table are compared row by row under live writes."""
    WAITING = "waiting"
    """Held at the gate: an operator's release, a blocker, or a backlog."""
    CUTTING_OVER = "cutting_over"
    """The cut-over is being tried."""
    SWITCHED = "switched"
    """Tables have moved and the application writes to the target; the source is kept level, for the way back."""
    STREAMING = "streaming"
    """A change feed sends what the log shows, until it is told to end."""
    COMPLETE = "complete"
    """The new table is in place."""
    FAILED = "failed"
    """Ended with an error; the source table is untouched."""
    CANCELLED = "cancelled"
    """The operator ended it; what we made is removed."""


_ORDER = (
    Phase.PLANNING,
    Phase.PREPARING,
    Phase.COPYING,
    Phase.CATCHING_UP,
    Phase.VERIFYING,
    Phase.WAITING,
    Phase.CUTTING_OVER,
    Phase.SWITCHED,
    Phase.COMPLETE,
)
ENDED = frozenset({Phase.COMPLETE, Phase.FAILED, Phase.CANCELLED})
"""Nothing works on it any more. A failed one may be resumed, and has what it made."""
OVER = frozenset({Phase.COMPLETE, Phase.CANCELLED})
"""Ended for good: nothing resumes it, and its table is free for another."""


def _moves() -> dict[Phase, frozenset[Phase]]:
    """Forward along the order; back to any working phase (a resume, a repair); to an end from anywhere."""
    working = frozenset(_ORDER[2:8])
    table = {
        phase: frozenset(_ORDER[i + 1 :]) | (working if phase in working else frozenset())
        for i, phase in enumerate(_ORDER)
    }
    for phase in _ORDER[:-1]:
        table[phase] |= {phase, Phase.FAILED, Phase.CANCELLED}
    table[Phase.PREPARING] |= {Phase.STREAMING}
    table[Phase.STREAMING] = frozenset({Phase.STREAMING, Phase.COMPLETE, Phase.FAILED, Phase.CANCELLED})
    # A failed workflow may be cancelled (its leftovers removed). Going on with it is an act of its own (`reopen`), so
    # that a driver which has not heard of the failure yet cannot walk over it.
    table[Phase.FAILED] = frozenset({Phase.CANCELLED})
    table[Phase.COMPLETE] = frozenset()
    table[Phase.CANCELLED] = frozenset()
    return table


MOVES = _moves()


def check_move(old: Phase, new: Phase) -> None:
    """Raise Terminal when a workflow may not go from `old` to `new`."""
    if new not in MOVES[old]:
        raise Terminal(f"A workflow cannot go from {old} to {new}.")
