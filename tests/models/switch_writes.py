"""The application's writes beside a cut-over, and catch-up that brings them to the shadow up to the marker.

What each action stands for: switch_model.py. What must stay true: the log is forgotten up to the checkpoint, so that
states that differ in it alone are one.
"""

from __future__ import annotations

from tests.models.switch_world import (
    ATTACHED,
    BRANCH_OVER,
    COMMITTED,
    DETACHED,
    PREPARED,
    QUEUED,
    UNUSED,
    WAITING,
    WRITING,
    State,
    Steps,
    World,
)

# -- the application --------------------------------------------------------------------------------------------------


def write(w: World, s: State) -> Steps:
    """A statement that gets the table's lock; RENAME in the queue goes first. Writers are alike."""
    if WAITING not in s.writers or s.is_switched:
        return
    is_free = not s.holder and not any(d.rename == QUEUED for d in s.drivers)
    if is_free:
        place = s.writers.index(WAITING)
        yield "application: a write has the table", s._replace(writers=placed(s.writers, place, WRITING))


def placed(writers: tuple[int, ...], place: int, phase: int) -> tuple[int, ...]:
    return tuple(sorted((*writers[:place], phase, *writers[place + 1 :]), reverse=True))


def commit(w: World, s: State) -> Steps:
    if WRITING in s.writers:
        after = s._replace(writers=placed(s.writers, s.writers.index(WRITING), COMMITTED))
        yield f"application: commits version {s.version + 1}", committed(after)


def committed(s: State) -> State:
    return s._replace(version=s.version + 1, log=(*s.log, ("write", s.version + 1)))


def branch(w: World, s: State) -> Steps:
    if s.branch == UNUSED and w.bounds.has_branch and not s.is_switched:
        is_free = not s.holder and not any(d.rename == QUEUED for d in s.drivers)
        if is_free:
            yield "application: XA PREPARE", s._replace(branch=ATTACHED, log=(*s.log, ("prepare",)))
    elif s.branch in PREPARED:
        if s.branch == ATTACHED:
            yield "application: its connection ends, the branch stays", s._replace(branch=DETACHED)
        rolled = s._replace(branch=BRANCH_OVER, log=(*s.log, ("rollback",)))
        yield "application: XA ROLLBACK", rolled
        yield "application: XA COMMIT", branch_committed(s)


def branch_committed(s: State) -> State:
    if s.is_switched:
        return s._replace(branch=BRANCH_OVER, wrong="XA COMMIT went into the retired table")
    after = s._replace(branch=BRANCH_OVER, version=s.version + 1)
    return after._replace(log=(*s.log, ("commit", s.version + 1)))


def end_foreign(w: World, s: State) -> Steps:
    if s.foreign:
        yield "a branch of other tables ends", s._replace(foreign=False)


# -- catch-up ---------------------------------------------------------------------------------------------------------


def catch_up(w: World, s: State) -> Steps:
    if s.holding or s.applied == len(s.log) or s.is_switched:
        return
    entry = s.log[s.applied]
    after = s._replace(applied=s.applied + 1)
    if entry[0] == "write":
        yield f"catch-up writes version {entry[1]}", saved(w, after._replace(shadow=entry[1]))
    elif entry[0] == "mark":
        yield marked(w, after, entry[1])
    elif entry[0] == "prepare":
        yield "catch-up holds the branch", saved(w, after._replace(is_held=True))
    else:
        shadow = entry[1] if entry[0] == "commit" else s.shadow
        yield f"catch-up: XA {entry[0].upper()}", saved(w, after._replace(is_held=False, shadow=shadow))


def marked(w: World, s: State, bit: int) -> tuple[str, State]:
    is_there = bool(s.present & bit)
    held = s.held_then | bit if s.is_held else s.held_then & ~bit
    after = s._replace(noted=s.noted | bit, held_then=held, holding=bit if is_there and w.rules.holds else 0)
    return f"catch-up applies the marker{' and stands still' if after.holding else ''}", saved(w, after)


def saved(w: World, s: State) -> State:
    """The checkpoint, with the rows. Without its rule a prepared branch holds it back."""
    if (s.foreign or s.is_held) and not w.rules.nothing_applied_twice:
        return s
    return s._replace(log=s.log[s.applied :], applied=0, held_saved=s.is_held)


def go_on(w: World, s: State) -> Steps:
    if s.holding and not s.present & s.holding:
        yield "catch-up goes on", s._replace(holding=0)


def crash(w: World, s: State) -> Steps:
    if s.crashes and not s.is_switched:
        after = s._replace(crashes=s.crashes - 1, applied=0, holding=0, is_held=s.held_saved)
        yield "catch-up crashes and starts again from its checkpoint", after
