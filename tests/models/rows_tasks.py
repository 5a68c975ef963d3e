"""Copy tasks: attempts at a split, each of which may stop anywhere for as long as it likes and go on.

    claim        `state.ledger.claim_split`: the newest attempt; open chunks are claimed with it
    clear        `rowcopy.repair._clear`: the rows of a range that is repaired
    open_chunk   `rowcopy.chunker.Walk._open`, `state.ledger.open_chunk`: INSERT … SELECT from split and gate
    read         `rowcopy.paths.CopyPath.read`: the SELECT; on MariaDB behind a look at XA RECOVER
    settle       `rowcopy.settle.wait_for_branches`: until each branch has ended or is held at the marker
    write_rows   `rowcopy.chunker.Walk._land`: `state.ledger.fence_chunk`, `state.lease.fence`,
                 `rowcopy.paths.CopyPath.write`: INSERT IGNORE
    roll_back    `rowcopy.chunker.Walk._persist`: a lock wait; the rows are written again from the same SELECT
    land         `state.ledger.land`; in the same commit the next chunk's "opened", `rowcopy.chunker.Walk._open_behind`
    take_over    `state.lease.acquire` by another driver: the row's share locks are waited for, the token is new
    begin_again  `workflows.online_ddl.prepare.undo`, `state.workflows.forget`: the workflow begins anew under its id

What must stay true: a crash of a task is a task that never goes on (its open transaction rolled back first), so it
needs no action of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.rows_application import Steps
from tests.models.rows_world import (
    CHECKED,
    CLAIMING,
    CLEARING,
    COMMITTING,
    GONE,
    HOLDS_LOCKS,
    LANDED,
    LANDING,
    LATE,
    MATCHED,
    NONE,
    OPEN,
    OPENED,
    OPENING,
    PREPARATION_DONE,
    PREPARED,
    READ,
    READY,
    SETTLING,
    UNOPENED,
    WRITING,
    Rows,
    State,
    Task,
    World,
    bits,
    mask_of,
    present,
    put,
    range_of,
    row_locks,
    said_keys,
    said_rows,
    with_task,
)

LEDGER = ("open", "claim", "land")
NOTHING = {"rows": (), "inserted": 0, "locks": 0, "waits": 0, "limit": 0, "has_swallowed": False}


def name(s: State, number: int) -> str:
    task = s.tasks[number]
    split = "" if len(s.attempts) == 1 else f" at split {task.split}"
    driver = f" of driver {task.token}" if s.lease > 1 or task.token > 1 else ""
    return f"attempt {task.attempt}{mark_of(s, number)}{split}{driver}"


def mark_of(s: State, number: int) -> str:
    """Tells two attempts with the same number apart."""
    task = s.tasks[number]
    same = [t for t in s.tasks[:number] if (t.split, t.attempt, t.token) == (task.split, task.attempt, task.token)]
    return "'" * len(same)


def is_ledger_locked(s: State, split: int) -> bool:
    """A transaction that has the split's or its chunk's row locked is not over."""
    if any(e[0] in LEDGER and s.tasks[e[1]].split == split for e in s.hidden):
        return True
    return any(t.split == split and t.phase in HOLDS_LOCKS for t in s.tasks)


def chunks_of(w: World, s: State, split: int) -> tuple[int, ...]:
    """Of a split of the first copy by the bounds; a later one is a repair's, and one chunk."""
    fixed = w.bounds.splits
    if split < len(fixed):
        return fixed[split]
    return (sum(map(len, fixed)) + split - len(fixed),)


# -- claiming ---------------------------------------------------------------------------------------------------------


def claim(w: World, s: State) -> Steps:
    if s.stage != PREPARATION_DONE:
        return
    for split, attempt in enumerate(s.attempts):
        tries = sum(t.split == split and t.token == s.lease for t in s.tasks)
        if tries < w.bounds.attempts and may_claim(w, s, split):
            number = attempt + 1 if w.rules.claim_bumps else max(attempt, 1)
            yield claimed(w, s, split, number)


