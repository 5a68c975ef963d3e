"""Catch-up of a copy across two servers: it applies, shares out, matches chunks, crashes and is replaced.

What each action stands for: move_copy_model.py. What must stay true: a change, its tombstones and the checkpoint are
one step where a rule says that they are one transaction.
"""

from __future__ import annotations

from tests.models.move_copy_world import LANDED, MATCHED, OPEN, State, Steps, World
from tests.models.rows_world import (
    NONE,
    Changes,
    Stale,
    bits,
    changed,
    keys_of,
    mask_of,
    present,
    put,
    row_locks,
    said_changes,
    said_keys,
)

# -- catch-up ---------------------------------------------------------------------------------------------------------


def is_busy(s: State) -> bool:
    return bool(s.todo or s.pending or s.is_begun)


def unmatched(s: State) -> int:
    """Chunks that the ledger has as open or landed."""
    return mask_of(c for c, (state, _) in enumerate(s.chunks) if state in (OPEN, LANDED))


def take(w: World, s: State) -> Steps:
    if is_busy(s) or s.applied == len(s.log):
        return
    entry, after = s.log[s.applied], s._replace(applied=s.applied + 1)
    if entry[0] == "open":
        yield f"catch-up: chunk {entry[1]} opened", rested(w, met(w, after, entry[1]))
    elif not w.bounds.workers:
        yield from applying(w, after, entry[1])


def met(w: World, s: State, chunk: int) -> State:
    is_matched = s.chunks[chunk][0] == MATCHED if w.rules.matched_by_ledger else bool(s.remembered >> chunk & 1)
    if is_matched and w.rules.matched_ignored:
        return s
    s = s._replace(opened=s.opened | 1 << chunk)
    if w.rules.tombstones_never_reset:
        return s
    return s._replace(tombs=tuple(mask & ~(1 << chunk) for mask in s.tombs))


def applying(w: World, s: State, changes: Changes) -> Steps:
    words = f"catch-up: {said_changes(changes)}"
    if not w.rules.checkpoint_behind_rows:
        yield f"{words} (the checkpoint first)", saved(s)._replace(todo=changes)
        return
    after = written(w, s, changes)
    if after is None:
        return
    yield words, rested(w, after)
    if not w.rules.tombstones_with_rows:
        yield f"{words} (the tombstones not yet)", rested(w, after._replace(tombs=s.tombs))


def rested(w: World, s: State) -> State:
    """The checkpoint is saved with the rows, unless it is late."""
    return s if w.bounds.is_lazy or not w.rules.checkpoint_with_rows else saved(s)


def saved(s: State) -> State:
    return s._replace(log=s.log[s.applied :], applied=0, noted=max(s.noted - s.applied, 0))


def save(w: World, s: State) -> Steps:
    if s.applied and not is_busy(s):
        yield "catch-up saves its checkpoint", saved(s)


def begin(w: World, s: State) -> Steps:
    if is_busy(s) or s.applied == len(s.log) or w.bounds.workers:
        return
    opened = unmatched(s) if w.rules.ledger_read_behind_lock else s.opened
    words = f"catch-up begins {said_changes(s.log[s.applied][1])}{' and collects' if opened else ''}"
    yield words, s._replace(is_begun=True, opened=opened)


def commit(w: World, s: State) -> Steps:
    if not s.is_begun or s.todo:
        return
    opened = 0 if w.rules.ledger_read_behind_lock else s.opened
    for words, after in applying(w, s._replace(applied=s.applied + 1), s.log[s.applied][1]):
        yield f"{words}, committed", after._replace(is_begun=False, opened=opened)


def read_ledger(w: World, s: State) -> Steps:
    if not w.rules.ledger_read_behind_lock and s.opened != unmatched(s) and not s.is_begun:
        yield "catch-up reads which chunks are open", s._replace(opened=unmatched(s))


def written(w: World, s: State, changes: Changes) -> State | None:
    """None while a row of it is locked."""
    before = s
    for key, value in changes:
        after = written_one(w, s, key, value)
        if after is None:
            return None
        s = after
    if not w.rules.tombstones_of_old_keys and len(changes) > 1:
        s = s._replace(tombs=put(s.tombs, changes[0][0], before.tombs[changes[0][0]]))
    return s


def written_one(w: World, s: State, key: int, value: int) -> State | None:
    is_locked = row_locks(s) >> key & 1
    if is_locked and (w.rules.locking_writes if value else w.rules.locking_deletes):
        return None
    target = s.target if is_locked else put(s.target, key, value)
    mask = s.tombs[key] if not w.rules.tombstones_cleared else NONE
    if not value:
        mask = s.opened if w.rules.tombstones else NONE
    return s._replace(target=target, tombs=put(s.tombs, key, mask))


# -- several workers --------------------------------------------------------------------------------------------------


def take_batch(w: World, s: State) -> Steps:
    """One group, or two with nothing in between."""
    if not w.bounds.workers or is_busy(s):
        return
    changes: Changes = ()
    for count, entry in enumerate(s.log[s.applied : s.applied + 2], 1):
        if entry[0] != "write":
            return
        changes += entry[1]
        after = s._replace(applied=s.applied + count, todo=changes)
        if not w.is_marker and w.rules.end_noted:
            after = after._replace(noted=max(s.noted, after.applied))
        if not w.rules.checkpoint_behind_rows:
            after = saved(after)
        yield f"catch-up shares out {said_changes(changes)}", after


