"""Catch-up: reads the log from its checkpoint, holds XA branches, applies, matches chunks, crashes and starts again.

    apply_batch   `changes.matcher.Matcher.feed`, `apply.applier.Applier.take` and `apply.applier.Applier.flush`: rows,
                  tombstones (`apply.writer.write_steps`) and checkpoint in one transaction
    write_share   `apply.applier.Applier._write_shared`: one worker's part of a batch
    match         `apply.applier.Applier._commit` behind "landed": `apply.table.TableWork.match` with
                  `apply.writer.delete_again`, `apply.writer.prune_tombstones`, `state.ledger.match`
    pass_marker   `apply.applier.Applier._on_marker`; behind a fresh one `apply.applier.Applier.match_landed`; at a copy
                  task's the held branches are noted (`state.markers.record_applied`)
    save          `apply.applier.Applier._save_checkpoint`, of an empty batch or behind a shared one
    crash         kill -9 or a lost connection, then `apply.applier.Applier._load`: the checkpoint, then the ledger;
                  unmatched chunks count as open
    replace       the same while the old process is only stopped: it keeps a batch in its hands
    wake          the old one goes on: `apply.writer.in_transaction`, `state.lease.fence`
    settle_dirty  `workflows.online_ddl.conflicts.resolve`: what was pushed out (`apply.unique.UniqueWriter`) or
                  swallowed is again; a real duplicate ends the workflow
    forget_dirty  `state.dirty.forget`
    pass_gate     `workflows.online_ddl.gate.hold_at_gate` (only with `dirty_under_lock` taken out)
    delete_late   the deletes of `match` by a side thread (only with `landed_in_stream` taken out)

What must stay true: several entries read and flushed one by one are the same as one batch with nothing in between, so
a batch is chosen when it is flushed; what a batch adds (one transaction for all of it, "opened" read before its rows
are flushed) is in `Taken`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tests.models.rows_application import Steps
from tests.models.rows_world import (
    KEPT,
    LANDED,
    MATCHED,
    NONE,
    NULL,
    OPEN,
    PREPARATION_DONE,
    UNOPENED,
    Changes,
    Entry,
    Rows,
    Stale,
    State,
    World,
    all_matched,
    bits,
    keys_of,
    mask_of,
    present,
    put,
    row_locks,
    said_changes,
    said_entry,
    said_keys,
)

IN_ORDER = ("write", "open", "claim", "land")


class Taken(NamedTuple):
    """Entries of one batch, read: what they leave in memory, and the changes to be written."""

    count: int
    opened: int
    held: int
    is_strict: bool
    changes: Changes = ()
    resets: bool = False
    failure: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


def batches(w: World, s: State) -> Iterator[Taken]:
    """Every batch that may be flushed next: it ends behind a change, or before what has to be acted on alone."""
    taken = Taken(0, s.opened, s.held, s.is_strict)
    groups, is_flushed = 0, True
    for entry in s.log[s.applied :]:
        if is_alone(w, entry, taken):
            break
        had = len(taken.changes)
        taken, is_flushed = with_entry(w, s, taken, entry), False
        if len(taken.changes) > had or taken.failure or taken.resets:
            groups, is_flushed = groups + 1, True
            yield taken
            if groups == w.bounds.batch or taken.failure or taken.resets:
                return
    if not is_flushed:
        yield taken


def is_alone(w: World, entry: Entry, taken: Taken) -> bool:
    if entry[0] == "mark":
        return True
    return entry[0] == "land" and bool(taken.opened >> entry[1] & 1)


def with_entry(w: World, s: State, taken: Taken, entry: Entry) -> Taken:
    kind, taken = entry[0], taken._replace(count=taken.count + 1)
    if kind in ("open", "claim", "land"):
        return with_chunk(w, taken, entry)
    if kind == "write":
        return taken._replace(changes=taken.changes + kept(w, s, taken.opened, entry[1]))
    if kind in ("prepare", "commit", "rollback"):
        return with_branch(w, s, taken, kind, entry[1])
    return taken


def with_chunk(w: World, taken: Taken, entry: Entry) -> Taken:
    chunk = entry[2] if entry[0] == "land" else entry[1]
    if chunk < 0:
        return taken
    resets = not w.rules.tombstones_never_reset and entry[0] != "land"
    return taken._replace(opened=taken.opened | 1 << chunk, is_strict=True, resets=resets)


def with_branch(w: World, s: State, taken: Taken, kind: str, number: int) -> Taken:
    """The matcher's part."""
    bit, changes = 1 << number, s.branches[number][1]
    if kind == "prepare":
        if not w.rules.rows_held:
            return taken._replace(changes=taken.changes + changes)
        return taken._replace(held=taken.held | bit)
    if taken.held & bit:
        rows = changes if kind == "commit" else ()
        return taken._replace(held=taken.held & ~bit, changes=taken.changes + rows)
    if kind == "commit" and w.rules.rows_held and w.rules.unknown_refused and taken.is_strict:
        return taken._replace(failure=f"ended: XA COMMIT x{number} of an unknown branch")
    return taken


