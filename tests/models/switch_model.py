"""The cut-over: two sessions, a sentry, a barrier, whoever may be lost meanwhile, and another driver that takes over.

When RENAME moves the tables, the shadow must hold every write that the source has committed, no prepared branch may be
left that has changed the source, and nobody may be repairing the shadow; a driver must not take a cut-over for none.
The application's writes and catch-up are in switch_writes.py. What each action stands for:

    begin         `workflows.online_ddl.gate.hold_at_gate` passed; `cutover.attempt.CutOver.attempt`:
                  its sessions are open and announced (`engine.driver.Driver.announce`)
    place_sentry  `cutover.attempt._Attempt._place_sentries`
    lock          `cutover.attempt._Attempt._lock`
    mark          `workflows.online_ddl.switching._Attempt._barrier`: `state.markers.write`
    pass_barrier  the same: `state.markers.wait_applied`, and no branch was held
    fence         `cutover.attempt._Attempt._switch`: `state.lease.fence` in the observer's transaction
    send          `cutover.rename.Rename.send`
    see           `cutover.rename.Rename.wait_until_pending`
    drop, unlock  `cutover.attempt._Attempt._rename_and_unlock`
    finish        `cutover.rename.Rename.finish`
    give_up       any of these raises, or `cutover.watchdog.Watchdog` fires: `cutover.rename.Rename.end`
    let_go        `cutover.attempt._Attempt._unlock`
    look          `cutover.outcome.Lookup._look`: `cutover.outcome.Lookup._wait_until_gone`, `cutover.decide.decide`
    remove        `cutover.outcome.Lookup._remove_sentries`, `state.markers.remove`
    rename        the server: RENAME's locks in the order of the names, then the move
    lose          a session is lost or killed; or only our side of it is, and the server's goes on
    die           kill -9 of the driver; the server ends its sessions, but a RENAME goes on
    take_over     `state.lease.acquire` (the list, `KILL`, `state.lease._bump`),
                  `workflows.online_ddl.resume.is_switched`
    repair        `workflows.online_ddl.comparing.compare` of the new driver: a range is cleared and copied again
    write, commit the application; branch: its XA branch; end_foreign: one of other tables
    catch_up      `apply.applier.Applier.take`, `engine.catch_up._hold`; go_on: the marker was taken back
    crash         catch-up starts again from its checkpoint: `engine.catch_up.run_round`

What must stay true: a session, a process and the server may each be as slow as they like; what waits for a lock gets it
in any order, but RENAME before writers, once it is in the table's own queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.models.explorer import Step
from tests.models.switch_rules import Rules
from tests.models.switch_world import (
    ATTACHED,
    BUMPED,
    CONNECTED,
    DEAD,
    DETACHED,
    DONE,
    DROPPED,
    ENDED,
    ENDING,
    FAILED,
    FENCED,
    GUARDED,
    IDLE,
    IN_SOCKET,
    KILLED,
    LEVEL,
    LISTED,
    LOCKED,
    LOOKING,
    MARKED,
    NO_RENAME,
    NOBODY,
    OVER,
    PREPARED,
    QUEUED,
    QUEUED_ELSEWHERE,
    REMOVING,
    RENAMED,
    SEEN,
    SENT,
    SETTLED,
    UNANSWERED,
    UNLOCKED,
    WAITING,
    WRITING,
    Bounds,
    Driver,
    State,
    Steps,
    World,
    driver,
    who,
    with_driver,
)
from tests.models.switch_writes import branch, catch_up, commit, crash, end_foreign, go_on, write


def acting(s: State, *phases: int) -> Iterator[tuple[int, Driver]]:
    """Drivers at one of these points; the second one is there when it has taken over."""
    for number, d in enumerate(s.drivers, 1):
        if d.phase in phases and (number == 1 or s.takeover == SETTLED):
            yield number, d


# -- an attempt -------------------------------------------------------------------------------------------------------


def begin(w: World, s: State) -> Steps:
    """New sessions, announced under the lease. A superseded driver finds out here at the latest."""
    for number, d in acting(s, IDLE):
        if s.lease != number or not d.reaches:
            yield f"{who(s, number)} is superseded", with_driver(s, number, phase=ENDED)
        elif d.run < w.bounds.runs and s.is_whole:
            after = with_driver(
                s, number, phase=CONNECTED, run=d.run + 1, a=True, b=True, c=True, rename=NO_RENAME, marker=0
            )
            yield f"{who(s, number)} opens its sessions", after


def place_sentry(w: World, s: State) -> Steps:
    for number, d in acting(s, CONNECTED):
        if d.c and d.a and s.lease == number and not s.is_switched and is_name_free(s):
            words = f"{who(s, number)} places the sentry"
            yield words, with_driver(s, number, phase=GUARDED)._replace(sentry=w.rules.sentry)


def is_name_free(s: State) -> bool:
    """Nobody holds the retired name's lock."""
    return not s.holder