def may_claim(w: World, s: State, split: int) -> bool:
    if any(t.phase == CLEARING and (t.split, t.token) == (split, s.lease) for t in s.tasks):
        # The driver clears by itself, before it has the split copied.
        return False
    chunks = chunks_of(w, s, split)
    is_done = all(s.chunks[c][0] in (LANDED, MATCHED) for c in chunks)
    if is_done and w.rules.claim_spares_landed:
        return False
    is_fenced = not w.rules.fence_locks or not is_ledger_locked(s, split)
    return is_fenced and is_turn(w, s, split) and not any(e[0] in LEDGER and e[2] in chunks for e in s.hidden)


def is_turn(w: World, s: State, split: int) -> bool:
    """A repair begins when everything before it is matched, and its driver holds the lease."""
    if split < len(w.bounds.splits):
        return True
    return all(s.chunks[c][0] == MATCHED for earlier in range(split) for c in chunks_of(w, s, earlier))


def claimed(w: World, s: State, split: int, attempt: int) -> tuple[str, State]:
    chunks = chunks_of(w, s, split)
    number = len(s.tasks)
    is_clearing = w.bounds.repairs and split > 0 and s.attempts[split] == 0 and w.rules.cleared_before_opened
    task = Task(split=split, attempt=attempt, token=s.lease, phase=CLEARING if is_clearing else READY)
    s = s._replace(tasks=(*s.tasks, task))
    claimable = (OPEN,) if w.rules.claim_spares_landed else (OPEN, LANDED, MATCHED)
    found = [c for c in chunks if s.chunks[c][0] in claimable]
    words = f"{name(s, number)} claims"
    if not found:
        return words, s._replace(attempts=put(s.attempts, split, attempt))
    chunk = found[0]
    s = s._replace(
        log=(*s.log, ("claim", chunk)),
        hidden=(*s.hidden, ("claim", number, chunk)),
        tasks=put(s.tasks, number, task._replace(phase=CLAIMING, chunk=chunk)),
    )
    return f"{words} chunk {chunk} (in the log)", s


