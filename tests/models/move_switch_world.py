"""The world of the model of the switch between two servers: rules, bounds, and all that is kept anywhere as one value.

Side 0 is the server that the tables come from (S), side 1 the one they move to (T), which is home: decision, lease and
checkpoints are there. Round 0 switches from S to T, round 1 back, and so on; "from" and "to" are those of the round.

What must stay true: as in rows_world.py. A table's rows are told by the writes that are in it: the last one, for the
row that every write changes, and all of them, for the row that each one inserts. Every write changes all tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

NAMES = "ST"
Entry = tuple[Any, ...]
Table = tuple[int, int]
"""(the last write in it, the set of writes in it)."""
Statement = tuple[str, int]
"""(create, drop, open or idle, the side)."""

# -- the decision row -------------------------------------------------------------------------------------------------
RUNNING, DENYING, ABORTING, DECIDED, ALL_OPEN = "running", "denying", "aborting", "decided", "opened"

# -- a driver ---------------------------------------------------------------------------------------------------------
(
    ABSENT,
    LISTED,
    IDLE,
    INTENT,
    LOCKED,
    CREATING,
    DENIED,
    MARKED,
    LEVEL,
    FENCED,
    LOOKED,
    STARTED,
    AT_DECIDED,
    OPENING,
    OPEN,
    TOLD,
    HOOKED,
    AT_ABORTING,
    DROPPING,
    DROPPED,
    DECIDING,
    RELEASING,
    RELEASED,
    ENDED,
) = range(24)
HAS_DENIED = (DENIED, MARKED, LEVEL, FENCED, LOOKED, STARTED)
MAY_GIVE_UP = (INTENT, LOCKED, *HAS_DENIED, DECIDING, RELEASED)
BY_DECISION = {RUNNING: IDLE, DENYING: INTENT, ABORTING: AT_ABORTING, DECIDED: AT_DECIDED, ALL_OPEN: TOLD}

# -- an XA branch -----------------------------------------------------------------------------------------------------
UNUSED, PREPARED, BRANCH_OVER = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """W… are the numbers of the design; a flag that is True is what our code, or the server, does."""

    intent_first: bool = True
    """"denying" is committed at home before anything is done on the side that is left (W1)."""
    created_by_holder: bool = True
    """Triggers are created in the session that holds the lock; lock lost: begin again (W2)."""
    table_lock: bool = True
    """LOCK TABLES takes InnoDB's table lock too, so it waits for prepared branches (W2)."""
    branches_looked_at: bool = True
    """No branch was held when the marker was applied (W3)."""
    marker_behind_deny: bool = True
    """The last marker is written when writes are denied (W3)."""
    marker_applied: bool = True
    """... and is applied, not only in the log (W3)."""
    barrier_whole: bool = True
    """... as is the checkpoint behind it, when every table's part of every group before is written."""
    fenced: bool = True
    """The stream is stopped and its lease taken (W4)."""
    looked_again: bool = True
    """... and then its checkpoint is past the marker (W4)."""
    noted_before_open: bool = True
    """The start of the stream back is noted before the other side opens (W6)."""
    decided_before_open: bool = True
    """"decided" is committed before the other side opens (W7)."""
    decide_conditional: bool = True
    """... if the decision is still "denying" and the lease ours (W7)."""
    abort_noted: bool = True
    """"aborting" is committed before the triggers are dropped."""
    abort_conditional: bool = True
    """... if the decision is still "denying" and the lease ours."""
    dropped_before_running: bool = True
    """"running" is committed when they are dropped."""
    kept_once_asked: bool = True
    """While home is away the triggers are dropped only by a driver that has not asked it to decide."""
    hook_repeated: bool = True
    """The route hook is repeated until it says yes (W8)."""
    forward_only: bool = True
    """Whatever it says, nothing goes back from "decided" on (W8)."""
    starts_at_noted: bool = True
    """The stream back never begins before the start that was noted (W9, M6)."""
    own_skipped: bool = True
    """Groups that hold our own sidecar row are passed over (W9)."""
    exempt: bool = True
    """The stream back may write where others are denied (W9)."""
    connections_ended: bool = True
    """Who takes over ends the old driver's connections on both servers and sees them gone (W10)."""
    ended_on_source: bool = True
    """... on S, not only at home (W10)."""
    list_is_newest: bool = True
    """... and, when it takes the lease, that no new ones have been announced since."""
    lost_ended: bool = True
    """A session whose answer was lost is ended, and seen gone, before its statement is sent again."""


