"""Preparation: start position, marker, XA RECOVER, key range.

    read_position  `workflows.online_ddl.prepare._mark_start`: where the log stands
    send_marker    the same: `state.markers.write`, up to the log; "visible" is its return
    list_branches  `workflows.online_ddl.prepare._wait_for_branches`: XA RECOVER behind the marker
    see_ended      the same: until each branch of that list has left it
    read_range     `workflows.online_ddl.prepare._cut_range`: min and max of the key, the splits; then catch-up starts

What must stay true: nothing of ours is in the log before `read_position`, and nothing of ours reads it from before.
"""

from __future__ import annotations

from tests.models.rows_application import Steps
from tests.models.rows_tasks import listed, said_branches
from tests.models.rows_world import (
    BRANCHES_ENDED,
    MARKER_RETURNED,
    MARKER_SENT,
    MATCHED,
    NOT_BEGUN,
    POSITION_READ,
    PREPARATION_DONE,
    UNOPENED,
    Rows,
    State,
    World,
    bits,
    present,
    said_keys,
)


def read_position(w: World, s: State) -> Steps:
    if s.stage == NOT_BEGUN and (w.rules.range_behind_marker or s.ranges):
        yield "start: the log's position is read", s._replace(stage=POSITION_READ)


def send_marker(w: World, s: State) -> Steps:
    if s.stage != POSITION_READ:
        return
    if not w.rules.start_marker:
        yield "start: no marker", s._replace(stage=MARKER_RETURNED)
    else:
        after = s._replace(stage=MARKER_SENT, hidden=(*s.hidden, ("start",)))
        yield "start: the marker is in the log", after


def list_branches(w: World, s: State) -> Steps:
    if s.stage == MARKER_RETURNED:
        waits = listed(s) if w.rules.branches_ended_at_start else 0
        yield f"start: waits for {said_branches(waits)}", s._replace(stage=BRANCHES_ENDED, waits=waits)


def see_ended(w: World, s: State) -> Steps:
    if s.stage == BRANCHES_ENDED and s.waits and s.waits & listed(s) != s.waits:
        yield "start: a branch has ended", s._replace(waits=s.waits & listed(s))


def read_range(w: World, s: State) -> Steps:
    if s.stage == NOT_BEGUN and not w.rules.range_behind_marker and not s.ranges:
        yield f"start: the range is {said_keys(span(s.seen))}", ranged(s)
    elif s.stage == BRANCHES_ENDED and not s.waits:
        after = s if s.ranges else ranged(s)
        words = f"start: the range is {said_keys(after.ranges[0])}; catch-up starts"
        yield words, after._replace(stage=PREPARATION_DONE, run=1, is_fresh=False, log=(*s.log, ("mark", 1)))


def ranged(s: State) -> State:
    """One chunk from the lowest to the highest key; an empty table has nothing to copy."""
    keys = span(s.seen)
    return s._replace(ranges=(keys,), chunks=((UNOPENED if keys else MATCHED, 0),), attempts=(0,))


def span(rows: Rows) -> int:
    found = bits(present(rows))
    return sum(1 << k for k in range(found[0], found[-1] + 1)) if found else 0