def kept(w: World, s: State, opened: int, changes: Changes) -> Changes:
    """All of them; F5 taken out: not those of keys whose chunk has not been opened in the log yet."""
    if w.rules.nothing_dropped:
        return changes
    come_to = opened | mask_of(c for c, (state, _) in enumerate(s.chunks) if state == MATCHED)
    copied = 0
    for chunk in bits(come_to):
        copied |= s.ranges[chunk]
    return tuple((k, v) for k, v in changes if copied >> k & 1)


# -- writing ----------------------------------------------------------------------------------------------------------


def apply_batch(w: World, s: State) -> Steps:
    if s.todo and w.rules.full_barrier:
        return
    for taken in batches(w, s):
        words = said_taken(s, taken)
        read = {"opened": taken.opened, "held": taken.held, "is_strict": taken.is_strict}
        after = s._replace(applied=s.applied + taken.count, **read)
        if taken.failure:
            yield words, after._replace(failure=taken.failure)
            continue
        if taken.resets:
            after = after._replace(tombs=(NONE,) * len(s.tombs))
        yield from flushed(w, after, taken.changes, words)


def said_taken(s: State, taken: Taken) -> str:
    return "catch-up: " + "; ".join(said_entry(e) for e in s.log[s.applied : s.applied + taken.count])


def flushed(w: World, s: State, changes: Changes, words: str) -> Steps:
    if w.bounds.workers:
        todo = s.todo + (shared_out(w, changes) if w.rules.full_barrier else changes)
        after = s._replace(todo=todo)
        yield words + " (shared among workers)", after if w.rules.checkpoint_behind_rows else saved(w, after)
        return
    if not w.rules.checkpoint_behind_rows and changes and not s.todo:
        yield words + " (the checkpoint first)", saved(w, s._replace(todo=changes))
        return
    for ordered in orders(w, changes):
        after = written(w, s, changes, ordered)
        if after is None:
            continue
        yield words, saved(w, after)
        if not w.rules.tombstones_with_rows:
            yield words + " (the tombstones not yet)", saved(w, after._replace(tombs=s.tombs))


def last_ones(changes: Changes) -> Changes:
    """The last change of each key, deletes first."""
    last = dict(changes)
    return tuple(sorted(last.items(), key=lambda kv: (kv[1] != NONE, kv[0])))


def shared_out(w: World, changes: Changes) -> Changes:
    """What the workers do; under a new unique key every row is taken out first, by whichever of them, and committed."""
    last = last_ones(changes)
    if w.bounds.unique != "added":
        return last
    return tuple((key, NONE) for key, _ in last) + tuple((key, value) for key, value in last if value != NONE)


def orders(w: World, changes: Changes) -> Iterator[Changes]:
    """Deletes first; the writes in any order where one may push out what another has written."""
    last = last_ones(changes)
    if w.bounds.unique != "added":
        yield last
        return
    deletes = tuple(kv for kv in last if kv[1] == NONE)
    for writes in itertools.permutations(last[len(deletes) :]):
        yield deletes + writes


