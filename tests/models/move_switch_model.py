"""The switch between two servers, and back: the decision row, denied writes, streams, the route hook, a second driver.

A side that accepts writes holds every write that has ever been accepted, in order and in all tables; both never
accept at once; when nothing is going on, one does, and the stream to the other side brings it all of them. A driver may
stop anywhere, for ever or for a while, so that kill -9 between two steps is what a takeover finds. Sessions are in
move_switch_sessions.py, the application and the streams in move_switch_streams.py. What each action stands for
(`workflows.move_tables.switch`, if nothing else is named):

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
    miss_answer    ... and whether it was committed is not known: home is away, and may have done it
    read_decision  ... until home says so: `workflows.move_tables.opening.give_up` reads it
    release_alone  `workflows.move_tables.switch._Trial._is_to_be_opened`: home is away, and was not asked to decide, so
                   the session that has the lock drops the triggers; home still says denying
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
from tests.models.move_switch_sessions import be_superseded, come_back, end_lost, execute, lose, take_over
from tests.models.move_switch_streams import (
    commit_write,
    crash,
    end_branch,
    forgotten,
    logged,
    prepare,
    restarted,
    save,
    start_write,
    take,
    write_part,
)
from tests.models.move_switch_world import (
    ABORTING,
    ALL_OPEN,
    AT_ABORTING,
    AT_DECIDED,
    CREATING,
    DECIDED,
    DECIDING,
    DENIED,
    DENYING,
    DROPPED,
    DROPPING,
    FENCED,
    HAS_DENIED,
    HOOKED,
    IDLE,
    INTENT,
    LEVEL,
    LOCKED,
    LOOKED,
    MARKED,
    MAY_GIVE_UP,
    NAMES,
    OPEN,
    OPENING,
    PREPARED,
    RELEASED,
    RELEASING,
    RUNNING,
    STARTED,
    TOLD,
    Bounds,
    Driver,
    Rules,
    Side,
    State,
    Steps,
    Stream,
    World,
    acting,
    driver,
    origin,
    owns,
    released,
    said,
    side,
    stream,
    who,
    whole,
)


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


def miss_answer(w: World, s: State) -> Steps:
    for number, _ in acting(s, STARTED):
        if s.outages and owns(s, number) and s.decision == DENYING and w.rules.decided_before_open:
            after = driver(s, number, phase=DECIDING)._replace(outages=s.outages - 1)
            yield f"home is away, {who(s, number)} does not know whether it has decided", after
            yield f"home decides and is away, {who(s, number)} does not know", after._replace(decision=DECIDED)


def read_decision(w: World, s: State) -> Steps:
    for number, d in acting(s, DECIDING, RELEASED):
        if owns(s, number) and s.decision == DECIDED and is_settled(w, d):
            yield f"{who(s, number)} finds it decided", driver(s, number, phase=AT_DECIDED)


def release_alone(w: World, s: State) -> Steps:
    for number, d in acting(s, *HAS_DENIED, DECIDING):
        if d.late or not (s.outages or d.phase == DECIDING) or (d.phase == DECIDING and w.rules.kept_once_asked):
            continue
        left = s if d.phase == DECIDING else s._replace(outages=s.outages - 1)
        sent = driver(left, number, phase=RELEASING, sent=("drop", origin(s)))
        yield f"home is away, {who(s, number)} sends DROP TRIGGER to {NAMES[origin(s)]}", sent


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


# -- the model --------------------------------------------------------------------------------------------------------

ATTEMPT = (begin_switch, lock, send_create, unlock_early, mark, find_applied, fence, look_again, note_start, decide)
FORWARD = (send_open, tell, hook, finish)
END = (give_up, send_drop, settle)
AWAY = (miss_answer, read_decision, release_alone)
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
    *AWAY,
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
    if b.outages:
        yield from AWAY


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
            outages=b.outages,
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