class Side(NamedTuple):
    """is_there: the tables have their name. holder: the driver whose session has them locked. open: transactions."""

    tables: tuple[Table, ...]
    is_there: bool = True
    is_denied: bool = False
    holder: int = 0
    open: int = 0
    log: tuple[Entry, ...] = ()

    @property
    def accepts(self) -> bool:
        return self.is_there and not self.is_denied


class Stream(NamedTuple):
    """From the side of its number to the other. done: entries of the log that have been taken, of which those before
    `saved` are in the checkpoint; todo: parts (table, write) of the last one that are still to be written."""

    runs: bool = False
    done: int = 0
    saved: int = 0
    todo: tuple[tuple[int, int], ...] = ()
    is_held: bool = False
    held_saved: bool = False


class Driver(NamedTuple):
    """run: which connections it has. sent: the statement that it waits for; late: statements whose answer it will not
    get, which the server may still execute."""

    phase: int = ABSENT
    reaches: bool = True
    run: int = 1
    has_lock: bool = False
    marker: int = 0
    tries: int = 0
    sent: Statement | None = None
    late: tuple[Statement, ...] = ()


class State(NamedTuple):
    """accepted: writes that the application was told are in. passed: the last marker that is noted as applied, and
    whether a branch was held at it. noted: where in its log the stream back is to start, -1: nowhere yet. listed: the
    connections that who takes over has ended."""

    sides: tuple[Side, Side]
    streams: tuple[Stream, Stream]
    drivers: tuple[Driver, ...]
    decision: str = RUNNING
    round: int = 0
    lease: int = 1
    accepted: int = 0
    writes: int = 0
    route: int = 0
    branch: tuple[int, int] = (UNUSED, 0)
    marks: int = 0
    passed: int = 0
    was_held: bool = False
    noted: int = -1
    listed: int = 0
    losses: int = 0
    crashes: int = 0
    outages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. tries: attempts of a driver in a round. runs: how often a driver may come back with new
    connections. losses: sessions lost. crashes: of a stream; before the last of them checkpoints may be late.
    outages: how often home does not answer a driver whose session on the other side is there."""

    writes: int = 2
    tables: int = 1
    rounds: int = 1
    tries: int = 1
    drivers: int = 1
    runs: int = 1
    losses: int = 0
    crashes: int = 0
    outages: int = 0
    has_branch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rules: Rules
    bounds: Bounds


def origin(s: State) -> int:
    return s.round % 2


def side(s: State, number: int, **changed: Any) -> State:
    made = s.sides[number]._replace(**changed)
    return s._replace(sides=(made, s.sides[1]) if number == 0 else (s.sides[0], made))


def stream(s: State, number: int, **changed: Any) -> State:
    made = s.streams[number]._replace(**changed)
    return s._replace(streams=(made, s.streams[1]) if number == 0 else (s.streams[0], made))


def driver(s: State, number: int, **changed: Any) -> State:
    made = s.drivers[number - 1]._replace(**changed)
    return s._replace(drivers=(*s.drivers[: number - 1], made, *s.drivers[number:]))


def released(s: State, number: int) -> State:
    """The driver's lock is gone, wherever it was."""
    for place in (0, 1):
        if s.sides[place].holder == number:
            s = side(s, place, holder=0)
    return s


def whole(s: State) -> Table:
    """What every table of an open side must hold."""
    return s.accepted, (1 << s.accepted) - 1


def said(tables: tuple[Table, ...]) -> str:
    found = [
        "write " + str(last) + ("" if mask == (1 << last) - 1 else " with others missing") for last, mask in tables
    ]
    return " and ".join(found)


Steps = Iterator[tuple[str, State]]


def acting(s: State, *phases: int) -> Iterator[tuple[int, Driver]]:
    for number, d in enumerate(s.drivers, 1):
        if d.phase in phases and d.reaches:
            yield number, d


def who(s: State, number: int) -> str:
    return "the driver" if len(s.drivers) == 1 else f"driver {number}"


def owns(s: State, number: int) -> bool:
    return s.lease == number