def written(w: World, s: State, changes: Changes, ordered: Changes) -> State | None:
    """The batch in one transaction; None while a row of it is locked."""
    if w.bounds.unique == "added":
        # UniqueWriter._write: all rows are taken out before the first of them is written.
        if mask_of(key for key, _ in ordered) & row_locks(s):
            return None
        for key, _ in ordered:
            s = s._replace(shadow=put(s.shadow, key, NONE))
    for key, value in ordered:
        after = written_one(w, s, key, value)
        if after is None:
            return None
        s = after
    return with_old_keys(w, s, changes)


def with_old_keys(w: World, s: State, changes: Changes) -> State:
    """A rule taken out: the old side of a key change is not on the list."""
    if w.rules.tombstones_of_old_keys:
        return s
    old = [k for (k, v), (_, after) in itertools.pairwise(changes) if not v and after]
    for key in old:
        s = s._replace(tombs=put(s.tombs, key, NONE))
    return s


def written_one(w: World, s: State, key: int, value: int) -> State | None:
    """DELETE or REPLACE of one row, with its tombstone; None while it is locked."""
    locks = row_locks(s)
    pushed = pushed_out(w, s.shadow, key, value)
    if (locks & (1 << key | pushed)) and (value or w.rules.locking_deletes):
        return None
    shadow = s.shadow if locks >> key & 1 else put(s.shadow, key, value)
    for other in bits(pushed):
        shadow = put(shadow, other, NONE)
    tombs = put(s.tombs, key, tomb(w, s, key, value))
    if w.bounds.unique == "added" and s.dirty[key]:
        # UniqueWriter._discard: the row's own change says anew what it is.
        s = s._replace(dirty=put(s.dirty, key, 0))
    return noted(w, s._replace(shadow=shadow, tombs=tombs), pushed)


def tomb(w: World, s: State, key: int, value: int) -> int:
    if value:
        return NONE if w.rules.tombstones_cleared else s.tombs[key]
    return s.opened if w.rules.tombstones else NONE


def pushed_out(w: World, shadow: Rows, key: int, value: int) -> int:
    """Rows that REPLACE deletes because they have the same unique value."""
    if not w.bounds.unique or value in (NONE, NULL):
        return 0
    return mask_of(k for k, v in enumerate(shadow) if k != key and v == value)


def noted(w: World, s: State, pushed: int) -> State:
    """UniqueWriter._move_to_dirty: what goes is noted as dirty and as a tombstone."""
    if not pushed or w.bounds.unique != "added" or not w.rules.pushed_out_noted:
        return s
    for key in bits(pushed):
        s = s._replace(dirty=put(s.dirty, key, {0: 1, 1: 1, 2: 3, 3: 3}[s.dirty[key]]))
        if w.rules.pushed_out_tombstoned and s.opened:
            s = s._replace(tombs=put(s.tombs, key, s.opened))
    return s


def write_share(w: World, s: State) -> Steps:
    """Workers take a batch's keys in any order; changes of one key stay in order."""
    begun = 0
    for place, (key, value) in enumerate(s.todo):
        if begun >> key & 1:
            continue
        begun |= 1 << key
        after = written_one(w, s, key, value)
        if after is not None:
            rest = s.todo[:place] + s.todo[place + 1 :]
            yield f"catch-up writes {said_changes(((key, value),))}", after._replace(todo=rest)


# -- the checkpoint ---------------------------------------------------------------------------------------------------


def saved(w: World, s: State) -> State:
    """The log begins at the checkpoint; without crashes to come that is wherever catch-up is."""
    place = s.applied
    if s.crashes and w.rules.checkpoint_in_order and not is_visible(s, place):
        return s
    if s.crashes and not w.rules.nothing_applied_twice:
        place = min([place, *(i for i, e in enumerate(s.log[:place]) if e[0] == "prepare" and s.held >> e[1] & 1)])
    held = s.held if s.crashes and w.rules.branches_remembered and w.rules.nothing_applied_twice else 0
    return s._replace(log=s.log[place:], applied=s.applied - place, held_saved=held)


