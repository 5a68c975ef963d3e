"""The world of the switch model: names, locks, sessions, the log behind the last write, and two drivers, as one value.

What must stay true: as in rows_world.py. Rows are one number here, the version that the last write gave the table: the
rows model shows that a shadow to which everything is applied is right, this one that RENAME comes only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# -- a driver's attempt -----------------------------------------------------------------------------------------------
(
    IDLE,
    CONNECTED,
    GUARDED,
    LOCKED,
    MARKED,
    LEVEL,
    FENCED,
    SENT,
    SEEN,
    DROPPED,
    UNLOCKED,
    ENDING,
    LOOKING,
    REMOVING,
    DONE,
    ENDED,
    DEAD,
) = range(17)
OVER = (DONE, ENDED, DEAD)

# -- the server's side of a RENAME ------------------------------------------------------------------------------------
NO_RENAME, IN_SOCKET, QUEUED, QUEUED_ELSEWHERE, RENAMED, FAILED = range(6)
UNANSWERED = (IN_SOCKET, QUEUED, QUEUED_ELSEWHERE)

# -- a writer ---------------------------------------------------------------------------------------------------------
WAITING, WRITING, COMMITTED = range(3)

# -- an XA branch -----------------------------------------------------------------------------------------------------
UNUSED, ATTACHED, DETACHED, BRANCH_OVER = range(4)
PREPARED = (ATTACHED, DETACHED)

# -- a takeover -------------------------------------------------------------------------------------------------------
NOBODY, LISTED, KILLED, BUMPED, SETTLED = range(5)


class Driver(NamedTuple):
    """One driver and the sessions of its attempt: a locks, b renames, c observes; b is the client's view.

    run: number of the attempt, and of its sessions. marker: the attempt's marker, 0 none. reaches: its control session
    lives.
    """

    phase: int = IDLE
    run: int = 0
    a: bool = False
    b: bool = False
    c: bool = False
    rename: int = NO_RENAME
    is_fenced: bool = False
    marker: int = 0
    reaches: bool = True


class State(NamedTuple):
    """holder: the driver whose session a has the table locked. version: of the source; shadow: what the shadow holds.

    present: markers whose row is there; noted: those recorded as applied, held_then: of these the ones at which the
    matcher held a branch. holding: the marker at which catch-up stands still.
    """

    drivers: tuple[Driver, ...]
    is_switched: bool = False
    sentry: bool = False
    holder: int = 0
    version: int = 0
    shadow: int = 0
    is_whole: bool = True
    writers: tuple[int, ...] = ()
    branch: int = UNUSED
    foreign: bool = False
    log: tuple[tuple[Any, ...], ...] = ()
    applied: int = 0
    is_held: bool = False
    holding: int = 0
    held_saved: bool = False
    present: int = 0
    noted: int = 0
    held_then: int = 0
    has_repaired: bool = False
    lease: int = 1
    takeover: int = NOBODY
    listed: int = 0
    losses: int = 0
    crashes: int = 0
    deaths: int = 0
    wrong: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. runs: attempts of each driver. losses: sessions lost. deaths: a driver killed.

    foreign: an XA branch of other tables is prepared all the while, so that the checkpoint stays far back.
    """

    writers: int = 2
    runs: int = 1
    losses: int = 0
    crashes: int = 0
    deaths: int = 0
    has_branch: bool = False
    is_mariadb: bool = True
    has_foreign: bool = False
    has_takeover: bool = False
    earlier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rules: Any
    bounds: Bounds


def driver(s: State, number: int) -> Driver:
    return s.drivers[number - 1]


def with_driver(s: State, number: int, **changed: Any) -> State:
    made = driver(s, number)._replace(**changed)
    return s._replace(drivers=(*s.drivers[: number - 1], made, *s.drivers[number:]))


def who(s: State, number: int) -> str:
    return "driver" if len(s.drivers) == 1 else f"driver {number}"


Steps = Iterator[tuple[str, State]]