def lock(w: World, s: State) -> Steps:
    first = GUARDED if w.rules.lock_before_marker else LEVEL
    for number, d in acting(s, first):
        if d.a and not s.is_switched and is_table_free(w, s) and (s.sentry or not w.rules.sentry):
            yield f"{who(s, number)} locks the table", with_driver(s, number, phase=LOCKED)._replace(holder=number)


def is_table_free(w: World, s: State) -> bool:
    if s.holder or WRITING in s.writers:
        return False
    has_lock = s.branch == ATTACHED or (s.branch == DETACHED and not w.bounds.is_mariadb)
    return not has_lock and not (w.rules.table_lock and s.branch in PREPARED)


def mark(w: World, s: State) -> Steps:
    first = LOCKED if w.rules.lock_before_marker else GUARDED
    for number, d in acting(s, first):
        if w.rules.marker_fenced and s.lease != number:
            continue
        bit = 1 << (number * 4 + d.run)
        after = with_driver(s, number, phase=MARKED, marker=bit)
        yield (
            f"{who(s, number)} writes the marker",
            after._replace(log=(*s.log, ("mark", bit)), present=s.present | bit),
        )


def pass_barrier(w: World, s: State) -> Steps:
    for number, d in acting(s, MARKED):
        is_applied = bool(s.noted & d.marker) or not w.rules.marker_applied
        is_clear = not (s.held_then & d.marker) or not w.rules.branches_looked_at
        if is_applied and is_clear:
            yield f"{who(s, number)} finds the marker applied", with_driver(s, number, phase=LEVEL)


def fence(w: World, s: State) -> Steps:
    first = LEVEL if w.rules.lock_before_marker else LOCKED
    for number, d in acting(s, first):
        if d.c and (s.lease == number or not w.rules.lease_checked):
            is_locked = w.rules.lease_locked and w.rules.lease_checked
            yield f"{who(s, number)} looks at its lease", with_driver(s, number, phase=FENCED, is_fenced=is_locked)


def send(w: World, s: State) -> Steps:
    for number, d in acting(s, FENCED):
        if d.b:
            yield f"{who(s, number)} sends RENAME", with_driver(s, number, phase=SENT, rename=IN_SOCKET)


def see(w: World, s: State) -> Steps:
    for number, d in acting(s, SENT):
        if not w.rules.rename_seen:
            yield f"{who(s, number)} does not look whether it waits", with_driver(s, number, phase=SEEN)
        elif d.rename in (QUEUED, QUEUED_ELSEWHERE) and d.b and (d.a or not w.rules.dropped_by_holder):
            yield f"{who(s, number)} sees RENAME waiting", with_driver(s, number, phase=SEEN)


def drop(w: World, s: State) -> Steps:
    for number, d in acting(s, SEEN):
        if d.a or not w.rules.dropped_by_holder:
            yield f"{who(s, number)} drops the sentry", with_driver(s, number, phase=DROPPED)._replace(sentry=False)


def unlock(w: World, s: State) -> Steps:
    for number, d in acting(s, DROPPED):
        if d.a or not w.rules.dropped_by_holder:
            yield f"{who(s, number)} unlocks", unlocked(with_driver(s, number, phase=UNLOCKED), number)


def unlocked(s: State, number: int) -> State:
    return s._replace(holder=0) if s.holder == number else s


def finish(w: World, s: State) -> Steps:
    for number, d in acting(s, UNLOCKED):
        if d.b and d.rename == RENAMED:
            yield f"{who(s, number)} hears that RENAME is done", done(s, number)


def done(s: State, number: int) -> State:
    return with_driver(s, number, phase=DONE, is_fenced=False, a=False, b=False, c=False)


# -- the end of an attempt --------------------------------------------------------------------------------------------