def is_visible(s: State, place: int) -> bool:
    """Commits become visible in their order: who can read a checkpoint can read all ledger rows before it."""
    hidden = sum(e[0] in IN_ORDER for e in s.hidden)
    return hidden <= sum(e[0] in IN_ORDER for e in s.log[place:])


def save(w: World, s: State) -> Steps:
    if s.applied and not s.todo:
        after = saved(w, s)
        if after != s:
            yield "catch-up saves its checkpoint", after


# -- matching ---------------------------------------------------------------------------------------------------------


def match(w: World, s: State) -> Steps:
    """At "landed": it waits for the landing transaction's locks on the rows and on the ledger."""
    if s.todo or s.applied >= len(s.log) or (entry := s.log[s.applied])[0] != "land":
        return
    chunk, following = entry[1:]
    if not s.opened >> chunk & 1:
        return
    is_landed = s.chunks[chunk][0] in (LANDED, MATCHED)
    if not is_landed and w.rules.locking_deletes:
        return
    after = s._replace(applied=s.applied + 1, opened=s.opened & ~(1 << chunk))
    for words, matched in deleted_again(w, after, chunk):
        opened = matched.opened | (1 << following if following >= 0 else 0)
        yield f"catch-up: chunk {chunk} landed, {words}", unsaved(matched._replace(opened=opened))


def unsaved(s: State) -> State:
    """Matching saves no checkpoint; where no crash is to come the log need not be kept."""
    return s if s.crashes else s._replace(log=s.log[s.applied :], applied=0)


def deleted_again(w: World, s: State, chunk: int) -> Iterator[tuple[str, State]]:
    keys, locks = present(s.tombs), row_locks(s)
    if keys & locks and w.rules.locking_deletes:
        return
    attempt = s.chunks[chunk][1]
    s = pruned(w, s)._replace(chunks=put(s.chunks, chunk, (MATCHED, attempt)))
    if not w.rules.landed_in_stream:
        yield f"a side thread is to delete {said_keys(keys)}", s._replace(late=s.late | keys)
        return
    shadow = tuple(NONE if (keys & ~locks) >> k & 1 else v for k, v in enumerate(s.shadow))
    yield f"deletes {said_keys(keys)} again" if keys else "no tombstones", s._replace(shadow=shadow)


def pruned(w: World, s: State) -> State:
    """What was noted before any chunk that is open now was opened is forgotten."""
    left = s.opened if w.rules.pruned_behind_oldest else 0
    return s._replace(tombs=tuple(mask & left for mask in s.tombs))


def delete_late(w: World, s: State) -> Steps:
    if s.late and not s.late & row_locks(s):
        shadow = tuple(NONE if s.late >> k & 1 else v for k, v in enumerate(s.shadow))
        yield f"the side thread deletes {said_keys(s.late)}", s._replace(shadow=shadow, late=0)


def pass_marker(w: World, s: State) -> Steps:
    if s.todo or s.applied >= len(s.log) or s.log[s.applied][0] != "mark":
        return
    number = s.log[s.applied][1]
    after = s._replace(applied=s.applied + 1)
    if not number:
        yield "catch-up: a copy task's marker", saved(w, after._replace(held_at_marker=s.held))
    elif number != s.run:
        yield "catch-up: an old marker", saved(w, after)
    else:
        yield from freshened(w, after)


def freshened(w: World, s: State) -> Steps:
    """match_landed, then the gate may open."""
    landed = [c for c, (state, _) in enumerate(s.chunks) if state == LANDED]
    if not w.rules.matched_with_deletes:
        for chunk in landed:
            s = s._replace(chunks=put(s.chunks, chunk, (MATCHED, s.chunks[chunk][1])), opened=s.opened & ~(1 << chunk))
        landed = []
    states = [s]
    for chunk in landed:
        before = states[0]._replace(opened=states[0].opened & ~(1 << chunk))
        states = [after for _, after in deleted_again(w, before, chunk)]
        if not states:
            return
    yield "catch-up: its fresh marker", saved(w, states[0]._replace(is_fresh=True))


# -- crashes ----------------------------------------------------------------------------------------------------------


