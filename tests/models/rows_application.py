"""The application and the server beneath it: transactions that reach the log first and SELECT later.

    write        the application's COMMIT up to the log: the server's prepare, and flush of the binary log
    prepare      XA PREPARE
    end_branch   XA COMMIT or XA ROLLBACK, up to the log
    show         the engine's commit: visible to SELECT, row locks gone; in the log's order (binlog_order_commits)

What must stay true: a row whose change is not yet visible is locked, as InnoDB does; only MariaDB's XA COMMIT becomes
visible outside the log's order (F1b).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.rows_world import (
    COMMITTING,
    LANDED,
    LATE,
    NONE,
    NOT_BEGUN,
    NULL,
    OPEN,
    OPENED,
    OVER,
    PREPARED,
    READ,
    READY,
    UNUSED,
    Changes,
    Entry,
    State,
    World,
    changed,
    keys_of,
    put,
    said_changes,
    said_entry,
    with_task,
)
from tests.models.rows_world import MARKER_RETURNED as RETURNED

Steps = Iterator[tuple[str, State]]
WRITES = ("write", "commit")


def write(w: World, s: State) -> Steps:
    """One transaction of the application."""
    if not s.writes:
        return
    for changes in transactions(w, s):
        entry = ("write", changes)
        yield (
            f"application: {said_changes(changes)} (in the log)",
            logged(s, entry)._replace(source=changed(s.source, changes), writes=s.writes - 1),
        )


def logged(s: State, entry: Entry) -> State:
    """Committed up to the log. Before the start position is read nobody of ours will read it."""
    log = s.log if s.stage == NOT_BEGUN else (*s.log, entry)
    return s._replace(log=log, hidden=(*s.hidden, entry))


def transactions(w: World, s: State) -> Iterator[Changes]:
    locked = source_locks(s)
    free = [k for k in w.bounds.keys if not locked >> k & 1]
    for key in free:
        for value in values(w, s, key):
            yield ((key, value),)
    if w.bounds.key_changes:
        for old in free:
            for new in free:
                if s.source[old] and not s.source[new]:
                    yield ((old, NONE), (new, s.source[old]))
    if w.bounds.unique == "same":
        yield from swaps(s, free)


def source_locks(s: State) -> int:
    """Keys that a transaction not yet visible, or a prepared branch, has locked."""
    locks = 0
    for entry in s.hidden:
        if entry[0] == "write":
            locks |= keys_of(entry[1])
    for state, changes in s.branches:
        if state in (PREPARED, COMMITTING):
            locks |= keys_of(changes)
    return locks


def values(w: World, s: State, key: int) -> Iterator[int]:
    """What the row may become: values toggle, so that A-B-A is among it."""
    now = s.source[key]
    if now:
        yield NONE
    if not w.bounds.unique:
        yield 1 if now in (NONE, 2) else 2
        return
    for value in (1, 2):
        if value != now and not (w.bounds.unique == "same" and is_taken(s, key, value)):
            yield value


def is_taken(s: State, key: int, value: int) -> bool:
    """A unique value is taken from the statement on, and free again when its row's change is visible."""
    return any(rows[k] == value for rows in (s.source, s.seen) for k in range(len(rows)) if k != key)


def swaps(s: State, free: list[int]) -> Iterator[Changes]:
    """Two rows exchange their values by way of NULL."""
    for i, one in enumerate(free):
        for other in free[i + 1 :]:
            a, b = s.source[one], s.source[other]
            if a and b and a != b and NULL not in (a, b):
                yield ((one, NULL), (other, a), (one, b))


def prepare(w: World, s: State) -> Steps:
    """XA PREPARE: the rows are in the log, the row locks stay."""
    for number, (state, _) in enumerate(s.branches):
        if state != UNUSED:
            continue
        for changes in transactions(w, s):
            branches = put(s.branches, number, (PREPARED, changes))
            log = s.log if s.stage == NOT_BEGUN else (*s.log, ("prepare", number))
            yield (
                f"application: XA PREPARE x{number} ({said_changes(changes)})",
                s._replace(branches=branches, log=log),
            )
        return


def end_branch(w: World, s: State) -> Steps:
    for number, (state, changes) in enumerate(s.branches):
        if state == PREPARED:
            over = s._replace(branches=put(s.branches, number, (OVER, changes)))
            log = s.log if s.stage == NOT_BEGUN else (*s.log, ("rollback", number))
            yield f"application: XA ROLLBACK x{number}", over._replace(log=log)
            committing = s._replace(
                branches=put(s.branches, number, (COMMITTING, changes)), source=changed(s.source, changes)
            )
            yield f"application: XA COMMIT x{number} (in the log)", logged(committing, ("commit", number))


def show(w: World, s: State) -> Steps:
    """What is in the log becomes visible; for a commit of ours that is the moment when it returns."""
    for place, entry in enumerate(s.hidden):
        if may_show(w, s, place):
            rest = s._replace(hidden=s.hidden[:place] + s.hidden[place + 1 :])
            yield f"visible: {said_hidden(entry)}", shown(w, rest, entry)


def said_hidden(entry: Entry) -> str:
    return said_entry((entry[0], *entry[2:])) if entry[0] in ("open", "claim", "land") else said_entry(entry)


def may_show(w: World, s: State, place: int) -> bool:
    if not w.rules.ordered_commits or place == 0:
        return True
    is_unordered = w.bounds.is_mariadb and s.hidden[place][0] == "commit"
    return is_unordered or (w.bounds.is_mariadb and all(e[0] == "commit" for e in s.hidden[:place]))


def shown(w: World, s: State, entry: Entry) -> State:
    kind = entry[0]
    if kind == "write":
        return s._replace(seen=changed(s.seen, entry[1]))
    if kind == "commit":
        changes = s.branches[entry[1]][1]
        return s._replace(seen=changed(s.seen, changes), branches=put(s.branches, entry[1], (OVER, changes)))
    if kind == "start":
        return s._replace(stage=RETURNED)
    return ledger_shown(w, s, entry)


def ledger_shown(w: World, s: State, entry: Entry) -> State:
    kind, number, chunk = entry[:3]
    task = s.tasks[number]
    if kind in ("open", "claim"):
        attempts = put(s.attempts, task.split, task.attempt)
        s = s._replace(chunks=put(s.chunks, chunk, (OPEN, task.attempt)), attempts=attempts)
        phase = READ if task.rows else OPENED
        return with_task(s, number, phase=phase, chunk=chunk)
    return landing_shown(w, s, number, chunk, entry[3])


def landing_shown(w: World, s: State, number: int, chunk: int, following: int) -> State:
    """Rows and "landed" are there and unlocked; with them, maybe, the next chunk is open."""
    task = s.tasks[number]
    state, attempt = s.chunks[chunk]
    if state == OPEN:
        s = s._replace(chunks=put(s.chunks, chunk, (LANDED, attempt)))
    if not w.rules.rows_before_landed:
        return with_task(s, number, phase=LATE)
    if task.has_swallowed and w.rules.pushed_out_noted:
        s = s._replace(dirty_chunks=s.dirty_chunks | 1 << chunk)
    free = {"rows": (), "inserted": 0, "locks": 0, "limit": 0, "has_swallowed": False}
    if following < 0:
        return with_task(s, number, phase=READY, chunk=-1, **free)
    s = s._replace(chunks=put(s.chunks, following, (OPEN, task.attempt)))
    return with_task(s, number, phase=OPENED, chunk=following, **free)