def give_up(w: World, s: State) -> Steps:
    """A deadline, a lost session, a refusal: the lease's lock goes first. RENAME is killed if that can be done."""
    for number, d in acting(s, CONNECTED, GUARDED, LOCKED, MARKED, LEVEL, FENCED, SENT, SEEN, DROPPED, UNLOCKED):
        after = with_driver(s, number, phase=ENDING, is_fenced=False, b=False)
        yield f"{who(s, number)} gives this attempt up", after
        if d.rename in UNANSWERED:
            yield f"{who(s, number)} gives up and kills RENAME", with_driver(after, number, rename=FAILED)


def let_go(w: World, s: State) -> Steps:
    for number, _ in acting(s, ENDING):
        after = with_driver(s, number, phase=LOOKING, a=False, c=False)
        yield f"{who(s, number)} lets go of its locks", unlocked(after, number)


def look(w: World, s: State) -> Steps:
    for number, d in acting(s, LOOKING):
        if d.rename in UNANSWERED and w.rules.rename_gone:
            yield f"{who(s, number)} ends the session that renames", with_driver(s, number, rename=FAILED)
        elif not w.rules.looked_up:
            what = wrong_belief(s)
            yield f"{who(s, number)} takes it for not done", with_driver(s, number, phase=REMOVING)._replace(wrong=what)
        elif s.is_switched:
            yield f"{who(s, number)} finds the tables switched", done(s, number)
        elif s.lease != number:
            yield f"{who(s, number)} is superseded", with_driver(s, number, phase=ENDED)
        else:
            yield f"{who(s, number)} finds the tables as they were", with_driver(s, number, phase=REMOVING)


def wrong_belief(s: State) -> str:
    return "the tables are switched, and the driver does not know it" if s.is_switched else ""


def remove(w: World, s: State) -> Steps:
    """LOCK, look whether it is the sentry, DROP; then the marker is taken back."""
    for number, d in acting(s, REMOVING):
        if s.lease != number and w.rules.removed_under_lease:
            yield f"{who(s, number)} is superseded", with_driver(s, number, phase=ENDED)
        elif is_name_free(s):
            present = s.present & ~d.marker if d.reaches else s.present
            after = with_driver(s, number, phase=IDLE if s.lease == number else ENDED, b=False, marker=0)
            sentry = s.sentry and s.is_switched
            yield f"{who(s, number)} removes sentry and marker", after._replace(sentry=sentry, present=present)


# -- the server -------------------------------------------------------------------------------------------------------