def crash(w: World, s: State) -> Steps:
    if s.crashes and s.stage == PREPARATION_DONE:
        yield "catch-up crashes and starts again from its checkpoint", restarted(w, s)


def restarted(w: World, s: State) -> State:
    opened = mask_of(c for c, (state, _) in enumerate(s.chunks) if state in (OPEN, LANDED))
    tombs = tuple((opened | KEPT) if mask and w.rules.tombstones_durable else NONE for mask in s.tombs)
    has_chunks = any(attempt for _, attempt in s.chunks)
    return s._replace(
        applied=0,
        todo=(),
        opened=opened,
        tombs=tombs,
        held=s.held_saved,
        is_strict=has_chunks,
        is_fresh=False,
        run=s.run + 1,
        crashes=s.crashes - 1,
        log=(*s.log, ("mark", s.run + 1)),
    )


def replace(w: World, s: State) -> Steps:
    """The stopped one wakes up behind its successor."""
    if not (w.bounds.has_stale and s.crashes and s.stale is None):
        return
    for taken in batches(w, s):
        if taken.changes:
            for is_past in (False,) if w.rules.applier_lease_locks else (False, True):
                stale = Stale(last_ones(taken.changes), is_past)
                words = f"catch-up is stopped with {said_changes(stale.changes)} in its hands"
                seen = " and past the fence" if is_past else ""
                yield f"{words}{seen}; another takes over from the checkpoint", restarted(w, s)._replace(stale=stale)


def wake(w: World, s: State) -> Steps:
    if s.stale is None:
        return
    if w.rules.applier_lease and not s.stale.is_past_fence:
        yield "the old catch-up wakes up and is superseded", s._replace(stale=Stale((), True))
    elif s.stale.changes and not keys_of(s.stale.changes) & row_locks(s):
        shadow = list(s.shadow)
        for key, value in s.stale.changes:
            shadow[key] = value
        words = f"the old catch-up wakes up and writes {said_changes(s.stale.changes)}"
        yield words, s._replace(shadow=tuple(shadow), stale=Stale((), True))


# -- new unique keys --------------------------------------------------------------------------------------------------


def is_dirty(s: State) -> bool:
    return any(s.dirty) or bool(s.dirty_chunks)


def settle_dirty(w: World, s: State) -> Steps:
    """Ranges of dirty chunks and single dirty keys are new splits, copied without clearing."""
    if w.bounds.unique != "added" or not all_matched(s) or not is_dirty(s) or s.again >= 0:
        return
    if has_duplicates(s.seen):
        yield "the source holds duplicates", s._replace(failure="ended: the source holds duplicates")
        return
    if not s.rounds:
        return
    ranges = [s.ranges[c] for c in bits(s.dirty_chunks)] + [1 << k for k, d in enumerate(s.dirty) if d]
    words = f"what collided is copied again: {', '.join(map(said_keys, ranges))}"
    yield (
        words,
        s._replace(
            ranges=s.ranges + tuple(ranges),
            chunks=s.chunks + ((UNOPENED, 0),) * len(ranges),
            attempts=s.attempts + (0,) * len(ranges),
            dirty=tuple(2 if d else 0 for d in s.dirty),
            again=s.dirty_chunks,
            rounds=s.rounds - 1,
        ),
    )


def has_duplicates(rows: Rows) -> bool:
    values = [v for v in rows if v not in (NONE, NULL)]
    return len(set(values)) < len(values)


def forget_dirty(w: World, s: State) -> Steps:
    if s.again >= 0 and all_matched(s):
        still = 1 if w.rules.forgets_older else 0
        dirty = tuple({0: 0, 1: 1, 2: 0, 3: still}[d] for d in s.dirty)
        chunks = s.dirty_chunks & ~s.again
        yield "what was copied again is clean", s._replace(dirty=dirty, dirty_chunks=chunks, again=-1)


def pass_gate(w: World, s: State) -> Steps:
    if not w.rules.dirty_under_lock and all_matched(s) and not is_dirty(s) and not s.has_passed_gate:
        yield "the gate opens", s._replace(has_passed_gate=True)