def write_share(w: World, s: State) -> Steps:
    """Keys in any order, changes of one key in their own."""
    begun = 0
    for place, (key, value) in enumerate(s.todo):
        if begun >> key & 1:
            continue
        begun |= 1 << key
        read_now = s if w.is_marker else s._replace(opened=unmatched(s))
        after = written_one(w, read_now, key, value)
        if after is not None:
            words = f"catch-up writes {said_changes(((key, value),))}"
            yield words, after._replace(todo=s.todo[:place] + s.todo[place + 1 :], opened=s.opened)


# -- matching ---------------------------------------------------------------------------------------------------------


def match(w: World, s: State) -> Steps:
    """Whether or not its "opened" has been read yet."""
    if is_busy(s) or not w.rules.polled_fresh:
        return
    for chunk in bits(unmatched(s)):
        if s.chunks[chunk][0] == LANDED:
            yield from matching(w, s, chunk)


def matching(w: World, s: State, chunk: int) -> Steps:
    if not w.rules.deleted_behind_poll and not s.deleted >> chunk & 1:
        return
    keys = present(s.tombs) if w.rules.deleted_behind_poll else 0
    after = matched(w, s, chunk)
    words = f"catch-up finds chunk {chunk} landed, "
    if not w.rules.matched_with_deletes:
        yield f"{words}calls it matched", after._replace(pending=keys)
    elif not w.rules.deleted_in_stream:
        yield f"{words}hands {said_keys(keys)} to a side thread", after._replace(late=s.late | keys)
    elif not keys & row_locks(s) or not w.rules.locking_deletes:
        yield f"{words}deletes {said_keys(keys)} again", without_keys(after, keys)


def without_keys(s: State, keys: int) -> State:
    free = keys & ~row_locks(s)
    return s._replace(target=tuple(NONE if free >> k & 1 else v for k, v in enumerate(s.target)))


def matched(w: World, s: State, chunk: int) -> State:
    s = s._replace(
        chunks=put(s.chunks, chunk, (MATCHED, s.chunks[chunk][1])),
        opened=s.opened & ~(1 << chunk),
        remembered=s.remembered | (0 if w.rules.matched_by_ledger else 1 << chunk),
        deleted=s.deleted & ~(1 << chunk),
    )
    left = ~(1 << chunk) if w.rules.pruned_behind_oldest else 0
    return s._replace(tombs=tuple(mask & left for mask in s.tombs))


def delete_early(w: World, s: State) -> Steps:
    for chunk in bits(0 if is_busy(s) else unmatched(s) & ~s.deleted):
        if not present(s.tombs) & row_locks(s):
            words = f"catch-up deletes {said_keys(present(s.tombs))} again, before it looks for landed"
            yield words, without_keys(s, present(s.tombs))._replace(deleted=s.deleted | 1 << chunk)


def delete_pending(w: World, s: State) -> Steps:
    if s.pending and not s.pending & row_locks(s):
        yield f"catch-up deletes {said_keys(s.pending)} again", without_keys(s, s.pending)._replace(pending=0)


def delete_late(w: World, s: State) -> Steps:
    if s.late and not s.late & row_locks(s):
        yield f"the side thread deletes {said_keys(s.late)}", without_keys(s, s.late)._replace(late=0)


# -- crashes ----------------------------------------------------------------------------------------------------------


def crash(w: World, s: State) -> Steps:
    if s.crashes:
        yield "catch-up crashes and starts again from its checkpoint", restarted(w, s)


def restarted(w: World, s: State) -> State:
    opened = unmatched(s)
    tombs = tuple(opened if mask and w.rules.tombstones_durable else NONE for mask in s.tombs)
    return s._replace(
        applied=0,
        todo=(),
        is_begun=False,
        opened=opened if w.is_marker else 0,
        tombs=tombs,
        pending=0,
        crashes=s.crashes - 1,
        remembered=0 if w.rules.matched_by_ledger else mask_of(c for c, (n, _) in enumerate(s.chunks) if n == MATCHED),
    )


def replace(w: World, s: State) -> Steps:
    if not (w.bounds.has_stale and s.crashes and s.stale is None) or s.applied == len(s.log):
        return
    entry = s.log[s.applied]
    for is_past in (False,) if w.rules.applier_lease_locks else (False, True):
        if entry[0] == "write":
            seen = " and past the fence" if is_past else ""
            words = f"catch-up is stopped with {said_changes(entry[1])} in its hands{seen}; another takes over"
            yield words, restarted(w, s)._replace(stale=Stale(entry[1], is_past))


def wake(w: World, s: State) -> Steps:
    if s.stale is None or not s.stale.changes:
        return
    after = s._replace(stale=Stale((), True))
    if w.rules.applier_lease and not s.stale.is_past_fence:
        yield "the old catch-up wakes up and is superseded", after
    elif not keys_of(s.stale.changes) & row_locks(s):
        words = f"the old catch-up wakes up and writes {said_changes(s.stale.changes)}"
        yield words, after._replace(target=changed(s.target, s.stale.changes))