def rename(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if d.rename == IN_SOCKET:
            queue = QUEUED if w.rules.names_sort_after else QUEUED_ELSEWHERE
            yield "RENAME queues for its first lock", with_driver(s, number, rename=queue)
        elif d.rename == QUEUED_ELSEWHERE and not s.holder:
            yield "RENAME has the other name's lock and queues on the table", with_driver(s, number, rename=QUEUED)
        elif d.rename == QUEUED and not s.holder and WRITING not in s.writers:
            yield from granted(w, s, number)


def granted(w: World, s: State, number: int) -> Steps:
    if s.is_switched:
        yield "RENAME fails", with_driver(s, number, rename=FAILED)
    elif s.sentry:
        yield "RENAME fails: the sentry stands", with_driver(s, number, rename=FAILED)
    else:
        after = with_driver(s, number, rename=RENAMED)._replace(is_switched=True, sentry=True)
        yield "RENAME moves the tables", after._replace(wrong=wrong_switch(s, number))


def wrong_switch(s: State, number: int) -> str:
    if s.version != s.shadow:
        return f"the source is at version {s.version}, the new table at {s.shadow}"
    if not s.is_whole:
        return "the new table is being repaired"
    if driver(s, number).phase in (REMOVING, IDLE):
        return "the tables are switched, and the driver has found that they were not"
    return ""


def lose(w: World, s: State) -> Steps:
    if not s.losses:
        return
    for number, d in acting(s, CONNECTED, GUARDED, LOCKED, MARKED, LEVEL, FENCED, SENT, SEEN, DROPPED, UNLOCKED):
        left = s._replace(losses=s.losses - 1)
        if d.a:
            yield f"session a of {who(s, number)} is lost", unlocked(with_driver(left, number, a=False), number)
        if d.b and d.phase > FENCED:
            killed = FAILED if d.rename in UNANSWERED else d.rename
            yield f"session b of {who(s, number)} is killed", with_driver(left, number, b=False, rename=killed)
            yield f"session b of {who(s, number)} loses its client", with_driver(left, number, b=False)
        if d.c:
            yield f"session c of {who(s, number)} is lost", with_driver(left, number, c=False, is_fenced=False)


def die(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if s.deaths and number == 1 and d.phase not in OVER:
            yield f"{who(s, number)} is killed", with_driver(s, number, phase=DEAD)._replace(deaths=s.deaths - 1)
        if d.phase == DEAD and d.a:
            yield f"the server ends session a of {who(s, number)}", unlocked(with_driver(s, number, a=False), number)
        if d.phase == DEAD and d.c:
            yield f"the server ends session c of {who(s, number)}", with_driver(s, number, c=False, is_fenced=False)


# -- taking over ------------------------------------------------------------------------------------------------------


def take_over(w: World, s: State) -> Steps:
    if s.takeover == NOBODY:
        listed = driver(s, 1).run
        yield "driver 2 reads which connections driver 1 has", s._replace(takeover=LISTED, listed=listed)
    elif s.takeover == LISTED:
        yield "driver 2 ends them", killed(w, s)._replace(takeover=KILLED)
    elif s.takeover == KILLED and not driver(s, 1).is_fenced:
        if w.rules.list_is_newest and driver(s, 1).run != s.listed:
            yield "driver 2 finds driver 1 alive", s._replace(takeover=NOBODY)
        else:
            yield "driver 2 takes the lease", s._replace(takeover=BUMPED, lease=2)
    elif s.takeover == BUMPED:
        yield from settle(w, s)


def killed(w: World, s: State) -> State:
    d = driver(s, 1)
    if not w.rules.connections_ended:
        return s
    s = with_driver(s, 1, reaches=False)
    if d.run != s.listed:
        return s
    rename = FAILED if d.rename in UNANSWERED else d.rename
    return unlocked(with_driver(s, 1, a=False, b=False, c=False, is_fenced=False, rename=rename), 1)


def settle(w: World, s: State) -> Steps:
    if s.is_switched:
        after = with_driver(s, 2, phase=DONE)
        yield "driver 2 finds the tables switched", after._replace(takeover=SETTLED)
    elif is_name_free(s):
        words = "driver 2 finds the tables as they were, removes sentry and markers"
        yield words, s._replace(takeover=SETTLED, sentry=False, present=0)


def repair(w: World, s: State) -> Steps:
    if s.takeover == SETTLED and driver(s, 2).phase == IDLE and driver(s, 2).run == 0 and not s.is_switched:
        if s.is_whole and not s.has_repaired:
            yield "driver 2 clears a range to copy it again", s._replace(is_whole=False, has_repaired=True)
        elif not s.is_whole:
            yield "driver 2 has copied it again", s._replace(is_whole=True)


# -- the model --------------------------------------------------------------------------------------------------------

ATTEMPT = (begin, place_sentry, lock, mark, pass_barrier, fence, send, see, drop, unlock, finish, rename)
END = (give_up, let_go, look, remove)
ACTIONS = (*ATTEMPT, *END, write, commit, branch, end_foreign, catch_up, go_on, crash, lose, die, take_over, repair)


def actions_of(b: Bounds) -> Iterator[Callable[..., Iterable[Step[State]]]]:
    yield from (*ATTEMPT, *END, write, commit, catch_up, go_on)
    if b.has_branch:
        yield branch
    if b.has_foreign:
        yield end_foreign
    if b.losses:
        yield lose
    if b.deaths:
        yield die
    if b.crashes:
        yield crash
    if b.has_takeover:
        yield from (take_over, repair)


@dataclass(frozen=True, slots=True)
class SwitchModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        world = World(rules=self.rules, bounds=self.bounds)
        object.__setattr__(self, "actions", tuple(partial(a, world) for a in actions_of(self.bounds)))

    def initial(self) -> list[State]:
        """Everything is matched and verified; `earlier` writes have been applied since the foreign branch began."""
        b = self.bounds
        log = tuple(("write", n) for n in range(1, b.earlier + 1))
        s = State(
            drivers=(Driver(),) * (2 if b.has_takeover else 1),
            version=b.earlier,
            shadow=b.earlier,
            writers=(WAITING,) * b.writers,
            foreign=b.has_foreign,
            log=() if self.rules.nothing_applied_twice else log,
            applied=0 if self.rules.nothing_applied_twice else len(log),
            losses=b.losses,
            crashes=b.crashes,
            deaths=b.deaths,
        )
        return [s]

    def wrong(self, s: State) -> str | None:
        return s.wrong or None

    def is_end(self, s: State) -> bool:
        """Switched, or everybody has used up his attempts."""
        return s.is_switched or all(d.phase in (*OVER, IDLE) for d in s.drivers)
