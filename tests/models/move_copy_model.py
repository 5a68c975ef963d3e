"""Copy and catch-up across two servers, in all interleavings within bounds.

At any moment at which the switch could begin (every chunk matched, all of the source's log visible and applied) the
target must hold what the source holds. Attempts at a chunk stop anywhere for as long as they like and go on, so a
killed task, a superseded one and a zombie are the same. Catch-up is in move_copy_catch_up.py. What each action stands
for:

    write         the application's COMMIT on the source, up to the log
    show          it becomes visible to SELECT, in the log's order; of a marker of ours: its commit returns
    open_chunk    `rowcopy.chunker.Walk._open`, `state.ledger.open_chunk`: a new attempt in the target's ledger
    write_marker  marker: the chunk's row on the source, `state.source_marks.open_chunk`, up to the log
    read          `rowcopy.paths.CopyPath.read`; position: when what is visible contains where catch-up was at "open"
    write_rows    the landing transaction on the target: `state.ledger.fence_chunk`, then `rowcopy.paths.CopyPath.write`
    roll_back     `rowcopy.chunker.Walk._persist`: a lock wait; its rows are written again from the same SELECT
    land          `state.ledger.land`, and the commit
    take          marker: `apply.applier.Applier.take` and `apply.applier.Applier.flush`: a change with its tombstones
                  and the checkpoint is one transaction on the target; an "opened" is remembered
    begin         position: its transaction has locked the checkpoint's row and read which chunks are open
    commit        position: ... and is committed, with tombstones and checkpoint
    take_batch    several workers: two groups are read, and where they end is noted
    write_share   `apply.applier.Applier._write_shared`: one key's next change, in a transaction of its own
    save          `apply.applier.Applier._save_checkpoint`, behind a batch of several workers or as late as it likes
    match         `apply.applier.Applier._look_for_landed`: the ledger says "landed"; `apply.applier.Applier._commit`:
                  `apply.writer.delete_again` and `state.ledger.match` in one transaction
    crash         kill -9, then `apply.applier.Applier._load`: unmatched chunks count as open
    replace       the same while the old process is only stopped: it keeps a change in its hands
    wake          the old one goes on: `apply.writer.in_transaction`, `state.lease.fence`
    read_ledger, delete_early, delete_pending, delete_late  only with rules taken out

Of the two variants "marker" is what our code does.

What must stay true: as in rows_model.py. The target's commits are one step: nobody reads its log.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.models.explorer import Step
from tests.models.move_copy_catch_up import (
    begin,
    commit,
    crash,
    delete_early,
    delete_late,
    delete_pending,
    is_busy,
    match,
    read_ledger,
    replace,
    save,
    take,
    take_batch,
    wake,
    write_share,
)
from tests.models.move_copy_world import (
    CHECKED,
    EARLY,
    GONE,
    LANDED,
    LATE,
    MARKED,
    MARKER,
    MARKING,
    MATCHED,
    OPEN,
    OPENED,
    POSITION,
    READ,
    UNOPENED,
    WRITING,
    Bounds,
    Rules,
    State,
    Steps,
    Task,
    World,
)
from tests.models.rows_world import (
    NONE,
    Changes,
    Rows,
    changed,
    mask_of,
    present,
    put,
    row_locks,
    said_changes,
    said_rows,
    with_task,
)

# -- the source -------------------------------------------------------------------------------------------------------


def write(w: World, s: State) -> Steps:
    if not s.writes:
        return
    for changes in transactions(w, s):
        entry = ("write", changes)
        after = s._replace(source=changed(s.source, changes), writes=s.writes - 1)
        yield f"application: {said_changes(changes)} (in the log)", logged(after, entry)


def logged(s: State, entry: tuple[Any, ...]) -> State:
    return s._replace(log=(*s.log, entry), hidden=(*s.hidden, entry))


def transactions(w: World, s: State) -> Iterator[Changes]:
    """Of rows that are not locked by one that is not visible yet."""
    locked = mask_of(k for e in s.hidden if e[0] == "write" for k, _ in e[1])
    free = [k for k in range(len(s.source)) if not locked >> k & 1]
    for key in free:
        if s.source[key]:
            yield ((key, NONE),)
        yield ((key, 2 if s.source[key] == 1 else 1),)
    for old, new in itertools.permutations(free if w.bounds.key_changes else (), 2):
        if s.source[old] and not s.source[new]:
            yield ((old, NONE), (new, s.source[old]))


def show(w: World, s: State) -> Steps:
    for place, entry in enumerate(s.hidden):
        if place and w.rules.ordered_commits:
            return
        after = s._replace(hidden=s.hidden[:place] + s.hidden[place + 1 :])
        after = after._replace(tasks=tuple(t._replace(waits=max(t.waits - 1, 0)) for t in s.tasks))
        if entry[0] == "write":
            yield f"visible: {said_changes(entry[1])}", after._replace(seen=changed(s.seen, entry[1]))
        else:
            yield f"visible: the marker of {name(s, entry[2])}", returned(after, entry[2])


def returned(s: State, number: int) -> State:
    task = s.tasks[number]
    if task.phase != MARKING:
        return s
    return with_task(s, number, phase=READ if task.rows else MARKED)


# -- an attempt -------------------------------------------------------------------------------------------------------


def name(s: State, number: int) -> str:
    task = s.tasks[number]
    same = sum((t.chunk, t.attempt) == (task.chunk, task.attempt) for t in s.tasks[:number])
    chunk = f" at chunk {task.chunk}" if len(s.chunks) > 1 else ""
    return f"attempt {task.attempt}{chr(39) * same}{chunk}"


def is_ledger_locked(w: World, s: State, chunk: int) -> bool:
    return w.rules.fence_locks and any(t.chunk == chunk and t.phase == WRITING for t in s.tasks)


def may_bump(w: World, s: State, chunk: int) -> bool:
    if is_ledger_locked(w, s, chunk) or (s.is_begun and w.rules.checkpoint_locked):
        return False
    return s.chunks[chunk][0] not in (LANDED, MATCHED) or not w.rules.bump_spares_landed


def may_begin(w: World, s: State, chunk: int) -> bool:
    return sum(t.chunk == chunk for t in s.tasks) < w.bounds.attempts


def open_chunk(w: World, s: State) -> Steps:
    is_first = w.rules.opened_first and (w.rules.ledger_before_marker or not w.is_marker)
    for chunk in range(len(s.chunks)):
        if is_first and may_begin(w, s, chunk) and may_bump(w, s, chunk):
            task = Task(chunk, 0, OPENED, waits=behind(w, s))
            yield opening(w, s._replace(tasks=(*s.tasks, task)), len(s.tasks))
    for number, task in enumerate(s.tasks):
        is_marked_first = not w.rules.ledger_before_marker and task.phase == MARKED and not task.attempt
        if (task.phase == EARLY or is_marked_first) and may_bump(w, s, task.chunk):
            yield opening(w, s, number)


def opening(w: World, s: State, number: int) -> tuple[str, State]:
    task = s.tasks[number]
    attempt = s.chunks[task.chunk][1] + 1 if w.rules.attempts_numbered else 1
    phase = OPENED if task.phase == EARLY else task.phase
    if task.phase == EARLY and not w.is_marker:
        phase = READ
    after = with_task(s, number, attempt=attempt, phase=phase)
    after = after._replace(chunks=put(s.chunks, task.chunk, (OPEN, attempt)))
    return f"{name(after, number)} opens chunk {task.chunk}", after


def behind(w: World, s: State) -> int:
    """Position: how many groups are not visible yet, though catch-up may have written them."""
    if w.is_marker or not w.rules.position_contained:
        return 0
    return max(0, len(s.hidden) - len(s.log) + s.noted)


def write_marker(w: World, s: State) -> Steps:
    if not w.is_marker:
        return
    if not w.rules.ledger_before_marker:
        for chunk in range(len(s.chunks)):
            if may_begin(w, s, chunk):
                task = Task(chunk, 0, MARKING)
                yield marking(s._replace(tasks=(*s.tasks, task)), len(s.tasks))
    for number, task in enumerate(s.tasks):
        if task.phase == OPENED:
            yield marking(with_task(s, number, phase=MARKING), number)


def marking(s: State, number: int) -> tuple[str, State]:
    words = f"{name(s, number)} writes its marker on the source (in the log)"
    return words, logged(s, ("open", s.tasks[number].chunk, number))


def read(w: World, s: State) -> Steps:
    if not w.rules.opened_first:
        for chunk in range(len(s.chunks)):
            if may_begin(w, s, chunk):
                task = Task(chunk, 0, EARLY)
                yield selecting(w, s._replace(tasks=(*s.tasks, task)), len(s.tasks), EARLY)
    for number, task in enumerate(s.tasks):
        if may_read(w, task):
            phase = MARKING if task.phase == MARKING else READ
            yield selecting(w, s, number, phase)


def may_read(w: World, task: Task) -> bool:
    if task.rows or not task.attempt:
        return False
    if not w.is_marker:
        return task.phase == OPENED and not task.waits
    return task.phase == MARKED or (task.phase == MARKING and not w.rules.marker_returned)


def selecting(w: World, s: State, number: int, phase: int) -> tuple[str, State]:
    keys = w.bounds.ranges[s.tasks[number].chunk]
    rows = tuple(v if keys >> k & 1 else NONE for k, v in enumerate(s.seen))
    return f"{name(s, number)} SELECTs {said_rows(rows)}", with_task(s, number, phase=phase, rows=rows)


# -- landing ----------------------------------------------------------------------------------------------------------


def write_rows(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == LATE and not w.rules.rows_before_landed:
            yield from inserting(w, s, number, GONE)
        elif task.phase == CHECKED:
            yield from inserting(w, s, number, WRITING)
        elif task.phase != READ or is_ledger_locked(w, s, task.chunk):
            continue
        elif not passes(w, s, task):
            yield f"{name(s, number)} is superseded", over(s, number)
        elif not w.rules.rows_before_landed:
            after = with_task(landed(s, task.chunk), number, phase=LATE)
            yield f"{name(s, number)} commits landed before its rows", after
        elif not w.rules.fence_locks:
            yield f"{name(s, number)} passes the fence", with_task(s, number, phase=CHECKED)
        else:
            yield from inserting(w, s, number, WRITING)


def passes(w: World, s: State, task: Task) -> bool:
    state, attempt = s.chunks[task.chunk]
    return (attempt == task.attempt or not w.rules.fence_attempt) and (state == OPEN or not w.rules.fence_open)


def over(s: State, number: int) -> State:
    return with_task(s, number, phase=GONE, rows=(), inserted=0, locks=0)


def inserting(w: World, s: State, number: int, phase: int) -> Steps:
    """INSERT IGNORE: a row that is there stays; each that is met is locked."""
    rows = s.tasks[number].rows
    keys = present(rows)
    if keys & row_locks(s):
        return
    added = keys & ~present(s.target)
    target = tuple(rows[k] if added >> k & 1 else v for k, v in enumerate(s.target))
    after = s._replace(target=target)
    words = f"{name(s, number)} INSERTs IGNORE {said_rows(rows)}"
    if phase == GONE:
        yield words, over(after, number)
    else:
        yield words, with_task(after, number, phase=WRITING, inserted=added, locks=keys)


def roll_back(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == WRITING:
            target = tuple(NONE if task.inserted >> k & 1 else v for k, v in enumerate(s.target))
            after = with_task(s._replace(target=target), number, phase=READ, inserted=0, locks=0)
            yield f"{name(s, number)} rolls back", after


def land(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == WRITING and not w.rules.landed_with_rows:
            yield f"{name(s, number)} commits its rows alone", with_task(s, number, phase=LATE, inserted=0, locks=0)
        elif task.phase == WRITING or (task.phase == LATE and w.rules.rows_before_landed):
            if task.phase == LATE and (is_ledger_locked(w, s, task.chunk) or not passes(w, s, task)):
                continue
            yield f"{name(s, number)} lands", landed(over(s, number), task.chunk)


def landed(s: State, chunk: int) -> State:
    state, attempt = s.chunks[chunk]
    return s._replace(chunks=put(s.chunks, chunk, (LANDED, attempt))) if state == OPEN else s


# -- the model --------------------------------------------------------------------------------------------------------

COPY = (open_chunk, read, write_rows, roll_back, land)
OTHERS = (match, save, show, write)
OF_VARIANT = {MARKER: (write_marker, take), POSITION: (begin, commit)}
ACTIONS = (
    *COPY,
    *OF_VARIANT[MARKER],
    *OF_VARIANT[POSITION],
    *OTHERS,
    take_batch,
    write_share,
    crash,
    replace,
    wake,
)
"""All but those of a rule that is taken out."""


def actions_of(b: Bounds, r: Rules) -> Iterator[Callable[..., Iterable[Step[State]]]]:
    yield from (*COPY, *OF_VARIANT[b.variant])
    if b.workers:
        yield take_batch
    if b.workers or not r.checkpoint_behind_rows:
        yield write_share
    yield from OTHERS
    if b.crashes:
        yield crash
    if b.has_stale:
        yield from (replace, wake)
    if not r.ledger_read_behind_lock:
        yield read_ledger
    if not r.deleted_behind_poll:
        yield delete_early
    if not r.matched_with_deletes:
        yield delete_pending
    if not r.deleted_in_stream:
        yield delete_late


@dataclass(frozen=True, slots=True)
class CopyModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        world = World(rules=self.rules, bounds=self.bounds)
        object.__setattr__(self, "actions", tuple(partial(a, world) for a in actions_of(self.bounds, self.rules)))

    def initial(self) -> list[State]:
        return [begun(self.bounds, rows) for rows in self.bounds.starts]

    def wrong(self, s: State) -> str | None:
        if is_level(s) and s.target != s.source:
            return f"the source holds {said_rows(s.source)}, the target {said_rows(s.target)}"
        return None

    def is_end(self, s: State) -> bool:
        """No chunk is taken for open any more: tombstones would be kept for ever."""
        return is_level(s) and not s.opened


def begun(b: Bounds, rows: Rows) -> State:
    none = (NONE,) * len(rows)
    return State(
        source=rows,
        seen=rows,
        target=none,
        writes=b.writes,
        tombs=none,
        crashes=b.crashes,
        chunks=((UNOPENED, 0),) * len(b.ranges),
    )


def is_level(s: State) -> bool:
    is_applied = s.applied == len(s.log) and not is_busy(s) and not s.hidden
    is_quiet = not s.late and not any(t.phase == WRITING for t in s.tasks)
    return is_applied and is_quiet and all(state == MATCHED for state, _ in s.chunks)
