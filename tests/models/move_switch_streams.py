"""The application beside a switch between two servers, both logs, and the streams that bring them to the other side.

What each action stands for: move_switch_model.py. What must stay true: what nobody will read is forgotten, so that
states that differ in it alone are one.
"""

from __future__ import annotations

from tests.models.move_switch_world import (
    BRANCH_OVER,
    NAMES,
    PREPARED,
    UNUSED,
    Entry,
    State,
    Steps,
    World,
    origin,
    side,
    stream,
)

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
