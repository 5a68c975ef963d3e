"""Sessions of a switch between two servers: what a server does with a statement, what is lost, and who takes over.

What each action stands for: move_switch_model.py. What must stay true: a statement that was sent may be done as late as
it likes, whoever still waits for it, until its session has been ended.
"""

from __future__ import annotations

from tests.models.move_switch_streams import restarted
from tests.models.move_switch_world import (
    ABORTING,
    ABSENT,
    AT_ABORTING,
    AT_DECIDED,
    BY_DECISION,
    CREATING,
    DENIED,
    DENYING,
    DROPPED,
    DROPPING,
    ENDED,
    IDLE,
    INTENT,
    LISTED,
    NAMES,
    OPEN,
    OPENING,
    RELEASED,
    RELEASING,
    RUNNING,
    Driver,
    State,
    Statement,
    Steps,
    World,
    acting,
    driver,
    origin,
    owns,
    released,
    side,
    who,
)

DONE = {CREATING: DENIED, OPENING: OPEN, RELEASING: RELEASED}
SENT_FROM = {CREATING: INTENT, OPENING: AT_DECIDED, DROPPING: AT_ABORTING, RELEASING: RELEASED}

# -- the servers ------------------------------------------------------------------------------------------------------


def execute(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if d.sent and may_execute(s, number, d.sent, d.has_lock):
            after = driver(s, number, sent=None, phase=DONE.get(d.phase, DROPPED))
            if d.sent[0] == "drop":
                after = released(driver(after, number, has_lock=False), number)
            yield f"{said_statement(d.sent)} of {who(s, number)} is done", executed(after, d.sent)
        for place, statement in enumerate(d.late):
            is_holder = s.sides[statement[1]].holder == number and not d.has_lock
            if may_execute(s, number, statement, is_holder):
                after = driver(s, number, late=d.late[:place] + d.late[place + 1 :])
                after = executed(released(after, number) if is_holder else after, statement)
                yield f"late {said_statement(statement)} of {who(s, number)} is done", after


def said_statement(statement: Statement) -> str:
    kind, place = statement
    return {"create": "CREATE TRIGGER", "drop": "DROP TRIGGER", "open": "opening", "idle": "the lost session"}[
        kind
    ] + f" on {NAMES[place]}"


def may_execute(s: State, number: int, statement: Statement, is_holder: bool) -> bool:
    """DDL waits for another session's lock and, where there is no lock of its own, for open transactions."""
    kind, place = statement
    at = s.sides[place]
    if at.holder and not (at.holder == number and is_holder):
        return False
    return kind == "open" or at.holder == number or not at.open


def executed(s: State, statement: Statement) -> State:
    kind, place = statement
    if kind == "create":
        return side(s, place, is_denied=True)
    if kind == "drop":
        return side(s, place, is_denied=False)
    return side(s, place, is_denied=False, is_there=True) if kind == "open" else s


def lose(w: World, s: State) -> Steps:
    if not s.losses:
        return
    for number, d in acting(s, *range(INTENT, ENDED)):
        left = s._replace(losses=s.losses - 1)
        if d.has_lock and (not d.sent or d.sent[0] != "open"):
            after = back(driver(left, number, has_lock=False, sent=None), number, d)
            yield f"the session of {who(s, number)} that holds the lock is lost", released(after, number)
            lost = d.sent or ("idle", origin(s))
            after = driver(after, number, late=(*d.late, lost))
            yield f"{who(s, number)} loses its side of the session that holds the lock", after
        elif d.sent:
            after = back(driver(left, number, sent=None), number, d)
            yield f"the session of {who(s, number)} is lost", after
            after = driver(after, number, late=(*d.late, d.sent))
            yield f"{who(s, number)} loses its side of the session", after


def back(s: State, number: int, d: Driver) -> State:
    """To where the statement was sent from."""
    return driver(s, number, phase=SENT_FROM.get(d.phase, d.phase))


def end_lost(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if d.late:
            after = driver(s, number, late=())
            yield f"what {who(s, number)} has lost is ended", after if d.has_lock else released(after, number)


# -- taking over ------------------------------------------------------------------------------------------------------


def take_over(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if number == 1 or s.lease != number - 1:
            continue
        old = s.drivers[number - 2]
        if d.phase == ABSENT:
            after = driver(ended(w, s, number - 1), number, phase=LISTED)._replace(listed=old.run)
            yield f"{who(s, number)} ends the connections of {who(s, number - 1)}, sees them gone", after
        elif d.phase == LISTED and w.rules.list_is_newest and old.run != s.listed:
            yield f"{who(s, number)} finds {who(s, number - 1)} back", driver(s, number, phase=ABSENT)
        elif d.phase == LISTED:
            yield f"{who(s, number)} takes the lease, finds {s.decision}", taken(s, number)


def ended(w: World, s: State, number: int) -> State:
    d = s.drivers[number - 1]
    if not w.rules.connections_ended:
        return s
    kept = () if w.rules.ended_on_source else tuple(x for x in (*d.late, *([d.sent] if d.sent else [])) if not x[1])
    after = driver(s, number, reaches=False, has_lock=False, sent=None, late=kept)
    return released(after, number) if not any(x[0] == "create" for x in kept) else after


def taken(s: State, number: int) -> State:
    """The stream is the new driver's as well, and begins at its checkpoint."""
    after = driver(s, number, phase=BY_DECISION[s.decision])._replace(lease=number)
    if s.decision in (RUNNING, DENYING, ABORTING):
        return restarted(after, origin(s), runs=True)
    return after


def come_back(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if d.reaches or d.phase == ENDED:
            continue
        if not owns(s, number):
            yield f"{who(s, number)} is superseded", driver(s, number, phase=ENDED)
        elif d.run < w.bounds.runs:
            after = driver(s, number, reaches=True, run=d.run + 1, phase=BY_DECISION[s.decision], marker=0)
            yield f"{who(s, number)} comes back with new connections, finds {s.decision}", after


def be_superseded(w: World, s: State) -> Steps:
    for number, d in acting(s, *range(IDLE, ENDED)):
        if not owns(s, number) and not d.sent:
            after = released(driver(s, number, phase=ENDED, has_lock=False), number)
            yield f"{who(s, number)} is superseded", after