def clear(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase != CLEARING:
            continue
        if task.token != s.lease and w.rules.clearing_lease:
            yield f"{name(s, number)} is superseded", with_task(s, number, phase=GONE)
            continue
        keys = range_of(s, chunks_of(w, s, task.split)[0])
        if not row_locks(s) & keys:
            after = s._replace(shadow=emptied(s.shadow, keys))
            yield f"{name(s, number)} clears {said_keys(keys)}", with_task(after, number, phase=READY)


def emptied(rows: Rows, keys: int) -> Rows:
    return tuple(NONE if keys >> k & 1 else v for k, v in enumerate(rows))


# -- opening ----------------------------------------------------------------------------------------------------------


def next_chunk(w: World, s: State, split: int) -> int:
    """-1: every chunk of the split is in the ledger."""
    return next((c for c in chunks_of(w, s, split) if s.chunks[c][0] == UNOPENED), -1)


def may_open(w: World, s: State, task: Task) -> bool:
    """The gate is open and no newer attempt has claimed the split."""
    return s.is_fresh and s.attempts[task.split] == task.attempt


def open_chunk(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase != READY or (chunk := next_chunk(w, s, task.split)) < 0:
            continue
        if s.attempts[task.split] > task.attempt or (task.token != s.lease and w.rules.opening_lease):
            yield f"{name(s, number)} is superseded", with_task(s, number, phase=GONE, **NOTHING)
        elif may_open(w, s, task) and not is_ledger_locked(s, task.split):
            yield opening(w, s, number, chunk)


def opening(w: World, s: State, number: int, chunk: int) -> tuple[str, State]:
    limit = 0 if w.rules.copy_without_limit else present(s.seen).bit_count()
    after = with_task(s, number, phase=OPENING, chunk=chunk, limit=limit)
    after = after._replace(log=(*after.log, ("open", chunk)), hidden=(*after.hidden, ("open", number, chunk)))
    return f"{name(s, number)} opens chunk {chunk} (in the log)", after


# -- reading ----------------------------------------------------------------------------------------------------------


def read(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == READY and not w.rules.opened_before_read and not task.rows:
            chunk = next_chunk(w, s, task.split)
            if chunk >= 0:
                yield selected(w, s, number, chunk, READY)
        elif task.phase == OPENING and not w.rules.opened_has_returned and not task.rows:
            yield selected(w, s, number, task.chunk, OPENING)
        elif task.phase == OPENED and is_settling(w, s):
            yield looked(s, number)
        elif task.phase == OPENED:
            yield selected(w, s, number, task.chunk, READ)


def selected(w: World, s: State, number: int, chunk: int, phase: int) -> tuple[str, State]:
    keys = range_of(s, chunk)
    rows = emptied(s.seen, ~keys)
    if s.tasks[number].limit and not w.rules.copy_without_limit:
        rows = limited(rows, s.tasks[number].limit)
    return f"{name(s, number)} SELECTs {said_rows(rows)}", with_task(s, number, phase=phase, rows=rows)


def limited(rows: Rows, count: int) -> Rows:
    kept = bits(present(rows))[:count]
    return emptied(rows, ~mask_of(kept))


def listed(s: State) -> int:
    """XA RECOVER: prepared, or committed and not yet visible."""
    return mask_of(n for n, (state, _) in enumerate(s.branches) if state in (PREPARED, COMMITTING))


def is_settling(w: World, s: State) -> bool:
    return bool(w.bounds.is_mariadb and w.rules.branches_awaited and listed(s))


def looked(s: State, number: int) -> tuple[str, State]:
    """XA RECOVER lists somebody: a marker, then wait for each."""
    waits = listed(s)
    after = with_task(s, number, phase=SETTLING, waits=waits)
    after = after._replace(log=(*s.log, ("mark", 0)), held_at_marker=-1)
    return f"{name(s, number)} sees {said_branches(waits)} in XA RECOVER and writes a marker", after


def said_branches(mask: int) -> str:
    return ", ".join(f"x{n}" for n in bits(mask)) or "nobody"


def settle(w: World, s: State) -> Steps:
    """Ended, or still held when the marker was applied: then its outcome comes by the stream."""
    for number, task in enumerate(s.tasks):
        if task.phase != SETTLING:
            continue
        left = task.waits & listed(s)
        if s.held_at_marker >= 0:
            left &= ~s.held_at_marker
        if left != task.waits:
            phase = SETTLING if left else READ
            after = with_task(s, number, waits=left)
            if left:
                yield f"{name(s, number)} still waits for {said_branches(left)}", after
            else:
                yield selected(w, after, number, task.chunk, phase)


# -- landing ----------------------------------------------------------------------------------------------------------


def write_rows(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == READ:
            yield from fenced(w, s, number)
        elif task.phase == CHECKED or (task.phase == LATE and not w.rules.rows_before_landed):
            yield from inserted(w, s, number)


def fenced(w: World, s: State, number: int) -> Steps:
    task = s.tasks[number]
    if w.rules.fence_locks and is_ledger_locked(s, task.split):
        return
    if not passes(w, s, task):
        yield f"{name(s, number)} is superseded", with_task(s, number, phase=GONE, **NOTHING)
    elif not w.rules.fence_locks:
        yield f"{name(s, number)} passes the fence", with_task(s, number, phase=CHECKED)
    elif not w.rules.rows_before_landed:
        yield landing(s, number, -1)
    else:
        yield from inserted(w, s, number)


def passes(w: World, s: State, task: Task) -> bool:
    state, attempt = s.chunks[task.chunk]
    is_newest = attempt == task.attempt or not w.rules.fence_attempt
    is_open = state == OPEN or not w.rules.fence_open
    return is_newest and is_open and state != UNOPENED and (task.token == s.lease or not w.rules.landing_lease)


def inserted(w: World, s: State, number: int) -> Steps:
    """INSERT IGNORE: a row that is there stays; each that is met is locked."""
    task = s.tasks[number]
    others = row_locks(s)
    shadow, added, locks, swallowed = list(s.shadow), 0, 0, False
    is_cleaning = not w.rules.not_cleaned or (w.bounds.repairs and not w.rules.cleared_before_opened)
    keys = range_of(s, task.chunk)
    if is_cleaning:
        shadow = list(emptied(s.shadow, keys))
        locks = present(s.shadow) & keys
    for key, value in enumerate(task.rows):
        if not value:
            continue
        locks |= 1 << key
        if (swallower := holder(w, shadow, key, value)) >= 0:
            locks |= 1 << swallower
            swallowed = True
        elif not shadow[key]:
            shadow[key] = value
            added |= 1 << key
    if locks & others:
        return
    words = f"{name(s, number)} INSERTs IGNORE {said_rows(task.rows)}"
    after = s._replace(shadow=tuple(shadow))
    if task.phase == LATE:
        yield words, with_task(after, number, phase=READY, chunk=-1, **NOTHING)
        return
    yield words, with_task(after, number, phase=WRITING, inserted=added, locks=locks, has_swallowed=swallowed)


def holder(w: World, shadow: list[int], key: int, value: int) -> int:
    """Another row that has the unique value; -1: none."""
    if not w.bounds.unique or value == 3 or shadow[key]:
        return -1
    return next((k for k, v in enumerate(shadow) if k != key and v == value), -1)


def roll_back(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == WRITING and w.rules.not_cleaned and (w.rules.cleared_before_opened or not w.bounds.repairs):
            after = s._replace(shadow=emptied(s.shadow, task.inserted))
            yield (
                f"{name(s, number)} rolls back",
                with_task(after, number, phase=READ, inserted=0, locks=0, has_swallowed=False),
            )


def land(w: World, s: State) -> Steps:
    for number, task in enumerate(s.tasks):
        if task.phase == WRITING and not w.rules.landed_with_rows:
            yield f"{name(s, number)} commits its rows alone", with_task(s, number, phase=LATE, inserted=0, locks=0)
        elif task.phase == LATE and w.rules.rows_before_landed:
            if not is_ledger_locked(s, task.split) and passes(w, s, task):
                yield landing(s, number, -1)
        elif task.phase == WRITING:
            for following in followers(w, s, task):
                yield landing(s, number, following)


def followers(w: World, s: State, task: Task) -> Iterator[int]:
    """The next chunk is opened by the same commit, where the gate is open."""
    yield -1
    chunk = next_chunk(w, s, task.split)
    if chunk >= 0 and may_open(w, s, task):
        yield chunk


def landing(s: State, number: int, following: int) -> tuple[str, State]:
    chunk = s.tasks[number].chunk
    after = with_task(s, number, phase=LANDING)
    after = after._replace(
        log=(*s.log, ("land", chunk, following)), hidden=(*s.hidden, ("land", number, chunk, following))
    )
    opens = f" and opens chunk {following}" if following >= 0 else ""
    return f"{name(s, number)} lands chunk {chunk}{opens} (in the log)", after


# -- drivers ----------------------------------------------------------------------------------------------------------


def holds_lease(s: State) -> bool:
    """A transaction of ours that has the lease row locked is not over."""
    return any(t.phase in HOLDS_LOCKS for t in s.tasks)


def take_over(w: World, s: State) -> Steps:
    if w.bounds.repairs and s.lease == 1 and not holds_lease(s):
        yield "another driver takes the workflow over", s._replace(lease=2)


def begin_again(w: World, s: State) -> Steps:
    """DROP TABLE waits for whoever uses the shadow."""
    is_quiet = not holds_lease(s) and not any(e[0] in LEDGER for e in s.hidden)
    if w.bounds.begins_again and s.lease == 1 and is_quiet:
        none = (NONE,) * len(s.seen)
        fresh = s._replace(shadow=none, tombs=none, log=(), applied=0, opened=0, todo=(), held=0, lease=2)
        yield (
            "the workflow is cancelled and begun again under its id",
            fresh._replace(chunks=((UNOPENED, 0),) * len(s.chunks), attempts=(0,) * len(s.attempts)),
        )
