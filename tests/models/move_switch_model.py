"""The switch between two servers, and back: the decision row, denied writes, streams, the route hook, a second driver.

A side that accepts writes holds every write that has ever been accepted, in order and in all tables; both never
accept at once; when nothing is going on, one does, and the stream to the other side brings it all of them. A driver may
stop anywhere, for ever or for a while, so that kill -9 between two steps is what a takeover finds. What each action
stands for (`workflows.move_tables.switch`, if nothing else is named):

    begin_switch   W1: `running → denying`, `state.moves.decide`
    lock           W2: `cutover.deny.lock` on the side that is left
    send_create    W2: `cutover.deny._make`, in that session
    execute        the server: a statement that was sent, whoever still waits for it; it waits for locks and for open
                   transactions
    unlock_early   W2: the lock is given up at once, and writers get errors from then on
    mark           W3: `workflows.move_tables.switch._Trial._last_marker`, on the side that is left
    find_applied   W3: it is applied on the other side, and no branch was held at it
    fence          W4: `workflows.move_tables.switch._Trial._take_over`: `state.lease.depose`
    look_again     W4: the checkpoint is past the marker: `state.markers.find_applied` says so, because
                   `apply.applier.Applier._on_marker` notes the marker and its checkpoint in one transaction; here the
                   note may come first
    note_start     W6: `workflows.move_tables.switch._start_back`
    decide         W7: `workflows.move_tables.switch._Trial._decide`: `denying → decided`
    send_open      W7: `workflows.move_tables.opening.open_side`: RENAME on T; on the way back the triggers are dropped
    tell           W7: `decided → opened`, UNLOCK
    hook           W8: `workflows.move_tables.opening.tell`; it may have been done though it timed out
    finish         W9: the stream back starts; `opened → running` of the next round
    give_up        `workflows.move_tables.opening.give_up`: `denying → aborting`
    send_drop      `cutover.deny.allow`: the triggers are dropped, UNLOCK
    settle         the stream goes on from its checkpoint; `aborting → running`
    lose           a session is lost, on both sides or only on ours
    end_lost       ... and is ended, `cutover.deny.end_connections`; or the server ends it
    take_over      W10: `workflows.move_tables.driver.MoveDriver.start`: `state.lease.acquire` and
                   `state.source_marks.claim`, then `workflows.move_tables.opening.settle`
    come_back      the old driver reconnects, and says so where who takes over looks
    start_write, commit_write  the application, on any side that accepts
    prepare, end_branch  its XA branch; its outcome passes the triggers
    take           a stream takes the next entry of its log; write_part: one table's part is written and committed
    save           its checkpoint
    crash          it starts again from its checkpoint
    be_superseded  a driver finds out that it is over (only with `connections_ended` taken out)

What must stay true: whoever acts may be as slow as he likes. Statements on the side that is left cannot be fenced; what
is done at home is one transaction that looks at the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.models.explorer import Step
from tests.models.move_switch_world import (
    ABORTING,
    ABSENT,
    ALL_OPEN,
    AT_ABORTING,
    AT_DECIDED,
    BRANCH_OVER,
    BY_DECISION,
    CREATING,
    DECIDED,
    DENIED,
    DENYING,
    DROPPED,
    DROPPING,
    ENDED,
    FENCED,
    HOOKED,
    IDLE,
    INTENT,
    LEVEL,
    LISTED,
    LOCKED,
    LOOKED,
    MARKED,
    MAY_GIVE_UP,
    NAMES,
    OPEN,
    OPENING,
    PREPARED,
    RUNNING,
    STARTED,
    TOLD,
    UNUSED,
    Bounds,
    Driver,
    Entry,
    Rules,
    Side,
    State,
    Statement,
    Stream,
    World,
    driver,
    origin,
    released,
    said,
    side,
    stream,
    whole,
)

Steps = Iterator[tuple[str, State]]


def acting(s: State, *phases: int) -> Iterator[tuple[int, Driver]]:
    for number, d in enumerate(s.drivers, 1):
        if d.phase in phases and d.reaches:
            yield number, d


def who(s: State, number: int) -> str:
    return "the driver" if len(s.drivers) == 1 else f"driver {number}"


def owns(s: State, number: int) -> bool:
    return s.lease == number


def is_settled(w: World, d: Driver) -> bool:
    """No session of its own is left that it knows nothing of."""
    return not d.late or not w.rules.lost_ended


# -- an attempt -------------------------------------------------------------------------------------------------------


def begin_switch(w: World, s: State) -> Steps:
    for number, d in acting(s, IDLE):
        may = s.round < w.bounds.rounds and d.tries < w.bounds.tries and is_settled(w, d)
        if owns(s, number) and s.decision == RUNNING and may:
            after = driver(s, number, phase=INTENT, tries=d.tries + 1, marker=0)
            if w.rules.intent_first:
                yield f"{who(s, number)} notes denying", after._replace(decision=DENYING)
            else:
                yield f"{who(s, number)} begins", after


def lock(w: World, s: State) -> Steps:
    left = s.sides[origin(s)]
    has_branch = s.branch == (PREPARED, origin(s)) and w.rules.table_lock
    for number, d in acting(s, INTENT):
        is_ready = is_settled(w, d) and (d.marker or w.rules.marker_behind_deny)
        if is_ready and not left.holder and not left.open and not has_branch:
            after = side(driver(s, number, phase=LOCKED, has_lock=True), origin(s), holder=number)
            yield f"{who(s, number)} locks the tables on {NAMES[origin(s)]}", after


def send_create(w: World, s: State) -> Steps:
    for number, d in acting(s, LOCKED):
        if d.has_lock or not w.rules.created_by_holder:
            sent = driver(s, number, phase=CREATING, sent=("create", origin(s)))
            yield f"{who(s, number)} sends CREATE TRIGGER to {NAMES[origin(s)]}", sent
        elif is_settled(w, d):
            yield f"{who(s, number)} finds its lock lost, begins again", driver(s, number, phase=INTENT)


def unlock_early(w: World, s: State) -> Steps:
    for number, d in acting(s, DENIED):
        if d.has_lock:
            yield f"{who(s, number)} unlocks at once", released(driver(s, number, has_lock=False), number)


def mark(w: World, s: State) -> Steps:
    for number, d in acting(s, DENIED if w.rules.marker_behind_deny else INTENT):
        if not d.marker:
            phase = MARKED if w.rules.marker_behind_deny else INTENT
            after = driver(s, number, phase=phase, marker=s.marks + 1)._replace(marks=s.marks + 1)
            words = f"{who(s, number)} writes the last marker on {NAMES[origin(s)]}"
            yield words, logged(w, after, origin(s), ("mark", s.marks + 1))
    if not w.rules.marker_behind_deny:
        for number, _ in acting(s, DENIED):
            yield f"{who(s, number)} has written its marker", driver(s, number, phase=MARKED)


def find_applied(w: World, s: State) -> Steps:
    for number, d in acting(s, MARKED):
        is_applied = s.passed >= d.marker or not w.rules.marker_applied
        if is_applied and not (s.was_held and w.rules.branches_looked_at):
            yield f"{who(s, number)} finds the marker applied", driver(s, number, phase=LEVEL)


def fence(w: World, s: State) -> Steps:
    for number, _ in acting(s, LEVEL):
        after = driver(s, number, phase=FENCED)
        if owns(s, number) and w.rules.fenced:
            yield f"{who(s, number)} stops and fences the stream", restarted(after, origin(s), runs=False)
        elif owns(s, number):
            yield f"{who(s, number)} goes on, the stream still runs", after


def look_again(w: World, s: State) -> Steps:
    left = s.sides[origin(s)].log[s.streams[origin(s)].saved :]
    for number, d in acting(s, FENCED):
        if not w.rules.looked_again:
            yield f"{who(s, number)} does not look again", driver(s, number, phase=LOOKED)
        elif ("mark", d.marker) not in left or not w.rules.marker_applied:
            yield f"{who(s, number)} finds the checkpoint past the marker", driver(s, number, phase=LOOKED)


def note_start(w: World, s: State) -> Steps:
    for number, _ in acting(s, LOOKED):
        if not w.rules.noted_before_open:
            yield f"{who(s, number)} goes on", driver(s, number, phase=STARTED)
        elif owns(s, number):
            noted = driver(s, number, phase=STARTED)._replace(noted=len(s.sides[1 - origin(s)].log))
            yield f"{who(s, number)} notes the start of the stream back", noted


def decide(w: World, s: State) -> Steps:
    expected = DENYING if w.rules.intent_first else RUNNING
    for number, _ in acting(s, STARTED if w.rules.decided_before_open else OPEN):
        phase = AT_DECIDED if w.rules.decided_before_open else OPEN
        if (owns(s, number) and s.decision == expected) or not w.rules.decide_conditional:
            yield f"{who(s, number)} decides", driver(s, number, phase=phase)._replace(decision=DECIDED)


def send_open(w: World, s: State) -> Steps:
    for number, d in acting(s, AT_DECIDED if w.rules.decided_before_open else STARTED):
        if is_settled(w, d):
            sent = driver(s, number, phase=OPENING, sent=("open", 1 - origin(s)))
            yield f"{who(s, number)} sends what opens {NAMES[1 - origin(s)]}", sent


def tell(w: World, s: State) -> Steps:
    for number, _ in acting(s, OPEN):
        if owns(s, number) and s.decision == DECIDED:
            after = driver(s, number, phase=TOLD, has_lock=False)._replace(decision=ALL_OPEN)
            yield f"{who(s, number)} notes opened, unlocks", released(after, number)


def hook(w: World, s: State) -> Steps:
    to = 1 - origin(s)
    for number, _ in acting(s, TOLD):
        if s.decision != ALL_OPEN:
            continue
        yield "the route hook says done", driver(s._replace(route=to), number, phase=HOOKED)
        if s.route != to:
            yield "the route hook times out, but is done", s._replace(route=to)
        if not w.rules.hook_repeated:
            yield f"the route hook times out, {who(s, number)} goes on", driver(s, number, phase=HOOKED)
        if not w.rules.forward_only:
            after = driver(s, number, phase=DROPPING, sent=("drop", origin(s)))
            yield f"the route hook times out, {who(s, number)} takes the switch back", after


def finish(w: World, s: State) -> Steps:
    to = 1 - origin(s)
    for number, d in acting(s, HOOKED):
        if owns(s, number) and s.decision == ALL_OPEN and is_settled(w, d):
            after = driver(s, number, phase=IDLE, tries=0, marker=0)._replace(decision=RUNNING, round=s.round + 1)
            start = s.noted if w.rules.noted_before_open else len(s.sides[to].log)
            after = stream(after, to, runs=True, done=start, saved=start, todo=(), is_held=False, held_saved=False)
            words = f"{who(s, number)} starts the stream {NAMES[to]}→{NAMES[origin(s)]}, notes running"
            yield words, forgotten(w, after._replace(noted=-1))


# -- the end of an attempt --------------------------------------------------------------------------------------------


def give_up(w: World, s: State) -> Steps:
    expected = DENYING if w.rules.intent_first else RUNNING
    for number, _ in acting(s, *MAY_GIVE_UP):
        after = driver(s, number, phase=AT_ABORTING)
        if not w.rules.abort_noted:
            yield f"{who(s, number)} gives up", after
        elif (owns(s, number) and s.decision == expected) or not w.rules.abort_conditional:
            yield f"{who(s, number)} gives up, notes aborting", after._replace(decision=ABORTING)


def send_drop(w: World, s: State) -> Steps:
    for number, d in acting(s, AT_ABORTING):
        if is_settled(w, d):
            sent = driver(s, number, phase=DROPPING, sent=("drop", origin(s)))
            yield f"{who(s, number)} sends DROP TRIGGER to {NAMES[origin(s)]}", sent


def settle(w: World, s: State) -> Steps:
    expected = ABORTING if w.rules.abort_noted else s.decision
    for number, d in acting(s, DROPPED if w.rules.dropped_before_running else AT_ABORTING):
        if owns(s, number) and s.decision == expected and is_settled(w, d):
            after = driver(s, number, phase=IDLE, marker=0, has_lock=False)._replace(decision=RUNNING, noted=-1)
            after = stream(released(after, number), origin(s), runs=True)
            yield f"{who(s, number)} lets the stream go on, notes running", forgotten(w, after)


# -- the servers ------------------------------------------------------------------------------------------------------


def execute(w: World, s: State) -> Steps:
    for number, d in enumerate(s.drivers, 1):
        if d.sent and may_execute(s, number, d.sent, d.has_lock):
            after = driver(s, number, sent=None, phase={CREATING: DENIED, OPENING: OPEN}.get(d.phase, DROPPED))
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
    return driver(s, number, phase={CREATING: INTENT, OPENING: AT_DECIDED, DROPPING: AT_ABORTING}.get(d.phase, d.phase))


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


# -- the application --------------------------------------------------------------------------------------------------


def start_write(w: World, s: State) -> Steps:
    """Anywhere that accepts writes: clients may be late, or early."""
    for place, at in enumerate(s.sides):
        if s.writes and at.accepts and not at.holder:
            after = side(s, place, open=at.open + 1)._replace(writes=s.writes - 1)
            yield f"application: begins a write on {NAMES[place]}", after


def commit_write(w: World, s: State) -> Steps:
    for place, at in enumerate(s.sides):
        if at.open:
            words = f"application: commits write {s.accepted + 1} on {NAMES[place]}"
            yield words, accepted(w, side(s, place, open=at.open - 1), place, "write")


def accepted(w: World, s: State, place: int, kind: str) -> State:
    number = s.accepted + 1
    tables = tuple((number, mask | 1 << number - 1) for _, mask in s.sides[place].tables)
    after = side(s, place, tables=tables)._replace(accepted=number)
    return logged(w, after, place, (kind, number))


def prepare(w: World, s: State) -> Steps:
    for place, at in enumerate(s.sides):
        if s.branch[0] == UNUSED and at.accepts and not at.holder:
            after = logged(w, s._replace(branch=(PREPARED, place)), place, ("prepare",))
            yield f"application: XA PREPARE on {NAMES[place]}, its session ends", after


def end_branch(w: World, s: State) -> Steps:
    """Triggers do not stop it."""
    state, place = s.branch
    if state == PREPARED and not (s.sides[place].holder and w.rules.table_lock):
        over = s._replace(branch=(BRANCH_OVER, place))
        yield "application: XA ROLLBACK", logged(w, over, place, ("rollback",))
        yield f"application: XA COMMIT (write {s.accepted + 1})", accepted(w, over, place, "commit")


# -- logs and streams -------------------------------------------------------------------------------------------------


def is_read(w: World, s: State, place: int) -> bool:
    """Somebody reads this log, or will."""
    if place == origin(s) or s.noted >= 0 or not w.rules.starts_at_noted:
        return True
    return s.streams[place].runs


def logged(w: World, s: State, place: int, entry: Entry) -> State:
    return side(s, place, log=(*s.sides[place].log, entry)) if is_read(w, s, place) else s


def forgotten(w: World, s: State) -> State:
    """Logs that nobody reads."""
    for place in (0, 1):
        if not is_read(w, s, place):
            s = stream(side(s, place, log=()), place, done=0, saved=0)
    return s


def take(w: World, s: State) -> Steps:
    for place, m in enumerate(s.streams):
        log = s.sides[place].log
        if not m.runs or m.done == len(log):
            continue
        entry = log[m.done]
        if m.todo and (w.rules.barrier_whole or entry[0] != "mark"):
            continue
        words = f"stream {NAMES[place]}→{NAMES[1 - place]} takes {' '.join(map(str, entry))}"
        after = met(w, stream(s, place, done=m.done + 1), place, entry)
        yield words, saved(w, after, place) if m.todo else rested(w, after, place)


def met(w: World, s: State, place: int, entry: Entry) -> State:
    kind = entry[0]
    if kind in ("write", "commit"):
        parts = tuple((table, entry[1]) for table in range(w.bounds.tables))
        return stream(s, place, todo=parts, is_held=s.streams[place].is_held and kind == "write")
    if kind == "own":
        return s if w.rules.own_skipped else stream(s, place, todo=(entry[1:],))
    if kind == "mark":
        return s._replace(passed=max(s.passed, entry[1]), was_held=s.streams[place].is_held)
    return stream(s, place, is_held=kind == "prepare")


def write_part(w: World, s: State) -> Steps:
    for place, m in enumerate(s.streams):
        to = s.sides[1 - place]
        if not m.runs or to.holder or (to.is_denied and not w.rules.exempt):
            continue
        for part in m.todo:
            table, number = part
            rows = (number, to.tables[table][1] | 1 << number - 1)
            tables = (*to.tables[:table], rows, *to.tables[table + 1 :])
            after = logged(w, side(s, 1 - place, tables=tables), 1 - place, ("own", table, number))
            after = stream(after, place, todo=tuple(p for p in m.todo if p != part))
            words = f"stream {NAMES[place]}→{NAMES[1 - place]} writes {number}"
            yield f"{words} to table {table}" if w.bounds.tables > 1 else words, rested(w, after, place)


def rested(w: World, s: State, place: int) -> State:
    """Its checkpoint may be late while it may still crash."""
    return s if s.crashes or s.streams[place].todo else saved(w, s, place)


def saved(w: World, s: State, place: int) -> State:
    m = s.streams[place]
    if not w.rules.starts_at_noted:
        return stream(s, place, saved=m.done, held_saved=m.is_held)
    noted = s.noted if place != origin(s) else -1
    cut = m.done if noted < 0 else min(m.done, noted)
    s = side(s, place, log=s.sides[place].log[cut:])._replace(noted=s.noted if noted < 0 else noted - cut)
    return stream(s, place, done=m.done - cut, saved=m.done - cut, held_saved=m.is_held)


def save(w: World, s: State) -> Steps:
    for place, m in enumerate(s.streams):
        if m.runs and m.done != m.saved and not m.todo:
            yield f"stream {NAMES[place]}→{NAMES[1 - place]} saves its checkpoint", saved(w, s, place)


def restarted(s: State, place: int, *, runs: bool) -> State:
    m = s.streams[place]
    return stream(s, place, runs=runs, done=m.saved, todo=(), is_held=m.held_saved)


def crash(w: World, s: State) -> Steps:
    for place, m in enumerate(s.streams):
        if not s.crashes or not m.runs:
            continue
        after = restarted(s._replace(crashes=s.crashes - 1), place, runs=True)
        yield f"stream {NAMES[place]}→{NAMES[1 - place]} crashes, begins at its checkpoint", after
        if not w.rules.starts_at_noted:
            words = f"stream {NAMES[place]}→{NAMES[1 - place]} crashes, begins before its start"
            yield words, stream(after, place, done=0, saved=0)


# -- the model --------------------------------------------------------------------------------------------------------

ATTEMPT = (begin_switch, lock, send_create, unlock_early, mark, find_applied, fence, look_again, note_start, decide)
FORWARD = (send_open, tell, hook, finish)
END = (give_up, send_drop, settle)
OTHERS = (execute, start_write, commit_write, take, write_part)
ACTIONS = (
    *ATTEMPT,
    *FORWARD,
    *END,
    *OTHERS,
    lose,
    end_lost,
    take_over,
    come_back,
    prepare,
    end_branch,
    save,
    crash,
)
"""All but those of a rule that is taken out."""


def actions_of(b: Bounds, r: Rules) -> Iterator[Callable[..., Iterable[Step[State]]]]:
    yield from (*ATTEMPT, *FORWARD, *END, *OTHERS)
    if b.losses:
        yield from (lose, end_lost)
    if b.drivers > 1:
        yield from (take_over, come_back)
    if not r.connections_ended:
        yield be_superseded
    if b.has_branch:
        yield from (prepare, end_branch)
    if b.crashes:
        yield from (save, crash)


@dataclass(frozen=True, slots=True)
class MoveSwitchModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        world = World(rules=self.rules, bounds=self.bounds)
        object.__setattr__(self, "actions", tuple(partial(a, world) for a in actions_of(self.bounds, self.rules)))

    def initial(self) -> list[State]:
        """All is copied and level; T has not been given its tables' names."""
        b = self.bounds
        none = ((0, 0),) * b.tables
        s = State(
            sides=(Side(none), Side(none, is_there=False)),
            streams=(Stream(runs=True), Stream()),
            drivers=(Driver(phase=IDLE),) + (Driver(),) * (b.drivers - 1),
            writes=b.writes,
            losses=b.losses,
            crashes=b.crashes,
        )
        return [s]

    def wrong(self, s: State) -> str | None:
        if all(at.accepts for at in s.sides):
            return "both sides accept writes"
        for place, at in enumerate(s.sides):
            if at.accepts and any(table != whole(s) for table in at.tables):
                return f"{NAMES[place]} is open with {said(at.tables)}, the last accepted is {s.accepted}"
        return wrong_at_rest(s) if is_at_rest(s) else None

    def is_end(self, s: State) -> bool:
        """Nothing is going on, everything has arrived, and the application goes where it may write."""
        is_quiet = is_at_rest(s) and is_drained(s) and not any(d.sent or d.late for d in s.drivers)
        return is_quiet and not any(at.holder or at.open for at in s.sides) and s.route == origin(s)


def is_at_rest(s: State) -> bool:
    """Who has the lease is about nothing, and nothing is on record."""
    return s.decision == RUNNING and s.drivers[s.lease - 1].phase == IDLE


def is_drained(s: State) -> bool:
    m = s.streams[origin(s)]
    return m.runs and not m.todo and m.done == len(s.sides[origin(s)].log)


def wrong_at_rest(s: State) -> str | None:
    if not s.sides[origin(s)].accepts:
        return "nobody accepts writes, and nothing on record says why"
    other = s.sides[1 - origin(s)]
    if is_drained(s) and any(table != whole(s) for table in other.tables):
        return f"the stream is level, but {NAMES[1 - origin(s)]} has {said(other.tables)} of {s.accepted}"
    return None
